/* Products in bf16 on tiles, for q, k, v stored as bf16: what they cost in accuracy stands in gma/base.h (GMA_ISA_AMX).
 *
 * A product's operands are f32 in L1 or L2; each is rounded to bf16 once a call, into the shapes that tiles want. Four
 * tiles of C stand side by side, so one tile of A serves 64 columns. Where a shape or an option does not fit, the kernel
 * in f32 does the work.
 *
 * Backward subtracts numbers of like size (dn . v + e): there each operand is two bf16 terms, hi and lo, and hi hi + hi lo +
 * lo hi is summed, 16 bits of each. `two` says so, a constant to the compiler. */
#include "kernels/tiles.h"

enum { BLOCK = 128 }; /* of the contraction */

/* ---- packing ------------------------------------------------------------------------------------------ */

static int max_of(int a, int b) { return a > b ? a : b; }
static int min_of(int a, int b) { return a < b ? a : b; }

enum { PAIRS = BLOCK / 2 * COLUMNS, TILES = (ROWS / TILE) * (BLOCK / DEPTH) * TILE * DEPTH }; /* from hi to lo */

/* ---- the product -------------------------------------------------------------------------------------- */

/* The part [*begin, *end) of the contraction that is not known to be zero for the tile at row m, column n. */
static void range_of(gmai_triangle triangle, int m, int n, int k, int *begin, int *end)
{
    *begin = 0;
    *end = k;
    if (triangle == GMAI_K_LE_M) *end = min_of(m + TILE, k);
    if (triangle == GMAI_K_GE_M) *begin = m;
    if (triangle == GMAI_K_LE_N) *end = min_of(n + TILE, k);
    if (triangle == GMAI_K_GE_N) *begin = n;
    if (triangle == GMAI_N_GE_M && n + TILE <= m) *end = 0;
}

/* 16 rows x up to 4 tiles of C; a: its row of tiles of A, k0: where the block begins; first: C counts as 0. */
GMAI_INLINE void row_of_tiles(float *c, ptrdiff_t ldc, int rows, int nvec, const uint16_t *a, const float *pairs, int k0,
                              int kn, const int *begin, const int *end, int first, int two)
{
    float whole[TILE * COLUMNS];
    float *d = c;
    ptrdiff_t ldd = ldc;
    if (rows < TILE) { /* tiles have 16 rows, C may end before */
        for (int m = 0; m < rows && !first; m++)
            for (int v = 0; v < nvec; v++) v_store(whole + m * COLUMNS + v * VL, v_load(c + m * ldc + v * VL));
        for (int m = first ? 0 : rows; m < TILE; m++)
            for (int v = 0; v < nvec; v++) v_store(whole + m * COLUMNS + v * VL, v_set1(0.0f));
        d = whole;
        ldd = COLUMNS;
    }
#define START(v)                                                              \
    if (v < nvec) {                                                           \
        if (first)                                                            \
            T_ZERO(v);                                                        \
        else                                                                  \
            T_LOAD(v, d + v * TILE, ldd * (ptrdiff_t)sizeof(float));          \
    }
    EACH_TILE(START)
    for (int k = 0; k < kn; k += DEPTH) {
        const int at = k0 + k;
        T_LOAD(4, a + (ptrdiff_t)(k / DEPTH) * TILE * DEPTH, 64);
        if (two) T_LOAD(6, a + TILES + (ptrdiff_t)(k / DEPTH) * TILE * DEPTH, 64);
#define MULTIPLY(v)                                                              \
    if (v < nvec && at < end[v] && at + DEPTH > begin[v]) {                      \
        const float *b = pairs + (ptrdiff_t)(k / 2) * COLUMNS + v * TILE;        \
        T_LOAD(5, b, COLUMNS * (ptrdiff_t)sizeof(float));                        \
        T_MULTIPLY(v, 4, 5);                                                     \
        if (two) {                                                               \
            T_MULTIPLY(v, 6, 5);                                                 \
            T_LOAD(7, b + PAIRS, COLUMNS * (ptrdiff_t)sizeof(float));            \
            T_MULTIPLY(v, 4, 7);                                                 \
        }                                                                        \
    }
        EACH_TILE(MULTIPLY)
    }
#define FINISH(v) \
    if (v < nvec) T_STORE(v, d + v * TILE, ldd * (ptrdiff_t)sizeof(float));
    EACH_TILE(FINISH)
    for (int m = 0; m < rows && d == whole; m++)
        for (int v = 0; v < nvec; v++) v_store(c + m * ldc + v * VL, v_load(whole + m * COLUMNS + v * VL));
}

