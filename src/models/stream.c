/* One token at a time. All memory is taken when the stream is created; the parameters are read once a token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/layers.h"
#include "layers/mixer_layer.h"
#include "layers/threads.h"
#include "models/model.h"

#define TRY(call)                              \
    do {                                       \
        const gma_status status_ = (call);     \
        if (status_ != GMA_OK) return status_; \
    } while (0)

struct gma_lm_stream {
    const gma_lm *lm;
    const gmal_kernels_f32 *kernels;
    gma_mixer *mixer;
    gma_mixer_size size;
    int threads;
    int64_t position;
    size_t state_bytes; /* what changes from token to token */
    char *states; /* layers * size.state */
    float *history; /* layers * (conv - 1) * qkv: the last inputs of the convolution, as a ring */
    float *x, *n, *p, *c, *o, *y, *h, *a, *decay, *scale, *cs; /* one row each; scale: layers * kv_heads */
    void *arena;
};

typedef gma_lm_stream stream;

static size_t align64(size_t n) { return (n + 63) / 64 * 64; }

/* Lays the buffers out from `base`; with base NULL only counts. Returns the bytes. */
static size_t place(stream *s, char *base) {
    const gmal_layout *l = s->lm->layout;
    const gma_lm_config *c = &l->c;
    const int64_t layers = c->layers, taps = c->conv > 1 ? c->conv - 1 : 0;
    size_t used = 0;
    struct {
        float **where;
        int64_t n;
    } rows[] = {
        {&s->history, layers * taps * l->qkv}, {&s->x, c->width}, {&s->n, c->width}, {&s->p, l->proj},
        {&s->c, l->qkv}, {&s->o, l->out}, {&s->y, c->width > l->out ? c->width : l->out}, {&s->h, l->hidden},
        {&s->a, c->mlp_width}, {&s->decay, l->forget + 1}, {&s->scale, layers * c->kv_heads}, {&s->cs, c->routing_dim},
    };
    s->states = base;
    used += (size_t)layers * align64(s->size.state);
    s->state_bytes = used + (size_t)(layers * taps * l->qkv) * sizeof(float) + sizeof s->position;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i].where = base ? (float *)(void *)(base + used) : NULL;
        used += align64((size_t)rows[i].n * sizeof(float));
    }
    return used;
}

static gma_tensor row_of_heads(const float *p, int64_t heads, int64_t n) {
    return gma_tensor_of(p, GMA_F32, 4, 1, heads, 1, n);
}

gma_status gma_lm_stream_reset(gma_lm_stream *s) {
    if (!s) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "stream is NULL");
    const gmal_layout *l = s->lm->layout;
    const gma_lm_config *c = &l->c;
    const float *w = s->lm->values;
    s->position = 0;
    if (c->conv > 1) memset(s->history, 0, (size_t)(c->layers * (c->conv - 1) * l->qkv) * sizeof(float));
    for (int64_t i = 0; i < c->layers; i++) {
        const gmal_block *b = &l->blocks[i];
        float *scale = s->scale + i * c->kv_heads;
        gma_arg args[4] = {
            {GMA_MU, gma_tensor_of(w + b->mu, GMA_F32, 3, c->kv_heads, c->components, c->routing_dim, 1)},
            {GMA_OMEGA, gma_tensor_of(w + b->omega, GMA_F32, 3, c->kv_heads, c->components, c->routing_dim, 1)},
            {GMA_ALPHA, gma_tensor_of(w + b->alpha, GMA_F32, 2, c->kv_heads, c->components, 1, 1)}};
        int count = 3;
        if (c->logit_scale) {
            for (int64_t h = 0; h < c->kv_heads; h++) scale[h] = (float)exp((double)w[b->logit_scale + h]);
            args[count].slot = GMA_LOGIT_SCALE;
            args[count++].tensor = gma_tensor_of(scale, GMA_F32, 1, c->kv_heads, 1, 1, 1);
        }
        TRY(gma_mixer_state_init(s->mixer, args, count, s->states + (size_t)i * align64(s->size.state)));
    }
    return GMA_OK;
}

