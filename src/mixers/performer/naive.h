/* Performer in double, straight from the definition: the positive features for linear_attention_naive.h. */
#ifndef GMA_MIXERS_PERFORMER_NAIVE_H
#define GMA_MIXERS_PERFORMER_NAIVE_H

#include "mixers/mixer_impl.h"

gma_status gmai_performer_naive_forward(const gma_mixer *m, const gmai_args *a);
gma_status gmai_performer_naive_backward(const gma_mixer *m, const gmai_args *a);

#endif
