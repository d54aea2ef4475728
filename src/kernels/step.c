/* One token at a time: bound by reading parameters and sums, so each is read once a token. */
#include "kernels/decl.h"

#include "kernels/pairs.h"
#include "simd/math.h"

/* ---- the sums ------------------------------------------------------------------------------------------ */

enum { Y_WIDE = 8, Y_NARROW = 4 };

/* One row of nj vectors: the block moves on, and both parts go into y. */
GMAI_INLINE void sums_row(int scaled, int update, vf f, float g, float q, float q_base, const float *v, float *block,
                          const float *base, int nj, vf *y)
{
    const vf gi = v_set1(g), qi = v_set1(q), qb = v_set1(q_base);
#pragma GCC unroll 8
    for (int j = 0; j < nj; j++) {
        vf b = v_load(block + j * VL);
        if (scaled) b = v_mul(f, b);
        if (update) {
            b = v_fma(gi, v_load(v + j * VL), b);
            v_store(block + j * VL, b);
        }
        y[j] = v_fma(qi, b, y[j]);
        y[j] = v_fma(qb, v_load(base + j * VL), y[j]);
    }
}

/* nj vectors of columns from `at` on; two rows at once where one would wait for its own sums. */
GMAI_INLINE void sums_columns(const gmai_step_sums *s, int scaled, int update, float factor, const float *g,
                              const float *v, const float *q, const float *q_base, int at, int nj, float *out)
{
    const vf f = v_set1(factor);
    const int rows = nj < Y_WIDE ? 2 : 1;
    const ptrdiff_t ld = s->ld;
    const float *base = s->base + at;
    float *block = s->block + at;
    vf y[2][Y_WIDE];
#pragma GCC unroll 8
    for (int j = 0; j < nj; j++) y[0][j] = y[1][j] = v_set1(0.0f);
    int k = 0;
    for (; k + rows <= s->k; k += rows) {
        sums_row(scaled, update, f, update ? g[k] : 0.0f, q[k], q_base[k], v + at, block, base, nj, y[0]);
        block += ld;
        base += ld;
        if (rows == 1) continue;
        sums_row(scaled, update, f, update ? g[k + 1] : 0.0f, q[k + 1], q_base[k + 1], v + at, block, base, nj, y[1]);
        block += ld;
        base += ld;
    }
    if (rows == 2 && k < s->k)
        sums_row(scaled, update, f, update ? g[k] : 0.0f, q[k], q_base[k], v + at, block, base, nj, y[0]);
#pragma GCC unroll 8
    for (int j = 0; j < nj; j++) v_store(out + at + j * VL, rows == 2 ? v_add(y[0][j], y[1][j]) : y[0][j]);
}

GMAI_INLINE float sums_all(const gmai_step_sums *s, int scaled, int update, float factor, const float *g,
                           const float *v, const float *q, const float *q_base, float *y)
{
    const int nvec = (s->d + VL - 1) / VL;
    int j = 0;
    for (; j + Y_WIDE <= nvec; j += Y_WIDE)
        sums_columns(s, scaled, update, factor, g, v, q, q_base, j * VL, Y_WIDE, y);
    for (; j + Y_NARROW <= nvec; j += Y_NARROW)
        sums_columns(s, scaled, update, factor, g, v, q, q_base, j * VL, Y_NARROW, y);
    for (; j < nvec; j++) sums_columns(s, scaled, update, factor, g, v, q, q_base, j * VL, 1, y);
    vf z = v_set1(0.0f);
    for (int k = 0; k < s->kp; k += VL) {
        vf b = v_load(s->z_block + k);
        if (scaled) b = v_mul(v_set1(factor), b);
        if (update) {
            b = v_add(b, v_load(g + k));
            v_store(s->z_block + k, b);
        }
        z = v_fma(v_load(q + k), b, v_fma(v_load(q_base + k), v_load(s->z_base + k), z));
    }
    return v_sum(z);
}

float GMAI_K(step_sums)(const gmai_step_sums *s, float factor, const float *g, const float *v, const float *q,
                        const float *q_base, float *y)
{
    /* Three copies, in which the compiler knows what is to be done. */
    if (!g) return sums_all(s, 0, 0, 1.0f, g, v, q, q_base, y);
    if (factor == 1.0f) return sums_all(s, 0, 1, 1.0f, g, v, q, q_base, y);
    return sums_all(s, 1, 1, factor, g, v, q, q_base, y);
}

