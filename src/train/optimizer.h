/* AdamW on the flat parameter array, with what it needs to know of each tensor. */
#ifndef GMA_TRAIN_OPTIMIZER_H
#define GMA_TRAIN_OPTIMIZER_H

#include "models/layout.h"
#include "train/settings.h"

typedef struct gmal_adamw {
    const gmal_layout *layout;
    float *m, *v; /* layout->total each, zero at the start */
    struct gmal_run *runs; /* the parameters in pieces of equal decay, for the threads */
    int64_t run_count;
    double *partial; /* one a run */
} gmal_adamw;

typedef struct gmal_adamw_step {
    int64_t step; /* counted from 1 */
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale; /* of clipping */
} gmal_adamw_step;

gma_status gmal_adamw_create(const gmal_layout *layout, gmal_adamw *opt);
void gmal_adamw_destroy(gmal_adamw *opt);

/* Euclidean norm of all gradients, summed in an order that does not depend on the threads. NaN or Inf show. */
double gmal_grad_norm(const gmal_adamw *opt, const float *grads, int threads);

void gmal_adamw_apply(gmal_adamw *opt, float *params, const float *grads, const gmal_adamw_step *step, int threads);

/* When `done` steps lie behind: a linear rise to lr over `warmup` steps, then down to min_lr_ratio lr at `steps`, along a
 * cosine or a straight line (schedule), or no fall at all. */
double gmal_learning_rate(const gma_settings *s, int64_t done);

#endif
