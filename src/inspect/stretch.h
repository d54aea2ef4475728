/* A stretch of the text, looked at token by token: posteriors, and the attention that the routing amounts to.
 *
 * GMA never makes a matrix of attention, but its output is one times v (no value enters):
 *
 *   a_ij = exp(cs_i - cs_j) gamma_q_i . gamma_k_j / (gamma_q_i . Z_i + eps)     j <= i, cs = running sum of log_decay
 *
 * Beside it softmax(q_i . k_j / sqrt(R)) of the same queries and keys: what softmax attention would do with them,
 * though they were not trained for it. Keys before the stretch (in its window of the text) are summed into one number.
 */
#ifndef GMA_INSPECT_STRETCH_H
#define GMA_INSPECT_STRETCH_H

#include "inspect/inspection.h"

typedef struct gmal_stretch_head {
    float *gamma_q, *gamma_k;           /* (tokens,K) */
    float *gma, *softmax;               /* (span,span), 0 above the diagonal */
    float *gma_before, *softmax_before; /* (span): on keys of the window before the stretch */
} gmal_stretch_head;

typedef struct gmal_stretch {
    int64_t begin;  /* number of its first token in the text */
    int64_t tokens; /* whose posteriors are there; windows follow each other, each from an empty state */
    int64_t span;   /* of the attention; within the first window */
    int64_t before; /* tokens of the window before it */
    int count;
    gmal_stretch_head *heads; /* the first `count` of the inspection */
} gmal_stretch;

/* tokens and span are cut to what the text and the window hold. INVALID_ARGUMENT: begin is outside the text. */
gma_status gmal_stretch_create(const gma_inspection *n, int64_t begin, int64_t tokens, int64_t span, int heads,
                               gmal_stretch *s);
void gmal_stretch_free(gmal_stretch *s);

/* One head's attention over rows and keys first .. first + span - 1 of a window; keys 0 .. first - 1 go to `before`.
 * Keys are worked through in blocks: memory does not grow with first. gamma (.,K), decay (.) or NULL. */
void gmal_implied_attention(const float *gamma_q, const float *gamma_k, const float *decay, int64_t components,
                            double eps, int64_t first, int64_t span, float *out, float *before);
/* The same for softmax; rows of q and k are ld apart. */
void gmal_softmax_attention(const float *q, const float *k, int64_t ld, int64_t width, int64_t first, int64_t span,
                            float *out, float *before);

#endif
