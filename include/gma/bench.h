/* gma/bench.h - what a measurement of the operator is set against: the machine's own dense product and memory; and
 * training steps to be timed.
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
#include "gma/train.h"

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

/* ---- Training ------------------------------------------------------------------------------------------------- */

/** gma_train_bench - a model, its gradients, its optimizer and the activations of one batch, without data or files. */
typedef struct gma_train_bench gma_train_bench;

/** gma_train_times - where the time of one step went. The rest of `seconds` is norms, activations, residual sums, loss,
 *  embeddings. */
typedef struct gma_train_times {
    size_t struct_size; /* set by the caller to sizeof(gma_train_times) */
    double seconds; /* of the step: gradients to 0, forward, backward, optimizer */
    double products; /* dense products */
    double mixer; /* the sequence mixer, forward and backward */
    double optimizer; /* norm of the gradients, clipping, AdamW */
    double loss; /* of the batch before the step, nats per token */
} gma_train_times;

/** gma_train_bench_create() - from the settings of a training run: its model, batch, seed, lr (constant here), AdamW's
 *  numbers, clip, recompute, threads. A sequence has model.context tokens. What concerns data and files is not looked at.
 *  gma_train_bench_step() - one step on tokens, targets (batch, context) int32, every one in 0..vocab-1.
 *  gma_train_bench_model() - the model, as the steps so far left it; it belongs to the bench.
 *  One thread at a time. step allocates nothing. Errors: those of the settings; OUT_OF_MEMORY; a token named. Since 0.1. */
GMA_API gma_status gma_train_bench_create(const gma_settings *settings, gma_train_bench **bench);
GMA_API void gma_train_bench_destroy(gma_train_bench *bench); /* NULL is fine */
GMA_API gma_status gma_train_bench_step(gma_train_bench *bench, const int32_t *tokens, const int32_t *targets,
                                        gma_train_times *times);
GMA_API gma_lm *gma_train_bench_model(gma_train_bench *bench);

#ifdef __cplusplus
}
#endif
#endif
