/* The vector vocabulary of src/kernels for AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers. See simd/README.md. */
#ifndef GMA_SIMD_AVX512_H
#define GMA_SIMD_AVX512_H

#define VL 16
#define GMAI_MK 4
#define GMAI_NV 4
#define GMAI_GM 6
#define GMAI_GN 4
#define GMAI_KB 4

#ifndef GMAI_EMULATE /* tests bring the words themselves: tests/emulation/avx512.h */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m512 vf;

static inline __mmask16 v_lanes(int n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << (n > 0 ? n : 0)) - 1u); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf v_loadn(const float *p, int n) { return _mm512_maskz_loadu_ps(v_lanes(n), p); }
static inline void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline void v_storen(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, v_lanes(n), a); }
static inline vf v_set1(float a) { return _mm512_set1_ps(a); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
static inline vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }
static inline vf v_scale2_normal(vf a, vf n) { return _mm512_scalef_ps(a, n); }
static inline vf v_split2(vf y, vf *whole)
{
    const vf f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); /* of -inf: 0 */
    *whole = _mm512_sub_ps(y, f);
    return f;
}
static inline vf v_join2(vf a, vf whole) { return _mm512_scalef_ps(a, whole); }
static inline vf v_zero_below(vf x, float limit, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), y);
}
static inline vf v_exponent(vf x) { return _mm512_getexp_ps(x); }
static inline vf v_mantissa(vf x) { return _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src); }
static inline vf v_select_ge0(vf m, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(m, _mm512_setzero_ps(), _CMP_GE_OQ), b, a);
}
static inline int v_all_finite(vf a)
{
    return _mm512_cmp_ps_mask(_mm512_abs_ps(a), _mm512_set1_ps(3.40282347e38f), _CMP_LE_OQ) == 0xffff;
}
static inline vf v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}
static inline void v_store_bf16(uint16_t *p, vf a)
{
    const __m512i u = _mm512_castps_si512(a);
    const __m512i even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(u, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    const __m512i nan = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __m512i r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), near, nan);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
static inline void v_transpose(vf r[VL])
{
    vf t[16], u[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    /* u[4b + c] holds, in its 128-bit lane q, column 4q + c of rows 4b .. 4b+3. */
    for (int c = 0; c < 4; c++) {
        const vf lo02 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), lo13 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
        const vf hi02 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88),
                 hi13 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
        r[c] = _mm512_shuffle_f32x4(lo02, hi02, 0x88);
        r[4 + c] = _mm512_shuffle_f32x4(lo13, hi13, 0x88);
        r[8 + c] = _mm512_shuffle_f32x4(lo02, hi02, 0xdd);
        r[12 + c] = _mm512_shuffle_f32x4(lo13, hi13, 0xdd);
    }
}

#endif

#endif
