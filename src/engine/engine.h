/* The chunked engine of every linear mixer:  o_i = phi(q_i) . S_i / (phi(q_i) . Z_i + eps),  phi >= 0.
 *
 * A sequence is a list of SEGMENTS, and a segment a list of chunks of GMAI_CHUNK tokens:
 *
 *   causal, Nq = Nk:   [BOTH  ][BOTH  ][BOTH  ]            read and write
 *   causal, Nk > Nq:   [KEYS  ][BOTH  ][BOTH  ]            the first Nk - Nq keys only write
 *   causal, Nq > Nk:   [QUERIES][BOTH ][BOTH  ]            the first Nq - Nk queries read the incoming state only
 *   bidirectional:     [KEYS  ][KEYS  ][QUERIES][QUERIES]  write everything, then read
 *
 * so one scan serves all of them. Segments are collected in GROUPS. The state is kept on three levels,
 *
 *   base  at the start of the group    (two floats an entry, error-free sums)
 *   mid   since the start of the group (two floats)
 *   local since the start of the segment (one float: at most a segment of values)
 *
 * and always joined in that order, so a group can be started from its own zero and get its base later: one thread over
 * all groups and many threads over one group each (three phases: mids, prefix, outputs) give the same bits. How a
 * sequence is cut depends on its shape only. */
#ifndef GMA_ENGINE_ENGINE_H
#define GMA_ENGINE_ENGINE_H

#include "kernels/kernels.h"
#include "mixers/mixer_impl.h"

/* What a feature map gives the engine. `head` is the map's prepared data of one key head. */
typedef struct gmai_map {
    /* What pack subtracts from every input row (padded). NULL, or giving NULL: nothing. */
    const float *(*center)(const void *head);
    /* Columns of packed inputs -> phi (features, GMAI_CHUNK). ahead[2]: rows worth fetching meanwhile, or NULL.
     * Returns 0 when finite inputs gave features that are not. */
    int (*phi)(const void *head, const gmai_kernels *kern, float *columns, int nvec, float *phi,
               const gmai_ahead *ahead);
    /* The same for queries, each divided by a number of its own, which cancels in o once eps is divided by it as well:
     * eps_of(token) = eps / that number > 0. NULL: phi serves queries too. */
    void (*phi_query)(const void *head, const gmai_kernels *kern, const float *columns, int nvec, double eps,
                      float *phi, float *eps_of, const gmai_ahead *ahead);
    /* dphi -> dx (rows), adding to the head's parameter sums; dphi may be destroyed.
     * dot(token) = <phi, dphi>, wanted by the decay. */
    void (*backward)(const void *head, const gmai_kernels *kern, const float *rows, const float *phi, float *dphi,
                     int n, int nvec, float *dx, float *sums, float *dot);
} gmai_map;

enum { GMAI_SEG_KEYS = 1, GMAI_SEG_QUERIES = 2, GMAI_SEG_BOTH = 3 };

/* One sequence of the call: a batch row, or a packed segment of the only row. */
typedef struct gmai_sequence {
    int64_t row, q0, nq, k0, nk;
    int64_t head_len; /* tokens of the first part (KEYS or QUERIES) */
    int64_t tail_len; /* tokens of the second part */
    int64_t first_segment, segments, head_segments; /* numbers over all sequences of the call */
    int64_t first_group, groups;
    int64_t first_saved; /* states that forward saves for the sequences before; see gmai_saved_slot */
} gmai_sequence;

/* One segment: tokens [q, q + n) and [k, k + n) of its batch row. */
typedef struct gmai_segment {
    int kind;
    int64_t q, k, n, number; /* number over all sequences */
} gmai_segment;

enum { GMAI_MAX_SEGMENT = 1024 };

/* The shape of a call, and how it is cut. */
typedef struct gmai_plan {
    int64_t rows, hq, h, group_heads; /* B, Hq, H, Hq / H */
    int64_t nq, nk;
    int r, rp, d, ld, k, kp; /* ld: padded D + 1; column D holds Z. kp: padded k */
    int causal, packed;
    double eps;
    int64_t sequences, segment_len;
    int64_t max_segments; /* over all sequences */
    int64_t max_saved; /* states that forward may have to save, a head */
    int64_t groups_wanted; /* groups of a long sequence */
    int64_t max_groups; /* over all sequences */
    int64_t bins; /* parameter-gradient buffers of a head, unless serial: see gmai_plan_bins */
    size_t state_floats; /* k * ld */
} gmai_plan;

