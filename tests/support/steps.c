/* A sequence decoded token by token. */
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"

/* Row t of a (B,heads,N,width) tensor as (B,heads,1,width), or of (B,heads,N) as (B,heads,1), in the storage type. */
static gma_tensor row_of(const tst_array *a, int64_t t, gma_dtype dtype, void *buffer) {
    const int mask = a->rank == 2;
    const int64_t B = a->shape[0], H = mask ? 1 : a->shape[1], N = a->shape[mask ? 1 : 2];
    const int64_t W = a->rank == 4 ? a->shape[3] : 1;
    for (int64_t i = 0; i < B * H * W; i++) {
        const double x = a->x[(i / W * N + t) * W + i % W];
        if (dtype == GMA_BF16)
            ((uint16_t *)buffer)[i] = gma_f32_to_bf16((float)x);
        else if (dtype == GMA_BOOL)
            ((uint8_t *)buffer)[i] = x != 0;
        else
            ((float *)buffer)[i] = (float)x;
    }
    if (mask)
        return gma_tensor_of(buffer, dtype, 2, B, 1, 0, 0);
    return gma_tensor_of(buffer, dtype, a->rank, B, H, 1, W);
}

static gma_tensor dense_f32(const tst_array *a, float *buffer) {
    for (int64_t i = 0; i < a->n; i++)
        buffer[i] = (float)a->x[i];
    return gma_tensor_of(buffer, GMA_F32, a->rank, a->shape[0], a->shape[1], a->shape[2], a->shape[3]);
}

tst_result tst_steps(const tst_problem *p, const tst_engine *e) {
    gma_mixer_desc d = p->desc;
    d.isa = e->isa;
    const int has_state = tst_slot_info(&d, GMA_OUT_S) != NULL;
    if (!has_state && d.window == 0)
        d.cache_len = d.k_len; /* its state is what it has seen */
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&d, &m));
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(m, e->threads, &size));
    void *state = aligned_alloc(64, (size.state + 63) / 64 * 64 + 64);
    void *buffers[8] = {0};
    gma_arg args[8];
    int count = 0;
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const tst_array *a = &p->in[slot];
        const gma_slot_info *info = a->x ? tst_slot_info(&p->desc, slot) : NULL;
        if (!info || (info->role != GMA_ROLE_PARAM && slot != GMA_STATE_S && slot != GMA_STATE_Z))
            continue;
        buffers[count] = calloc((size_t)a->n + 1, sizeof(float));
        args[count] = (gma_arg){slot, dense_f32(a, buffers[count])};
        count++;
    }
    memset(state, 0xff, size.state);
    TST_OK(gma_mixer_state_init(m, args, count, state));
    for (int i = 0; i < count; i++)
        free(buffers[i]);

    tst_result r;
    memset(&r, 0, sizeof r);
    r.out[GMA_O] = tst_array_of(&p->desc, GMA_O);
    for (int slot = GMA_OUT_S; slot <= GMA_OUT_Z && has_state; slot++)
        r.out[slot] = tst_array_of(&p->desc, slot);
    static const int rows[] = {GMA_Q, GMA_K, GMA_V, GMA_LOG_DECAY, GMA_KEY_MASK};
    const int64_t N = p->desc.k_len, D = p->desc.value_dim, outputs = p->desc.batch * p->desc.heads * D;
    for (int i = 0; i < 5; i++)
        buffers[i] = calloc((size_t)(p->in[rows[i]].n + 1), sizeof(float));
    float *o = calloc((size_t)outputs + 1, sizeof(float));
    for (int64_t t = 0; t < N; t++) {
        count = 0;
        for (int i = 0; i < 5; i++) {
            const gma_dtype dtype = i < 3 ? e->io : i == 3 ? GMA_F32 : GMA_BOOL;
            if (p->in[rows[i]].x)
                args[count++] = (gma_arg){rows[i], row_of(&p->in[rows[i]], t, dtype, buffers[i])};
        }
        args[count++] = (gma_arg){GMA_O, gma_tensor_of(o, e->io, 4, p->desc.batch, p->desc.heads, 1, D)};
        memset(o, 0xff, (size_t)outputs * sizeof *o);
        TST_OK(gma_mixer_step(m, args, count, state, e->threads));
        for (int64_t i = 0; i < outputs; i++)
            r.out[GMA_O].x[(i / D * N + t) * D + i % D] =
                e->io == GMA_BF16 ? (double)gma_bf16_to_f32(((uint16_t *)(void *)o)[i]) : (double)o[i];
    }
    const tst_array *S = &r.out[GMA_OUT_S], *Z = &r.out[GMA_OUT_Z];
    const gma_arg out[] = {
        {GMA_OUT_S, gma_tensor_of(S->x, GMA_F64, 4, S->shape[0], S->shape[1], S->shape[2], S->shape[3])},
        {GMA_OUT_Z, gma_tensor_of(Z->x, GMA_F64, 3, Z->shape[0], Z->shape[1], Z->shape[2], 0)}};
    if (has_state)
        TST_OK(gma_mixer_state_export(m, state, out, 2));
    for (int i = 0; i < 5; i++)
        free(buffers[i]);
    free(o);
    free(state);
    gma_mixer_destroy(m);
    return r;
}
