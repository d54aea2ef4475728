#include "train/look.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/information.h"

gma_status gmal_look_create(const gma_lm *lm, const gmal_span *span, int64_t every, int64_t batch, int64_t first,
                            int threads, gmal_look *look) {
    *look = (gmal_look){.every = every, .first = first};
    if (every == 0)
        return GMA_OK;
    const int64_t context = lm->layout->c.context, windows = gmal_span_windows(span, context);
    look->span = *span;
    gma_status s = gmal_router_create(lm, context, batch < windows ? batch : windows, threads, &look->router);
    int64_t k = 1;
    for (int64_t i = 0; i < lm->layout->c.layers; i++)
        if (gmal_is_gma(lm, i) && gmal_mixer_of(lm, i)->spec.components > k)
            k = gmal_mixer_of(lm, i)->spec.components;
    look->usage = malloc(2 * (size_t)k * sizeof *look->usage);
    if (s == GMA_OK && !look->usage)
        s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to look at %lld components", (long long)k);
    return s;
}

void gmal_look_destroy(gmal_look *look) {
    gmal_router_destroy(&look->router);
    gmal_events_close(&look->events);
    free(look->usage);
    *look = (gmal_look){0};
}

/* Sums over the windows of one head's posteriors: usage (K) and the tokens' entropies. */
static double add_rows(const float *gamma, int64_t rows, int64_t k, double *usage) {
    double sum = 0;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < k; i++) {
            const double x = (double)gamma[t * k + i];
            usage[i] += x;
            sum -= x > 0 ? x * log(x) : 0;
        }
    return sum;
}

typedef struct seen {
    int64_t used;
    double entropy, effective_q, effective_k;
} seen;

static seen look_at_head(gmal_look *look, int64_t head, int64_t kv_head, int64_t k) {
    const gmal_router *r = &look->router;
    const int64_t rows = r->context, tokens = rows * r->batch;
    double q = 0, key = 0, total = 0;
    seen s = {0};
    memset(look->usage, 0, (size_t)k * sizeof *look->usage);
    for (int64_t b = 0; b < r->batch; b++) {
        q += add_rows(gmal_router_q(r, b, head, k), rows, k, look->usage);
        key += add_rows(gmal_router_k(r, b, kv_head, k), rows, k, look->usage);
    }
    for (int64_t i = 0; i < k; i++)
        total += look->usage[i];
    for (int64_t i = 0; i < k; i++)
        s.used += look->usage[i] > total / (10 * (double)k);
    s.entropy = gmal_normalised_entropy(look->usage, k);
    s.effective_q = exp(q / (double)tokens);
    s.effective_k = exp(key / (double)tokens);
    return s;
}

static void scalar(gmal_look *look, int64_t step, int64_t layer, int64_t head, const char *what, double x) {
    char tag[128];
    snprintf(tag, sizeof tag, "inspect/%s/layer%lld_head%lld", what, (long long)layer, (long long)head);
    gmal_events_scalar(&look->events, step, tag, x);
}

static json_t *note_head(gmal_look *look, int64_t step, int64_t layer, int64_t head, const seen *s) {
    scalar(look, step, layer, head, "used", (double)s->used);
    scalar(look, step, layer, head, "usage_entropy", s->entropy);
    scalar(look, step, layer, head, "effective_components_queries", s->effective_q);
    scalar(look, step, layer, head, "effective_components_keys", s->effective_k);
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "layer", (json_int_t)layer, "head", (json_int_t)head, "used",
                     (json_int_t)s->used, "usage_entropy", gmal_number(s->entropy), "effective_components_queries",
                     gmal_number(s->effective_q), "effective_components_keys", gmal_number(s->effective_k));
}

static gma_status look_at_layers(gmal_look *look, int64_t step, json_t *heads) {
    const gma_lm *lm = look->router.lm;
    const int64_t group = lm->layout->c.heads / lm->layout->c.kv_heads;
    gma_status s = gmal_router_run(&look->router, &look->span, 0, NULL);
    for (int64_t i = 0; s == GMA_OK && i < lm->layout->c.layers; i++) {
        if (!gmal_is_gma(lm, i))
            continue;
        s = gmal_router_layer(&look->router, i);
        for (int64_t h = 0; s == GMA_OK && h < lm->layout->c.heads; h++) {
            const seen x = look_at_head(look, h, h / group, gmal_mixer_of(lm, i)->spec.components);
            if (json_array_append_new(heads, note_head(look, step, i, h, &x)) != 0)
                s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a line of metrics");
        }
    }
    return s;
}

gma_status gmal_look_at(gmal_look *look, gmal_run_folder *run, const gmal_progress *p) {
    if (!look->every || p->step % look->every != 0)
        return GMA_OK;
    gma_status s = GMA_OK;
    if (!look->events.file)
        s = gmal_events_open(run->events_path, look->first > 0 ? look->first : -1, &look->events);
    if (s != GMA_OK)
        return s;
    json_t *heads = json_array();
    gmal_events_scalar(&look->events, p->step, "loss", p->loss);
    s = heads ? look_at_layers(look, p->step, heads)
              : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a line of metrics");
    if (s != GMA_OK) {
        json_decref(heads);
        return s;
    }
    s = gmal_run_log(run, json_pack("{s:I, s:o}", "step", (json_int_t)p->step, "inspect", heads));
    return s == GMA_OK ? gmal_events_flush(&look->events) : s;
}
