/* See tiles.h. */
#include "mixers/softmax/tiles.h"

#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "engine/chunk.h"

enum { KEYS = GMAI_TILE_KEYS };

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- The call ----------------------------------------------------------------------------------------------- */

void gmai_tiles_take(const gma_mixer *m, gmai_bump *b, gmai_tiles *c)
{
    const gma_mixer_desc *d = &m->d;
    memset(c, 0, sizeof *c);
    c->d = d;
    c->kern = m->kern;
    c->r = (int)d->routing_dim;
    c->rp = (int)gmai_pad(d->routing_dim);
    c->v = (int)d->value_dim;
    c->vp = (int)gmai_pad(d->value_dim);
    c->group = d->kv_heads > 0 ? d->heads / d->kv_heads : 0;
    c->scale = (float)d->scale;
    c->sequences = d->segments >= 0 ? d->segments : d->batch;
    c->seq = gmai_take(b, (size_t)c->sequences * sizeof *c->seq);
    c->first_query_block = gmai_take(b, (size_t)(c->sequences + 1) * sizeof(int64_t));
    c->first_key_block = gmai_take(b, (size_t)(c->sequences + 1) * sizeof(int64_t));
    if (d->rotary_base != 0.0) {
        c->half = c->r / 2;
        c->half_p = (int)gmai_pad(c->half);
        c->angles = gmai_take_floats(b, (size_t)(gmai_tiles_of(d->k_len) * 2 * c->half_p));
        c->offsets = gmai_take_floats(b, (size_t)(KEYS * 2 * c->half_p));
        c->frequencies = gmai_take(b, (size_t)c->half * sizeof(double));
    }
}

void gmai_tiles_angles(const gmai_tiles *c, double position, float *base)
{
    for (int r = 0; r < c->half_p; r++) {
        const double angle = r < c->half ? position * c->frequencies[r] : 0.0;
        base[r] = (float)cos(angle);
        base[c->half_p + r] = (float)sin(angle);
    }
}

void gmai_tiles_rotate(const gmai_tiles *c, float *rows, int n, const float *base, float sign)
{
    c->kern->rotate(rows, c->rp, n, c->half, base, c->offsets, c->half_p, sign);
}

gma_status gmai_tiles_start(const gma_mixer *m, const gmai_args *a, int threads, gmai_tiles *c)
{
    gmai_plan p;
    gmai_plan_make(&m->d, &p);
    const gma_status status = gmai_plan_sequences(&p, &a->t[GMA_CU_SEQLENS], c->seq);
    if (status != GMA_OK) return status;
    c->a = a;
    c->threads = gmai_threads(threads);
    int64_t longest = 0;
    for (int64_t s = 0; s < c->sequences; s++) {
        c->first_query_block[s] = c->query_blocks;
        c->first_key_block[s] = c->key_blocks;
        c->query_blocks += gmai_blocks_of(c->seq[s].nq);
        c->key_blocks += gmai_tiles_of(c->seq[s].nk);
        longest = max64(longest, gmai_tiles_of(c->seq[s].nk));
    }
    c->first_query_block[c->sequences] = c->query_blocks;
    c->first_key_block[c->sequences] = c->key_blocks;
    if (!c->half) return GMA_OK;
    for (int r = 0; r < c->half; r++) c->frequencies[r] = pow(c->d->rotary_base, -2.0 * r / c->r);
    for (int i = 0; i < KEYS; i++) gmai_tiles_angles(c, i, c->offsets + (ptrdiff_t)i * 2 * c->half_p);
    const int team = longest < c->threads ? (int)longest : c->threads;
    (void)team;
#ifdef _OPENMP
#pragma omp parallel for num_threads(team) if (team > 1)
#endif
    for (int64_t t = 0; t < longest; t++) gmai_tiles_angles(c, (double)(t * KEYS), c->angles + t * 2 * c->half_p);
    return GMA_OK;
}

