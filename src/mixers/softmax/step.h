/* Decoding with softmax attention: a cache of keys and values. */
#ifndef GMA_MIXERS_SOFTMAX_STEP_H
#define GMA_MIXERS_SOFTMAX_STEP_H

#include "mixers/mixer_impl.h"

size_t gmai_softmax_state_size(const gma_mixer *m); /* 0: the mixer cannot decode */
gma_status gmai_softmax_state_init(const gma_mixer *m, const gmai_args *a, void *state);
gma_status gmai_softmax_step(const gma_mixer *m, const gmai_args *a, void *state, int threads);

#endif
