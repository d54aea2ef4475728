/* Mixtures to look at, and tokens for them. */
#ifndef GMA_THEORY_CASES_H
#define GMA_THEORY_CASES_H

#include "gma/verify.h"
#include "theory/engine.h"

typedef struct gmal_cases {
    gmal_case *item;
    int count;
} gmal_cases;

/* A case with room for its numbers, which are 0; logit_scale 1, eps and eps_sigma as published. */
gma_status gmal_case_make(gmal_case *m, int64_t k, int64_t r, int64_t d, int64_t n);

/* Tokens as the mixture itself would draw them, and normal values. */
void gmal_case_draw_tokens(gmal_case *m, uint64_t key);

/* Drawn mixtures, and after them two that come close to the bounds of (ii). */
gma_status gmal_cases_random(const gma_verify_options *o, gmal_cases *cases);

/* The query heads of the GMA layers of a model with 4K tokens each: those of the text o->data, or drawn ones. */
gma_status gmal_cases_model(const gma_lm *lm, const gma_verify_options *o, gmal_cases *cases);

void gmal_cases_free(gmal_cases *cases);

#endif
