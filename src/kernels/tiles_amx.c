/* Products in bf16 on tiles, for q, k, v stored as bf16: what they cost in accuracy stands in gma/base.h (GMA_ISA_AMX).
 *
 * A product's operands are f32 in L1 or L2; each is rounded to bf16 once a call, into the shapes that tiles want. Four
 * tiles of C stand side by side, so one tile of A serves 64 columns. Where a shape or an option does not fit, the kernel
 * in f32 does the work. */
#include "kernels/decl.h"

#include <math.h>

#define C GMAI_CHUNK

enum { TILE = 16, DEPTH = 32, ROWS = 64, COLUMNS = 64, BLOCK = 128 }; /* BLOCK: of the contraction */

/* ---- packing ------------------------------------------------------------------------------------------ */

/* B(k0 .. k0 + kn, columns) -> [pair][64]; kn up to BLOCK, filled with zeros to a multiple of DEPTH. */
static void pack_pairs(const float *b, ptrdiff_t ldb, int kn, int nvec, float *pairs)
{
    const int padded = (kn + DEPTH - 1) / DEPTH * DEPTH;
    for (int k = 0; k < padded; k += 2)
        for (int v = 0; v < nvec; v++) {
            const float *p = b + k * ldb + v * VL;
            const vf low = k < kn ? v_load(p) : v_set1(0.0f), high = k + 1 < kn ? v_load(p + ldb) : v_set1(0.0f);
            v_store(pairs + (ptrdiff_t)(k / 2) * COLUMNS + v * VL, v_pair_bf16(low, high));
        }
}

/* A(m, k) = a[m am + k ak], 16 rows (n of which exist) x 32 -> a tile; am or ak is 1. */
static void pack_tile(const float *a, ptrdiff_t am, ptrdiff_t ak, int n, int kn, uint16_t *tile)
{
    if (ak == 1) {
        for (int m = 0; m < TILE; m++)
            for (int k = 0; k < DEPTH; k += VL)
                v_store_bf16(tile + m * DEPTH + k, m < n ? v_loadn(a + m * am + k, kn - k) : v_set1(0.0f));
        return;
    }
    vf pair[TILE];
    for (int p = 0; p < TILE; p++) {
        const float *at = a + 2 * p * ak;
        const vf low = 2 * p < kn ? v_loadn(at, n) : v_set1(0.0f);
        pair[p] = v_pair_bf16(low, 2 * p + 1 < kn ? v_loadn(at + ak, n) : v_set1(0.0f));
    }
    v_transpose(pair);
    for (int m = 0; m < TILE; m++) v_store((float *)(void *)(tile + m * DEPTH), pair[m]);
}

/* ---- the product -------------------------------------------------------------------------------------- */

static int max_of(int a, int b) { return a > b ? a : b; }
static int min_of(int a, int b) { return a < b ? a : b; }

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

