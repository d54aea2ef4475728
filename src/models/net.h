/* A network on (batch, steps) sequences: activations, forward and backward. The parameters belong to someone else.
 *
 * Memory: create allocates one arena; loss, logits and backward allocate nothing. `saved` activations exist only when
 * train = 1. A net is used by one thread at a time (which uses `threads` of its own). */
#ifndef GMA_MODELS_NET_H
#define GMA_MODELS_NET_H

#include "layers/layers.h"
#include "models/layout.h"

#define GMAL_PRECISION f32
#include "models/net_decl.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "models/net_decl.h"
#undef GMAL_PRECISION

#endif
