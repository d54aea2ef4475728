/* Loss and accuracy on sequences: one evaluator serves training and gma_eval. */
#ifndef GMA_TRAIN_SEQUENCE_EVAL_H
#define GMA_TRAIN_SEQUENCE_EVAL_H

#include "data/sequences.h"
#include "models/model.h"
#include "models/net.h"
#include "train/task.h"

/* What a model asks of a file of sequences; context 0 = its own. */
gmal_set_want gmal_sequences_for(const gma_lm_config *c, int64_t context);

/* Some sequences one behind the other, the way the network takes them. */
typedef struct gmal_sequence_batch {
    int64_t room; /* sequences */
    int64_t count, rows; /* sequences in it, and their tokens */
    int64_t *lengths;
    int32_t *x, *y; /* y: a target a token, or of a classifier a class a sequence */
    int32_t own; /* the token that every sequence begins with (pooling cls); -1 = none */
    int classes;
} gmal_sequence_batch;

/* longest: tokens of the longest sequence that will be put in. */
gma_status gmal_sequence_batch_create(const gma_lm_config *c, int64_t room, int64_t longest, gmal_sequence_batch *b);
void gmal_sequence_batch_destroy(gmal_sequence_batch *b);
void gmal_sequence_batch_put(gmal_sequence_batch *b, const gmal_sequence_set *set, int64_t index);

/* A network with room for `batch` sequences of `longest` tokens. */
gma_status gmal_sequence_net_create(const gmal_layout *layout, int64_t batch, int64_t longest, gmal_net_use use, int threads,
                                    gmal_net_f32 **net);

/* Tokens of the longest sequence of the span. */
int64_t gmal_sequence_span_longest(const gmal_sequence_span *span);

typedef struct gmal_sequence_eval {
    gmal_sequence_span span;
    int64_t count; /* sequences that are read */
    gmal_sequence_batch batch;
    gmal_net_f32 *net;
} gmal_sequence_eval;

/* most 0 = all. The span holds at least one sequence. */
gma_status gmal_sequence_eval_create(const gmal_layout *layout, const gmal_sequence_span *span, int64_t batch,
                                     int64_t most, int threads, gmal_sequence_eval *e);
void gmal_sequence_eval_destroy(gmal_sequence_eval *e);
gma_status gmal_sequence_evaluate(gmal_sequence_eval *e, const float *params, gmal_stop stop, gmal_score *score);

/* gma_eval on a file of sequences: loss, tokens, windows, sequences, right and accuracy of the result. */
gma_status gmal_eval_sequences(const gma_lm *lm, const char *data, const gma_eval_options *o, int threads,
                               gma_eval_result *result);

#endif