/* C (+)= one term. */
static void add_term(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t, int add, gmai_triangle triangle)
{
    _Alignas(64) float pairs[BLOCK / 2 * COLUMNS];
    _Alignas(64) uint16_t tiles[BLOCK / DEPTH * TILE * DEPTH];
    for (int v0 = 0; v0 < nvec; v0 += COLUMNS / TILE)
        for (int k0 = 0; k0 < max_of(t->k, 1); k0 += BLOCK) {
            const int kn = min_of(BLOCK, t->k - k0), nv = min_of(COLUMNS / TILE, nvec - v0);
            pack_pairs(t->b + k0 * t->ldb + v0 * VL, t->ldb, kn, nv, pairs);
            for (int m = 0; m < rows; m += TILE) {
                int begin[COLUMNS / TILE], end[COLUMNS / TILE], from = t->k, to = 0;
                for (int v = 0; v < nv; v++) {
                    range_of(triangle, m, (v0 + v) * TILE, t->k, &begin[v], &end[v]);
                    from = min_of(from, begin[v]);
                    to = max_of(to, end[v]);
                }
                for (int k = 0; k < kn; k += DEPTH)
                    if (k0 + k < to && k0 + k + DEPTH > from)
                        pack_tile(t->a + m * t->am + (k0 + k) * t->ak, t->am, t->ak, min_of(TILE, rows - m),
                                  kn - k, tiles + (ptrdiff_t)k * TILE);
                row_of_tiles(c + m * ldc + v0 * VL, ldc, min_of(TILE, rows - m), nv, tiles, pairs, k0, kn, begin, end,
                             k0 == 0 && !add);
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

/* ---- logits ------------------------------------------------------------------------------------------- */

/* The whitened logit, multiplied out:  konst - sum (x w - mw)^2  =  (konst - sum mw^2) + x . 2 w mw - x^2 . w^2.
 * Every factor is split into two bf16 terms, and of the four products of terms the three larger ones are summed: 16 bits
 * of each factor. What is left out is below 2^-16 of the sums of squares, so the form serves only where those are small. */
enum { PARTS = 4 }; /* hi, lo of 2 w mw; hi, lo of -w^2. And of x; of x^2 */
static const float LIMIT = 0.01f * 65536.0f;

static int r_blocks(int r) { return (r + DEPTH - 1) / DEPTH; }

size_t GMAI_K(tile_floats)(int64_t k, int64_t r)
{
    const size_t blocks = (size_t)r_blocks((int)r), tiles = (size_t)gmai_pad(k) / TILE;
    return (size_t)gmai_pad(r) + (size_t)gmai_pad(k) * TILE + tiles * blocks * PARTS * TILE * DEPTH / 2;
}

static float round_bf16(float x)
{
    float y[VL];
    v_store(y, v_round_bf16(v_set1(x)));
    return y[0];
}

static void put_bf16(uint16_t *at, float x)
{
    uint16_t y[VL];
    v_store_bf16(y, v_set1(x));
    *at = y[0];
}

void GMAI_K(tile_prepare)(gmai_mixture *m, float *memory)
{
    const int kp = (int)gmai_pad(m->k), rp = m->rp, blocks = r_blocks(m->r);
    float *bound = memory, *bias = bound + rp;
    uint16_t *rows = (uint16_t *)(void *)(bias + (ptrdiff_t)kp * TILE);
    memset(memory, 0, GMAI_K(tile_floats)(m->k, m->r) * sizeof(float));
    m->tile_mu_bound = 0.0f;
    for (int k = 0; k < m->k; k++) {
        double mu = 0.0;
        for (int r = 0; r < m->r; r++) {
            const double w = (double)m->w[(ptrdiff_t)k * rp + r], mw = (double)m->mw[(ptrdiff_t)k * rp + r];
            const double linear = 2.0 * w * mw, square = -(w * w);
            uint16_t *tile = rows + ((ptrdiff_t)(k / TILE) * blocks + r / DEPTH) * PARTS * TILE * DEPTH +
                             k % TILE * DEPTH + r % DEPTH;
            const float hi = round_bf16((float)linear), hi2 = round_bf16((float)square);
            put_bf16(tile, hi);
            put_bf16(tile + TILE * DEPTH, (float)(linear - (double)hi));
            put_bf16(tile + 2 * TILE * DEPTH, hi2);
            put_bf16(tile + 3 * TILE * DEPTH, (float)(square - (double)hi2));
            mu += mw * mw;
            /* A NaN stays, and sends every token to the kernel in f32. */
            if (!((float)(-2.0 * square) <= bound[r])) bound[r] = (float)(-2.0 * square);
        }
        if (!((float)(2.0 * mu) <= m->tile_mu_bound)) m->tile_mu_bound = (float)(2.0 * mu);
        for (int i = 0; i < TILE; i++) bias[(ptrdiff_t)k * TILE + i] = (float)((double)m->konst[k] - mu);
    }
    m->tile_bound = bound;
    m->tile_bias = bias;
    m->tile_rows = rows;
}

/* Is |x - c|^2 / sigma^2 (of the narrowest component in each dimension) small enough for every token? */
static int within_limit(const gmai_mixture *m, const float *columns, int nvec)
{
    if (!m->tile_rows || !(m->tile_mu_bound <= LIMIT)) return 0;
    for (int v = 0; v < nvec; v++) {
        float lanes[VL];
        vf sum = v_set1(0.0f);
        for (int r = 0; r < m->r; r++) {
            const vf x = v_load(columns + (ptrdiff_t)r * C + v * VL);
            sum = v_fma(v_mul(x, x), v_set1(m->tile_bound[r]), sum);
        }
        v_store(lanes, sum);
        for (int l = 0; l < VL; l++)
            if (!(lanes[l] <= LIMIT)) return 0;
    }
    return 1;
}

/* Features r0 .. r0 + 32 of x and x^2, each as two terms, in pairs. */
static void split_columns(const gmai_mixture *m, const float *columns, int r0, int nvec, float *pairs)
{
    const ptrdiff_t part = (ptrdiff_t)DEPTH / 2 * COLUMNS;
    for (int p = 0; p < DEPTH / 2; p++)
        for (int v = 0; v < nvec; v++) {
            vf hi[2], lo[2], hi2[2], lo2[2];
            for (int i = 0; i < 2; i++) {
                const int r = r0 + 2 * p + i;
                const vf x = r < m->r ? v_load(columns + (ptrdiff_t)r * C + v * VL) : v_set1(0.0f), x2 = v_mul(x, x);
                hi[i] = v_round_bf16(x);
                lo[i] = v_sub(x, hi[i]);
                hi2[i] = v_round_bf16(x2);
                lo2[i] = v_sub(x2, hi2[i]);
            }
            float *at = pairs + (ptrdiff_t)p * COLUMNS + v * VL;
            v_store(at, v_pair_bf16(hi[0], hi[1]));
            v_store(at + part, v_pair_bf16(lo[0], lo[1]));
            v_store(at + 2 * part, v_pair_bf16(hi2[0], hi2[1]));
            v_store(at + 3 * part, v_pair_bf16(lo2[0], lo2[1]));
        }
}

void GMAI_K(tile_logits)(const gmai_mixture *m, const float *columns, int nvec, float *logits, const gmai_ahead *ahead)
{
    _Alignas(64) float pairs[PARTS * DEPTH / 2 * COLUMNS];
    const ptrdiff_t part = (ptrdiff_t)DEPTH / 2 * COLUMNS, tile = (ptrdiff_t)TILE * DEPTH;
    const ptrdiff_t row = C * (ptrdiff_t)sizeof(float);
    const int blocks = r_blocks(m->r), tiles = (int)gmai_pad(m->k) / TILE;
    if (!within_limit(m, columns, nvec)) {
        GMAI_K(logits)(m, columns, nvec, logits, ahead);
        return;
    }
    for (int b = 0; b < blocks; b++) {
        split_columns(m, columns, b * DEPTH, nvec, pairs);
        for (int k = 0; k < tiles; k++) {
            const uint16_t *a = m->tile_rows + ((ptrdiff_t)k * blocks + b) * PARTS * tile;
            float *c = logits + (ptrdiff_t)k * TILE * C;
#define BIAS(v)                                                                          \
    if (v < nvec) {                                                                      \
        if (b == 0)                                                                      \
            T_LOAD(v, m->tile_bias + (ptrdiff_t)k * TILE * TILE, 64);                    \
        else                                                                             \
            T_LOAD(v, c + v * TILE, row);                                                \
    }
            EACH_TILE(BIAS)
#define WITH(v)                                      \
    if (v < nvec) {                                  \
        T_LOAD(5, x + v * TILE, row);                \
        T_MULTIPLY(v, 4, 5);                         \
    }
            /* parts of A x parts of B: hi hi, hi lo, lo hi; linear, then square */
            static const int with[6][2] = {{0, 0}, {0, 1}, {1, 0}, {2, 2}, {2, 3}, {3, 2}};
            for (int i = 0; i < 6; i++) {
                const float *x = pairs + with[i][1] * part;
                T_LOAD(4, a + with[i][0] * tile, 64);
                EACH_TILE(WITH)
            }
#define KEEP(v) \
    if (v < nvec) T_STORE(v, c + v * TILE, row);
            EACH_TILE(KEEP)
        }
    }
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
