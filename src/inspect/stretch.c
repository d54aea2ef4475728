#include "inspect/stretch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/route.h"
#include "layers/threads.h"

/* ---- Attention ------------------------------------------------------------------------------------------------ */

enum { BLOCK = 64 }; /* keys at a time */

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Weights of the keys from .. from + count - 1 for row i. decayed: sum of log_decay over from + count .. i. */
static double block_weights(const float *q, const float *gamma_k, const float *decay, int64_t components, int64_t from,
                            int64_t count, double decayed, double *w) {
    double sum = 0, past = decayed;
    for (int64_t j = count - 1; j >= 0; j--) {
        w[j] = exp(past) * dot(q, gamma_k + (from + j) * components, components);
        past += decay ? (double)decay[from + j] : 0;
        sum += w[j];
    }
    return sum;
}

void gmal_implied_attention(const float *gamma_q, const float *gamma_k, const float *decay, int64_t components,
                            double eps, int64_t first, int64_t span, float *out, float *before) {
    double w[BLOCK];
    memset(out, 0, (size_t)(span * span) * sizeof *out);
    for (int64_t i = first; i < first + span; i++) {
        float *row = out + (i - first) * span;
        double all = 0, early = 0, decayed = 0;
        /* From the newest block to the oldest: what lies between a key and the row is then already summed. */
        for (int64_t end = i + 1; end > 0;) {
            const int64_t from = (end - 1) / BLOCK * BLOCK, count = end - from;
            all += block_weights(gamma_q + i * components, gamma_k, decay, components, from, count, decayed, w);
            for (int64_t j = 0; j < count; j++) {
                if (from + j >= first)
                    row[from + j - first] = (float)w[j];
                else
                    early += w[j];
                decayed += decay ? (double)decay[from + j] : 0;
            }
            end = from;
        }
        for (int64_t j = 0; j <= i - first; j++)
            row[j] = (float)((double)row[j] / (all + eps));
        before[i - first] = (float)(early / (all + eps));
    }
}

void gmal_softmax_attention(const float *q, const float *k, int64_t ld, int64_t width, int64_t first, int64_t span,
                            float *out, float *before) {
    const double scale = 1 / sqrt((double)width);
    memset(out, 0, (size_t)(span * span) * sizeof *out);
    for (int64_t i = first; i < first + span; i++) {
        float *row = out + (i - first) * span;
        double top = -INFINITY, all = 0, early = 0;
        for (int64_t j = 0; j <= i; j++) { /* sums relative to the largest so far */
            const double logit = scale * dot(q + i * ld, k + j * ld, width);
            if (logit > top) {
                const double by = exp(top - logit);
                all *= by;
                early *= by;
                top = logit;
            }
            all += exp(logit - top);
            if (j < first)
                early += exp(logit - top);
            else
                row[j - first] = (float)logit;
        }
        for (int64_t j = 0; j <= i - first; j++)
            row[j] = (float)(exp((double)row[j] - top) / all);
        before[i - first] = (float)(early / all);
    }
}

/* ---- The stretch ---------------------------------------------------------------------------------------------- */

static int make_head(gmal_stretch_head *h, int64_t tokens, int64_t span, int64_t k) {
    h->gamma_q = malloc((size_t)(tokens * k) * sizeof(float));
    h->gamma_k = malloc((size_t)(tokens * k) * sizeof(float));
    h->gma = malloc((size_t)(span * span) * sizeof(float));
    h->softmax = malloc((size_t)(span * span) * sizeof(float));
    h->gma_before = malloc((size_t)span * sizeof(float));
    h->softmax_before = malloc((size_t)span * sizeof(float));
    return h->gamma_q && h->gamma_k && h->gma && h->softmax && h->gma_before && h->softmax_before;
}

/* Tokens from .. from + count - 1 of the window become number `at` and on of the stretch. */
static void add_head(const gma_inspection *n, const gmal_router *r, gmal_stretch *s, int i, int64_t from, int64_t count,
                     int64_t at) {
    const gmal_head *h = &n->c.heads[i];
    gmal_stretch_head *out = &s->heads[i];
    const int64_t k = h->components, width = n->lm->layout->c.routing_dim;
    const float *q = gmal_router_q(r, 0, h->head, k), *key = gmal_router_k(r, 0, h->kv_head, k);
    memcpy(out->gamma_q + at * k, q + from * k, (size_t)(count * k) * sizeof *q);
    memcpy(out->gamma_k + at * k, key + from * k, (size_t)(count * k) * sizeof *key);
    if (at > 0)
        return;
    gmal_implied_attention(q, key, gmal_router_decay(r, 0, h->kv_head), k, n->lm->layout->c.eps, from, s->span,
                           out->gma, out->gma_before);
    gmal_softmax_attention(r->routing.q + h->head * width, r->routing.k + h->kv_head * width, r->routing.ld, width,
                           from, s->span, out->softmax, out->softmax_before);
}

static gma_status add_window(const gma_inspection *n, gmal_router *r, gmal_stretch *s, int64_t at) {
    const int64_t token = s->begin + at, context = n->c.context, from = token % context;
    const int64_t left = s->tokens - at, count = left < context - from ? left : context - from;
    gma_status status = gmal_router_ids(r, n->c.ids + (token - from));
    for (int i = 0, layer = -1; status == GMA_OK && i < s->count; i++) {
        if (n->c.heads[i].layer != layer)
            status = gmal_router_layer(r, layer = (int)n->c.heads[i].layer);
        if (status == GMA_OK)
            add_head(n, r, s, i, from, count, at);
    }
    return status;
}

gma_status gmal_stretch_create(const gma_inspection *n, int64_t begin, int64_t tokens, int64_t span, int heads,
                               gmal_stretch *s) {
    const int64_t context = n->c.context;
    *s = (gmal_stretch){.begin = begin, .count = heads};
    if (begin < 0 || begin >= n->c.tokens)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "token %lld was asked for; the text that was read has %lld",
                        (long long)begin, (long long)n->c.tokens);
    s->before = begin % context;
    s->tokens = tokens < n->c.tokens - begin ? tokens : n->c.tokens - begin;
    s->span = span < context - s->before ? span : context - s->before;
    if (s->span > s->tokens)
        s->span = s->tokens;
    s->heads = calloc((size_t)heads, sizeof *s->heads);
    int room = s->heads != NULL;
    for (int i = 0; room && i < heads; i++)
        room = make_head(&s->heads[i], s->tokens, s->span, n->c.heads[i].components);
    gma_status status =
        room ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to look at %lld tokens", (long long)s->tokens);
    const gmal_threads t = gmal_threads_enter(n->o.threads);
    gmal_router r = {0};
    if (status == GMA_OK)
        status = gmal_router_create(n->lm, context, 1, t.now, &r);
    for (int64_t at = 0; status == GMA_OK && at < s->tokens; at += context - (begin + at) % context)
        status = add_window(n, &r, s, at);
    gmal_router_destroy(&r);
    gmal_threads_leave(t);
    if (status != GMA_OK)
        gmal_stretch_free(s);
    return status;
}

void gmal_stretch_free(gmal_stretch *s) {
    for (int i = 0; s->heads && i < s->count; i++) {
        gmal_stretch_head *h = &s->heads[i];
        float *all[] = {h->gamma_q, h->gamma_k, h->gma, h->softmax, h->gma_before, h->softmax_before};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            free(all[j]);
    }
    free(s->heads);
    *s = (gmal_stretch){0};
}
