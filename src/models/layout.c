/* The table of parameters and their first values. */
#include "models/layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"

enum { PER_BLOCK = 20, REST = 10 };

/* What the names of parameters begin with, and how many matrices write to their residual stream. */
typedef struct scope {
    char name[32];
    int64_t writes;
} scope;

static const scope outside = {"", 1};

/* Adds a row; returns its offset. gap: start on a cache line. */
static int64_t add(gmal_layout *l, const scope *in, const char *name, int decay, gmal_init init, int gap, int rank,
                   int64_t n0, int64_t n1, int64_t n2) {
    gmal_param *p = &l->params[l->param_count++];
    snprintf(p->name, sizeof p->name, "%s%s", in->name, name);
    p->writes = in->writes;
    if (gap)
        l->total = (l->total + 15) / 16 * 16;
    p->offset = l->total;
    p->rank = rank;
    p->shape[0] = n0;
    p->shape[1] = rank > 1 ? n1 : 1;
    p->shape[2] = rank > 2 ? n2 : 1;
    p->count = p->shape[0] * p->shape[1] * p->shape[2];
    p->decay = decay;
    p->init = init;
    l->total += p->count;
    return p->offset;
}

/* How the parameters of mixers start; what is not named here starts at zero. */
static gmal_init init_of(int32_t slot) {
    switch (slot) {
    case GMA_MU: return GMAL_INIT_NORMAL;
    case GMA_FEATURES: return GMAL_INIT_FEATURES;
    case GMA_PROJ_K:
    case GMA_PROJ_V: return GMAL_INIT_MATRIX;
    case GMA_SSM_A: return GMAL_INIT_LOG_COUNT;
    case GMA_SSM_D: return GMAL_INIT_ONE;
    case GMA_DELTA_BIAS: return GMAL_INIT_DELTA;
    default: return GMAL_INIT_ZERO;
    }
}

/* The tensors that the mixer's table requires: mixer.mu, mixer.features, ... */
static gma_status add_slots(gmal_layout *l, const scope *in, gmal_sub *m) {
    int count = 0;
    gma_mixer_desc d;
    const gma_slot_info *rows = gma_mixer_slots((gma_mixer_kind)m->spec.mixer, &count);
    gma_status s = gmal_layer_desc(&l->c, &m->spec, 1, l->c.context, l->c.context, -1, &d);
    for (int j = 0; j < count && s == GMA_OK; j++) {
        if (rows[j].role != GMA_ROLE_PARAM || !rows[j].required)
            continue;
        char name[32];
        int64_t n[GMA_MAX_RANK] = {0};
        const int rank = gmal_mixer_shape(&d, gma_slot_dims(&rows[j], 0), n);
        if (rank > 3 || m->slots == GMAL_MIXER_PARAMS)
            return gma_fail(GMA_ERR_UNSUPPORTED, "the mixer %s has more parameters than a layer knows",
                            gma_mixer_kind_name((gma_mixer_kind)m->spec.mixer));
        const int log_negative = rows[j].slot == GMA_SSM_A;
        snprintf(name, sizeof name, "%s%s", gma_slot_name(rows[j].slot), log_negative ? "_log" : "");
        gmal_slot_param *p = &m->slot[m->slots++];
        p->slot = rows[j].slot;
        p->fixed = !rows[j].has_grad;
        p->log_negative = log_negative;
        p->offset = add(l, in, name, 0, init_of(p->slot), 1, rank, n[0], n[1], n[2]);
        p->count = l->params[l->param_count - 1].count;
        l->params[l->param_count - 1].fixed = p->fixed;
    }
    return s;
}

static gma_status add_mamba(gmal_layout *l, const scope *in, gmal_sub *m) {
    const int64_t w = l->c.width, E = m->spec.expand * w;
    m->v = m->qkv = m->gate = m->out = E;
    m->proj = 2 * E;
    m->rank = (w + 15) / 16;
    m->forget_b = m->logit_scale = m->w_kv = -1;
    m->w_proj = add(l, in, "in_proj.weight", 1, GMAL_INIT_MATRIX, 1, 2, m->proj, w, 0);
    m->conv = add(l, in, "conv.weight", 1, GMAL_INIT_CONV, 1, 2, m->spec.conv, E, 0);
    m->conv_b = add(l, in, "conv.bias", 0, GMAL_INIT_ZERO, 1, 1, E, 0, 0);
    m->w_x = add(l, in, "x_proj.weight", 1, GMAL_INIT_MATRIX, 1, 2, m->rank + 2 * m->spec.states, E, 0);
    m->w_dt = add(l, in, "dt_proj.weight", 1, GMAL_INIT_MATRIX, 1, 2, E, m->rank, 0);
    const gma_status s = add_slots(l, in, m);
    m->w_out = add(l, in, "out_proj.weight", 1, GMAL_INIT_RESIDUAL, 1, 2, w, E, 0);
    return s;
}

