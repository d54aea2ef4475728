#define _POSIX_C_SOURCE 200809L
#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/token_file.h"
#include "gma/train.h"
#include "layers/threads.h"
#include "models/model.h"
#include "train/pairs_eval.h"
#include "train/sequence_eval.h"

gma_status gmal_evaluator_create(const gmal_layout *layout, const gmal_span *span, int64_t steps, int64_t batch,
                                 int64_t max_windows, int64_t stride, int threads, gmal_evaluator *e) {
    memset(e, 0, sizeof *e);
    e->span = *span;
    e->steps = steps;
    e->windows = gmal_span_windows(span, steps);
    if (max_windows && max_windows < e->windows) e->windows = max_windows;
    e->stride = stride ? stride : steps;
    e->slid = 1 + ((e->windows - 1) * steps + e->stride - 1) / e->stride;
    e->batch = batch < e->slid ? batch : e->slid;
    const size_t bytes = (size_t)(e->batch * steps) * sizeof *e->x;
    e->x = malloc(bytes);
    e->y = malloc(bytes);
    gma_status s = e->x && e->y ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for an evaluation");
    if (s == GMA_OK) s = gmal_net_create_f32(layout, e->batch, steps, GMAL_NET_EVALUATE, threads, &e->full);
    if (s == GMA_OK && e->slid % e->batch)
        s = gmal_net_create_f32(layout, e->slid % e->batch, steps, GMAL_NET_EVALUATE, threads,
                                &e->rest);
    if (s != GMA_OK) gmal_evaluator_destroy(e);
    return s;
}

void gmal_evaluator_destroy(gmal_evaluator *e) {
    gmal_net_destroy_f32(e->full);
    gmal_net_destroy_f32(e->rest);
    free(e->x);
    free(e->y);
    memset(e, 0, sizeof *e);
}

/* Window w: the last one ends where the text does. Only what no window before it has predicted is a target. */
static void take_window(const gmal_evaluator *e, int64_t w, int32_t *x, int32_t *y) {
    const int64_t last = (e->windows - 1) * e->steps, at = w * e->stride < last ? w * e->stride : last;
    const int64_t seen = w ? (w - 1) * e->stride + e->steps - at : 0;
    gmal_tokens_window(e->span.tokens, e->span.begin + at, e->steps, x, y);
    for (int64_t i = 0; i < seen; i++) y[i] = -1;
}

gma_status gmal_evaluate(gmal_evaluator *e, const float *params, int (*stop)(void *), void *context, double *loss) {
    double total = 0;
    for (int64_t w = 0; w < e->slid; w += e->batch) {
        const int64_t n = e->slid - w < e->batch ? e->slid - w : e->batch;
        double sum;
        for (int64_t i = 0; i < n; i++) take_window(e, w + i, e->x + i * e->steps, e->y + i * e->steps);
        const gma_status s = gmal_net_loss_f32(n == e->batch ? e->full : e->rest, params, e->x, e->y, &sum);
        if (s != GMA_OK) return s;
        total += sum;
        if (stop && stop(context)) return gma_fail(GMA_ERR_INTERRUPTED, "interrupted during a validation");
    }
    *loss = total / (double)(e->windows * e->steps);
    return GMA_OK;
}

void gmal_wilson(int64_t right, int64_t count, double *low, double *high) {
    const double z = 1.959963984540054, n = (double)count, p = (double)right / n;
    const double middle = (p + z * z / (2 * n)) / (1 + z * z / n);
    const double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *low = right == 0 ? 0 : middle - half; /* exact at the ends, where rounding would show */
    *high = right == count ? 1 : middle + half;
}

int64_t gmal_split_at(int64_t count, double val_fraction) {
    const int64_t cut = (int64_t)floor((1 - val_fraction) * (double)count + 1e-6); /* 1 - 0.9 is less than 0.1 */
    return cut > count ? count : cut;
}

