/* The network, once per precision. Names: R = batch * steps rows, C = width. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"

#include "layers/real.h"

#define TRY(call)                             \
    do {                                      \
        const gma_status status_ = (call);    \
        if (status_ != GMA_OK) return status_; \
    } while (0)

typedef gmal_real real;

/* What the forward leaves for the backward, per block. Without training all blocks share one set; with recomputation all
 * but the block's input x, from which the backward makes the rest again. */
typedef struct act {
    real *x, *mean1, *rstd1, *n1; /* block input and its norm */
    real *p; /* projections (R, proj); q and k rotated in place when there is no convolution */
    real *c; /* q, k, v after the convolution (R, qkv); = p without one */
    real *decay; /* log_decay (B,H,T) */
    real *scale; /* logit_scale (H) */
    real *o, *og; /* mixer output, and gated; the same without a gate */
    real *x1, *mean2, *rstd2, *n2; /* stream after the mixer and its norm */
    real *h, *a; /* MLP hidden, before and after the activation */
    void *saved; /* of the mixer */
} act;

struct GMAL_T(gmal_net) {
    const gmal_layout *l;
    int64_t B, T, R;
    int train, recompute, threads;
    void *arena;
    gma_mixer *mixer;
    gma_mixer_size size;
    act *acts; /* layers */
    real *last, *mean, *rstd, *nf; /* the stream at the end and its norm */
    real *y; /* a sublayer's output (R, C) */
    real *logits; /* (block, vocab) */
    int64_t block;
    real *cs; /* rotary table (T, routing_dim) */
    void *scratch;
    size_t scratch_bytes;
    /* backward */
    real *dx, *dn, *dy, *dp, *dc, *ddecay, *d_o, *dog, *dh, *da, *partial;
    real *dmu, *domega, *dalpha, *dscale;
};

typedef struct GMAL_T(gmal_net) net;

/* ---- Memory --------------------------------------------------------------------------------------------------- */

typedef struct bump {
    char *base; /* NULL while only counting */
    size_t used;
} bump;

static void *take_bytes(bump *b, size_t bytes) {
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (bytes + 63) / 64 * 64;
    return p;
}

static real *take(bump *b, int64_t n) { return take_bytes(b, (size_t)n * sizeof(real)); }

static void place_act(net *n, bump *b, act *a) {
    const gmal_layout *l = n->l;
    const int64_t R = n->R, C = l->c.width;
    a->x = take(b, R * C);
    a->mean1 = take(b, R);
    a->rstd1 = take(b, R);
    a->n1 = take(b, R * C);
    a->p = take(b, R * l->proj);
    a->c = l->c.conv ? take(b, R * l->qkv) : a->p;
    a->decay = l->forget ? take(b, R * l->forget) : NULL;
    a->scale = l->c.logit_scale ? take(b, l->c.kv_heads) : NULL;
    a->o = take(b, R * l->out);
    a->og = l->gate ? take(b, R * l->out) : a->o;
    a->x1 = take(b, R * C);
    a->mean2 = take(b, R);
    a->rstd2 = take(b, R);
    a->n2 = take(b, R * C);
    a->h = take(b, R * l->hidden);
    a->a = take(b, R * l->c.mlp_width);
    a->saved = n->train ? take_bytes(b, n->size.saved) : NULL;
}

