/* What every kernel body starts with: its precision, the suffix of its symbols, the exponential.
 * Compiled with -DGMAI_ISA=<tier> the body is one float tier; included from kernels_f64.c it is the double version. */
#ifndef GMA_LAYERS_KERNEL_BODY_H
#define GMA_LAYERS_KERNEL_BODY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/rng.h"

#define GMAL_JOIN_(a, b) a##__##b
#define GMAL_JOIN(a, b) GMAL_JOIN_(a, b)

#ifdef GMAL_KERNELS_F64
typedef double real;
#define GMAL_KERNEL(name) GMAL_JOIN(gmal_##name, f64)
#define GMAL_C(x) x
static inline real gmal_exp(real x) { return exp(x); }
static inline real gmal_sqrt(real x) { return sqrt(x); }
#else
typedef float real;
#define GMAL_KERNEL(name) GMAL_JOIN(gmal_##name, GMAI_ISA)
#define GMAL_C(x) x##f
static inline real gmal_sqrt(real x) { return sqrtf(x); }

/* expf without branches or calls, so that the loops around it vectorise. x = n ln2 + r, |r| <= ln2/2, 2^n e^r with a
 * polynomial of degree 6; relative error below 2e-7. The comparisons are written so that NaN stays NaN. */
static inline real gmal_exp(real x0)
{
    const float shift = 12582912.0f; /* 1.5 2^23: adding it rounds to an integer in the low mantissa bits */
    float x = x0 > 88.0f ? 88.0f : x0;
    x = x < -87.0f ? -87.0f : x;
    const float t = x * 1.44269504f + shift;
    const float n = t - shift;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    const float y = p * scale;
    const float low = x0 < -87.3f ? 0.0f : y;
    return x0 > 88.7f ? HUGE_VALF : low;
}
#endif

/* Before a loop over a block of registers, its length known to the compiler: unrolled completely. clang takes the
 * number of "GCC unroll" for a wish and leaves the block in memory. */
#ifdef __clang__
#define GMAL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GMAL_UNROLL _Pragma("GCC unroll 16")
#endif

static inline real gmal_sigmoid(real x) { return 1 / (1 + gmal_exp(-x)); }

/* The fixed order in which GMAL_LANES partial sums become one. */
static inline real gmal_fold(const real *s)
{
    real t[GMAL_LANES];
    for (int i = 0; i < GMAL_LANES; i++) t[i] = s[i];
    for (int w = GMAL_LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}

#define GMAL_DECLARE_BODY(name, ret, params) ret GMAL_KERNEL(name) params;
GMAL_KERNEL_LIST(GMAL_DECLARE_BODY, real)

#endif
