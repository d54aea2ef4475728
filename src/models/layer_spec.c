/* Patterns of layers, and what follows from them. */
#include "models/layer_spec.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/mixer_layer.h"

#define FAIL(...) return gma_fail(GMA_ERR_INVALID_ARGUMENT, __VA_ARGS__)

enum { MOST_LAYERS = 1000, ITEM = 200 };

typedef struct option {
    const char *name;
    size_t offset;
    int64_t least, most;
} option;

#define ROW(name, least, most) {#name, offsetof(gmal_layer, name), least, most},
static const option options[] = {GMAL_LAYER_OPTIONS(ROW)};
enum { OPTIONS = sizeof options / sizeof options[0] };

static int64_t *value_at(gmal_layer *layer, const option *o) { return (int64_t *)(void *)((char *)layer + o->offset); }
static int64_t value_of(const gmal_layer *layer, const option *o) {
    return *(const int64_t *)(const void *)((const char *)layer + o->offset);
}

static const char *kind_name(int64_t kind) {
    const char *name = gma_mixer_kind_name((gma_mixer_kind)kind);
    return name ? name : "?";
}

/* ---- What a mixer can honour ---------------------------------------------------------------------------------- */

int gmal_mixer_extent(int64_t kind, const char *letters) {
    int count = 0;
    const gma_slot_info *rows = gma_mixer_slots((gma_mixer_kind)kind, &count);
    for (int i = 0; rows && i < count; i++)
        if (rows[i].role == GMA_ROLE_PARAM && strpbrk(rows[i].dims, letters))
            return 1;
    return 0;
}

