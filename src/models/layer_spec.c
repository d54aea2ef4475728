/* From a whole model to its layers. */
#include "models/layer_spec.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/mixer_layer.h"

#define FAIL(...) return gma_fail(GMA_ERR_INVALID_ARGUMENT, __VA_ARGS__)

typedef gmal_layer_option option;

static int same(const gmal_layer *a, const gmal_layer *b) { return memcmp(a, b, sizeof *a) == 0; }

/* The shortest pattern of these layers. */
static gma_status write_pattern(gma_lm_config *c, const gmal_layer *layers) {
    char text[sizeof c->pattern] = "";
    size_t used = 0;
    for (int64_t i = 0, n; i < c->layers; i += n) {
        char item[GMAL_LAYER_TEXT];
        for (n = 1; i + n < c->layers && same(&layers[i], &layers[i + n]);)
            n++;
        gmal_layer_print(&layers[i], item, sizeof item);
        int wrote;
        if (n > 1)
            wrote = snprintf(text + used, sizeof text - used, "%s%lldx%s", i ? "," : "", (long long)n, item);
        else
            wrote = snprintf(text + used, sizeof text - used, "%s%s", i ? "," : "", item);
        used += (size_t)wrote;
        if (used >= sizeof text)
            FAIL("layers: the pattern is longer than %d characters; say what many layers share for the whole model",
                 (int)sizeof text - 1);
    }
    memset(c->pattern, 0, sizeof c->pattern); /* configurations are compared byte by byte */
    memcpy(c->pattern, text, used);
    return GMA_OK;
}

/* ---- From the whole model to its layers ----------------------------------------------------------------------- */

static gma_status said(const gma_lm_config *c, gmal_layer *layers) {
    int64_t count;
    if (*c->pattern)
        return gmal_pattern_parse(c->pattern, gmal_config_role(c), layers, &count);
    for (int64_t i = 0; i < c->layers; i++)
        gmal_layer_open(&layers[i], c->mixer, gmal_config_role(c));
    return GMA_OK;
}

/* Some layer can honour the option. */
static int some_can(const gma_lm_config *c, const gmal_layer *layers, size_t offset) {
    for (int64_t i = 0; i < c->layers; i++)
        if (gmal_layer_can(&layers[i], offset))
            return 1;
    return 0;
}

/* -1 -> what it stands for. A switch that is on and finds no layer is an error, not a wish. */
static gma_status settle(const gma_lm_config *c, const gmal_layer *layers, size_t offset, const char *name,
                         int64_t open_means, int64_t *value) {
    const int any = some_can(c, layers, offset);
    if (*value < 0)
        *value = any ? open_means : 0;
    if (*value > 0 && !any)
        FAIL("%s: no layer can honour it; the mixer %s has none%s", name, gmal_kind_name(layers[0].mixer),
             layers[0].role == GMAL_ROLE_CAUSAL ? "" : " where it is not causal");
    return GMA_OK;
}

/* Softmax attention knows no order of its own: its layers get rotary positions, the others none. */
static void settle_positions(gma_lm_config *c, gmal_layer *layers) {
    int softmax = 0, others = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        softmax |= layers[i].mixer == GMA_MIXER_SOFTMAX;
        others |= layers[i].mixer != GMA_MIXER_SOFTMAX && gmal_layer_can(&layers[i], offsetof(gmal_layer, rotary));
    }
    c->positions = softmax && !others ? GMA_LM_POSITIONS_ROTARY : GMA_LM_POSITIONS_NONE;
    for (int64_t i = 0; i < c->layers && others; i++)
        if (layers[i].mixer == GMA_MIXER_SOFTMAX && layers[i].rotary < 0)
            layers[i].rotary = 1;
}

static gma_status settle_options(gma_lm_config *c, gmal_layer *layers) {
    const struct {
        const char *name;
        size_t offset;
        int64_t open_means;
        int64_t *wide;
        int32_t *narrow;
    } rows[] = {
        {"components", offsetof(gmal_layer, components), 64, &c->components, NULL},
        {"conv", offsetof(gmal_layer, conv), 4, &c->conv, NULL},
        {"states", offsetof(gmal_layer, states), 16, &c->states, NULL},
        {"expand", offsetof(gmal_layer, expand), 2, &c->expand, NULL},
        {"window", offsetof(gmal_layer, window), 0, &c->window, NULL},
        {"logit_scale", offsetof(gmal_layer, logit_scale), 1, NULL, &c->logit_scale},
        {"forget_gate", offsetof(gmal_layer, forget_gate), 1, NULL, &c->forget_gate},
        {"output_gate", offsetof(gmal_layer, output_gate), 1, NULL, &c->output_gate},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t x = rows[i].wide ? *rows[i].wide : *rows[i].narrow;
        const gma_status s = settle(c, layers, rows[i].offset, rows[i].name, rows[i].open_means, &x);
        if (s != GMA_OK)
            return s;
        if (rows[i].wide)
            *rows[i].wide = x;
        else
            *rows[i].narrow = (int32_t)x;
    }
    if (c->positions == GMA_LM_POSITIONS_AUTO)
        settle_positions(c, layers);
    if (c->positions == GMA_LM_POSITIONS_ROTARY && !some_can(c, layers, offsetof(gmal_layer, rotary)))
        FAIL("positions: rotary turns q and k, and no layer has them (%s)", gmal_kind_name(layers[0].mixer));
    return GMA_OK;
}

