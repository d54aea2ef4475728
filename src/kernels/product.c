/* Matrix products of a chunk. All operands lie in L1 or L2 already, so nothing is repacked. */
#include "kernels/decl.h"

/* GM rows x GN vectors of C stay in registers while the contraction runs over k:
 *
 *                 B(k, :)  | b0 | b1 | .. |      GN loads
 *   A(m0,k) broadcast ---> | c00| c01|    |      GM broadcasts
 *   A(m1,k)           ---> | c10| c11|    |      GM GN fused multiply-adds
 *     ...                  |              |
 * A is read by single elements, so both A (am = lda, ak = 1) and A^T (am = 1, ak = lda) cost the same. */
GMAI_INLINE void add_term(int gm, int gn, vf sum[GMAI_GM][GMAI_GN], const gmai_term *t, const float *a, const float *b,
                          int begin, int end)
{
    const ptrdiff_t am = t->am, ak = t->ak, ldb = t->ldb;
    a += begin * ak;
    b += begin * ldb;
    for (int k = begin; k < end; k++, a += ak, b += ldb) {
        vf bv[GMAI_GN];
        GMAI_UNROLL
        for (int v = 0; v < gn; v++) bv[v] = v_load(b + v * VL);
        GMAI_UNROLL
        for (int i = 0; i < gm; i++) {
            const vf av = v_set1(a[i * am]);
            GMAI_UNROLL
            for (int v = 0; v < gn; v++) sum[i][v] = v_fma(av, bv[v], sum[i][v]);
        }
    }
}

/* One block: row_scale T0 + T1, then to memory. */
GMAI_INLINE void block(int gm, int gn, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                         const gmai_term *t1, const float *a0, const float *b0, int k0_begin, int k0_end,
                         const float *a1, const float *b1, int k1_begin, int k1_end, int add)
{
    vf sum[GMAI_GM][GMAI_GN];
    GMAI_UNROLL
    for (int i = 0; i < gm; i++)
        GMAI_UNROLL
        for (int v = 0; v < gn; v++) sum[i][v] = v_set1(0.0f);
    add_term(gm, gn, sum, t0, a0, b0, k0_begin, k0_end);
    if (row_scale) {
        GMAI_UNROLL
        for (int i = 0; i < gm; i++) {
            const vf s = v_set1(row_scale[i]);
            GMAI_UNROLL
            for (int v = 0; v < gn; v++) sum[i][v] = v_mul(sum[i][v], s);
        }
    }
    if (t1) add_term(gm, gn, sum, t1, a1, b1, k1_begin, k1_end);
    GMAI_UNROLL
    for (int i = 0; i < gm; i++)
        GMAI_UNROLL
        for (int v = 0; v < gn; v++) {
            float *p = c + i * ldc + v * VL;
            v_store(p, add ? v_add(v_load(p), sum[i][v]) : sum[i][v]);
        }
}

typedef struct block_args {
    float *c;
    ptrdiff_t ldc;
    const gmai_term *t0, *t1;
    const float *row_scale, *a0, *b0, *a1, *b1;
    int begin0, end0, begin1, end1, add;
} block_args;

/* gm x gn with both known to the compiler. */
#define CASE(gm, gn)                                                                                             \
    case (gm)*8 + (gn):                                                                                          \
        block(gm, gn, q->c, q->ldc, q->t0, q->row_scale, q->t1, q->a0, q->b0, q->begin0, q->end0, q->a1, q->b1,   \
              q->begin1, q->end1, q->add);                                                                       \
        return;

static void any_block(int gm, int gn, const block_args *q)
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

static inline int clamp(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }

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
    const gmai_term *t0 = p->t0, *t1 = p->t1, *last = t1 ? t1 : t0;
    int begin = 0, end = last->k;
    if (p->triangle == GMAI_K_LE_M) end = clamp(m + gm, 0, last->k);
    if (p->triangle == GMAI_K_GE_M) begin = clamp(m, 0, last->k);
    if (p->triangle == GMAI_K_LE_N) end = clamp((v + gn) * VL, 0, last->k);
    if (p->triangle == GMAI_K_GE_N) begin = clamp(v * VL, 0, last->k);
    block_args q = {0};
    q.c = p->c + m * p->ldc + v * VL;
    q.ldc = p->ldc;
    q.t0 = t0;
    q.t1 = t1;
    q.add = p->add;
    q.row_scale = p->row_scale ? p->row_scale + m : NULL;
    q.a0 = t0->a + m * t0->am;
    q.b0 = t0->b + v * VL;
    q.begin0 = t1 ? 0 : begin;
    q.end0 = t1 ? t0->k : end;
    if (t1) {
        q.a1 = t1->a + m * t1->am;
        q.b1 = t1->b + v * VL;
        q.begin1 = begin;
        q.end1 = end;
    }
    any_block(gm, gn, &q);
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
