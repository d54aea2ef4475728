/* The vector vocabulary of src/kernels for AArch64 NEON: 4 lanes, 32 registers. See simd/README.md. */
#ifndef GMA_SIMD_NEON_H
#define GMA_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define VL 4
#define GMAI_MK 4
#define GMAI_NV 4
#define GMAI_GM 6
#define GMAI_GN 4
#define GMAI_KB 5

typedef float32x4_t vf;

static inline vf v_load(const float *p) { return vld1q_f32(p); }
static inline vf v_loadn(const float *p, int n)
{
    float t[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (n > 0) memcpy(t, p, sizeof(float) * (size_t)(n < 4 ? n : 4));
    return vld1q_f32(t);
}
static inline void v_store(float *p, vf a) { vst1q_f32(p, a); }
static inline void v_storen(float *p, vf a, int n)
{
    float t[4];
    vst1q_f32(t, a);
    if (n > 0) memcpy(p, t, sizeof(float) * (size_t)(n < 4 ? n : 4));
}
static inline vf v_set1(float a) { return vdupq_n_f32(a); }
static inline vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf v_sqrt(vf a) { return vsqrtq_f32(a); }
static inline vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf v_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
/* The second operand when either is NaN, as on x86: vmaxq would give NaN for either. */
static inline vf v_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf v_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline float v_sum(vf a) { return vaddvq_f32(a); }
static inline vf v_round(vf a) { return vrndnq_f32(a); }
static inline vf v_scale2(vf a, vf n)
{
    const int32x4_t i = vcvtnq_s32_f32(n), h = vshrq_n_s32(i, 1), bias = vdupq_n_s32(127);
    const vf p = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(h, bias), 23));
    const vf q = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(i, h), bias), 23));
    return vmulq_f32(vmulq_f32(a, p), q);
}
static inline vf v_scale2_normal(vf a, vf n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
}
/* As in avx2.h. */
static inline vf v_split2(vf y, vf *whole)
{
    const vf shift = vdupq_n_f32(12582912.0f + 127.0f), z = v_max(vdupq_n_f32(-127.0f), y), r = vaddq_f32(z, shift);
    *whole = vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(r), 23));
    return vsubq_f32(z, vsubq_f32(r, shift));
}
static inline vf v_join2(vf a, vf whole) { return vmulq_f32(a, whole); }
static inline vf v_zero_below(vf x, float limit, vf y)
{
    return vreinterpretq_f32_u32(
        vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, vdupq_n_f32(limit))));
}
static inline vf v_exponent(vf x)
{
    const uint32x4_t e = vshrq_n_u32(vreinterpretq_u32_f32(x), 23);
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(e), vdupq_n_s32(127)));
}
static inline vf v_mantissa(vf x)
{
    const uint32x4_t m = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x7fffff));
    return vreinterpretq_f32_u32(vorrq_u32(m, vdupq_n_u32(0x3f800000)));
}
static inline vf v_select_ge0(vf m, vf a, vf b) { return vbslq_f32(vcgezq_f32(m), a, b); }
static inline int v_all_finite(vf a)
{
    return vminvq_u32(vcleq_f32(vabsq_f32(a), vdupq_n_f32(3.40282347e38f))) != 0;
}
static inline vf v_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline void v_store_bf16(uint16_t *p, vf a)
{
    const uint32x4_t u = vreinterpretq_u32_f32(a);
    const uint32x4_t even = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t near = vaddq_u32(u, vaddq_u32(even, vdupq_n_u32(0x7fff)));
    const uint32x4_t nan = vorrq_u32(u, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), near, nan), 16));
}
static inline void v_transpose(vf r[VL])
{
    const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

#endif
