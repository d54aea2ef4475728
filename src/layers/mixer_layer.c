/* The mixer inside a block, in both precisions. */
#include "layers/mixer_layer.h"

#define GMAL_PRECISION f32
#include "layers/mixer_layer_body.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "layers/mixer_layer_body.h"
#undef GMAL_PRECISION

int gmal_mixer_has(int32_t kind, int32_t slot) {
    int count = 0;
    const gma_slot_info *rows = gma_mixer_slots((gma_mixer_kind)kind, &count);
    for (int i = 0; rows && i < count; i++)
        if (rows[i].slot == slot) return 1;
    return 0;
}