void gmai_plan_make(const gma_mixer_desc *d, gmai_plan *p);

/* 1: whole sequences keep so many threads busy, and no group is shared out. */
int gmai_plan_serial(const gmai_plan *p, int threads);

/* Parameter-gradient buffers of a head: one for each group that may run by itself, or run of sequences. */
int64_t gmai_plan_bins(const gmai_plan *p, int threads);

/* Fill the sequences of a call (p->sequences of them). Checks cu_seqlens. */
gma_status gmai_plan_sequences(const gmai_plan *p, const gma_tensor *cu_seqlens, gmai_sequence *seq);
gmai_segment gmai_plan_segment(const gmai_plan *p, const gmai_sequence *s, int64_t i);
/* Segments [*begin, *end) of group g of a sequence. */
void gmai_plan_group(const gmai_sequence *s, int64_t g, int64_t *begin, int64_t *end);

/* Where forward saves the state that segment i starts with, for backward, or -1: nowhere. A sequence starts with the
 * caller's state; without causality all its queries read one state, and its keys none. */
int64_t gmai_saved_slot(const gmai_plan *p, const gmai_sequence *s, int64_t i);

/* A call in flight. */
typedef struct gmai_call {
    const gmai_plan *plan;
    const gmai_kernels *kern;
    const gmai_map *map;
    char *heads; /* prepared data of the key heads */
    size_t head_size; /* from head to head; 0: all share one */
    const gmai_args *a;
    const gmai_sequence *seq;
    int threads, serial; /* serial: by gmai_plan_serial */
    float *saved_state; /* (max_saved, H, k, ld), or NULL */
    float *saved_den; /* (B, Hq, Nq), or NULL */
    float *sums; /* backward: (H, bins, sums_floats) */
    size_t sums_floats;
    int64_t bins; /* by gmai_plan_bins */
    char *shared, *work; /* scratch: group states; work of the threads */
    size_t work_size;
    /* Before and after all work on a head, by the thread that is at it, so that a call is one parallel region. NULL: that is
     * done elsewhere. Only where the call has one sequence and threads share heads out: see gmai_per_head. */
    void (*begin)(const struct gmai_call *c, int64_t h);
    void (*end)(const struct gmai_call *c, int64_t h);
    const void *owner; /* theirs */
    unsigned flags; /* the caller's floating-point flags, as gmai_kernels.flush_on gives them */
} gmai_call;

/* 1: a thread has a head to itself from start to end (handed on between threads perhaps), so begin and end may be set. */
int gmai_per_head(const gmai_call *c);

/* Bytes: shared by all threads, and of one thread. */
size_t gmai_engine_shared(const gmai_plan *p, int threads);
size_t gmai_forward_work(const gmai_plan *p);
size_t gmai_backward_work(const gmai_plan *p, size_t sums_floats);
size_t gmai_saved_size(const gmai_plan *p);
void gmai_saved_split(const gmai_plan *p, void *saved, float **state, float **den);

void gmai_engine_forward(const gmai_call *c);
void gmai_engine_backward(const gmai_call *c);
/* After it: the parameter sums of head h, all bins in one. */
const float *gmai_engine_sums(const gmai_call *c, int64_t h);

/* A bump allocator that also measures: with base NULL it only counts. */
typedef struct gmai_bump {
    char *base;
    size_t used;
} gmai_bump;

static inline void *gmai_take(gmai_bump *b, size_t bytes)
{
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (bytes + 63) / 64 * 64;
    return p;
}

static inline float *gmai_take_floats(gmai_bump *b, size_t n) { return gmai_take(b, n * sizeof(float)); }

/* Five lines apart, for buffers that a thread works on side by side: their sizes are mostly multiples of 4 KiB, and a load
 * behind a store that lies 4 KiB further waits for it. */
static inline float *gmai_take_apart(gmai_bump *b, size_t n) { return gmai_take(b, n * sizeof(float) + 320); }

#endif
