/* Work over threads, and the group states that the phases exchange. */
#ifndef GMA_ENGINE_PARALLEL_H
#define GMA_ENGINE_PARALLEL_H

#include "engine/chunk.h"

/* Run f for every unit in [0, units), each with the calling thread's own work memory. */
void gmai_parallel(const gmai_call *c, int64_t units, void (*f)(const gmai_call *c, char *work, int64_t unit));

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

/* The shared store (gmai_engine_shared): a two-float state and a decay for each group and head. */
void gmai_group_store(const gmai_call *c, const gmai_group_at *at, const float *hi, const float *lo, gmai_decay decay);
void gmai_group_load(const gmai_call *c, const gmai_group_at *at, float *hi, float *lo);
/* Put l's base into the store and add the mid that was there to it: base <- base x decay + mid. */
void gmai_group_exchange(const gmai_call *c, const gmai_sequence *s, int64_t h, int64_t group, gmai_levels *l);

/* local <- decay local + phi_k (e^(T-cs) V), with Z; joins the chunk's decay to the segment's. */
void gmai_write_chunk(const gmai_call *c, const gmai_keys *k, gmai_levels *l);

#endif
