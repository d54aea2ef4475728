/* Work over threads, and the group states that the phases exchange. */
#ifndef GMA_ENGINE_PARALLEL_H
#define GMA_ENGINE_PARALLEL_H

#include "engine/chunk.h"

/* Run f(call, work, unit) for every unit in [0, units); each thread has work_size bytes of `work` to itself. Units are
 * given out in rising order as threads come free. */
void gmai_each(const gmai_kernels *kern, int threads, int64_t units, char *work, size_t work_size,
               void (*f)(const void *call, char *work, int64_t unit), const void *call);

/* Run f for every unit in [0, units), each with the calling thread's own work memory. */
void gmai_parallel(const gmai_call *c, int64_t units, void (*f)(const gmai_call *c, char *work, int64_t unit));

/* A chain is one head of one sequence: sequence number x H + h. Its `links` (groups of the sequence) follow each other,
 * each with the (hi, lo) that the one before left in `carry`. */
typedef struct gmai_links {
    int64_t chain, begin, end;
    float *carry, *carry_lo; /* a state each, or NULL: all links at once, with memory of their own */
} gmai_links;

/* Run f for all links of all chains. Most chains are one unit each. The last ones are handed on link by link, so that no
 * thread is left with a whole chain while the others have nothing more to do: a thread that is slower for a while, on a
 * machine with other work, would have all wait. Only the order in time depends on threads, no sum does. */
void gmai_chains(const gmai_call *c, void (*f)(const gmai_call *c, char *work, const gmai_links *l));

/* 1: whole sequences keep the threads busy. 0: share the groups of a sequence out. Both give the same bits. */
int gmai_serial(const gmai_call *c);

int64_t gmai_group_count(const gmai_call *c);

/* One group of one head: unit = group number x H + h. */
typedef struct gmai_group_at {
    const gmai_sequence *s;
    int64_t h, group; /* group: within the sequence */
    int64_t begin, end; /* segments */
} gmai_group_at;

gmai_group_at gmai_group_of(const gmai_call *c, int64_t unit);

/* gmai_call.begin and end, with the calling program's floating-point flags. */
void gmai_begin_head(const gmai_call *c, int64_t h);
void gmai_end_head(const gmai_call *c, int64_t h);

/* The shared store (gmai_engine_shared): a two-float state and a decay for each group and head; or, where sequences are
 * not shared out, the chains that are handed on. */
void gmai_group_store(const gmai_call *c, const gmai_group_at *at, const float *hi, const float *lo, gmai_decay decay);
void gmai_group_load(const gmai_call *c, const gmai_group_at *at, float *hi, float *lo);
/* Put l's base into the store and add the mid that was there to it: base <- base x decay + mid. */
void gmai_group_exchange(const gmai_call *c, const gmai_sequence *s, int64_t h, int64_t group, gmai_levels *l);

/* local <- decay local + phi_k (e^(T-cs) V), with Z; joins the chunk's decay to the segment's. */
void gmai_write_chunk(const gmai_call *c, const gmai_keys *k, gmai_levels *l);

#endif
