/* Softmax attention in double, straight from the definition. */
#ifndef GMA_MIXERS_SOFTMAX_NAIVE_H
#define GMA_MIXERS_SOFTMAX_NAIVE_H

#include "mixers/mixer_impl.h"

gma_status gmai_softmax_naive_forward(const gma_mixer *m, const gmai_args *a);
gma_status gmai_softmax_naive_backward(const gma_mixer *m, const gmai_args *a);

#endif