int64_t gmai_tiles_find(const int64_t *first, int64_t sequences, int64_t block)
{
    int64_t lo = 0, hi = sequences; /* first[lo] <= block < first[hi] */
    while (hi - lo > 1) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (first[mid] <= block)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

void gmai_tiles_product(const gmai_tiles *c, int m, int n, int k, const float *a, ptrdiff_t am, ptrdiff_t ak,
                        const float *b, ptrdiff_t ldb, float *out, ptrdiff_t ldc, int add)
{
    const gmai_term t = {a, am, ak, b, ldb, k};
    c->kern->product(m, (n + c->kern->lanes - 1) / c->kern->lanes, out, ldc, &t, NULL, NULL, add, GMAI_FULL);
}

/* ---- Queries ------------------------------------------------------------------------------------------------ */

static void take_bad(gmai_bump *b, int rows, int ld, gmai_bad_rows *bad)
{
    bad->ld = ld;
    bad->rows = gmai_take_floats(b, (size_t)(rows * ld));
    bad->count = 0;
}

/* Moves the rows that are not finite out of `rows`. */
static void split_bad(float *rows, int n, gmai_bad_rows *bad)
{
    bad->count = 0;
    for (int i = 0; i < n; i++) {
        float *row = rows + (ptrdiff_t)i * bad->ld;
        if (gmai_all_finite(row, (size_t)bad->ld)) continue;
        memcpy(bad->rows + (ptrdiff_t)bad->count * bad->ld, row, (size_t)bad->ld * sizeof(float));
        memset(row, 0, (size_t)bad->ld * sizeof(float));
        bad->row[bad->count++] = i;
    }
}

void gmai_query_block_take(const gmai_tiles *c, gmai_bump *b, int backward, gmai_query_block *q)
{
    const size_t qs = (size_t)(C * c->rp), os = (size_t)(C * c->vp);
    memset(q, 0, sizeof *q);
    q->rows = gmai_take_floats(b, qs);
    q->columns = gmai_take_floats(b, qs);
    if (!backward) return;
    q->grad = gmai_take_floats(b, os);
    q->grad_columns = gmai_take_floats(b, os);
    q->o = gmai_take_floats(b, os);
    q->clean = gmai_take_floats(b, qs);
    q->clean_grad = gmai_take_floats(b, os);
    take_bad(b, C, c->rp, &q->bad);
    take_bad(b, C, c->vp, &q->bad_grad);
}

void gmai_query_block_at(const gmai_tiles *c, const gmai_sequence *s, int64_t block, int64_t hq, gmai_query_block *q)
{
    q->s = s;
    q->hq = hq;
    q->i0 = block * C;
    q->n = (int)min64(C, s->nq - q->i0);
    q->nvec = (q->n + c->kern->lanes - 1) / c->kern->lanes;
    q->end = q->i0 + q->n + (c->d->causal ? s->nk - s->nq : 0);
    memset(q->seen, 0, sizeof q->seen);
}

static void to_columns(const gmai_tiles *c, const gmai_query_block *q, const float *rows, int width, int ld, float *columns)
{
    const int lanes = c->kern->lanes;
    c->kern->transpose(rows, ld, q->nvec * lanes, (width + lanes - 1) / lanes * lanes, columns, C);
}

void gmai_query_block_load(const gmai_tiles *c, int backward, gmai_query_block *q)
{
    const gmai_sequence *s = q->s;
    const int64_t at = s->q0 + q->i0;
    gmai_rows src = gmai_rows_at(&c->a->t[GMA_Q], s->row, q->hq, at);
    q->finite = c->kern->pack(&src, q->n, c->r, NULL, NULL, q->rows, c->rp, NULL);
    if (c->half) {
        float base[2 * GMAI_CHUNK];
        float *angles = 2 * c->half_p <= 2 * GMAI_CHUNK ? base : q->columns; /* (rp, C) has room */
        gmai_tiles_angles(c, (double)(q->end - q->n), angles);
        gmai_tiles_rotate(c, q->rows, q->n, angles, 1.0f);
    }
    for (int i = 0; i < q->n * c->rp; i++) q->rows[i] *= c->scale;
    to_columns(c, q, q->rows, c->r, c->rp, q->columns);
    if (!backward) return;
    src = gmai_rows_at(&c->a->grad[GMA_O], s->row, q->hq, at);
    q->finite &= c->kern->pack(&src, q->n, c->v, NULL, NULL, q->grad, c->vp, NULL);
    to_columns(c, q, q->grad, c->v, c->vp, q->grad_columns);
    src = gmai_rows_at(&c->a->t[GMA_O], s->row, q->hq, at);
    (void)c->kern->pack(&src, q->n, c->v, NULL, NULL, q->o, c->vp, NULL);
    memset(q->lse, 0, sizeof q->lse);
    memset(q->minus_delta, 0, sizeof q->minus_delta);
    if (c->lse) memcpy(q->lse, c->lse + (s->row * c->d->heads + q->hq) * c->d->q_len + at, (size_t)q->n * sizeof(float));
    float one[C];
    for (int i = 0; i < C; i++) one[i] = 1.0f;
    c->kern->output_backward(q->grad, q->o, c->vp, q->n, one, q->o, q->minus_delta);
    q->bad.count = q->bad_grad.count = 0;
    if (q->finite) return;
    memcpy(q->clean, q->rows, (size_t)(q->n * c->rp) * sizeof(float));
    memcpy(q->clean_grad, q->grad, (size_t)(q->n * c->vp) * sizeof(float));
    split_bad(q->clean, q->n, &q->bad);
    split_bad(q->clean_grad, q->n, &q->bad_grad);
}

void gmai_query_block_tiles(const gmai_tiles *c, const gmai_query_block *q, int64_t *from, int64_t *to)
{
    const int64_t nk = q->s->nk;
    const int64_t last = c->d->causal ? max64(0, min64(nk, q->end)) : nk;
    const int64_t first = c->d->window > 0 ? max64(0, q->end - q->n - c->d->window + 1) : 0;
    *from = first / KEYS;
    *to = gmai_tiles_of(last);
}

/* ---- Keys --------------------------------------------------------------------------------------------------- */

void gmai_key_tile_take(const gmai_tiles *c, gmai_bump *b, gmai_key_tile *t)
{
    memset(t, 0, sizeof *t);
    t->k_own = gmai_take_floats(b, (size_t)(KEYS * c->rp));
    t->v_own = gmai_take_floats(b, (size_t)(KEYS * c->vp));
    take_bad(b, KEYS, c->rp, &t->bad_k);
    take_bad(b, KEYS, c->vp, &t->bad_v);
}

static int load_mask(const gmai_tiles *c, const gmai_sequence *s, gmai_key_tile *t)
{
    const gma_tensor *mask = &c->a->t[GMA_KEY_MASK];
    int kept = 0;
    t->masked = 0;
    if (!gmai_present(mask)) return 1;
    for (int j = 0; j < t->m; j++) {
        const int64_t at = s->row * mask->stride[0] + (s->k0 + t->j0 + j) * mask->stride[1];
        t->keep[j] = ((const uint8_t *)mask->data)[at] != 0;
        kept += t->keep[j];
    }
    t->masked = kept < t->m;
    return kept > 0;
}

/* Which queries see each key: an interval, since the last key of a query rises with it. Returns 0 when none sees any. */
static int find_ranges(const gmai_tiles *c, gmai_query_block *q, gmai_key_tile *t)
{
    const int64_t window = c->d->window, first_end = q->end - q->n + 1; /* query 0 sees keys below first_end */
    const int causal = c->d->causal;
    int any = 0;
    t->partial = t->masked || (causal && t->j0 + t->m > first_end) || (window > 0 && t->j0 < q->end - window);
    if (!t->partial) {
        memset(q->seen, 1, (size_t)q->n);
        return 1;
    }
    for (int j = 0; j < t->m; j++) {
        const int64_t key = t->j0 + j;
        int64_t lo = causal ? max64(0, key - (first_end - 1)) : 0, hi = q->n;
        if (window > 0) hi = min64(hi, key + window - (first_end - 1));
        if ((t->masked && !t->keep[j]) || hi <= lo) lo = hi = 0;
        t->lo[j] = (int)lo;
        t->hi[j] = (int)hi;
        if (hi > lo) memset(q->seen + lo, 1, (size_t)(hi - lo));
        any |= hi > lo;
    }
    return any;
}

int gmai_key_tile_load(const gmai_tiles *c, gmai_query_block *q, int64_t tile, gmai_key_tile *t)
{
    const gmai_sequence *s = q->s;
    t->j0 = tile * KEYS;
    /* Keys behind the last that any query sees are left out, so a tile on the diagonal is cut short. */
    t->m = (int)(min64(c->d->causal ? min64(s->nk, q->end) : s->nk, t->j0 + KEYS) - t->j0);
    if (t->m <= 0 || !load_mask(c, s, t) || !find_ranges(c, q, t)) return 0;
    const int64_t h = q->hq / c->group;
    const gmai_rows k = gmai_rows_at(&c->a->t[GMA_K], s->row, h, s->k0 + t->j0);
    const gmai_rows v = gmai_rows_at(&c->a->t[GMA_V], s->row, h, s->k0 + t->j0);
    const uint8_t *keep = t->masked ? t->keep : NULL;
    t->finite = 1;
    t->k = k.data;
    t->ks = (ptrdiff_t)k.stride;
    t->v = v.data;
    t->vs = (ptrdiff_t)v.stride;
    /* Products read whole vectors of a row. */
    if (t->partial || c->half || k.dtype != GMA_F32 || c->r % c->kern->lanes) {
        t->finite &= c->kern->pack(&k, t->m, c->r, keep, NULL, t->k_own, c->rp, NULL);
        if (c->half) gmai_tiles_rotate(c, t->k_own, t->m, gmai_key_angles(c, tile), 1.0f);
        t->k = t->k_own;
        t->ks = c->rp;
    }
    if (t->partial || v.dtype != GMA_F32 || c->v % c->kern->lanes) {
        t->finite &= c->kern->pack(&v, t->m, c->v, keep, NULL, t->v_own, c->vp, NULL);
        t->v = t->v_own;
        t->vs = c->vp;
    }
    t->bad_k.count = t->bad_v.count = 0;
    return 1;
}

void gmai_key_tile_split(gmai_key_tile *t)
{
    split_bad(t->k_own, t->m, &t->bad_k);
    split_bad(t->v_own, t->m, &t->bad_v);
}

void gmai_key_tile_hide(const gmai_key_tile *t, float *s, float x)
{
    for (int j = 0; j < t->m; j++) {
        float *row = s + (ptrdiff_t)j * C;
        for (int i = 0; i < t->lo[j]; i++) row[i] = x;
        for (int i = t->hi[j]; i < C; i++) row[i] = x;
    }
}

void gmai_key_tile_scores(const gmai_tiles *c, const gmai_query_block *q, const gmai_key_tile *t, float *s)
{
    gmai_tiles_product(c, t->m, q->n, c->r, t->k, t->ks, 1, q->columns, C, s, C, 0);
    if (t->partial) gmai_key_tile_hide(t, s, -INFINITY);
}
