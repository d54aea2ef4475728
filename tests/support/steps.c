/* A sequence decoded token by token. */
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"

static gma_dtype dtype_of(const gma_slot_info *info, const tst_engine *e) {
    if (info->dtypes & 1u << GMA_BOOL)
        return GMA_BOOL;
    return e->io == GMA_BF16 && (info->dtypes & 1u << GMA_BF16) ? GMA_BF16 : GMA_F32;
}

static gma_tensor dense(const tst_array *a, gma_dtype dtype, void *buffer) {
    for (int64_t i = 0; i < a->n; i++) {
        if (dtype == GMA_BF16)
            ((uint16_t *)buffer)[i] = gma_f32_to_bf16((float)a->x[i]);
        else if (dtype == GMA_BOOL)
            ((uint8_t *)buffer)[i] = a->x[i] != 0;
        else
            ((float *)buffer)[i] = (float)a->x[i];
    }
    return gma_tensor_of(buffer, dtype, a->rank, a->shape[0], a->shape[1], a->shape[2], a->shape[3]);
}

/* One token `t` of the output: from a dense (.., 1, ..) tensor. */
static void store_token(tst_array *to, int dim, int64_t t, const gma_tensor *from) {
    int64_t inner = 1;
    for (int i = dim + 1; i < to->rank; i++)
        inner *= to->shape[i];
    const int64_t n = to->shape[dim] > 0 ? to->n / to->shape[dim] : 0;
    for (int64_t i = 0; i < n; i++)
        to->x[(i / inner * to->shape[dim] + t) * inner + i % inner] =
            from->dtype == GMA_BF16 ? (double)gma_bf16_to_f32(((const uint16_t *)from->data)[i])
                                    : (double)((const float *)from->data)[i];
}

tst_result tst_steps(const tst_problem *p, const tst_engine *e) {
    gma_mixer_desc d = p->desc;
    d.isa = e->isa;
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&d, &m));
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(m, e->threads, &size));
    void *state = aligned_alloc(64, (size.state + 63) / 64 * 64 + 64);
    memset(state, 0xff, size.state);

    int slots = 0, count = 0;
    const gma_slot_info *table = gma_mixer_slots((gma_mixer_kind)d.kind, &slots);
    void *buffers[TST_SLOTS] = {0};
    gma_arg args[TST_SLOTS];
    tst_result r;
    memset(&r, 0, sizeof r);
    for (int i = 0; i < slots; i++) {
        const int slot = table[i].slot, output = table[i].role == GMA_ROLE_OUTPUT;
        if (output)
            r.out[slot] = tst_array_of(&p->desc, slot);
        const tst_array *a = output ? &r.out[slot] : &p->in[slot];
        buffers[slot] = a->x ? calloc((size_t)a->n + 1, sizeof(float)) : NULL;
        if (a->x && !output && tst_token_dim(&d, slot) < 0)
            args[count++] = (gma_arg){slot, dense(a, GMA_F32, buffers[slot])};
    }
    TST_OK(gma_mixer_state_init(m, args, count, state));

    for (int64_t t = 0; t < p->desc.k_len; t++) {
        count = 0;
        for (int i = 0; i < slots; i++) {
            const int slot = table[i].slot, output = table[i].role == GMA_ROLE_OUTPUT;
            const tst_array *a = output ? &r.out[slot] : &p->in[slot];
            if (!a->x || tst_token_dim(&d, slot) < 0)
                continue;
            tst_array one = tst_array_tokens(&d, slot, a, t, 1);
            args[count].slot = slot;
            args[count++].tensor = dense(&one, dtype_of(&table[i], e), buffers[slot]);
            if (output)
                memset(buffers[slot], 0xff, (size_t)one.n * gma_dtype_size(dtype_of(&table[i], e)));
            tst_array_free(&one);
        }
        TST_OK(gma_mixer_step(m, args, count, state, e->threads));
        for (int i = 0; i < count; i++) {
            if (r.out[args[i].slot].x)
                store_token(&r.out[args[i].slot], tst_token_dim(&d, args[i].slot), t, &args[i].tensor);
        }
    }
    count = 0;
    for (int i = 0; i < slots; i++) {
        const tst_array *a = &r.out[table[i].slot];
        if (a->x && tst_token_dim(&d, table[i].slot) < 0)
            args[count++] = (gma_arg){table[i].slot, gma_tensor_of(a->x, GMA_F64, a->rank, a->shape[0], a->shape[1],
                                                                   a->shape[2], a->shape[3])};
    }
    TST_OK(gma_mixer_state_export(m, state, args, count));
    for (int i = 0; i < TST_SLOTS; i++)
        free(buffers[i]);
    free(state);
    gma_mixer_destroy(m);
    return r;
}
