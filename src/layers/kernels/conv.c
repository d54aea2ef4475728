/* Short causal depthwise convolution along time, and the rotation of rotary positions. */
#include "layers/kernels/kernel.h"

/* One row, all taps in one pass; the number of taps is a constant where these are called. Sums in the order of the taps,
 * as in the loops below, which take the rows near an end and any other number of taps. */
static inline __attribute__((always_inline)) void row_forward(int taps, const real *restrict x, int64_t ldx,
                                                              const real *restrict w, int64_t ldw, real *restrict y,
                                                              int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        real sum = w[i] * x[i];
        GMAL_UNROLL
        for (int j = 1; j < taps; j++) sum += w[j * ldw + i] * x[i - j * ldx];
        y[i] = sum;
    }
}

static inline __attribute__((always_inline)) void row_backward(int taps, const real *restrict dy, int64_t lddy,
                                                               const real *restrict x, const real *restrict w, int64_t ldw,
                                                               real *restrict dx, real *restrict dw, int64_t lddw,
                                                               int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        real sum = w[i] * dy[i];
        dw[i] += dy[i] * x[i];
        GMAL_UNROLL
        for (int j = 1; j < taps; j++) {
            const real d = dy[i + j * lddy];
            sum += w[j * ldw + i] * d;
            dw[j * lddw + i] += d * x[i];
        }
        dx[i] = sum;
    }
}

void GMAL_KERNEL(conv_forward)(const real *x, int64_t ldx, const real *w, int64_t ldw, real *y, int64_t ldy,
                               int64_t rows, int64_t before, int64_t n, int64_t taps) {
    for (int64_t t = 0; t < rows; t++) {
        real *yt = y + t * ldy;
        const real *xt = x + t * ldx;
        if (before + t >= 3 && taps == 4) {
            row_forward(4, xt, ldx, w, ldw, yt, n);
            continue;
        }
        for (int64_t i = 0; i < n; i++) yt[i] = w[i] * xt[i];
        for (int64_t j = 1; j < taps && j <= before + t; j++) {
            const real *xj = xt - j * ldx, *wj = w + j * ldw;
            for (int64_t i = 0; i < n; i++) yt[i] += wj[i] * xj[i];
        }
    }
}

void GMAL_KERNEL(conv_backward)(const real *dy, int64_t lddy, const real *x, int64_t ldx, const real *w, int64_t ldw,
                                real *dx, int64_t lddx, real *dw, int64_t lddw, int64_t rows, int64_t after,
                                int64_t n, int64_t taps) {
    for (int64_t t = 0; t < rows; t++) {
        const real *xt = x + t * ldx, *dyt = dy + t * lddy;
        real *dxt = dx + t * lddx;
        if (t + 3 < rows + after && taps == 4) {
            row_backward(4, dyt, lddy, xt, w, ldw, dxt, dw, lddw, n);
            continue;
        }
        for (int64_t i = 0; i < n; i++) {
            dxt[i] = w[i] * dyt[i];
            dw[i] += dyt[i] * xt[i];
        }
        for (int64_t j = 1; j < taps && t + j < rows + after; j++) {
            const real *wj = w + j * ldw, *dyj = dyt + j * lddy;
            real *dwj = dw + j * lddw;
            for (int64_t i = 0; i < n; i++) {
                dxt[i] += wj[i] * dyj[i];
                dwj[i] += dyj[i] * xt[i];
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
