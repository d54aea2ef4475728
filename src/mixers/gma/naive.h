/* Gaussian Mixture Attention in double, straight from the definition (formulas: gma/mixer.h), to be read:
 *
 *   naive_mixture.c              gamma(x) and its adjoint
 *   naive.c                      gamma as a feature map
 *   ../linear_attention_naive*   S, Z and o as a recurrence over tokens, and the same backwards
 *
 * A removed component (alpha = -inf) is skipped, never multiplied by 0: whatever its mean and width are. */
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

/* ---- shared by the two files ------------------------------------------------------------------------ */

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

#endif
