/* One token at a time. All memory is taken when the stream is created; the parameters are read once a token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/layers.h"
#include "layers/mixer_layer.h"
#include "layers/threads.h"
#include "layers/try.h"
#include "models/model.h"
#include "models/stream_cross.h"

struct gma_lm_stream {
    const gma_lm *lm;
    const gmal_kernels_f32 *kernels;
    struct layer *layers;
    gmal_cross *cross; /* seq2seq: what the decoder reads */
    int threads;
    int turns; /* some layer has rotary positions */
    int64_t position;
    size_t state_bytes;                                /* what changes from token to token */
    float *x, *n, *p, *c, *o, *y, *h, *a, *decay, *cs, *xp, *delta; /* one row each, as wide as the widest layer needs */
    void *arena;
};

typedef gma_lm_stream stream;

/* One layer in progress. */
typedef struct layer {
    gma_mixer *mixer;
    gma_mixer_size size;
    void *state;    /* of the mixer */
    float *history; /* (conv - 1, qkv): the last inputs of the convolution, as a ring */
    float *scale;   /* logit_scale (kv_heads); A of mamba */
} layer;

static const gmal_sequences one = {1, 1, NULL};

static size_t align64(size_t n) { return (n + 63) / 64 * 64; }

/* Lays the buffers out from `base`; with base NULL only counts. Returns the bytes. */
static size_t place(stream *s, char *base) {
    const gmal_layout *l = s->lm->layout;
    const gma_lm_config *c = &l->c;
    size_t used = 0;
    int64_t proj = 0, qkv = 0, out = 0, x = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const gmal_sub *m = &l->blocks[i].mixer;
        layer *y = &s->layers[i];
        const int64_t taps = m->spec.conv > 1 ? m->spec.conv - 1 : 0;
        y->state = base ? base + used : NULL;
        used += align64(y->size.state);
        y->history = base ? (float *)(void *)(base + used) : NULL;
        used += align64((size_t)(taps * m->qkv) * sizeof(float));
        s->turns |= gmal_layer_turns(&m->spec);
        proj = m->proj > proj ? m->proj : proj;
        qkv = m->qkv > qkv ? m->qkv : qkv;
        out = m->out > out ? m->out : out;
        const int64_t wide = m->rank ? m->rank + 2 * m->spec.states : 0;
        x = wide > x ? wide : x;
    }
    s->state_bytes = used + sizeof s->position;
    for (int64_t i = 0; i < c->layers; i++) {
        s->layers[i].scale = base ? (float *)(void *)(base + used) : NULL;
        const gmal_sub *m = &l->blocks[i].mixer;
        used += align64((size_t)(m->rank ? m->qkv * m->spec.states : c->kv_heads) * sizeof(float));
    }
    struct {
        float **where;
        int64_t n;
    } rows[] = {
        {&s->xp, x}, {&s->delta, x ? qkv : 0}, {&s->x, c->width},
        {&s->n, c->width},
        {&s->p, proj},
        {&s->c, qkv},
        {&s->o, out},
        {&s->y, c->width},
        {&s->h, l->hidden},
        {&s->a, c->mlp_width},
        {&s->decay, c->kv_heads},
        {&s->cs, c->routing_dim},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i].where = base ? (float *)(void *)(base + used) : NULL;
        used += align64((size_t)rows[i].n * sizeof(float));
    }
    return used;
}

static gma_tensor row_of_heads(const float *p, int64_t heads, int64_t n) {
    return gma_tensor_of(p, GMA_F32, 4, 1, heads, 1, n);
}

