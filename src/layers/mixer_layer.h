/* The mixer inside a block: libgma's mixer on strided views of the projections. Which tensors a mixer takes is read from
 * its own slot table (gma_mixer_slots), so a mixer that needs fewer of them needs no code here; one that needs others gets
 * a member in gmal_mixer_io and a row in the table of mixer_layer_body.h.
 * f32 runs the production kernels, f64 the naive definition. */
#ifndef GMA_LAYERS_MIXER_LAYER_H
#define GMA_LAYERS_MIXER_LAYER_H

#include "gma/mixer.h"

/* 1 when the mixer has that slot. */
int gmal_mixer_has(int32_t kind, int32_t slot);

#define GMAL_PRECISION f32
#include "layers/mixer_layer_decl.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "layers/mixer_layer_decl.h"
#undef GMAL_PRECISION

#endif
