#include "models/stream_cross.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/layers.h"
#include "layers/mixer_layer.h"
#include "layers/try.h"
#include "models/seq2seq.h"

typedef struct layer {
    gma_mixer *mixer; /* one query, `context` keys, of which the source's are not masked */
    size_t scratch;
    float *kv; /* (context, kv) */
    float *scale; /* (kv_heads) */
} layer;

struct gmal_cross {
    const gma_lm *lm;
    const gmal_kernels_f32 *kernels;
    int threads;
    layer *layers;
    gmal_seq2seq_f32 *encoder;
    int32_t *source; /* (context) */
    unsigned char *mask;
    float *p, *o; /* one row, as wide as the widest layer */
    void *scratch, *arena;
    size_t scratch_bytes, kv_bytes;
    int64_t length;
};

static const gmal_sub *sub_of(const gmal_cross *x, int64_t i) { return &x->lm->layout->blocks[i].cross; }

static void *take(char *base, size_t *used, size_t bytes) {
    void *p = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

/* Lays the buffers out from `base`; with base NULL only counts. Returns the bytes. */
static size_t place(gmal_cross *x, char *base) {
    const gma_lm_config *c = &x->lm->layout->c;
    size_t used = 0;
    int64_t proj = 0, out = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const gmal_sub *m = sub_of(x, i);
        x->layers[i].kv = take(base, &used, (size_t)(c->context * m->kv) * sizeof(float));
        proj = m->proj > proj ? m->proj : proj;
        out = m->out > out ? m->out : out;
    }
    x->kv_bytes = used;
    for (int64_t i = 0; i < c->layers; i++) x->layers[i].scale = take(base, &used, (size_t)c->kv_heads * sizeof(float));
    x->source = take(base, &used, (size_t)c->context * sizeof(int32_t));
    x->mask = take(base, &used, (size_t)c->context);
    x->p = take(base, &used, (size_t)proj * sizeof(float));
    x->o = take(base, &used, (size_t)out * sizeof(float));
    x->scratch = take(base, &used, x->scratch_bytes);
    return used;
}

static gma_status make(gmal_cross *x) {
    const gma_lm_config *c = &x->lm->layout->c;
    x->layers = calloc((size_t)c->layers, sizeof *x->layers);
    if (!x->layers) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a stream");
    for (int64_t i = 0; i < c->layers; i++) {
        gma_mixer_desc d;
        gma_mixer_size size = {.struct_size = sizeof size};
        TRY(gmal_layer_desc(c, &sub_of(x, i)->spec, 1, 1, c->context, -1, &d));
        TRY(gma_mixer_create(&d, &x->layers[i].mixer));
        TRY(gma_mixer_sizes(x->layers[i].mixer, x->threads, &size));
        if (size.forward_scratch > x->scratch_bytes) x->scratch_bytes = size.forward_scratch;
    }
    const size_t bytes = place(x, NULL);
    x->arena = aligned_alloc(64, bytes);
    if (!x->arena) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the source of a stream");
    memset(x->arena, 0, bytes); /* masked keys are read by nobody, but they are numbers */
    place(x, x->arena);
    return gmal_seq2seq_create_f32(x->lm->layout, 1, GMAL_NET_EVALUATE, x->threads, &x->encoder);
}

gma_status gmal_cross_create(const gma_lm *lm, int threads, gmal_cross **out) {
    *out = NULL;
    gmal_cross *x = calloc(1, sizeof *x);
    if (!x) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a stream");
    x->lm = lm;
    x->kernels = gmal_get_kernels_f32();
    x->threads = threads;
    const gma_status s = make(x);
    if (s != GMA_OK) {
        gmal_cross_destroy(x);
        return s;
    }
    *out = x;
    return GMA_OK;
}

void gmal_cross_destroy(gmal_cross *x) {
    if (!x) return;
    for (int64_t i = 0; x->layers && i < x->lm->layout->c.layers; i++) gma_mixer_destroy(x->layers[i].mixer);
    gmal_seq2seq_destroy_f32(x->encoder);
    free(x->layers);
    free(x->arena);
    free(x);
}

int64_t gmal_cross_length(const gmal_cross *x) { return x->length; }

size_t gmal_cross_bytes(const gmal_cross *x) { return x->kv_bytes; }

gma_status gmal_cross_set(gmal_cross *x, const float *memory, int64_t length) {
    const gma_lm_config *c = &x->lm->layout->c;
    const float *w = x->lm->values;
    x->length = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const gmal_sub *m = sub_of(x, i);
        TRY(gmal_matmul_f32(0, 1, length, m->kv, c->width, 1, memory, c->width, w + m->w_kv, c->width, 0, x->layers[i].kv,
                            m->kv, x->threads));
        for (int64_t h = 0; m->spec.logit_scale && h < c->kv_heads; h++)
            x->layers[i].scale[h] = (float)exp((double)w[m->logit_scale + h]);
    }
    for (int64_t j = 0; j < c->context; j++) x->mask[j] = j < length;
    x->length = length;
    return GMA_OK;
}

gma_status gmal_cross_encode(gmal_cross *x, const int32_t *tokens, int64_t length) {
    const int64_t context = x->lm->layout->c.context;
    const float *memory;
    for (int64_t j = 0; j < context; j++) {
        x->source[j] = j < length ? tokens[j] : 0;
        x->mask[j] = j < length;
    }
    TRY(gmal_seq2seq_encode_f32(x->encoder, x->lm->values, x->source, length < context ? x->mask : NULL, &memory));
    return gmal_cross_set(x, memory, length);
}

gma_status gmal_cross_step(gmal_cross *x, int64_t i, const float *n, float *y) {
    const gma_lm_config *c = &x->lm->layout->c;
    const gmal_sub *m = sub_of(x, i);
    const layer *l = &x->layers[i];
    const float *w = x->lm->values;
    x->kernels->gemv(w + m->w_proj, c->width, n, x->p, m->proj, c->width);
    gmal_mixer_io_f32 io = {.q = x->p,
                            .ldq = m->proj,
                            .k = l->kv,
                            .v = l->kv + m->k,
                            .ldk = m->kv,
                            .o = x->o,
                            .logit_scale = m->spec.logit_scale ? l->scale : NULL,
                            .key_mask = x->length < c->context ? x->mask : NULL,
                            .params = m->slots};
    for (int j = 0; j < m->slots; j++) {
        io.slot[j] = m->slot[j].slot;
        io.param[j] = (float *)(uintptr_t)(w + m->slot[j].offset); /* inputs: only read */
    }
    const gma_exec e = {sizeof e, x->threads, 0, x->scratch, x->scratch_bytes, NULL, 0};
    TRY(gmal_mixer_forward_f32(l->mixer, &io, &e));
    if (m->gate) x->kernels->gate_forward(x->o, x->p + m->q, m->gate, x->o, 1, m->out);
    x->kernels->gemv(w + m->w_out, m->out, x->o, y, c->width, m->out);
    return GMA_OK;
}
