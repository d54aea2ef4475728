/* Gaussian Mixture Attention in double, straight from the definition (formulas: gma/mixer.h): one thread, no chunks,
 * one token after the other. The tests measure everything else against it; it is meant to be read.
 *
 *   naive_mixture.c    gamma(x) and its adjoint
 *   naive.c            S, Z and o as a recurrence over tokens
 *   naive_backward.c   the same recurrence backwards
 *
 * What "NaN shows only where it has influence" means here: nothing is ever multiplied by a zero that stands for "not
 * there". A masked key, a forgotten past (log_decay = -inf) and a removed component (alpha = -inf) are skipped, a query
 * that sees nothing gives 0 without being looked at, and a key that nothing reads gets gradient 0 likewise. */
#ifndef GMA_MIXERS_GMA_NAIVE_H
#define GMA_MIXERS_GMA_NAIVE_H

#include "mixers/mixer_impl.h"

/* The calls. mixer.c has checked shapes and types; values (order of cu_seqlens, signs) are checked here.
 * Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. They allocate what they need and free it. */
gma_status gmai_gma_naive_forward(const gma_mixer *m, const gmai_args *a);
gma_status gmai_gma_naive_backward(const gma_mixer *m, const gmai_args *a);

/* gamma(x) for a whole tensor; arguments as gma_responsibilities() in gma/attention.h, logit_scale may be NULL. */
gma_status gmai_gma_naive_responsibilities(const gma_tensor *x, const gma_tensor *mu, const gma_tensor *omega,
                                           const gma_tensor *alpha, const gma_tensor *logit_scale,
                                           const gma_tensor *gamma, double eps_sigma);

/* ---- shared by the three files ---------------------------------------------------------------------- */

/* The mixture of one head, in double, and (backward) the gradients that its tokens add up. */
typedef struct gmai_naive_mixture {
    int64_t K, R;
    double *mu, *sigma2; /* (K,R) */
    double *slope;       /* (K,R) dsigma2/domega = sigmoid(omega) */
    double *log_pi;      /* (K); -inf: the component is removed */
    double *log_norm;    /* (K) log pi_k + log of the Gaussian's constant */
    double scale;
    double *dmu, *domega; /* (K,R) */
    double *dalpha;       /* (K) */
    double dscale;
} gmai_naive_mixture;

gma_status gmai_naive_mixture_init(gmai_naive_mixture *mix, int64_t K, int64_t R);
void gmai_naive_mixture_free(gmai_naive_mixture *mix);

/* Take over the parameters of head h and zero the gradients. logit_scale: NULL or absent = 1. */
void gmai_naive_mixture_load(gmai_naive_mixture *mix, const gma_tensor *mu, const gma_tensor *omega,
                             const gma_tensor *alpha, const gma_tensor *logit_scale, int64_t h, double eps_sigma);

/* gamma (K) of x (R). */
void gmai_naive_gamma(const gmai_naive_mixture *mix, const double *x, double *gamma);

/* Given dL/dgamma (K) at x (R): dL/dx (R), and dL/dmu, domega, dalpha, dscale added to the mixture's sums. */
void gmai_naive_gamma_backward(gmai_naive_mixture *mix, const double *x, const double *gamma, const double *dgamma,
                               double *dx);

/* One sequence of one key head: which tokens, which heads, and the running sums. */
typedef struct gmai_naive_seq {
    const gma_mixer *m;
    const gmai_args *a;
    gmai_naive_mixture *mix;
    int64_t K, R, D;
    int64_t batch;          /* row of q, k, v */
    int64_t state;          /* row of the states: the batch row, or the packed sequence */
    int64_t head, group;    /* key head; query heads head * group .. + group */
    int64_t q0, nq, k0, nk; /* tokens q0 .. q0 + nq, k0 .. k0 + nk */
    int64_t offset;         /* causal: query i sees keys j <= i + offset */
    double *x, *v, *gamma;  /* (R), (D), (K); one token's rows */
    double *S, *Z;          /* (K,D), (K): one block, Z behind S */
    int seen;               /* 0 while S and Z are empty: no key written (or all forgotten) and no state came in */
} gmai_naive_seq;

/* Check the values of the arguments and set up; every sequence then needs _select. */
gma_status gmai_naive_seq_init(gmai_naive_seq *s, const gma_mixer *m, const gmai_args *a, gmai_naive_mixture *mix);
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
