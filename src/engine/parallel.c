/* See parallel.h. */
#include "engine/parallel.h"

#include <string.h>

#include "core/cpu.h"

void gmai_parallel(const gmai_call *c, int64_t units, void (*f)(const gmai_call *c, char *work, int64_t unit))
{
    if (units <= 0) return;
    const int threads = units < c->threads ? (int)units : c->threads;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
    {
        const unsigned before = c->kern->flush_on();
        char *work = c->work + (size_t)gmai_thread() * c->work_size;
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
        for (int64_t i = 0; i < units; i++) f(c, work, i);
        c->kern->flush_restore(before);
    }
}

int gmai_serial(const gmai_call *c) { return c->serial || gmai_group_count(c) <= c->plan->sequences; }

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

/* A record: hi, lo, decay. */
static size_t record_size(const gmai_plan *p) { return 2 * p->state_floats * sizeof(float) + 64; }

size_t gmai_engine_shared(const gmai_plan *p, int threads)
{
    return gmai_plan_serial(p, threads) ? 0 : (size_t)(p->max_groups * p->h) * record_size(p);
}

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
