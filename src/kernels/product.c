/* Matrix products of a chunk. All operands lie in L1 or L2 already, so nothing is repacked. */
#include "kernels/decl.h"

/* GM rows x GN vectors of C stay in registers while the contraction runs over k:
 *
 *                 B(k, :)  | b0 | b1 | .. |      GN loads
 *   A(m0,k) broadcast ---> | c00| c01|    |      GM broadcasts
 *   A(m1,k)           ---> | c10| c11|    |      GM GN fused multiply-adds
 *     ...                  |              |
 * A is read by single elements, so both A (am = lda, ak = 1) and A^T (am = 1, ak = lda) cost the same.
 * Vectors [from, to) of the block only. */
GMAI_INLINE void add_term(int gm, int from, int to, vf sum[GMAI_GM][GMAI_GN], const gmai_term *t, const float *a,
                          const float *b, int begin, int end)
{
    const ptrdiff_t am = t->am, ak = t->ak, ldb = t->ldb;
    a += begin * ak;
    b += begin * ldb;
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

static inline int clamp(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }

/* A term that a triangle cuts along n: which vectors of B hold more than zeros changes every VL steps.
 *
 *   K_LE_N  | b0 | b1 | b2 |    K_GE_N  | b0 | 0  | 0  |  VL steps
 *           | 0  | b1 | b2 |            | b0 | b1 | 0  |  VL steps
 *           | 0  | 0  | b2 |            | b0 | b1 | b2 |  to the end */
GMAI_INLINE void add_cut_term(int gm, int gn, vf sum[GMAI_GM][GMAI_GN], const gmai_term *t, const float *a,
                              const float *b, int begin, int end, int first_column, gmai_triangle triangle)
{
    if (triangle == GMAI_K_LE_N) {
        GMAI_UNROLL
        for (int v = 0; v < gn; v++) {
            const int until = clamp(first_column + (v + 1) * VL, begin, end);
            add_term(gm, v, gn, sum, t, a, b, begin, until);
            begin = until;
        }
    } else {
        GMAI_UNROLL
        for (int v = 1; v <= gn; v++) {
            const int until = v == gn ? end : clamp(begin + VL, begin, end);
            add_term(gm, 0, v, sum, t, a, b, begin, until);
            begin = until;
        }
    }
}

typedef struct block_args {
    float *c;
    ptrdiff_t ldc;
    const gmai_term *t0, *t1; /* t1 NULL: none */
    const float *row_scale, *a0, *b0, *a1, *b1;
    int begin0, end0, begin1, end1, add, first_column;
    gmai_triangle cut; /* how t1 is cut */
} block_args;

/* One block: row_scale T0 + T1, then to memory. cut: T1 is cut along n. */
GMAI_INLINE void block(int gm, int gn, int cut, const block_args *q)
{
    vf sum[GMAI_GM][GMAI_GN];
    GMAI_UNROLL
    for (int i = 0; i < gm; i++)
        GMAI_UNROLL
        for (int v = 0; v < gn; v++) sum[i][v] = v_set1(0.0f);
    add_term(gm, 0, gn, sum, q->t0, q->a0, q->b0, q->begin0, q->end0);
    if (q->row_scale) {
        GMAI_UNROLL
        for (int i = 0; i < gm; i++) {
            const vf s = v_set1(q->row_scale[i]);
            GMAI_UNROLL
            for (int v = 0; v < gn; v++) sum[i][v] = v_mul(sum[i][v], s);
        }
    }
    if (cut)
        add_cut_term(gm, gn, sum, q->t1, q->a1, q->b1, q->begin1, q->end1, q->first_column, q->cut);
    else if (q->t1)
        add_term(gm, 0, gn, sum, q->t1, q->a1, q->b1, q->begin1, q->end1);
    float *c = q->c;
    const ptrdiff_t ldc = q->ldc;
    if (q->add) {
        GMAI_UNROLL
        for (int i = 0; i < gm; i++)
            GMAI_UNROLL
            for (int v = 0; v < gn; v++) v_store(c + i * ldc + v * VL, v_add(v_load(c + i * ldc + v * VL), sum[i][v]));
        return;
    }
    GMAI_UNROLL
    for (int i = 0; i < gm; i++)
        GMAI_UNROLL
        for (int v = 0; v < gn; v++) v_store(c + i * ldc + v * VL, sum[i][v]);
}

/* gm x gn with both known to the compiler. */
#define CASE(gm, gn)            \
    case (gm)*8 + (gn):         \
        block(gm, gn, cut, q);  \
        return;

GMAI_INLINE void block_of(int gm, int gn, int cut, const block_args *q)
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

static void any_block(int gm, int gn, const block_args *q) { block_of(gm, gn, 0, q); }
static void any_cut_block(int gm, int gn, const block_args *q) { block_of(gm, gn, 1, q); }

/* The block of rows m.. and vectors v.., with its limits. */
typedef struct product_args {
    int rows, nvec, add;
    float *c;
    ptrdiff_t ldc;
    const gmai_term *t0, *t1;
    const float *row_scale;
    gmai_triangle triangle;
} product_args;

static void one_block(const product_args *p, int m, int v, int gm, int gn)
{
    const gmai_triangle triangle = p->triangle;
    /* A single term that is scaled is left whole, zeros and all. */
    const int cut = (triangle == GMAI_K_LE_N || triangle == GMAI_K_GE_N) && (p->t1 || !p->row_scale);
    const gmai_term *t0 = p->t0, *t1 = cut && !p->t1 ? t0 : p->t1;
    block_args q = {0};
    q.c = p->c + m * p->ldc + v * VL;
    q.ldc = p->ldc;
    q.t0 = t0;
    q.add = p->add;
    q.row_scale = p->row_scale ? p->row_scale + m : NULL;
    q.a0 = t0->a + m * t0->am;
    q.b0 = t0->b + v * VL;
    q.end0 = t0 == t1 ? 0 : t0->k;
    if (t1) {
        q.t1 = t1;
        q.a1 = t1->a + m * t1->am;
        q.b1 = t1->b + v * VL;
        q.end1 = t1->k;
    }
    int *begin = t1 ? &q.begin1 : &q.begin0, *end = t1 ? &q.end1 : &q.end0;
    if (triangle == GMAI_K_LE_M) *end = clamp(m + gm, 0, *end);
    if (triangle == GMAI_K_GE_M) *begin = clamp(m, 0, *end);
    if (!cut) {
        any_block(gm, gn, &q);
        return;
    }
    if (triangle == GMAI_K_LE_N) *end = clamp((v + gn) * VL, 0, *end);
    if (triangle == GMAI_K_GE_N) *begin = clamp(v * VL, 0, *end);
    q.first_column = v * VL;
    q.cut = triangle;
    any_cut_block(gm, gn, &q);
}

/* Either B stays in L1 while the blocks go along its rows, or, where B is too large for that, one panel of it does while
 * they go down the columns. The sums are the same. */
enum { B_LIMIT = 20480 }; /* bytes of B; of an L1 cache of 32 KiB the rest is for A and C */

void GMAI_K(product)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                     const gmai_term *t1, int add, gmai_triangle triangle)
{
    const product_args p = {rows, nvec, add, c, ldc, t0, t1, row_scale, triangle};
    const int panels = (t0->k + (t1 ? t1->k : 0)) * nvec * VL * (int)sizeof(float) > B_LIMIT;
    const int wanted = triangle == GMAI_N_GE_M;
    if (!panels) {
        for (int m = 0; m < rows; m += GMAI_GM) {
            const int gm = rows - m < GMAI_GM ? rows - m : GMAI_GM;
            for (int gn, v = wanted ? m / VL : 0; v < nvec; v += gn) {
                gn = nvec - v < GMAI_GN ? nvec - v : GMAI_GN;
                one_block(&p, m, v, gm, gn);
            }
        }
        return;
    }
    for (int v = 0; v < nvec; v += GMAI_GN) {
        const int end = nvec - v < GMAI_GN ? nvec : v + GMAI_GN;
        for (int m = 0; m < rows; m += GMAI_GM) {
            const int gm = rows - m < GMAI_GM ? rows - m : GMAI_GM;
            const int from = wanted && m / VL > v ? m / VL : v;
            if (from >= end) break;
            one_block(&p, m, from, gm, end - from);
        }
    }
}
