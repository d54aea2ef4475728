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

static gmal_role role_of(const gma_lm_config *c, gmal_part part) {
    if (part == GMAL_PART_CROSS)
        return GMAL_ROLE_CROSS;
    return part == GMAL_PART_MAIN && c->causal ? GMAL_ROLE_CAUSAL : GMAL_ROLE_BIDIRECTIONAL;
}

static const struct {
    const char *field, *what;
    size_t pattern;
} parts[GMAL_PARTS] = {
    {"layers", "layer", offsetof(gma_lm_config, pattern)},
    {"encoder_layers", "encoder layer", offsetof(gma_lm_config, encoder_pattern)},
    {"cross_mixer", "cross-attention of layer", offsetof(gma_lm_config, cross_pattern)},
};

static char *pattern_of(gma_lm_config *c, gmal_part part) { return (char *)c + parts[part].pattern; }
static const char *said_pattern(const gma_lm_config *c, gmal_part part) { return (const char *)c + parts[part].pattern; }

int64_t gmal_part_count(const gma_lm_config *c, gmal_part part) {
    if (part == GMAL_PART_MAIN)
        return c->layers;
    if (c->task != GMA_LM_TASK_SEQ2SEQ)
        return 0;
    return part == GMAL_PART_ENCODER ? c->encoder_layers : c->layers;
}

/* The shortest pattern of these layers. */
static gma_status write_pattern(gma_lm_config *c, gmal_part part, const gmal_layer *layers) {
    char text[GMAL_PATTERN] = "";
    const int64_t count = gmal_part_count(c, part);
    size_t used = 0;
    for (int64_t i = 0, n; i < count; i += n) {
        char item[GMAL_LAYER_TEXT];
        for (n = 1; i + n < count && same(&layers[i], &layers[i + n]);)
            n++;
        gmal_layer_print(&layers[i], item, sizeof item);
        int wrote;
        if (n > 1)
            wrote = snprintf(text + used, sizeof text - used, "%s%lldx%s", i ? "," : "", (long long)n, item);
        else
            wrote = snprintf(text + used, sizeof text - used, "%s%s", i ? "," : "", item);
        used += (size_t)wrote;
        if (used >= sizeof text)
            FAIL("%s: the pattern is longer than %d characters; say what many layers share for the whole model",
                 parts[part].field, (int)sizeof text - 1);
    }
    memset(pattern_of(c, part), 0, GMAL_PATTERN); /* configurations are compared byte by byte */
    memcpy(pattern_of(c, part), text, used);
    return GMA_OK;
}

/* ---- From the whole model to its layers ----------------------------------------------------------------------- */

static gma_status said(const gma_lm_config *c, gmal_part part, gmal_layer *layers) {
    const char *pattern = said_pattern(c, part);
    const int64_t count = gmal_part_count(c, part);
    const gmal_role role = role_of(c, part);
    int64_t n;
    if (!count)
        return GMA_OK;
    if (*pattern) {
        const gma_status s = gmal_pattern_parse(pattern, parts[part].field, role, layers, &n);
        for (int64_t i = n; s == GMA_OK && i < count; i++) /* one cross-attention for all */
            layers[i] = layers[0];
        return s;
    }
    if (part == GMAL_PART_CROSS && *c->pattern) { /* each layer's own mixer */
        const gma_status s = said(c, GMAL_PART_MAIN, layers);
        for (int64_t i = 0; s == GMA_OK && i < count; i++)
            gmal_layer_open(&layers[i], layers[i].mixer, role);
        return s;
    }
    for (int64_t i = 0; i < count; i++)
        gmal_layer_open(&layers[i], c->mixer, role);
    return GMA_OK;
}

/* Some layer can honour the option. */
static int some_can(const gmal_layer *layers, int64_t count, size_t offset) {
    for (int64_t i = 0; i < count; i++)
        if (gmal_layer_can(&layers[i], offset))
            return 1;
    return 0;
}

