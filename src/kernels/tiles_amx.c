/* Products in bf16 on tiles, for q, k, v stored as bf16: what they cost in accuracy stands in gma/base.h (GMA_ISA_AMX).
 *
 * A product's operands are f32 in L1 or L2; each is rounded to bf16 once a call, into the shapes that tiles want. Four
 * tiles of C stand side by side, so one tile of A serves 64 columns. Where a shape or an option does not fit, the kernel
 * in f32 does the work. */
#include "kernels/decl.h"

#define C GMAI_CHUNK

enum { TILE = 16, DEPTH = 32, COLUMNS = 64, ROWS = 128, BLOCK = 128 }; /* BLOCK: of the contraction */

/* ---- packing ------------------------------------------------------------------------------------------ */

static int max_of(int a, int b) { return a > b ? a : b; }
static int min_of(int a, int b) { return a < b ? a : b; }

/* B(0 .. kn, columns) -> [pair][64]; kn up to BLOCK, filled with zeros to a multiple of DEPTH. */
static void pack_pairs(const float *b, ptrdiff_t ldb, int kn, int nvec, float *pairs)
{
    const int padded = (kn + DEPTH - 1) / DEPTH * DEPTH;
    for (int k = 0; k < padded; k += 2, b += 2 * ldb, pairs += COLUMNS) {
        if (k + 1 < kn) {
            for (int v = 0; v < nvec; v++)
                v_store(pairs + v * VL, v_pair_bf16(v_load(b + v * VL), v_load(b + ldb + v * VL)));
            continue;
        }
        for (int v = 0; v < nvec; v++)
            v_store(pairs + v * VL, v_pair_bf16(k < kn ? v_load(b + v * VL) : v_set1(0.0f), v_set1(0.0f)));
    }
}

/* A(m, k) = a[m am + k ak], 16 rows (n of which exist) x 32 (kn of which exist) -> a tile; am or ak is 1. */
static void pack_tile(const float *a, ptrdiff_t am, ptrdiff_t ak, int n, int kn, uint16_t *tile)
{
    const int whole = n >= TILE && kn >= DEPTH;
    if (ak == 1) {
        const vf zero = v_set1(0.0f);
        for (int m = 0; m < TILE; m++, a += am)
            if (whole)
                v_store2_bf16(tile + m * DEPTH, v_load(a), v_load(a + VL));
            else
                v_store2_bf16(tile + m * DEPTH, m < n ? v_loadn(a, kn) : zero, m < n ? v_loadn(a + VL, kn - VL) : zero);
        return;
    }
    vf pair[TILE];
    for (int p = 0; p < TILE; p++, a += 2 * ak) {
        if (whole) {
            pair[p] = v_pair_bf16(v_load(a), v_load(a + ak));
            continue;
        }
        const vf low = 2 * p < kn ? v_loadn(a, n) : v_set1(0.0f);
        pair[p] = v_pair_bf16(low, 2 * p + 1 < kn ? v_loadn(a + ak, n) : v_set1(0.0f));
    }
    v_transpose(pair);
    for (int m = 0; m < TILE; m++) v_store((float *)(void *)(tile + m * DEPTH), pair[m]);
}

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

#define EACH_TILE(X) X(0) X(1) X(2) X(3)

/* 16 rows x up to 4 tiles of C; a: its row of tiles of A, k0: where the block begins; first: C counts as 0. */
static void row_of_tiles(float *c, ptrdiff_t ldc, int rows, int nvec, const uint16_t *a, const float *pairs, int k0,
                         int kn, const int *begin, const int *end, int first)
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
#define MULTIPLY(v)                                                                                              \
    if (v < nvec && at < end[v] && at + DEPTH > begin[v]) {                                                      \
        T_LOAD(5, pairs + (ptrdiff_t)(k / 2) * COLUMNS + v * TILE, COLUMNS * (ptrdiff_t)sizeof(float));          \
        T_MULTIPLY(v, 4, 5);                                                                                     \
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
static void add_term(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t, int add, gmai_triangle triangle)
{
    _Alignas(64) float pairs[BLOCK / 2 * COLUMNS];
    _Alignas(64) uint16_t tiles[(ROWS / TILE) * (BLOCK / DEPTH) * TILE * DEPTH];
    const int wide = COLUMNS / TILE;
    for (int m0 = 0; m0 < rows; m0 += ROWS)
        for (int k0 = 0; k0 < max_of(t->k, 1); k0 += BLOCK) {
            const int kn = min_of(BLOCK, t->k - k0), end = min_of(rows, m0 + ROWS);
            for (int m = m0; m < end; m += TILE)
                for (int k = 0; k < kn; k += DEPTH) {
                    if (triangle == GMAI_K_LE_M && k0 + k >= m + TILE) continue;
                    if (triangle == GMAI_K_GE_M && k0 + k + DEPTH <= m) continue;
                    pack_tile(t->a + m * t->am + (k0 + k) * t->ak, t->am, t->ak, min_of(TILE, rows - m), kn - k,
                              tiles + ((m - m0) / TILE * (BLOCK / DEPTH) + k / DEPTH) * TILE * DEPTH);
                }
            for (int v0 = 0; v0 < nvec; v0 += wide) {
                const int nv = min_of(wide, nvec - v0);
                pack_pairs(t->b + k0 * t->ldb + v0 * VL, t->ldb, kn, nv, pairs);
                for (int m = m0; m < end; m += TILE) {
                    int from[COLUMNS / TILE], to[COLUMNS / TILE];
                    for (int v = 0; v < nv; v++) range_of(triangle, m, (v0 + v) * TILE, t->k, &from[v], &to[v]);
                    row_of_tiles(c + m * ldc + v0 * VL, ldc, min_of(TILE, rows - m), nv,
                                 tiles + (m - m0) / TILE * (BLOCK / DEPTH) * TILE * DEPTH, pairs, k0, kn, from, to,
                                 k0 == 0 && !add);
                }
            }
        }
}

void GMAI_K(tile_product)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                          const gmai_term *t1, int add, gmai_triangle triangle)
{
    const int fits0 = t0->am == 1 || t0->ak == 1, fits1 = !t1 || t1->am == 1 || t1->ak == 1;
    if (rows < TILE || (add && row_scale) || !fits0 || !fits1) {
        GMAI_K(product)(rows, nvec, c, ldc, t0, row_scale, t1, add, triangle);
        return;
    }
    add_term(rows, nvec, c, ldc, t0, add, t1 ? GMAI_FULL : triangle);
    for (int m = 0; m < rows && row_scale; m++)
        for (int v = 0; v < nvec; v++) {
            float *p = c + m * ldc + v * VL;
            v_store(p, v_mul(v_load(p), v_set1(row_scale[m])));
        }
    if (t1) add_term(rows, nvec, c, ldc, t1, 1, triangle);
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