static int can(int64_t kind, const option *o) {
    const int32_t k = (int32_t)kind;
    switch (o->offset) {
    case offsetof(gmal_layer, window):
        return kind == GMA_MIXER_SOFTMAX;
    case offsetof(gmal_layer, components):
        return gmal_mixer_extent(kind, "KM");
    case offsetof(gmal_layer, logit_scale):
        return gmal_mixer_has(k, GMA_LOGIT_SCALE);
    case offsetof(gmal_layer, forget_gate):
        return gmal_mixer_has(k, GMA_LOG_DECAY);
    default:
        return gmal_mixer_has(k, GMA_Q); /* they work on q, k, v and o */
    }
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

static const option *option_of(const char *name, size_t n) {
    for (int i = 0; i < OPTIONS; i++) {
        size_t j = 0;
        while (j < n && (name[j] == options[i].name[j] || (name[j] == '-' && options[i].name[j] == '_')))
            j++;
        if (j == n && !options[i].name[n])
            return &options[i];
    }
    return NULL;
}

static gma_status parse_option(const char *item, const char *text, size_t n, gmal_layer *layer) {
    char all[160] = "", number[32];
    const char *eq = memchr(text, '=', n);
    const option *o = option_of(text, eq ? (size_t)(eq - text) : n);
    if (!o) {
        for (int i = 0; i < OPTIONS; i++)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", options[i].name);
        FAIL("layers: \"%s\": there is no option \"%.*s\"; there are: %s", item, (int)strcspn(text, "=:"),
             text, all);
    }
    char *end = number;
    const size_t m = eq ? n - (size_t)(eq + 1 - text) : 0;
    long long x = 0;
    if (m && m < sizeof number) {
        memcpy(number, eq + 1, m);
        number[m] = 0;
        errno = 0;
        x = strtoll(number, &end, 10);
        if (*end || errno)
            end = number;
    }
    if (end == number || x < o->least || x > o->most)
        FAIL("layers: \"%s\": %s must be a whole number from %lld to %lld", item, o->name, (long long)o->least,
             (long long)o->most);
    if (x && !can(layer->mixer, o))
        FAIL("layers: \"%s\": the mixer %s has no %s", item, kind_name(layer->mixer), o->name);
    *value_at(layer, o) = can(layer->mixer, o) ? x : -1;
    return GMA_OK;
}

static void open_layer(gmal_layer *layer, int64_t kind) {
    layer->mixer = kind;
    for (int i = 0; i < OPTIONS; i++)
        *value_at(layer, &options[i]) = -1;
}

/* text: one item, zero-terminated. */
static gma_status parse_item(const char *item, gmal_layer *layer, int64_t *repeat) {
    char name[64];
    const char *at = item;
    const size_t digits = strspn(at, "0123456789");
    gma_mixer_kind kind;
    *repeat = 1;
    if (digits && at[digits] == 'x') {
        *repeat = digits < 6 ? strtoll(at, NULL, 10) : 0;
        if (*repeat < 1 || *repeat > MOST_LAYERS)
            FAIL("layers: \"%s\": the count must be a whole number from 1 to %d", item, (int)MOST_LAYERS);
        at += digits + 1;
    }
    const size_t n = strcspn(at, ":");
    if (n == 0)
        FAIL("layers: \"%s\": a mixer is missing", item);
    snprintf(name, sizeof name, "%.*s", (int)(n < 60 ? n : 60), at);
    if (gma_mixer_kind_from_name(name, &kind) != GMA_OK) {
        char why[300];
        snprintf(why, sizeof why, "%s", gma_last_error());
        FAIL("layers: \"%s\": %s", item, why);
    }
    open_layer(layer, kind);
    for (at += n; *at; at += strcspn(at, ":")) {
        at++;
        const gma_status s = parse_option(item, at, strcspn(at, ":"), layer);
        if (s != GMA_OK)
            return s;
    }
    return GMA_OK;
}

gma_status gmal_pattern_parse(const char *pattern, gmal_layer *layers, int64_t *count) {
    const char *at = pattern;
    *count = 0;
    for (;;) {
        char item[ITEM];
        const size_t n = strcspn(at, ",");
        gmal_layer layer;
        int64_t repeat;
        if (n >= sizeof item)
            FAIL("layers: \"%.20s...\": an item is longer than %d characters", at, (int)ITEM - 1);
        memcpy(item, at, n);
        item[n] = 0;
        const gma_status s = parse_item(item, &layer, &repeat);
        if (s != GMA_OK)
            return s;
        if (*count + repeat > MOST_LAYERS)
            FAIL("layers: the pattern names more than %d layers", (int)MOST_LAYERS);
        for (int64_t i = 0; layers && i < repeat; i++)
            layers[*count + i] = layer;
        *count += repeat;
        if (!at[n])
            return GMA_OK;
        at += n + 1;
    }
}

void gmal_layer_print(const gmal_layer *layer, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s", kind_name(layer->mixer));
    for (int i = 0; i < OPTIONS && used < size; i++) {
        const int64_t x = value_of(layer, &options[i]);
        if (x >= 0)
            used += (size_t)snprintf(text + used, size - used, ":%s=%lld", options[i].name, (long long)x);
    }
}

static int same(const gmal_layer *a, const gmal_layer *b) { return memcmp(a, b, sizeof *a) == 0; }

/* The shortest pattern of these layers. */
static gma_status write_pattern(gma_lm_config *c, const gmal_layer *layers) {
    char text[sizeof c->pattern] = "";
    size_t used = 0;
    for (int64_t i = 0, n; i < c->layers; i += n) {
        char item[ITEM];
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
        return gmal_pattern_parse(c->pattern, layers, &count);
    for (int64_t i = 0; i < c->layers; i++)
        open_layer(&layers[i], c->mixer);
    return GMA_OK;
}

/* Some layer can honour the option. */
static int some_can(const gma_lm_config *c, const gmal_layer *layers, size_t offset) {
    const option o = {NULL, offset, 0, 0};
    for (int64_t i = 0; i < c->layers; i++)
        if (can(layers[i].mixer, &o))
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
        FAIL("%s: no layer can honour it; the mixer %s has none", name, kind_name(layers[0].mixer));
    return GMA_OK;
}

/* Softmax attention knows no order of its own: its layers get rotary positions, the others none. */
static void settle_positions(gma_lm_config *c, gmal_layer *layers) {
    const option o = {NULL, offsetof(gmal_layer, rotary), 0, 0};
    int softmax = 0, others = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        softmax |= layers[i].mixer == GMA_MIXER_SOFTMAX;
        others |= layers[i].mixer != GMA_MIXER_SOFTMAX && can(layers[i].mixer, &o);
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
        FAIL("positions: rotary turns q and k, and no layer has them (%s)", kind_name(layers[0].mixer));
    return GMA_OK;
}

/* A mixer says itself what it cannot be. */
static gma_status ask_mixers(const gma_lm_config *c, const gmal_layer *layers) {
    for (int64_t i = 0; i < c->layers; i++) {
        if (layers[i].rotary && c->routing_dim % 2)
            FAIL("layer %lld (%s): routing_dim (%lld) must be even for rotary positions", (long long)i + 1,
                 kind_name(layers[i].mixer), (long long)c->routing_dim);
        gma_mixer_desc d;
        gma_mixer *mixer = NULL;
        if (i && same(&layers[i], &layers[i - 1]))
            continue;
        gma_status s = gmal_layer_desc(c, &layers[i], 1, 1, 1, 1, &d);
        if (s == GMA_OK)
            s = gma_mixer_create(&d, &mixer);
        gma_mixer_destroy(mixer);
        if (s == GMA_OK)
            continue;
        char why[300];
        snprintf(why, sizeof why, "%s", gma_last_error());
        return gma_fail(s, "layer %lld (%s): %s", (long long)i + 1, kind_name(layers[i].mixer), why);
    }
    return GMA_OK;
}

gma_status gmal_layers_resolve(gma_lm_config *c) {
    c->pattern[sizeof c->pattern - 1] = 0;
    if (*c->pattern) {
        const gma_status s = gmal_pattern_parse(c->pattern, NULL, &c->layers);
        if (s != GMA_OK)
            return s;
        if (c->mixer)
            FAIL("mixer is %s, and layers (%s) names the mixer of each layer: only one of the two can be given",
                 kind_name(c->mixer), c->pattern);
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
        s = ask_mixers(c, layers);
    }
    free(layers);
    return s;
}

void gmal_layers_get(const gma_lm_config *c, gmal_layer *layers) {
    const gmal_layer whole = {
        .window = c->window,
        .components = c->components,
        .logit_scale = c->logit_scale,
        .forget_gate = c->forget_gate,
        .output_gate = c->output_gate,
        .conv = c->conv,
        .rotary = c->positions == GMA_LM_POSITIONS_ROTARY,
    };
    said(c, layers);
    for (int64_t i = 0; i < c->layers; i++)
        for (int j = 0; j < OPTIONS; j++) {
            int64_t *x = value_at(&layers[i], &options[j]);
            if (!can(layers[i].mixer, &options[j]))
                *x = 0;
            else if (*x < 0)
                *x = value_of(&whole, &options[j]);
        }
}

int gmal_layer_turns(const gmal_layer *layer) { return layer->rotary && layer->mixer != GMA_MIXER_SOFTMAX; }

gma_status gmal_layer_desc(const gma_lm_config *c, const gmal_layer *layer, int causal, int64_t batch, int64_t q_len,
                           int64_t k_len, gma_mixer_desc *d) {
    const gma_status s = gma_mixer_desc_init(d, (gma_mixer_kind)layer->mixer);
    if (s != GMA_OK)
        return s;
    d->causal = causal;
    d->batch = batch;
    d->heads = c->heads;
    d->kv_heads = c->kv_heads;
    d->q_len = q_len;
    d->k_len = k_len;
    d->routing_dim = c->routing_dim;
    d->value_dim = c->value_dim;
    d->components = layer->components;
    d->eps = c->eps;
    d->eps_sigma = c->eps_sigma;
    if (layer->mixer == GMA_MIXER_SOFTMAX) {
        d->window = layer->window;
        d->rotary_base = layer->rotary ? c->rotary_base : 0;
    }
    return GMA_OK;
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
    for (int j = 0; j < OPTIONS; j++)
        if (!can(layers[i].mixer, &options[j]))
            *value_at(&layers[i], &options[j]) = -1;
    gmal_layer_print(&layers[i], text, size);
    free(layers);
    return GMA_OK;
}
