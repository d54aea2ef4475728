/* See stored.h. Each step runs over the whole matrix before the next begins: scores, softmax, product with V; backward dP,
 * dS, then the products with Q, K and dO. */
#include "mixers/softmax/stored.h"

#include <math.h>
#include <string.h>

#include "engine/parallel.h"

typedef struct worker {
    gmai_query_block q;
    gmai_key_tile t; /* K and V packed, a tile at a time */
    float *columns, *rows; /* (wide, C), (C, wide) */
    float *dk, *dv; /* (keys, rp), (keys, vp) */
} worker;

static int64_t keys_of(const gmai_tiles *c) { return gmai_tiles_of(c->d->k_len) * GMAI_TILE_KEYS; }

static size_t take(const gmai_tiles *c, gmai_bump *b, worker *w)
{
    const size_t wide = (size_t)(c->rp > c->vp ? c->rp : c->vp);
    gmai_query_block_take(c, b, 1, &w->q);
    gmai_key_tile_take(c, b, &w->t);
    w->columns = gmai_take_floats(b, wide * C);
    w->rows = gmai_take_floats(b, wide * C);
    w->dk = gmai_take_floats(b, (size_t)(keys_of(c) * c->rp));
    w->dv = gmai_take_floats(b, (size_t)(keys_of(c) * c->vp));
    return b->used;
}

size_t gmai_stored_work(const gmai_tiles *c)
{
    gmai_bump b = {NULL, 0};
    worker w;
    return take(c, &b, &w);
}

size_t gmai_stored_floats(const gma_mixer_desc *d)
{
    return (size_t)(d->batch * d->heads * gmai_blocks_of(d->q_len) * d->k_len * C);
}

/* Unit = (row, head, block): its queries and its part (Nk, C) of a matrix. */
static float *open_unit(const gmai_tiles *c, char *work, int64_t unit, float *matrix, worker *w)
{
    gmai_bump b = {work, 0};
    (void)take(c, &b, w);
    const int64_t blocks = gmai_blocks_of(c->d->q_len), head = unit / blocks;
    gmai_query_block_at(c, &c->seq[head / c->d->heads], unit % blocks, head % c->d->heads, &w->q);
    return matrix + unit * c->d->k_len * C;
}

/* Keys [j0, j0 + n) of the block's head as rows in w->t. */
static int load_keys(const gmai_tiles *c, worker *w, int64_t j0)
{
    const gmai_query_block *q = &w->q;
    const int n = (int)(q->s->nk - j0 < GMAI_TILE_KEYS ? q->s->nk - j0 : GMAI_TILE_KEYS);
    const gmai_rows k = gmai_rows_at(&c->a->t[GMA_K], q->s->row, q->hq / c->group, j0);
    const gmai_rows v = gmai_rows_at(&c->a->t[GMA_V], q->s->row, q->hq / c->group, j0);
    (void)c->kern->pack(&k, n, c->r, NULL, NULL, w->t.k_own, c->rp, NULL);
    (void)c->kern->pack(&v, n, c->v, NULL, NULL, w->t.v_own, c->vp, NULL);
    return n;
}

static void scores(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    float *s = open_unit(c, work, unit, c->weights, &w);
    gmai_query_block_load(c, 0, &w.q);
    for (int64_t j0 = 0; j0 < c->d->k_len; j0 += GMAI_TILE_KEYS) {
        const int n = load_keys(c, &w, j0);
        gmai_tiles_product(c, n, w.q.n, c->r, w.t.k_own, c->rp, 1, w.q.columns, C, s + j0 * C, C, 0);
    }
    for (int64_t j = 0; j < c->d->k_len && c->d->causal; j++) /* query i sees keys below end - n + 1 + i */
        for (int i = 0; i < w.q.n && j > w.q.end - w.q.n + i; i++) s[j * C + i] = -INFINITY;
}

static void softmax(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    float *s = open_unit(c, work, unit, c->weights, &w);
    if (c->d->k_len > 0) (void)c->kern->softmax(s, (int)c->d->k_len, w.q.nvec);
    /* A query that sees no key. */
    for (int64_t i = 0; i < w.q.n && c->d->causal && w.q.end - w.q.n + i < 0; i++)
        for (int64_t j = 0; j < c->d->k_len; j++) s[j * C + i] = 0.0f;
}

