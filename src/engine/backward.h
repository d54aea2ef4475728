/* What the backward scan of a head works with, and what it does with one chunk. Notation as in forward.c, and
 *
 *   dn_i = dO_i / den_i      e_i = -<dO_i, o_i> / den_i      so that dL/d[phi_q S, phi_q Z]_i = [dn_i, e_i]
 *   P_ij = W_ij <phi_q,i , phi_k,j>     Q_ij = W_ij (dn_i . v_j + e_i)      W_ij = e^(cs_i - cs_j), 0 for j > i
 *
 *   dphi_q = e^cs [S, Z] [dn, e]^T + phi_k Q^T          S, Z at the chunk's start
 *   dphi_k = e^(T-cs) [U, u] [v, 1]^T + phi_q Q         U, u: gradient of the state at the chunk's end
 *   dv     = e^(T-cs) phi_k^T U + P^T dn
 *   U     <- e^T U + phi_q (e^cs dn)                    u likewise with e */
#ifndef GMA_ENGINE_BACKWARD_H
#define GMA_ENGINE_BACKWARD_H

#include "engine/chunk.h"

/* Working memory of one thread. */
typedef struct gmai_backward {
    gmai_keys keys;
    gmai_queries queries;
    gmai_levels grad; /* U on its levels */
    gmai_levels state; /* S: only segment and local of it, the segment's base comes from forward */
    float *phis; /* phi_k of the chunks of a segment */
    unsigned char phis_finite[GMAI_MAX_SEGMENT / C];
    float *states; /* S at their starts, and at the segment's end */
    float *pt, *qt, *q; /* P^T, Q^T, Q: (C, C) */
    float *vt; /* (ld, C): v transposed, row D = 1 for keys that take part */
    float *go, *o, *dn, *dnw; /* (C, ld): dO, o, dn, e^cs dn */
    float *dnt, *dntw; /* (ld, C): dn transposed, row D = e; the same times e^cs */
    float *dphi_q, *dphi_k; /* (kp, C) */
    float *dv, *dx;
    float *group_sums; /* parameter sums of one group, where a bin holds those of several */
} gmai_backward;

void gmai_backward_take(const gmai_plan *p, size_t sums_floats, gmai_bump *b, gmai_backward *w);

/* The chunk at `t` of segment `number` has nothing before it: its state is 0, and nobody asks for the gradient of that. */
int gmai_starts_empty(const gmai_call *c, int64_t number, int64_t t);
int gmai_wants_state_gradient(const gmai_call *c);

/* dn, e and what is made of them, once the chunk's queries are loaded. decay NULL: none. Returns 1 when all is finite. */
int gmai_output_gradient(const gmai_call *c, gmai_backward *w, int64_t row, int64_t hq, int64_t at, int n,
                         const gmai_chunk_decay *decay);
/* U += phi_q (e^cs dn), u += phi_q (e^cs e), into the segment's local sums. */
void gmai_grow_state_gradient(const gmai_call *c, gmai_backward *w, int n, const gmai_chunk_decay *decay);
/* U x the decay of a chunk, before what the chunk adds. */
void gmai_shrink(const gmai_call *c, gmai_backward *w, gmai_decay total);

/* dphi_k and dv from the later chunks: through U at the chunk's end. zero: U is 0. */
void gmai_from_later(const gmai_call *c, gmai_backward *w, int n, const float *phi_k, const float *u, int zero);
/* One query head of a chunk: dq, and what it adds to dphi_k, dv and U. empty: as gmai_starts_empty. */
void gmai_query_backward(const gmai_call *c, gmai_backward *w, const gmai_segment *g, int64_t t, int n, int64_t row,
                         int64_t hq, const float *phi_k, const float *state, int empty, double *dot_sum, float *sums);
/* The keys of a chunk, once its query heads are through: dk, dv. */
void gmai_keys_backward(const gmai_call *c, gmai_backward *w, int64_t row, int64_t h, int64_t at, int n,
                        const float *phi_k, float *sums, float *dot);
/* dlog_decay_t = sum over i >= t of (<phi_q, dphi_q>_i - <phi_k, dphi_k>_i) + <S_end, U_end>, in double. */
void gmai_decay_gradient(const gmai_call *c, const gmai_backward *w, int64_t row, int64_t h, int64_t at, int n,
                         const double *dot_q, const float *dot_k, const float *end_state, const float *end_grad);

#endif
