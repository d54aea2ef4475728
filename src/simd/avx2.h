/* The vector vocabulary of src/kernels for AVX2 with FMA: 8 lanes, 16 registers. See simd/README.md. */
#ifndef GMA_SIMD_AVX2_H
#define GMA_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VL 8
#define GMAI_MK 2
#define GMAI_NV 4
#define GMAI_GM 6
#define GMAI_GN 2
#define GMAI_KB 3

typedef __m256 vf;

static inline __m256i v_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vf v_loadn(const float *p, int n) { return _mm256_maskload_ps(p, v_lanes(n)); }
static inline void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
static inline void v_storen(float *p, vf a, int n) { _mm256_maskstore_ps(p, v_lanes(n), a); }
static inline vf v_set1(float a) { return _mm256_set1_ps(a); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline float v_sum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline vf v_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf v_scale2(vf a, vf n)
{
    /* In two halves, so that results below the smallest normal number come out right too. */
    const __m256i i = _mm256_cvtps_epi32(n), h = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
    const vf p = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, bias), 23));
    const vf q = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, h), bias), 23));
    return v_mul(v_mul(a, p), q);
}
static inline vf v_scale2_normal(vf a, vf n)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
/* Added to y it leaves the nearest whole number, and 127 more, in the lowest bits: there is 2^whole, and 0 for -127. */
static inline vf v_split2(vf y, vf *whole)
{
    const vf shift = _mm256_set1_ps(12582912.0f + 127.0f), z = _mm256_max_ps(_mm256_set1_ps(-127.0f), y);
    const vf r = _mm256_add_ps(z, shift);
    *whole = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(r), 23));
    return _mm256_sub_ps(z, _mm256_sub_ps(r, shift));
}
static inline vf v_join2(vf a, vf whole) { return _mm256_mul_ps(a, whole); }
static inline vf v_zero_below(vf x, float limit, vf y)
{
    return _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ));
}
static inline vf v_exponent(vf x)
{
    return _mm256_cvtepi32_ps(
        _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(127)));
}
static inline vf v_mantissa(vf x)
{
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffff)),
                                               _mm256_set1_epi32(0x3f800000)));
}
static inline vf v_select_ge0(vf m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(m, _mm256_setzero_ps(), _CMP_GE_OQ));
}
static inline int v_all_finite(vf a)
{
    const vf magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
    return _mm256_movemask_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(3.40282347e38f), _CMP_LE_OQ)) == 0xff;
}
static inline vf v_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}
static inline void v_store_bf16(uint16_t *p, vf a)
{
    const __m256i u = _mm256_castps_si256(a);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(near, nan, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
}
static inline void v_transpose(vf r[VL])
{
    vf t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

#endif
