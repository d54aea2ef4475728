/* What forward and backward of Linformer share. Tokens are taken in chunks of GMAI_CHUNK.
 *
 * The projected keys and values of a key head, "summary": k' scale (P,rp) | v' (P,dp). They are sums over tokens; where
 * B x H is small the tokens are split into parts, whose sums are added in order. The split depends on the shape only. */
#ifndef GMA_MIXERS_LINFORMER_LINFORMER_H
#define GMA_MIXERS_LINFORMER_LINFORMER_H

#include "engine/parallel.h"
#include "mixers/mixer_impl.h"

#define C GMAI_CHUNK

typedef struct gmai_linformer_plan {
    int64_t batch, hq, h, group, nq, nk;
    int p, r, rp, d, dp;
    float scale;
    int64_t heads; /* B x H */
    int64_t parts;
    size_t summary; /* floats: P (rp + dp) */
} gmai_linformer_plan;

void gmai_linformer_plan_make(const gma_mixer_desc *d, gmai_linformer_plan *p);
static inline int64_t gmai_linformer_chunks(int64_t n) { return (n + C - 1) / C; }

/* Tokens [*at, *at + n) of a chunk; returns n. */
static inline int gmai_linformer_chunk(int64_t tokens, int64_t chunk, int64_t *at)
{
    *at = chunk * C;
    return (int)(tokens - *at < C ? tokens - *at : C);
}

/* Buffers of a thread for one chunk: rows and columns of keys, values, queries or upstream gradients. */
typedef struct gmai_linformer_work {
    float *x, *x_columns; /* (C,rp), (rp,C) */
    float *v, *v_columns; /* (C,dp), (dp,C) */
    float *phi, *dphi; /* (P,C) */
    float *out; /* (C, max(rp, dp)) */
} gmai_linformer_work;

void gmai_linformer_work_take(const gmai_linformer_plan *p, gmai_bump *b, gmai_linformer_work *w);

typedef struct gmai_linformer_job {
    const gma_mixer *m;
    const gmai_linformer_plan *p;
    const gmai_args *a;
    float *parts; /* (B H, parts, summary): sums under way; part 0 ends as their total */
    const float *summaries; /* backward: (B H, summary), as forward saved them */
} gmai_linformer_job;

/* Fetch a chunk of a head of q, k, v or a gradient; masked keys become rows of zeros. */
void gmai_linformer_load(const gmai_linformer_job *j, const gma_tensor *t, int masked, int64_t b, int64_t head, int64_t at,
                         int n, float *rows, float *columns);
/* proj at token `at` of head h: element (p, t) = a[p am + t ak]. */
gmai_term gmai_linformer_projection(const gma_tensor *proj, int64_t h, int64_t at);
/* phi (P, tokens) = softmax over P of k' scale . q for the loaded queries. */
void gmai_linformer_weights(const gmai_linformer_job *j, const float *summary, const gmai_linformer_work *w, int n);
/* Part 0 += all other parts, in order, for each head. */
void gmai_linformer_join(const gmai_linformer_job *j);

void gmai_linformer_backward_take(const gma_mixer *m, const gmai_linformer_plan *p, int threads, gmai_bump *b);
gma_status gmai_linformer_backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x);
gma_status gmai_linformer_naive_forward(const gma_mixer *m, const gmai_args *a);
gma_status gmai_linformer_naive_backward(const gma_mixer *m, const gmai_args *a);

#endif
