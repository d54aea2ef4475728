/* Task: sequences of a token file. A language model is trained where the file has targets, a classifier on the class of each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"
#include "layers/try.h"
#include "train/evaluate.h"
#include "train/sequence_eval.h"

typedef struct sequences {
    gmal_sequence_set data, val_data;
    gmal_sequence_span train, val;
    gmal_net_f32 *net;
    gmal_sequence_batch batch;
    gmal_sequence_eval eval;
} sequences;

static gma_status open_files(gmal_task *task, sequences *t) {
    const gma_settings *s = task->s;
    gmal_set_want want = gmal_sequences_for(&s->model, 0);
    TRY(gmal_set_open(s->data, &want, &t->data));
    task->token_file = t->data.file;
    const int64_t all = gmal_set_count(&t->data);
    if (s->val_data && *s->val_data) {
        want.tokenizer = gma_token_file_tokenizer(t->data.file);
        TRY(gmal_set_open(s->val_data, &want, &t->val_data));
        t->train = (gmal_sequence_span){&t->data, 0, all};
        t->val = (gmal_sequence_span){&t->val_data, 0, gmal_set_count(&t->val_data)};
        return GMA_OK;
    }
    const int64_t cut = gmal_split_at(all, s->val_fraction);
    if (cut < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: val_fraction %g of its %lld sequences leaves none to train on", s->data,
                        s->val_fraction, (long long)all);
    t->train = (gmal_sequence_span){&t->data, 0, cut};
    t->val = (gmal_sequence_span){&t->data, t->train.end, all};
    return GMA_OK;
}

/* What is silently unlike what one may expect is said. */
static void note(gmal_task *task, const sequences *t) {
    const gma_lm_config *c = &task->s->model;
    const int64_t cut = t->data.cut + t->val_data.cut;
    int used = 0;
    if (cut)
        used = snprintf(task->note, sizeof task->note, "%lld of %lld sequences are longer than the context of %lld and are cut. ",
                        (long long)cut, (long long)(gmal_set_count(&t->data) + (t->val_data.file ? gmal_set_count(&t->val_data) : 0)),
                        (long long)c->context);
    if (!c->causal && gmal_config_has(c, GMA_MIXER_MAMBA))
        snprintf(task->note + used, sizeof task->note - (size_t)used, "mamba layers read from left to right only.");
}

static gma_status open(gmal_task *task) {
    sequences *t = task->state;
    TRY(open_files(task, t));
    task->train_tokens = gmal_sequence_span_tokens(&t->train);
    task->val_tokens = gmal_sequence_span_tokens(&t->val);
    task->train_checksum = gmal_sequence_span_checksum(&t->train);
    note(task, t);
    return GMA_OK;
}

static gma_status start(gmal_task *task, const gmal_layout *layout, int threads) {
    const gma_settings *s = task->s;
    sequences *t = task->state;
    const int64_t longest = gmal_sequence_span_longest(&t->train);
    TRY(gmal_sequence_batch_create(&layout->c, s->batch, longest, &t->batch));
    TRY(gmal_sequence_net_create(layout, s->batch, longest, s->recompute ? GMAL_NET_RECOMPUTE : GMAL_NET_TRAIN, threads, &t->net));
    task->net = t->net;
    if (!task->val_tokens) return GMA_OK;
    return gmal_sequence_eval_create(layout, &t->val, s->batch, s->eval_windows, threads, &t->eval);
}

static int64_t sequence_of(const gmal_task *task, const sequences *t, int64_t sample) {
    return gmal_order_sequence(&t->train, gmal_key((uint64_t)task->s->seed, 1), sample);
}

static gmal_amount amount(gmal_task *task, int64_t first, int64_t n) {
    const sequences *t = task->state;
    gmal_amount a = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const int64_t index = sequence_of(task, t, first + i);
        a.targets += gmal_set_targets(&t->data, index);
        a.tokens += gmal_set_length(&t->data, index);
    }
    return a;
}

static gma_status pass(gmal_task *task, int64_t first, const float *params, float *grads, double scale, uint64_t key,
                       double *loss_sum) {
    sequences *t = task->state;
    gmal_sequence_batch *b = &t->batch;
    b->count = b->rows = 0;
    for (int64_t i = 0; i < task->s->batch; i++) gmal_sequence_batch_put(b, &t->data, sequence_of(task, t, first + i));
    TRY(gmal_net_pack_f32(t->net, b->lengths, b->count));
    return gmal_net_backward_f32(t->net, params, grads, b->x, b->y, scale, key, loss_sum);
}

static gma_status evaluate(gmal_task *task, const float *params, gmal_stop stop, gmal_score *score) {
    sequences *t = task->state;
    return gmal_sequence_evaluate(&t->eval, params, stop, score);
}

static void close(gmal_task *task) {
    sequences *t = task->state;
    gmal_sequence_eval_destroy(&t->eval);
    gmal_net_destroy_f32(t->net);
    gmal_sequence_batch_destroy(&t->batch);
    gmal_set_close(&t->data);
    gmal_set_close(&t->val_data);
}

const gmal_task_ops gmal_task_sequences = {sizeof(sequences), open, start, amount, pass, evaluate, close};
