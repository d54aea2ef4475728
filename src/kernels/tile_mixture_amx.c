/* The mixture on tiles: logits in two bf16 terms of each factor, and their softmax. */
#include "kernels/softmax.h"
#include "kernels/tiles.h"

/* ---- logits ------------------------------------------------------------------------------------------- */

/* The whitened logit, multiplied out:  konst - sum (x w - mw)^2  =  (konst - sum mw^2) + x . 2 w mw - x^2 . w^2.
 * Every factor is split into two bf16 terms, and of the four products of terms the three larger ones are summed: 16 bits
 * of each factor. What is left out is below 2^-16 of the sums of squares, so the form serves only where those are small.
 * Without a centre x is bf16 as it was stored: it has no second term, and the two terms of x^2 are all of it. */
enum { PARTS = 4 }; /* hi, lo of 2 w mw; hi, lo of -w^2. And of x; of x^2 */
enum { BLOCKS = 4, BLOCK = DEPTH / 2 * COLUMNS }; /* of DEPTH features, split at a time; floats of one, for one part */

static int r_blocks(int r) { return (r + DEPTH - 1) / DEPTH; }

size_t GMAI_K(tile_floats)(int64_t k, int64_t r)
{
    const size_t blocks = (size_t)r_blocks((int)r), tiles = (size_t)gmai_pad(k) / TILE;
    return blocks * DEPTH + (size_t)gmai_pad(k) * TILE + tiles * blocks * PARTS * TILE * DEPTH / 2 +
           (size_t)gmai_tile_weights((int)k, (int)r);
}

/* hi and lo of two vectors, as 32 values each. */
static void put_split(uint16_t *hi, uint16_t *lo, vf x0, vf x1)
{
    float back[DEPTH];
    v_store2_bf16(hi, x0, x1);
    v_store(back, v_load_bf16(hi));
    v_store(back + VL, v_load_bf16(hi + VL));
    v_store2_bf16(lo, v_sub(x0, v_load(back)), v_sub(x1, v_load(back + VL)));
}

/* For the gradients: pairs of components, (2, 2 terms, R / 64, K / 2, 64) of w^2 and of w mw; zero where there is none. */
static void prepare_weights(const gmai_mixture *m, float *weights)
{
    const ptrdiff_t rp = m->rp, part = gmai_tile_weights(m->k, m->r) / 4, group = part / ((m->r + COLUMNS - 1) / COLUMNS);
    for (int r = 0; r < m->rp; r += VL)
        for (int k = 0; k < m->k; k += 2) {
            const vf zero = v_set1(0.0f), w0 = v_load(m->w + k * rp + r), mw0 = v_load(m->mw + k * rp + r);
            const vf w1 = k + 1 < m->k ? v_load(m->w + (k + 1) * rp + r) : zero;
            const vf mw1 = k + 1 < m->k ? v_load(m->mw + (k + 1) * rp + r) : zero;
            float *at = weights + r / COLUMNS * group + (ptrdiff_t)k / 2 * COLUMNS + r % COLUMNS;
            put_pair(at, v_mul(w0, w0), v_mul(w1, w1), part);
            put_pair(at + 2 * part, v_mul(w0, mw0), v_mul(w1, mw1), part);
        }
}

