/* A head's mixture in the form the kernels want, and GMA's feature map for the engine. */
#ifndef GMA_MIXERS_GMA_MIXTURE_H
#define GMA_MIXERS_GMA_MIXTURE_H

#include "engine/engine.h"

/* Prepared data of one key head; lies in scratch, everything it points to right behind it. */
typedef struct gmai_gma_head {
    gmai_mixture m;
    double scale, eps_sigma;
    float *center, *w, *mw, *blocked, *konst, *dsigma;
    double *log_weight; /* (K) alpha_k - sum_r log(sigma2) / 2, less the largest of them */
    float *omega_row, *mu_row; /* work of the preparation */
    float *column_work; /* (3, rp), likewise */
} gmai_gma_head;

size_t gmai_gma_head_size(int64_t k, int64_t r);

/* Place a head into `memory` (gmai_gma_head_size bytes, 64-byte aligned) and prepare it from the parameters.
 * want_slope: dsigma too, which only gradients need. */
void gmai_gma_prepare(const gmai_kernels *kern, const gma_tensor *mu, const gma_tensor *omega, const gma_tensor *alpha,
                      const gma_tensor *scale, int64_t h, double eps_sigma, int want_slope, void *memory);

/* For tiles: no centre where that lies within a few sigma of 0 already, so that bf16 tokens stay as they are stored. */
void gmai_gma_drop_center(const gmai_kernels *kern, gmai_gma_head *head);

/* The parameter sums of one head and bin, floats: sum_t (K, rp), sum_tt (K, rp), n (K). */
size_t gmai_gma_sums_floats(int64_t k, int64_t r);

/* Sums -> gradients of head h. */
void gmai_gma_finish(const gmai_gma_head *head, const float *sums, int64_t h, const gma_tensor *dmu,
                     const gma_tensor *domega, const gma_tensor *dalpha, const gma_tensor *dscale);

extern const gmai_map gmai_gma_map;

gma_status gmai_gma_check_scale(const gma_tensor *scale, int64_t heads);

#endif
