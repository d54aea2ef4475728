/* Backward: scores are computed again, tile by tile, from q, k and the saved log-sum-exp.
 *
 *   delta_i = dO_i . O_i      P = e^(S - lse)      dS = P o (dO V^T - delta)
 *   dV = P^T dO      dK = dS^T (scale Q)      dQ = scale dS K
 *
 * Each tile adds to dQ of its queries and to dK, dV of its keys. Where sequences x key heads keep the threads busy, a
 * thread takes a whole head and needs every product once (five a tile). Where not, queries and keys are shared out
 * separately (seven a tile). Both add the same numbers in the same order: queries and keys rising. */
#include <math.h>
#include <string.h>

#include "engine/parallel.h"
#include "mixers/softmax/tiles.h"

enum { KEYS = GMAI_TILE_KEYS };

typedef struct worker {
    gmai_query_block q;
    gmai_key_tile t;
    float *s, *ds; /* (KEYS, C): scores, then P^T; dP^T, then dS^T */
    float *dq; /* (C, rp) */
    float *dk, *dv; /* (keys, rp), (keys, vp): of a head, or of one tile */
} worker;

static size_t take(const gmai_tiles *c, gmai_bump *b, int64_t keys, worker *w)
{
    gmai_query_block_take(c, b, 1, &w->q);
    gmai_key_tile_take(c, b, &w->t);
    w->s = gmai_take_floats(b, KEYS * C);
    w->ds = gmai_take_floats(b, KEYS * C);
    w->dq = gmai_take_floats(b, (size_t)(C * c->rp));
    w->dk = gmai_take_floats(b, (size_t)(keys * c->rp));
    w->dv = gmai_take_floats(b, (size_t)(keys * c->vp));
    return b->used;
}

static int64_t longest(const gmai_tiles *c) { return gmai_tiles_of(c->d->k_len) * KEYS; }

size_t gmai_softmax_backward_work(const gmai_tiles *c)
{
    gmai_bump b = {NULL, 0};
    worker w;
    return take(c, &b, longest(c), &w);
}

/* out(j, .) += weights(j, i) row(i) for each bad query i and the keys it sees. */
static void add_bad_queries(const gmai_key_tile *t, const gmai_bad_rows *bad, int width, const float *weights, float *out)
{
    for (int b = 0; b < bad->count; b++) {
        const int i = bad->row[b];
        const float *row = bad->rows + (ptrdiff_t)b * bad->ld;
        for (int j = 0; j < t->m; j++)
            for (int x = 0; x < width && i >= t->lo[j] && i < t->hi[j]; x++)
                out[(ptrdiff_t)j * bad->ld + x] += weights[(ptrdiff_t)j * C + i] * row[x];
    }
}

/* out(i, .) += weights(j, i) row(j) for each bad key j and the queries that see it. */
static void add_bad_keys(const gmai_key_tile *t, const gmai_bad_rows *bad, int width, const float *weights, float *out)
{
    for (int b = 0; b < bad->count; b++) {
        const int j = bad->row[b];
        const float *row = bad->rows + (ptrdiff_t)b * bad->ld;
        for (int i = t->lo[j]; i < t->hi[j]; i++)
            for (int x = 0; x < width; x++) out[(ptrdiff_t)i * bad->ld + x] += row[x] * weights[(ptrdiff_t)j * C + i];
    }
}

