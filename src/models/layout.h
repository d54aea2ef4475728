/* Where every parameter of a model lies in one flat array, and what it is. No precision, no values.
 *
 * The projections of a mixer follow each other without a gap - q, k, v, gate, forget - so that one product serves all:
 * rows of the matrix `proj` (P, width), columns of its output [q | k | v | gate | forget]. In a Mamba block what its
 * convolution works on stands in the place of q, k, v: [x | gate], qkv = v = its channels. */
#ifndef GMA_MODELS_LAYOUT_H
#define GMA_MODELS_LAYOUT_H

#include "gma/lm.h"
#include "layers/mixer_layer.h"
#include "models/layer_spec.h"

typedef enum gmal_init {
    GMAL_INIT_ZERO,
    GMAL_INIT_ONE,
    GMAL_INIT_EMBEDDING,   /* N(0, 0.02) */
    GMAL_INIT_MATRIX,      /* N(0, 1/sqrt(fan_in)) */
    GMAL_INIT_RESIDUAL,    /* N(0, 1/sqrt(fan_in writes)), by default 2 layers of them */
    GMAL_INIT_NORMAL,      /* N(0, 1): means of Gaussians, and nothing else */
    GMAL_INIT_FORGET,      /* 3..7 over the heads */
    GMAL_INIT_LOGIT_SCALE, /* log(logit_scale_init) */
    GMAL_INIT_CONV,        /* tap 0 one, the others zero */
    GMAL_INIT_LOG_COUNT, /* log(1..n) in every row */
    GMAL_INIT_DELTA,     /* softplus of it is log-uniform in 1e-3..1e-1 */
    GMAL_INIT_FEATURES     /* orthogonal random vectors: gma_performer_features */
} gmal_init;

typedef struct gmal_param {
    char name[72];
    int64_t offset; /* elements */
    int64_t count;
    int64_t shape[3];
    int rank;
    int decay; /* takes part in weight decay */
    int64_t writes; /* matrices that write to the same residual stream */
    int fixed; /* saved, but not trained: no gradient */
    gmal_init init;
} gmal_param;

/* A parameter that the mixer's own slot table asks for. */
typedef struct gmal_slot_param {
    int32_t slot;
    int fixed;
    int log_negative; /* stored is log(-value) */
    int64_t offset, count;
} gmal_slot_param;

/* One mixer with its projections. Offsets: -1 = not in this model. A cross-attention takes q and its gate from the stream,
 * [q | gate], and [k | v] from the other sequence by a product of its own. */
typedef struct gmal_sub {
    gmal_layer spec;
    int64_t q, k, v, gate, forget;                                      /* widths of the projections; 0 = absent */
    int64_t qkv, proj; /* q + k + v; all that come from the stream. Cross-attention: q; q + gate */
    int64_t kv; /* cross-attention: k + v */
    int64_t out;                                                        /* heads * value_dim */
    int64_t rank; /* mamba: width between x_proj and dt_proj */
    int64_t norm_w, norm_b, w_proj, w_kv, forget_b, conv, conv_b, w_x, w_dt, logit_scale, w_out; /* offsets */
    int slots;                                                          /* parameters of the mixer itself */
    gmal_slot_param slot[GMAL_MIXER_PARAMS];
} gmal_sub;

typedef struct gmal_block {
    gmal_sub mixer;
    gmal_sub cross; /* between mixer and MLP, in a decoder; cross.spec.mixer = 0: none */
    int64_t norm2_w, norm2_b, up, down;
} gmal_block;

typedef struct gmal_layout {
    gma_lm_config c;                                /* resolved */
    int64_t outputs;                                /* rows of the head: vocab, or classes */
    int64_t hidden;                                 /* what the MLP's first product gives: mlp_width, or twice that */
    int64_t embed, positions, norm_w, norm_b, head; /* offsets; head = embed when tied */
    int64_t total;                                  /* elements */
    int param_count;
    gmal_param *params;
    gmal_block *blocks;
    /* seq2seq: the encoder shares the embedding; offsets */
    gmal_block *encoder;
    int64_t encoder_positions, encoder_norm_w, encoder_norm_b;
} gmal_layout;

/* Most tokens of one sequence of the main stack: a decoder begins with one token more than its source is long. */
static inline int64_t gmal_steps(const gma_lm_config *c) { return c->context + (c->task == GMA_LM_TASK_SEQ2SEQ); }

/* config must be resolved. */
gma_status gmal_layout_create(const gma_lm_config *config, gmal_layout **layout);
void gmal_layout_destroy(gmal_layout *layout);

/* The name of the parameter at that offset. */
const char *gmal_param_at(const gmal_layout *layout, int64_t offset);

/* Fresh values; depends on (config, seed) only. Error: OUT_OF_MEMORY, for random features. */
gma_status gmal_layout_init(const gmal_layout *layout, uint64_t seed, float *values);

/* Fresh random features only; *count (may be NULL) = how many tensors that were. */
gma_status gmal_layout_redraw(const gmal_layout *layout, uint64_t seed, float *values, int64_t *count);

#endif
