/* gma/verify.h - what is proved of Gaussian Mixture Attention, measured. Part of libgma_lm. Since 0.1.
 *
 * V = max |v_j|, |x| <= B, |mu_k| <= M, s = the smallest variance / logit_scale, |.| Euclidean:
 *
 *   (i)   gamma >= 0 and its rows sum to 1; the affinity gamma^q gamma^k^T without mask has entries in [0,1] and rank K; its
 *         causal lower triangle is not of low rank: sigma_(K+1) >= (prod a_ii / sigma_1^K)^(1/(N-K))
 *   (ii)  |dL/dlogit_k| <= gamma_k (1 - gamma_k) (max g - min g), g = dL/dgamma;
 *         sum_k |dO_i/dlogit^q_ik| <= V (<= 3V), sum_jk |dO_i/dlogit^k_jk| <= 2V (<= 4V), however small the denominator
 *   (iii) |gamma(x) - gamma(y)|_1 <= L |x - y|, L = (M + B/2)/s (<= 2(B + M)/s), and no bound without a floor of s
 *
 * docs/theory.md proves them. Each is measured with the definition in double and with the kernels of every CPU tier that
 * runs here, and set beside its bound. */
#ifndef GMA_VERIFY_H
#define GMA_VERIFY_H

#include "gma/lm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gma_verify_options {
    size_t struct_size; /* set by gma_verify_options_init */
    int32_t threads;    /* 0 = gma_max_threads() */
    int32_t reserved;
    int64_t pairs;      /* of tokens drawn for (iii), over all mixtures, for each engine; 1000000 */
    int64_t mixtures;   /* 0: every query head of a model, four drawn ones (and always two made to reach the bounds); else as many, spread over a model that has them */
    int64_t components; /* of drawn mixtures, at most 1024; 16 */
    int64_t width;      /* R = D of drawn mixtures, at most 4096; 8 */
    int64_t context;    /* tokens of a window of the text; 0 = as trained */
    uint64_t seed;      /* 1 */
    double bound_scale; /* 1. Every upper bound times this, every lower one divided by it: to see a violation reported */
    const char *data;   /* with a model: a text whose queries, keys and values are taken (as gma_eval takes it); NULL: drawn
                           ones */
} gma_verify_options;

GMA_API gma_status gma_verify_options_init(gma_verify_options *options);

typedef struct gma_verification gma_verification;

/** gma_verify() - check all statements on the mixtures of a model, or (lm NULL) on drawn ones and two that come close to
 *  the bounds of (ii). 4K tokens a mixture. A violation is a result, not an error: see gma_verification_violations().
 *  Allocates; one thread at a time for a verification. *verification is NULL after a failure.
 *  Errors: UNSUPPORTED for a model without GMA layers; INVALID_ARGUMENT (a text shorter than 4K tokens among them); IO; FORMAT. */
GMA_API gma_status gma_verify(const gma_lm *lm, const gma_verify_options *options, gma_verification **verification);
GMA_API void gma_verification_destroy(gma_verification *verification); /* NULL is fine */

/** gma_verify_row - one statement with one engine: the mixture that comes closest to its bound, or passes it farthest. */
typedef struct gma_verify_row {
    size_t struct_size;  /* set by the caller */
    const char *engine;  /* "double", or a tier's name; static */
    char statement[8];   /* "i", "ii", "iii" */
    char what[88];
    int32_t relation;    /* -1: measured <= bound (1 + rounding); 1: measured >= bound (1 - rounding); 0: only told */
    int32_t holds;       /* for every mixture */
    double measured, bound, rounding;
    int64_t layer, head; /* of that mixture; layer -1: drawn mixture number `head` */
    int64_t checked;     /* numbers compared, over all mixtures */
    int64_t violations;  /* comparisons that failed */
} gma_verify_row;

GMA_API int gma_verification_rows(const gma_verification *verification);
GMA_API gma_status gma_verification_row(const gma_verification *verification, int row, gma_verify_row *out);
GMA_API int gma_verification_mixtures(const gma_verification *verification);
GMA_API int64_t gma_verification_violations(const gma_verification *verification); /* rows that do not hold */

#ifdef __cplusplus
}
#endif
#endif
