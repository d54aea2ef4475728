/* exp, log and softplus on the vector vocabulary. Included after simd/<isa>.h.
 * NaN in gives NaN out: v_max and v_min give their second operand when either is NaN, and x stands second. */
#ifndef GMA_SIMD_MATH_H
#define GMA_SIMD_MATH_H

/* e^x.  n = round(x / ln 2), r = x - n ln 2 in two steps (the first constant has 9 bits: n times it is exact),
 * e^r = 1 + r + r^2 P(r) with P of degree 4, fitted on |r| <= ln 2 / 2 to the least largest relative error (3e-9).
 * Within 1 ulp where the result is normal; below that it goes to 0, above the largest float to infinity. */
static inline vf v_exp_reduced(vf x, vf *n)
{
    *n = v_round(v_mul(x, v_set1(1.44269504088896341f)));
    vf r = v_fnma(*n, v_set1(0.693359375f), x);
    r = v_fnma(*n, v_set1(-2.12194440e-4f), r);
    vf p = v_set1(1.3814583941e-3f);
    p = v_fma(p, r, v_set1(8.3687239349e-3f));
    p = v_fma(p, r, v_set1(4.1668388731e-2f));
    p = v_fma(p, r, v_set1(1.6666520574e-1f));
    p = v_fma(p, r, v_set1(4.9999993444e-1f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_fma(p, r, v_set1(1.0f));
}

static inline vf v_exp(vf x)
{
    vf n;
    const vf p = v_exp_reduced(v_min(v_set1(89.0f), v_max(v_set1(-104.5f), x)), &n);
    return v_scale2(p, n);
}

/* e^x for x <= 0, as a softmax needs it: cheaper, and exactly 0 below -87 (1.6e-38, where normal numbers end). */
static inline vf v_exp_negative(vf x)
{
    vf n;
    const vf p = v_exp_reduced(v_max(v_set1(-87.0f), x), &n);
    return v_zero_below(x, -87.0f, v_scale2_normal(p, n));
}

/* 2^x for x <= 127, 1 exactly at 0: x = n + f, 2^f = 1 + f P(f) with P of degree 4 on |f| <= 1/2 (a minimax fit, 9.2e-8
 * relative). Below 2^-126 it goes to 0, or through subnormals where the CPU keeps them. Of a product x = y log2 e the
 * rounding is in the result: its relative error grows with |x| while the result shrinks, and the absolute error of e^y
 * stays below 1e-7. Cheaper than v_exp and v_exp_negative where the caller can scale by log2 e on the way. */
static inline vf v_exp2(vf x)
{
    vf n;
    const vf f = v_split2(x, &n);
    vf p = v_set1(1.3264759304551436e-3f);
    p = v_fma(p, f, v_set1(9.67153540006187e-3f));
    p = v_fma(p, f, v_set1(5.550733882236968e-2f));
    p = v_fma(p, f, v_set1(2.402224175174443e-1f));
    p = v_fma(p, f, v_set1(6.931469774026923e-1f));
    return v_join2(v_fma(p, f, v_set1(1.0f)), n);
}

/* 2 atanh(s) = log((1 + s) / (1 - s)) for |s| <= 1/3, by its series to s^17: 1e-10 relative at the ends. */
static inline vf v_log_ratio(vf s)
{
    const vf z = v_mul(s, s);
    vf p = v_set1(2.0f / 17.0f);
    p = v_fma(p, z, v_set1(2.0f / 15.0f));
    p = v_fma(p, z, v_set1(2.0f / 13.0f));
    p = v_fma(p, z, v_set1(2.0f / 11.0f));
    p = v_fma(p, z, v_set1(2.0f / 9.0f));
    p = v_fma(p, z, v_set1(2.0f / 7.0f));
    p = v_fma(p, z, v_set1(2.0f / 5.0f));
    p = v_fma(p, z, v_set1(2.0f / 3.0f));
    return v_fma(v_mul(p, z), s, v_add(s, s));
}

/* log x for positive normal x: x = m 2^e with m in [1, 2); log m = log(m/sqrt 2) + log(sqrt 2). */
static inline vf v_log(vf x)
{
    const vf e = v_exponent(x);
    const vf m = v_mul(v_mantissa(x), v_set1(0.707106781f));
    const vf l = v_log_ratio(v_div(v_sub(m, v_set1(1.0f)), v_add(m, v_set1(1.0f))));
    return v_fma(v_add(e, v_set1(0.5f)), v_set1(0.693147181f), l);
}

/* log(1 + u) for u in [0, 1]: u P(u) with P of degree 9 (a minimax fit, 5e-9 relative). No division. */
static inline vf v_log1p(vf u)
{
    vf p = v_set1(-3.2440251670770778e-3f);
    p = v_fma(p, u, v_set1(1.9851462915539742e-2f));
    p = v_fma(p, u, v_set1(-5.695953220129013e-2f));
    p = v_fma(p, u, v_set1(1.0603655129671097e-1f));
    p = v_fma(p, u, v_set1(-1.5305592119693756e-1f));
    p = v_fma(p, u, v_set1(1.967593878507614e-1f));
    p = v_fma(p, u, v_set1(-2.4954134225845337e-1f));
    p = v_fma(p, u, v_set1(3.332996368408203e-1f));
    p = v_fma(p, u, v_set1(-4.999990165233612e-1f));
    p = v_fma(p, u, v_set1(1.0f));
    return v_mul(p, u);
}

/* log(1 + e^x) = max(x, 0) + log1p(u), u = e^-|x| in (0, 1]. */
static inline vf v_softplus(vf x)
{
    const vf zero = v_set1(0.0f);
    return v_add(v_max(zero, x), v_log1p(v_exp(v_min(v_sub(zero, x), x))));
}

/* 1 / (1 + e^-x) */
static inline vf v_sigmoid(vf x)
{
    const vf one = v_set1(1.0f);
    return v_div(one, v_add(one, v_exp(v_sub(v_set1(0.0f), x))));
}

#endif