void GMAI_K(tile_prepare)(gmai_mixture *m, float *memory)
{
    const int kp = (int)gmai_pad(m->k), rp = m->rp, blocks = r_blocks(m->r);
    float *bound = memory, *bias = bound + (ptrdiff_t)blocks * DEPTH;
    uint16_t *rows = (uint16_t *)(void *)(bias + (ptrdiff_t)kp * TILE);
    memset(memory, 0, GMAI_K(tile_floats)(m->k, m->r) * sizeof(float));
    m->tile_mu_bound = 0.0f;
    for (int k = 0; k < m->k; k++) {
        vf squares = v_set1(0.0f);
        for (int b = 0; b < blocks; b++) {
            vf linear[2], square[2];
            for (int i = 0; i < 2; i++) {
                const int r = b * DEPTH + i * VL;
                const vf zero = v_set1(0.0f), w = r < rp ? v_load(m->w + (ptrdiff_t)k * rp + r) : zero;
                const vf mw = r < rp ? v_load(m->mw + (ptrdiff_t)k * rp + r) : zero, w2 = v_mul(w, w);
                linear[i] = v_mul(v_add(w, w), mw);
                square[i] = v_sub(zero, w2);
                squares = v_fma(mw, mw, squares);
                /* A NaN stays, and sends every token to the kernel in f32. */
                v_store(bound + r, v_max(v_add(w2, w2), v_load(bound + r)));
            }
            uint16_t *tile = rows + ((ptrdiff_t)(k / TILE) * blocks + b) * PARTS * TILE * DEPTH + k % TILE * DEPTH;
            put_split(tile, tile + TILE * DEPTH, linear[0], linear[1]);
            put_split(tile + 2 * TILE * DEPTH, tile + 3 * TILE * DEPTH, square[0], square[1]);
        }
        const float mu = v_sum(squares);
        if (!(2.0f * mu <= m->tile_mu_bound)) m->tile_mu_bound = 2.0f * mu;
        v_store(bias + (ptrdiff_t)k * TILE, v_set1(m->konst[k] - mu));
    }
    float *weights = (float *)(void *)(rows + (ptrdiff_t)kp / TILE * blocks * PARTS * TILE * DEPTH);
    prepare_weights(m, weights);
    m->tile_weights = weights;
    m->tile_bound = bound;
    m->tile_bias = bias;
    m->tile_rows = rows;
    m->tile_exact = m->center == NULL;
}

/* Without a centre tokens come as pairs of features, columns of C pairs: bf16 as stored, ready to be multiplied. */
int GMAI_K(tile_pack)(const gmai_rows *src, int n, int width, const uint8_t *keep, const float *center, float *rows, int ld,
                      float *columns)
{
    if (center || !columns) return GMAI_K(pack)(src, n, width, keep, center, rows, ld, columns);
    const int finite = GMAI_K(pack)(src, n, width, keep, NULL, rows, ld, NULL);
    for (int i = 0; i < n; i += VL)
        for (int r = 0; r < width; r += DEPTH) {
            vf pairs[VL];
            for (int j = 0; j < VL; j++) {
                const float *x = rows + (ptrdiff_t)(i + j) * ld + r;
                pairs[j] = v_words_bf16(v_load(x), r + VL < ld ? v_load(x + VL) : v_set1(0.0f));
            }
            v_transpose(pairs);
            for (int p = 0; p < VL; p++) v_store(columns + (ptrdiff_t)(r / 2 + p) * C + i, pairs[p]);
        }
    return finite;
}

/* Pairs of features -> columns, in place. */
static void unpair(float *columns, int r_count, int nvec)
{
    for (int p = (r_count - 1) / 2; p >= 0; p--)
        for (int v = 0; v < nvec; v++) {
            const vf x = v_load(columns + (ptrdiff_t)p * C + v * VL);
            v_store(columns + (ptrdiff_t)2 * p * C + v * VL, v_pair_low(x));
            if (2 * p + 1 < r_count) v_store(columns + (ptrdiff_t)(2 * p + 1) * C + v * VL, v_pair_high(x));
        }
}

/* The terms of x^2, of DEPTH features in pairs; near(token) += |x|^2 / sigma^2 (of the narrowest component in each
 * dimension). x has 8 bits, x^2 thus 16. */