static void place(net *n, bump *b) {
    const gmal_layout *l = n->l;
    const gma_lm_config *c = &l->c;
    const int64_t R = n->R, C = c->width;
    for (int64_t i = 0; i < c->layers; i++) {
        if (i == 0 || (n->train && !n->recompute)) {
            place_act(n, b, &n->acts[i]);
            continue;
        }
        n->acts[i] = n->acts[0];
        if (n->recompute) n->acts[i].x = take(b, R * C);
    }
    for (int64_t i = 0; i < c->layers && !n->train; i++) {
        n->acts[i].x1 = n->acts[i].x; /* the stream in place */
    }
    n->last = n->train ? take(b, R * C) : n->acts[0].x;
    n->mean = take(b, R);
    n->rstd = take(b, R);
    n->nf = take(b, R * C);
    n->y = take(b, R * C);
    n->logits = take(b, n->block * c->vocab);
    n->cs = c->positions == GMA_LM_POSITIONS_ROTARY ? take(b, n->T * c->routing_dim) : NULL;
    n->scratch_bytes = n->size.forward_scratch;
    if (n->train && n->size.backward_scratch > n->scratch_bytes) n->scratch_bytes = n->size.backward_scratch;
    n->scratch = take_bytes(b, n->scratch_bytes);
    if (!n->train) return;
    const int64_t HK = c->kv_heads * c->components;
    n->dx = take(b, R * C);
    n->dn = take(b, R * C);
    n->dy = c->dropout > 0 ? take(b, R * C) : NULL;
    n->dp = take(b, R * l->proj);
    n->dc = c->conv ? take(b, R * l->qkv) : n->dp;
    n->ddecay = l->forget ? take(b, R * l->forget) : NULL;
    n->d_o = take(b, R * l->out);
    n->dog = l->gate ? take(b, R * l->out) : n->d_o;
    n->dh = take(b, R * l->hidden);
    n->da = take(b, R * c->mlp_width);
    n->partial = take(b, GMAL_GROUPS * 2 * C);
    n->dmu = take(b, HK * c->routing_dim);
    n->domega = take(b, HK * c->routing_dim);
    n->dalpha = take(b, HK);
    n->dscale = c->logit_scale ? take(b, c->kv_heads) : NULL;
}

static gma_status make_mixer(net *n) {
    const gma_lm_config *c = &n->l->c;
    gma_mixer_desc d;
    TRY(gma_mixer_desc_init(&d, (gma_mixer_kind)c->mixer));
    d.causal = 1;
    d.batch = n->B;
    d.heads = c->heads;
    d.kv_heads = c->kv_heads;
    d.q_len = d.k_len = n->T;
    d.routing_dim = c->routing_dim;
    d.value_dim = c->value_dim;
    d.components = c->components;
    d.eps = c->eps;
    d.eps_sigma = c->eps_sigma;
    TRY(gma_mixer_create(&d, &n->mixer));
    n->size.struct_size = sizeof n->size;
    if (sizeof(real) == sizeof(double)) return GMA_OK; /* the naive mixer has memory of its own */
    return gma_mixer_sizes(n->mixer, n->threads, &n->size);
}

/* Rows of logits at a time: enough for a good product, few enough that a large vocabulary costs little memory. */
static int64_t block_rows(int64_t rows, int64_t vocab) {
    const int64_t fit = (INT64_C(1) << 20) / vocab, most = fit < 64 ? 64 : fit > 1024 ? 1024 : fit;
    return rows < most ? rows : most;
}

gma_status GMAL_T(gmal_net_create)(const gmal_layout *layout, int64_t batch, int64_t steps, gmal_net_use use,
                                   int threads, net **out) {
    *out = NULL;
    net *n = calloc(1, sizeof *n);
    if (!n) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a network");
    n->l = layout;
    n->B = batch;
    n->T = steps;
    n->R = batch * steps;
    n->train = use != GMAL_NET_EVALUATE;
    n->recompute = use == GMAL_NET_RECOMPUTE;
    n->threads = threads;
    n->block = block_rows(n->R, layout->c.vocab);
    n->acts = calloc((size_t)layout->c.layers, sizeof *n->acts);
    gma_status s = n->acts ? make_mixer(n) : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a network");
    if (s == GMA_OK) {
        bump count = {NULL, 0};
        place(n, &count);
        n->arena = aligned_alloc(64, count.used ? count.used : 64);
        if (n->arena) {
            bump real_one = {n->arena, 0};
            place(n, &real_one);
        } else {
            s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for activations: %.1f MiB for a batch of %lld x %lld",
                         (double)count.used / 1048576, (long long)batch, (long long)steps);
        }
    }
    if (s != GMA_OK) {
        GMAL_T(gmal_net_destroy)(n);
        return s;
    }
    if (n->cs) GMAL_T(gmal_rotary_table)(n->cs, 0, steps, layout->c.routing_dim, layout->c.rotary_base);
    *out = n;
    return GMA_OK;
}

