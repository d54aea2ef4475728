/* The feature maps of the Linear Transformer and of Performer: O(features x chunk) around the products. */
#include "kernels/decl.h"

#include "simd/math.h"

#define C GMAI_CHUNK

/* x + 1 for x > 0, e^x for x <= 0. exp sees min(x, 0), so it cannot overflow where it is not wanted. */
static inline vf elu_plus_1(vf x)
{
    const vf zero = v_set1(0.0f);
    const vf above = v_add(x, v_set1(1.0f)), below = v_exp(v_min(zero, x));
    /* -x >= 0: below. NaN: above, which is NaN. */
    return v_select_ge0(v_sub(zero, x), below, above);
}

void GMAI_K(elu_features)(const float *columns, int rows, int nvec, float *phi)
{
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < nvec; v++) {
            const ptrdiff_t at = (ptrdiff_t)i * C + v * VL;
            v_store(phi + at, elu_plus_1(v_load(columns + at)));
        }
}

/* The slope is 1 where phi = x + 1 > 1 and phi itself where phi = e^x <= 1: the smaller of the two. */
void GMAI_K(elu_backward)(const float *phi, float *dphi, int rows, int nvec, float *dot)
{
    for (int v = 0; v < nvec; v++) {
        vf sum = v_set1(0.0f);
        for (int i = 0; i < rows; i++) {
            const ptrdiff_t at = (ptrdiff_t)i * C + v * VL;
            const vf f = v_load(phi + at), d = v_load(dphi + at);
            sum = v_fma(f, d, sum);
            v_store(dphi + at, v_mul(v_min(v_set1(1.0f), f), d));
        }
        v_store(dot + v * VL, sum);
    }
}

void GMAI_K(square_sums)(const float *columns, int rows, int nvec, float factor, float offset, float *y)
{
    for (int v = 0; v < nvec; v++) {
        vf sum = v_set1(0.0f), bad = v_set1(0.0f);
        for (int i = 0; i < rows; i++) {
            const vf x = v_load(columns + (ptrdiff_t)i * C + v * VL);
            sum = v_fma(x, x, sum);
            bad = v_add(bad, v_sub(x, x)); /* 0, or NaN behind a value that is not finite */
        }
        v_store(y + v * VL, v_add(v_fma(v_set1(factor), sum, v_set1(offset)), bad));
    }
}

/* Products of finite inputs may overflow; against a shift that overflows as well the features are 0. */
static inline vf within_floats(vf x)
{
    return v_min(v_set1(3.0e38f), v_max(v_set1(-3.0e38f), x));
}

int GMAI_K(exp_features)(float *logits, int rows, int nvec, const float *shift)
{
    vf bad = v_set1(0.0f);
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < nvec; v++) {
            float *p = logits + (ptrdiff_t)i * C + v * VL;
            const vf e = v_exp(v_sub(within_floats(v_load(p)), v_load(shift + v * VL)));
            v_store(p, e);
            bad = v_add(bad, v_sub(e, e));
        }
    return v_all_finite(bad);
}

void GMAI_K(exp_features_scaled)(float *logits, int rows, int nvec, const float *shift, float log_eps,
                                 float *eps)
{
    for (int v = 0; v < nvec; v++) {
        float *p = logits + v * VL;
        /* 0, or NaN where the shift is: such a token has no features. */
        const vf s = v_load(shift + v * VL), bad = v_min(v_set1(0.0f), s);
        vf m = within_floats(v_load(p));
        for (int i = 1; i < rows; i++) m = v_max(m, within_floats(v_load(p + (ptrdiff_t)i * C)));
        const vf e = v_exp(v_add(v_sub(s, m), v_set1(log_eps)));
        v_store(eps + v * VL, v_min(v_set1(1.0e37f), v_max(v_set1(1.2e-38f), e)));
        for (int i = 0; i < rows; i++) {
            float *q = p + (ptrdiff_t)i * C;
            v_store(q, v_exp_negative(v_add(v_sub(within_floats(v_load(q)), m), bad)));
        }
    }
}

void GMAI_K(step_exp)(float *logits, int kp, float shift)
{
    const vf s = v_set1(shift);
    for (int k = 0; k < kp; k += VL) v_store(logits + k, v_exp(v_sub(within_floats(v_load(logits + k)), s)));
}

void GMAI_K(exp_backward)(const float *phi, float *dphi, int rows, int nvec, float *dot)
{
    for (int v = 0; v < nvec; v++) {
        vf sum = v_set1(0.0f);
        for (int i = 0; i < rows; i++) {
            const ptrdiff_t at = (ptrdiff_t)i * C + v * VL;
            const vf d = v_mul(v_load(phi + at), v_load(dphi + at));
            sum = v_add(sum, d);
            v_store(dphi + at, d);
        }
        v_store(dot + v * VL, sum);
    }
}
