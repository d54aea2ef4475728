/* The vector vocabulary of src/kernels, one lane wide: plain C, for any CPU. See simd/README.md for the words.
 * GMAI_MK x GMAI_NV: the register blocking of the logits kernel (components x vectors of tokens);
 * GMAI_GM x GMAI_GN: that of the matrix product (rows x vectors of columns);
 * GMAI_KB: the components that the gradient of the mixture works on at once. */
#ifndef GMA_SIMD_SCALAR_H
#define GMA_SIMD_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VL 1
#define GMAI_MK 4
#define GMAI_NV 2
#define GMAI_GM 4
#define GMAI_GN 2
#define GMAI_KB 2

typedef float vf;

static inline vf v_load(const float *p) { return *p; }
static inline vf v_loadn(const float *p, int n) { return n > 0 ? *p : 0.0f; }
static inline void v_store(float *p, vf a) { *p = a; }
static inline void v_storen(float *p, vf a, int n)
{
    if (n > 0) *p = a;
}
static inline vf v_set1(float a) { return a; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_sqrt(vf a) { return sqrtf(a); }
/* Contracted or not, the scalar tier rounds twice: an fmaf() call without the instruction is very slow. */
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_fnma(vf a, vf b, vf c) { return c - a * b; }
/* The second operand when either is NaN, as on x86. */
static inline vf v_max(vf a, vf b) { return a > b ? a : b; }
static inline vf v_min(vf a, vf b) { return a < b ? a : b; }
static inline float v_sum(vf a) { return a; }
static inline vf v_round(vf a) { return rintf(a); }
/* a * 2^n for integral n in [-300, 300]; NaN in either gives NaN. */
static inline vf v_scale2(vf a, vf n)
{
    if (!(n >= -300.0f && n <= 300.0f)) return a * n;
    return ldexpf(a, (int)n);
}
/* The same where the result is normal. */
static inline vf v_scale2_normal(vf a, vf n) { return v_scale2(a, n); }
/* y = n + f with |f| <= 1/2: f, and 2^n, which is 0 below 2^-126. For y <= 127; NaN in f where y is. */
static inline vf v_split2(vf y, vf *whole)
{
    const vf z = v_max(-127.0f, y), n = rintf(z);
    const uint32_t bits = n <= 127.0f ? (uint32_t)((int32_t)n + 127) << 23 : 0;
    memcpy(whole, &bits, sizeof bits);
    return z - n;
}
static inline vf v_join2(vf a, vf whole) { return a * whole; }
static inline vf v_zero_below(vf x, float limit, vf y) { return x < limit ? 0.0f : y; }
/* x = m 2^e with m in [1, 2), for positive normal x. */
static inline vf v_exponent(vf x)
{
    int e;
    (void)frexpf(x, &e);
    return (float)(e - 1);
}
static inline vf v_mantissa(vf x)
{
    int e;
    return 2.0f * frexpf(x, &e);
}
/* a where m >= 0 ... b elsewhere (NaN counts as elsewhere). */
static inline vf v_select_ge0(vf m, vf a, vf b) { return m >= 0.0f ? a : b; }
/* 1 when every lane is finite. */
static inline int v_all_finite(vf a) { return fabsf(a) <= 3.40282347e38f; }
static inline vf v_load_bf16(const uint16_t *p)
{
    const uint32_t u = (uint32_t)*p << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline void v_store_bf16(uint16_t *p, vf a)
{
    uint32_t u;
    memcpy(&u, &a, sizeof u);
    *p = (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)((u >> 16) | 0x40u)
                                         : (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline void v_transpose(vf r[VL]) { (void)r; }

#endif
