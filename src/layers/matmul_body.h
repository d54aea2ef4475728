/* Our own product, once per precision. A block of GMAL_GEMM_K x GMAL_GEMM_N of op(B) is packed on the stack and run
 * against the rows of op(A) (kernel gemm_block). Threads own column blocks and row blocks of C; the order of the sum over
 * k does not depend on them. */
#include "layers/real.h"

enum { GMAL_T(row_block) = 128 };

static void GMAL_T(pack)(int tb, const gmal_real *b, int64_t ldb, int64_t k, int64_t n, gmal_real *panel) {
    for (int64_t p = 0; p < k; p++) {
        for (int64_t j = 0; j < n; j++) panel[p * GMAL_GEMM_N + j] = tb ? b[j * ldb + p] : b[p * ldb + j];
        for (int64_t j = n; j < GMAL_GEMM_N; j++) panel[p * GMAL_GEMM_N + j] = 0;
    }
}

static void GMAL_T(own_product)(int ta, int tb, int64_t m, int64_t n, int64_t k, gmal_real alpha, const gmal_real *a,
                                int64_t lda, const gmal_real *b, int64_t ldb, gmal_real beta, gmal_real *c,
                                int64_t ldc, int threads) {
    const int64_t col_blocks = (n + GMAL_GEMM_N - 1) / GMAL_GEMM_N;
    const int64_t row_blocks = (m + GMAL_T(row_block) - 1) / GMAL_T(row_block);
    const int64_t ars = ta ? 1 : lda, acs = ta ? lda : 1;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (m * n * k > 32768)
#endif
    for (int64_t block = 0; block < col_blocks * row_blocks; block++) {
        gmal_real panel[GMAL_GEMM_K * GMAL_GEMM_N];
        const int64_t j0 = block / row_blocks * GMAL_GEMM_N, i0 = block % row_blocks * GMAL_T(row_block);
        const int64_t cols = n - j0 < GMAL_GEMM_N ? n - j0 : GMAL_GEMM_N;
        const int64_t rows = m - i0 < GMAL_T(row_block) ? m - i0 : GMAL_T(row_block);
        gmal_real *cb = c + i0 * ldc + j0;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) cb[i * ldc + j] = beta == 0 ? 0 : beta * cb[i * ldc + j];
        for (int64_t p0 = 0; p0 < k; p0 += GMAL_GEMM_K) {
            const int64_t depth = k - p0 < GMAL_GEMM_K ? k - p0 : GMAL_GEMM_K;
            GMAL_T(pack)(tb, tb ? b + j0 * ldb + p0 : b + p0 * ldb + j0, ldb, depth, cols, panel);
            GMAL_T(gmal_get_kernels)()->gemm_block(a + i0 * ars + p0 * acs, ars, acs, panel, alpha, cb, ldc, rows,
                                                   cols, depth);
        }
    }
}
