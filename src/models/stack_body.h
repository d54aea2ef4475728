/* Blocks, forward and backward: x += mixer(norm(x)); x += mlp(norm(x)). */
#include "models/stack_memory_body.h"
#include "models/stack_mixer_body.h"

/* key 0: no dropout. */
static gmal_dropout drop_at(const stack *s, uint64_t key, int64_t site) {
    gmal_dropout d = {key ? s->l->c.dropout : 0, gmal_key(key, (uint64_t)site)};
    return d;
}

static gma_status block_forward(stack *s, int64_t i, const real *params, uint64_t key) {
    const gmal_layout *l = s->l;
    const gma_lm_config *c = &l->c;
    const int64_t R = s->R, C = c->width;
    act *a = &s->acts[i];
    const gmal_block *b = &s->blocks[i];
    real *next = i + 1 < s->count ? s->acts[i + 1].x : s->last;
    GMAL_T(gmal_norm_forward)
    (c->norm, a->x, params + b->mixer.norm_w, at(params, b->mixer.norm_b), a->mixer.n, a->mixer.mean, a->mixer.rstd, R,
     C, c->norm_eps, s->threads);
    TRY(mixer_forward(s, i, params));
    GMAL_T(gmal_residual)(a->x, s->y, a->x1, R * C, drop_at(s, key, 2 * i + 1), s->threads);
    GMAL_T(gmal_norm_forward)
    (c->norm, a->x1, params + b->norm2_w, at(params, b->norm2_b), a->n, a->mean, a->rstd, R, C, c->norm_eps,
     s->threads);
    TRY(linear(a->n, params + b->up, a->h, R, C, l->hidden, s->threads));
    GMAL_T(gmal_mlp_forward)(c->mlp, a->h, a->a, R, c->mlp_width, s->threads);
    TRY(linear(a->a, params + b->down, s->y, R, c->mlp_width, C, s->threads));
    GMAL_T(gmal_residual)(a->x1, s->y, next, R * C, drop_at(s, key, 2 * i + 2), s->threads);
    return GMA_OK;
}

/* From acts[0].x to last. */
static gma_status stack_forward(stack *s, const real *params, uint64_t key) {
    for (int64_t i = 0; i < s->count; i++)
        TRY(block_forward(s, i, params, key));
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
    const real *dy = through_dropout(s, key, 2 * i + 2);
    TRY(linear_backward(a->a, params + b->down, dy, s->da, grads + b->down, R, c->mlp_width, C, s->threads));
    GMAL_T(gmal_mlp_backward)(c->mlp, a->h, s->da, s->dh, R, c->mlp_width, s->threads);
    TRY(linear_backward(a->n, params + b->up, s->dh, s->dn, grads + b->up, R, C, l->hidden, s->threads));
    GMAL_T(gmal_norm_backward)
    (c->norm, s->dn, a->x1, params + b->norm2_w, a->mean, a->rstd, s->dx, grads + b->norm2_w,
     grad_at(grads, b->norm2_b), s->partial, R, C, s->threads);
    TRY(mixer_backward(s, i, params, grads, through_dropout(s, key, 2 * i + 1)));
    GMAL_T(gmal_norm_backward)
    (c->norm, s->dn, a->x, params + b->mixer.norm_w, a->mixer.mean, a->mixer.rstd, s->dx, grads + b->mixer.norm_w,
     grad_at(grads, b->mixer.norm_b), s->partial, R, C, s->threads);
    return GMA_OK;
}

/* dx: from the gradient at last to that at acts[0].x. */
static gma_status stack_backward(stack *s, const real *params, real *grads, uint64_t key) {
    for (int64_t i = s->count - 1; i >= 0; i--)
        TRY(block_backward(s, i, params, grads, key));
    return GMA_OK;
}