static void outputs(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    const float *p = open_unit(c, work, unit, c->weights, &w);
    const int lanes = c->kern->lanes;
    memset(w.columns, 0, (size_t)(c->vp * C) * sizeof(float));
    for (int64_t j0 = 0; j0 < c->d->k_len; j0 += GMAI_TILE_KEYS) {
        const int n = load_keys(c, &w, j0);
        gmai_tiles_product(c, c->v, w.q.n, n, w.t.v_own, 1, c->vp, p + j0 * C, C, w.columns, C, 1);
    }
    c->kern->transpose(w.columns, C, (c->v + lanes - 1) / lanes * lanes, w.q.nvec * lanes, w.rows, c->vp);
    const gmai_rows dst = gmai_rows_at(&c->a->t[GMA_O], w.q.s->row, w.q.hq, w.q.i0);
    c->kern->unpack(w.rows, c->vp, w.q.n, c->v, NULL, &dst);
}

static int64_t units(const gmai_tiles *c) { return c->d->batch * c->d->heads * gmai_blocks_of(c->d->q_len); }

static void each(const gmai_tiles *c, int64_t count, void (*f)(const void *call, char *work, int64_t unit))
{
    gmai_each(c->kern, c->threads, count, c->work, c->work_size, f, c);
}

void gmai_stored_forward(const gmai_tiles *c)
{
    each(c, units(c), scores);
    each(c, units(c), softmax);
    each(c, units(c), outputs);
}

static void weight_gradients(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    float *dp = open_unit(c, work, unit, c->weight_gradients, &w);
    gmai_query_block_load(c, 1, &w.q);
    for (int64_t j0 = 0; j0 < c->d->k_len; j0 += GMAI_TILE_KEYS) {
        const int n = load_keys(c, &w, j0);
        gmai_tiles_product(c, n, w.q.n, c->v, w.t.v_own, c->vp, 1, w.q.grad_columns, C, dp + j0 * C, C, 0);
    }
}

static void score_gradients(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    float *dp = open_unit(c, work, unit, c->weight_gradients, &w), dot[C];
    c->kern->softmax_backward(c->weights + unit * c->d->k_len * C, dp, (int)c->d->k_len, w.q.nvec, dot);
}

static void query_gradients(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    const float *ds = open_unit(c, work, unit, c->weight_gradients, &w);
    const int lanes = c->kern->lanes;
    float scale[C];
    for (int i = 0; i < C; i++) scale[i] = c->scale;
    memset(w.columns, 0, (size_t)(c->rp * C) * sizeof(float));
    for (int64_t j0 = 0; j0 < c->d->k_len; j0 += GMAI_TILE_KEYS) {
        const int n = load_keys(c, &w, j0);
        gmai_tiles_product(c, c->r, w.q.n, n, w.t.k_own, 1, c->rp, ds + j0 * C, C, w.columns, C, 1);
    }
    c->kern->transpose(w.columns, C, (c->r + lanes - 1) / lanes * lanes, w.q.nvec * lanes, w.rows, c->rp);
    const gmai_rows dst = gmai_rows_at(&c->a->grad[GMA_Q], w.q.s->row, w.q.hq, w.q.i0);
    c->kern->unpack(w.rows, c->rp, w.q.n, c->r, scale, &dst);
}

/* Unit = (row, head). */
static void key_gradients(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    const int64_t blocks = gmai_blocks_of(c->d->q_len), nk = c->d->k_len;
    gmai_bump b = {work, 0};
    (void)take(c, &b, &w);
    memset(w.dk, 0, (size_t)(keys_of(c) * c->rp) * sizeof(float));
    memset(w.dv, 0, (size_t)(keys_of(c) * c->vp) * sizeof(float));
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t at = (unit * blocks + block) * nk * C;
        (void)open_unit(c, work, unit * blocks + block, NULL, &w);
        gmai_query_block_load(c, 1, &w.q);
        gmai_tiles_product(c, (int)nk, c->v, w.q.n, c->weights + at, C, 1, w.q.grad, c->vp, w.dv, c->vp, 1);
        gmai_tiles_product(c, (int)nk, c->r, w.q.n, c->weight_gradients + at, C, 1, w.q.rows, c->rp, w.dk, c->rp, 1);
    }
    const gmai_rows dk = gmai_rows_at(&c->a->grad[GMA_K], unit / c->d->heads, unit % c->d->heads, 0);
    const gmai_rows dv = gmai_rows_at(&c->a->grad[GMA_V], unit / c->d->heads, unit % c->d->heads, 0);
    if (dk.data) c->kern->unpack(w.dk, c->rp, (int)nk, c->r, NULL, &dk);
    if (dv.data) c->kern->unpack(w.dv, c->vp, (int)nk, c->v, NULL, &dv);
}

void gmai_stored_backward(const gmai_tiles *c)
{
    each(c, units(c), weight_gradients);
    each(c, units(c), score_gradients);
    if (gmai_present(&c->a->grad[GMA_Q])) each(c, units(c), query_gradients);
    each(c, c->d->batch * c->d->heads, key_gradients);
}
