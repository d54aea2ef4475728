/* gma/gma.h - everything of libgma: the operator library without dependencies.
 * The language-model library (libgma_lm) has gma/io.h, gma/lm.h and gma/train.h. */
#ifndef GMA_GMA_H
#define GMA_GMA_H

#include "gma/attention.h"
#include "gma/base.h"
#include "gma/mixer.h"

#endif