void GMAL_T(gmal_net_destroy)(net *n) {
    if (!n) return;
    gma_mixer_destroy(n->mixer);
    free(n->arena);
    free(n->acts);
    free(n);
}

/* ---- Forward -------------------------------------------------------------------------------------------------- */

/* y (R, out) = x (R, in) W^T */
static gma_status linear(net *n, const real *x, const real *w, real *y, int64_t in, int64_t out) {
    return GMAL_T(gmal_matmul)(0, 1, n->R, out, in, 1, x, in, w, in, 0, y, out, n->threads);
}

/* dx = dy W, dW += dy^T x */
static gma_status linear_backward(net *n, const real *x, const real *w, const real *dy, real *dx, real *dw, int64_t in,
                                  int64_t out) {
    TRY(GMAL_T(gmal_matmul)(0, 0, n->R, in, out, 1, dy, out, w, in, 0, dx, in, n->threads));
    return GMAL_T(gmal_matmul)(1, 0, out, in, n->R, 1, dy, out, x, in, 1, dw, in, n->threads);
}

static const real *at(const real *p, int64_t offset) { return offset < 0 ? NULL : p + offset; }
static real *grad_at(real *p, int64_t offset) { return offset < 0 ? NULL : p + offset; }

static gmal_dropout drop_at(const net *n, uint64_t key, int64_t site) {
    gmal_dropout d = {key ? n->l->c.dropout : 0, gmal_key(key, (uint64_t)site)};
    return d;
}

static GMAL_T(gmal_mixer_io) mixer_io(const net *n, const act *a, const gmal_block *b, const real *params) {
    const gmal_layout *l = n->l;
    GMAL_T(gmal_mixer_io) io = {0};
    io.ld = l->c.conv ? l->qkv : l->proj;
    io.q = a->c;
    io.k = a->c + l->q;
    io.v = a->c + l->q + l->k;
    io.o = a->o;
    io.mu = (real *)(uintptr_t)at(params, b->mu); /* inputs: only read */
    io.omega = (real *)(uintptr_t)at(params, b->omega);
    io.alpha = (real *)(uintptr_t)at(params, b->alpha);
    io.logit_scale = a->scale;
    io.log_decay = a->decay;
    return io;
}

static void rotate(net *n, real *qkv, int64_t ld, int sign) {
    const gmal_layout *l = n->l;
    if (!n->cs) return;
    GMAL_T(gmal_rotary)(qkv, ld, n->cs, n->B, n->T, l->c.heads, l->c.routing_dim, sign, n->threads);
    GMAL_T(gmal_rotary)(qkv + l->q, ld, n->cs, n->B, n->T, l->c.kv_heads, l->c.routing_dim, sign, n->threads);
}

/* The mixer refuses a scale that is not positive and finite; a diverging run reaches that, and should hear which
 * parameter it was. */
static gma_status logit_scales(const net *n, const gmal_block *b, const real *params, real *scale) {
    for (int64_t h = 0; h < n->l->c.kv_heads; h++) {
        const double p = (double)params[b->logit_scale + h];
        scale[h] = (real)exp(p);
        if (!(scale[h] > 0) || !isfinite(scale[h]))
            return gma_fail(GMA_ERR_NON_FINITE, "blocks.%d.mixer.log_logit_scale (%g has no finite exponential)",
                            (int)(b - n->l->blocks), p);
    }
    return GMA_OK;
}

