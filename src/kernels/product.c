/* Matrix products of a chunk. All operands lie in L1 or L2 already, so nothing is repacked. */
#include "kernels/decl.h"

static inline int clamp(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }

/* One term at one block of C. */
typedef struct operand {
    const float *a, *b;
    ptrdiff_t am, ak, ldb;
} operand;

/* Blocks of one shape, one below the other: what a block costs before and after its loop is then little. */
typedef struct run {
    int count, add;
    float *c;
    ptrdiff_t ldc;
    const float *row_scale;
    operand t0, t1;
    int two; /* there is a t1, and the limits that follow are its; t0 is then whole, of k0 steps */
    int k0, k, begin, begin_step, end, end_step;
    gmai_triangle cut; /* how t1 is cut along n, and the column that the block starts at */
    int column;
} run;

/* GM rows x GN vectors of C stay in registers while the contraction runs over k:
 *
 *                 B(k, :)  | b0 | b1 | .. |      GN loads
 *   A(m0,k) broadcast ---> | c00| c01|    |      GM broadcasts
 *   A(m1,k)           ---> | c10| c11|    |      GM GN fused multiply-adds
 *     ...                  |              |
 * A is read by single elements, so both A (am = lda, ak = 1) and A^T (am = 1, ak = lda) cost the same.
 * Vectors [from, to) of the block only. */
GMAI_INLINE void add_term(int gm, int from, int to, vf sum[GMAI_GM][GMAI_GN], const operand *t, int begin, int end)
{
    const ptrdiff_t am = t->am, ak = t->ak, ldb = t->ldb;
    const float *a = t->a + begin * ak, *b = t->b + begin * ldb;
    for (int k = begin; k < end; k++, a += ak, b += ldb) {
        vf bv[GMAI_GN];
        GMAI_UNROLL
        for (int v = from; v < to; v++) bv[v] = v_load(b + v * VL);
        GMAI_UNROLL
        for (int i = 0; i < gm; i++) {
            const vf av = v_set1(a[i * am]);
            GMAI_UNROLL
            for (int v = from; v < to; v++) sum[i][v] = v_fma(av, bv[v], sum[i][v]);
        }
    }
}

/* A term that a triangle cuts along n: which vectors of B hold more than zeros changes every VL steps.
 *
 *   K_LE_N  | b0 | b1 | b2 |    K_GE_N  | b0 | 0  | 0  |  VL steps
 *           | 0  | b1 | b2 |            | b0 | b1 | 0  |  VL steps
 *           | 0  | 0  | b2 |            | b0 | b1 | b2 |  to the end */
GMAI_INLINE void add_cut_term(int gm, int gn, vf sum[GMAI_GM][GMAI_GN], const operand *t, int begin, int end,
                              int column, gmai_triangle cut)
{
    if (cut == GMAI_K_LE_N) {
        GMAI_UNROLL
        for (int v = 0; v < gn; v++) {
            const int until = clamp(column + (v + 1) * VL, begin, end);
            add_term(gm, v, gn, sum, t, begin, until);
            begin = until;
        }
    } else {
        GMAI_UNROLL
        for (int v = 1; v <= gn; v++) {
            const int until = v == gn ? end : clamp(begin + VL, begin, end);
            add_term(gm, 0, v, sum, t, begin, until);
            begin = until;
        }
    }
}

/* Each block: row_scale T0 + T1, then to memory. cut: T1 is cut along n. */
GMAI_INLINE void blocks(int gm, int gn, int cut, const run *q)
{
    const run r = *q; /* of which the compiler knows that no store to C changes it */
    operand t0 = r.t0, t1 = r.t1;
    const float *row_scale = r.row_scale;
    float *c = r.c;
    int from = r.begin, to = r.end;
    for (int n = 0; n < r.count; n++) {
        const int begin = from < r.k ? from : r.k, end = to < r.k ? to : r.k;
        vf sum[GMAI_GM][GMAI_GN];
        GMAI_UNROLL
        for (int i = 0; i < gm; i++)
            GMAI_UNROLL
            for (int v = 0; v < gn; v++) sum[i][v] = v_set1(0.0f);
        add_term(gm, 0, gn, sum, &t0, r.two ? 0 : begin, r.two ? r.k0 : end);
        if (row_scale) {
            GMAI_UNROLL
            for (int i = 0; i < gm; i++) {
                const vf s = v_set1(row_scale[i]);
                GMAI_UNROLL
                for (int v = 0; v < gn; v++) sum[i][v] = v_mul(sum[i][v], s);
            }
            row_scale += gm;
        }
        if (r.two) {
            if (cut)
                add_cut_term(gm, gn, sum, &t1, begin, end, r.column, r.cut);
            else
                add_term(gm, 0, gn, sum, &t1, begin, end);
        }
        if (r.add) {
            GMAI_UNROLL
            for (int i = 0; i < gm; i++)
                GMAI_UNROLL
                for (int v = 0; v < gn; v++) v_store(c + i * r.ldc + v * VL, v_add(v_load(c + i * r.ldc + v * VL), sum[i][v]));
        } else {
            GMAI_UNROLL
            for (int i = 0; i < gm; i++)
                GMAI_UNROLL
                for (int v = 0; v < gn; v++) v_store(c + i * r.ldc + v * VL, sum[i][v]);
        }
        c += gm * r.ldc;
        t0.a += gm * t0.am;
        t1.a += gm * t1.am;
        from += r.begin_step;
        to += r.end_step;
    }
}