/* An empty state of a layer's mixer. */
static gma_status reset_layer(stream *s, int64_t i) {
    const gmal_sub *m = &s->lm->layout->blocks[i].mixer;
    const float *w = s->lm->values;
    layer *y = &s->layers[i];
    gma_mixer_desc d;
    gma_arg args[GMAL_MIXER_PARAMS + 1];
    int count = 0;
    if (m->spec.conv > 1)
        memset(y->history, 0, (size_t)((m->spec.conv - 1) * m->qkv) * sizeof(float));
    TRY(gma_mixer_get_desc(y->mixer, &d));
    for (int j = 0; j < m->slots; j++) {
        int64_t n[GMA_MAX_RANK] = {1, 1, 1, 1};
        const int rank = gmal_mixer_shape(&d, gmal_mixer_slot(d.kind, m->slot[j].slot)->dims, n);
        if (m->slot[j].log_negative)
            for (int64_t k = 0; k < m->slot[j].count; k++)
                y->scale[k] = (float)-exp((double)w[m->slot[j].offset + k]);
        args[count].slot = m->slot[j].slot;
        args[count++].tensor = gma_tensor_of(m->slot[j].log_negative ? y->scale : w + m->slot[j].offset, GMA_F32, rank, n[0], n[1], n[2], n[3]);
    }
    if (m->spec.logit_scale) {
        for (int64_t h = 0; h < d.kv_heads; h++)
            y->scale[h] = (float)exp((double)w[m->logit_scale + h]);
        args[count].slot = GMA_LOGIT_SCALE;
        args[count++].tensor = gma_tensor_of(y->scale, GMA_F32, 1, d.kv_heads, 1, 1, 1);
    }
    return gma_mixer_state_init(y->mixer, args, count, y->state);
}

gma_status gma_lm_stream_reset(gma_lm_stream *s) {
    if (!s)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "stream is NULL");
    s->position = 0;
    for (int64_t i = 0; i < s->lm->layout->c.layers; i++)
        TRY(reset_layer(s, i));
    return GMA_OK;
}

static gma_status make_layer(stream *s, int64_t i) {
    const gmal_layout *l = s->lm->layout;
    layer *y = &s->layers[i];
    gma_mixer_desc d;
    TRY(gmal_layer_desc(&l->c, &l->blocks[i].mixer.spec, 1, 1, 1, -1, &d));
    if (d.kind == GMA_MIXER_SOFTMAX && d.window == 0)
        d.window = gmal_steps(&l->c); /* a ring instead of a cache that fills up */
    TRY(gma_mixer_create(&d, &y->mixer));
    y->size.struct_size = sizeof y->size;
    return gma_mixer_sizes(y->mixer, s->threads, &y->size);
}

static gma_status make_stream(stream *s) {
    const int64_t layers = s->lm->layout->c.layers;
    s->layers = calloc((size_t)layers, sizeof *s->layers);
    if (!s->layers)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a stream");
    for (int64_t i = 0; i < layers; i++)
        TRY(make_layer(s, i));
    s->arena = aligned_alloc(64, place(s, NULL));
    if (!s->arena)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the state of a stream");
    place(s, s->arena);
    if (s->lm->layout->c.task == GMA_LM_TASK_SEQ2SEQ) {
        TRY(gmal_cross_create(s->lm, s->threads, &s->cross));
        s->state_bytes += gmal_cross_bytes(s->cross);
    }
    return gma_lm_stream_reset(s);
}