/* -1 -> what it stands for. A switch that is on and finds no layer is an error, not a wish. */
static gma_status settle(const gmal_layer *layers, int64_t count, size_t offset, const char *name, int64_t open_means,
                         int64_t *value) {
    const int any = some_can(layers, count, offset);
    if (*value < 0)
        *value = any ? open_means : 0;
    if (*value > 0 && !any)
        FAIL("%s: no layer can honour it; the mixer %s has none%s", name, gmal_kind_name(layers[0].mixer),
             gmal_role_text(&layers[0], offset));
    return GMA_OK;
}

/* Softmax attention knows no order of its own: its layers get rotary positions, the others none. A decoder finds its place
 * in the other sequence by learned positions. */
static void settle_positions(gma_lm_config *c, gmal_layer *layers) {
    int softmax = 0, others = 0;
    if (c->task == GMA_LM_TASK_SEQ2SEQ) {
        c->positions = GMA_LM_POSITIONS_LEARNED;
        return;
    }
    for (int64_t i = 0; i < c->layers; i++) {
        softmax |= layers[i].mixer == GMA_MIXER_SOFTMAX;
        others |= layers[i].mixer != GMA_MIXER_SOFTMAX && gmal_layer_can(&layers[i], offsetof(gmal_layer, rotary));
    }
    c->positions = softmax && !others ? GMA_LM_POSITIONS_ROTARY : GMA_LM_POSITIONS_NONE;
    for (int64_t i = 0; i < c->layers && others; i++)
        if (layers[i].mixer == GMA_MIXER_SOFTMAX && layers[i].rotary < 0)
            layers[i].rotary = 1;
}

/* layers: of all parts, one behind the other. */
static gma_status settle_options(gma_lm_config *c, gmal_layer *layers, int64_t count) {
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
        const gma_status s = settle(layers, count, rows[i].offset, rows[i].name, rows[i].open_means, &x);
        if (s != GMA_OK)
            return s;
        if (rows[i].wide)
            *rows[i].wide = x;
        else
            *rows[i].narrow = (int32_t)x;
    }
    if (c->positions == GMA_LM_POSITIONS_AUTO)
        settle_positions(c, layers);
    if (c->positions == GMA_LM_POSITIONS_ROTARY && !some_can(layers, count, offsetof(gmal_layer, rotary)))
        FAIL("positions: rotary turns q and k, and no layer has them (%s)", gmal_kind_name(layers[0].mixer));
    return GMA_OK;
}

/* A mixer says itself what it cannot be. */
static gma_status ask_mixers(const gma_lm_config *c, gmal_part part, const gmal_layer *layers) {
    for (int64_t i = 0; i < gmal_part_count(c, part); i++) {
        const char *kind = gmal_kind_name(layers[i].mixer);
        if (layers[i].rotary && c->routing_dim % 2)
            FAIL("%s %lld (%s): routing_dim (%lld) must be even for rotary positions", parts[part].what, (long long)i,
                 kind, (long long)c->routing_dim);
        if (layers[i].mixer == GMA_MIXER_MAMBA && (layers[i].states < 1 || layers[i].expand < 1))
            FAIL("%s %lld (mamba): %s must be at least 1, not 0", parts[part].what, (long long)i,
                 layers[i].states < 1 ? "states" : "expand");
        if (part == GMAL_PART_CROSS && !gmal_mixer_has((int32_t)layers[i].mixer, GMA_Q))
            FAIL("%s %lld (%s): this mixer has no queries, so it cannot read another sequence; cross_mixer names one that can",
                 parts[part].what, (long long)i, kind);
        if (part == GMAL_PART_ENCODER && layers[i].mixer == GMA_MIXER_MAMBA)
            FAIL("%s %lld (%s): this mixer runs in one direction only, and an encoder is bidirectional", parts[part].what,
                 (long long)i, kind);
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
        return gma_fail(s, "%s %lld (%s): %s", parts[part].what, (long long)i, kind, why);
    }
    return GMA_OK;
}

