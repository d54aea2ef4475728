#include "inspect/route.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gma/attention.h"

const gmal_sub *gmal_mixer_of(const gma_lm *lm, int64_t layer) { return &lm->layout->blocks[layer].mixer; }

int gmal_is_gma(const gma_lm *lm, int64_t layer) { return gmal_mixer_of(lm, layer)->spec.mixer == GMA_MIXER_GMA; }

gma_status gmal_no_gma(const gma_lm *lm, int64_t layer) {
    if (layer >= 0)
        return gma_fail(GMA_ERR_UNSUPPORTED, "layer %d mixes with '%s', and only gma has components to look at",
                        (int)layer, gma_mixer_kind_name((gma_mixer_kind)gmal_mixer_of(lm, layer)->spec.mixer));
    char what[200] = "";
    for (int64_t i = 0; i < lm->layout->c.layers && strlen(what) < sizeof what - 40; i++) {
        const char *name = gma_mixer_kind_name((gma_mixer_kind)gmal_mixer_of(lm, i)->spec.mixer);
        snprintf(what + strlen(what), sizeof what - strlen(what), "%s%s", i ? ", " : "", name);
    }
    return gma_fail(GMA_ERR_UNSUPPORTED, "the model has no gma layer to look at; its %d layers mix with: %s",
                    (int)lm->layout->c.layers, what);
}

gmal_mixture_view gmal_mixture_of(const gma_lm *lm, int64_t layer, int64_t h) {
    const gmal_sub *m = gmal_mixer_of(lm, layer);
    const int64_t k = m->spec.components, r = lm->layout->c.routing_dim;
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

/* ---- Router --------------------------------------------------------------------------------------------------- */

gma_status gmal_router_create(const gma_lm *lm, int64_t context, int64_t batch, int threads, gmal_router *r) {
    const gma_lm_config *c = &lm->layout->c;
    int64_t k = 0;
    for (int64_t i = 0; i < c->layers; i++)
        if (gmal_is_gma(lm, i) && gmal_mixer_of(lm, i)->spec.components > k)
            k = gmal_mixer_of(lm, i)->spec.components;
    *r = (gmal_router){.lm = lm, .context = context, .batch = batch, .threads = threads};
    if (k == 0)
        return gmal_no_gma(lm, -1);
    const size_t rows = (size_t)(batch * context);
    r->x = malloc(rows * sizeof *r->x);
    r->y = malloc(rows * sizeof *r->y);
    r->gamma_q = malloc(rows * (size_t)(c->heads * k) * sizeof(float));
    r->gamma_k = malloc(rows * (size_t)(c->kv_heads * k) * sizeof(float));
    gma_status s = GMA_OK;
    if (!r->x || !r->y || !r->gamma_q || !r->gamma_k)
        s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the responsibilities of %lld x %lld tokens",
                     (long long)batch, (long long)context);
    if (s == GMA_OK)
        s = gmal_net_create_f32(lm->layout, batch, context, GMAL_NET_TRAIN, threads, &r->net);
    if (s != GMA_OK)
        gmal_router_destroy(r);
    return s;
}

void gmal_router_destroy(gmal_router *r) {
    gmal_net_destroy_f32(r->net);
    free(r->x);
    free(r->y);
    free(r->gamma_q);
    free(r->gamma_k);
    *r = (gmal_router){0};
}

gma_status gmal_router_run(gmal_router *r, const gmal_span *span, int64_t first, double *loss) {
    const int64_t n = r->context;
    double sum;
    for (int64_t b = 0; b < r->batch; b++)
        gmal_tokens_window(span->tokens, span->begin + (first + b) * n, n, r->x + b * n, r->y + b * n);
    const gma_status s = gmal_net_loss_f32(r->net, r->lm->values, r->x, r->y, &sum);
    if (s == GMA_OK && loss)
        *loss = sum;
    return s;
}

gma_status gmal_router_ids(gmal_router *r, const int32_t *ids) {
    const int64_t rows = r->batch * r->context;
    double none;
    memcpy(r->x, ids, (size_t)rows * sizeof *r->x);
    for (int64_t i = 0; i < rows; i++)
        r->y[i] = -1;
    return gmal_net_loss_f32(r->net, r->lm->values, r->x, r->y, &none);
}

static gma_tensor dense(const float *p, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    return gma_tensor_of((void *)(uintptr_t)p, GMA_F32, rank, a, b, c, d); /* inputs: only read */
}

/* gamma (B,heads,T,K) of the rows x. */
static gma_status posterior(const gmal_router *p, int64_t layer, const float *x, int64_t heads, float *gamma) {
    const gma_lm_config *c = &p->lm->layout->c;
    const gmal_mixture_view v = gmal_mixture_of(p->lm, layer, 0);
    const int64_t k = v.components, ld = p->routing.ld;
    gma_tensor rows = dense(x, 4, p->batch, heads, p->context, v.width);
    rows.stride[0] = p->context * ld;
    rows.stride[1] = v.width;
    rows.stride[2] = ld;
    const gma_tensor mu = dense(v.mu, 3, c->kv_heads, k, v.width, 1),
                     omega = dense(v.omega, 3, c->kv_heads, k, v.width, 1),
                     alpha = dense(v.alpha, 2, c->kv_heads, k, 1, 1),
                     out = gma_tensor_of(gamma, GMA_F32, 4, p->batch, heads, p->context, k);
    gma_tensor scale = {0};
    if (p->routing.logit_scale)
        scale = dense(p->routing.logit_scale, 1, c->kv_heads, 1, 1, 1);
    return gma_responsibilities(&rows, &mu, &omega, &alpha, p->routing.logit_scale ? &scale : NULL, &out, c->eps_sigma,
                                GMA_ISA_AUTO, 0, p->threads);
}

gma_status gmal_router_layer(gmal_router *r, int64_t layer) {
    const gma_lm_config *c = &r->lm->layout->c;
    r->routing = gmal_net_routing_f32(r->net, layer);
    const gma_status s = posterior(r, layer, r->routing.q, c->heads, r->gamma_q);
    return s == GMA_OK ? posterior(r, layer, r->routing.k, c->kv_heads, r->gamma_k) : s;
}

const float *gmal_router_q(const gmal_router *r, int64_t window, int64_t head, int64_t components) {
    return r->gamma_q + (window * r->lm->layout->c.heads + head) * r->context * components;
}

const float *gmal_router_k(const gmal_router *r, int64_t window, int64_t kv_head, int64_t components) {
    return r->gamma_k + (window * r->lm->layout->c.kv_heads + kv_head) * r->context * components;
}

const float *gmal_router_decay(const gmal_router *r, int64_t window, int64_t kv_head) {
    const int64_t row = window * r->lm->layout->c.kv_heads + kv_head;
    return r->routing.log_decay ? r->routing.log_decay + row * r->context : NULL;
}
