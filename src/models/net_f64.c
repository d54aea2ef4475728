/* The network in f64. */
#include "models/net.h"

#include "layers/mixer_layer.h"

#define GMAL_PRECISION f64
#include "models/net_body.h"
