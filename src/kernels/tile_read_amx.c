/* A chunk's products with the state. What its queries read, at once:  o = phi_q^T S + P V,  den += P 1,  P = tril(phi_q^T phi_k).
 *
 * Rows of P are tokens i here, not j: one packing of phi_q into tiles of A then serves both products with it, and P comes out of
 * tiles in the order in which it goes in again. Its sums are of the values rounded to bf16, which V is multiplied with. */
#include "kernels/tiles.h"

enum { DEEP = ROWS / DEPTH, AT = DEEP * TILE * DEPTH }; /* components at a time: ROWS; values of a row of tiles of phi_q */

static void fill_ones(float *ones)
{
    for (int i = 0; i < TILE * TILE; i += VL) v_store(ones + i, v_pair_bf16(v_set1(1.0f), v_set1(1.0f)));
}

/* The sums of 16 rows of A, `depth` tiles wide: one a row of the 16 x 16 at sums, in each of its columns. */
GMAI_INLINE void sum_rows(const uint16_t *a, int depth, const float *ones, float *sums)
{
    T_ZERO(0);
    T_LOAD(5, ones, 64);
    for (int e = 0; e < depth; e++) {
        T_LOAD(4, a + e * TILE * DEPTH, 64);
        T_MULTIPLY(0, 4, 5);
    }
    T_STORE(0, sums, 64);
}

/* O(n, d) (+)= A B for all tiles of tokens; depth of row i: at most `most`, and what lies on or below the diagonal. */
static void outputs(int n, int d, int ld, const uint16_t *a, const float *b, ptrdiff_t ldb, int kn, int causal, int add, float *o)
{
    _Alignas(64) float pairs[ROWS / 2 * COLUMNS];
    const int most = (kn + DEPTH - 1) / DEPTH;
    for (int c = 0; c < d; c += COLUMNS) {
        const int nv = d - c < COLUMNS ? (d - c + VL - 1) / VL : COLUMNS / VL;
        if (nv == 4)
            pack_pairs(b + c, ldb, kn, 4, pairs, 0);
        else
            pack_pairs(b + c, ldb, kn, nv, pairs, 0);
        for (int i = 0; i < n; i += TILE) {
            const int depth = causal ? i / DEPTH + 1 : most;
            if (nv == 4)
                multiply(o + (ptrdiff_t)i * ld + c, ld, 4, depth, a + i / TILE * AT, NULL, pairs, NULL, add);
            else
                multiply(o + (ptrdiff_t)i * ld + c, ld, nv, depth, a + i / TILE * AT, NULL, pairs, NULL, add);
        }
    }
}

void GMAI_K(tile_read)(int n, int k, int d, int ld, const float *phi_q, const float *phi_k, const float *v, const float *state,
                       float *o, float *den)
{
    _Alignas(64) uint16_t a[C / TILE * AT];
    _Alignas(64) float pairs[ROWS / 2 * COLUMNS], p[C * C], sums[C * TILE], ones[TILE * TILE];
    const int nvec = (n + VL - 1) / VL;
    for (int k0 = 0; k0 < k; k0 += ROWS) {
        const int kn = k - k0 < ROWS ? k - k0 : ROWS, depth = (kn + DEPTH - 1) / DEPTH;
        for (int i = 0; i < n; i += TILE)
            for (int e = 0; e < depth; e++)
                pack_tile(phi_q + (ptrdiff_t)(k0 + e * DEPTH) * C + i, 1, C, n - i, kn - e * DEPTH,
                          a + i / TILE * AT + e * TILE * DEPTH, 0);
        pack_pairs(phi_k + (ptrdiff_t)k0 * C, C, kn, nvec, pairs, 0);
        for (int i = 0; i < n; i += TILE)
            multiply(p + i * C, C, i / TILE + 1, depth, a + i / TILE * AT, NULL, pairs, NULL, k0 > 0);
        if (state) outputs(n, d, ld, a, state + (ptrdiff_t)k0 * ld, ld, kn, 0, k0 > 0, o);
    }
    for (int i = 0; i < nvec * TILE; i++) /* nothing above the diagonal */
        for (int j = 0; j <= i; j += DEPTH)
            v_store2_bf16(a + i / TILE * AT + j / DEPTH * TILE * DEPTH + i % TILE * DEPTH, v_loadn(p + i * C + j, i + 1 - j),
                          v_loadn(p + i * C + j + VL, i + 1 - j - VL));
    outputs(n, d, ld, a, v, ld, n, 1, state != NULL, o);
    fill_ones(ones);
    for (int i = 0; i < n; i += TILE) sum_rows(a + i / TILE * AT, i / DEPTH + 1, ones, sums + i * TILE);
    for (int i = 0; i < n; i++) den[i] += sums[i * TILE];
}