GMAI_INLINE void split_pairs(const gmai_mixture *m, const float *x, int r0, int nv, float *hi, float *lo, vf *near)
{
    vf sum[4];
    GMAI_UNROLL
    for (int v = 0; v < nv; v++) sum[v] = near[v];
    for (int p = 0; p < DEPTH / 2; p++, x += C, hi += COLUMNS, lo += COLUMNS) {
        const vf bound0 = v_set1(m->tile_bound[r0 + 2 * p]), bound1 = v_set1(m->tile_bound[r0 + 2 * p + 1]);
        GMAI_UNROLL
        for (int v = 0; v < nv; v++) {
            const vf pair = v_load(x + v * VL);
            const vf x0 = v_pair_low(pair), x1 = v_pair_high(pair), s0 = v_mul(x0, x0), s1 = v_mul(x1, x1);
            const vf t0 = v_pair_high(s0), t1 = v_pair_high(s1);
            sum[v] = v_fma(s1, bound1, v_fma(s0, bound0, sum[v]));
            v_store(hi + v * VL, v_pair_cut(s0, s1));
            v_store(lo + v * VL, v_pair_cut(v_sub(s0, t0), v_sub(s1, t1)));
        }
    }
    GMAI_UNROLL
    for (int v = 0; v < nv; v++) near[v] = sum[v];
}

/* Features r0 .. r0 + 32 of x and x^2, each as two terms, in pairs; near as above. */
static void split_block(const gmai_mixture *m, const float *columns, int r0, int nvec, float *pairs, vf *near)
{
    const ptrdiff_t part = BLOCKS * BLOCK;
    for (int p = 0; p < DEPTH / 2; p++) {
        const int r = r0 + 2 * p, two = r + 1 < m->r, one = r < m->r;
        const vf zero = v_set1(0.0f), bound0 = v_set1(m->tile_bound[r]), bound1 = v_set1(m->tile_bound[r + 1]);
        for (int v = 0; v < nvec; v++) {
            const float *x = columns + (ptrdiff_t)r * C + v * VL;
            float *at = pairs + (ptrdiff_t)p * COLUMNS + v * VL;
            const vf x0 = one ? v_load(x) : zero, x1 = two ? v_load(x + C) : zero;
            const vf s0 = v_mul(x0, x0), s1 = v_mul(x1, x1), hi = v_pair_bf16(x0, x1), hi2 = v_pair_bf16(s0, s1);
            near[v] = v_fma(s1, bound1, v_fma(s0, bound0, near[v]));
            v_store(at, hi);
            v_store(at + part, v_pair_bf16(v_sub(x0, v_pair_low(hi)), v_sub(x1, v_pair_high(hi))));
            v_store(at + 2 * part, hi2);
            v_store(at + 3 * part, v_pair_bf16(v_sub(s0, v_pair_low(hi2)), v_sub(s1, v_pair_high(hi2))));
        }
    }
}

/* 16 components x up to 4 tiles of tokens, features of nb blocks; first: c starts with the bias. */
GMAI_INLINE void logits_row(const uint16_t *a, const float *bias, const float *const *parts, int nb, int nvec, int exact, int first,
                       float *c)
{
    const ptrdiff_t tile = (ptrdiff_t)TILE * DEPTH;
    const ptrdiff_t row = C * (ptrdiff_t)sizeof(float), pair_row = COLUMNS * (ptrdiff_t)sizeof(float);
    /* parts of A x parts of B: hi hi, hi lo, lo hi; linear, then square */
    static const int with[6][2] = {{0, 1}, {0, 0}, {1, 0}, {2, 2}, {2, 3}, {3, 2}};
#define START(v)                                       \
    if (v < nvec) {                                    \
        if (first)                                     \
            T_LOAD(v, bias, 64);                       \
        else                                           \
            T_LOAD(v, c + v * TILE, row);              \
    }
    EACH_TILE(START)
    for (int b = 0; b < nb; b++, a += PARTS * tile)
        GMAI_UNROLL
        for (int i = exact; i < 6; i++) {
            const float *x = parts[with[i][1]] + (ptrdiff_t)b * BLOCK;
            T_LOAD(4, a + with[i][0] * tile, 64);
#define WITH(v)                                      \
    if (v < nvec) {                                  \
        T_LOAD(5, x + v * TILE, pair_row);           \
        T_MULTIPLY(v, 4, 5);                         \
    }
            EACH_TILE(WITH)
        }
#define KEEP(v) \
    if (v < nvec) T_STORE(v, c + v * TILE, row);
    EACH_TILE(KEEP)
}

