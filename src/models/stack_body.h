/* Blocks, forward and backward: x += mixer(norm(x)); in a decoder x += cross(norm(x), memory); x += mlp(norm(x)). */
#include "models/stack_memory_body.h"
#include "models/stack_mixer_body.h"

#include "models/stack_cross_body.h"

/* key 0: no dropout. */
static gmal_dropout drop_at(const stack *s, uint64_t key, int64_t site) {
    gmal_dropout d = {key ? s->l->c.dropout : 0, gmal_key(key, (uint64_t)site)};
    return d;
}

static void first_norm(stack *s, int64_t i, const real *params) {
    const gma_lm_config *c = &s->l->c;
    const gmal_sub *m = &s->blocks[i].mixer;
    act *a = &s->acts[i];
    GMAL_T(gmal_norm_forward)
    (c->norm, a->x, params + m->norm_w, at(params, m->norm_b), a->mixer.n, a->mixer.mean, a->mixer.rstd, s->R, c->width,
     c->norm_eps, s->threads);
}

/* The stream behind block i: x2 + dropout(y), and its norm: the one of the next block, or the one at the end. */
static void leave_block(stack *s, int64_t i, const real *params, gmal_dropout drop) {
    const gma_lm_config *c = &s->l->c;
    const int end = i + 1 == s->count;
    const int64_t w = end ? s->end_w : s->blocks[i + 1].mixer.norm_w, b = end ? s->end_b : s->blocks[i + 1].mixer.norm_b;
    act *next = end ? NULL : &s->acts[i + 1];
    GMAL_T(gmal_residual_norm)
    (c->norm, s->acts[i].x2, s->y, end ? s->last : next->x, drop, params + w, at(params, b), end ? s->nf : next->mixer.n,
     end ? s->mean : next->mixer.mean, end ? s->rstd : next->mixer.rstd, s->R, c->width, c->norm_eps, s->threads);
}

/* The places of dropout: 0 the embedding, then two a block, as long as there is no cross-attention; those lie far behind. */
static int64_t cross_site(int64_t i) { return (INT64_C(1) << 32) + i; }

/* From norm(x) to what the down projection reads. */
static gma_status block_inside(stack *s, int64_t i, const real *params, uint64_t key) {
    const gma_lm_config *c = &s->l->c;
    act *a = &s->acts[i];
    const gmal_block *b = &s->blocks[i];
    TRY(mixer_forward(s, i, params));
    if (crosses(s)) {
        const gmal_sub *m = &b->cross;
        sub_act *x = &a->cross;
        GMAL_T(gmal_residual_norm)
        (c->norm, a->x, s->y, a->x1, drop_at(s, key, 2 * i + 1), params + m->norm_w, at(params, m->norm_b), x->n, x->mean,
         x->rstd, s->R, c->width, c->norm_eps, s->threads);
        TRY(cross_forward(s, i, params));
    }
    GMAL_T(gmal_residual_norm)
    (c->norm, crosses(s) ? a->x1 : a->x, s->y, a->x2, drop_at(s, key, crosses(s) ? cross_site(i) : 2 * i + 1),
     params + b->norm2_w, at(params, b->norm2_b), a->n, a->mean, a->rstd, s->R, c->width, c->norm_eps, s->threads);
    return GMAL_T(gmal_mlp_up)(c->mlp, a->n, params + b->up, a->h, a->a, s->R, c->width, c->mlp_width, s->threads);
}

/* From acts[0].x to the norm at the end. */
static gma_status stack_forward(stack *s, const real *params, uint64_t key) {
    const gma_lm_config *c = &s->l->c;
    first_norm(s, 0, params);
    for (int64_t i = 0; i < s->count; i++) {
        TRY(block_inside(s, i, params, key));
        TRY(linear(s->acts[i].a, params + s->blocks[i].down, s->y, s->R, c->mlp_width, c->width, s->threads));
        leave_block(s, i, params, drop_at(s, key, 2 * i + 2));
    }
    return GMA_OK;
}

/* dL/d(sublayer output) from dL/d(stream). */
static const real *through_dropout(const stack *s, uint64_t key, int64_t site) {
    const gmal_dropout d = drop_at(s, key, site);
    if (!(d.rate > 0))
        return s->dx;
    GMAL_T(gmal_dropout_apply)(s->dx, s->dy, s->R * s->l->c.width, d, s->threads);
    return s->dy;
}

static gma_status block_backward(stack *s, int64_t i, const real *params, real *grads, uint64_t key) {
    const gmal_layout *l = s->l;
    const gma_lm_config *c = &l->c;
    const int64_t R = s->R, C = c->width;
    const act *a = &s->acts[i];
    const gmal_block *b = &s->blocks[i];
    if (s->recompute && i + 1 < s->count) { /* the last block's are still there */
        first_norm(s, i, params);
        TRY(block_inside(s, i, params, key));
    }
    const real *dy = through_dropout(s, key, 2 * i + 2);
    TRY(weight_gradient(a->a, dy, grads + b->down, R, c->mlp_width, C, s->threads));
    TRY(GMAL_T(gmal_mlp_down_backward)(c->mlp, dy, params + b->down, a->h, s->da, s->dh, R, c->mlp_width, C, s->threads));
    TRY(linear_backward(a->n, params + b->up, s->dh, s->dn, grads + b->up, R, C, l->hidden, s->threads));
    GMAL_T(gmal_norm_backward)
    (c->norm, s->dn, a->x2, params + b->norm2_w, a->mean, a->rstd, s->dx, grads + b->norm2_w,
     grad_at(grads, b->norm2_b), s->partial, R, C, s->threads);
    if (crosses(s)) {
        TRY(cross_backward(s, i, params, grads, through_dropout(s, key, cross_site(i))));
        GMAL_T(gmal_norm_backward)
        (c->norm, s->dn, a->x1, params + b->cross.norm_w, a->cross.mean, a->cross.rstd, s->dx, grads + b->cross.norm_w,
         grad_at(grads, b->cross.norm_b), s->partial, R, C, s->threads);
    }
    TRY(mixer_backward(s, i, params, grads, through_dropout(s, key, 2 * i + 1)));
    GMAL_T(gmal_norm_backward)
    (c->norm, s->dn, a->x, params + b->mixer.norm_w, a->mixer.mean, a->mixer.rstd, s->dx, grads + b->mixer.norm_w,
     grad_at(grads, b->mixer.norm_b), s->partial, R, C, s->threads);
    return GMA_OK;
}

/* From dn, the gradient at nf, to dx, the one at acts[0].x; a decoder adds to dmemory. */
static gma_status stack_backward(stack *s, const real *params, real *grads, uint64_t key) {
    const gma_lm_config *c = &s->l->c;
    memset(s->dx, 0, (size_t)(s->R * c->width) * sizeof(real));
    GMAL_T(gmal_norm_backward)
    (c->norm, s->dn, s->last, params + s->end_w, s->mean, s->rstd, s->dx, grads + s->end_w, grad_at(grads, s->end_b),
     s->partial, s->R, c->width, s->threads);
    for (int64_t i = s->count - 1; i >= 0; i--) TRY(block_backward(s, i, params, grads, key));
    return GMA_OK;
}
