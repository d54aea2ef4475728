/* Our own product, once per precision. C is cut into tasks of up to TASK_ROWS x GMAL_GEMM_N by its shape alone, and each
 * sums over k in order: the same bits for any number of threads. A task packs a block of op(B) on its stack (GMAL_GEMM_K
 * rows), then runs GMAL_GEMM_M rows of op(A), copied there as well, at a time against it. */
#include "layers/real.h"

enum { GMAL_T(task_rows) = 480, GMAL_T(few_tasks) = 12 };

/* Rows of a task: equal parts, a multiple of every tile's height (4 and 6). */
static int64_t GMAL_T(rows_of_task)(int64_t m, int64_t col_blocks) {
    int64_t parts = (m + GMAL_T(task_rows) - 1) / GMAL_T(task_rows);
    if (parts * col_blocks < GMAL_T(few_tasks)) {
        const int64_t wanted = (GMAL_T(few_tasks) + col_blocks - 1) / col_blocks, most = (m + 95) / 96;
        parts = wanted < most ? wanted : most;
    }
    return ((m + parts - 1) / parts + 11) / 12 * 12;
}

static void GMAL_T(own_product)(int ta, int tb, int64_t m, int64_t n, int64_t k, gmal_real alpha, const gmal_real *a,
                                int64_t lda, const gmal_real *b, int64_t ldb, gmal_real beta, gmal_real *c,
                                int64_t ldc, int threads) {
    if (m <= 0 || n <= 0) return;
    const int64_t col_blocks = (n + GMAL_GEMM_N - 1) / GMAL_GEMM_N;
    const int64_t task_rows = GMAL_T(rows_of_task)(m, col_blocks), row_blocks = (m + task_rows - 1) / task_rows;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (m * n * k > 32768)
#endif
    for (int64_t task = 0; task < col_blocks * row_blocks; task++) {
        _Alignas(64) gmal_real panels[GMAL_GEMM_K * GMAL_GEMM_N];
        _Alignas(64) gmal_real rows_a[GMAL_GEMM_M * GMAL_GEMM_LDA];
        const int64_t j0 = task / row_blocks * GMAL_GEMM_N, r0 = task % row_blocks * task_rows;
        const int64_t cols = n - j0 < GMAL_GEMM_N ? n - j0 : GMAL_GEMM_N;
        const int64_t r1 = m - r0 < task_rows ? m : r0 + task_rows;
        for (int64_t p0 = 0; p0 == 0 || p0 < k; p0 += GMAL_GEMM_K) {
            const int64_t depth = k - p0 < GMAL_GEMM_K ? k - p0 : GMAL_GEMM_K;
            GMAL_T(gmal_get_kernels)()->gemm_pack(tb, tb ? b + j0 * ldb + p0 : b + p0 * ldb + j0, ldb, depth, cols, panels);
            for (int64_t i = r0; i < r1; i += GMAL_GEMM_M) {
                const int64_t rows = r1 - i < GMAL_GEMM_M ? r1 - i : GMAL_GEMM_M;
                GMAL_T(gmal_get_kernels)()->gemm_rows(ta, ta ? a + p0 * lda + i : a + i * lda + p0, lda, rows, depth, rows_a);
                GMAL_T(gmal_get_kernels)()->gemm_block(ta, rows_a, panels, alpha, p0 == 0 ? beta : 1, c + i * ldc + j0, ldc,
                                                       rows, cols, depth);
            }
        }
    }
}