/* What all layers share and has a usual value: another one must be of use to some layer. */
static gma_status check_shared(const gma_lm_config *c, const gmal_layer *layers) {
    int queries = 0, sums = 0, mixture = 0, scale = 0, turned = 0;
    gma_lm_config usual;
    const gma_status s = gma_lm_config_init(&usual);
    if (s != GMA_OK)
        return s;
    for (int64_t i = 0; i < c->layers; i++) {
        const int32_t kind = (int32_t)layers[i].mixer;
        queries |= gmal_mixer_has(kind, GMA_Q);
        sums |= gmal_mixer_has(kind, GMA_STATE_Z);
        mixture |= gmal_mixer_has(kind, GMA_MU);
        scale |= layers[i].logit_scale > 0;
        turned |= layers[i].rotary > 0;
    }
    const struct {
        const char *name;
        int unusual, honoured;
    } rows[] = {
        {"kv_heads", c->kv_heads != c->heads, queries},
        {"eps", c->eps < usual.eps || c->eps > usual.eps, sums},
        {"eps_sigma", c->eps_sigma < usual.eps_sigma || c->eps_sigma > usual.eps_sigma, mixture},
        {"logit_scale_init",
         c->logit_scale_init < usual.logit_scale_init || c->logit_scale_init > usual.logit_scale_init, scale},
        {"rotary_base", c->rotary_base < usual.rotary_base || c->rotary_base > usual.rotary_base, turned},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].unusual && !rows[i].honoured)
            FAIL("%s: no layer can honour it as configured; the first mixes with %s", rows[i].name,
                 gmal_kind_name(layers[0].mixer));
    return GMA_OK;
}

/* A mixer says itself what it cannot be. */
static gma_status ask_mixers(const gma_lm_config *c, const gmal_layer *layers) {
    for (int64_t i = 0; i < c->layers; i++) {
        if (layers[i].rotary && c->routing_dim % 2)
            FAIL("layer %lld (%s): routing_dim (%lld) must be even for rotary positions", (long long)i,
                 gmal_kind_name(layers[i].mixer), (long long)c->routing_dim);
        if (layers[i].mixer == GMA_MIXER_MAMBA && (layers[i].states < 1 || layers[i].expand < 1))
            FAIL("layer %lld (mamba): %s must be at least 1, not 0", (long long)i,
                 layers[i].states < 1 ? "states" : "expand");
        gma_mixer_desc d;
        gma_mixer *mixer = NULL;
        if (i && same(&layers[i], &layers[i - 1]))
            continue;
        gma_status s = gmal_layer_desc(c, &layers[i], 1, c->context, c->context, -1, &d);
        if (s == GMA_OK)
            s = gma_mixer_create(&d, &mixer);
        gma_mixer_destroy(mixer);
        if (s == GMA_OK)
            continue;
        char why[300];
        snprintf(why, sizeof why, "%s", gma_last_error());
        return gma_fail(s, "layer %lld (%s): %s", (long long)i, gmal_kind_name(layers[i].mixer), why);
    }
    return GMA_OK;
}

gma_status gmal_layers_resolve(gma_lm_config *c) {
    c->pattern[sizeof c->pattern - 1] = 0;
    if (*c->pattern) {
        const gma_status s = gmal_pattern_parse(c->pattern, gmal_config_role(c), NULL, &c->layers);
        if (s != GMA_OK)
            return s;
        if (c->mixer)
            FAIL("mixer is %s, and layers (%s) names the mixer of each layer: only one of the two can be given",
                 gmal_kind_name(c->mixer), c->pattern);
    } else if (!c->mixer) {
        c->mixer = GMA_MIXER_GMA;
    }
    gmal_layer *layers = malloc((size_t)c->layers * sizeof *layers);
    if (!layers)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a configuration");
    gma_status s = said(c, layers);
    if (s == GMA_OK)
        s = settle_options(c, layers);
    if (s == GMA_OK && *c->pattern)
        s = write_pattern(c, layers);
    if (s == GMA_OK) {
        gmal_layers_get(c, layers);
        s = check_shared(c, layers);
    }
    if (s == GMA_OK) {
        s = ask_mixers(c, layers);
    }
    free(layers);
    return s;
}

