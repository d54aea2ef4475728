/* Softmax over the components of columns of tokens, for kernel bodies. */
#ifndef GMA_KERNELS_SOFTMAX_H
#define GMA_KERNELS_SOFTMAX_H

#include "kernels/decl.h"

#include "simd/math.h"

/* nv vectors of tokens at once: their maxima and sums stay in registers. exp2: 2^x for x <= 0, as exact as its caller needs;
 * the subtraction comes before log2 e, because a logit may be far larger than its distance from the top. */
GMAI_INLINE int softmax_block(float *l, int k, int nv, vf (*exp2)(vf))
{
    const vf log2_e = v_set1(1.44269504088896341f);
    vf top[4], sum[4];
    GMAI_UNROLL
    for (int v = 0; v < nv; v++) top[v] = v_load(l + v * VL);
    for (int i = 1; i < k; i++)
        GMAI_UNROLL
        for (int v = 0; v < nv; v++) top[v] = v_max(top[v], v_load(l + (ptrdiff_t)i * GMAI_CHUNK + v * VL));
    int bad = 0;
    GMAI_UNROLL
    for (int v = 0; v < nv; v++) {
        bad |= !v_all_finite(top[v]);
        sum[v] = v_set1(0.0f);
    }
    for (int i = 0; i < k; i++)
        GMAI_UNROLL
        for (int v = 0; v < nv; v++) {
            float *p = l + (ptrdiff_t)i * GMAI_CHUNK + v * VL;
            const vf e = exp2(v_mul(v_sub(v_load(p), top[v]), log2_e));
            v_store(p, e);
            sum[v] = v_add(sum[v], e);
        }
    GMAI_UNROLL
    for (int v = 0; v < nv; v++) sum[v] = v_div(v_set1(1.0f), sum[v]);
    for (int i = 0; i < k; i++)
        GMAI_UNROLL
        for (int v = 0; v < nv; v++) {
            float *p = l + (ptrdiff_t)i * GMAI_CHUNK + v * VL;
            v_store(p, v_mul(v_load(p), sum[v]));
        }
    return bad;
}

/* logits (k rows of GMAI_CHUNK tokens) become gamma; 1 when a token has no finite largest logit. */
GMAI_INLINE int softmax_columns(float *logits, int k, int nvec, vf (*exp2)(vf))
{
    int v = 0, bad = 0;
    for (; v + 4 <= nvec; v += 4) bad |= softmax_block(logits + v * VL, k, 4, exp2);
    for (; v < nvec; v++) bad |= softmax_block(logits + v * VL, k, 1, exp2);
    return bad;
}

#endif