gma_status gma_lm_stream_create(const gma_lm *lm, int threads, gma_lm_stream **out) {
    gma_mixer_desc d;
    if (!lm || !out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", lm ? "stream" : "lm");
    *out = NULL;
    const gma_lm_config *c = &lm->layout->c;
    stream *s = calloc(1, sizeof *s);
    if (!s) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a stream");
    s->lm = lm;
    s->kernels = gmal_get_kernels_f32();
    s->threads = threads > 0 ? threads : gma_max_threads();
    gma_status status = gma_mixer_desc_init(&d, (gma_mixer_kind)c->mixer);
    if (status == GMA_OK) {
        d.causal = 1;
        d.batch = d.q_len = d.k_len = 1;
        d.heads = c->heads;
        d.kv_heads = c->kv_heads;
        d.routing_dim = c->routing_dim;
        d.value_dim = c->value_dim;
        d.components = c->components;
        d.eps = c->eps;
        d.eps_sigma = c->eps_sigma;
        status = gma_mixer_create(&d, &s->mixer);
    }
    s->size.struct_size = sizeof s->size;
    if (status == GMA_OK) status = gma_mixer_sizes(s->mixer, s->threads, &s->size);
    if (status == GMA_OK) {
        s->arena = aligned_alloc(64, place(s, NULL));
        if (s->arena) {
            place(s, s->arena);
            status = gma_lm_stream_reset(s);
        } else {
            status = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the state of a stream");
        }
    }
    if (status != GMA_OK) {
        gma_lm_stream_destroy(s);
        return status;
    }
    *out = s;
    return GMA_OK;
}

void gma_lm_stream_destroy(gma_lm_stream *s) {
    if (!s) return;
    gma_mixer_destroy(s->mixer);
    free(s->arena);
    free(s);
}

size_t gma_lm_stream_state_bytes(const gma_lm_stream *s) { return s ? s->state_bytes : 0; }
int64_t gma_lm_stream_position(const gma_lm_stream *s) { return s ? s->position : 0; }

/* y (n) = w (n, k) x; in pieces over the threads where it is worth starting them. */
static void gemv(const stream *s, const float *w, const float *x, float *y, int64_t n, int64_t k) {
    enum { ROWS = 32 };
    const int64_t count = (n + ROWS - 1) / ROWS;
#ifdef _OPENMP
    const int threads = s->threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (n * k > 262144)
#endif
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * ROWS;
        s->kernels->gemv(w + r * k, k, x, y + r, n - r < ROWS ? n - r : ROWS, k);
    }
}

static void norm(const stream *s, const float *x, int64_t w, int64_t b, float *y) {
    const gma_lm_config *c = &s->lm->layout->c;
    float mean, rstd;
    gmal_norm_forward_f32(c->norm, x, s->lm->values + w, b < 0 ? NULL : s->lm->values + b, y, &mean, &rstd, 1,
                          c->width, c->norm_eps, 1);
}

/* s->p -> s->c, and s->p into the ring: slot (t mod taps-1) holds the input of time t. */
static const float *convolve(stream *s, int64_t layer, const float *w) {
    const gmal_layout *l = s->lm->layout;
    const int64_t n = l->qkv, back = l->c.conv - 1, t = s->position;
    float *ring = s->history + layer * back * n;
    if (l->c.conv == 0) return s->p;
    for (int64_t i = 0; i < n; i++) s->c[i] = w[i] * s->p[i];
    for (int64_t j = 1; j <= back && j <= t; j++) {
        const float *old = ring + (t - j) % back * n, *wj = w + j * n;
        for (int64_t i = 0; i < n; i++) s->c[i] += wj[i] * old[i];
    }
    if (back) memcpy(ring + t % back * n, s->p, (size_t)n * sizeof(float));
    return s->c;
}

