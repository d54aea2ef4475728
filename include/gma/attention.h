/* gma/attention.h - Gaussian Mixture Attention in one call, for those who want just that.
 * Formula and rules: gma/mixer.h. These functions allocate what they need and free it. Since 0.1. */
#ifndef GMA_ATTENTION_H
#define GMA_ATTENTION_H

#include "gma/mixer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** gma_attention() - o = GMA(q, k, v), dense row-major float32.
 *  q (B,H,Nq,R)  k (B,H,Nk,R)  v (B,H,Nk,D)  mu, omega (H,K,R)  alpha (H,K)  o (B,H,Nq,D).
 *  causal: 0 or 1 (aligned at the end). eps and eps_sigma take their defaults. threads: 0 = gma_max_threads().
 *  No output may overlap an input. Errors as gma_mixer_create and gma_mixer_forward. */
GMA_API gma_status gma_attention(const float *q, const float *k, const float *v, const float *mu, const float *omega,
                                 const float *alpha, float *o, int64_t batch, int64_t heads, int64_t q_len,
                                 int64_t k_len, int64_t routing_dim, int64_t value_dim, int64_t components,
                                 int causal, int threads);

/** gma_responsibilities() - gamma(x): which component each token is routed through.
 *  x (B,Hx,N,R) F32, BF16 or F64; mu, omega (H,K,R), alpha (H,K), logit_scale (H) or NULL, all F32 or all F64;
 *  gamma (B,Hx,N,K) F32 or F64, rows >= 0 that sum to 1. H divides Hx; head h uses mixture h / (Hx / H).
 *  isa: a tier of the production kernels (F32 and BF16 only); `naive` != 0: the definition in double instead. */
GMA_API gma_status gma_responsibilities(const gma_tensor *x, const gma_tensor *mu, const gma_tensor *omega,
                                        const gma_tensor *alpha, const gma_tensor *logit_scale,
                                        const gma_tensor *gamma, double eps_sigma, gma_isa isa, int naive,
                                        int threads);

#ifdef __cplusplus
}
#endif
#endif
