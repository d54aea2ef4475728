/* gma bench: what is measured (bench_case), and how it is told (bench_row). */
#ifndef GMA_CLI_BENCH_H
#define GMA_CLI_BENCH_H

#include <stdio.h>

#include "gma/bench.h"
#include "gma/gma.h"

typedef enum bench_pass { BENCH_FORWARD, BENCH_FORWARD_BACKWARD, BENCH_DECODE } bench_pass;

typedef struct bench_shape {
    gma_mixer_kind kind;
    gma_isa isa;
    bench_pass pass;
    int causal, bf16, decay, scale, threads;
    int store_scores; /* softmax as "mha" */
    int decoded; /* a forward whose tokens may also be decoded one by one */
    int64_t batch, heads, kv_heads, dim, components;
    int64_t length; /* tokens of a call; of decode the position it starts from */
} bench_shape;

enum { BENCH_MAX_ARGS = 48 };

/* A mixer with all its tensors, filled with values of ordinary size. */
typedef struct bench_case {
    bench_shape shape;
    gma_mixer *mixer;
    gma_arg forward[BENCH_MAX_ARGS], backward[BENCH_MAX_ARGS];
    int forward_count, backward_count;
    gma_exec exec;
    void *state; /* decode */
    size_t state_bytes;
} bench_case;

/* Makes the tensors, and for decode the state after `length` tokens. Close it also after a failure. */
gma_status bench_case_open(bench_case *c, const bench_shape *shape);
void bench_case_close(bench_case *c);

/* What is timed: one forward, one forward that saves and its backward, or one decoding step. */
gma_status bench_case_run(bench_case *c);

const gma_tensor *bench_case_find(const bench_case *c, int32_t slot);
size_t bench_case_workspace(const bench_case *c); /* bytes of scratch, what is saved for backward, and the state */
double bench_useful_flops(const bench_shape *s); /* of one call */

/* One small case of the same kind, width, type and tier against the definition in double. NON_FINITE or UNSUPPORTED
 * with what differs when it does not agree. */
gma_status bench_check(const bench_shape *shape);

/* Bytes, 64-byte aligned, zeroed; count may be 0. */
gma_status bench_allocate(size_t bytes, void **out);

/* ---- Results ------------------------------------------------------------------------------------------------ */

typedef struct bench_samples {
    int count;
    double *ms, median, min;
} bench_samples;

typedef struct bench_row {
    const char *mixer, *pass, *dtype, *isa, *version;
    int64_t causal, decay, scale, threads, repeat, cold;
    int64_t batch, heads, kv_heads, length, dim, components;
    bench_samples warm, cold_samples;
    gma_gemm_speed peak;
    double gflops, efficiency, floor_ms, cold_floor_ms;
    int64_t workspace_bytes, state_bytes, peak_rss_bytes, scrub_bytes;
} bench_row;

void bench_print_table(FILE *out, const bench_row *rows, int count);
void bench_print_json(FILE *out, const bench_row *rows, int count);
void bench_print_csv(FILE *out, const bench_row *rows, int count);

int gma_bench_op(int argc, char **argv);

#endif
