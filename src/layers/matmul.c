/* Dense products: ours, or oneDNN's sgemm. */
#include "layers/matmul.h"

#include <stdatomic.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/watch.h"

#ifdef GMAL_HAVE_ONEDNN
#include <dnnl.h>
#endif

#define GMAL_PRECISION f64
#include "layers/matmul_body.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f32
#include "layers/matmul_body.h"
#undef GMAL_PRECISION

gma_status gmal_matmul_f64(int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                           const double *b, int64_t ldb, double beta, double *c, int64_t ldc, int threads) {
    own_product_f64(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, NULL, threads);
    return GMA_OK;
}

gma_status gmal_matmul_then_f64(int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                                const double *b, int64_t ldb, double beta, double *c, int64_t ldc, const gmal_after *after,
                                int threads) {
    own_product_f64(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, after, threads);
    return GMA_OK;
}

gma_status gmal_matmul_own_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                               int threads) {
    own_product_f32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, NULL, threads);
    return GMA_OK;
}

gma_status gmal_matmul_library_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                                   int threads) {
#ifdef GMAL_HAVE_ONEDNN
    /* oneDNN takes its thread count from OpenMP; the entry points of this library have set it (layers/threads.h). */
    if (m > 0 && n > 0 && k > 0) {
        const dnnl_status_t s =
            dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        if (s == dnnl_out_of_memory) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "oneDNN ran out of memory in a product");
        if (s != dnnl_success)
            return gma_fail(GMA_ERR_UNSUPPORTED, "oneDNN refused a product of %lld x %lld x %lld (status %d)",
                            (long long)m, (long long)n, (long long)k, (int)s);
        return GMA_OK;
    }
#endif
    return gmal_matmul_own_f32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, threads);
}

/* Whether ours is the faster one: on AVX2, where it was measured (docs/performance.md); on the other tiers nobody has yet. */
static int own_is_faster(void) {
    static _Atomic int known; /* 0 = not asked yet, 1 = no, 2 = yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        gma_isa isa;
        answer = gma_isa_default(&isa) == GMA_OK && isa == GMA_ISA_AVX2 ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

/* What `after` wants, when the product is not ours. */
static void parts_of(const gmal_after *after, int64_t m, int64_t n, int threads) {
    enum { ROWS = 64 };
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads)
#endif
    for (int64_t i = 0; i < m; i += ROWS) after->part(after->context, i, m - i < ROWS ? m - i : ROWS, 0, n);
}

gma_status gmal_matmul_then_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                                const float *b, int64_t ldb, float beta, float *c, int64_t ldc, const gmal_after *after,
                                int threads) {
    const double began = gmal_watch_begin();
    gma_status s = GMA_OK;
    if (own_is_faster()) {
        own_product_f32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, after, threads);
    } else {
        s = gmal_matmul_library_f32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, threads);
        if (s == GMA_OK && after) parts_of(after, m, n, threads);
    }
    gmal_watch_end_product(began);
    return s;
}

gma_status gmal_matmul_f32(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                           const float *b, int64_t ldb, float beta, float *c, int64_t ldc, int threads) {
    return gmal_matmul_then_f32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, NULL, threads);
}
