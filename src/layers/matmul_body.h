/* Our own product, once per precision. op(B) is packed in pieces of up to DEPTH x BREADTH, all threads taking part, into
 * memory that they share; then tasks of rows of C run against the piece. A task copies GMAL_GEMM_K columns of its rows of
 * op(A) at a time and multiplies them with all columns of its part of the piece, so that its part of C stays in the cache
 * until the piece is through.
 *
 * An entry of C is one sum over k in order, in runs of GMAL_GEMM_K, whichever task it is in: the same bits for any number
 * of threads, although the tasks become smaller where many threads wait for them. */
#include "layers/real.h"

#ifdef _OPENMP
#define PACKING _Pragma("omp for schedule(static)")
#define TASKS _Pragma("omp for schedule(dynamic)")
#else
#define PACKING
#define TASKS
#endif

/* A piece: 1 MiB in either precision. */
enum {
    GMAL_T(depth) = sizeof(gmal_real) == sizeof(float) ? 2 * GMAL_GEMM_K : GMAL_GEMM_K,
    GMAL_T(breadth) = 2 * GMAL_GEMM_N
};

typedef struct GMAL_T(product) {
    int ta, tb;
    int64_t m, n, k;
    gmal_real alpha, beta;
    const gmal_real *a, *b;
    gmal_real *c;
    int64_t lda, ldb, ldc;
    gmal_real *panels;
    const gmal_after *after;
    int64_t rows, parts; /* a task: rows of C, and one of so many parts of the piece's columns */
} GMAL_T(product);

static int64_t GMAL_T(up)(int64_t n, int64_t of) { return (n + of - 1) / of; }

/* Rows of p's tasks: those with which the last thread is done first, by a cost of 6 rows for reading the piece again. Where
 * there are still too few tasks, they share the columns too, and a row of op(A) is copied more than once. */
static void GMAL_T(cut)(GMAL_T(product) * p, int threads) {
    int64_t least = INT64_MAX;
    for (int64_t rows = GMAL_GEMM_M; rows >= 36; rows -= 6) { /* whole tiles of 6 */
        const int64_t turns = GMAL_T(up)(GMAL_T(up)(p->m, rows), threads), cost = turns * (rows + 6);
        if (cost < least) {
            least = cost;
            p->rows = rows;
        }
    }
    const int64_t tasks = GMAL_T(up)(p->m, p->rows), breadth = p->n < GMAL_T(breadth) ? p->n : GMAL_T(breadth);
    const int64_t wanted = tasks < threads ? GMAL_T(up)(threads, tasks) : 1, most = GMAL_T(up)(breadth, 64);
    p->parts = wanted < most ? wanted : most;
}

/* Columns j0 .. j0 + n of rows p0 .. p0 + depth of op(B), in panels; item: 64 columns of one run of rows. */
static void GMAL_T(pack_item)(const GMAL_T(product) * p, int64_t p0, int64_t depth, int64_t j0, int64_t n, int64_t item) {
    const int64_t per = GMAL_T(up)(n, 64), at = item / per * GMAL_GEMM_K, j = item % per * 64;
    const int64_t k = depth - at < GMAL_GEMM_K ? depth - at : GMAL_GEMM_K, row = p0 + at, col = j0 + j;
    GMAL_T(gmal_get_kernels)()->gemm_pack(p->tb, p->tb ? p->b + col * p->ldb + row : p->b + row * p->ldb + col, p->ldb, k,
                                          n - j < 64 ? n - j : 64, p->panels + at * GMAL_T(breadth) + j * k);
}

static void GMAL_T(task)(const GMAL_T(product) * p, int64_t p0, int64_t depth, int64_t j0, int64_t n, int64_t task) {
    _Alignas(64) gmal_real rows_a[GMAL_GEMM_M * GMAL_GEMM_LDA];
    const int64_t width = GMAL_T(up)(GMAL_T(up)(n, p->parts), 64) * 64, j = task % p->parts * width;
    const int64_t i = task / p->parts * p->rows, m = p->m - i < p->rows ? p->m - i : p->rows;
    const int64_t cols = n - j < width ? n - j : width;
    if (j >= n) return;
    for (int64_t at = 0; at == 0 || at < depth; at += GMAL_GEMM_K) {
        const int64_t k = depth - at < GMAL_GEMM_K ? depth - at : GMAL_GEMM_K, q = p0 + at;
        GMAL_T(gmal_get_kernels)()->gemm_rows(p->ta, p->ta ? p->a + q * p->lda + i : p->a + i * p->lda + q, p->lda, m, k, rows_a);
        GMAL_T(gmal_get_kernels)()->gemm_block(p->ta, rows_a, p->panels + at * GMAL_T(breadth) + j * k, p->alpha,
                                               q == 0 ? p->beta : 1, p->c + i * p->ldc + j0 + j, p->ldc, m, cols, k);
    }
    if (p->after && p0 + depth >= p->k) p->after->part(p->after->context, i, m, j0 + j, cols);
}

static void GMAL_T(own_product)(int ta, int tb, int64_t m, int64_t n, int64_t k, gmal_real alpha, const gmal_real *a,
                                int64_t lda, const gmal_real *b, int64_t ldb, gmal_real beta, gmal_real *c,
                                int64_t ldc, const gmal_after *after, int threads) {
    _Alignas(64) gmal_real panels[GMAL_T(depth) * GMAL_T(breadth)];
    GMAL_T(product) p = {ta, tb, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc, panels, after, 0, 0};
    if (m <= 0 || n <= 0) return;
    GMAL_T(cut)(&p, threads);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (m * n * k > 32768)
#endif
    for (int64_t j0 = 0; j0 < n; j0 += GMAL_T(breadth))
        for (int64_t p0 = 0; p0 == 0 || p0 < k; p0 += GMAL_T(depth)) {
            const int64_t cols = n - j0 < GMAL_T(breadth) ? n - j0 : GMAL_T(breadth);
            const int64_t depth = k - p0 < GMAL_T(depth) ? k - p0 : GMAL_T(depth);
            const int64_t items = GMAL_T(up)(cols, 64) * GMAL_T(up)(depth, GMAL_GEMM_K);
            const int64_t tasks = GMAL_T(up)(m, p.rows) * p.parts;
            PACKING
            for (int64_t item = 0; item < items; item++) GMAL_T(pack_item)(&p, p0, depth, j0, cols, item);
            TASKS
            for (int64_t task = 0; task < tasks; task++) GMAL_T(task)(&p, p0, depth, j0, cols, task);
        }
}
