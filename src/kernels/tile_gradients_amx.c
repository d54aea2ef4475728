/* Gradients of the mixture on tiles. With dl the gradient of the logits and t = x w - mw (see mixture.c), multiplied out:
 *
 *   sum_t  += w A1 - mw N                          A1 = sum dl x    A2 = sum dl x^2    N = sum dl     over tokens
 *   sum_tt += w (w A2 - mw A1) - mw (w A1 - mw N)
 *   dx      = 2 (sum dl w mw - x sum dl w^2)                                                          over components
 *
 * Like the logits this serves only where the squares are small. Each factor is two bf16 terms, of which hi hi, hi lo and lo hi
 * are summed; N is a product like the others, so that it sums the same dl. */
#include "kernels/tiles.h"

enum { TOKENS = C / 2 * COLUMNS, GROUP = C / DEPTH }; /* floats of a part of the tokens' pairs; tiles of a row of dl */

static int near_enough(const gmai_mixture *m, const float *rows, int n)
{
    if (!(m->tile_mu_bound <= TILE_LIMIT)) return 0;
    for (int i = 0; i < n; i += VL) {
        vf sum[VL];
        for (int j = 0; j < VL; j++) {
            const float *x = rows + (ptrdiff_t)(i + j) * m->rp;
            sum[j] = v_set1(0.0f);
            for (int r = 0; r < m->rp; r += VL) sum[j] = v_fma(v_mul(v_load(x + r), v_load(x + r)), v_load(m->tile_bound + r), sum[j]);
        }
        v_transpose(sum);
        for (int j = 1; j < VL; j++) sum[0] = v_add(sum[0], sum[j]);
        if (!within_limit(sum, 1)) return 0;
    }
    return 1;
}

/* Pairs of tokens, features of nv vectors: x in two terms, x^2 in two. */
static void pack_tokens(const float *rows, ptrdiff_t rp, int n, int nv, float *pairs)
{
    for (int j = 0; j < (n + DEPTH - 1) / DEPTH * DEPTH; j += 2, pairs += COLUMNS)
        for (int v = 0; v < nv; v++) {
            const float *x = rows + j * rp + v * VL;
            const vf zero = v_set1(0.0f), x0 = j < n ? v_load(x) : zero, x1 = j + 1 < n ? v_load(x + rp) : zero;
            put_pair(pairs + v * VL, x0, x1, TOKENS);
            put_pair(pairs + 2 * TOKENS + v * VL, v_mul(x0, x0), v_mul(x1, x1), TOKENS);
        }
}

/* Of 16 components, or fewer, and nv vectors of features. out: A1, A2 (16, 64), N (16, 16). */
static void add_sums(const float *w, const float *mw, ptrdiff_t rp, int components, int nv, const float *out, float *sum_t,
                     float *sum_tt)
{
    for (int i = 0; i < components; i++)
        for (int v = 0; v < nv; v++) {
            const ptrdiff_t at = i * rp + v * VL;
            const float *a = out + i * COLUMNS + v * VL;
            const vf a1 = v_load(a), a2 = v_load(a + TILE * COLUMNS), count = v_load(out + 2 * TILE * COLUMNS + i * TILE);
            const vf wv = v_load(w + at), mv = v_load(mw + at);
            const vf t = v_fnma(mv, count, v_mul(wv, a1)), u = v_fnma(mv, a1, v_mul(wv, a2));
            v_store(sum_t + at, v_add(v_load(sum_t + at), t));
            v_store(sum_tt + at, v_add(v_load(sum_tt + at), v_fnma(mv, t, v_mul(wv, u))));
        }
}

static void parameter_sums(const gmai_mixture *m, const float *rows, const float *dl, int n, float *sum_t, float *sum_tt)
{
    enum { OUT = 2 * TILE * COLUMNS + TILE * TILE };
    _Alignas(64) float pairs[4 * TOKENS], out[2 * OUT], ones[TILE * TILE];
    _Alignas(64) uint16_t tiles[2 * GROUP * TILE * DEPTH * (ROWS / TILE)];
    const ptrdiff_t rp = m->rp, lo = (ptrdiff_t)GROUP * TILE * DEPTH * (ROWS / TILE);
    const int depth = (n + DEPTH - 1) / DEPTH;
    for (int i = 0; i < TILE * TILE; i += VL) v_store(ones + i, v_pair_bf16(v_set1(1.0f), v_set1(1.0f)));
    for (int k0 = 0; k0 < m->k; k0 += ROWS) {
        const int end = m->k - k0 < ROWS ? m->k - k0 : ROWS;
        for (int k = 0; k < end; k += TILE)
            for (int d = 0; d < depth; d++)
                pack_tile(dl + (ptrdiff_t)(k0 + k) * C + d * DEPTH, C, 1, end - k, n - d * DEPTH,
                          tiles + ((ptrdiff_t)k / TILE * GROUP + d) * TILE * DEPTH, lo);
        for (int r = 0; r < m->rp; r += COLUMNS) {
            const int nv = m->rp - r < COLUMNS ? (m->rp - r) / VL : COLUMNS / VL;
            pack_tokens(rows + r, rp, n, nv, pairs);
            /* A tile is read one round after it was stored. */
            for (int k = 0; k < end + TILE; k += TILE) {
                if (k < end) {
                    const uint16_t *a = tiles + (ptrdiff_t)k / TILE * GROUP * TILE * DEPTH;
                    float *o = out + k / TILE % 2 * OUT;
                    T_ZERO(0);
                    T_LOAD(5, ones, 64);
                    for (int d = 0; d < depth; d++) {
                        T_LOAD(4, a + (ptrdiff_t)d * TILE * DEPTH, 64);
                        T_LOAD(6, a + lo + (ptrdiff_t)d * TILE * DEPTH, 64);
                        T_MULTIPLY(0, 4, 5);
                        T_MULTIPLY(0, 6, 5);
                    }
                    T_STORE(0, o + 2 * TILE * COLUMNS, 64);
                    multiply(o, COLUMNS, nv, depth, a, a + lo, pairs, m->tile_exact ? NULL : pairs + TOKENS, 0);
                    multiply(o + TILE * COLUMNS, COLUMNS, nv, depth, a, a + lo, pairs + 2 * TOKENS, pairs + 3 * TOKENS, 0);
                }
                if (k > 0) {
                    const int before = k - TILE;
                    const ptrdiff_t at = (k0 + before) * rp + r;
                    add_sums(m->w + at, m->mw + at, rp, end - before < TILE ? end - before : TILE, nv,
                             out + before / TILE % 2 * OUT, sum_t + at, sum_tt + at);
                }
            }
        }
    }
}

