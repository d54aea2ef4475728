/* One component of a head as people want to see it: how much it is used, what its Gaussian is, and for which tokens. */
#ifndef GMA_INSPECT_COMPONENTS_H
#define GMA_INSPECT_COMPONENTS_H

#include "inspect/inspection.h"

typedef struct gmal_component {
    double usage_q, usage_k;                          /* mean responsibilities */
    double prior;                                     /* softmax(alpha) */
    double variance_mean, variance_min, variance_max; /* softplus(omega) + eps_sigma over the routing width */
} gmal_component;

/* Of all components of head number `head` of the inspection: out (K). */
void gmal_components(const gma_inspection *n, int head, gmal_component *out);

typedef struct gmal_top_token {
    int32_t id;
    double share;          /* of the component's key responsibility */
    double responsibility; /* of the component, mean over the occurrences of the token */
} gmal_top_token;

/* The tokens that weigh most in a component, at most `most` of them; returns how many. */
int gmal_top_tokens(const gma_inspection *n, int head, int64_t component, int most, gmal_top_token *out);

/* (x,y) of every mean on the plane of the two largest principal components of the means: xy (K,2), and the shares of
 * their variance. K or R up to some hundred. OUT_OF_MEMORY. */
gma_status gmal_principal_plane(const float *mu, int64_t components, int64_t width, double *xy, double explained[2]);

#endif
