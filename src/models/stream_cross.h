/* What the decoder of a seq2seq model reads while it runs token by token: keys and values of the encoder's output, made once
 * for a source, for every layer. All memory is taken at create. */
#ifndef GMA_MODELS_STREAM_CROSS_H
#define GMA_MODELS_STREAM_CROSS_H

#include "models/model.h"

typedef struct gmal_cross gmal_cross;

gma_status gmal_cross_create(const gma_lm *lm, int threads, gmal_cross **cross);
void gmal_cross_destroy(gmal_cross *cross);

/* The source: `length` rows of the encoder's output, 1 <= length <= context. */
gma_status gmal_cross_set(gmal_cross *cross, const float *memory, int64_t length);

/* Runs the encoder for it. */
gma_status gmal_cross_encode(gmal_cross *cross, const int32_t *tokens, int64_t length);

/* 0: none yet. */
int64_t gmal_cross_length(const gmal_cross *cross);

/* Bytes that a source leaves. */
size_t gmal_cross_bytes(const gmal_cross *cross);

/* y (width) from the normalised stream n (width). */
gma_status gmal_cross_step(gmal_cross *cross, int64_t layer, const float *n, float *y);

#endif