static gma_status mixer_forward(net *n, act *a, const gmal_block *b, const real *params) {
    const gmal_layout *l = n->l;
    const int64_t ld = l->c.conv ? l->qkv : l->proj;
    TRY(linear(n, a->n1, params + b->proj, a->p, l->c.width, l->proj));
    if (l->c.conv)
        GMAL_T(gmal_conv_forward)
        (a->p, l->proj, params + b->conv, a->c, l->qkv, n->B, n->T, l->qkv, l->c.conv, n->threads);
    rotate(n, a->c, ld, 1);
    if (l->forget)
        GMAL_T(gmal_forget_forward)
        (a->p + l->qkv + l->gate, l->proj, params + b->forget_b, a->decay, n->B, n->T, l->forget, n->threads);
    if (a->scale) TRY(logit_scales(n, b, params, a->scale));
    const GMAL_T(gmal_mixer_io) io = mixer_io(n, a, b, params);
    const gma_exec x = {sizeof x, n->threads, 0, n->scratch, n->scratch_bytes, a->saved, a->saved ? n->size.saved : 0};
    TRY(GMAL_T(gmal_mixer_forward)(n->mixer, &io, &x));
    if (l->gate) GMAL_T(gmal_gate_forward)(a->o, a->p + l->qkv, l->proj, a->og, n->R, l->out, n->threads);
    return linear(n, a->og, params + b->out, n->y, l->out, l->c.width);
}

/* out = x + dropout(y), and its norm: the one of block i, or the last one for i = layers. */
static void residual_norm(net *n, const real *params, int64_t i, const real *x, real *out, gmal_dropout drop) {
    const gmal_layout *l = n->l;
    const gma_lm_config *c = &l->c;
    const int last = i == c->layers;
    const int64_t w = last ? l->norm_w : l->blocks[i].norm1_w, b = last ? l->norm_b : l->blocks[i].norm1_b;
    act *a = last ? NULL : &n->acts[i];
    GMAL_T(gmal_residual_norm)
    (c->norm, x, n->y, out, drop, params + w, at(params, b), a ? a->n1 : n->nf, a ? a->mean1 : n->mean,
     a ? a->rstd1 : n->rstd, n->R, c->width, c->norm_eps, n->threads);
}

/* From n1 = norm(x) to what the down projection reads. */
static gma_status block_inside(net *n, int64_t i, const real *params, uint64_t key) {
    const gmal_layout *l = n->l;
    const gma_lm_config *c = &l->c;
    act *a = &n->acts[i];
    const gmal_block *b = &l->blocks[i];
    TRY(mixer_forward(n, a, b, params));
    GMAL_T(gmal_residual_norm)
    (c->norm, a->x, n->y, a->x1, drop_at(n, key, 2 * i + 1), params + b->norm2_w, at(params, b->norm2_b), a->n2, a->mean2,
     a->rstd2, n->R, c->width, c->norm_eps, n->threads);
    TRY(linear(n, a->n2, params + b->up, a->h, c->width, l->hidden));
    GMAL_T(gmal_mlp_forward)(c->mlp, a->h, a->a, n->R, c->mlp_width, n->threads);
    return GMA_OK;
}

static void first_norm(net *n, int64_t i, const real *params) {
    const gma_lm_config *c = &n->l->c;
    const gmal_block *b = &n->l->blocks[i];
    act *a = &n->acts[i];
    GMAL_T(gmal_norm_forward)
    (c->norm, a->x, params + b->norm1_w, at(params, b->norm1_b), a->n1, a->mean1, a->rstd1, n->R, c->width, c->norm_eps,
     n->threads);
}

/* The stream at the end, normalised, in n->nf. key 0: no dropout. */
static gma_status forward(net *n, const real *params, const int32_t *tokens, uint64_t key) {
    const gmal_layout *l = n->l;
    const gma_lm_config *c = &l->c;
    const int64_t R = n->R, C = c->width;
    GMAL_T(gmal_embed_forward)
    (tokens, params + l->embed, at(params, l->positions), n->acts[0].x, n->B, n->T, C, n->threads);
    const gmal_dropout first = drop_at(n, key, 0);
    if (first.rate > 0) GMAL_T(gmal_dropout_apply)(n->acts[0].x, n->acts[0].x, R * C, first, n->threads);
    first_norm(n, 0, params);
    for (int64_t i = 0; i < c->layers; i++) {
        act *a = &n->acts[i];
        TRY(block_inside(n, i, params, key));
        TRY(linear(n, a->a, params + l->blocks[i].down, n->y, c->mlp_width, C));
        residual_norm(n, params, i + 1, a->x1, i + 1 < c->layers ? n->acts[i + 1].x : n->last, drop_at(n, key, 2 * i + 2));
    }
    return GMA_OK;
}

