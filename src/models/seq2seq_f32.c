/* The network of task seq2seq in f32. */
#include "models/seq2seq.h"

#include "layers/mixer_layer.h"

#define GMAL_PRECISION f32
#include "models/seq2seq_body.h"