gma_status gma_lm_stream_create(const gma_lm *lm, int threads, gma_lm_stream **out) {
    if (!lm || !out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", lm ? "stream" : "lm");
    *out = NULL;
    if (lm->layout->c.task == GMA_LM_TASK_CLASSIFY)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model classifies whole sequences: it predicts no next token");
    stream *s = calloc(1, sizeof *s);
    if (!s)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a stream");
    s->lm = lm;
    s->kernels = gmal_get_kernels_f32();
    s->threads = threads > 0 ? threads : gma_max_threads();
    const gma_status status = make_stream(s);
    if (status != GMA_OK) {
        gma_lm_stream_destroy(s);
        return status;
    }
    *out = s;
    return GMA_OK;
}

void gma_lm_stream_destroy(gma_lm_stream *s) {
    if (!s)
        return;
    for (int64_t i = 0; s->layers && i < s->lm->layout->c.layers; i++)
        gma_mixer_destroy(s->layers[i].mixer);
    gmal_cross_destroy(s->cross);
    free(s->layers);
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
    gmal_norm_forward_f32(c->norm, x, s->lm->values + w, b < 0 ? NULL : s->lm->values + b, y, &mean, &rstd, 1, c->width,
                          c->norm_eps, 1);
}

/* s->p -> s->c, and s->p into the ring: slot (t mod taps-1) holds the input of time t. */
static float *convolve(stream *s, const gmal_sub *m, float *ring) {
    const int64_t n = m->qkv, back = m->spec.conv - 1, t = s->position;
    const float *w = s->lm->values + m->conv;
    if (!m->spec.conv)
        return s->p;
    for (int64_t i = 0; i < n; i++)
        s->c[i] = w[i] * s->p[i];
    for (int64_t j = 1; j <= back && j <= t; j++) {
        const float *old = ring + (t - j) % back * n, *wj = w + j * n;
        for (int64_t i = 0; i < n; i++)
            s->c[i] += wj[i] * old[i];
    }
    if (back)
        memcpy(ring + t % back * n, s->p, (size_t)n * sizeof(float));
    return s->c;
}

/* qkv -> s->o: softmax, GMA, linear, performer. */
static gma_status attention_step(stream *s, int64_t i, float *qkv) {
    const gma_lm_config *c = &s->lm->layout->c;
    const gmal_sub *m = &s->lm->layout->blocks[i].mixer;
    const layer *y = &s->layers[i];
    if (gmal_layer_turns(&m->spec)) {
        gmal_rotary_f32(qkv, m->qkv, s->cs, one, c->heads, c->routing_dim, 1, 1);
        gmal_rotary_f32(qkv + m->q, m->qkv, s->cs, one, c->kv_heads, c->routing_dim, 1, 1);
    }
    gma_arg args[5] = {{GMA_Q, row_of_heads(qkv, c->heads, c->routing_dim)},
                       {GMA_K, row_of_heads(qkv + m->q, c->kv_heads, c->routing_dim)},
                       {GMA_V, row_of_heads(qkv + m->q + m->k, c->kv_heads, c->value_dim)},
                       {GMA_O, row_of_heads(s->o, c->heads, c->value_dim)}};
    int count = 4;
    if (m->forget) {
        gmal_forget_forward_f32(s->p + m->qkv + m->gate, m->proj, s->lm->values + m->forget_b, s->decay, 1, 1, m->forget,
                                1);
        args[count].slot = GMA_LOG_DECAY;
        args[count++].tensor = gma_tensor_of(s->decay, GMA_F32, 3, 1, c->kv_heads, 1, 1);
    }
    return gma_mixer_step(y->mixer, args, count, y->state, s->threads);
}

static gma_tensor row(const float *p, int64_t n) { return gma_tensor_of(p, GMA_F32, 3, 1, 1, n, 1); }

/* What the convolution gave -> s->o: mamba (stack_scan_body.h). */
static gma_status scan_step(stream *s, int64_t i, float *u) {
    const gmal_sub *m = &s->lm->layout->blocks[i].mixer;
    const layer *y = &s->layers[i];
    const float *w = s->lm->values;
    const int64_t E = m->qkv, S = m->spec.states;
    s->kernels->silu_forward(u, w + m->conv_b, u, 1, E);
    gemv(s, w + m->w_x, u, s->xp, m->rank + 2 * S, E);
    gemv(s, w + m->w_dt, s->xp, s->delta, E, m->rank);
    const gma_arg args[] = {{GMA_U, row(u, E)},
                            {GMA_DELTA, row(s->delta, E)},
                            {GMA_SSM_B, row(s->xp + m->rank, S)},
                            {GMA_SSM_C, row(s->xp + m->rank + S, S)},
                            {GMA_Y, row(s->o, E)}};
    return gma_mixer_step(y->mixer, args, 5, y->state, s->threads);
}

static gma_status mixer_step(stream *s, int64_t i) {
    const gma_lm_config *c = &s->lm->layout->c;
    const gmal_sub *m = &s->lm->layout->blocks[i].mixer;
    const float *w = s->lm->values;
    gemv(s, w + m->w_proj, s->n, s->p, m->proj, c->width);
    float *qkv = convolve(s, m, s->layers[i].history);
    TRY(m->rank ? scan_step(s, i, qkv) : attention_step(s, i, qkv));
    if (m->gate)
        s->kernels->gate_forward(s->o, s->p + m->qkv, m->gate, s->o, 1, m->out);
    gemv(s, w + m->w_out, s->o, s->y, c->width, m->out);
    return GMA_OK;
}

void gmal_stream_logits(gma_lm_stream *s, float *logits) {
    const gmal_layout *l = s->lm->layout;
    norm(s, s->x, l->norm_w, l->norm_b, s->n);
    gemv(s, s->lm->values + l->head, s->n, logits, l->c.vocab, l->c.width);
}

const gma_lm *gmal_stream_model(const gma_lm_stream *s) { return s->lm; }

/* Only a seq2seq model has a source. */
static gma_status needs_cross(const gma_lm_stream *s) {
    if (!s)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "stream is NULL");
    if (!s->cross)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model reads no source: its task is not seq2seq");
    return GMA_OK;
}

