/* The network of task seq2seq: an encoder over (batch, context) source tokens, and a decoder of context + 1 tokens that reads
 * its output. Memory and threads as in net.h. */
#ifndef GMA_MODELS_SEQ2SEQ_H
#define GMA_MODELS_SEQ2SEQ_H

#include "models/net.h"

#define GMAL_PRECISION f32
#include "models/seq2seq_decl.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "models/seq2seq_decl.h"
#undef GMAL_PRECISION

#endif