/* Adds what one tile gives; NULL: not wanted. dk, dv: of the tile's first key. */
static void add_tile(const gmai_tiles *c, worker *w, float *dq, float *dk, float *dv)
{
    const gmai_query_block *q = &w->q;
    gmai_key_tile *t = &w->t;
    const int apart = t->partial && !q->finite; /* some queries must not count for keys they do not see */
    gmai_key_tile_scores(c, q, t, w->s);
    gmai_tiles_product(c, t->m, q->n, c->v, t->v, t->vs, 1, q->grad_columns, C, w->ds, C, 0);
    c->kern->tile_backward(w->s, w->ds, t->m, q->nvec, q->lse, q->minus_delta);
    if (t->partial) {
        gmai_key_tile_hide(t, w->s, 0.0f);
        gmai_key_tile_hide(t, w->ds, 0.0f);
    }
    if (dv) {
        gmai_tiles_product(c, t->m, c->v, q->n, w->s, C, 1, apart ? q->clean_grad : q->grad, c->vp, dv, c->vp, 1);
        if (apart) add_bad_queries(t, &q->bad_grad, c->v, w->s, dv);
    }
    if (dk) {
        gmai_tiles_product(c, t->m, c->r, q->n, w->ds, C, 1, apart ? q->clean : q->rows, c->rp, dk, c->rp, 1);
        if (apart) add_bad_queries(t, &q->bad, c->r, w->ds, dk);
    }
    if (dq) {
        if (t->partial && !t->finite) gmai_key_tile_split(t);
        gmai_tiles_product(c, q->n, c->r, t->m, w->ds, 1, C, t->k, t->ks, dq, c->rp, 1);
        add_bad_keys(t, &t->bad_k, c->r, w->ds, dq);
    }
}

/* dQ of the block -> the caller's rows. */
static void store_dq(const gmai_tiles *c, worker *w)
{
    const gmai_query_block *q = &w->q;
    float scale[C], base[2 * C];
    if (c->half) {
        float *angles = 2 * c->half_p <= 2 * C ? base : q->columns; /* (rp, C) has room, and is done with */
        gmai_tiles_angles(c, (double)(q->end - q->n), angles);
        gmai_tiles_rotate(c, w->dq, q->n, angles, -1.0f);
    }
    for (int i = 0; i < C; i++) scale[i] = c->scale;
    const gmai_rows dst = gmai_rows_at(&c->a->grad[GMA_Q], q->s->row, q->hq, q->s->q0 + q->i0);
    c->kern->unpack(w->dq, c->rp, q->n, c->r, scale, &dst);
}

/* dK, dV of keys [j0, j0 + m), a tile at most. */
static void store_keys(const gmai_tiles *c, const gmai_sequence *s, int64_t h, int64_t tile, float *dk, float *dv)
{
    const int64_t j0 = tile * KEYS, m = s->nk - j0 < KEYS ? s->nk - j0 : KEYS;
    if (gmai_present(&c->a->grad[GMA_K])) {
        const gmai_rows dst = gmai_rows_at(&c->a->grad[GMA_K], s->row, h, s->k0 + j0);
        if (c->half) gmai_tiles_rotate(c, dk, (int)m, gmai_key_angles(c, tile), -1.0f);
        c->kern->unpack(dk, c->rp, (int)m, c->r, NULL, &dst);
    }
    if (gmai_present(&c->a->grad[GMA_V])) {
        const gmai_rows dst = gmai_rows_at(&c->a->grad[GMA_V], s->row, h, s->k0 + j0);
        c->kern->unpack(dv, c->vp, (int)m, c->v, NULL, &dst);
    }
}

static void zero_keys(const gmai_tiles *c, worker *w, int64_t keys)
{
    memset(w->dk, 0, (size_t)(keys * c->rp) * sizeof(float));
    memset(w->dv, 0, (size_t)(keys * c->vp) * sizeof(float));
}

/* ---- One sequence and key head at a time -------------------------------------------------------------------- */

