/* What softmax attention does to a tile of scores between its products: keys as rows, queries as columns. */
#include "kernels/decl.h"

#include "simd/math.h"

#define C GMAI_CHUNK

/* A column keeps its reference until a score exceeds it by this much: e^8 more in a sum of floats costs no digits, and
 * what was summed before need hardly ever be scaled. */
static const float slack = 8.0f;

GMAI_INLINE void tile_softmax_block(float *s, int rows, int nv, float *top, float *sum, float *factor)
{
    vf m[2], t[2], total[2];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        m[v] = v_load(s + v * VL);
        total[v] = v_set1(0.0f);
    }
    for (int i = 1; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) m[v] = v_max(m[v], v_load(s + (ptrdiff_t)i * C + v * VL));
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        /* A NaN keeps the reference; it shows in the exponential. */
        const vf old = v_load(top + v * VL);
        t[v] = v_select_ge0(v_sub(m[v], v_add(old, v_set1(slack))), m[v], old);
        v_store(top + v * VL, t[v]);
        v_store(factor + v * VL, v_exp_negative(v_sub(old, t[v])));
    }
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            float *p = s + (ptrdiff_t)i * C + v * VL;
            const vf e = v_exp_negative(v_sub(v_load(p), t[v]));
            v_store(p, e);
            total[v] = v_add(total[v], e);
        }
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        float *p = sum + v * VL;
        v_store(p, v_fma(v_load(p), v_load(factor + v * VL), total[v]));
    }
}

int GMAI_K(tile_softmax)(float *s, int rows, int nvec, float *top, float *sum, float *factor)
{
    int v = 0, changed = 0;
    for (; v + 2 <= nvec; v += 2) tile_softmax_block(s + v * VL, rows, 2, top + v * VL, sum + v * VL, factor + v * VL);
    for (; v < nvec; v++) tile_softmax_block(s + v * VL, rows, 1, top + v * VL, sum + v * VL, factor + v * VL);
    for (int i = 0; i < nvec * VL; i++) changed |= factor[i] != 1.0f;
    return changed;
}

GMAI_INLINE void tile_backward_block(float *s, float *dp, int rows, int nv, const float *lse, const float *minus_delta)
{
    vf l[2], d[2];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        l[v] = v_load(lse + v * VL);
        d[v] = v_load(minus_delta + v * VL);
    }
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const ptrdiff_t at = (ptrdiff_t)i * C + v * VL;
            const vf p = v_exp_negative(v_sub(v_load(s + at), l[v]));
            v_store(s + at, p);
            v_store(dp + at, v_mul(p, v_add(v_load(dp + at), d[v])));
        }
}

void GMAI_K(tile_backward)(float *s, float *dp, int rows, int nvec, const float *lse, const float *minus_delta)
{
    int v = 0;
    for (; v + 2 <= nvec; v += 2)
        tile_backward_block(s + v * VL, dp + v * VL, rows, 2, lse + v * VL, minus_delta + v * VL);
    for (; v < nvec; v++)
        tile_backward_block(s + v * VL, dp + v * VL, rows, 1, lse + v * VL, minus_delta + v * VL);
}

void GMAI_K(rotate)(float *rows, int ld, int n, int half, const float *base, const float *offset, int ldo, float sign)
{
    for (int i = 0; i < n; i++) {
        float *x = rows + (ptrdiff_t)i * ld, *y = x + half;
        const float *oc = offset + (ptrdiff_t)i * 2 * ldo, *os = oc + ldo;
        for (int r = 0; r < half; r += VL) {
            const int left = half - r;
            const vf bc = v_load(base + r), bs = v_load(base + ldo + r), c1 = v_load(oc + r), s1 = v_load(os + r);
            /* cos and sin of the sum of both angles */
            const vf c = v_fnma(bs, s1, v_mul(bc, c1)), s = v_mul(v_set1(sign), v_fma(bs, c1, v_mul(bc, s1)));
            const vf a = left >= VL ? v_load(x + r) : v_loadn(x + r, left);
            const vf b = left >= VL ? v_load(y + r) : v_loadn(y + r, left);
            const vf p = v_fnma(b, s, v_mul(a, c)), q = v_fma(a, s, v_mul(b, c));
            if (left >= VL) {
                v_store(x + r, p);
                v_store(y + r, q);
            } else {
                v_storen(x + r, p, left);
                v_storen(y + r, q, left);
            }
        }
    }
}