static gma_status add_mixer(gmal_layout *l, const scope *in, gmal_sub *m) {
    const gma_lm_config *c = &l->c;
    const int64_t w = c->width, taps = m->spec.conv;
    if (m->spec.mixer == GMA_MIXER_MAMBA)
        return add_mamba(l, in, m);
    m->q = c->heads * c->routing_dim;
    m->k = c->kv_heads * c->routing_dim;
    m->v = c->kv_heads * c->value_dim;
    m->out = c->heads * c->value_dim;
    m->gate = m->spec.output_gate ? m->out : 0;
    m->forget = m->spec.forget_gate ? c->kv_heads : 0;
    m->qkv = m->q + m->k + m->v;
    m->proj = m->qkv + m->gate + m->forget;
    m->forget_b = m->conv = m->conv_b = m->w_x = m->w_dt = m->logit_scale = m->w_kv = -1;
    m->w_proj = add(l, in, "q_proj.weight", 1, GMAL_INIT_MATRIX, 1, 2, m->q, w, 0);
    add(l, in, "k_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, m->k, w, 0);
    add(l, in, "v_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, m->v, w, 0);
    if (m->gate)
        add(l, in, "gate_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, m->gate, w, 0);
    if (m->forget) {
        add(l, in, "forget_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, m->forget, w, 0);
        m->forget_b = add(l, in, "forget_proj.bias", 0, GMAL_INIT_FORGET, 1, 1, m->forget, 0, 0);
    }
    if (taps)
        m->conv = add(l, in, "conv.weight", 1, GMAL_INIT_CONV, 1, 2, taps, m->qkv, 0);
    const gma_status s = add_slots(l, in, m);
    if (m->spec.logit_scale)
        m->logit_scale = add(l, in, "log_logit_scale", 0, GMAL_INIT_LOGIT_SCALE, 1, 1, c->kv_heads, 0, 0);
    m->w_out = add(l, in, "out_proj.weight", 1, GMAL_INIT_RESIDUAL, 1, 2, w, m->out, 0);
    return s;
}

/* Queries and gate from the stream, keys and values from the other sequence. */
static gma_status add_cross(gmal_layout *l, const scope *in, gmal_sub *m) {
    const gma_lm_config *c = &l->c;
    const int64_t w = c->width;
    m->q = m->qkv = c->heads * c->routing_dim;
    m->k = c->kv_heads * c->routing_dim;
    m->v = c->kv_heads * c->value_dim;
    m->kv = m->k + m->v;
    m->out = c->heads * c->value_dim;
    m->gate = m->spec.output_gate ? m->out : 0;
    m->proj = m->q + m->gate;
    m->forget_b = m->conv = m->conv_b = m->w_x = m->w_dt = m->logit_scale = -1;
    m->w_proj = add(l, in, "q_proj.weight", 1, GMAL_INIT_MATRIX, 1, 2, m->q, w, 0);
    if (m->gate)
        add(l, in, "gate_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, m->gate, w, 0);
    m->w_kv = add(l, in, "k_proj.weight", 1, GMAL_INIT_MATRIX, 1, 2, m->k, w, 0);
    add(l, in, "v_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, m->v, w, 0);
    const gma_status s = add_slots(l, in, m);
    if (m->spec.logit_scale)
        m->logit_scale = add(l, in, "log_logit_scale", 0, GMAL_INIT_LOGIT_SCALE, 1, 1, c->kv_heads, 0, 0);
    m->w_out = add(l, in, "out_proj.weight", 1, GMAL_INIT_RESIDUAL, 1, 2, w, m->out, 0);
    return s;
}

/* weight, and bias where norms have one (else -1). */
static void add_norm(gmal_layout *l, const scope *in, const char *name, int64_t *w, int64_t *b) {
    char text[40];
    snprintf(text, sizeof text, "%s.weight", name);
    *w = add(l, in, text, 0, GMAL_INIT_ONE, 1, 1, l->c.width, 0, 0);
    *b = -1;
    if (l->c.norm != GMA_LM_NORM_LAYER)
        return;
    snprintf(text, sizeof text, "%s.bias", name);
    *b = add(l, in, text, 0, GMAL_INIT_ZERO, 1, 1, l->c.width, 0, 0);
}

static scope within(const scope *in, const char *name) {
    scope s = *in;
    strncat(s.name, name, sizeof s.name - strlen(s.name) - 1);
    return s;
}

/* cross: NULL = none. */
static gma_status add_block(gmal_layout *l, const scope *in, const gmal_layer *spec, const gmal_layer *cross, gmal_block *b) {
    const scope mixer = within(in, "mixer."), reads = within(in, "cross.");
    gmal_sub *m = &b->mixer;
    m->spec = *spec;
    add_norm(l, in, "norm1", &m->norm_w, &m->norm_b);
    gma_status s = add_mixer(l, &mixer, m);
    if (cross && s == GMA_OK) {
        b->cross.spec = *cross;
        add_norm(l, in, "norm_cross", &b->cross.norm_w, &b->cross.norm_b);
        s = add_cross(l, &reads, &b->cross);
    }
    add_norm(l, in, "norm2", &b->norm2_w, &b->norm2_b);
    b->up = add(l, in, "mlp.up.weight", 1, GMAL_INIT_MATRIX, 1, 2, l->hidden, l->c.width, 0);
    b->down = add(l, in, "mlp.down.weight", 1, GMAL_INIT_RESIDUAL, 1, 2, l->c.width, l->c.mlp_width, 0);
    return s;
}

/* The blocks of a stack. prefix: "blocks", "encoder.blocks". */
static gma_status add_blocks(gmal_layout *l, const char *prefix, gmal_part part, gmal_block *blocks) {
    const int64_t count = gmal_part_count(&l->c, part);
    const int crosses = part == GMAL_PART_MAIN && gmal_part_count(&l->c, GMAL_PART_CROSS) > 0;
    gmal_layer *layers = malloc(2 * (size_t)count * sizeof *layers), *cross = layers + count;
    if (!layers)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the table of parameters");
    gmal_layers_get(&l->c, part, layers);
    if (crosses)
        gmal_layers_get(&l->c, GMAL_PART_CROSS, cross);
    gma_status s = GMA_OK;
    for (int64_t i = 0; i < count && s == GMA_OK; i++) {
        scope in = {"", (crosses ? 3 : 2) * count};
        snprintf(in.name, sizeof in.name, "%s.%" PRId64 ".", prefix, i);
        s = add_block(l, &in, &layers[i], crosses ? &cross[i] : NULL, &blocks[i]);
    }
    free(layers);
    return s;
}

static gma_status add_encoder(gmal_layout *l) {
    const gma_lm_config *c = &l->c;
    const scope in = {"encoder.", 1};
    l->encoder_positions = l->encoder_norm_w = l->encoder_norm_b = -1;
    if (c->task != GMA_LM_TASK_SEQ2SEQ)
        return GMA_OK;
    if (c->positions == GMA_LM_POSITIONS_LEARNED)
        l->encoder_positions =
            add(l, &in, "positions.weight", 1, GMAL_INIT_EMBEDDING, 1, 2, c->context, c->width, 0);
    const gma_status s = add_blocks(l, "encoder.blocks", GMAL_PART_ENCODER, l->encoder);
    add_norm(l, &in, "norm", &l->encoder_norm_w, &l->encoder_norm_b);
    return s;
}

static gma_status add_all(gmal_layout *l) {
    const gma_lm_config *c = &l->c;
    l->hidden = c->mlp == GMA_LM_MLP_SWIGLU ? 2 * c->mlp_width : c->mlp_width;
    const int classify = c->task == GMA_LM_TASK_CLASSIFY, own = classify && c->pooling == GMA_LM_POOLING_CLS;
    l->outputs = classify ? c->classes : c->vocab;
    l->positions = -1;
    l->embed = add(l, &outside, "embed.weight", 1, GMAL_INIT_EMBEDDING, 1, 2, c->vocab + own, c->width, 0);
    if (c->positions == GMA_LM_POSITIONS_LEARNED)
        l->positions = add(l, &outside, "positions.weight", 1, GMAL_INIT_EMBEDDING, 1, 2, gmal_steps(c), c->width, 0);
    gma_status s = add_blocks(l, "blocks", GMAL_PART_MAIN, l->blocks);
    add_norm(l, &outside, "norm", &l->norm_w, &l->norm_b);
    l->head = c->tied ? l->embed
                      : add(l, &outside, "head.weight", 1, classify ? GMAL_INIT_MATRIX : GMAL_INIT_EMBEDDING, 1, 2, l->outputs,
                            c->width, 0);
    return s == GMA_OK ? add_encoder(l) : s;
}

gma_status gmal_layout_create(const gma_lm_config *config, gmal_layout **layout) {
    *layout = NULL;
    gmal_layout *l = calloc(1, sizeof *l);
    if (l) {
        size_t blocks = 0;
        for (int part = 0; part < GMAL_PARTS; part++) blocks += (size_t)gmal_part_count(config, (gmal_part)part);
        l->params = calloc(blocks * PER_BLOCK + REST, sizeof *l->params);
        l->blocks = calloc((size_t)config->layers, sizeof *l->blocks);
        l->encoder = calloc((size_t)gmal_part_count(config, GMAL_PART_ENCODER) + 1, sizeof *l->encoder);
    }
    if (!l || !l->params || !l->blocks || !l->encoder) {
        gmal_layout_destroy(l);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the table of parameters");
    }
    l->c = *config;
    const gma_status s = add_all(l);
    if (s != GMA_OK) {
        gmal_layout_destroy(l);
        return s;
    }
    *layout = l;
    return GMA_OK;
}

void gmal_layout_destroy(gmal_layout *layout) {
    if (!layout)
        return;
    free(layout->params);
    free(layout->blocks);
    free(layout->encoder);
    free(layout);
}

const char *gmal_param_at(const gmal_layout *layout, int64_t offset) {
    for (int j = 0; j < layout->param_count; j++)
        if (layout->params[j].offset == offset) return layout->params[j].name;
    return "?";
}

/* ---- First values --------------------------------------------------------------------------------------------- */

/* Box-Muller; value i of a tensor depends on (key, i) only. */
static double normal(uint64_t key, int64_t i) {
    const double u = gmal_uniform(key, 2 * (uint64_t)i), v = gmal_uniform(key, 2 * (uint64_t)i + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static float value_of(const gmal_layout *l, const gmal_param *p, uint64_t key, int64_t i) {
    const double fan_in = (double)p->shape[p->rank - 1];
    switch (p->init) {
    case GMAL_INIT_ONE:
        return 1;
    case GMAL_INIT_EMBEDDING:
        return 0.02f * (float)normal(key, i);
    case GMAL_INIT_MATRIX:
        return (float)(1 / sqrt(fan_in)) * (float)normal(key, i);
    case GMAL_INIT_RESIDUAL:
        return (float)(1 / sqrt(fan_in * (double)p->writes)) * (float)normal(key, i);
    case GMAL_INIT_NORMAL:
        return (float)normal(key, i);
    case GMAL_INIT_FORGET:
        return p->count > 1 ? 3 + 4 * (float)i / (float)(p->count - 1) : 5;
    case GMAL_INIT_LOGIT_SCALE:
        return (float)log(l->c.logit_scale_init);
    case GMAL_INIT_CONV:
        return i < p->shape[1] ? 1 : 0;
    case GMAL_INIT_LOG_COUNT:
        return (float)log((double)(i % p->shape[1] + 1));
    case GMAL_INIT_DELTA: {
        const double delta = exp(log(1e-3) + gmal_uniform(key, (uint64_t)i) * log(100));
        return (float)(delta + log(-expm1(-delta))); /* the inverse of softplus */
    }
    case GMAL_INIT_FEATURES:
    case GMAL_INIT_ZERO:
        break;
    }
    return 0;
}

gma_status gmal_layout_init(const gmal_layout *layout, uint64_t seed, float *values) {
    memset(values, 0, (size_t)layout->total * sizeof *values); /* gaps too */
    for (int j = 0; j < layout->param_count; j++) {
        const gmal_param *p = &layout->params[j];
        const uint64_t key = gmal_key(seed, (uint64_t)j);
        for (int64_t i = 0; i < p->count; i++)
            values[p->offset + i] = value_of(layout, p, key, i);
    }
    return gmal_layout_redraw(layout, seed, values, NULL);
}

gma_status gmal_layout_redraw(const gmal_layout *layout, uint64_t seed, float *values, int64_t *count) {
    int64_t drawn = 0;
    for (int j = 0; j < layout->param_count; j++) {
        const gmal_param *p = &layout->params[j];
        if (p->init != GMAL_INIT_FEATURES)
            continue;
        const gma_status s =
            gma_performer_features(gmal_key(seed, (uint64_t)j), p->shape[0], p->shape[1], values + p->offset);
        if (s != GMA_OK)
            return s;
        drawn++;
    }
    if (count)
        *count = drawn;
    return GMA_OK;
}
