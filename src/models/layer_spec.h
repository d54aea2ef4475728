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
    X(states, 1, 256)                                                                                                  \
    X(expand, 1, 16)                                                                                                   \
    X(logit_scale, 0, 1)                                                                                               \
    X(forget_gate, 0, 1)                                                                                               \
    X(output_gate, 0, 1)                                                                                               \
    X(conv, 0, 64)                                                                                                     \
    X(rotary, 0, 1)

/* What a layer is used for decides what its mixer can honour: window, forget gate and mamba need the order of time. */
typedef enum gmal_role {
    GMAL_ROLE_CAUSAL = 0,       /* a token sees itself and what is before it */
    GMAL_ROLE_BIDIRECTIONAL = 1, /* every token sees all of its sequence */
    GMAL_ROLE_CROSS = 2         /* a token sees all of another sequence */
} gmal_role;

/* The lists of layers of a model; the last two are empty but in a seq2seq model. */
typedef enum gmal_part { GMAL_PART_MAIN = 0, GMAL_PART_ENCODER = 1, GMAL_PART_CROSS = 2, GMAL_PARTS = 3 } gmal_part;

/* Room for a pattern in gma_lm_config. */
enum { GMAL_PATTERN = sizeof((gma_lm_config *)0)->pattern };

typedef struct gmal_layer {
    int64_t mixer;                         /* a gma_mixer_kind */
    int64_t role;                          /* a gmal_role */
#define X(name, least, most) int64_t name; /* -1 = not said: as the whole model */
    GMAL_LAYER_OPTIONS(X)
#undef X
} gmal_layer;

typedef struct gmal_layer_option {
    const char *name;
    size_t offset; /* in gmal_layer */
    int64_t least, most;
} gmal_layer_option;

enum { GMAL_LAYER_OPTION_COUNT = sizeof(gmal_layer) / sizeof(int64_t) - 2, GMAL_LAYER_TEXT = 200 };
extern const gmal_layer_option gmal_layer_options[];

int64_t *gmal_layer_value(gmal_layer *layer, const gmal_layer_option *option);

/* 1 when the layer's mixer, in its role, can honour the option at that offset. */
int gmal_layer_can(const gmal_layer *layer, size_t offset);

/* A layer of that mixer with every option left open (-1). */
void gmal_layer_open(gmal_layer *layer, int64_t kind, gmal_role role);

/* " where it ...": what an error adds about an option that only the layer's role forbids; "" where its mixer never has it. */
const char *gmal_role_text(const gmal_layer *layer, size_t offset);

/* The mixer's name, "?" for none. */
const char *gmal_kind_name(int64_t kind);

/* How many layers the pattern names, and when `layers` is not NULL (room for as many) what it says of each. The error
 * names `field` and the item. */
gma_status gmal_pattern_parse(const char *pattern, const char *field, gmal_role role, gmal_layer *layers, int64_t *count);

/* One layer as an item of a pattern, only with the options that are not -1. */
void gmal_layer_print(const gmal_layer *layer, char *text, size_t size);

/* Mixer, options and pattern of a configuration whose other fields are resolved: fills in what is left open, writes
 * the pattern in its shortest form, and asks every mixer whether it can be what is wanted of it. */
gma_status gmal_layers_resolve(gma_lm_config *c);

/* What all layers share and has a usual value (kv_heads, eps, eps_sigma, logit_scale_init, rotary_base): another value that
 * no layer of this resolved configuration can honour is an error. Asked of who wishes for a model, not of one on disk. */
gma_status gmal_layers_check_shared(const gma_lm_config *c);

/* How many layers a part of a resolved configuration has, and every one of them, nothing left open. */
int64_t gmal_part_count(const gma_lm_config *c, gmal_part part);
void gmal_layers_get(const gma_lm_config *c, gmal_part part, gmal_layer *layers);

/* 1 when the layer turns q and k before the mixer sees them; softmax turns its own. */
int gmal_layer_turns(const gmal_layer *layer);

/* 1 when a layer of a resolved configuration has that mixer; when some layer sees what comes after a token. */
int gmal_config_has(const gma_lm_config *c, int64_t kind);
int gmal_config_looks_ahead(const gma_lm_config *c);

/* The descriptor of a layer's mixer. segments = -1: not packed. Error: a length that a mixer of fixed length does not have. */
gma_status gmal_layer_desc(const gma_lm_config *c, const gmal_layer *layer, int64_t batch, int64_t q_len, int64_t k_len,
                           int64_t segments, gma_mixer_desc *d);

/* 1 when the mixer's parameters (role PARAM) have an extent of one of these letters; "KMP": components. */
int gmal_mixer_extent(int64_t kind, const char *letters);

#endif
