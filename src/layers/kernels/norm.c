/* RMS and layer normalisation of rows. */
#include "layers/kernels/kernel.h"

/* sum of f(i) over i < n in GMAL_LANES partial sums: the term is written for index i */
#define GMAL_SUM(result, n, term)                                                  \
    do {                                                                           \
        real lane_[GMAL_LANES] = {0};                                              \
        int64_t i_ = 0;                                                            \
        for (; i_ + GMAL_LANES <= (n); i_ += GMAL_LANES)                           \
            for (int l_ = 0; l_ < GMAL_LANES; l_++) {                              \
                const int64_t i = i_ + l_;                                         \
                lane_[l_] += (term);                                               \
            }                                                                      \
        for (int l_ = 0; i_ < (n); i_++, l_++) {                                   \
            const int64_t i = i_;                                                  \
            lane_[l_] += (term);                                                   \
        }                                                                          \
        (result) = gmal_fold(lane_);                                               \
    } while (0)

void GMAL_KERNEL(rms_forward)(const real *x, const real *w, real *y, real *rstd, int64_t rows, int64_t n, real eps) {
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        real sum;
        GMAL_SUM(sum, n, x[i] * x[i]);
        const real s = 1 / gmal_sqrt(sum / (real)n + eps);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * s * w[i];
        rstd[r] = s;
    }
}

/* With u = dy w and x^ = x rstd: dx = rstd (u - x^ mean(u x^)), dw = dy x^. */
void GMAL_KERNEL(rms_backward)(const real *dy, const real *x, const real *w, const real *rstd, real *dx, real *dw,
                               int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, x += n, dy += n, dx += n) {
        const real s = rstd[r];
        real dot;
        GMAL_SUM(dot, n, dy[i] * w[i] * x[i]);
        const real c = dot * s * s * s / (real)n;
        for (int64_t i = 0; i < n; i++) {
            dx[i] += dy[i] * w[i] * s - x[i] * c;
            dw[i] += dy[i] * x[i] * s;
        }
    }
}

void GMAL_KERNEL(layer_forward)(const real *x, const real *w, const real *b, real *y, real *mean, real *rstd,
                                int64_t rows, int64_t n, real eps) {
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        real sum, var;
        GMAL_SUM(sum, n, x[i]);
        const real m = sum / (real)n;
        GMAL_SUM(var, n, (x[i] - m) * (x[i] - m));
        const real s = 1 / gmal_sqrt(var / (real)n + eps);
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - m) * s * w[i] + b[i];
        mean[r] = m;
        rstd[r] = s;
    }
}

/* Nothing overlaps: six pointers are more than a compiler is willing to compare before it vectorises. */
static inline void layer_row(const real *restrict dy, const real *restrict x, const real *restrict w, real m, real s, real a, real c,
                             real *restrict dx, real *restrict dw, real *restrict db, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const real z = x[i] - m;
        dx[i] += s * (dy[i] * w[i] - a - z * c);
        dw[i] += dy[i] * z * s;
        db[i] += dy[i];
    }
}

void GMAL_KERNEL(layer_backward)(const real *dy, const real *x, const real *w, const real *mean, const real *rstd,
                                 real *dx, real *dw, real *db, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, x += n, dy += n, dx += n) {
        const real s = rstd[r], m = mean[r];
        real sum, dot;
        GMAL_SUM(sum, n, dy[i] * w[i]);
        GMAL_SUM(dot, n, dy[i] * w[i] * (x[i] - m));
        const real c = dot * s * s / (real)n, a = sum / (real)n;
        layer_row(dy, x, w, m, s, a, c, dx, dw, db, n);
    }
}

double GMAL_KERNEL(sum_squares)(const real *x, int64_t n) {
    double total = 0;
    for (int64_t at = 0; at < n; at += 4096) { /* short runs in real, their sum in double */
        const int64_t m = n - at < 4096 ? n - at : 4096;
        const real *p = x + at;
        real sum;
        GMAL_SUM(sum, m, p[i] * p[i]);
        total += (double)sum;
    }
    return total;
}
