/* The table of parameters and their first values. */
#include "models/layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"

enum { PER_BLOCK = 20, REST = 6 };

/* Adds a row; returns its offset. gap: start on a cache line. */
static int64_t add(gmal_layout *l, int64_t block, const char *name, int decay, gmal_init init, int gap, int rank,
                   int64_t n0, int64_t n1, int64_t n2) {
    gmal_param *p = &l->params[l->param_count++];
    if (block >= 0)
        snprintf(p->name, sizeof p->name, "blocks.%" PRId64 ".%s", block, name);
    else
        snprintf(p->name, sizeof p->name, "%s", name);
    if (gap) l->total = (l->total + 15) / 16 * 16;
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

static void add_mixer(gmal_layout *l, int64_t i, gmal_block *b) {
    const gma_lm_config *c = &l->c;
    const int64_t w = c->width, h = c->kv_heads;
    b->proj = add(l, i, "mixer.q_proj.weight", 1, GMAL_INIT_MATRIX, 1, 2, l->q, w, 0);
    add(l, i, "mixer.k_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, l->k, w, 0);
    add(l, i, "mixer.v_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, l->v, w, 0);
    if (l->gate) add(l, i, "mixer.gate_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, l->gate, w, 0);
    if (l->forget) {
        add(l, i, "mixer.forget_proj.weight", 1, GMAL_INIT_MATRIX, 0, 2, l->forget, w, 0);
        b->forget_b = add(l, i, "mixer.forget_proj.bias", 0, GMAL_INIT_FORGET, 1, 1, l->forget, 0, 0);
    }
    if (c->conv) b->conv = add(l, i, "mixer.conv.weight", 1, GMAL_INIT_CONV, 1, 2, c->conv, l->qkv, 0);
    b->mu = add(l, i, "mixer.mu", 0, GMAL_INIT_NORMAL, 1, 3, h, c->components, c->routing_dim);
    b->omega = add(l, i, "mixer.omega", 0, GMAL_INIT_ZERO, 1, 3, h, c->components, c->routing_dim);
    b->alpha = add(l, i, "mixer.alpha", 0, GMAL_INIT_ZERO, 1, 2, h, c->components, 0);
    if (c->logit_scale) b->logit_scale = add(l, i, "mixer.log_logit_scale", 0, GMAL_INIT_LOGIT_SCALE, 1, 1, h, 0, 0);
    b->out = add(l, i, "mixer.out_proj.weight", 1, GMAL_INIT_RESIDUAL, 1, 2, w, l->out, 0);
}

static void add_block(gmal_layout *l, int64_t i) {
    const gma_lm_config *c = &l->c;
    const int bias = c->norm == GMA_LM_NORM_LAYER;
    gmal_block *b = &l->blocks[i];
    for (size_t j = 0; j < sizeof *b / sizeof(int64_t); j++) ((int64_t *)b)[j] = -1;
    b->norm1_w = add(l, i, "norm1.weight", 0, GMAL_INIT_ONE, 1, 1, c->width, 0, 0);
    if (bias) b->norm1_b = add(l, i, "norm1.bias", 0, GMAL_INIT_ZERO, 1, 1, c->width, 0, 0);
    add_mixer(l, i, b);
    b->norm2_w = add(l, i, "norm2.weight", 0, GMAL_INIT_ONE, 1, 1, c->width, 0, 0);
    if (bias) b->norm2_b = add(l, i, "norm2.bias", 0, GMAL_INIT_ZERO, 1, 1, c->width, 0, 0);
    b->up = add(l, i, "mlp.up.weight", 1, GMAL_INIT_MATRIX, 1, 2, l->hidden, c->width, 0);
    b->down = add(l, i, "mlp.down.weight", 1, GMAL_INIT_RESIDUAL, 1, 2, c->width, c->mlp_width, 0);
}

gma_status gmal_layout_create(const gma_lm_config *config, gmal_layout **layout) {
    *layout = NULL;
    gmal_layout *l = calloc(1, sizeof *l);
    if (l) {
        l->params = calloc((size_t)config->layers * PER_BLOCK + REST, sizeof *l->params);
        l->blocks = calloc((size_t)config->layers, sizeof *l->blocks);
    }
    if (!l || !l->params || !l->blocks) {
        gmal_layout_destroy(l);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the table of parameters");
    }
    const gma_lm_config *c = config;
    l->c = *c;
    l->q = c->heads * c->routing_dim;
    l->k = c->kv_heads * c->routing_dim;
    l->v = c->kv_heads * c->value_dim;
    l->out = c->heads * c->value_dim;
    l->gate = c->output_gate ? l->out : 0;
    l->forget = c->forget_gate ? c->kv_heads : 0;
    l->qkv = l->q + l->k + l->v;
    l->proj = l->qkv + l->gate + l->forget;
    l->hidden = c->mlp == GMA_LM_MLP_SWIGLU ? 2 * c->mlp_width : c->mlp_width;
    l->positions = l->norm_b = -1;
    l->embed = add(l, -1, "embed.weight", 1, GMAL_INIT_EMBEDDING, 1, 2, c->vocab, c->width, 0);
    if (c->positions == GMA_LM_POSITIONS_LEARNED)
        l->positions = add(l, -1, "positions.weight", 1, GMAL_INIT_EMBEDDING, 1, 2, c->context, c->width, 0);
    for (int64_t i = 0; i < c->layers; i++) add_block(l, i);
    l->norm_w = add(l, -1, "norm.weight", 0, GMAL_INIT_ONE, 1, 1, c->width, 0, 0);
    if (c->norm == GMA_LM_NORM_LAYER) l->norm_b = add(l, -1, "norm.bias", 0, GMAL_INIT_ZERO, 1, 1, c->width, 0, 0);
    l->head = c->tied ? l->embed : add(l, -1, "head.weight", 1, GMAL_INIT_EMBEDDING, 1, 2, c->vocab, c->width, 0);
    *layout = l;
    return GMA_OK;
}

void gmal_layout_destroy(gmal_layout *layout) {
    if (!layout) return;
    free(layout->params);
    free(layout->blocks);
    free(layout);
}

/* Box-Muller; value i of a tensor depends on (key, i) only. */
static float normal(uint64_t key, int64_t i) {
    const double u = gmal_uniform(key, 2 * (uint64_t)i), v = gmal_uniform(key, 2 * (uint64_t)i + 1);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static float value_of(const gmal_layout *l, const gmal_param *p, uint64_t key, int64_t i) {
    const double fan_in = (double)p->shape[p->rank - 1];
    switch (p->init) {
    case GMAL_INIT_ONE: return 1;
    case GMAL_INIT_EMBEDDING: return 0.02f * normal(key, i);
    case GMAL_INIT_MATRIX: return (float)(1 / sqrt(fan_in)) * normal(key, i);
    case GMAL_INIT_RESIDUAL: return (float)(1 / sqrt(fan_in * 2 * (double)l->c.layers)) * normal(key, i);
    case GMAL_INIT_NORMAL: return normal(key, i);
    case GMAL_INIT_FORGET: return p->count > 1 ? 3 + 4 * (float)i / (float)(p->count - 1) : 5;
    case GMAL_INIT_LOGIT_SCALE: return (float)log(l->c.logit_scale_init);
    case GMAL_INIT_CONV: return i < p->shape[1] ? 1 : 0;
    case GMAL_INIT_ZERO: break;
    }
    return 0;
}

void gmal_layout_init(const gmal_layout *layout, uint64_t seed, float *values) {
    memset(values, 0, (size_t)layout->total * sizeof *values); /* gaps too */
    for (int j = 0; j < layout->param_count; j++) {
        const gmal_param *p = &layout->params[j];
        const uint64_t key = gmal_key(seed, (uint64_t)j);
        for (int64_t i = 0; i < p->count; i++) values[p->offset + i] = value_of(layout, p, key, i);
    }
}
