/* From a list of arguments to tensors by slot, every one checked. */
#ifndef GMA_MIXERS_ARGS_H
#define GMA_MIXERS_ARGS_H

#include "mixers/mixer_impl.h"

typedef enum gmai_call_kind {
    GMAI_CALL_FORWARD,
    GMAI_CALL_BACKWARD,
    GMAI_CALL_NAIVE_FORWARD,
    GMAI_CALL_NAIVE_BACKWARD,
    GMAI_CALL_STATE_INIT,
    GMAI_CALL_STEP,
    GMAI_CALL_STATE_EXPORT
} gmai_call_kind;

gma_status gmai_args_check(const gma_mixer *m, gmai_call_kind call, const gma_arg *args, int count, gmai_args *a);

/* One tensor against a list of extents; `want` names what it is in messages. */
gma_status gmai_tensor_check(const gma_tensor *t, const char *name, const int64_t *shape, int rank, uint32_t dtypes,
                             int width, int output);

#endif
