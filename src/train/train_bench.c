/* Training steps without data or files, for measuring: gma/bench.h. What a step does is what train/trainer.c does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gma/bench.h"
#include "layers/pages.h"
#include "layers/rng.h"
#include "layers/threads.h"
#include "layers/watch.h"
#include "models/model.h"
#include "models/net.h"
#include "train/optimizer.h"
#include "train/settings.h"

struct gma_train_bench {
    gma_settings *s;
    gma_lm *lm;
    gmal_adamw opt;
    gmal_net_f32 *net;
    float *grads;
    int64_t step;
};

static gma_status set_up(gma_train_bench *b, const gma_settings *settings) {
    gma_status s = gmal_settings_copy(settings, &b->s);
    if (s == GMA_OK) s = gma_settings_resolve(b->s);
    if (s == GMA_OK && b->s->model.task != GMA_LM_TASK_LM)
        s = gma_fail(GMA_ERR_UNSUPPORTED, "task: only steps of a language model (lm) are measured");
    if (s == GMA_OK) s = gma_lm_create(&b->s->model, gmal_key((uint64_t)b->s->seed, 0), &b->lm);
    if (s == GMA_OK) s = gmal_adamw_create(b->lm->layout, &b->opt);
    if (s != GMA_OK) return s;
    b->grads = gmal_pages((size_t)b->lm->layout->total * sizeof(float));
    if (!b->grads) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for gradients");
    const gmal_threads t = gmal_threads_enter((int)b->s->threads);
    s = gmal_net_create_f32(b->lm->layout, b->s->batch, b->s->model.context,
                            b->s->recompute ? GMAL_NET_RECOMPUTE : GMAL_NET_TRAIN, t.now, &b->net);
    gmal_threads_leave(t);
    return s;
}

gma_status gma_train_bench_create(const gma_settings *settings, gma_train_bench **bench) {
    if (!settings || !bench) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_train_bench_create: a pointer is NULL");
    *bench = NULL;
    gma_train_bench *b = calloc(1, sizeof *b);
    if (!b) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a measurement of training");
    const gma_status s = set_up(b, settings);
    if (s != GMA_OK) {
        gma_train_bench_destroy(b);
        return s;
    }
    *bench = b;
    return GMA_OK;
}

void gma_train_bench_destroy(gma_train_bench *b) {
    if (!b) return;
    gmal_net_destroy_f32(b->net);
    gmal_adamw_destroy(&b->opt);
    gma_lm_destroy(b->lm);
    gma_settings_destroy(b->s);
    free(b->grads);
    free(b);
}

gma_lm *gma_train_bench_model(gma_train_bench *b) { return b ? b->lm : NULL; }

static void update(gma_train_bench *b, int threads) {
    const gma_settings *s = b->s;
    const double norm = gmal_grad_norm(&b->opt, b->grads, threads);
    const gmal_adamw_step step = {
        .step = b->step,
        .lr = s->lr,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->adam_eps,
        .weight_decay = s->weight_decay,
        .grad_scale = s->clip > 0 && norm > s->clip ? s->clip / norm : 1,
    };
    gmal_adamw_apply(&b->opt, b->lm->values, b->grads, &step, threads);
}

static gma_status run(gma_train_bench *b, const int32_t *tokens, const int32_t *targets, int threads,
                      gma_train_times *times) {
    const int64_t count = b->s->batch * b->s->model.context;
    gmal_watch watch = {0, 0};
    double sum = 0;
    gmal_watch *before = gmal_watch_set(&watch);
    const double start = gmal_seconds();
    memset(b->grads, 0, (size_t)b->lm->layout->total * sizeof *b->grads);
    b->step++;
    const gma_status s = gmal_net_backward_f32(b->net, b->lm->values, b->grads, tokens, targets, 1 / (double)count,
                                               gmal_key((uint64_t)b->s->seed, (uint64_t)b->step), &sum);
    const double computed = gmal_seconds();
    if (s == GMA_OK) update(b, threads);
    const double end = gmal_seconds();
    gmal_watch_set(before);
    times->seconds = end - start;
    times->products = watch.products;
    times->mixer = watch.mixer;
    times->optimizer = end - computed;
    times->loss = sum / (double)count;
    return s;
}

gma_status gma_train_bench_step(gma_train_bench *b, const int32_t *tokens, const int32_t *targets,
                                gma_train_times *times) {
    if (!b || !tokens || !targets || !times || times->struct_size != sizeof *times)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "gma_train_bench_step: a pointer is NULL, or times->struct_size is not set");
    const int64_t count = b->s->batch * b->s->model.context, vocab = b->s->model.vocab;
    gma_status s = gmal_check_tokens("tokens", tokens, count, vocab, 0);
    if (s == GMA_OK) s = gmal_check_tokens("targets", targets, count, vocab, 0);
    if (s != GMA_OK) return s;
    const gmal_threads t = gmal_threads_enter((int)b->s->threads);
    s = run(b, tokens, targets, t.now, times);
    gmal_threads_leave(t);
    return s;
}
