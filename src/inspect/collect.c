#include "inspect/collect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gma/attention.h"
#include "layers/threads.h"
#include "models/net.h"

enum { GRAM_TOKENS = 4096 }; /* the Gram matrices cost 2 K^2 a token */

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const gma_status status_ = (call);                                                                             \
        if (status_ != GMA_OK)                                                                                         \
            return status_;                                                                                            \
    } while (0)

/* What one pass works with. */
typedef struct pass {
    const gma_lm *lm;
    const gmal_span *span;
    int64_t context, batch, windows;
    int threads;
    gmal_net_f32 *net;
    int32_t *x, *y;
    float *gamma_q, *gamma_k; /* (batch, heads, context, K) */
    double *slots;            /* (K): Z of the first sequence, one head at a time */
    double loss;
} pass;

/* ---- Heads ---------------------------------------------------------------------------------------------------- */

static const gmal_sub *mixer_of(const gma_lm *lm, int64_t layer) { return &lm->layout->blocks[layer].mixer; }

static int is_gma(const gma_lm *lm, int64_t layer) { return mixer_of(lm, layer)->spec.mixer == GMA_MIXER_GMA; }

static gma_status no_gma(const gma_lm *lm, int64_t layer) {
    if (layer >= 0)
        return gma_fail(GMA_ERR_UNSUPPORTED, "layer %d mixes with '%s', and only gma has components to look at",
                        (int)layer, gma_mixer_kind_name((gma_mixer_kind)mixer_of(lm, layer)->spec.mixer));
    char what[200] = "";
    for (int64_t i = 0; i < lm->layout->c.layers && strlen(what) < sizeof what - 40; i++) {
        const char *name = gma_mixer_kind_name((gma_mixer_kind)mixer_of(lm, i)->spec.mixer);
        snprintf(what + strlen(what), sizeof what - strlen(what), "%s%s", i ? ", " : "", name);
    }
    return gma_fail(GMA_ERR_UNSUPPORTED, "the model has no gma layer to look at; its %d layers mix with: %s",
                    (int)lm->layout->c.layers, what);
}

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
    if (layer >= m->layers || head >= m->heads)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "layer %d, head %d: the model has %d layers of %d heads", (int)layer,
                        (int)head, (int)m->layers, (int)m->heads);
    if (layer >= 0 && !is_gma(lm, layer))
        return no_gma(lm, layer);
    c->heads = calloc((size_t)(m->layers * m->heads), sizeof *c->heads);
    if (!c->heads)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %d heads", (int)(m->layers * m->heads));
    for (int64_t i = 0; i < m->layers; i++)
        for (int64_t j = 0; is_gma(lm, i) && j < m->heads; j++) {
            if ((layer >= 0 && i != layer) || (head >= 0 && j != head))
                continue;
            gmal_head *h = &c->heads[c->count++];
            *h = (gmal_head){.layer = i,
                             .head = j,
                             .kv_head = j / (m->heads / m->kv_heads),
                             .components = mixer_of(lm, i)->spec.components,
                             .forgets = mixer_of(lm, i)->forget > 0};
            if (!make_head(h, c->tokens, c->vocab))
                return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to look at %d heads over %lld tokens", c->count,
                                (long long)c->tokens);
        }
    return c->count ? GMA_OK : no_gma(lm, -1);
}

gmal_mixture_view gmal_head_mixture(const gma_lm *lm, const gmal_head *head) {
    const gmal_sub *m = mixer_of(lm, head->layer);
    const int64_t k = head->components, r = lm->layout->c.routing_dim, h = head->kv_head;
    gmal_mixture_view v = {.logit_scale = 1, .components = k, .width = r};
    for (int i = 0; i < m->slots; i++) {
        const float *p = lm->values + m->slot[i].offset;
        if (m->slot[i].slot == GMA_MU)
            v.mu = p + h * k * r;
        if (m->slot[i].slot == GMA_OMEGA)
            v.omega = p + h * k * r;
        if (m->slot[i].slot == GMA_ALPHA)
            v.alpha = p + h * k;
    }
    if (m->spec.logit_scale)
        v.logit_scale = exp((double)lm->values[m->logit_scale + h]);
    return v;
}

/* ---- Responsibilities ----------------------------------------------------------------------------------------- */

static gma_tensor dense(const float *p, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    return gma_tensor_of((void *)(uintptr_t)p, GMA_F32, rank, a, b, c, d); /* inputs: only read */
}

/* gamma (B,heads,T,K) of the rows x. */
static gma_status posterior(const pass *p, int64_t layer, const gmal_routing_f32 *r, const float *x, int64_t batch,
                            int64_t heads, float *gamma) {
    const gma_lm_config *c = &p->lm->layout->c;
    gmal_head first = {.layer = layer, .components = mixer_of(p->lm, layer)->spec.components};
    const gmal_mixture_view v = gmal_head_mixture(p->lm, &first);
    const int64_t k = v.components;
    gma_tensor rows = dense(x, 4, batch, heads, p->context, v.width);
    rows.stride[0] = p->context * r->ld;
    rows.stride[1] = v.width;
    rows.stride[2] = r->ld;
    const gma_tensor mu = dense(v.mu, 3, c->kv_heads, k, v.width, 1),
                     omega = dense(v.omega, 3, c->kv_heads, k, v.width, 1),
                     alpha = dense(v.alpha, 2, c->kv_heads, k, 1, 1),
                     out = gma_tensor_of(gamma, GMA_F32, 4, batch, heads, p->context, k);
    gma_tensor scale = {0};
    if (r->logit_scale)
        scale = dense(r->logit_scale, 1, c->kv_heads, 1, 1, 1);
    return gma_responsibilities(&rows, &mu, &omega, &alpha, r->logit_scale ? &scale : NULL, &out, c->eps_sigma,
                                GMA_ISA_AUTO, 0, p->threads);
}

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
    const int64_t k = h->components, n = p->context;
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