/* How many layers the encoder has, and that its and the cross-attention's patterns fit; or that neither was asked for. */
static gma_status count_other_parts(gma_lm_config *c) {
    int64_t n = 1;
    if (c->task != GMA_LM_TASK_SEQ2SEQ) {
        if (c->encoder_layers || *c->encoder_pattern)
            FAIL("encoder_layers: only a model of task seq2seq has an encoder");
        if (*c->cross_pattern)
            FAIL("cross_mixer: only a model of task seq2seq reads another sequence");
        return GMA_OK;
    }
    if (!*c->encoder_pattern && !c->encoder_layers && *c->pattern)
        memcpy(c->encoder_pattern, c->pattern, sizeof c->encoder_pattern);
    if (*c->encoder_pattern) {
        const gma_status s =
            gmal_pattern_parse(c->encoder_pattern, parts[GMAL_PART_ENCODER].field, GMAL_ROLE_BIDIRECTIONAL, NULL, &c->encoder_layers);
        if (s != GMA_OK)
            return s;
    } else if (!c->encoder_layers) {
        c->encoder_layers = c->layers;
    } else if (*c->pattern) {
        FAIL("encoder_layers is a number, and layers (%s) names the mixer of each layer: name those of the encoder too", c->pattern);
    }
    if (!*c->cross_pattern)
        return GMA_OK;
    const gma_status s = gmal_pattern_parse(c->cross_pattern, parts[GMAL_PART_CROSS].field, GMAL_ROLE_CROSS, NULL, &n);
    if (s == GMA_OK && n != 1 && n != c->layers)
        FAIL("cross_mixer names %lld mixers for a decoder of %lld layers; name one for all, or one for each", (long long)n,
             (long long)c->layers);
    return s;
}

static int64_t all_layers(const gma_lm_config *c) {
    int64_t n = 0;
    for (int part = 0; part < GMAL_PARTS; part++)
        n += gmal_part_count(c, (gmal_part)part);
    return n;
}

gma_status gmal_layers_resolve(gma_lm_config *c) {
    for (int part = 0; part < GMAL_PARTS; part++)
        pattern_of(c, (gmal_part)part)[GMAL_PATTERN - 1] = 0;
    gma_status s = GMA_OK;
    if (*c->pattern) {
        s = gmal_pattern_parse(c->pattern, "layers", role_of(c, GMAL_PART_MAIN), NULL, &c->layers);
        if (s != GMA_OK)
            return s;
        if (c->mixer)
            FAIL("mixer is %s, and layers (%s) names the mixer of each layer: only one of the two can be given",
                 gmal_kind_name(c->mixer), c->pattern);
    } else if (!c->mixer) {
        c->mixer = GMA_MIXER_GMA;
    }
    s = count_other_parts(c);
    if (s != GMA_OK)
        return s;
    gmal_layer *layers = malloc((size_t)all_layers(c) * sizeof *layers), *at = layers;
    if (!layers)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a configuration");
    for (int part = 0; part < GMAL_PARTS && s == GMA_OK; at += gmal_part_count(c, (gmal_part)part++))
        s = said(c, (gmal_part)part, at);
    if (s == GMA_OK)
        s = settle_options(c, layers, all_layers(c));
    at = layers;
    for (int part = 0; part < GMAL_PARTS && s == GMA_OK; at += gmal_part_count(c, (gmal_part)part++))
        if (*pattern_of(c, (gmal_part)part))
            s = write_pattern(c, (gmal_part)part, at);
    for (int part = 0; part < GMAL_PARTS && s == GMA_OK; part++) {
        gmal_layers_get(c, (gmal_part)part, layers);
        s = ask_mixers(c, (gmal_part)part, layers);
    }
    free(layers);
    return s;
}