enum { DEEP = ROWS / DEPTH }; /* tiles of ROWS components */

/* Up to four tiles below each other, as in multiply(): weights are many, and so each tile of theirs is loaded once. */
GMAI_INLINE void column(float *c, int count, int depth, const uint16_t *a, ptrdiff_t lo, const float *b, ptrdiff_t b_lo, int add)
{
    const ptrdiff_t row = COLUMNS * (ptrdiff_t)sizeof(float), step = (ptrdiff_t)DEPTH / 2 * COLUMNS;
#define DOWN(i)                                         \
    if (i < count) {                                    \
        if (add)                                        \
            T_LOAD(i, c + i * TILE * COLUMNS, row);     \
        else                                            \
            T_ZERO(i);                                  \
    }
    EACH_TILE(DOWN)
    for (int d = 0; d < depth; d++) {
        T_LOAD(5, b + d * step, row);
        T_LOAD(7, b + b_lo + d * step, row);
#define SIDE(i)                                                         \
    if (i < count) {                                                    \
        const uint16_t *at = a + (i * DEEP + d) * TILE * DEPTH;         \
        T_LOAD(4, at, 64);                                              \
        T_MULTIPLY(i, 4, 5);                                            \
        T_MULTIPLY(i, 4, 7);                                            \
        T_LOAD(6, at + lo, 64);                                         \
        T_MULTIPLY(i, 6, 5);                                            \
    }
        EACH_TILE(SIDE)
    }
#define STAND(i) \
    if (i < count) T_STORE(i, c + i * TILE * COLUMNS, row);
    EACH_TILE(STAND)
}

static void inputs(const gmai_mixture *m, const float *rows, const float *dl, int n, float *dx)
{
    _Alignas(64) float square[C * COLUMNS], linear[C * COLUMNS];
    _Alignas(64) uint16_t tiles[2 * DEEP * TILE * DEPTH * (C / TILE)];
    const ptrdiff_t rp = m->rp, lo = (ptrdiff_t)DEEP * TILE * DEPTH * (C / TILE);
    const ptrdiff_t part = gmai_tile_weights(m->k, m->r) / 4, group = part / ((m->r + COLUMNS - 1) / COLUMNS);
    for (int r = 0; r < m->rp; r += COLUMNS) {
        const int nv = m->rp - r < COLUMNS ? (m->rp - r) / VL : COLUMNS / VL;
        for (int k0 = 0; k0 < m->k; k0 += ROWS) {
            const int kn = m->k - k0 < ROWS ? m->k - k0 : ROWS, depth = (kn + DEPTH - 1) / DEPTH;
            const float *w = m->tile_weights + r / COLUMNS * group + (ptrdiff_t)k0 / 2 * COLUMNS;
            for (int j = 0; j < n; j += TILE)
                for (int d = 0; d < depth; d++)
                    pack_tile(dl + (ptrdiff_t)(k0 + d * DEPTH) * C + j, 1, C, n - j, kn - d * DEPTH,
                              tiles + ((ptrdiff_t)j / TILE * DEEP + d) * TILE * DEPTH, lo);
            const int rows_of_tiles = (n + TILE - 1) / TILE;
            for (int v = 0; v < nv; v++) {
                column(square + v * TILE, rows_of_tiles, depth, tiles, lo, w + v * TILE, part, k0 > 0);
                column(linear + v * TILE, rows_of_tiles, depth, tiles, lo, w + 2 * part + v * TILE, part, k0 > 0);
            }
        }
        for (int j = 0; j < n; j++)
            for (int v = 0; v < nv; v++) {
                const ptrdiff_t at = j * rp + r + v * VL, from = j * COLUMNS + v * VL;
                const vf half = v_fnma(v_load(rows + at), v_load(square + from), v_load(linear + from));
                v_store(dx + at, v_add(half, half));
            }
    }
}

void GMAI_K(tile_mixture_backward)(const gmai_mixture *m, const float *rows, const float *dlogits, int n, float *dx,
                                   float *sum_t, float *sum_tt)
{
    if (!near_enough(m, rows, n)) {
        GMAI_K(mixture_backward)(m, rows, dlogits, n, dx, sum_t, sum_tt);
        return;
    }
    parameter_sums(m, rows, dlogits, n, sum_t, sum_tt);
    inputs(m, rows, dlogits, n, dx);
}
