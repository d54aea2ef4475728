/* The table of mixers. */
#ifndef GMA_MIXERS_MIXERS_H
#define GMA_MIXERS_MIXERS_H

#include "mixers/mixer_impl.h"

#define X(name) extern const gmai_mixer_ops gmai_mixer_##name;
#include "mixers/mixers.inc"
#undef X

const gmai_mixer_ops *gmai_mixer_ops_of(int kind);

#endif