/* The parts of blocks b0 .. b0 + nb of the tokens. */
static void split(const gmai_mixture *m, const float *columns, int b0, int nb, int nvec, float *pairs, vf *near)
{
    for (int b = 0; b < nb; b++, pairs += BLOCK) {
        const int r0 = (b0 + b) * DEPTH;
        if (!m->tile_exact) {
            split_block(m, columns, r0, nvec, pairs, near);
            continue;
        }
        const float *x = columns + (ptrdiff_t)r0 / 2 * C;
        float *hi = pairs + 2 * BLOCKS * BLOCK, *lo = hi + BLOCKS * BLOCK;
        int v = 0;
        for (; v + 4 <= nvec; v += 4) split_pairs(m, x + v * VL, r0, 4, hi + v * VL, lo + v * VL, near + v);
        for (; v < nvec; v++) split_pairs(m, x + v * VL, r0, 1, hi + v * VL, lo + v * VL, near + v);
    }
}

void GMAI_K(tile_logits)(const gmai_mixture *m, float *columns, int nvec, float *logits, const gmai_ahead *ahead)
{
    _Alignas(64) float pairs[PARTS * BLOCKS * BLOCK];
    const int blocks = r_blocks(m->r), tiles = (int)gmai_pad(m->k) / TILE;
    vf near[COLUMNS / VL];
    for (int v = 0; v < COLUMNS / VL; v++) near[v] = v_set1(0.0f);
    int ok = m->tile_mu_bound <= TILE_LIMIT;
    for (int b0 = 0; b0 < blocks && ok; b0 += BLOCKS) {
        const int nb = blocks - b0 < BLOCKS ? blocks - b0 : BLOCKS;
        const float *parts[PARTS];
        for (int i = 0; i < PARTS; i++) parts[i] = pairs + i * BLOCKS * BLOCK;
        if (m->tile_exact) parts[0] = columns + (ptrdiff_t)b0 * BLOCK;
        split(m, columns, b0, nb, nvec, pairs, near);
        ok = within_limit(near, nvec);
        for (int k = 0; k < tiles && ok; k++) {
            if (b0 == 0) gmai_fetch_ahead(ahead, k, tiles);
            const uint16_t *a = m->tile_rows + ((ptrdiff_t)k * blocks + b0) * PARTS * TILE * DEPTH;
            const float *bias = m->tile_bias + (ptrdiff_t)k * TILE * TILE;
            float *c = logits + (ptrdiff_t)k * TILE * C;
            if (!m->tile_exact) /* 0, 1, 4: known to the compiler */
                logits_row(a, bias, parts, nb, nvec, 0, b0 == 0, c);
            else if (nvec == 4)
                logits_row(a, bias, parts, nb, 4, 1, b0 == 0, c);
            else
                logits_row(a, bias, parts, nb, nvec, 1, b0 == 0, c);
        }
    }
    if (ok) return;
    if (m->tile_exact) unpair(columns, m->r, nvec);
    GMAI_K(logits)(m, columns, nvec, logits, ahead);
}

/* ---- softmax ------------------------------------------------------------------------------------------ */

/* 2^x for x <= 0, as good as a result needs that is rounded to bf16 afterwards: 2^f = 1 + f P(f) on 0 <= f < 1 with P of
 * degree 2, 9e-5 relative at worst; 1 exactly at 0. */
static inline vf exp2_coarse(vf x)
{
    const vf f = v_fraction(x);
    vf p = v_set1(0.077119089663028717f);
    p = v_fma(p, f, v_set1(0.227564394474029541f));
    p = v_fma(p, f, v_set1(0.695146143436431885f));
    return v_scale2_floor(v_fma(p, f, v_set1(1.0f)), x);
}

int GMAI_K(tile_gammas)(float *logits, int k, int nvec) { return softmax_columns(logits, k, nvec, exp2_coarse); }
