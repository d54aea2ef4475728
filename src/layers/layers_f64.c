/* The layers in f64. */
#include "layers/layers.h"

#define GMAL_PRECISION f64
#include "layers/layers_body.h"
