/* See parallel.h. */
#include "engine/parallel.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "core/cpu.h"

void gmai_each(const gmai_kernels *kern, int threads, int64_t units, char *work, size_t work_size,
               void (*f)(const void *call, char *work, int64_t unit), const void *call)
{
    if (units <= 0) return;
    const int team = units < threads ? (int)units : threads;
    (void)team;
    /* A counter instead of a schedule of OpenMP's: gmai_chains needs units that rise over all threads. */
    atomic_llong next;
    atomic_init(&next, 0);
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
    {
        const unsigned before = kern->flush_on();
        char *mine = work + (size_t)gmai_thread() * work_size;
        for (int64_t i; (i = (int64_t)atomic_fetch_add_explicit(&next, 1, memory_order_relaxed)) < units;)
            f(call, mine, i);
        kern->flush_restore(before);
    }
}

typedef struct engine_unit {
    const gmai_call *c;
    void (*f)(const gmai_call *c, char *work, int64_t unit);
} engine_unit;

static void run_unit(const void *call, char *work, int64_t unit)
{
    const engine_unit *u = call;
    u->f(u->c, work, unit);
}

void gmai_parallel(const gmai_call *c, int64_t units, void (*f)(const gmai_call *c, char *work, int64_t unit))
{
    const engine_unit u = {c, f};
    gmai_each(c->kern, c->threads, units, c->work, c->work_size, run_unit, &u);
}

int gmai_serial(const gmai_call *c) { return c->serial || gmai_group_count(c) <= c->plan->sequences; }

int gmai_per_head(const gmai_call *c) { return c->plan->sequences == 1 && gmai_serial(c); }

int64_t gmai_group_count(const gmai_call *c)
{
    const int64_t n = c->plan->sequences;
    return n > 0 ? c->seq[n - 1].first_group + c->seq[n - 1].groups : 0;
}

gmai_group_at gmai_group_of(const gmai_call *c, int64_t unit)
{
    gmai_group_at at;
    const int64_t number = unit / c->plan->h;
    int64_t s = 0; /* few sequences: groups exist only where sequences x heads are few */
    while (number >= c->seq[s].first_group + c->seq[s].groups) s++;
    at.s = &c->seq[s];
    at.h = unit % c->plan->h;
    at.group = number - at.s->first_group;
    gmai_plan_group(at.s, at.group, &at.begin, &at.end);
    return at;
}

/* A record: 64 bytes (a decay, or how many links of a chain are done), hi, lo. */
static size_t record_size(const gmai_plan *p) { return 2 * p->state_floats * sizeof(float) + 64; }

/* ---- chains ------------------------------------------------------------------------------------------ */

/* Chains that are handed on. Units go round them, so with 2 threads - 1 a thread may be half as fast as the others before
 * they have to wait for it. */
static int64_t handed_on(const gmai_plan *p, int threads)
{
    const int64_t chains = p->sequences * p->h, most = 2 * (int64_t)threads - 1;
    if (threads <= 1 || p->packed || p->groups_wanted <= 1) return 0;
    return chains < most ? chains : most;
}

size_t gmai_engine_shared(const gmai_plan *p, int threads)
{
    const int64_t records = gmai_plan_serial(p, threads) ? handed_on(p, threads) : p->max_groups * p->h;
    return (size_t)records * record_size(p);
}

typedef struct chain_units {
    const gmai_call *c;
    void (*f)(const gmai_call *c, char *work, const gmai_links *l);
    int64_t whole, rest, links; /* chains of one unit; chains handed on, and links of each */
} chain_units;

static void run_chain(const void *call, char *work, int64_t unit)
{
    const chain_units *u = call;
    gmai_links l = {unit, 0, 0, NULL, NULL};
    if (unit < u->whole) {
        l.end = u->c->seq[unit / u->c->plan->h].groups;
        u->f(u->c, work, &l);
        return;
    }
    const int64_t at = (unit - u->whole) % u->rest;
    char *r = u->c->shared + (size_t)at * record_size(u->c->plan);
    atomic_llong *done = (atomic_llong *)(void *)r;
    l.chain = u->whole + at;
    l.begin = (unit - u->whole) / u->rest;
    l.end = l.begin + 1;
    l.carry = (float *)(void *)(r + 64);
    l.carry_lo = l.carry + u->c->plan->state_floats;
    /* The link before was given out before this one, so some thread is at it. */
    for (int spins = 0; atomic_load_explicit(done, memory_order_acquire) < l.begin;)
        if (spins < 200)
            spins++;
        else
            (void)sched_yield();
    u->f(u->c, work, &l);
    atomic_store_explicit(done, l.end, memory_order_release);
}

void gmai_chains(const gmai_call *c, void (*f)(const gmai_call *c, char *work, const gmai_links *l))
{
    const gmai_plan *p = c->plan;
    chain_units u = {c, f, p->sequences * p->h, 0, 1};
    if (u.whole == 0) return;
    if (c->serial && c->seq[0].groups > 1) { /* all sequences alike: not packed */
        u.rest = handed_on(p, c->threads);
        u.links = c->seq[0].groups;
        u.whole -= u.rest;
    }
    for (int64_t i = 0; i < u.rest; i++)
        atomic_init((atomic_llong *)(void *)(c->shared + (size_t)i * record_size(p)), 0);
    gmai_each(c->kern, c->threads, u.whole + u.rest * u.links, c->work, c->work_size, run_chain, &u);
}

void gmai_begin_head(const gmai_call *c, int64_t h)
{
    if (!c->begin) return;
    c->kern->flush_restore(c->flags);
    c->begin(c, h);
    (void)c->kern->flush_on();
}

void gmai_end_head(const gmai_call *c, int64_t h)
{
    if (!c->end) return;
    c->kern->flush_restore(c->flags);
    c->end(c, h);
    (void)c->kern->flush_on();
}

/* ---- groups shared out --------------------------------------------------------------------------------- */

static float *record(const gmai_call *c, const gmai_sequence *s, int64_t h, int64_t group, gmai_decay **decay)
{
    char *r = c->shared + (size_t)((s->first_group + group) * c->plan->h + h) * record_size(c->plan);
    *decay = (gmai_decay *)(void *)r;
    return (float *)(void *)(r + 64);
}

void gmai_group_store(const gmai_call *c, const gmai_group_at *at, const float *hi, const float *lo, gmai_decay decay)
{
    gmai_decay *d;
    float *r = record(c, at->s, at->h, at->group, &d);
    const size_t n = c->plan->state_floats;
    memcpy(r, hi, n * sizeof(float));
    memcpy(r + n, lo, n * sizeof(float));
    *d = decay;
}

void gmai_group_load(const gmai_call *c, const gmai_group_at *at, float *hi, float *lo)
{
    gmai_decay *d;
    const float *r = record(c, at->s, at->h, at->group, &d);
    const size_t n = c->plan->state_floats;
    memcpy(hi, r, n * sizeof(float));
    memcpy(lo, r + n, n * sizeof(float));
}

void gmai_group_exchange(const gmai_call *c, const gmai_sequence *s, int64_t h, int64_t group, gmai_levels *l)
{
    gmai_decay *d;
    float *r = record(c, s, h, group, &d);
    const size_t n = c->plan->state_floats;
    memcpy(l->mid, r, n * sizeof(float));
    memcpy(l->mid_lo, r + n, n * sizeof(float));
    l->mid_decay = *d;
    memcpy(r, l->base, n * sizeof(float));
    memcpy(r + n, l->base_lo, n * sizeof(float));
    gmai_levels_end_group(c, l);
}
