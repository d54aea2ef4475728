/* The machine's own speed: gma/bench.h. */
#define _POSIX_C_SOURCE 200809L
#include "gma/bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "layers/kernels.h"
#include "layers/matmul.h"
#include "layers/threads.h"

#ifdef GMAL_HAVE_ONEDNN
#include <dnnl.h>
#endif

enum { LARGEST = 2048, SMALLEST = 256, REPEATS = 5 };
static const double long_enough = 0.04; /* seconds a product should take: beyond what starting threads costs */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#ifdef GMAL_HAVE_ONEDNN
static gma_status hold_to(gma_isa isa, gma_gemm_speed *speed) {
    const dnnl_cpu_isa_t wanted = isa == GMA_ISA_SCALAR   ? dnnl_cpu_isa_sse41
                                  : isa == GMA_ISA_AVX2   ? dnnl_cpu_isa_avx2
                                  : isa == GMA_ISA_AVX512 ? dnnl_cpu_isa_avx512_core
                                                          : dnnl_cpu_isa_all;
    /* A second call is refused: what counts is what is in force. */
    if (wanted != dnnl_cpu_isa_all) dnnl_set_max_cpu_isa(wanted);
    const dnnl_cpu_isa_t now = dnnl_get_effective_cpu_isa();
    /* The values are sets of bits, a higher one holding the lower. */
    if (wanted != dnnl_cpu_isa_all && ((unsigned)now & ~(unsigned)wanted) != 0)
        return gma_fail(GMA_ERR_UNSUPPORTED, "oneDNN is already in use in this process with more than the tier %s",
                        gma_isa_name(isa));
    const unsigned bits = (unsigned)now;
    strcpy(speed->by, "onednn");
    strcpy(speed->isa, bits & 0x20 ? "avx512" : bits & 0x4 ? "avx2" : bits & 0x2 ? "avx" : bits & 0x1 ? "sse41" : "none");
    return GMA_OK;
}
#else
static gma_status hold_to(gma_isa isa, gma_gemm_speed *speed) {
    (void)isa; /* our own product takes the default tier, whatever is asked for: the figure says which */
    gma_isa tier;
    const gma_status s = gma_isa_default(&tier);
    if (s != GMA_OK) return s;
    strcpy(speed->by, "libgma_lm");
    strcpy(speed->isa, gma_isa_name(tier));
    return GMA_OK;
}
#endif

static gma_status product(int64_t n, const float *x, float *c, int threads, double *took) {
    const double start = seconds();
    const gma_status s = gmal_matmul_library_f32(0, 0, n, n, n, 1.0f, x, n, x + n * n, n, 0.0f, c, n, threads);
    *took = seconds() - start;
    return s;
}

static gma_status measure(float *x, int threads, gma_gemm_speed *speed) {
    float *c = x + 2 * LARGEST * LARGEST;
    for (int64_t i = 0; i < 2 * LARGEST * LARGEST; i++) x[i] = (float)(i * 7919 % 1013) / 1013.0f - 0.5f;
    int64_t n = SMALLEST;
    double took = 0.0, best;
    gma_status s = product(n, x, c, threads, &took); /* the first also makes the code, and starts the threads */
    if (s == GMA_OK) s = product(n, x, c, threads, &took);
    while (s == GMA_OK && took < long_enough && n < LARGEST) {
        n *= 2;
        s = product(n, x, c, threads, &took);
    }
    best = took;
    for (int i = 0; s == GMA_OK && i < REPEATS; i++) {
        s = product(n, x, c, threads, &took);
        if (took < best) best = took;
    }
    speed->size = n;
    speed->gflops = 2e-9 * (double)n * (double)n * (double)n / best;
    return s;
}

gma_status gma_gemm_peak(gma_isa isa, int threads, gma_gemm_speed *speed) {
    if (speed == NULL || speed->struct_size != sizeof *speed)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_gemm_peak: speed is NULL or its struct_size is not set");
    if (threads < 0) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_gemm_peak: threads is %d", threads);
    gma_status s = gmal_kernels_init();
    if (s == GMA_OK && isa == GMA_ISA_AUTO) s = gma_isa_default(&isa);
    if (s == GMA_OK) s = hold_to(isa, speed);
    if (s != GMA_OK) return s;
    float *x = aligned_alloc(64, (size_t)3 * LARGEST * LARGEST * sizeof *x);
    if (x == NULL) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the matrices of gma_gemm_peak");
    const gmal_threads t = gmal_threads_enter(threads);
    s = measure(x, t.now, speed);
    gmal_threads_leave(t);
    free(x);
    return s;
}

/* One thread's part. What only one of the two has left is read, or updated with itself. */
static void pass(const gmal_kernels_f32 *k, const float *read, size_t reads, float *update, size_t updates,
                 double *sum) {
    const size_t both = reads < updates ? reads : updates;
    if (both > 0) k->add(read, update, (int64_t)both);
    if (updates > both) k->add(update + both, update + both, (int64_t)(updates - both));
    if (reads > both) *sum = k->sum_squares(read + both, (int64_t)(reads - both));
}

static size_t edge(size_t count, int part, int parts) {
    return part == parts ? count : count / (size_t)parts * (size_t)part / 16 * 16;
}

gma_status gma_memory_pass(const float *read, size_t read_count, float *update, size_t update_count, int threads) {
    if ((read == NULL && read_count > 0) || (update == NULL && update_count > 0) || threads < 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_memory_pass: a buffer is NULL, or threads is negative");
    const gma_status s = gmal_kernels_init();
    if (s != GMA_OK) return s;
    const gmal_kernels_f32 *k = gmal_get_kernels_f32();
    const gmal_threads t = gmal_threads_enter(threads);
    const int parts = t.now;
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int i = 0; i < parts; i++) {
        const size_t r = edge(read_count, i, parts), u = edge(update_count, i, parts);
        double sum = 0.0;
        pass(k, read_count > 0 ? read + r : NULL, edge(read_count, i + 1, parts) - r, update_count > 0 ? update + u : NULL,
             edge(update_count, i + 1, parts) - u, &sum);
    }
    gmal_threads_leave(t);
    return GMA_OK;
}
