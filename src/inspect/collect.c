#include "inspect/collect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/route.h"
#include "layers/threads.h"
#include "layers/try.h"

enum { GRAM_TOKENS = 4096 }; /* the Gram matrices cost 2 K^2 a token */

/* What one pass works with. */
typedef struct pass {
    gmal_router r;
    double *slots; /* (K): Z of the first sequence, one head at a time */
    double loss;
} pass;

/* ---- Heads ---------------------------------------------------------------------------------------------------- */

static int make_head(gmal_head *h, int64_t tokens, int64_t vocab) {
    const size_t k = (size_t)h->components, n = (size_t)tokens;
    h->usage_q = calloc(k, sizeof(double));
    h->usage_k = calloc(k, sizeof(double));
    h->mass = calloc(k * (size_t)vocab, sizeof(double));
    h->gram_q = calloc(k * k, sizeof(double));
    h->gram_k = calloc(k * k, sizeof(double));
    h->trace = calloc(k * GMAL_TRACE, sizeof(double));
    h->assign_q = malloc((n ? n : 1) * sizeof(uint16_t));
    h->assign_k = malloc((n ? n : 1) * sizeof(uint16_t));
    return h->usage_q && h->usage_k && h->mass && h->gram_q && h->gram_k && h->trace && h->assign_q && h->assign_k;
}

static gma_status make_heads(const gma_lm *lm, int64_t layer, int64_t head, gmal_collection *c) {
    const gma_lm_config *m = &lm->layout->c;
    if (layer >= m->layers)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "layer is %d, and the model's are 0 to %d", (int)layer, (int)m->layers - 1);
    if (head >= m->heads)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "head is %d, and those of a layer are 0 to %d", (int)head, (int)m->heads - 1);
    if (layer >= 0 && !gmal_is_gma(lm, layer))
        return gmal_no_gma(lm, layer);
    c->heads = calloc((size_t)(m->layers * m->heads), sizeof *c->heads);
    if (!c->heads)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %d heads", (int)(m->layers * m->heads));
    for (int64_t i = 0; i < m->layers; i++)
        for (int64_t j = 0; gmal_is_gma(lm, i) && j < m->heads; j++) {
            if ((layer >= 0 && i != layer) || (head >= 0 && j != head))
                continue;
            gmal_head *h = &c->heads[c->count++];
            *h = (gmal_head){.layer = i,
                             .head = j,
                             .kv_head = j / (m->heads / m->kv_heads),
                             .components = gmal_mixer_of(lm, i)->spec.components,
                             .forgets = gmal_mixer_of(lm, i)->forget > 0};
            if (!make_head(h, c->tokens, c->vocab))
                return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to look at %d heads over %lld tokens", c->count,
                                (long long)c->tokens);
        }
    return c->count ? GMA_OK : gmal_no_gma(lm, -1);
}

/* ---- Tokens ---------------------------------------------------------------------------------------------------- */

static uint16_t largest(const float *gamma, int64_t k) {
    int64_t best = 0;
    for (int64_t i = 1; i < k; i++)
        if (gamma[i] > gamma[best])
            best = i;
    return (uint16_t)best;
}

static double entropy(const float *gamma, int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < k; i++)
        if (gamma[i] > 0)
            sum -= (double)gamma[i] * log((double)gamma[i]);
    return sum;
}

static void add_gram(double *gram, const float *gamma, int64_t k) {
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; gamma[i] > 0 && j < k; j++)
            gram[i * k + j] += (double)gamma[i] * (double)gamma[j];
}

/* Token number `at` of the text. */
static void add_token(gmal_head *h, int64_t at, int32_t id, int64_t vocab, const float *q, const float *key) {
    const int64_t k = h->components;
    for (int64_t i = 0; i < k; i++) {
        h->usage_q[i] += (double)q[i];
        h->usage_k[i] += (double)key[i];
        h->mass[i * vocab + id] += (double)key[i];
        h->overlap += (double)(q[i] < key[i] ? q[i] : key[i]);
    }
    h->entropy_q += entropy(q, k);
    h->entropy_k += entropy(key, k);
    h->assign_q[at] = largest(q, k);
    h->assign_k[at] = largest(key, k);
    h->agree += h->assign_q[at] == h->assign_k[at];
    if (h->gram_tokens < GRAM_TOKENS) {
        add_gram(h->gram_q, q, k);
        add_gram(h->gram_k, key, k);
        h->gram_tokens++;
    }
    h->tokens++;
}

/* Z of the first sequence, at GMAL_TRACE places. */
static void trace(const pass *p, gmal_head *h, const float *gamma_k, const float *log_decay) {
    const int64_t k = h->components, n = p->r.context;
    int64_t place = 0;
    memset(p->slots, 0, (size_t)k * sizeof *p->slots);
    for (int64_t t = 0; t < n; t++) {
        const double keep = log_decay ? exp((double)log_decay[t]) : 1;
        for (int64_t i = 0; i < k; i++)
            p->slots[i] = keep * p->slots[i] + (double)gamma_k[t * k + i];
        for (; place < GMAL_TRACE && (place + 1) * n / GMAL_TRACE <= t + 1; place++)
            memcpy(h->trace + place * k, p->slots, (size_t)k * sizeof *p->slots);
    }
}

