/* The mixers  o_i = phi(q_i) . S / (phi(q_i) . Z + eps)  share everything but phi: the calls of gmai_mixer_ops are
 * written once, here and in linear_attention_step.c, on the engine, and a mixer says what its phi is.
 *
 * descriptor: components is the number of features, whatever the mixer calls it. */
#ifndef GMA_MIXERS_LINEAR_ATTENTION_H
#define GMA_MIXERS_LINEAR_ATTENTION_H

#include "engine/engine.h"
#include "mixers/mixer_impl.h"

typedef struct gmai_linear_attention {
    const gmai_map *map;

    /* What is prepared of a key head for the map, in so many bytes of scratch. NULL: nothing. */
    size_t (*head_size)(const gma_mixer_desc *d);
    void (*prepare)(const gma_mixer *m, const gmai_args *a, int64_t h, void *head);
    int one_head; /* one preparation serves all heads */

    /* Argument values of this mixer only; also in state_init. NULL: nothing to check. */
    gma_status (*check)(const gma_mixer *m, const gmai_args *a);

    /* Parameter sums of one head and bin that map->backward adds to, and what they give. NULL: no parameters. */
    size_t (*sums_floats)(const gma_mixer_desc *d);
    void (*finish)(const void *head, const float *sums, int64_t h, const gmai_args *a);

    /* Decoding: floats (a multiple of 16) of a head in the state, made from a prepared head; and phi of n tokens, the
     * first `keys` of them keys, the others queries. x (n, rp) is raw, padded, and may be destroyed; phi (n, kp) must be 0
     * behind the last feature. Queries may be scaled as in gmai_map.phi_query: their eps is then changed.
     * step_floats and step_prepare NULL: nothing. */
    size_t (*step_floats)(const gma_mixer_desc *d);
    void (*step_prepare)(const gma_mixer *m, const void *head, float *step);
    void (*step_phi)(const gma_mixer *m, const float *step, float *x, int keys, int n, float *phi, float *eps);
} gmai_linear_attention;

gma_status gmai_la_sizes(const gma_mixer *m, int threads, gma_mixer_size *size);
gma_status gmai_la_forward(const gma_mixer *m, const gmai_args *a, const gma_exec *x);
gma_status gmai_la_backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x);
gma_status gmai_la_state_init(const gma_mixer *m, const gmai_args *a, void *state);
gma_status gmai_la_step(const gma_mixer *m, const gmai_args *a, void *state, int threads);
gma_status gmai_la_state_export(const gma_mixer *m, const void *state, const gmai_args *a);

/* Bytes of the decoding state. */
size_t gmai_la_state_size(const gma_mixer *m);

/* The calls that every row of this family has in common. */
#define GMAI_LA_CALLS                                                                                      \
    .sizes = gmai_la_sizes, .forward = gmai_la_forward, .backward = gmai_la_backward,                     \
    .state_init = gmai_la_state_init, .step = gmai_la_step, .state_export = gmai_la_state_export

/* Rows of the slot tables; k: the letters of the features in a state, "K". */
#define GMAI_LA_FLOATS (1u << GMA_F32)
#define GMAI_LA_FLOAT_BF16 (1u << GMA_F32 | 1u << GMA_BF16)
#define GMAI_LA_SLOTS_TOKENS                                       \
    {GMA_Q, "BhqR", GMA_ROLE_INPUT, 1, GMAI_LA_FLOAT_BF16, 1},     \
    {GMA_K, "BHkR", GMA_ROLE_INPUT, 1, GMAI_LA_FLOAT_BF16, 1},     \
    {GMA_V, "BHkD", GMA_ROLE_INPUT, 1, GMAI_LA_FLOAT_BF16, 1}
#define GMAI_LA_SLOTS_OPTIONS(k)                                                              \
    {GMA_KEY_MASK, "Bk", GMA_ROLE_INPUT, 0, 1u << GMA_BOOL | 1u << GMA_U8, 0},                \
    {GMA_CU_SEQLENS, "+", GMA_ROLE_INPUT, 0, 1u << GMA_I32 | 1u << GMA_I64, 0},               \
    {GMA_STATE_S, "SH" k "D", GMA_ROLE_INPUT, 0, GMAI_LA_FLOATS, 1},                          \
    {GMA_STATE_Z, "SH" k, GMA_ROLE_INPUT, 0, GMAI_LA_FLOATS, 1},                              \
    {GMA_LOG_DECAY, "BHk", GMA_ROLE_INPUT, 0, GMAI_LA_FLOATS, 1}
#define GMAI_LA_SLOTS_OUTPUTS(k)                                                              \
    {GMA_O, "BhqD", GMA_ROLE_OUTPUT, 1, GMAI_LA_FLOAT_BF16, 1},                               \
    {GMA_OUT_S, "SH" k "D", GMA_ROLE_OUTPUT, 0, GMAI_LA_FLOATS, 1},                           \
    {GMA_OUT_Z, "SH" k, GMA_ROLE_OUTPUT, 0, GMAI_LA_FLOATS, 1}

#endif