/* C += A B of 16 rows, or fewer: a tile would go beyond C then. */
static void add_rows(float *c, ptrdiff_t ldc, int rows, int nv, int depth, const uint16_t *a, const float *pairs)
{
    _Alignas(64) float whole[TILE * COLUMNS];
    if (rows >= TILE && nv == 4) {
        multiply(c, ldc, 4, depth, a, NULL, pairs, NULL, 1);
        return;
    }
    multiply(whole, COLUMNS, nv, depth, a, NULL, pairs, NULL, 0);
    for (int m = 0; m < rows && m < TILE; m++)
        for (int v = 0; v < nv; v++) {
            float *at = c + m * ldc + v * VL;
            v_store(at, v_add(v_load(at), v_load(whole + m * COLUMNS + v * VL)));
        }
}

/* state (k, ld) += phi v, and its column d += phi 1, of the same rounded phi. */
void GMAI_K(tile_write)(int n, int k, int d, int ld, const float *phi, const float *v, float *state)
{
    enum { DEPTHS = C / DEPTH };
    _Alignas(64) uint16_t a[2 * DEPTHS * TILE * DEPTH];
    _Alignas(64) float pairs[C / 2 * COLUMNS], ones[TILE * TILE], sums[2 * TILE * TILE];
    const int depth = (n + DEPTH - 1) / DEPTH, rows = (k + TILE - 1) / TILE * TILE;
    fill_ones(ones);
    for (int c = 0; c < d; c += COLUMNS) {
        const int nv = d - c < COLUMNS ? (d - c + VL - 1) / VL : COLUMNS / VL;
        pack_pairs(v + c, ld, n, nv, pairs, 0);
        /* Tiles of A one round ahead, sums one round behind: nothing is read just after it was written. */
        for (int m = -TILE; m < rows + TILE; m += TILE) {
            const int ahead = m + TILE, behind = m - TILE;
            if (ahead < rows) {
                for (int e = 0; e < depth; e++)
                    pack_tile(phi + (ptrdiff_t)ahead * C + e * DEPTH, C, 1, k - ahead, n - e * DEPTH,
                              a + ((ahead / TILE & 1) * DEPTHS + e) * TILE * DEPTH, 0);
                for (int i = ahead; i < ahead + TILE && i < k; i++)
                    for (int j = 0; j < nv; j++) __builtin_prefetch(state + (ptrdiff_t)i * ld + c + j * VL, 1);
            }
            if (m >= 0 && m < rows) {
                const uint16_t *at = a + (m / TILE & 1) * DEPTHS * TILE * DEPTH;
                add_rows(state + (ptrdiff_t)m * ld + c, ld, k - m, nv, depth, at, pairs);
                if (c == 0) sum_rows(at, depth, ones, sums + (m / TILE & 1) * TILE * TILE);
            }
            for (int i = 0; behind >= 0 && c == 0 && i < TILE && behind + i < k; i++)
                state[(ptrdiff_t)(behind + i) * ld + d] += sums[(behind / TILE & 1) * TILE * TILE + i * TILE];
        }
    }
}