/* Loss in blocks of rows; with grads also dn = gradient at nf and the head's gradient. */
static gma_status head(net *n, const real *params, real *grads, const int32_t *targets, double scale, double *sum) {
    const gmal_layout *l = n->l;
    const int64_t C = l->c.width, V = l->c.vocab;
    *sum = 0;
    for (int64_t r = 0; r < n->R; r += n->block) {
        const int64_t m = n->R - r < n->block ? n->R - r : n->block;
        const real *x = n->nf + r * C;
        TRY(GMAL_T(gmal_matmul)(0, 1, m, V, C, 1, x, C, params + l->head, C, 0, n->logits, V, n->threads));
        *sum += GMAL_T(gmal_cross_entropy)(n->logits, targets + r, m, V, grads ? scale : 0, n->threads);
        if (!grads) continue;
        TRY(GMAL_T(gmal_matmul)(0, 0, m, C, V, 1, n->logits, V, params + l->head, C, 0, n->dn + r * C, C, n->threads));
        TRY(GMAL_T(gmal_matmul)(1, 0, V, C, m, 1, n->logits, V, x, C, 1, grads + l->head, C, n->threads));
    }
    return GMA_OK;
}

gma_status GMAL_T(gmal_net_loss)(net *n, const real *params, const int32_t *tokens, const int32_t *targets,
                                 double *loss_sum) {
    TRY(forward(n, params, tokens, 0));
    return head(n, params, NULL, targets, 0, loss_sum);
}

gma_status GMAL_T(gmal_net_logits)(net *n, const real *params, const int32_t *tokens, real *logits) {
    TRY(forward(n, params, tokens, 0));
    return linear(n, n->nf, params + n->l->head, logits, n->l->c.width, n->l->c.vocab);
}

/* ---- Backward ------------------------------------------------------------------------------------------------- */

static gma_status mixer_backward(net *n, act *a, const gmal_block *b, const real *params, real *grads,
                                 const real *dy) {
    const gmal_layout *l = n->l;
    const gma_lm_config *c = &l->c;
    const int64_t ld = c->conv ? l->qkv : l->proj, HK = c->kv_heads * c->components;
    TRY(linear_backward(n, a->og, params + b->out, dy, n->dog, grads + b->out, l->out, c->width));
    if (l->gate)
        GMAL_T(gmal_gate_backward)
        (a->o, a->p + l->qkv, l->proj, n->dog, n->d_o, n->dp + l->qkv, l->proj, n->R, l->out, n->threads);
    const GMAL_T(gmal_mixer_io) io = mixer_io(n, a, b, params);
    GMAL_T(gmal_mixer_io) grad = {0};
    grad.ld = ld;
    grad.q = n->dc;
    grad.k = n->dc + l->q;
    grad.v = n->dc + l->q + l->k;
    grad.o = n->d_o;
    grad.mu = n->dmu;
    grad.omega = n->domega;
    grad.alpha = n->dalpha;
    grad.logit_scale = n->dscale;
    grad.log_decay = n->ddecay;
    const gma_exec x = {sizeof x, n->threads, 0, n->scratch, n->scratch_bytes, a->saved, n->size.saved};
    TRY(GMAL_T(gmal_mixer_backward)(n->mixer, &io, &grad, &x));
    for (int64_t i = 0; i < HK * c->routing_dim; i++) {
        grads[b->mu + i] += n->dmu[i];
        grads[b->omega + i] += n->domega[i];
    }
    for (int64_t i = 0; i < HK; i++) grads[b->alpha + i] += n->dalpha[i];
    for (int64_t h = 0; a->scale && h < c->kv_heads; h++) grads[b->logit_scale + h] += n->dscale[h] * a->scale[h];
    rotate(n, n->dc, ld, -1);
    if (c->conv)
        GMAL_T(gmal_conv_backward)
        (n->dc, l->qkv, a->p, l->proj, params + b->conv, n->dp, l->proj, grads + b->conv, n->B, n->T, l->qkv, c->conv,
         n->threads);
    if (l->forget)
        GMAL_T(gmal_forget_backward)
        (n->ddecay, a->decay, n->dp + l->qkv + l->gate, l->proj, grads + b->forget_b, n->B, n->T, l->forget,
         n->threads);
    return linear_backward(n, a->n1, params + b->proj, n->dp, n->dn, grads + b->proj, c->width, l->proj);
}

