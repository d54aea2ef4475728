/* A network on (batch, steps) sequences: activations, forward and backward. The parameters belong to someone else.
 *
 * Memory: create allocates one arena; loss, logits and backward allocate nothing. A net is used by one thread at a time (which uses `threads` of its own). */
#ifndef GMA_MODELS_NET_H
#define GMA_MODELS_NET_H

#include "layers/layers.h"
#include "models/layout.h"

/* Which activations are kept until backward: none, all of every block, or only the input of every block - the rest is
 * then computed a second time (about a third more work, the same bits). */
typedef enum gmal_net_use { GMAL_NET_EVALUATE = 0, GMAL_NET_TRAIN = 1, GMAL_NET_RECOMPUTE = 2 } gmal_net_use;

#define GMAL_PRECISION f32
#include "models/net_decl.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "models/net_decl.h"
#undef GMAL_PRECISION

#endif