static void add_head(const pass *p, gmal_collection *c, gmal_head *h, int64_t first) {
    const int64_t n = p->r.context, k = h->components;
    for (int64_t b = 0; b < p->r.batch; b++) {
        const float *q = gmal_router_q(&p->r, b, h->head, k), *key = gmal_router_k(&p->r, b, h->kv_head, k);
        const float *decay = gmal_router_decay(&p->r, b, h->kv_head);
        if (first + b == 0)
            trace(p, h, key, decay);
        for (int64_t t = 0; t < n; t++) {
            const int64_t at = (first + b) * n + t;
            add_token(h, at, c->ids[at], c->vocab, q + t * k, key + t * k);
            if (decay)
                h->decay += exp((double)decay[t]);
        }
    }
}

static gma_status add_layer(pass *p, gmal_collection *c, int64_t layer, int64_t first) {
    int done = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->heads[i].layer != layer)
            continue;
        if (!done++)
            TRY(gmal_router_layer(&p->r, layer));
        add_head(p, c, &c->heads[i], first);
    }
    return GMA_OK;
}

/* ---- The pass ------------------------------------------------------------------------------------------------- */

static gma_status run_batch(pass *p, gmal_collection *c, const gmal_span *span, int64_t first) {
    const int64_t rows = p->r.batch * p->r.context;
    double loss;
    TRY(gmal_router_run(&p->r, span, first, &loss));
    p->loss += loss;
    memcpy(c->ids + first * p->r.context, p->r.x, (size_t)rows * sizeof *p->r.x);
    for (int64_t t = 0; t < rows; t++)
        c->counts[p->r.x[t]]++;
    for (int64_t i = 0; i < p->r.lm->layout->c.layers; i++)
        if (gmal_is_gma(p->r.lm, i))
            TRY(add_layer(p, c, i, first));
    return GMA_OK;
}

/* Windows first..end-1, `batch` at a time; `end - first` is a multiple of it. Adds to the loss. */
static gma_status run_windows(const gma_lm *lm, const gmal_span *span, gmal_collection *c, int64_t first, int64_t end,
                              int64_t batch, int threads) {
    pass p = {.loss = 0};
    int64_t k = 1;
    if (first == end)
        return GMA_OK;
    for (int i = 0; i < c->count; i++)
        k = c->heads[i].components > k ? c->heads[i].components : k;
    p.slots = malloc((size_t)k * sizeof *p.slots);
    gma_status s = p.slots ? gmal_router_create(lm, c->context, batch, threads, &p.r)
                           : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld components", (long long)k);
    for (; s == GMA_OK && first < end; first += batch)
        s = run_batch(&p, c, span, first);
    gmal_router_destroy(&p.r);
    free(p.slots);
    c->loss += p.loss;
    return s;
}

gma_status gmal_collect(const gma_lm *lm, const gmal_span *span, int64_t context, int64_t batch, int64_t layer,
                        int64_t head, int threads, gmal_collection *c) {
    const int64_t windows = gmal_span_windows(span, context);
    *c = (gmal_collection){.vocab = lm->layout->c.vocab, .context = context};
    if (windows < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "the text has %lld tokens; a context of %lld needs one more than that",
                        (long long)(span->end - span->begin), (long long)context);
    c->tokens = windows * context;
    c->ids = malloc((size_t)c->tokens * sizeof *c->ids);
    c->counts = calloc((size_t)c->vocab, sizeof *c->counts);
    gma_status s = c->ids && c->counts
                       ? GMA_OK
                       : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld tokens", (long long)c->tokens);
    if (s == GMA_OK)
        s = make_heads(lm, layer, head, c);
    if (batch > windows)
        batch = windows;
    const gmal_threads t = gmal_threads_enter(threads);
    const int64_t whole = windows / batch * batch;
    if (s == GMA_OK)
        s = run_windows(lm, span, c, 0, whole, batch, t.now);
    if (s == GMA_OK)
        s = run_windows(lm, span, c, whole, windows, windows - whole, t.now);
    gmal_threads_leave(t);
    c->loss /= (double)c->tokens;
    if (s != GMA_OK)
        gmal_collection_free(c);
    return s;
}

void gmal_collection_free(gmal_collection *c) {
    for (int i = 0; i < c->count; i++) {
        gmal_head *h = &c->heads[i];
        double *tables[] = {h->usage_q, h->usage_k, h->mass, h->gram_q, h->gram_k, h->trace};
        for (size_t j = 0; j < sizeof tables / sizeof tables[0]; j++)
            free(tables[j]);
        free(h->assign_q);
        free(h->assign_k);
    }
    free(c->heads);
    free(c->ids);
    free(c->counts);
    *c = (gmal_collection){0};
}
