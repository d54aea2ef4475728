/* Decoding one token at a time. */
#ifndef GMA_MIXERS_GMA_STEP_H
#define GMA_MIXERS_GMA_STEP_H

#include "mixers/mixer_impl.h"

size_t gmai_gma_state_size(const gma_mixer_desc *d);
gma_status gmai_gma_state_init(const gma_mixer *m, const gmai_args *a, void *state);
gma_status gmai_gma_step(const gma_mixer *m, const gmai_args *a, void *state, int threads);
gma_status gmai_gma_state_export(const gma_mixer *m, const void *state, const gmai_args *a);

#endif
