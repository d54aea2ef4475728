/* Loss and accuracy of a seq2seq model on generated pairs: one evaluator serves training and gma_eval. */
#ifndef GMA_TRAIN_PAIRS_EVAL_H
#define GMA_TRAIN_PAIRS_EVAL_H

#include "data/pairs.h"
#include "models/model.h"
#include "models/seq2seq.h"
#include "train/task.h"

/* Some pairs in memory the way the network takes them. */
typedef struct gmal_pair_batch {
    int64_t room, context;
    int32_t *source, *tokens, *targets;
    unsigned char *mask;
    int64_t *lengths;
    int whole; /* all are as long as the context: no mask is needed */
} gmal_pair_batch;

gma_status gmal_pair_batch_create(int64_t room, int64_t context, gmal_pair_batch *b);
void gmal_pair_batch_destroy(gmal_pair_batch *b);

/* Pairs first .. first + count - 1; what is left of the room repeats the first one, without targets. */
void gmal_pair_batch_fill(gmal_pair_batch *b, const gmal_pairs_of *of, int64_t first, int64_t count);

gmal_pairs_f32 gmal_pair_batch_view(const gmal_pair_batch *b);

typedef struct gmal_pairs_eval {
    gmal_pairs_of of;
    int64_t count;
    gmal_pair_batch batch;
    gmal_seq2seq_f32 *net;
    gma_lm shell; /* the layout, with the parameters of the call */
    gma_lm_stream *stream;
    float *logits;
} gmal_pairs_eval;

gma_status gmal_pairs_eval_create(const gmal_layout *layout, const gmal_pairs_of *of, int64_t count, int64_t batch, int threads,
                                  gmal_pairs_eval *e);
void gmal_pairs_eval_destroy(gmal_pairs_eval *e);

/* score->loss: with the true target before each token, the end among them. right: symbols of the targets that greedy decoding
 * puts into their places, token by token from the source alone; whole: sequences of which every symbol and the end are. */
gma_status gmal_pairs_evaluate(gmal_pairs_eval *e, const float *params, gmal_stop stop, gmal_score *score);

/* gma_eval of a seq2seq model; data names the kind of pairs. */
gma_status gmal_eval_pairs(const gma_lm *lm, const char *data, const gma_eval_options *o, int threads, gma_eval_result *result);

#endif
