/* The network in f32. */
#include "models/net.h"

#include "layers/mixer_layer.h"

#define GMAL_PRECISION f32
#include "models/net_body.h"
