/* What forward and backward share: one chunk of keys, of queries, and the decay between them. */
#ifndef GMA_ENGINE_CHUNK_H
#define GMA_ENGINE_CHUNK_H

#include "engine/engine.h"

#define C GMAI_CHUNK

/* A decay e^log over some stretch of tokens; dead: something in it forgot all before. */
typedef struct gmai_decay {
    double log;
    int dead;
} gmai_decay;

float gmai_decay_factor(gmai_decay d);
gmai_decay gmai_decay_join(gmai_decay a, gmai_decay b);

/* The decay inside one chunk, relative to its start. */
typedef struct gmai_chunk_decay {
    int on;
    int resets; /* some token of the chunk forgets all before */
    double cs[C]; /* inclusive prefix sums, resets counted as 0 */
    int first[C]; /* the first key of the chunk token i still remembers */
    float read[C]; /* e^cs_i: the weight of the chunk's incoming state at token i; 0 behind a reset */
    float write[C]; /* e^(T - cs_j): the weight of token j at the chunk's end; 0 before a reset */
    unsigned char reset[C]; /* token t forgets all before */
    gmai_decay total;
} gmai_chunk_decay;

/* One chunk of keys and values. */
typedef struct gmai_keys {
    int n, nvec;
    float *x, *columns, *phi; /* (C, rp) rows; (rp, C); (kp, C), masked and padding columns 0 */
    float *v, *vw; /* (C, ld) rows, masked rows 0, column D is 0; times write[] when there is decay (else v itself) */
    float *vw_own;
    float keep[C]; /* 1 for a key that takes part, 0 for a masked one and for padding */
    unsigned char keep_byte[C];
    int masked;
    int finite; /* all of k, phi (where computed) and v that takes part */
    int phi_finite; /* phi, as far as k is */
    int first_bad; /* the first row of v with a value that is not finite; n when there is none */
    gmai_chunk_decay decay;
} gmai_keys;

void gmai_keys_take(const gmai_plan *p, gmai_bump *b, gmai_keys *k);
/* Load n keys from token `at` of batch row `row`, key head h. phi: where to put phi (NULL: compute none). */
void gmai_keys_load(const gmai_call *c, gmai_keys *k, int64_t row, int64_t h, int64_t at, int n, float *phi,
                    int want_values);

/* One chunk of queries. */
typedef struct gmai_queries {
    int n, nvec, finite;
    float *x, *columns, *phi;
    float eps[C]; /* eps in the scale of each token's phi */
} gmai_queries;

void gmai_queries_take(const gmai_plan *p, gmai_bump *b, gmai_queries *q);
void gmai_queries_load(const gmai_call *c, gmai_queries *q, int64_t row, int64_t hq, int64_t at, int n);

/* Token i of the chunk sees neither a key nor a state: whatever its query holds, it is taken out of every sum. */
void gmai_queries_hide(const gmai_call *c, gmai_queries *q, int i);

/* The state on its levels, for one key head. */
typedef struct gmai_levels {
    float *base, *base_lo, *mid, *mid_lo; /* two-float sums */
    float *segment; /* base and mid joined: the state at the segment's start */
    float *local;
    float *joined; /* segment and local joined: the state at the chunk's start */
    gmai_decay mid_decay, segment_decay;
    int empty; /* base and mid are 0 and have not been written: the start of a sequence that nothing comes before */
} gmai_levels;

void gmai_levels_take(const gmai_plan *p, gmai_bump *b, gmai_levels *l);
void gmai_levels_start_group(const gmai_call *c, gmai_levels *l);
/* segment = base x decay + mid; local = 0. */
void gmai_levels_start_segment(const gmai_call *c, gmai_levels *l);
/* The state at the chunk about to come: `joined`, `segment` itself at its start, or `local` where nothing came before
 * the segment. */
const float *gmai_levels_join(const gmai_call *c, gmai_levels *l, int first_chunk);
void gmai_levels_end_segment(const gmai_call *c, gmai_levels *l);
/* base = base x decay + mid */
void gmai_levels_end_group(const gmai_call *c, gmai_levels *l);

/* base = state_S, state_Z (or their gradients) of a sequence, empty where there are none. */
void gmai_levels_import(const gmai_call *c, const gma_tensor *s, const gma_tensor *z, int64_t seq, int64_t h,
                        gmai_levels *l);

/* And base out of it, where somebody asks. */
void gmai_levels_export(const gmai_call *c, gmai_levels *l, int64_t seq, int64_t h, const gma_tensor *s,
                        const gma_tensor *z);
/* Write the zeros of an empty one. */
void gmai_levels_settle(const gmai_call *c, gmai_levels *l);

/* state_S, state_Z (or their gradients) of a sequence -> (k, ld) with Z in column D; absent: zeros. */
void gmai_state_import(const gmai_call *c, const gma_tensor *s, const gma_tensor *z, int64_t seq, int64_t h, float *dst);

/* The rows of a (B, heads, N, width) tensor from one token on. */
gmai_rows gmai_rows_at(const gma_tensor *t, int64_t b, int64_t h, int64_t token);

/* PT(j, i) = <phi_k,j , phi_q,i> (decayed) for j <= i, 0 elsewhere. */
void gmai_intra(const gmai_call *c, const gmai_keys *k, const gmai_queries *q, float *pt);

int gmai_all_finite(const float *x, size_t n);

static inline int gmai_vectors(const gmai_call *c, int n) { return (n + c->kern->lanes - 1) / c->kern->lanes; }

#endif
