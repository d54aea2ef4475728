/* The mixer inside a block: libgma's mixer on strided views of the projections. Which tensors a mixer takes, and the
 * shape of its parameters, is read from its own slot table (gma_mixer_slots), so a new mixer on q, k and v needs no
 * code here. f32 runs the production kernels, f64 the naive definition. */
#ifndef GMA_LAYERS_MIXER_LAYER_H
#define GMA_LAYERS_MIXER_LAYER_H

#include "gma/mixer.h"

/* Parameter tensors of one mixer that its table requires. */
enum { GMAL_MIXER_PARAMS = 4 };

/* 1 when the mixer has that slot. */
int gmal_mixer_has(int32_t kind, int32_t slot);

/* The mixer's row of that slot; NULL when it has none. */
const gma_slot_info *gmal_mixer_slot(int32_t kind, int32_t slot);

/* The extents of a tensor whose dims the table writes as letters (of gma_slot_dims: the smallest rank), of which B, H, h, K, M, R, D, E and k (tokens) are known
 * here. Returns the rank. */
int gmal_mixer_shape(const gma_mixer_desc *d, const char *dims, int64_t *shape);

#define GMAL_PRECISION f32
#include "layers/mixer_layer_decl.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "layers/mixer_layer_decl.h"
#undef GMAL_PRECISION

#endif
