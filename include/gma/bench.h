/* gma/bench.h - what a measurement of the operator is set against: the machine's own dense product and memory.
 * Part of libgma_lm. Since 0.1.
 *
 *   gma_gemm_speed peak = {.struct_size = sizeof peak};
 *   gma_gemm_peak(GMA_ISA_AUTO, 2, &peak);            then peak.gflops
 *
 * Threads: not to be called while another thread works, in this process or beside it: the figure would be its share.
 */
#ifndef GMA_BENCH_H
#define GMA_BENCH_H

#include "gma/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** gma_gemm_speed - a large product of two square f32 matrices. */
typedef struct gma_gemm_speed {
    size_t struct_size; /* set by the caller to sizeof(gma_gemm_speed) */
    double gflops; /* 2 size^3 / the shortest of the repeats, in 10^9 a second */
    int64_t size; /* rows = columns: at most 2048, smaller where one product would take long */
    char by[16]; /* "onednn", or "libgma_lm" in a build without it */
    char isa[16]; /* the highest instructions the product may use: "sse41", "avx", "avx2", "avx512", or the tier's name */
} gma_gemm_speed;

/** gma_gemm_peak() - multiply, C = A B, dense, f32, and say how fast. threads: 0 = gma_max_threads().
 *  isa: oneDNN is held to that tier, so that an efficiency compares like with like (scalar: SSE4.1, the least it has);
 *  GMA_ISA_AUTO: gma_isa_default(). oneDNN can be held only before its first use in a process, and only once.
 *  Allocates three matrices and frees them. Errors: OUT_OF_MEMORY; UNSUPPORTED when oneDNN is already in use with another
 *  tier; INVALID_ARGUMENT. */
GMA_API gma_status gma_gemm_peak(gma_isa isa, int threads, gma_gemm_speed *speed);

/** gma_memory_pass() - read every float of `read` once, and read and write every float of `update` once (the values are
 *  kept when `read` holds zeros and `update` holds zeros), each thread its own part. To time memory, or, with a large
 *  `update`, to push everything else out of the caches of all threads. Counts are floats; either may be NULL with 0. */
GMA_API gma_status gma_memory_pass(const float *read, size_t read_count, float *update, size_t update_count,
                                   int threads);

#ifdef __cplusplus
}
#endif
#endif
