/* Matrix times vector for decoding, and the inner block of our own matrix product (layers/matmul.c), which serves
 * where oneDNN is switched off and in double. */
#include "layers/kernels/kernel.h"

void GMAL_KERNEL(gemv)(const real *w, int64_t ldw, const real *x, real *y, int64_t n, int64_t k) {
    for (int64_t r = 0; r < n; r++) {
        const real *row = w + r * ldw;
        real lane[2 * GMAL_LANES] = {0};
        int64_t i = 0;
        for (; i + 2 * GMAL_LANES <= k; i += 2 * GMAL_LANES)
            for (int l = 0; l < 2 * GMAL_LANES; l++) lane[l] += row[i + l] * x[i + l];
        for (int l = 0; i < k; i++, l++) lane[l] += row[i] * x[i];
        for (int l = 0; l < GMAL_LANES; l++) lane[l] += lane[l + GMAL_LANES];
        y[r] = gmal_fold(lane);
    }
}

/* b is packed as (k, GMAL_GEMM_N), columns past n are zero. Element (i, p) of a is a[i ars + p acs]. */
void GMAL_KERNEL(gemm_block)(const real *a, int64_t ars, int64_t acs, const real *b, real alpha, real *c, int64_t ldc,
                             int64_t m, int64_t n, int64_t k) {
    enum { ROWS = 4, COLS = 16 };
    for (int64_t j0 = 0; j0 < n; j0 += COLS) {
        const int64_t cols = n - j0 < COLS ? n - j0 : COLS;
        for (int64_t i0 = 0; i0 < m; i0 += ROWS) {
            const int64_t rows = m - i0 < ROWS ? m - i0 : ROWS;
            real acc[ROWS][COLS] = {{0}};
            const real *a0 = a + i0 * ars, *a1 = rows > 1 ? a0 + ars : a0, *a2 = rows > 2 ? a0 + 2 * ars : a0,
                       *a3 = rows > 3 ? a0 + 3 * ars : a0;
            for (int64_t p = 0; p < k; p++) {
                const real *bp = b + p * GMAL_GEMM_N + j0;
                const real u0 = a0[p * acs], u1 = a1[p * acs], u2 = a2[p * acs], u3 = a3[p * acs];
                for (int j = 0; j < COLS; j++) {
                    acc[0][j] += u0 * bp[j];
                    acc[1][j] += u1 * bp[j];
                    acc[2][j] += u2 * bp[j];
                    acc[3][j] += u3 * bp[j];
                }
            }
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < cols; j++) c[(i0 + i) * ldc + j0 + j] += alpha * acc[i][j];
        }
    }
}
