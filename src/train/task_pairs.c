/* Task: sequences from sequences (seq2seq), on pairs that are generated as they are needed: none is seen twice. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "layers/rng.h"
#include "layers/try.h"
#include "train/pairs_eval.h"

enum { VALIDATED = 256 }; /* pairs of a validation, unless eval_windows says */

typedef struct pairs {
    gmal_pairs_of train, val;
    gmal_seq2seq_f32 *net;
    gmal_pair_batch batch;
    gmal_pairs_eval eval;
} pairs;

static int64_t validated(const gmal_task *task) { return task->s->eval_windows ? task->s->eval_windows : VALIDATED; }

static gma_status open(gmal_task *task) {
    const gma_settings *s = task->s;
    pairs *t = task->state;
    t->train = (gmal_pairs_of){.symbols = s->symbols,
                               .least = s->min_length ? s->min_length : s->model.context,
                               .most = s->model.context,
                               .key = gmal_key((uint64_t)s->seed, 1)};
    TRY(gmal_pairs_kind(s->data, &t->train.kind));
    t->val = t->train;
    t->val.key = gmal_key((uint64_t)s->seed, 4);
    for (int64_t i = 0; i < validated(task); i++) task->val_tokens += gmal_pair_length(&t->val, i);
    /* Another task in the place of this one is noticed as other data is. */
    task->train_checksum = gmal_key(gmal_key((uint64_t)t->train.kind + 1, (uint64_t)t->train.symbols),
                                    gmal_key((uint64_t)t->train.least, (uint64_t)t->train.most));
    const double shortest = pow((double)s->symbols, (double)t->train.least);
    if (shortest < 1e9)
        snprintf(task->note, sizeof task->note, "pairs are generated (%s); there are only %.0f of the shortest length, so some of "
                 "validation are trained on too", s->data, shortest);
    else
        snprintf(task->note, sizeof task->note, "pairs are generated (%s): none is trained on twice, and validation has its own", s->data);
    return GMA_OK;
}

static gma_status start(gmal_task *task, const gmal_layout *layout, int threads) {
    const gma_settings *s = task->s;
    pairs *t = task->state;
    TRY(gmal_pair_batch_create(s->batch, s->model.context, &t->batch));
    TRY(gmal_seq2seq_create_f32(layout, s->batch, s->recompute ? GMAL_NET_RECOMPUTE : GMAL_NET_TRAIN, threads, &t->net));
    return gmal_pairs_eval_create(layout, &t->val, validated(task), s->batch, threads, &t->eval);
}

static gmal_amount amount(gmal_task *task, int64_t first, int64_t count) {
    pairs *t = task->state;
    int64_t symbols = count * t->train.most;
    if (t->train.least < t->train.most)
        for (int64_t i = symbols = 0; i < count; i++) symbols += gmal_pair_length(&t->train, first + i);
    return (gmal_amount){.targets = symbols + count, .tokens = 2 * symbols + count};
}

static gma_status pass(gmal_task *task, int64_t first, const float *params, float *grads, double scale, uint64_t key,
                       double *loss_sum) {
    pairs *t = task->state;
    gmal_pair_batch_fill(&t->batch, &t->train, first, t->batch.room);
    const gmal_pairs_f32 view = gmal_pair_batch_view(&t->batch);
    return gmal_seq2seq_backward_f32(t->net, params, grads, &view, scale, key, loss_sum);
}

static gma_status evaluate(gmal_task *task, const float *params, gmal_stop stop, gmal_score *score) {
    pairs *t = task->state;
    return gmal_pairs_evaluate(&t->eval, params, stop, score);
}

static void close(gmal_task *task) {
    pairs *t = task->state;
    gmal_pairs_eval_destroy(&t->eval);
    gmal_seq2seq_destroy_f32(t->net);
    gmal_pair_batch_destroy(&t->batch);
}

const gmal_task_ops gmal_task_pairs = {sizeof(pairs), open, start, amount, pass, evaluate, close};