/* C (+)= one term. Tiles are loaded well after they were written: a tile does not come out of the store buffer. */
GMAI_INLINE void add_term(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t, int add, gmai_triangle triangle,
                          int two)
{
    _Alignas(64) float pairs[2 * PAIRS];
    _Alignas(64) uint16_t tiles[2 * TILES];
    const int wide = COLUMNS / TILE;
    for (int m0 = 0; m0 < rows; m0 += ROWS)
        for (int k0 = 0; k0 < max_of(t->k, 1); k0 += BLOCK) {
            const int kn = min_of(BLOCK, t->k - k0), end = min_of(rows, m0 + ROWS);
            for (int m = m0; m < end; m += TILE)
                for (int k = 0; k < kn; k += DEPTH) {
                    if (triangle == GMAI_K_LE_M && k0 + k >= m + TILE) continue;
                    if (triangle == GMAI_K_GE_M && k0 + k + DEPTH <= m) continue;
                    pack_tile(t->a + m * t->am + (k0 + k) * t->ak, t->am, t->ak, min_of(TILE, rows - m), kn - k,
                              tiles + ((m - m0) / TILE * (BLOCK / DEPTH) + k / DEPTH) * TILE * DEPTH, two * TILES);
                }
            for (int v0 = 0; v0 < nvec; v0 += wide) {
                const int nv = min_of(wide, nvec - v0);
                pack_pairs(t->b + k0 * t->ldb + v0 * VL, t->ldb, kn, nv, pairs, two * PAIRS);
                for (int m = m0; m < end; m += TILE) {
                    int from[COLUMNS / TILE], to[COLUMNS / TILE];
                    for (int v = 0; v < nv; v++) range_of(triangle, m, (v0 + v) * TILE, t->k, &from[v], &to[v]);
                    row_of_tiles(c + m * ldc + v0 * VL, ldc, min_of(TILE, rows - m), nv,
                                 tiles + (m - m0) / TILE * (BLOCK / DEPTH) * TILE * DEPTH, pairs, k0, kn, from, to,
                                 k0 == 0 && !add, two);
                }
            }
        }
}

/* A function for each count of terms. */
static void add_one(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t, int add, gmai_triangle triangle)
{
    add_term(rows, nvec, c, ldc, t, add, triangle, 0);
}

static void add_two(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t, int add, gmai_triangle triangle)
{
    /* A single product is better added in f32. */
    if (t->k == 1)
        GMAI_K(product)(rows, nvec, c, ldc, t, NULL, NULL, add, triangle);
    else
        add_term(rows, nvec, c, ldc, t, add, triangle, 1);
}

typedef void adder(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t, int add, gmai_triangle triangle);

static void any_product(adder *add_to, int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                        const gmai_term *t1, int add, gmai_triangle triangle)
{
    const int fits0 = t0->am == 1 || t0->ak == 1, fits1 = !t1 || t1->am == 1 || t1->ak == 1;
    if (rows < TILE || (add && row_scale) || !fits0 || !fits1) {
        GMAI_K(product)(rows, nvec, c, ldc, t0, row_scale, t1, add, triangle);
        return;
    }
    /* What is wanted of C is known of both terms, what is zero in A or B of the last one only. */
    add_to(rows, nvec, c, ldc, t0, add, t1 && triangle != GMAI_N_GE_M ? GMAI_FULL : triangle);
    for (int m = 0; m < rows && row_scale; m++)
        for (int v = 0; v < nvec; v++) {
            float *p = c + m * ldc + v * VL;
            v_store(p, v_mul(v_load(p), v_set1(row_scale[m])));
        }
    if (t1) add_to(rows, nvec, c, ldc, t1, 1, triangle);
}

void GMAI_K(tile_product)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                          const gmai_term *t1, int add, gmai_triangle triangle)
{
    any_product(add_one, rows, nvec, c, ldc, t0, row_scale, t1, add, triangle);
}

void GMAI_K(tile_product_two)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                              const gmai_term *t1, int add, gmai_triangle triangle)
{
    any_product(add_two, rows, nvec, c, ldc, t0, row_scale, t1, add, triangle);
}

/* ---- the thread's tiles ------------------------------------------------------------------------------- */

unsigned GMAI_K(tile_on)(void)
{
    t_begin();
    return GMAI_K(flush_on)();
}

void GMAI_K(tile_restore)(unsigned before)
{
    GMAI_K(flush_restore)(before);
    t_end();
}
