/* Dense products, row-major: C (m,n) = alpha op(A) op(B) + beta C, with op(A) (m,k) and op(B) (k,n); ta, tb = 1 for the
 * transpose of what is stored. ld = elements from one stored row to the next. beta = 0 does not read C.
 * f64, f32 on AVX2, and f32 in a build without oneDNN: our own blocked product, which gives the same bits for any thread
 * count, allocates no memory, and needs 1.2 MiB of the calling thread's stack. Otherwise oneDNN: the same bits every time for
 * one thread count and tier.
 * Errors: GMA_ERR_OUT_OF_MEMORY when oneDNN reports it. */
#ifndef GMA_LAYERS_MATMUL_H
#define GMA_LAYERS_MATMUL_H

#include "gma/base.h"

gma_status gmal_matmul_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                           const float *b, int64_t ldb, float beta, float *c, int64_t ldc, int threads);
gma_status gmal_matmul_f64(int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                           const double *b, int64_t ldb, double beta, double *c, int64_t ldc, int threads);

/* The same, and for every part of C, once it is final and while it is in a cache: after->part(context, rows i .. i + m,
 * columns j .. j + n). Parts run on any thread, and cover C once. after = NULL: nothing. */
typedef struct gmal_after {
    void (*part)(const void *context, int64_t i, int64_t m, int64_t j, int64_t n);
    const void *context;
} gmal_after;

gma_status gmal_matmul_then_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                                const float *b, int64_t ldb, float beta, float *c, int64_t ldc, const gmal_after *after,
                                int threads);
gma_status gmal_matmul_then_f64(int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                                const double *b, int64_t ldb, double beta, double *c, int64_t ldc, const gmal_after *after,
                                int threads);

/* oneDNN's, where it is built in. */
gma_status gmal_matmul_library_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                                   int threads);

/* Our own product in f32 whatever the build has: for tests, and the path without oneDNN. */
gma_status gmal_matmul_own_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                               int threads);

#endif
