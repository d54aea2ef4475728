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
    int64_t batch, heads, kv_heads, routing_dim, dim, components;
    int64_t length; /* tokens of a call; of decode the position it starts from */
    int64_t packed; /* sequences in the row of `length` tokens; 0: not packed */
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

int bench_has_slot(gma_mixer_kind kind, int32_t slot);
const gma_tensor *bench_case_find(const bench_case *c, int32_t slot);
size_t bench_case_workspace(const bench_case *c); /* bytes of scratch, what is saved for backward, and the state */
double bench_useful_flops(const bench_shape *s); /* of one call */

/* One small case of the same kind, width, type and tier against the definition in double. NON_FINITE or UNSUPPORTED
 * with what differs when it does not agree. */
gma_status bench_check(const bench_shape *shape);

/* Bytes, 64-byte aligned, zeroed; count may be 0. */
gma_status bench_allocate(size_t bytes, void **out);

/* ---- Measuring ---------------------------------------------------------------------------------------------- */

enum { BENCH_MAX_LENGTHS = 64 };

/* N | FIRST..LAST (doubling) | FIRST..LAST+STEP, separated by commas. Returns their number, -1 when it cannot be read. */
int bench_read_lengths(const char *text, int64_t *out);

double bench_now_ms(void);

/* Peak resident memory of the process. Linux can start it anew; elsewhere it is that of the process so far. */
void bench_forget_peak_rss(void);
int64_t bench_peak_rss(void);

/* ---- Results ------------------------------------------------------------------------------------------------ */

typedef struct bench_samples {
    int count;
    double *ms, median, min;
} bench_samples;

gma_status bench_make_samples(bench_samples *s, int64_t count);
void bench_summarise(bench_samples *s); /* median and min */

/* Rows as JSON or CSV: one list of fields, each at its offset in a row. */
typedef enum bench_type { BENCH_TEXT, BENCH_CHARS, BENCH_WHOLE, BENCH_FLAG, BENCH_REAL, BENCH_SAMPLES } bench_type;

typedef struct bench_field {
    const char *name;
    bench_type type;
    size_t offset;
    int when; /* 0: always; else what `is_there` understands */
} bench_field;

typedef struct bench_table {
    const bench_field *fields;
    int count;
    size_t row_size;
    int (*is_there)(int when, const void *row); /* null, or empty, where it says no */
} bench_table;

void bench_json(FILE *out, const bench_table *table, const void *rows, int count);
void bench_csv(FILE *out, const bench_table *table, const void *rows, int count);

/* ---- gma bench op ------------------------------------------------------------------------------------------- */

typedef struct bench_row {
    const char *mixer, *pass, *dtype, *isa, *version;
    int64_t causal, decay, scale, threads, repeat, cold;
    int64_t batch, heads, kv_heads, length, packed, routing_dim, dim, components;
    bench_samples warm, cold_samples;
    gma_gemm_speed peak;
    double gflops, efficiency, floor_ms, cold_floor_ms;
    int64_t workspace_bytes, state_bytes, peak_rss_bytes, scrub_bytes;
} bench_row;

void bench_print_table(FILE *out, const bench_row *rows, int count);
void bench_print_json(FILE *out, const bench_row *rows, int count);
void bench_print_csv(FILE *out, const bench_row *rows, int count);

int gma_bench_op(int argc, char **argv);
int gma_bench_train(int argc, char **argv);

#endif
