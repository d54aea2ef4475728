/* Forward: one block of queries after another, each over its tiles of keys with a running softmax; nothing of size
 * Nq x Nk is ever stored. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/parallel.h"
#include "mixers/softmax/tiles.h"

typedef struct worker {
    gmai_query_block q;
    gmai_key_tile t;
    float *s, *o; /* scores (KEYS, C); O (C, vp) */
    float top[C], sum[C], factor[C];
} worker;

static size_t take(const gmai_tiles *c, gmai_bump *b, worker *w)
{
    gmai_query_block_take(c, b, 0, &w->q);
    gmai_key_tile_take(c, b, &w->t);
    w->s = gmai_take_floats(b, GMAI_TILE_KEYS * C);
    w->o = gmai_take_floats(b, (size_t)(C * c->vp));
    return b->used;
}

size_t gmai_softmax_forward_work(const gmai_tiles *c)
{
    gmai_bump b = {NULL, 0};
    worker w;
    return take(c, &b, &w);
}

/* O += P V. A value that is no number counts only for the queries that see it. */
static void add_values(const gmai_tiles *c, worker *w)
{
    gmai_key_tile *t = &w->t;
    if (t->partial && !t->finite) gmai_key_tile_split(t);
    gmai_tiles_product(c, w->q.n, c->v, t->m, w->s, 1, C, t->v, t->vs, w->o, c->vp, 1);
    for (int b = 0; b < t->bad_v.count; b++) {
        const int j = t->bad_v.row[b];
        const float *v = t->bad_v.rows + (ptrdiff_t)b * c->vp, *p = w->s + (ptrdiff_t)j * C;
        for (int i = t->lo[j]; i < t->hi[j]; i++)
            for (int d = 0; d < c->v; d++) w->o[(ptrdiff_t)i * c->vp + d] += p[i] * v[d];
    }
}

/* Each row of O by its factor: its reference rose. */
static void scale_rows(const gmai_tiles *c, worker *w)
{
    const gmai_rows o = {w->o, c->vp, GMA_F32};
    c->kern->unpack(w->o, c->vp, w->q.n, c->v, w->factor, &o);
}

static void finish(const gmai_tiles *c, worker *w)
{
    const gmai_query_block *q = &w->q;
    const int64_t at = q->s->q0 + q->i0;
    for (int i = 0; i < C; i++) w->factor[i] = i < q->n && q->seen[i] ? 1.0f / w->sum[i] : 0.0f;
    const gmai_rows dst = gmai_rows_at(&c->a->t[GMA_O], q->s->row, q->hq, at);
    /* Sums of a query that sees nothing are 0, whatever the query holds. */
    c->kern->unpack(w->o, c->vp, q->n, c->v, w->factor, &dst);
    if (!c->lse) return;
    float *lse = c->lse + (q->s->row * c->d->heads + q->hq) * c->d->q_len + at;
    for (int i = 0; i < q->n; i++) lse[i] = q->seen[i] ? w->top[i] + logf(w->sum[i]) : 0.0f;
}

static void one_block(const void *call, char *work, int64_t unit)
{
    const gmai_tiles *c = call;
    worker w;
    gmai_bump b = {work, 0};
    (void)take(c, &b, &w);
    /* The last blocks of a causal sequence see most: they go first. */
    const int64_t block = c->query_blocks - 1 - unit / c->d->heads, hq = unit % c->d->heads;
    const int64_t s = gmai_tiles_find(c->first_query_block, c->sequences, block);
    gmai_query_block_at(c, &c->seq[s], block - c->first_query_block[s], hq, &w.q);
    gmai_query_block_load(c, 0, &w.q);
    for (int i = 0; i < C; i++) {
        w.top[i] = -FLT_MAX;
        w.sum[i] = 0.0f;
    }
    memset(w.o, 0, (size_t)(C * c->vp) * sizeof(float));
    int64_t tile, to;
    gmai_query_block_tiles(c, &w.q, &tile, &to);
    for (; tile < to; tile++) {
        if (!gmai_key_tile_load(c, &w.q, tile, &w.t)) continue;
        gmai_key_tile_scores(c, &w.q, &w.t, w.s);
        if (c->kern->tile_softmax(w.s, w.t.m, w.q.nvec, w.top, w.sum, w.factor))
            scale_rows(c, &w);
        add_values(c, &w);
    }
    finish(c, &w);
}

void gmai_softmax_forward(const gmai_tiles *c)
{
    gmai_each(c->kern, c->threads, c->query_blocks * c->d->heads, c->work, c->work_size, one_block, c);
}
