/* The layers, forward and backward, in f32 and f64. All arrays are dense row-major (rows, width) unless a row stride ld is
 * given; rows = B T. Gradients of parameters are ADDED to, gradients of activations are written, unless said otherwise.
 * `threads` >= 1; results do not depend on it: rows and columns are cut into fixed pieces, partial sums are added in
 * order. No layer allocates. No buffer may overlap another except where a function says so. */
#ifndef GMA_LAYERS_LAYERS_H
#define GMA_LAYERS_LAYERS_H

#include "gma/base.h"

enum gmal_norm_kind { GMAL_NORM_RMS = 0, GMAL_NORM_LAYER = 1 };
enum gmal_mlp_kind { GMAL_MLP_GELU = 0, GMAL_MLP_SWIGLU = 1 };

/* Parameter gradients of a norm are summed in this many groups of rows. */
enum { GMAL_GROUPS = 16 };

/* Dropout of one place in one step; rate 0 = off. */
typedef struct gmal_dropout {
    double rate;
    uint64_t key;
} gmal_dropout;

/* How rows are cut into sequences: `count` of `steps` rows each; or packed, without padding: with cu (count + 1 entries,
 * from 0, not falling) sequence b is the rows cu[b]..cu[b+1]-1, and steps is the length of the longest. */
typedef struct gmal_sequences {
    int64_t count, steps;
    const int32_t *cu;
} gmal_sequences;

/* What stands for a sequence: the mean of its rows, or its first row. */
enum { GMAL_POOL_MEAN = 0, GMAL_POOL_FIRST = 1 };

#define GMAL_PRECISION f32
#include "layers/layers_decl.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "layers/layers_decl.h"
#undef GMAL_PRECISION

#endif
