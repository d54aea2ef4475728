/* GELU, SwiGLU, the SiLU gate, residual addition and dropout. */
#include "layers/kernels/kernel.h"

/* gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form, 1 + tanh(u) = 2 sigmoid(2u). */
#define TWO_ROOT GMAL_C(1.5957691216057308)
#define CUBIC GMAL_C(0.044715)

void GMAL_KERNEL(gelu_forward)(const real *h, real *a, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const real x = h[i];
        a[i] = x * gmal_sigmoid(TWO_ROOT * (x + CUBIC * x * x * x));
    }
}

void GMAL_KERNEL(gelu_backward)(const real *h, const real *da, real *dh, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const real x = h[i];
        const real s = gmal_sigmoid(TWO_ROOT * (x + CUBIC * x * x * x));
        dh[i] = da[i] * (s + x * s * (1 - s) * TWO_ROOT * (1 + 3 * CUBIC * x * x));
    }
}

void GMAL_KERNEL(swiglu_forward)(const real *h, real *a, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, h += 2 * n, a += n) {
        const real *u = h + n;
        for (int64_t i = 0; i < n; i++) a[i] = h[i] * gmal_sigmoid(h[i]) * u[i];
    }
}

void GMAL_KERNEL(swiglu_backward)(const real *h, const real *da, real *dh, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, h += 2 * n, dh += 2 * n, da += n) {
        const real *u = h + n;
        real *du = dh + n;
        for (int64_t i = 0; i < n; i++) {
            const real s = gmal_sigmoid(h[i]);
            const real d = da[i];
            dh[i] = d * u[i] * s * (1 + h[i] * (1 - s));
            du[i] = d * h[i] * s;
        }
    }
}

void GMAL_KERNEL(gate_forward)(const real *o, const real *g, int64_t ldg, real *y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, o += n, y += n, g += ldg)
        for (int64_t i = 0; i < n; i++) y[i] = o[i] * g[i] * gmal_sigmoid(g[i]);
}

void GMAL_KERNEL(gate_backward)(const real *o, const real *g, int64_t ldg, const real *dy, real *d_o, real *dg,
                                int64_t lddg, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, o += n, d_o += n, dy += n, g += ldg, dg += lddg)
        for (int64_t i = 0; i < n; i++) {
            const real s = gmal_sigmoid(g[i]);
            const real d = dy[i];
            d_o[i] = d * g[i] * s;
            dg[i] = d * o[i] * s * (1 + g[i] * (1 - s));
        }
}

void GMAL_KERNEL(sum)(const real *x, const real *y, real *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

void GMAL_KERNEL(add)(const real *x, real *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

void GMAL_KERNEL(dropout)(const real *x, real *y, int64_t n, uint32_t key, uint32_t first, uint32_t threshold,
                          real scale, int add) {
    const real keep_old = (real)add;
    for (int64_t i = 0; i < n; i++) {
        const real v = gmal_hash32(key, first + (uint32_t)i) >= threshold ? x[i] * scale : 0;
        y[i] = add ? y[i] * keep_old + v : v;
    }
}