gma_status gmal_stream_memory(gma_lm_stream *s, const float *memory, int64_t length) {
    TRY(needs_cross(s));
    TRY(gma_lm_stream_reset(s));
    return gmal_cross_set(s->cross, memory, length);
}

gma_status gma_lm_stream_source(gma_lm_stream *s, const int32_t *tokens, int64_t count) {
    TRY(needs_cross(s));
    const gma_lm_config *c = &s->lm->layout->c;
    if (!tokens || count < 1 || count > c->context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "a source has 1 to %lld tokens, not %lld", (long long)c->context,
                        (long long)(tokens ? count : 0));
    TRY(gmal_check_tokens("tokens", tokens, count, c->vocab, 0));
    TRY(gma_lm_stream_reset(s));
    const gmal_threads t = gmal_threads_enter(s->threads);
    const gma_status status = gmal_cross_encode(s->cross, tokens, count);
    gmal_threads_leave(t);
    return status;
}

gma_status gma_lm_stream_feed(gma_lm_stream *s, int32_t token, float *logits) {
    if (!s)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "stream is NULL");
    const gmal_layout *l = s->lm->layout;
    const gma_lm_config *c = &l->c;
    const float *w = s->lm->values;
    TRY(gmal_check_tokens("token", &token, 1, c->vocab, 0));
    if (s->cross && !gmal_cross_length(s->cross))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the stream has no source to read: gma_lm_stream_source comes first");
    if (c->positions == GMA_LM_POSITIONS_LEARNED && s->position >= gmal_steps(c))
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model has learned positions for %lld tokens and cannot go further",
                        (long long)gmal_steps(c));
    gmal_embed_forward_f32(&token, w + l->embed, l->positions < 0 ? NULL : w + l->positions + s->position * c->width,
                           s->x, one, c->width, 1);
    if (s->turns)
        gmal_rotary_table_f32(s->cs, s->position, 1, c->routing_dim, c->rotary_base);
    for (int64_t i = 0; i < c->layers; i++) {
        const gmal_block *b = &l->blocks[i];
        norm(s, s->x, b->mixer.norm_w, b->mixer.norm_b, s->n);
        TRY(mixer_step(s, i));
        s->kernels->add(s->y, s->x, c->width);
        if (s->cross) {
            norm(s, s->x, b->cross.norm_w, b->cross.norm_b, s->n);
            TRY(gmal_cross_step(s->cross, i, s->n, s->y));
            s->kernels->add(s->y, s->x, c->width);
        }
        norm(s, s->x, b->norm2_w, b->norm2_b, s->n);
        gemv(s, w + b->up, s->n, s->h, l->hidden, c->width);
        gmal_mlp_forward_f32(c->mlp, s->h, s->a, 1, c->mlp_width, 1);
        gemv(s, w + b->down, s->a, s->y, c->width, c->mlp_width);
        s->kernels->add(s->y, s->x, c->width);
    }
    s->position++;
    if (logits)
        gmal_stream_logits(s, logits);
    return GMA_OK;
}