static void add_head(const pass *p, gmal_collection *c, gmal_head *h, const gmal_routing_f32 *r, int64_t first,
                     int64_t batch) {
    const gma_lm_config *m = &p->lm->layout->c;
    const int64_t n = p->context, k = h->components;
    for (int64_t b = 0; b < batch; b++) {
        const float *q = p->gamma_q + (b * m->heads + h->head) * n * k;
        const float *key = p->gamma_k + (b * m->kv_heads + h->kv_head) * n * k;
        const float *decay = r->log_decay ? r->log_decay + (b * m->kv_heads + h->kv_head) * n : NULL;
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

static gma_status add_layer(const pass *p, gmal_collection *c, int64_t layer, int64_t first, int64_t batch) {
    const gma_lm_config *m = &p->lm->layout->c;
    const gmal_routing_f32 r = gmal_net_routing_f32(p->net, layer);
    int done = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->heads[i].layer != layer)
            continue;
        if (!done++) {
            TRY(posterior(p, layer, &r, r.q, batch, m->heads, p->gamma_q));
            TRY(posterior(p, layer, &r, r.k, batch, m->kv_heads, p->gamma_k));
        }
        add_head(p, c, &c->heads[i], &r, first, batch);
    }
    return GMA_OK;
}

/* ---- The pass ------------------------------------------------------------------------------------------------- */

static gma_status make_pass(pass *p, int64_t batch) {
    const gma_lm_config *c = &p->lm->layout->c;
    int64_t k = 0;
    for (int64_t i = 0; i < c->layers; i++)
        if (is_gma(p->lm, i) && mixer_of(p->lm, i)->spec.components > k)
            k = mixer_of(p->lm, i)->spec.components;
    const size_t rows = (size_t)(batch * p->context);
    p->x = malloc(rows * sizeof *p->x);
    p->y = malloc(rows * sizeof *p->y);
    p->gamma_q = malloc(rows * (size_t)(c->heads * k) * sizeof(float));
    p->gamma_k = malloc(rows * (size_t)(c->kv_heads * k) * sizeof(float));
    p->slots = malloc((size_t)k * sizeof *p->slots);
    if (!p->x || !p->y || !p->gamma_q || !p->gamma_k || !p->slots)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the responsibilities of %lld x %lld tokens",
                        (long long)batch, (long long)p->context);
    return gmal_net_create_f32(p->lm->layout, batch, p->context, GMAL_NET_TRAIN, p->threads, &p->net);
}

static void free_pass(pass *p) {
    gmal_net_destroy_f32(p->net);
    free(p->x);
    free(p->y);
    free(p->gamma_q);
    free(p->gamma_k);
    free(p->slots);
}

static gma_status run_batch(pass *p, gmal_collection *c, int64_t first, int64_t batch) {
    const int64_t n = p->context;
    double loss;
    for (int64_t b = 0; b < batch; b++) {
        gmal_tokens_window(p->span->tokens, p->span->begin + (first + b) * n, n, p->x + b * n, p->y + b * n);
        memcpy(c->ids + (first + b) * n, p->x + b * n, (size_t)n * sizeof *p->x);
        for (int64_t t = 0; t < n; t++)
            c->counts[p->x[b * n + t]]++;
    }
    TRY(gmal_net_loss_f32(p->net, p->lm->values, p->x, p->y, &loss));
    p->loss += loss;
    for (int64_t i = 0; i < p->lm->layout->c.layers; i++)
        if (is_gma(p->lm, i))
            TRY(add_layer(p, c, i, first, batch));
    return GMA_OK;
}

/* Windows first..end-1, `batch` at a time; `end - first` is a multiple of it. */
static gma_status run_windows(pass *p, gmal_collection *c, int64_t first, int64_t end, int64_t batch) {
    if (first == end)
        return GMA_OK;
    gma_status s = make_pass(p, batch);
    for (; s == GMA_OK && first < end; first += batch)
        s = run_batch(p, c, first, batch);
    free_pass(p);
    return s;
}

gma_status gmal_collect(const gma_lm *lm, const gmal_span *span, int64_t context, int64_t batch, int64_t layer,
                        int64_t head, int threads, gmal_collection *c) {
    *c = (gmal_collection){.vocab = lm->layout->c.vocab, .context = context};
    pass p = {.lm = lm, .span = span, .context = context, .windows = gmal_span_windows(span, context)};
    if (p.windows < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "the text has %lld tokens; a context of %lld needs one more than that",
                        (long long)(span->end - span->begin), (long long)context);
    c->tokens = p.windows * context;
    c->ids = malloc((size_t)c->tokens * sizeof *c->ids);
    c->counts = calloc((size_t)c->vocab, sizeof *c->counts);
    gma_status s = c->ids && c->counts
                       ? GMA_OK
                       : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld tokens", (long long)c->tokens);
    if (s == GMA_OK)
        s = make_heads(lm, layer, head, c);
    if (batch > p.windows)
        batch = p.windows;
    const gmal_threads t = gmal_threads_enter(threads);
    p.threads = t.now;
    const int64_t whole = p.windows / batch * batch;
    if (s == GMA_OK)
        s = run_windows(&p, c, 0, whole, batch);
    double loss = p.loss;
    p = (pass){.lm = lm, .span = span, .context = context, .windows = p.windows, .threads = t.now};
    if (s == GMA_OK)
        s = run_windows(&p, c, whole, c->tokens / context, p.windows - whole);
    gmal_threads_leave(t);
    c->loss = (loss + p.loss) / (double)c->tokens;
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