/* gm x gn with both known to the compiler. */
#define CASE(gm, gn)            \
    case (gm)*8 + (gn):         \
        blocks(gm, gn, cut, q); \
        return;

GMAI_INLINE void blocks_of(int gm, int gn, int cut, const run *q)
{
    switch (gm * 8 + gn) {
        CASE(1, 1)
        CASE(2, 1)
        CASE(3, 1)
        CASE(4, 1)
        CASE(1, 2)
        CASE(2, 2)
        CASE(3, 2)
        CASE(4, 2)
#if GMAI_GM > 4
        CASE(5, 1)
        CASE(6, 1)
        CASE(5, 2)
        CASE(6, 2)
#endif
#if GMAI_GN > 2
        CASE(1, 3)
        CASE(2, 3)
        CASE(3, 3)
        CASE(4, 3)
        CASE(1, 4)
        CASE(2, 4)
        CASE(3, 4)
        CASE(4, 4)
#if GMAI_GM > 4
        CASE(5, 3)
        CASE(6, 3)
        CASE(5, 4)
        CASE(6, 4)
#endif
#endif
    default: return;
    }
}

static void any_block(int gm, int gn, const run *q) { blocks_of(gm, gn, 0, q); }
static void any_cut_block(int gm, int gn, const run *q) { blocks_of(gm, gn, 1, q); }

/* What a product is asked for. */
typedef struct request {
    int rows, nvec, add;
    float *c;
    ptrdiff_t ldc;
    const gmai_term *t0, *t1;
    const float *row_scale;
    gmai_triangle triangle;
} request;

static operand operand_at(const gmai_term *t, int m, int v)
{
    const operand o = {t->a + m * t->am, t->b + v * VL, t->am, t->ak, t->ldb};
    return o;
}

/* count blocks of gm x gn, one below the other, from row m, vector v on. */
static void do_run(const request *p, int m, int v, int gm, int gn, int count)
{
    const gmai_triangle triangle = p->triangle;
    /* A single term that is scaled is left whole, zeros and all. */
    const int cut = (triangle == GMAI_K_LE_N || triangle == GMAI_K_GE_N) && (p->t1 || !p->row_scale);
    const gmai_term *last = p->t1 ? p->t1 : p->t0;
    run q;
    q.count = count;
    q.add = p->add;
    q.c = p->c + m * p->ldc + v * VL;
    q.ldc = p->ldc;
    q.row_scale = p->row_scale ? p->row_scale + m : NULL;
    q.t0 = operand_at(p->t0, m, v);
    q.t1 = operand_at(last, m, v);
    q.two = p->t1 || cut;
    q.k0 = p->t1 ? p->t0->k : 0;
    q.k = q.end = last->k;
    q.begin = q.begin_step = q.end_step = 0;
    if (triangle == GMAI_K_LE_M) {
        q.end = m + gm;
        q.end_step = gm;
    }
    if (triangle == GMAI_K_GE_M) {
        q.begin = m;
        q.begin_step = gm;
    }
    if (cut && triangle == GMAI_K_LE_N) q.end = (v + gn) * VL;
    if (cut && triangle == GMAI_K_GE_N) q.begin = v * VL;
    q.cut = triangle;
    q.column = v * VL;
    if (cut)
        any_cut_block(gm, gn, &q);
    else
        any_block(gm, gn, &q);
}

/* A panel of B, GN vectors wide, stays in L1 while the blocks go down the columns. */
void GMAI_K(product)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                     const gmai_term *t1, int add, gmai_triangle triangle)
{
    const request p = {rows, nvec, add, c, ldc, t0, t1, row_scale, triangle};
    const int wanted = triangle == GMAI_N_GE_M;
    for (int v = 0; v < nvec; v += GMAI_GN) {
        const int end = nvec - v < GMAI_GN ? nvec : v + GMAI_GN;
        for (int count, m = 0; m < rows; m += count * GMAI_GM) {
            const int left = rows - m, gm = left < GMAI_GM ? left : GMAI_GM;
            const int from = wanted && m / VL > v ? m / VL : v;
            if (from >= end) break;
            /* As many as have that shape: whole ones and, of a triangle, those that start at the same vector. */
            const int whole = left < GMAI_GM ? 1 : left / GMAI_GM;
            count = wanted ? 1 : whole;
            while (count < whole && clamp((m + count * GMAI_GM) / VL, v, end) == from) count++;
            do_run(&p, m, from, gm, end - from, count);
        }
    }
}
