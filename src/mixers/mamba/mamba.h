/* What forward, backward and step of the selective scan share: how a call is cut, and one chunk of one group.
 *
 * Channels are taken in groups of W = GMAI_SCAN_WIDTH; a group of one sequence is a unit of work. Tokens are taken in
 * chunks of GMAI_CHUNK; forward keeps the state at the start of each chunk for backward. */
#ifndef GMA_MIXERS_MAMBA_MAMBA_H
#define GMA_MIXERS_MAMBA_MAMBA_H

#include "engine/parallel.h"
#include "mixers/mixer_impl.h"

#define W GMAI_SCAN_WIDTH

typedef struct gmai_mamba_plan {
    gmai_plan tokens; /* its segments are the chunks */
    int64_t channels, groups; /* E, ceil(E / W) */
    int states, ld; /* S, and padded: rows of B and C */
    size_t state_floats; /* S W, one group */
    int64_t band; /* backward: sequences that are under way at the same time */
} gmai_mamba_plan;

void gmai_mamba_plan_make(const gma_mixer_desc *d, gmai_mamba_plan *p);

/* The parameters of all groups, made ready: A log2 e (S,W) | D (W) | bias (W) | 1.0 when no A is positive. */
size_t gmai_mamba_group_floats(const gmai_mamba_plan *p);
void gmai_mamba_prepare(const gmai_mamba_plan *p, const gmai_args *a, float *groups);

/* Buffers of one chunk of one group. */
typedef struct gmai_mamba_chunk {
    float *u, *raw, *delta, *du, *y; /* (C, W) */
    float *b, *c; /* (C, ld) */
    gmai_scan scan;
} gmai_mamba_chunk;

void gmai_mamba_chunk_take(const gmai_mamba_plan *p, gmai_bump *bump, gmai_mamba_chunk *c);
/* Fetch tokens [at, at + n) of a row for group g and prepare the scan. */
void gmai_mamba_chunk_load(const gma_mixer *m, const gmai_mamba_plan *p, const gmai_args *a, const float *groups,
                           int64_t row, int64_t g, int64_t at, int n, gmai_mamba_chunk *c);

/* The scan over n tokens whose rows (u, raw, b, c) lie in the chunk's buffers: delta and du are made. */
void gmai_mamba_chunk_ready(const gma_mixer *m, const gmai_mamba_plan *p, const float *groups, int64_t g, int n,
                            gmai_mamba_chunk *c);

/* One more tensor whose rows of group g the scan may fetch meanwhile. Rows of a group lie a row of all channels apart,
 * which no hardware prefetcher follows. */
void gmai_mamba_ahead(const gmai_mamba_plan *p, const gma_tensor *t, int64_t row, int64_t g, int64_t at, int n,
                      gmai_mamba_chunk *c);

/* Rows of a (B,N,width) tensor from token `at` and column `column` on. */
gmai_rows gmai_mamba_rows(const gma_tensor *t, int64_t row, int64_t at, int64_t column);
/* Channels of group g. */
int gmai_mamba_width(const gmai_mamba_plan *p, int64_t g);

/* One group of a (sequences,E,S) tensor -> (S,W), zeros where it is absent or behind the last channel. And back. */
void gmai_mamba_state_import(const gmai_mamba_plan *p, const gma_tensor *t, int64_t sequence, int64_t g, float *h);
void gmai_mamba_state_export(const gmai_mamba_plan *p, const float *h, int64_t sequence, int64_t g, const gma_tensor *t);

void gmai_mamba_backward_sizes(const gma_mixer *m, const gmai_mamba_plan *p, int threads, gmai_bump *b);
gma_status gmai_mamba_backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x);

size_t gmai_mamba_step_size(const gma_mixer *m);
gma_status gmai_mamba_state_init(const gma_mixer *m, const gmai_args *a, void *state);
gma_status gmai_mamba_step(const gma_mixer *m, const gmai_args *a, void *state, int threads);
gma_status gmai_mamba_step_export(const gma_mixer *m, const void *state, const gmai_args *a);

gma_status gmai_mamba_naive_forward(const gma_mixer *m, const gmai_args *a);
gma_status gmai_mamba_naive_backward(const gma_mixer *m, const gmai_args *a);

#endif
