/* What the heads of a model did with a text, gathered in one pass. Memory: for each head a few K x K and K x vocab
 * tables, and 4 bytes a token for its hard assignments; nothing else grows with the text. */
#ifndef GMA_INSPECT_COLLECT_H
#define GMA_INSPECT_COLLECT_H

#include "data/tokens.h"
#include "models/model.h"

enum { GMAL_TRACE = 64 }; /* places of the slot memory's trace */

/* One query head of one GMA layer. K components. A token has a posterior as a query (what it reads) and as a key (where
 * it writes). */
typedef struct gmal_head {
    int64_t layer, head, kv_head, components;
    int64_t tokens;
    double *usage_q, *usage_k; /* (K) sums of responsibilities over the tokens */
    double *mass;              /* (K,vocab) sums of key responsibilities by token id */
    double *gram_q, *gram_k;   /* (K,K) sums of gamma gamma^T over the first tokens, gram_tokens of them */
    int64_t gram_tokens;
    double entropy_q, entropy_k;   /* sums of the posteriors' entropies, nats */
    double overlap;                /* sum over tokens of sum_k min(gamma_q, gamma_k) */
    int64_t agree;                 /* tokens whose largest component is the same as query and as key */
    uint16_t *assign_q, *assign_k; /* (tokens) the largest component */
    double *trace; /* (GMAL_TRACE,K): Z_k after (t+1)/GMAL_TRACE of the first sequence, decay included */
    double decay;  /* sum of exp(log_decay) over the tokens; 0 without a forget gate */
    int forgets;
} gmal_head;

typedef struct gmal_collection {
    gmal_head *heads;
    int count;
    int64_t tokens, vocab, context;
    int32_t *ids;    /* (tokens) */
    int64_t *counts; /* (vocab) how often each token came */
    double loss;     /* nats a token, of the same windows */
} gmal_collection;

/* Runs the model over whole windows of `context` tokens of the span. layer, head: -1 = all. Errors: UNSUPPORTED for a
 * model without GMA layers, saying what it has; too short a text; OUT_OF_MEMORY. */
gma_status gmal_collect(const gma_lm *lm, const gmal_span *span, int64_t context, int64_t batch, int64_t layer,
                        int64_t head, int threads, gmal_collection *c);
void gmal_collection_free(gmal_collection *c);

#endif