/* dL/d(sublayer output) from dL/d(stream). */
static const real *through_dropout(net *n, uint64_t key, int64_t site) {
    const gmal_dropout d = drop_at(n, key, site);
    if (!(d.rate > 0)) return n->dx;
    GMAL_T(gmal_dropout_apply)(n->dx, n->dy, n->R * n->l->c.width, d, n->threads);
    return n->dy;
}

static gma_status block_backward(net *n, int64_t i, const real *params, real *grads, uint64_t key) {
    const gmal_layout *l = n->l;
    const gma_lm_config *c = &l->c;
    const int64_t R = n->R, C = c->width;
    act *a = &n->acts[i];
    const gmal_block *b = &l->blocks[i];
    if (n->recompute && i + 1 < c->layers) { /* the last block's are still there */
        first_norm(n, i, params);
        TRY(block_inside(n, i, params, key));
    }
    const real *dy = through_dropout(n, key, 2 * i + 2);
    TRY(linear_backward(n, a->a, params + b->down, dy, n->da, grads + b->down, c->mlp_width, C));
    GMAL_T(gmal_mlp_backward)(c->mlp, a->h, n->da, n->dh, R, c->mlp_width, n->threads);
    TRY(linear_backward(n, a->n2, params + b->up, n->dh, n->dn, grads + b->up, C, l->hidden));
    GMAL_T(gmal_norm_backward)
    (c->norm, n->dn, a->x1, params + b->norm2_w, a->mean2, a->rstd2, n->dx, grads + b->norm2_w,
     grad_at(grads, b->norm2_b), n->partial, R, C, n->threads);
    TRY(mixer_backward(n, a, b, params, grads, through_dropout(n, key, 2 * i + 1)));
    GMAL_T(gmal_norm_backward)
    (c->norm, n->dn, a->x, params + b->norm1_w, a->mean1, a->rstd1, n->dx, grads + b->norm1_w,
     grad_at(grads, b->norm1_b), n->partial, R, C, n->threads);
    return GMA_OK;
}

gma_status GMAL_T(gmal_net_backward)(net *n, const real *params, real *grads, const int32_t *tokens,
                                     const int32_t *targets, double scale, uint64_t dropout_key, double *loss_sum) {
    const gmal_layout *l = n->l;
    const gma_lm_config *c = &l->c;
    const int64_t R = n->R, C = c->width;
    TRY(forward(n, params, tokens, dropout_key));
    TRY(head(n, params, grads, targets, scale, loss_sum));
    memset(n->dx, 0, (size_t)(R * C) * sizeof(real));
    GMAL_T(gmal_norm_backward)
    (c->norm, n->dn, n->last, params + l->norm_w, n->mean, n->rstd, n->dx, grads + l->norm_w,
     grad_at(grads, l->norm_b), n->partial, R, C, n->threads);
    for (int64_t i = c->layers - 1; i >= 0; i--) TRY(block_backward(n, i, params, grads, dropout_key));
    const gmal_dropout first = drop_at(n, dropout_key, 0);
    if (first.rate > 0) GMAL_T(gmal_dropout_apply)(n->dx, n->dx, R * C, first, n->threads);
    GMAL_T(gmal_embed_backward)
    (tokens, n->dx, grads + l->embed, grad_at(grads, l->positions), n->B, n->T, C, n->threads);
    return GMA_OK;
}
