/* The inside of a mixer: what src/mixers/mixer.c (the public calls) hands to src/mixers/<m>/.
 *
 * mixer.c has already checked every argument against the mixer's slot table (known slot, required ones present, shape,
 * dtype, contiguous last dimension) and the sizes of scratch and saved; a mixer checks only what the table cannot say. */
#ifndef GMA_MIXERS_MIXER_IMPL_H
#define GMA_MIXERS_MIXER_IMPL_H

#include "gma/mixer.h"

enum { GMAI_MAX_SLOT = 64 };

/* The arguments of one call, by slot. An absent tensor has dtype 0. */
typedef struct gmai_args {
    gma_tensor t[GMAI_MAX_SLOT]; /* GMA_Q ... */
    gma_tensor grad[GMAI_MAX_SLOT]; /* GMA_GRAD(GMA_Q) ... */
} gmai_args;

static inline int gmai_present(const gma_tensor *t) { return t->dtype != 0; }

struct gmai_kernels;
struct gmai_linear_attention;

struct gma_mixer {
    gma_mixer_desc d; /* defaults filled in: kv_heads, isa */
    const struct gmai_mixer_ops *ops;
    const struct gmai_kernels *kern; /* the kernels of d.isa */
};

/* Options of the descriptor that only some mixers have. */
enum {
    GMAI_HAS_SCALE = 1,
    GMAI_HAS_ROTARY = 2,
    GMAI_HAS_WINDOW = 4,
    GMAI_HAS_CACHE = 8,
    GMAI_HAS_STORE_SCORES = 16
};

/* One row of src/mixers/mixers.inc names one of these tables. */
typedef struct gmai_mixer_ops {
    gma_mixer_kind kind;
    const char *name;
    const gma_slot_info *slots;
    int slot_count;
    unsigned options; /* GMAI_HAS_... */
    int always_causal; /* what desc_init sets; the mixer's own check refuses the other value */
    const struct gmai_linear_attention *linear_attention; /* of the mixers on the engine; NULL otherwise */
    gma_status (*check)(gma_mixer_desc *d); /* descriptor rules of this mixer only; may fill in what is 0 */
    gma_status (*sizes)(const gma_mixer *m, int threads, gma_mixer_size *size);
    gma_status (*forward)(const gma_mixer *m, const gmai_args *a, const gma_exec *x);
    gma_status (*backward)(const gma_mixer *m, const gmai_args *a, const gma_exec *x);
    gma_status (*state_init)(const gma_mixer *m, const gmai_args *a, void *state);
    gma_status (*step)(const gma_mixer *m, const gmai_args *a, void *state, int threads);
    gma_status (*state_export)(const gma_mixer *m, const void *state, const gmai_args *a);
    gma_status (*naive_forward)(const gma_mixer *m, const gmai_args *a);
    gma_status (*naive_backward)(const gma_mixer *m, const gmai_args *a);
} gmai_mixer_ops;

#endif
