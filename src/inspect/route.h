/* Windows of a text through a model, and the responsibilities of its GMA layers. */
#ifndef GMA_INSPECT_ROUTE_H
#define GMA_INSPECT_ROUTE_H

#include "data/tokens.h"
#include "models/model.h"
#include "models/net.h"

const gmal_sub *gmal_mixer_of(const gma_lm *lm, int64_t layer);
int gmal_is_gma(const gma_lm *lm, int64_t layer);

/* The error that a model (layer = -1) or a layer has no components to look at, with what there is instead. */
gma_status gmal_no_gma(const gma_lm *lm, int64_t layer);

/* The mixture of one key head, from the model's parameters: views of mu, omega (K,R) and alpha (K), F32. */
typedef struct gmal_mixture_view {
    const float *mu, *omega, *alpha;
    double logit_scale;
    int64_t components, width;
} gmal_mixture_view;
gmal_mixture_view gmal_mixture_of(const gma_lm *lm, int64_t layer, int64_t kv_head);

/* `batch` windows of `context` tokens at a time. Create takes all memory. */
typedef struct gmal_router {
    const gma_lm *lm;
    int64_t context, batch;
    int threads;
    gmal_net_f32 *net;
    int32_t *x, *y;           /* (batch, context) */
    float *gamma_q, *gamma_k; /* (batch, heads or kv_heads, context, K) of the layer asked for last */
    gmal_routing_f32 routing; /* of that layer */
} gmal_router;

gma_status gmal_router_create(const gma_lm *lm, int64_t context, int64_t batch, int threads, gmal_router *r);
void gmal_router_destroy(gmal_router *r);

/* Windows first .. first + batch - 1 of the span. loss (may be NULL): sum in nats over their tokens. */
gma_status gmal_router_run(gmal_router *r, const gmal_span *span, int64_t first, double *loss);
/* The same with (batch, context) ids from memory, without a loss. */
gma_status gmal_router_ids(gmal_router *r, const int32_t *ids);
/* gamma_q, gamma_k and routing of a GMA layer, after either. */
gma_status gmal_router_layer(gmal_router *r, int64_t layer);

/* Rows of one window and head: queries and keys (context,K), decay (context) or NULL. */
const float *gmal_router_q(const gmal_router *r, int64_t window, int64_t head, int64_t components);
const float *gmal_router_k(const gmal_router *r, int64_t window, int64_t kv_head, int64_t components);
const float *gmal_router_decay(const gmal_router *r, int64_t window, int64_t kv_head);

#endif
