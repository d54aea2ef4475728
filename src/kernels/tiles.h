/* What the bodies of tier amx share: shapes of tiles, rounding and packing. */
#ifndef GMA_KERNELS_TILES_H
#define GMA_KERNELS_TILES_H

#include "kernels/decl.h"

#include <math.h>

#define C GMAI_CHUNK

/* A tile of A: 16 rows of 32 bf16. Pairs, that is B: rows of 64 columns, four tiles side by side. ROWS of A are packed at a
 * time. */
enum { TILE = 16, DEPTH = 32, COLUMNS = 64, ROWS = 128 };

#define EACH_TILE(X) X(0) X(1) X(2) X(3)

/* Where x^2 is multiplied out: largest |x - c|^2 / sigma^2 and |mu - c|^2 / sigma^2. */
#define TILE_LIMIT (0.01f * 65536.0f)

/* All lanes at most that, and no NaN. */
static inline int within_limit(const vf *near, int nvec)
{
    for (int v = 0; v < nvec; v++) {
        const vf ok = v_select_ge0(v_sub(v_set1(TILE_LIMIT), near[v]), v_set1(0.0f), v_set1(INFINITY));
        if (!v_all_finite(ok)) return 0;
    }
    return 1;
}

/* Floats of gmai_mixture.tile_weights: two terms each of w^2 and of w mw. */
static inline ptrdiff_t gmai_tile_weights(int k, int r)
{
    return (ptrdiff_t)4 * ((k + DEPTH - 1) / DEPTH) * (DEPTH / 2) * ((r + COLUMNS - 1) / COLUMNS) * COLUMNS;
}

/* A pair; lo > 0: its second term too, so many floats further on. */
GMAI_INLINE void put_pair(float *pairs, vf low, vf high, ptrdiff_t lo)
{
    const vf hi = v_pair_bf16(low, high);
    v_store(pairs, hi);
    if (lo) v_store(pairs + lo, v_pair_bf16(v_sub(low, v_pair_low(hi)), v_sub(high, v_pair_high(hi))));
}

/* A(m, k) = a[m am + k ak], 16 rows (n of which exist) x 32 (kn of which exist) -> a tile; am or ak is 1. lo > 0: its second
 * term too, so many values further on. */
GMAI_INLINE void pack_tile(const float *a, ptrdiff_t am, ptrdiff_t ak, int n, int kn, uint16_t *tile, ptrdiff_t lo)
{
    const int whole = n >= TILE && kn >= DEPTH;
    const vf zero = v_set1(0.0f);
    if (ak == 1) {
        for (int m = 0; m < TILE; m++, a += am, tile += DEPTH) {
            const vf x0 = whole ? v_load(a) : m < n ? v_loadn(a, kn) : zero;
            const vf x1 = whole ? v_load(a + VL) : m < n ? v_loadn(a + VL, kn - VL) : zero;
            v_store2_bf16(tile, x0, x1);
            if (lo) v_store2_bf16(tile + lo, v_sub(x0, v_load_bf16(tile)), v_sub(x1, v_load_bf16(tile + VL)));
        }
        return;
    }
    vf first[TILE], second[TILE];
    for (int p = 0; p < TILE; p++, a += 2 * ak) {
        const vf x0 = whole ? v_load(a) : 2 * p < kn ? v_loadn(a, n) : zero;
        const vf x1 = whole ? v_load(a + ak) : 2 * p + 1 < kn ? v_loadn(a + ak, n) : zero;
        first[p] = v_pair_bf16(x0, x1);
        if (lo) second[p] = v_pair_bf16(v_sub(x0, v_pair_low(first[p])), v_sub(x1, v_pair_high(first[p])));
    }
    v_transpose(first);
    for (int m = 0; m < TILE; m++) v_store((float *)(void *)(tile + m * DEPTH), first[m]);
    if (!lo) return;
    v_transpose(second);
    for (int m = 0; m < TILE; m++) v_store((float *)(void *)(tile + lo + m * DEPTH), second[m]);
}

/* C(16, 64) (+)= (hi + lo) B + hi B_lo; lo, B_lo NULL: 0. depth: tiles along the contraction. */
GMAI_INLINE void multiply(float *c, ptrdiff_t ldc, int nv, int depth, const uint16_t *hi, const uint16_t *lo, const float *b,
                          const float *b_lo, int add)
{
    const ptrdiff_t row = COLUMNS * (ptrdiff_t)sizeof(float), c_row = ldc * (ptrdiff_t)sizeof(float);
    const ptrdiff_t step = (ptrdiff_t)DEPTH / 2 * COLUMNS;
#define BEGIN(v)                              \
    if (v < nv) {                             \
        if (add)                              \
            T_LOAD(v, c + v * TILE, c_row);   \
        else                                  \
            T_ZERO(v);                        \
    }
    EACH_TILE(BEGIN)
    for (int d = 0; d < depth; d++) {
        T_LOAD(4, hi + (ptrdiff_t)d * TILE * DEPTH, 64);
        if (lo) T_LOAD(6, lo + (ptrdiff_t)d * TILE * DEPTH, 64);
#define TERMS(v)                                            \
    if (v < nv) {                                           \
        T_LOAD(5, b + d * step + v * TILE, row);            \
        T_MULTIPLY(v, 4, 5);                                \
        if (lo) T_MULTIPLY(v, 6, 5);                        \
        if (b_lo) {                                         \
            T_LOAD(7, b_lo + d * step + v * TILE, row);     \
            T_MULTIPLY(v, 4, 7);                            \
        }                                                   \
    }
        EACH_TILE(TERMS)
    }
#define END(v) \
    if (v < nv) T_STORE(v, c + v * TILE, c_row);
    EACH_TILE(END)
}

/* B(0 .. kn, columns) -> [pair][64], filled with zeros to a multiple of DEPTH. lo: as for put_pair. */
GMAI_INLINE void pack_pairs(const float *b, ptrdiff_t ldb, int kn, int nvec, float *pairs, ptrdiff_t lo)
{
    const int padded = (kn + DEPTH - 1) / DEPTH * DEPTH;
    const vf zero = v_set1(0.0f);
    for (int k = 0; k < padded; k += 2, b += 2 * ldb, pairs += COLUMNS)
        for (int v = 0; v < nvec; v++) {
            if (k + 1 < kn)
                put_pair(pairs + v * VL, v_load(b + v * VL), v_load(b + ldb + v * VL), lo);
            else
                put_pair(pairs + v * VL, k < kn ? v_load(b + v * VL) : zero, zero, lo);
        }
}

#endif
