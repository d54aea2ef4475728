/* One layer as text, and which of its options a mixer can honour. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/mixer_layer.h"
#include "models/layer_spec.h"

#define FAIL(...) return gma_fail(GMA_ERR_INVALID_ARGUMENT, __VA_ARGS__)

enum { MOST_LAYERS = 1000 };

typedef gmal_layer_option option;

#define ROW(name, least, most) {#name, offsetof(gmal_layer, name), least, most},
const option gmal_layer_options[] = {GMAL_LAYER_OPTIONS(ROW)};

int64_t *gmal_layer_value(gmal_layer *layer, const option *o) {
    return (int64_t *)(void *)((char *)layer + o->offset);
}

static int64_t value_of(const gmal_layer *layer, const option *o) {
    return *(const int64_t *)(const void *)((const char *)layer + o->offset);
}

const char *gmal_kind_name(int64_t kind) {
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

int gmal_layer_can(const gmal_layer *layer, size_t offset) {
    const int64_t kind = layer->mixer;
    const int32_t k = (int32_t)kind;
    switch (offset) {
    case offsetof(gmal_layer, window):
        return kind == GMA_MIXER_SOFTMAX && layer->role == GMAL_ROLE_CAUSAL;
    case offsetof(gmal_layer, components):
        return gmal_mixer_has(k, GMA_Q) && gmal_mixer_extent(kind, "KMP");
    case offsetof(gmal_layer, states):
    case offsetof(gmal_layer, expand):
        return kind == GMA_MIXER_MAMBA;
    case offsetof(gmal_layer, logit_scale):
        return gmal_mixer_has(k, GMA_LOGIT_SCALE);
    case offsetof(gmal_layer, forget_gate):
        return gmal_mixer_has(k, GMA_LOG_DECAY) && layer->role == GMAL_ROLE_CAUSAL;
    case offsetof(gmal_layer, conv):
    case offsetof(gmal_layer, rotary):
        return gmal_mixer_has(k, GMA_Q) && layer->role != GMAL_ROLE_CROSS;
    default:
        return gmal_mixer_has(k, GMA_Q); /* they work on q, k, v and o */
    }
}

const char *gmal_role_text(const gmal_layer *layer, size_t offset) {
    gmal_layer causal = *layer;
    causal.role = GMAL_ROLE_CAUSAL;
    if (layer->role == GMAL_ROLE_CAUSAL || !gmal_layer_can(&causal, offset))
        return "";
    return layer->role == GMAL_ROLE_CROSS ? " where it reads another sequence" : " where it is not causal";
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

static const option *option_of(const char *name, size_t n) {
    for (int i = 0; i < GMAL_LAYER_OPTION_COUNT; i++) {
        size_t j = 0;
        while (j < n && (name[j] == gmal_layer_options[i].name[j] || (name[j] == '-' && gmal_layer_options[i].name[j] == '_')))
            j++;
        if (j == n && !gmal_layer_options[i].name[n])
            return &gmal_layer_options[i];
    }
    return NULL;
}

static gma_status parse_option(const char *where, const char *item, const char *text, size_t n, gmal_layer *layer) {
    char all[160] = "", number[32];
    const char *eq = memchr(text, '=', n);
    const option *o = option_of(text, eq ? (size_t)(eq - text) : n);
    if (!o) {
        for (int i = 0; i < GMAL_LAYER_OPTION_COUNT; i++)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", gmal_layer_options[i].name);
        FAIL("%s, \"%s\": there is no option \"%.*s\"; there are: %s", where, item, (int)strcspn(text, "=:"),
             text, all);
    }
    if (*gmal_layer_value(layer, o) != -1)
        FAIL("%s, \"%s\": %s is there twice", where, item, o->name);
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
        FAIL("%s, \"%s\": %s must be a whole number from %lld to %lld", where, item, o->name, (long long)o->least,
             (long long)o->most);
    if (x && !gmal_layer_can(layer, o->offset))
        FAIL("%s, \"%s\": the mixer %s has no %s%s", where, item, gmal_kind_name(layer->mixer), o->name,
             gmal_role_text(layer, o->offset));
    *gmal_layer_value(layer, o) = gmal_layer_can(layer, o->offset) ? x : -1;
    return GMA_OK;
}

void gmal_layer_open(gmal_layer *layer, int64_t kind, gmal_role role) {
    layer->mixer = kind;
    layer->role = role;
    for (int i = 0; i < GMAL_LAYER_OPTION_COUNT; i++)
        *gmal_layer_value(layer, &gmal_layer_options[i]) = -1;
}

/* where: "layers: item 2", for messages. item: one item, zero-terminated. */
static gma_status parse_item(const char *where, const char *item, gmal_role role, gmal_layer *layer, int64_t *repeat) {
    char name[64];
    const char *at = item;
    const size_t digits = strspn(at, "0123456789");
    gma_mixer_kind kind;
    *repeat = 1;
    if (digits && at[digits] == 'x') {
        *repeat = digits < 6 ? strtoll(at, NULL, 10) : 0;
        if (*repeat < 1 || *repeat > MOST_LAYERS)
            FAIL("%s, \"%s\": the count must be a whole number from 1 to %d", where, item, (int)MOST_LAYERS);
        at += digits + 1;
    }
    const size_t n = strcspn(at, ":");
    if (n == 0)
        FAIL("%s, \"%s\": a mixer is missing", where, item);
    snprintf(name, sizeof name, "%.*s", (int)(n < 60 ? n : 60), at);
    if (gma_mixer_kind_from_name(name, &kind) != GMA_OK) {
        char why[300];
        snprintf(why, sizeof why, "%s", gma_last_error());
        FAIL("%s, \"%s\": %s", where, item, why);
    }
    gmal_layer_open(layer, kind, role);
    for (at += n; *at; at += strcspn(at, ":")) {
        at++;
        const gma_status s = parse_option(where, item, at, strcspn(at, ":"), layer);
        if (s != GMA_OK)
            return s;
    }
    return GMA_OK;
}

gma_status gmal_pattern_parse(const char *pattern, const char *field, gmal_role role, gmal_layer *layers,
                              int64_t *count) {
    const char *at = pattern;
    int number = 0;
    *count = 0;
    for (;;) {
        char item[GMAL_LAYER_TEXT], where[64];
        const size_t n = strcspn(at, ",");
        gmal_layer layer;
        int64_t repeat;
        if (n >= sizeof item)
            FAIL("%s: \"%.20s...\": an item is longer than %d characters", field, at, (int)GMAL_LAYER_TEXT - 1);
        memcpy(item, at, n);
        item[n] = 0;
        snprintf(where, sizeof where, "%s: item %d", field, ++number);
        const gma_status s = parse_item(where, item, role, &layer, &repeat);
        if (s != GMA_OK)
            return s;
        if (*count + repeat > MOST_LAYERS)
            FAIL("%s: the pattern names more than %d layers", field, (int)MOST_LAYERS);
        for (int64_t i = 0; layers && i < repeat; i++)
            layers[*count + i] = layer;
        *count += repeat;
        if (!at[n])
            return GMA_OK;
        at += n + 1;
    }
}

void gmal_layer_print(const gmal_layer *layer, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s", gmal_kind_name(layer->mixer));
    for (int i = 0; i < GMAL_LAYER_OPTION_COUNT && used < size; i++) {
        const int64_t x = value_of(layer, &gmal_layer_options[i]);
        if (x >= 0)
            used += (size_t)snprintf(text + used, size - used, ":%s=%lld", gmal_layer_options[i].name, (long long)x);
    }
}