void gmal_split(const gmal_tokens *tokens, double val_fraction, int64_t window, gmal_span *train, gmal_span *val) {
    const int64_t n = tokens->count;
    int64_t cut = gmal_split_at(n, val_fraction);
    if (n - cut < window + 1) cut = n;
    *train = (gmal_span){tokens, 0, cut};
    *val = (gmal_span){tokens, cut, n};
}

gma_status gmal_need_window(const gmal_span *span, int64_t window, const char *path, const char *what) {
    if (gmal_span_windows(span, window) > 0) return GMA_OK;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: %s has %lld tokens and needs at least %lld for a context of %lld",
                    path, what, (long long)(span->end - span->begin), (long long)window + 1, (long long)window);
}

/* ---- Public --------------------------------------------------------------------------------------------------- */

gma_status gma_eval_options_init(gma_eval_options *o) {
    if (!o) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options is NULL");
    *o = (gma_eval_options){.struct_size = sizeof *o, .val_fraction = 0.1, .seed = 1};
    return GMA_OK;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gma_status check(const gma_eval_options *o, const gma_lm_config *c) {
    if (o->struct_size != sizeof *o)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options must come from gma_eval_options_init");
    if (o->context < 0 || o->batch < 0 || o->max_windows < 0 || o->context > 1 << 24 || o->batch > 1 << 20)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "context, batch or max_windows is out of range");
    if (o->split < GMA_SPLIT_ALL || o->split > GMA_SPLIT_VAL)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "split: there is no number %d", (int)o->split);
    if (!(o->val_fraction >= 0 && o->val_fraction < 1))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "val_fraction must be at least 0 and less than 1, not %g",
                        o->val_fraction);
    if (o->stride < 0 || o->stride > (o->context ? o->context : c->context))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "stride must be from 1 to the context (%lld), not %lld",
                        (long long)(o->context ? o->context : c->context), (long long)o->stride);
    if (c->positions == GMA_LM_POSITIONS_LEARNED && o->context > c->context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "context is %lld, but the model has learned positions for %lld",
                        (long long)o->context, (long long)c->context);
    return GMA_OK;
}

/* Options of another task. */
static gma_status check_task(const gma_eval_options *o, const gma_lm_config *c) {
    if (o->min_length && c->task != GMA_LM_TASK_SEQ2SEQ)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "min_length is for pairs that are generated, and this model's task is another");
    return GMA_OK;
}

static gma_status eval_text(const gma_lm *lm, const char *data, const gma_eval_options *o, int threads,
                            gma_eval_result *result) {
    const gma_lm_config *c = &lm->layout->c;
    gmal_tokens tokens;
    gmal_evaluator e;
    gma_status s = gmal_tokens_open_for(data, c->tokenizer == GMA_LM_TOKENIZER_BYTES ? 1 : 2, c->vocab, lm->tokenizer, &tokens);
    if (s != GMA_OK) return s;
    const int64_t window = o->context ? o->context : c->context;
    gmal_span all = {&tokens, 0, tokens.count}, train, val;
    gmal_split(&tokens, o->val_fraction, window, &train, &val);
    const gmal_span span = o->split == GMA_SPLIT_ALL ? all : o->split == GMA_SPLIT_TRAIN ? train : val;
    static const char *const what[] = {"it", "its training part", "its validation part"};
    s = gmal_need_window(&span, window, data, what[o->split]);
    if (s == GMA_OK)
        s = gmal_evaluator_create(lm->layout, &span, window, o->batch ? o->batch : 16, o->max_windows, o->stride, threads, &e);
    if (s == GMA_OK) {
        s = gmal_evaluate(&e, lm->values, NULL, NULL, &result->loss);
        result->windows = e.slid;
        result->tokens = e.windows * window;
        if (lm->tokenizer || c->tokenizer == GMA_LM_TOKENIZER_BYTES)
            gmal_count_text(&tokens, lm->tokenizer, span.begin + 1, span.begin + 1 + result->tokens, &result->text_bytes,
                            &result->text_words);
        /* Words do not keep the white space of their text, nor rare words: how many bytes it had is not known. */
        if (lm->tokenizer && gma_tokenizer_get_kind(lm->tokenizer) == GMA_TOKENIZER_WORDS) result->text_bytes = 0;
        gmal_evaluator_destroy(&e);
    }
    gmal_tokens_close(&tokens);
    return s;
}