void GMAI_K(step_fold)(float *hi, float *lo, float factor, float factor_lo, float *block, size_t n)
{
    const vf f = v_set1(factor), fl = v_set1(factor_lo);
    for (size_t i = 0; i < n; i += VL) {
        vf h = v_load(hi + i), l = v_load(lo + i), e;
        const vf p = v_mul(f, h);
        l = v_fma(f, l, finite_or_0(v_fma(f, h, v_sub(v_set1(0.0f), p))));
        l = v_add(l, finite_or_0(v_mul(fl, h)));
        const vf s = two_sum(p, v_load(block + i), &e);
        h = two_sum(s, v_add(l, finite_or_0(e)), &e);
        v_store(hi + i, h);
        v_store(lo + i, finite_or_0(e));
        v_store(block + i, v_set1(0.0f));
    }
}

void GMAI_K(step_read)(const float *s, const float *g, int k, int ld, float *y)
{
    for (int j = 0; j < ld; j += VL) {
        vf a0 = v_set1(0.0f), a1 = v_set1(0.0f);
        int i = 0;
        for (; i + 2 <= k; i += 2) {
            a0 = v_fma(v_set1(g[i]), v_load(s + (ptrdiff_t)i * ld + j), a0);
            a1 = v_fma(v_set1(g[i + 1]), v_load(s + (ptrdiff_t)(i + 1) * ld + j), a1);
        }
        if (i < k) a0 = v_fma(v_set1(g[i]), v_load(s + (ptrdiff_t)i * ld + j), a0);
        v_store(y + j, v_add(a0, a1));
    }
}

/* ---- phi of the mixture ------------------------------------------------------------------------------------ */

enum { BLOCK = 16, BV = BLOCK / VL, BLOCK_NV = VL == 8 ? 2 : VL == 16 ? 4 : 1 };

/* nb blocks of 16 components x nt tokens: each weight that is read serves all tokens. */
GMAI_INLINE void logits_blocks(const float *x, int rp, int nt, int r, int kp, const float *weights, const float *konst,
                               int k, int nb, float *logits)
{
    vf sum[2][BLOCK_NV * BV];
#pragma GCC unroll 16
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 16
        for (int i = 0; i < nb * BV; i++) sum[t][i] = v_set1(0.0f);
    for (int j = 0; j < r; j++) {
        const float *w = weights + ((ptrdiff_t)k * r + (ptrdiff_t)j * BLOCK) * 2;
#pragma GCC unroll 16
        for (int i = 0; i < nb * BV; i++) {
            const float *p = w + (ptrdiff_t)(i / BV) * r * 2 * BLOCK + i % BV * VL;
            const vf wi = v_load(p), mw = v_load(p + BLOCK);
#pragma GCC unroll 16
            for (int t = 0; t < nt; t++) {
                const vf u = v_fnma(v_set1(x[(ptrdiff_t)t * rp + j]), wi, mw);
                sum[t][i] = v_fnma(u, u, sum[t][i]);
            }
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 16
        for (int i = 0; i < nb * BV; i++)
            v_store(logits + (ptrdiff_t)t * kp + k + i * VL, v_add(v_load(konst + k + i * VL), sum[t][i]));
}

GMAI_INLINE void logits_tokens(const float *x, int rp, int nt, int r, int kp, const float *weights, const float *konst,
                               float *logits)
{
    int k = 0;
    for (; k + BLOCK_NV * BLOCK <= kp; k += BLOCK_NV * BLOCK)
        logits_blocks(x, rp, nt, r, kp, weights, konst, k, BLOCK_NV, logits);
    for (; k < kp; k += BLOCK) logits_blocks(x, rp, nt, r, kp, weights, konst, k, 1, logits);
}

void GMAI_K(step_logits)(const float *x, int rp, int n, int r, int kp, const float *weights, const float *konst,
                         float *logits)
{
    int t = 0;
    for (; t + 2 <= n; t += 2)
        logits_tokens(x + (ptrdiff_t)t * rp, rp, 2, r, kp, weights, konst, logits + (ptrdiff_t)t * kp);
    if (t < n) logits_tokens(x + (ptrdiff_t)t * rp, rp, 1, r, kp, weights, konst, logits + (ptrdiff_t)t * kp);
}

void GMAI_K(step_softmax)(float *logits, int n, int kp)
{
    for (int t = 0; t < n; t++, logits += kp) {
        float lanes[VL];
        vf top = v_load(logits), sum = v_set1(0.0f);
        for (int k = VL; k < kp; k += VL) top = v_max(top, v_load(logits + k));
        v_store(lanes, top);
        for (int l = 1; l < VL; l++) lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
        top = v_set1(lanes[0]);
        for (int k = 0; k < kp; k += VL) {
            const vf e = v_exp_negative(v_sub(v_load(logits + k), top));
            v_store(logits + k, e);
            sum = v_add(sum, e);
        }
        const vf inverse = v_set1(1.0f / v_sum(sum));
        for (int k = 0; k < kp; k += VL) v_store(logits + k, v_mul(v_load(logits + k), inverse));
    }
}
