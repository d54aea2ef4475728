/* What the mixer of one layer is: kind and options. A pattern names the layers of a model one after the other:
 *
 *     pattern = item {"," item}      item = [COUNT "x"] MIXER {":" OPTION "=" VALUE}
 *     gma,gma,softmax:window=128     3xgma,linear:forget_gate=0
 *
 * Which option a mixer can honour is read from its slot table. */
#ifndef GMA_MODELS_LAYER_SPEC_H
#define GMA_MODELS_LAYER_SPEC_H

#include "gma/lm.h"

/* X(name, least, most); names are those of gma_lm_config, but for rotary. */
#define GMAL_LAYER_OPTIONS(X)                                                                                          \
    X(window, 0, 1 << 24)                                                                                                  \
    X(components, 1, 65536)                                                                                            \
    X(logit_scale, 0, 1)                                                                                               \
    X(forget_gate, 0, 1)                                                                                               \
    X(output_gate, 0, 1)                                                                                               \
    X(conv, 0, 64)                                                                                                     \
    X(rotary, 0, 1)

typedef struct gmal_layer {
    int64_t mixer;                         /* a gma_mixer_kind */
#define X(name, least, most) int64_t name; /* -1 = not said: as the whole model */
    GMAL_LAYER_OPTIONS(X)
#undef X
} gmal_layer;

/* How many layers the pattern names, and when `layers` is not NULL (room for as many) what it says of each. The error
 * names the item. */
gma_status gmal_pattern_parse(const char *pattern, gmal_layer *layers, int64_t *count);

/* One layer as an item of a pattern, only with the options that are not -1. */
void gmal_layer_print(const gmal_layer *layer, char *text, size_t size);

/* Mixer, options and pattern of a configuration whose other fields are resolved: fills in what is left open, writes
 * the pattern in its shortest form, and asks every mixer whether it can be what is wanted of it. */
gma_status gmal_layers_resolve(gma_lm_config *c);

/* Every layer of a resolved configuration, nothing left open; c->layers of them. */
void gmal_layers_get(const gma_lm_config *c, gmal_layer *layers);

/* 1 when the layer turns q and k before the mixer sees them; softmax turns its own. */
int gmal_layer_turns(const gmal_layer *layer);

/* The descriptor of a layer's mixer. */
gma_status gmal_layer_desc(const gma_lm_config *c, const gmal_layer *layer, int causal, int64_t batch, int64_t q_len,
                           int64_t k_len, gma_mixer_desc *d);

/* 1 when the mixer's parameters (role PARAM) have an extent of that letter, "KM": components. */
int gmal_mixer_extent(int64_t kind, const char *letters);

#endif
