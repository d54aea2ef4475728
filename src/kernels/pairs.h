/* Sums that keep what they round off, for kernel bodies. */
#ifndef GMA_KERNELS_PAIRS_H
#define GMA_KERNELS_PAIRS_H

/* a + b = s + e exactly (Knuth). */
static inline vf two_sum(vf a, vf b, vf *e)
{
    const vf s = v_add(a, b), bb = v_sub(s, a);
    *e = v_add(v_sub(a, v_sub(s, bb)), v_sub(b, bb));
    return s;
}

/* An infinite sum has no error term: Inf - Inf would turn it into NaN. e is finite exactly when 0 e = 0. */
static inline vf finite_or_0(vf e)
{
    const vf z = v_mul(e, v_set1(0.0f));
    return v_select_ge0(z, e, v_set1(0.0f));
}

#endif
