/* The linear mixers in double, straight from the definition: one thread, no chunks, one token after the other. The tests
 * measure everything else against it; it is meant to be read.
 *
 *   S_t = e^(log_decay_t) S_{t-1} + phi(k_t) v_t^T        Z likewise        o_i = phi(q_i) S / (phi(q_i) . Z + eps)
 *
 *   linear_attention_naive.c            S, Z and o as a recurrence over tokens
 *   linear_attention_naive_backward.c   the same recurrence backwards
 *   <mixer>/naive*.c                    phi and its adjoint
 *
 * What "NaN shows only where it has influence" means here: nothing is ever multiplied by a zero that stands for "not
 * there". A masked key and a forgotten past (log_decay = -inf) are skipped, a query that sees nothing gives 0 without
 * being looked at, and a key that nothing reads gets gradient 0 likewise. */
#ifndef GMA_MIXERS_LINEAR_ATTENTION_NAIVE_H
#define GMA_MIXERS_LINEAR_ATTENTION_NAIVE_H

#include "mixers/mixer_impl.h"

/* A feature map: R inputs, K = descriptor.components features. */
typedef struct gmai_naive_map {
    void *self;
    /* Take over the parameters of head h and zero their gradients. NULL: none. */
    void (*load)(void *self, const gma_mixer *m, const gmai_args *a, int64_t h);
    /* phi (K) of x (R). */
    void (*phi)(const void *self, const double *x, double *phi);
    /* Given dL/dphi (K) at x: dL/dx (R), and the gradients of the parameters added to the map's own sums. */
    void (*backward)(void *self, const double *x, const double *phi, const double *dphi, double *dx);
    /* Store the gradients of head h. NULL: none. */
    void (*store)(const void *self, const gmai_args *a, int64_t h);
} gmai_naive_map;

/* mixer.c has checked shapes and types; values (order of cu_seqlens, signs) are checked here.
 * Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. They allocate what they need and free it. */
gma_status gmai_la_naive_forward(const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map);
gma_status gmai_la_naive_backward(const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map);

/* ---- shared by the two files -------------------------------------------------------------------------- */

/* One sequence of one key head: which tokens, which heads, and the running sums. */
typedef struct gmai_naive_seq {
    const gma_mixer *m;
    const gmai_args *a;
    const gmai_naive_map *map;
    int64_t K, R, D;
    int64_t batch;          /* row of q, k, v */
    int64_t state;          /* row of the states: the batch row, or the packed sequence */
    int64_t head, group;    /* key head; query heads head * group .. + group */
    int64_t q0, nq, k0, nk; /* tokens q0 .. q0 + nq, k0 .. k0 + nk */
    int64_t offset;         /* causal: query i sees keys j <= i + offset */
    double *x, *v, *phi;    /* (R), (D), (K); one token's rows */
    double *S, *Z;          /* (K,D), (K): one block, Z behind S */
    int seen;               /* 0 while S and Z are empty: no key written (or all forgotten) and no state came in */
} gmai_naive_seq;

/* Check the values of the arguments and set up; every sequence then needs _select. */
gma_status gmai_naive_seq_init(gmai_naive_seq *s, const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map);
void gmai_naive_seq_free(gmai_naive_seq *s);
int64_t gmai_naive_seq_count(const gma_mixer *m);                              /* B, or G when packed */
void gmai_naive_seq_select(gmai_naive_seq *s, int64_t head, int64_t sequence); /* also takes the incoming state */

/* S_t, Z_t from S_{t-1}, Z_{t-1}: decay, then write key j unless it is masked. */
void gmai_naive_step(gmai_naive_seq *s, int64_t j);
int gmai_naive_masked(const gmai_naive_seq *s, int64_t j);
double gmai_naive_log_decay(const gmai_naive_seq *s, int64_t j); /* 0 when absent */

/* Load token t's row of q, k or v into row[]. */
void gmai_naive_row(const gma_tensor *t, int64_t b, int64_t h, int64_t n, int64_t width, double *row);

#endif
