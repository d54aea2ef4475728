#define _POSIX_C_SOURCE 200809L
#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gma/train.h"
#include "layers/threads.h"
#include "models/model.h"

gma_status gmal_evaluator_create(const gmal_layout *layout, const gmal_span *span, int64_t steps, int64_t batch,
                                 int64_t max_windows, int threads, gmal_evaluator *e) {
    memset(e, 0, sizeof *e);
    e->span = *span;
    e->steps = steps;
    e->windows = gmal_span_windows(span, steps);
    if (max_windows && max_windows < e->windows) e->windows = max_windows;
    e->batch = batch < e->windows ? batch : e->windows;
    const size_t bytes = (size_t)(e->batch * steps) * sizeof *e->x;
    e->x = malloc(bytes);
    e->y = malloc(bytes);
    gma_status s = e->x && e->y ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for an evaluation");
    if (s == GMA_OK) s = gmal_net_create_f32(layout, e->batch, steps, GMAL_NET_EVALUATE, threads, &e->full);
    if (s == GMA_OK && e->windows % e->batch)
        s = gmal_net_create_f32(layout, e->windows % e->batch, steps, GMAL_NET_EVALUATE, threads,
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

gma_status gmal_evaluate(gmal_evaluator *e, const float *params, int (*stop)(void *), void *context, double *loss) {
    double total = 0;
    for (int64_t w = 0; w < e->windows; w += e->batch) {
        const int64_t n = e->windows - w < e->batch ? e->windows - w : e->batch;
        double sum;
        for (int64_t i = 0; i < n; i++)
            gmal_tokens_window(e->span.tokens, e->span.begin + (w + i) * e->steps, e->steps, e->x + i * e->steps,
                               e->y + i * e->steps);
        const gma_status s = gmal_net_loss_f32(n == e->batch ? e->full : e->rest, params, e->x, e->y, &sum);
        if (s != GMA_OK) return s;
        total += sum;
        if (stop && stop(context)) return gma_fail(GMA_ERR_INTERRUPTED, "interrupted during a validation");
    }
    *loss = total / (double)(e->windows * e->steps);
    return GMA_OK;
}

void gmal_split(const gmal_tokens *tokens, double val_fraction, int64_t window, gmal_span *train, gmal_span *val) {
    const int64_t n = tokens->count;
    int64_t cut = (int64_t)floor((1 - val_fraction) * (double)n);
    if (cut > n || n - cut < window + 1) cut = n;
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
    *o = (gma_eval_options){.struct_size = sizeof *o, .val_fraction = 0.1};
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
    if (c->positions == GMA_LM_POSITIONS_LEARNED && o->context > c->context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "context is %lld, but the model has learned positions for %lld",
                        (long long)o->context, (long long)c->context);
    return GMA_OK;
}

gma_status gma_eval(const gma_lm *lm, const char *data, const gma_eval_options *options, gma_eval_result *result) {
    gma_eval_options o;
    gma_eval_options_init(&o);
    if (!lm || !data || !result) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_eval: a pointer is NULL");
    if (result->struct_size != sizeof *result)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "result->struct_size is not set");
    if (options) o = *options;
    const gma_lm_config *c = &lm->layout->c;
    gmal_tokens tokens;
    gmal_evaluator e;
    gma_status s = check(&o, c);
    if (s != GMA_OK) return s;
    s = gmal_tokens_open(data, c->tokenizer == GMA_LM_TOKENIZER_BYTES ? 1 : 2, c->vocab, &tokens);
    if (s != GMA_OK) return s;
    const int64_t window = o.context ? o.context : c->context;
    gmal_span all = {&tokens, 0, tokens.count}, train, val;
    gmal_split(&tokens, o.val_fraction, window, &train, &val);
    const gmal_span span = o.split == GMA_SPLIT_ALL ? all : o.split == GMA_SPLIT_TRAIN ? train : val;
    static const char *const what[] = {"it", "its training part", "its validation part"};
    s = gmal_need_window(&span, window, data, what[o.split]);
    const gmal_threads t = gmal_threads_enter(o.threads);
    const double start = now();
    if (s == GMA_OK) s = gmal_evaluator_create(lm->layout, &span, window, o.batch ? o.batch : 16, o.max_windows, t.now, &e);
    if (s == GMA_OK) {
        s = gmal_evaluate(&e, lm->values, NULL, NULL, &result->loss);
        result->windows = e.windows;
        result->tokens = e.windows * window;
        gmal_evaluator_destroy(&e);
    }
    gmal_threads_leave(t);
    gmal_tokens_close(&tokens);
    if (s == GMA_OK && !isfinite(result->loss))
        s = gma_fail(GMA_ERR_NON_FINITE, "%s: the loss of the model on it is not finite", data);
    if (s != GMA_OK) return s;
    result->bits_per_token = result->loss / log(2.0);
    result->perplexity = exp(result->loss);
    result->seconds = now() - start;
    return GMA_OK;
}

gma_status gma_ngram_loss(const char *data, double val_fraction, int order, double *nats) {
    gmal_tokens tokens;
    if (!data || !nats) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_ngram_loss: a pointer is NULL");
    if (!(val_fraction > 0 && val_fraction < 1))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "val_fraction must lie between 0 and 1, not %g", val_fraction);
    gma_status s = gmal_tokens_open(data, 1, 256, &tokens);
    if (s != GMA_OK) return s;
    gmal_span train, val;
    gmal_split(&tokens, val_fraction, 1, &train, &val);
    s = gmal_ngram_loss(&train, &val, order, 0.05, nats);
    gmal_tokens_close(&tokens);
    return s;
}
