/* Mean loss over the windows of a span: one evaluator serves training and gma_eval. */
#ifndef GMA_TRAIN_EVALUATE_H
#define GMA_TRAIN_EVALUATE_H

#include "data/tokens.h"
#include "models/net.h"

typedef struct gmal_evaluator {
    gmal_span span;
    int64_t steps, batch, windows;
    int64_t stride, slid; /* with a stride, how many windows that makes; windows are still those without it */
    gmal_net_f32 *full, *rest; /* for whole batches, and for what is left over (may be NULL) */
    int32_t *x, *y;
} gmal_evaluator;

/* max_windows 0 = all; stride 0 = steps. The span holds at least one window. Takes all memory an evaluation needs. */
gma_status gmal_evaluator_create(const gmal_layout *layout, const gmal_span *span, int64_t steps, int64_t batch,
                                 int64_t max_windows, int64_t stride, int threads, gmal_evaluator *e);
void gmal_evaluator_destroy(gmal_evaluator *e);

/* Nats per token. stop: asked after every batch, nonzero ends with GMA_ERR_INTERRUPTED; may be NULL. */
gma_status gmal_evaluate(gmal_evaluator *e, const float *params, int (*stop)(void *), void *context, double *loss);

/* The 95 % interval of Wilson for a part of `right` in `count` > 0. */
void gmal_wilson(int64_t right, int64_t count, double *low, double *high);

/* The first `count` that are split: the training part, of which the rest, the validation part, has val_fraction. */
int64_t gmal_split_at(int64_t count, double val_fraction);

/* Which part of `count` tokens is for training and which for validation, by position: floor((1 - fraction) count)
 * first. A validation part shorter than a window is given up: then training has all and *val is empty. */
void gmal_split(const gmal_tokens *tokens, double val_fraction, int64_t window, gmal_span *train, gmal_span *val);

/* An error that says how many tokens a window needs, when the span has none. */
gma_status gmal_need_window(const gmal_span *span, int64_t window, const char *path, const char *what);

#endif
