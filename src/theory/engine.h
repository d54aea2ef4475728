/* The operator as each engine computes it - the definition in double, and the kernels of every CPU tier - behind calls
 * that take and give doubles. Only the public interface of libgma is used. */
#ifndef GMA_THEORY_ENGINE_H
#define GMA_THEORY_ENGINE_H

#include "gma/mixer.h"

typedef struct gmal_engine {
    const char *name; /* "double", or the tier's */
    int naive, threads;
    gma_isa isa;
    double unit; /* half the distance from 1 to the next number */
} gmal_engine;

enum { GMAL_MOST_ENGINES = 8 };

/* Every engine that runs here; how many. */
int gmal_engines(gmal_engine *list, int threads);

/* One mixture and the tokens it is looked at with: n queries and n keys. Every number is exact in f32, so that all
 * engines see the same. */
typedef struct gmal_case {
    int64_t layer, head;    /* -1: of no model */
    int64_t k, r, d, n;     /* components, routing width, value width, tokens */
    double logit_scale, eps, eps_sigma;
    double *mu, *omega;     /* (K,R) */
    double *alpha;          /* (K) */
    double *q, *key, *v;    /* (n,R), (n,R), (n,D) */
    double *memory;         /* of all of them; NULL in a copy */
} gmal_case;

/* gamma (rows,K) of x (rows,R). */
gma_status gmal_gamma(const gmal_engine *e, const gmal_case *m, const double *x, int64_t rows, double *gamma);

/* A forward, or a forward and a backward, with a mixture that all heads share. begin, then tensors, then run, which ends
 * the call; desc may be changed before run. An error waits for run. */
enum { GMAL_CALL_ARGS = 24 };
typedef struct gmal_call {
    const gmal_engine *e;
    gma_mixer_desc desc;
    gma_arg args[GMAL_CALL_ARGS];
    double *to[GMAL_CALL_ARGS]; /* where an output goes; NULL: an input */
    void *held[GMAL_CALL_ARGS]; /* in the engine's type; NULL: the caller's own doubles */
    int count;
    gma_status status;
} gmal_call;

void gmal_call_begin(gmal_call *c, const gmal_engine *e, const gmal_case *m, int64_t heads, int64_t q_len, int64_t k_len,
                     int64_t value_dim, int causal);
void gmal_call_in(gmal_call *c, int32_t slot, const double *x, int rank, int64_t n1, int64_t n2, int64_t n3);
void gmal_call_out(gmal_call *c, int32_t slot, double *x, int rank, int64_t n1, int64_t n2, int64_t n3);
gma_status gmal_call_run(gmal_call *c, int backward);

#endif
