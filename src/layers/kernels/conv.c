/* Short causal depthwise convolution along time, and the rotation of rotary positions. */
#include "layers/kernels/kernel.h"

void GMAL_KERNEL(conv_forward)(const real *x, int64_t ldx, const real *w, int64_t ldw, real *y, int64_t ldy,
                               int64_t steps, int64_t n, int64_t taps) {
    for (int64_t t = 0; t < steps; t++) {
        real *yt = y + t * ldy;
        const real *xt = x + t * ldx;
        for (int64_t i = 0; i < n; i++) yt[i] = w[i] * xt[i];
        for (int64_t j = 1; j < taps && j <= t; j++) {
            const real *xj = xt - j * ldx, *wj = w + j * ldw;
            for (int64_t i = 0; i < n; i++) yt[i] += wj[i] * xj[i];
        }
    }
}

void GMAL_KERNEL(conv_backward)(const real *dy, int64_t lddy, const real *x, int64_t ldx, const real *w, int64_t ldw,
                                real *dx, int64_t lddx, real *dw, int64_t steps, int64_t n, int64_t taps) {
    for (int64_t t = 0; t < steps; t++) {
        const real *xt = x + t * ldx, *dyt = dy + t * lddy;
        real *dxt = dx + t * lddx;
        for (int64_t i = 0; i < n; i++) {
            dxt[i] = w[i] * dyt[i];
            dw[i] += dyt[i] * xt[i];
        }
        for (int64_t j = 1; j < taps; j++) {
            const real *wj = w + j * ldw;
            real *dwj = dw + j * ldw;
            if (t + j < steps) {
                const real *dyj = dyt + j * lddy;
                for (int64_t i = 0; i < n; i++) {
                    dxt[i] += wj[i] * dyj[i];
                    dwj[i] += dyj[i] * xt[i];
                }
            }
        }
    }
}

void GMAL_KERNEL(rotate)(real *x, int64_t ldx, const real *cs, int64_t steps, int64_t heads, int64_t n, real sign) {
    const int64_t half = n / 2;
    for (int64_t t = 0; t < steps; t++) {
        const real *c = cs + t * n, *s = c + half;
        for (int64_t h = 0; h < heads; h++) {
            real *a = x + t * ldx + h * n, *b = a + half;
            for (int64_t i = 0; i < half; i++) {
                const real u = a[i], v = b[i], si = sign * s[i];
                a[i] = u * c[i] - v * si;
                b[i] = u * si + v * c[i];
            }
        }
    }
}