static gma_status mixer_step(stream *s, int64_t layer) {
    const gmal_layout *l = s->lm->layout;
    const gma_lm_config *c = &l->c;
    const gmal_block *b = &l->blocks[layer];
    const float *w = s->lm->values;
    gemv(s, w + b->proj, s->n, s->p, l->proj, c->width);
    float *qkv = (float *)(uintptr_t)convolve(s, layer, b->conv < 0 ? NULL : w + b->conv);
    if (c->positions == GMA_LM_POSITIONS_ROTARY) {
        gmal_rotary_f32(qkv, l->qkv, s->cs, 1, 1, c->heads, c->routing_dim, 1, 1);
        gmal_rotary_f32(qkv + l->q, l->qkv, s->cs, 1, 1, c->kv_heads, c->routing_dim, 1, 1);
    }
    gma_arg args[5] = {{GMA_Q, row_of_heads(qkv, c->heads, c->routing_dim)},
                       {GMA_K, row_of_heads(qkv + l->q, c->kv_heads, c->routing_dim)},
                       {GMA_V, row_of_heads(qkv + l->q + l->k, c->kv_heads, c->value_dim)},
                       {GMA_O, row_of_heads(s->o, c->heads, c->value_dim)}};
    int count = 4;
    if (l->forget) {
        gmal_forget_forward_f32(s->p + l->qkv + l->gate, l->proj, w + b->forget_b, s->decay, 1, 1, l->forget, 1);
        args[count].slot = GMA_LOG_DECAY;
        args[count++].tensor = gma_tensor_of(s->decay, GMA_F32, 3, 1, c->kv_heads, 1, 1);
    }
    TRY(gma_mixer_step(s->mixer, args, count, s->states + (size_t)layer * align64(s->size.state), s->threads));
    if (l->gate) s->kernels->gate_forward(s->o, s->p + l->qkv, l->gate, s->o, 1, l->out);
    gemv(s, w + b->out, s->o, s->y, c->width, l->out);
    return GMA_OK;
}

void gmal_stream_logits(gma_lm_stream *s, float *logits) {
    const gmal_layout *l = s->lm->layout;
    norm(s, s->x, l->norm_w, l->norm_b, s->n);
    gemv(s, s->lm->values + l->head, s->n, logits, l->c.vocab, l->c.width);
}

const gma_lm *gmal_stream_model(const gma_lm_stream *s) { return s->lm; }

gma_status gma_lm_stream_feed(gma_lm_stream *s, int32_t token, float *logits) {
    if (!s) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "stream is NULL");
    const gmal_layout *l = s->lm->layout;
    const gma_lm_config *c = &l->c;
    const float *w = s->lm->values;
    TRY(gmal_check_tokens("token", &token, 1, c->vocab, 0));
    if (c->positions == GMA_LM_POSITIONS_LEARNED && s->position >= c->context)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model has learned positions for %lld tokens and cannot go further",
                        (long long)c->context);
    gmal_embed_forward_f32(&token, w + l->embed, l->positions < 0 ? NULL : w + l->positions + s->position * c->width,
                           s->x, 1, 1, c->width, 1);
    if (c->positions == GMA_LM_POSITIONS_ROTARY)
        gmal_rotary_table_f32(s->cs, s->position, 1, c->routing_dim, c->rotary_base);
    for (int64_t i = 0; i < c->layers; i++) {
        const gmal_block *b = &l->blocks[i];
        norm(s, s->x, b->norm1_w, b->norm1_b, s->n);
        TRY(mixer_step(s, i));
        s->kernels->add(s->y, s->x, c->width);
        norm(s, s->x, b->norm2_w, b->norm2_b, s->n);
        gemv(s, w + b->up, s->n, s->h, l->hidden, c->width);
        gmal_mlp_forward_f32(c->mlp, s->h, s->a, 1, c->mlp_width, 1);
        gemv(s, w + b->down, s->a, s->y, c->width, c->mlp_width);
        s->kernels->add(s->y, s->x, c->width);
    }
    s->position++;
    if (logits) gmal_stream_logits(s, logits);
    return GMA_OK;
}
