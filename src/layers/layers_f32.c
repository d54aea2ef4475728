/* The layers in f32. */
#include "layers/layers.h"

#define GMAL_PRECISION f32
#include "layers/layers_body.h"