/* A classifier reads sequences; a language model does where the file holds some. */
static gma_status reads_sequences(const gma_lm *lm, const char *data, int *yes) {
    gma_token_info info;
    *yes = lm->layout->c.task == GMA_LM_TASK_CLASSIFY;
    if (*yes || lm->layout->c.task == GMA_LM_TASK_SEQ2SEQ || !gma_token_file_is(data)) return GMA_OK;
    const gma_status s = gmal_token_file_peek(data, &info);
    *yes = s == GMA_OK && info.layout != GMA_TOKEN_STREAM;
    return s;
}

static gma_status state_bytes(const gma_lm *lm, int threads, int64_t *bytes) {
    gma_lm_stream *stream;
    *bytes = 0;
    if (lm->layout->c.task != GMA_LM_TASK_LM) return GMA_OK;
    const gma_status s = gma_lm_stream_create(lm, threads, &stream);
    if (s != GMA_OK) return s;
    *bytes = (int64_t)gma_lm_stream_state_bytes(stream);
    gma_lm_stream_destroy(stream);
    return GMA_OK;
}

gma_status gma_eval(const gma_lm *lm, const char *data, const gma_eval_options *options, gma_eval_result *result) {
    gma_eval_options o;
    gma_eval_options_init(&o);
    if (!lm || !data || !result) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_eval: a pointer is NULL");
    if (result->struct_size != sizeof *result)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "result->struct_size is not set");
    if (options) o = *options;
    int sequences;
    gma_status s = check(&o, &lm->layout->c);
    if (s == GMA_OK) s = check_task(&o, &lm->layout->c);
    if (s == GMA_OK) s = reads_sequences(lm, data, &sequences);
    if (s != GMA_OK) return s;
    *result = (gma_eval_result){.struct_size = sizeof *result, .accuracy = NAN, .accuracy_low = NAN, .accuracy_high = NAN, .sequence_accuracy = NAN};
    const gmal_threads t = gmal_threads_enter(o.threads);
    const double start = now();
    s = lm->layout->c.task == GMA_LM_TASK_SEQ2SEQ ? gmal_eval_pairs(lm, data, &o, t.now, result)
        : sequences ? gmal_eval_sequences(lm, data, &o, t.now, result) : eval_text(lm, data, &o, t.now, result);
    if (s == GMA_OK && lm->layout->c.task != GMA_LM_TASK_SEQ2SEQ) s = state_bytes(lm, t.now, &result->state_bytes);
    gmal_threads_leave(t);
    if (s == GMA_OK && !isfinite(result->loss))
        s = gma_fail(GMA_ERR_NON_FINITE, "%s: the loss of the model on it is not finite", data);
    if (s != GMA_OK) return s;
    result->bits_per_token = result->loss / log(2.0);
    result->perplexity = exp(result->loss);
    const double total = result->loss * (double)result->tokens;
    result->bits_per_byte = result->text_bytes ? total / (double)result->text_bytes / log(2.0) : NAN;
    result->word_perplexity = result->text_words ? exp(total / (double)result->text_words) : NAN;
    result->seconds = now() - start;
    return GMA_OK;
}

gma_status gma_ngram_loss(const char *data, double val_fraction, int order, double *nats) {
    gmal_tokens tokens;
    if (!data || !nats) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_ngram_loss: a pointer is NULL");
    if (!(val_fraction > 0 && val_fraction < 1))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "val_fraction must lie between 0 and 1, not %g", val_fraction);
    gma_status s = gmal_tokens_open_for(data, 1, 256, NULL, &tokens);
    if (s != GMA_OK) return s;
    gmal_span train, val;
    gmal_split(&tokens, val_fraction, 1, &train, &val);
    s = gmal_ngram_loss(&train, &val, order, 0.05, nats);
    gmal_tokens_close(&tokens);
    return s;
}
