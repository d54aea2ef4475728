/* The Linear Transformer in double, straight from the definition: elu(x) + 1 for linear_attention_naive.h. */
#ifndef GMA_MIXERS_LINEAR_NAIVE_H
#define GMA_MIXERS_LINEAR_NAIVE_H

#include "mixers/mixer_impl.h"

gma_status gmai_linear_naive_forward(const gma_mixer *m, const gmai_args *a);
gma_status gmai_linear_naive_backward(const gma_mixer *m, const gmai_args *a);

#endif