void gmal_layers_get(const gma_lm_config *c, gmal_layer *layers) {
    gmal_layer whole = {
        .window = c->window,
        .states = c->states,
        .expand = c->expand,
        .components = c->components,
        .logit_scale = c->logit_scale,
        .forget_gate = c->forget_gate,
        .output_gate = c->output_gate,
        .conv = c->conv,
        .rotary = c->positions == GMA_LM_POSITIONS_ROTARY,
    };
    said(c, layers);
    for (int64_t i = 0; i < c->layers; i++) {
        for (int j = 0; j < GMAL_LAYER_OPTION_COUNT; j++) {
            int64_t *x = gmal_layer_value(&layers[i], &gmal_layer_options[j]);
            if (!gmal_layer_can(&layers[i], gmal_layer_options[j].offset))
                *x = 0;
            else if (*x < 0)
                *x = *gmal_layer_value(&whole, &gmal_layer_options[j]);
        }
        if (layers[i].mixer == GMA_MIXER_MAMBA) { /* part of what it is */
            layers[i].conv = 4;
            layers[i].output_gate = 1;
        }
    }
}

int gmal_layer_turns(const gmal_layer *layer) { return layer->rotary && layer->mixer != GMA_MIXER_SOFTMAX; }

gmal_role gmal_config_role(const gma_lm_config *c) {
    return c->causal == 0 ? GMAL_ROLE_BIDIRECTIONAL : GMAL_ROLE_CAUSAL;
}

gma_status gmal_layer_desc(const gma_lm_config *c, const gmal_layer *layer, int64_t batch, int64_t q_len, int64_t k_len,
                           int64_t segments, gma_mixer_desc *d) {
    const gma_status s = gma_mixer_desc_init(d, (gma_mixer_kind)layer->mixer);
    if (s != GMA_OK)
        return s;
    d->causal = layer->role == GMAL_ROLE_CAUSAL || layer->mixer == GMA_MIXER_MAMBA; /* which runs in one direction only */
    d->segments = segments;
    d->batch = batch;
    d->q_len = q_len;
    d->k_len = k_len;
    d->eps = c->eps;
    d->eps_sigma = c->eps_sigma;
    if (layer->mixer == GMA_MIXER_MAMBA) {
        d->heads = d->kv_heads = 1;
        d->value_dim = layer->expand * c->width;
        d->components = layer->states;
        return GMA_OK;
    }
    d->heads = c->heads;
    d->kv_heads = c->kv_heads;
    d->routing_dim = c->routing_dim;
    d->value_dim = c->value_dim;
    d->components = layer->components;
    if (layer->mixer == GMA_MIXER_LINFORMER && k_len > c->context)
        FAIL("the mixer linformer has projections for sequences of context = %lld tokens, not %lld", (long long)c->context,
             (long long)k_len);
    if (layer->mixer == GMA_MIXER_SOFTMAX) {
        d->window = layer->window;
        d->rotary_base = layer->rotary ? c->rotary_base : 0;
    }
    return GMA_OK;
}

/* No mixer's name is part of another's, or of an option's. */
int gmal_config_has(const gma_lm_config *c, int64_t kind) {
    return *c->pattern ? strstr(c->pattern, gmal_kind_name(kind)) != NULL : c->mixer == kind;
}

int gmal_config_looks_ahead(const gma_lm_config *c) {
    for (int64_t kind = 1; gma_mixer_kind_name((gma_mixer_kind)kind); kind++)
        if (kind != GMA_MIXER_MAMBA && gmal_config_has(c, kind))
            return c->causal == 0;
    return 0;
}

gma_status gma_lm_config_layer(const gma_lm_config *config, int64_t i, char *text, size_t size) {
    if (!config || !text || !size)
        FAIL("gma_lm_config_layer: a pointer is NULL or size is 0");
    gma_lm_config c = *config;
    const gma_status s = gma_lm_config_resolve(&c);
    if (s != GMA_OK)
        return s;
    if (i < 0 || i >= c.layers)
        FAIL("layer %lld: the model has %lld", (long long)i, (long long)c.layers);
    gmal_layer *layers = malloc((size_t)c.layers * sizeof *layers);
    if (!layers)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a configuration");
    gmal_layers_get(&c, layers);
    for (int j = 0; j < GMAL_LAYER_OPTION_COUNT; j++)
        if (!gmal_layer_can(&layers[i], gmal_layer_options[j].offset))
            *gmal_layer_value(&layers[i], &gmal_layer_options[j]) = -1;
    gmal_layer_print(&layers[i], text, size);
    free(layers);
    return GMA_OK;
}