static void one_head(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    const gmai_sequence *s = &c->seq[unit / c->d->kv_heads];
    const int64_t h = unit % c->d->kv_heads;
    const int want_q = gmai_present(&c->a->grad[GMA_Q]), want_k = gmai_present(&c->a->grad[GMA_K]),
              want_v = gmai_present(&c->a->grad[GMA_V]);
    worker w;
    gmai_bump b = {work, 0};
    (void)take(c, &b, longest(c), &w);
    zero_keys(c, &w, gmai_tiles_of(s->nk) * KEYS);
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t block = 0; block < gmai_blocks_of(s->nq); block++) {
            int64_t tile, to;
            gmai_query_block_at(c, s, block, h * c->group + g, &w.q);
            gmai_query_block_load(c, 1, &w.q);
            memset(w.dq, 0, (size_t)(C * c->rp) * sizeof(float));
            gmai_query_block_tiles(c, &w.q, &tile, &to);
            for (; tile < to; tile++)
                if (gmai_key_tile_load(c, &w.q, tile, &w.t))
                    add_tile(c, &w, want_q ? w.dq : NULL, want_k ? w.dk + tile * KEYS * c->rp : NULL,
                             want_v ? w.dv + tile * KEYS * c->vp : NULL);
            if (want_q) store_dq(c, &w);
        }
    for (int64_t tile = 0; tile < gmai_tiles_of(s->nk); tile++)
        store_keys(c, s, h, tile, w.dk + tile * KEYS * c->rp, w.dv + tile * KEYS * c->vp);
}

/* ---- Queries, then keys --------------------------------------------------------------------------------------- */

static void one_query_block(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    gmai_bump b = {work, 0};
    (void)take(c, &b, longest(c), &w);
    const int64_t block = c->query_blocks - 1 - unit / c->d->heads, hq = unit % c->d->heads;
    const int64_t s = gmai_tiles_find(c->first_query_block, c->sequences, block);
    int64_t tile, to;
    gmai_query_block_at(c, &c->seq[s], block - c->first_query_block[s], hq, &w.q);
    gmai_query_block_load(c, 1, &w.q);
    memset(w.dq, 0, (size_t)(C * c->rp) * sizeof(float));
    gmai_query_block_tiles(c, &w.q, &tile, &to);
    for (; tile < to; tile++)
        if (gmai_key_tile_load(c, &w.q, tile, &w.t)) add_tile(c, &w, w.dq, NULL, NULL);
    store_dq(c, &w);
}

static void one_key_tile(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    const int want_k = gmai_present(&c->a->grad[GMA_K]), want_v = gmai_present(&c->a->grad[GMA_V]);
    worker w;
    gmai_bump b = {work, 0};
    (void)take(c, &b, longest(c), &w);
    const int64_t number = unit / c->d->kv_heads, h = unit % c->d->kv_heads; /* the first keys are seen most */
    const int64_t at = gmai_tiles_find(c->first_key_block, c->sequences, number);
    const gmai_sequence *s = &c->seq[at];
    const int64_t tile = number - c->first_key_block[at];
    zero_keys(c, &w, KEYS);
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t block = 0; block < gmai_blocks_of(s->nq); block++) {
            int64_t from, to;
            gmai_query_block_at(c, s, block, h * c->group + g, &w.q);
            gmai_query_block_tiles(c, &w.q, &from, &to);
            if (tile < from || tile >= to || !gmai_key_tile_load(c, &w.q, tile, &w.t)) continue;
            gmai_query_block_load(c, 1, &w.q);
            add_tile(c, &w, NULL, want_k ? w.dk : NULL, want_v ? w.dv : NULL);
        }
    store_keys(c, s, h, tile, w.dk, w.dv);
}

void gmai_softmax_backward(const gmai_tiles *c)
{
    const int64_t heads = c->sequences * c->d->kv_heads, rounds = (heads + c->threads - 1) / c->threads;
    if (5 * rounds * c->threads <= 7 * heads) {
        gmai_each(c->kern, c->threads, heads, c->work, c->work_size, one_head, c);
        return;
    }
    if (gmai_present(&c->a->grad[GMA_Q]))
        gmai_each(c->kern, c->threads, c->query_blocks * c->d->heads, c->work, c->work_size, one_query_block, c);
    if (gmai_present(&c->a->grad[GMA_K]) || gmai_present(&c->a->grad[GMA_V]))
        gmai_each(c->kern, c->threads, c->key_blocks * c->d->kv_heads, c->work, c->work_size, one_key_tile, c);
}