void gmal_layers_get(const gma_lm_config *c, gmal_part part, gmal_layer *layers) {
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
    const int64_t count = gmal_part_count(c, part);
    said(c, part, layers);
    for (int64_t i = 0; i < count; i++) {
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

gma_status gmal_layers_check_shared(const gma_lm_config *c) {
    int queries = 0, sums = 0, mixture = 0, scale = 0, turned = 0;
    gma_lm_config usual;
    const gma_status s = gma_lm_config_init(&usual);
    if (s != GMA_OK)
        return s;
    const int64_t count = all_layers(c);
    gmal_layer *layers = malloc((size_t)count * sizeof *layers), *at = layers;
    if (!layers)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a configuration");
    for (int part = 0; part < GMAL_PARTS; at += gmal_part_count(c, (gmal_part)part++))
        gmal_layers_get(c, (gmal_part)part, at);
    const int64_t first = layers[0].mixer;
    for (int64_t i = 0; i < count; i++) {
        const int32_t kind = (int32_t)layers[i].mixer;
        queries |= gmal_mixer_has(kind, GMA_Q);
        sums |= gmal_mixer_has(kind, GMA_STATE_Z);
        mixture |= gmal_mixer_has(kind, GMA_MU);
        scale |= layers[i].logit_scale > 0;
        turned |= layers[i].rotary > 0;
    }
    free(layers);
    const struct {
        const char *name;
        int unusual, honoured;
    } rows[] = {
        {"kv_heads", c->kv_heads != c->heads, queries},
        {"routing_dim", c->width % c->heads == 0 && c->routing_dim != c->width / c->heads, queries},
        {"value_dim", c->width % c->heads == 0 && c->value_dim != c->width / c->heads, queries},
        {"eps", c->eps < usual.eps || c->eps > usual.eps, sums},
        {"eps_sigma", c->eps_sigma < usual.eps_sigma || c->eps_sigma > usual.eps_sigma, mixture},
        {"logit_scale_init", /* 0.3 stands in the config.json of runs from when that was usual */
         (c->logit_scale_init < usual.logit_scale_init || c->logit_scale_init > usual.logit_scale_init) &&
             (c->logit_scale_init < 0.3 || c->logit_scale_init > 0.3), scale},
        {"rotary_base", c->rotary_base < usual.rotary_base || c->rotary_base > usual.rotary_base, turned},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].unusual && !rows[i].honoured)
            FAIL("%s: no layer can honour it as configured; the first mixes with %s", rows[i].name,
                 gmal_kind_name(first));
    return GMA_OK;
}

gma_status gma_lm_config_layer(const gma_lm_config *config, int64_t i, char *text, size_t size) {
    if (!config || !text || !size)
        FAIL("gma_lm_config_layer: a pointer is NULL or size is 0");
    gma_lm_config c = *config;
    const gma_status s = gma_lm_config_resolve(&c);
    if (s != GMA_OK)
        return s;
    static const char *const before[GMAL_PARTS] = {"", "encoder ", "cross "};
    int part = 0;
    int64_t at = i;
    for (; part < GMAL_PARTS && at >= gmal_part_count(&c, (gmal_part)part); part++)
        at -= gmal_part_count(&c, (gmal_part)part);
    if (i < 0 || part == GMAL_PARTS)
        FAIL("layer %lld: the model has %lld", (long long)i, (long long)all_layers(&c));
    gmal_layer *layers = malloc((size_t)gmal_part_count(&c, (gmal_part)part) * sizeof *layers);
    if (!layers)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a configuration");
    gmal_layers_get(&c, (gmal_part)part, layers);
    for (int j = 0; j < GMAL_LAYER_OPTION_COUNT; j++)
        if (!gmal_layer_can(&layers[at], gmal_layer_options[j].offset))
            *gmal_layer_value(&layers[at], &gmal_layer_options[j]) = -1;
    const size_t used = (size_t)snprintf(text, size, "%s", before[part]);
    if (used < size)
        gmal_layer_print(&layers[at], text + used, size - used);
    free(layers);
    return GMA_OK;
}
