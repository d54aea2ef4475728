/* The mixtures of a model, and what their layers are given while it reads a text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokens.h"
#include "layers/rng.h"
#include "layers/threads.h"
#include "models/model.h"
#include "models/net.h"
#include "theory/cases.h"

static const gmal_sub *mixer_of(const gma_lm *lm, int64_t layer) { return &lm->layout->blocks[layer].mixer; }

static int is_gma(const gma_lm *lm, int64_t layer) { return mixer_of(lm, layer)->spec.mixer == GMA_MIXER_GMA; }

static void take(double *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = (double)from[i];
}

static gma_status take_mixture(const gma_lm *lm, int64_t layer, int64_t head, gmal_case *m) {
    const gma_lm_config *c = &lm->layout->c;
    const gmal_sub *sub = mixer_of(lm, layer);
    const int64_t k = sub->spec.components, r = c->routing_dim, h = head / (c->heads / c->kv_heads);
    const gma_status s = gmal_case_make(m, k, r, c->value_dim, 4 * k);
    if (s != GMA_OK)
        return s;
    m->layer = layer;
    m->head = head;
    m->eps = c->eps;
    m->eps_sigma = c->eps_sigma;
    for (int i = 0; i < sub->slots; i++) {
        const float *p = lm->values + sub->slot[i].offset;
        if (sub->slot[i].slot == GMA_MU)
            take(m->mu, p + h * k * r, k * r);
        if (sub->slot[i].slot == GMA_OMEGA)
            take(m->omega, p + h * k * r, k * r);
        if (sub->slot[i].slot == GMA_ALPHA)
            take(m->alpha, p + h * k, k);
    }
    if (sub->spec.logit_scale)
        m->logit_scale = (double)expf(lm->values[sub->logit_scale + h]);
    return GMA_OK;
}

/* One window of a layer: rows [q | k | v], heads side by side. at: how many tokens the cases have already. */
static void take_tokens(const gma_lm *lm, const gmal_net_f32 *net, int64_t at, int64_t n, gmal_case *m) {
    const gma_lm_config *c = &lm->layout->c;
    const gmal_routing_f32 x = gmal_net_routing_f32(net, m->layer);
    const int64_t h = m->head / (c->heads / c->kv_heads);
    const float *v = x.k + c->kv_heads * m->r;
    for (int64_t t = 0; t < n && at + t < m->n; t++) {
        take(m->q + (at + t) * m->r, x.q + t * x.ld + m->head * m->r, m->r);
        take(m->key + (at + t) * m->r, x.k + t * x.ld + h * m->r, m->r);
        take(m->v + (at + t) * m->d, v + t * x.ld + h * m->d, m->d);
    }
}

static gma_status read_windows(const gma_lm *lm, const gmal_tokens *tokens, int64_t context, int64_t windows, int threads,
                               gmal_cases *cases) {
    int32_t *x = malloc((size_t)(2 * context) * sizeof *x);
    gmal_net_f32 *net = NULL;
    double loss;
    if (!x)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a window of %lld tokens", (long long)context);
    gma_status s = gmal_net_create_f32(lm->layout, 1, context, GMAL_NET_TRAIN, threads, &net);
    for (int64_t w = 0; w < windows && s == GMA_OK; w++) {
        gmal_tokens_window(tokens, w * context, context, x, x + context);
        s = gmal_net_loss_f32(net, lm->values, x, x + context, &loss);
        for (int i = 0; i < cases->count && s == GMA_OK; i++)
            take_tokens(lm, net, w * context, context, &cases->item[i]);
    }
    gmal_net_destroy_f32(net);
    free(x);
    return s;
}

static gma_status read_text(const gma_lm *lm, const gma_verify_options *o, gmal_cases *cases) {
    const gma_lm_config *c = &lm->layout->c;
    const int64_t context = o->context ? o->context : c->context;
    int64_t most = 0;
    gmal_tokens tokens;
    gma_status s = gmal_tokens_open_for(o->data, c->tokenizer == GMA_LM_TOKENIZER_BYTES ? 1 : 2, c->vocab, lm->tokenizer, &tokens);
    if (s != GMA_OK)
        return s;
    for (int i = 0; i < cases->count; i++)
        most = cases->item[i].n > most ? cases->item[i].n : most;
    const int64_t windows = (most + context - 1) / context;
    if (tokens.count < windows * context + 1)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: has %lld tokens; %lld windows of %lld need %lld", o->data,
                     (long long)tokens.count, (long long)windows, (long long)context, (long long)(windows * context + 1));
    const gmal_threads t = gmal_threads_enter(o->threads);
    if (s == GMA_OK)
        s = read_windows(lm, &tokens, context, windows, t.now, cases);
    gmal_threads_leave(t);
    gmal_tokens_close(&tokens);
    return s;
}

gma_status gmal_cases_model(const gma_lm *lm, const gma_verify_options *o, gmal_cases *cases) {
    const gma_lm_config *c = &lm->layout->c;
    int64_t all = 0, at = 0;
    gma_status s = GMA_OK;
    for (int64_t i = 0; i < c->layers; i++)
        all += is_gma(lm, i) ? c->heads : 0;
    if (all == 0)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model has no gma layer, and the statements are about its mixtures");
    if (o->mixtures > all)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixtures is %lld, and the model has %lld gma heads", (long long)o->mixtures,
                        (long long)all);
    const int64_t wanted = o->mixtures ? o->mixtures : all;
    *cases = (gmal_cases){calloc((size_t)wanted, sizeof *cases->item), 0};
    if (!cases->item)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld mixtures", (long long)wanted);
    for (int64_t i = 0; i < c->layers; i++)
        for (int64_t j = 0; is_gma(lm, i) && j < c->heads && s == GMA_OK; j++, at++) {
            if (at * wanted / all == (at - 1) * wanted / all && at > 0) /* evenly spread */
                continue;
            gmal_case *m = &cases->item[cases->count];
            s = take_mixture(lm, i, j, m);
            if (s != GMA_OK)
                break;
            cases->count++;
            if (!o->data)
                gmal_case_draw_tokens(m, gmal_key(o->seed, (uint64_t)at));
        }
    if (s == GMA_OK && o->data)
        s = read_text(lm, o, cases);
    if (s != GMA_OK)
        gmal_cases_free(cases);
    return s;
}
