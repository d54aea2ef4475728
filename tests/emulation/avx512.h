/* The vector vocabulary of tier avx512 in plain C: 16 lanes as an array, which the compiler maps to whatever vectors it
 * has. A build with GMA_EMULATE takes it in the place of src/simd/avx512.h, so that the kernels as that tier compiles
 * them (16 lanes, its register blocks) run in tests on CPUs without AVX-512. Each word rounds and orders its sums as the
 * instruction it stands for. Never part of an installed library. */
#ifndef GMAI_EMULATE
#error "only for a build with GMA_EMULATE"
#endif
#ifndef GMA_EMULATION_AVX512_H
#define GMA_EMULATION_AVX512_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "simd/avx512.h" /* its lanes and blocks */

typedef struct vf {
    float lane[16];
} vf;

#define EACH_LANE for (int l = 0; l < 16; l++)

static inline uint32_t lane_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float lane_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
/* One rounding. Without the instruction: in double a product of two floats is exact, and the sum all but always. */
static inline float lane_fma(float a, float b, float c)
{
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return (float)((double)a * (double)b + (double)c);
#endif
}

static inline vf v_load(const float *p)
{
    vf r;
    memcpy(r.lane, p, sizeof r.lane);
    return r;
}
static inline vf v_loadn(const float *p, int n)
{
    vf r;
    EACH_LANE r.lane[l] = l < n ? p[l] : 0.0f;
    return r;
}
static inline void v_store(float *p, vf a) { memcpy(p, a.lane, sizeof a.lane); }
static inline void v_storen(float *p, vf a, int n)
{
    for (int l = 0; l < 16 && l < n; l++) p[l] = a.lane[l];
}

#define LANES_1(name, expression)              \
    static inline vf name(vf a)                \
    {                                          \
        vf r;                                  \
        EACH_LANE                              \
        {                                      \
            const float x = a.lane[l];         \
            r.lane[l] = (expression);          \
        }                                      \
        return r;                              \
    }
#define LANES_2(name, expression)                          \
    static inline vf name(vf a, vf b)                      \
    {                                                      \
        vf r;                                              \
        EACH_LANE                                          \
        {                                                  \
            const float x = a.lane[l], y = b.lane[l];      \
            r.lane[l] = (expression);                      \
        }                                                  \
        return r;                                          \
    }
#define LANES_3(name, expression)                                        \
    static inline vf name(vf a, vf b, vf c)                              \
    {                                                                    \
        vf r;                                                            \
        EACH_LANE                                                        \
        {                                                                \
            const float x = a.lane[l], y = b.lane[l], z = c.lane[l];     \
            r.lane[l] = (expression);                                    \
        }                                                                \
        return r;                                                        \
    }

static inline vf v_set1(float a)
{
    vf r;
    EACH_LANE r.lane[l] = a;
    return r;
}
LANES_2(v_add, x + y)
LANES_2(v_sub, x - y)
LANES_2(v_mul, x * y)
LANES_2(v_div, x / y)
LANES_1(v_sqrt, sqrtf(x))
LANES_3(v_fma, lane_fma(x, y, z))
LANES_3(v_fnma, lane_fma(-x, y, z))
LANES_2(v_max, x > y ? x : y)
LANES_2(v_min, x < y ? x : y)
/* Halves onto halves, as the compilers order _mm512_reduce_add_ps. */
static inline float v_sum(vf a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++) a.lane[l] += a.lane[l + half];
    return a.lane[0];
}
LANES_1(v_round, rintf(x))
/* x 2^y for a whole y, in two halves so that results below the smallest normal number come out right too. */
static inline float lane_scale2(float x, float y)
{
    if (y != y) return y;
    const int n = (int)(y < -300.0f ? -300.0f : y > 300.0f ? 300.0f : y), h = n >> 1;
    if (h < -126 || n - h > 127) return ldexpf(x, n);
    return x * lane_of((uint32_t)(h + 127) << 23) * lane_of((uint32_t)(n - h + 127) << 23);
}
LANES_2(v_scale2, lane_scale2(x, y))
LANES_2(v_scale2_normal, lane_scale2(x, y))
/* Infinite whole numbers stay: lane_scale2 makes 0 of them. */
static inline vf v_split2(vf y, vf *whole)
{
    vf f;
    EACH_LANE {
        whole->lane[l] = rintf(y.lane[l]);
        f.lane[l] = y.lane[l] == whole->lane[l] ? 0.0f : y.lane[l] - whole->lane[l];
    }
    return f;
}
LANES_2(v_join2, lane_scale2(x, y))
static inline vf v_zero_below(vf x, float limit, vf y)
{
    EACH_LANE y.lane[l] = x.lane[l] < limit ? 0.0f : y.lane[l];
    return y;
}
LANES_1(v_exponent, (float)((int)(lane_bits(x) >> 23 & 0xff) - 127))
LANES_1(v_mantissa, lane_of((lane_bits(x) & 0x807fffffu) | 0x3f800000u))
LANES_3(v_select_ge0, x >= 0.0f ? y : z)
static inline int v_all_finite(vf a)
{
    int all = 1;
    EACH_LANE all &= fabsf(a.lane[l]) <= 3.40282347e38f;
    return all;
}
static inline vf v_load_bf16(const uint16_t *p)
{
    vf r;
    EACH_LANE r.lane[l] = lane_of((uint32_t)p[l] << 16);
    return r;
}
static inline uint32_t lane_bf16(float x)
{
    const uint32_t u = lane_bits(x);
    return (x != x ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
static inline void v_store_bf16(uint16_t *p, vf a) { EACH_LANE p[l] = (uint16_t)lane_bf16(a.lane[l]); }
static inline void v_transpose(vf r[VL])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            const float t = r[i].lane[j];
            r[i].lane[j] = r[j].lane[i];
            r[j].lane[i] = t;
        }
}

#endif
