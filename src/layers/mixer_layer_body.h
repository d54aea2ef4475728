/* Bodies of mixer_layer.h, once per precision. */
#include <stddef.h>

#include "layers/real.h"
#include "layers/watch.h"

enum { GMAL_T(max_args) = 24 };

#define IO GMAL_T(gmal_mixer_io)
#define DTYPE (sizeof(gmal_real) == sizeof(float) ? GMA_F32 : GMA_F64)

/* How each slot lies in memory: which member, and its extents as letters (see gma_slot_info.dims). */
typedef struct GMAL_T(slot_row) {
    int32_t slot;
    size_t member;
    const char *dims;
} GMAL_T(slot_row);

static const GMAL_T(slot_row) GMAL_T(slot_rows)[] = {
    {GMA_Q, offsetof(IO, q), "hR"},         {GMA_K, offsetof(IO, k), "HR"},
    {GMA_V, offsetof(IO, v), "HD"},         {GMA_MU, offsetof(IO, mu), "HKR"},
    {GMA_OMEGA, offsetof(IO, omega), "HKR"}, {GMA_ALPHA, offsetof(IO, alpha), "HK"},
    {GMA_LOGIT_SCALE, offsetof(IO, logit_scale), "H"}, {GMA_LOG_DECAY, offsetof(IO, log_decay), "BHN"},
};

static int64_t GMAL_T(extent)(const gma_mixer_desc *d, char letter) {
    switch (letter) {
    case 'B': return d->batch;
    case 'h': return d->heads;
    case 'H': return d->kv_heads;
    case 'N': return d->k_len;
    case 'K': return d->components;
    case 'R': return d->routing_dim;
    default: return d->value_dim;
    }
}

/* Heads of width n inside rows that are ld apart. */
static gma_tensor GMAL_T(heads_view)(const gma_mixer_desc *d, gmal_real *p, int64_t ld, int64_t heads, int64_t n) {
    gma_tensor t = gma_tensor_of(p, DTYPE, 4, d->batch, heads, d->q_len, n);
    t.stride[0] = d->q_len * ld;
    t.stride[1] = n;
    t.stride[2] = ld;
    return t;
}

static gma_tensor GMAL_T(view)(const gma_mixer_desc *d, const GMAL_T(slot_row) * row, gmal_real *p, int64_t ld) {
    const char *s = row->dims;
    if (row->slot == GMA_Q || row->slot == GMA_K || row->slot == GMA_V)
        return GMAL_T(heads_view)(d, p, ld, GMAL_T(extent)(d, s[0]), GMAL_T(extent)(d, s[1]));
    int64_t n[3] = {1, 1, 1};
    int rank = 0;
    for (; s[rank]; rank++) n[rank] = GMAL_T(extent)(d, s[rank]);
    return gma_tensor_of(p, DTYPE, rank, n[0], n[1], n[2], 1);
}

/* Appends every tensor of `io` that is there and that the mixer knows, in its slot or its gradient's. */
static int GMAL_T(append)(const gma_mixer_desc *d, const IO *io, int32_t bit, gma_arg *args, int count) {
    for (size_t i = 0; i < sizeof GMAL_T(slot_rows) / sizeof GMAL_T(slot_rows)[0]; i++) {
        const GMAL_T(slot_row) *row = &GMAL_T(slot_rows)[i];
        gmal_real *p = *(gmal_real *const *)((const char *)io + row->member);
        if (!p || !gmal_mixer_has(d->kind, row->slot)) continue;
        args[count].slot = row->slot | bit;
        args[count++].tensor = GMAL_T(view)(d, row, p, io->ld);
    }
    if (io->o) {
        args[count].slot = GMA_O | bit;
        args[count++].tensor = GMAL_T(heads_view)(d, io->o, d->heads * d->value_dim, d->heads, d->value_dim);
    }
    return count;
}

gma_status GMAL_T(gmal_mixer_forward)(const gma_mixer *mixer, const IO *io, const gma_exec *exec) {
    gma_arg args[GMAL_T(max_args)];
    gma_mixer_desc d;
    d.struct_size = sizeof d;
    gma_status s = gma_mixer_get_desc(mixer, &d);
    if (s != GMA_OK) return s;
    const int count = GMAL_T(append)(&d, io, 0, args, 0);
    const double began = gmal_watch_begin();
    s = DTYPE == GMA_F32 ? gma_mixer_forward(mixer, args, count, exec) : gma_mixer_naive_forward(mixer, args, count);
    gmal_watch_end_mixer(began);
    return s;
}

gma_status GMAL_T(gmal_mixer_backward)(const gma_mixer *mixer, const IO *io, const IO *grad, const gma_exec *exec) {
    gma_arg args[GMAL_T(max_args)];
    gma_mixer_desc d;
    d.struct_size = sizeof d;
    gma_status s = gma_mixer_get_desc(mixer, &d);
    if (s != GMA_OK) return s;
    int count = GMAL_T(append)(&d, io, 0, args, 0);
    count = GMAL_T(append)(&d, grad, GMA_GRAD_BIT, args, count);
    const double began = gmal_watch_begin();
    s = DTYPE == GMA_F32 ? gma_mixer_backward(mixer, args, count, exec) : gma_mixer_naive_backward(mixer, args, count);
    gmal_watch_end_mixer(began);
    return s;
}

#undef IO
#undef DTYPE
