/* TRY(call): a gma_status that is not GMA_OK ends the function with it. */
#ifndef GMA_LAYERS_TRY_H
#define GMA_LAYERS_TRY_H

#include "gma/base.h"

#define TRY(call)                              \
    do {                                       \
        const gma_status status_ = (call);     \
        if (status_ != GMA_OK) return status_; \
    } while (0)

#endif
