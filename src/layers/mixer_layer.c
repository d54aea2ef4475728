/* The mixer inside a block, in both precisions. */
#include "layers/mixer_layer.h"

const gma_slot_info *gmal_mixer_slot(int32_t kind, int32_t slot) {
    int count = 0;
    const gma_slot_info *rows = gma_mixer_slots((gma_mixer_kind)kind, &count);
    for (int i = 0; rows && i < count; i++)
        if (rows[i].slot == slot)
            return &rows[i];
    return NULL;
}

int gmal_mixer_has(int32_t kind, int32_t slot) { return gmal_mixer_slot(kind, slot) != NULL; }

int gmal_mixer_shape(const gma_mixer_desc *d, const char *dims, int64_t *shape) {
    int rank = 0;
    for (; dims[rank]; rank++) {
        switch (dims[rank]) {
        case 'B':
            shape[rank] = d->batch;
            break;
        case 'h':
            shape[rank] = d->heads;
            break;
        case 'H':
            shape[rank] = d->kv_heads;
            break;
        case 'k':
            shape[rank] = d->k_len;
            break;
        case 'K':
        case 'M':
            shape[rank] = d->components;
            break;
        case 'R':
            shape[rank] = d->routing_dim;
            break;
        default:
            shape[rank] = d->value_dim;
            break;
        }
    }
    return rank;
}

#define GMAL_PRECISION f32
#include "layers/mixer_layer_body.h"
#undef GMAL_PRECISION
#define GMAL_PRECISION f64
#include "layers/mixer_layer_body.h"
#undef GMAL_PRECISION
