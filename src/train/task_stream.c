/* Task: the next token of one text, in windows of `context` tokens. */
#include <stdlib.h>
#include <string.h>

#include "data/token_file.h"
#include "layers/rng.h"
#include "layers/try.h"
#include "models/net.h"
#include "train/evaluate.h"
#include "train/task.h"

typedef struct stream {
    gmal_tokens data, val_data;
    gmal_span train, val; /* val is empty when there is nothing to validate on */
    gmal_net_f32 *net;
    gmal_evaluator eval;
    int32_t *x, *y;
} stream;

static gma_status open_files(gmal_task *task, stream *t) {
    const gma_settings *s = task->s;
    const int width = s->tokens == GMAL_TOKENS_BYTES ? 1 : 2;
    const int64_t window = s->model.context;
    TRY(gmal_tokens_open_for(s->data, width, s->model.vocab, NULL, &t->data));
    task->token_file = t->data.token_file;
    /* What it was made with reads the other file too, and goes into the checkpoints. */
    const gma_tokenizer *tokenizer = t->data.token_file ? gma_token_file_tokenizer(t->data.token_file) : NULL;
    if (s->val_data && *s->val_data) {
        TRY(gmal_tokens_open_for(s->val_data, width, s->model.vocab, tokenizer, &t->val_data));
        t->train = (gmal_span){&t->data, 0, t->data.count};
        t->val = (gmal_span){&t->val_data, 0, t->val_data.count};
        TRY(gmal_need_window(&t->val, window, s->val_data, "it"));
        return gmal_need_window(&t->train, window, s->data, "it");
    }
    gmal_split(&t->data, s->val_fraction, window, &t->train, &t->val);
    return gmal_need_window(&t->train, window, s->data, t->val.begin == t->val.end ? "it" : "its training part");
}

static gma_status open(gmal_task *task) {
    stream *t = task->state;
    TRY(open_files(task, t));
    task->train_tokens = t->train.end - t->train.begin;
    task->val_tokens = t->val.end - t->val.begin;
    task->train_checksum = gmal_span_checksum(&t->train);
    task->text = task->val_tokens ? &t->val : &t->train;
    if (!task->val_tokens && task->s->val_fraction > 0)
        strcpy(task->note, "the data is too short for a validation part of one context: it is all trained on");
    return GMA_OK;
}

static gma_status start(gmal_task *task, const gmal_layout *layout, int threads) {
    const gma_settings *s = task->s;
    stream *t = task->state;
    const int64_t T = s->model.context;
    const size_t bytes = (size_t)(s->batch * T) * sizeof *t->x;
    t->x = malloc(bytes);
    t->y = malloc(bytes);
    if (!t->x || !t->y) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a batch");
    TRY(gmal_net_create_f32(layout, s->batch, T, s->recompute ? GMAL_NET_RECOMPUTE : GMAL_NET_TRAIN, threads, &t->net));
    task->net = t->net;
    if (!task->val_tokens) return GMA_OK;
    return gmal_evaluator_create(layout, &t->val, T, s->batch, s->eval_windows, 0, threads, &t->eval);
}

static gmal_amount amount(gmal_task *task, int64_t first, int64_t count) {
    (void)first;
    const int64_t n = count * task->s->model.context;
    return (gmal_amount){n, n};
}

static gma_status pass(gmal_task *task, int64_t first, const float *params, float *grads, double scale, uint64_t key,
                       double *loss_sum) {
    const gma_settings *s = task->s;
    stream *t = task->state;
    const int64_t T = s->model.context;
    for (int64_t b = 0; b < s->batch; b++)
        gmal_tokens_window(&t->data, gmal_order_window(&t->train, T, gmal_key((uint64_t)s->seed, 1), first + b), T,
                           t->x + b * T, t->y + b * T);
    return gmal_net_backward_f32(t->net, params, grads, t->x, t->y, scale, key, loss_sum);
}

static gma_status evaluate(gmal_task *task, const float *params, gmal_stop stop, gmal_score *score) {
    stream *t = task->state;
    *score = (gmal_score){.targets = t->eval.windows * t->eval.steps, .right = -1};
    return gmal_evaluate(&t->eval, params, stop.ask, stop.context, &score->loss);
}

static void close(gmal_task *task) {
    stream *t = task->state;
    gmal_evaluator_destroy(&t->eval);
    gmal_net_destroy_f32(t->net);
    gmal_tokens_close(&t->data);
    gmal_tokens_close(&t->val_data);
    free(t->x);
    free(t->y);
}

const gmal_task_ops gmal_task_stream = {sizeof(stream), open, start, amount, pass, evaluate, close};
