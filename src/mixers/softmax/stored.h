/* Softmax attention as the textbook writes it, with all scores in memory: what quadratic memory costs. */
#ifndef GMA_MIXERS_SOFTMAX_STORED_H
#define GMA_MIXERS_SOFTMAX_STORED_H

#include "mixers/softmax/tiles.h"

/* Floats of all weights P: (B, Hq, blocks of queries, Nk, GMAI_CHUNK). Backward needs as many for dP. */
size_t gmai_stored_floats(const gma_mixer_desc *d);
size_t gmai_stored_work(const gmai_tiles *c);

void gmai_stored_forward(const gmai_tiles *c);
void gmai_stored_backward(const gmai_tiles *c);

#endif
