/* Bodies of mixer_layer.h, once per precision. */
#include "layers/real.h"
#include "layers/watch.h"

enum { GMAL_T(max_args) = 2 * (GMAL_MIXER_PARAMS + 8) };

#define IO GMAL_T(gmal_mixer_io)
#define DTYPE (sizeof(gmal_real) == sizeof(float) ? GMA_F32 : GMA_F64)

typedef struct GMAL_T(gmal_args) {
    gma_arg list[GMAL_T(max_args)];
    int count;
} GMAL_T(gmal_args);

static void GMAL_T(put)(GMAL_T(gmal_args) * a, int32_t slot, gma_tensor t) {
    a->list[a->count].slot = slot;
    a->list[a->count++].tensor = t;
}

/* Heads of width n inside rows that are ld apart. */
static gma_tensor GMAL_T(heads_view)(int64_t batch, int64_t rows, gmal_real *p, int64_t ld, int64_t heads, int64_t n) {
    gma_tensor t = gma_tensor_of(p, DTYPE, 4, batch, heads, rows, n);
    t.stride[0] = rows * ld;
    t.stride[1] = n;
    t.stride[2] = ld;
    return t;
}

/* A tensor with the shape that the mixer's table gives its slot, its last rows `ld` apart (0 = dense). */
static void GMAL_T(put_dense)(const gma_mixer_desc *d, GMAL_T(gmal_args) * a, int32_t slot, int32_t bit, gmal_real *p,
                              int64_t ld) {
    const gma_slot_info *row = gmal_mixer_slot(d->kind, slot);
    int64_t n[GMA_MAX_RANK] = {1, 1, 1, 1};
    if (!p || !row)
        return;
    const int rank = gmal_mixer_shape(d, gma_slot_dims(row, 0), n);
    gma_tensor t = gma_tensor_of(p, DTYPE, rank, n[0], n[1], n[2], n[3]);
    if (ld && rank == 2)
        t.stride[0] = ld;
    GMAL_T(put)(a, slot | bit, t);
}

/* Rows of width n that are ld apart. */
static gma_tensor GMAL_T(rows_view)(const gma_mixer_desc *d, gmal_real *p, int64_t ld, int64_t n) {
    gma_tensor t = gma_tensor_of(p, DTYPE, 3, d->batch, d->q_len, n, 1);
    t.stride[0] = d->q_len * ld;
    t.stride[1] = ld;
    return t;
}

static void GMAL_T(append_scan)(const gma_mixer_desc *d, const IO *io, int32_t bit, GMAL_T(gmal_args) * a) {
    const int64_t E = d->heads * d->value_dim;
    GMAL_T(put)(a, GMA_U | bit, GMAL_T(rows_view)(d, io->u, E, E));
    GMAL_T(put)(a, GMA_DELTA | bit, GMAL_T(rows_view)(d, io->delta, E, E));
    GMAL_T(put)(a, GMA_SSM_B | bit, GMAL_T(rows_view)(d, io->b, io->ldb, d->components));
    GMAL_T(put)(a, GMA_SSM_C | bit, GMAL_T(rows_view)(d, io->c, io->ldb, d->components));
    GMAL_T(put)(a, GMA_Y | bit, GMAL_T(rows_view)(d, io->o, E, E));
}

static void GMAL_T(append_attention)(const gma_mixer_desc *d, const IO *io, int32_t bit, GMAL_T(gmal_args) * a) {
    const int64_t B = d->batch, Nq = d->q_len, Nk = d->k_len;
    GMAL_T(put)(a, GMA_Q | bit, GMAL_T(heads_view)(B, Nq, io->q, io->ldq, d->heads, d->routing_dim));
    GMAL_T(put)(a, GMA_K | bit, GMAL_T(heads_view)(B, Nk, io->k, io->ldk, d->kv_heads, d->routing_dim));
    GMAL_T(put)(a, GMA_V | bit, GMAL_T(heads_view)(B, Nk, io->v, io->ldk, d->kv_heads, d->value_dim));
    GMAL_T(put)(a, GMA_O | bit, GMAL_T(heads_view)(B, Nq, io->o, d->heads * d->value_dim, d->heads, d->value_dim));
    if (io->key_mask && !bit)
        GMAL_T(put)(a, GMA_KEY_MASK, gma_tensor_of(io->key_mask, GMA_U8, 2, B, Nk, 1, 1));
}

/* Appends every tensor of `io` that is there, in its slot or its gradient's. */
static void GMAL_T(append)(const gma_mixer_desc *d, const IO *io, int32_t bit, GMAL_T(gmal_args) * a) {
    if (io->u)
        GMAL_T(append_scan)(d, io, bit, a);
    else
        GMAL_T(append_attention)(d, io, bit, a);
    if (io->cu_seqlens && !bit)
        GMAL_T(put)(a, GMA_CU_SEQLENS, gma_tensor_of(io->cu_seqlens, GMA_I32, 1, d->segments + 1, 1, 1, 1));
    GMAL_T(put_dense)(d, a, GMA_LOG_DECAY, bit, io->log_decay, 0);
    GMAL_T(put_dense)(d, a, GMA_LOGIT_SCALE, bit, io->logit_scale, 0);
    for (int i = 0; i < io->params; i++)
        GMAL_T(put_dense)(d, a, io->slot[i], bit, io->param[i], io->ldp);
}

gma_status GMAL_T(gmal_mixer_forward)(const gma_mixer *mixer, const IO *io, const gma_exec *exec) {
    GMAL_T(gmal_args) a;
    gma_mixer_desc d;
    a.count = 0;
    gma_status s = gma_mixer_get_desc(mixer, &d);
    if (s != GMA_OK)
        return s;
    GMAL_T(append)(&d, io, 0, &a);
    const double began = gmal_watch_begin();
    s = DTYPE == GMA_F32 ? gma_mixer_forward(mixer, a.list, a.count, exec)
                         : gma_mixer_naive_forward(mixer, a.list, a.count);
    gmal_watch_end_mixer(began);
    return s;
}

gma_status GMAL_T(gmal_mixer_backward)(const gma_mixer *mixer, const IO *io, const IO *grad, const gma_exec *exec) {
    GMAL_T(gmal_args) a;
    gma_mixer_desc d;
    a.count = 0;
    gma_status s = gma_mixer_get_desc(mixer, &d);
    if (s != GMA_OK)
        return s;
    GMAL_T(append)(&d, io, 0, &a);
    GMAL_T(append)(&d, grad, GMA_GRAD_BIT, &a);
    const double began = gmal_watch_begin();
    s = DTYPE == GMA_F32 ? gma_mixer_backward(mixer, a.list, a.count, exec)
                         : gma_mixer_naive_backward(mixer, a.list, a.count);
    gmal_watch_end_mixer(began);
    return s;
}

#undef IO
#undef DTYPE
