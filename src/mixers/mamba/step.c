/* Decoding: the parameters of all groups, made ready, then per (b, group) the state (S,W) and buffers of one token. */
#include <string.h>

#include "core/cpu.h"
#include "core/tensor.h"
#include "mixers/mamba/mamba.h"

typedef struct layout {
    float *groups, *h, *rows;
} layout;

/* u raw delta du y (W); b c (ld) */
static size_t row_floats(const gmai_mamba_plan *p) { return (size_t)(5 * W + 2 * p->ld); }

static void take(const gma_mixer *m, gmai_mamba_plan *p, gmai_bump *b, layout *l)
{
    gmai_mamba_plan_make(&m->d, p);
    const size_t units = (size_t)(m->d.batch * p->groups);
    l->groups = gmai_take_floats(b, (size_t)p->groups * gmai_mamba_group_floats(p));
    l->h = gmai_take_floats(b, units * p->state_floats);
    l->rows = gmai_take_floats(b, units * row_floats(p));
}

size_t gmai_mamba_step_size(const gma_mixer *m)
{
    gmai_mamba_plan p;
    gmai_bump b = {NULL, 0};
    layout l;
    take(m, &p, &b, &l);
    return b.used;
}

gma_status gmai_mamba_state_init(const gma_mixer *m, const gmai_args *a, void *state)
{
    gmai_mamba_plan p;
    gmai_bump b = {state, 0};
    layout l;
    take(m, &p, &b, &l);
    memset(state, 0, b.used);
    gmai_mamba_prepare(&p, a, l.groups);
    for (int64_t i = 0; i < m->d.batch * p.groups; i++)
        gmai_mamba_state_import(&p, &a->t[GMA_STATE_H], i / p.groups, i % p.groups, l.h + (size_t)i * p.state_floats);
    return GMA_OK;
}

typedef struct job {
    const gma_mixer *m;
    const gmai_mamba_plan *p;
    const gmai_args *a;
    const layout *l;
} job;

/* One row of one token, element by element: pack would write a vector of rows. */
static void load_row(const gma_tensor *t, int64_t b, int64_t column, int n, float *row)
{
    for (int i = 0; i < n; i++) row[i] = gmai_load_f32(t, b * t->stride[0] + column + i);
}

static void step_unit(const void *self, char *work, int64_t unit)
{
    const job *j = self;
    const gmai_mamba_plan *p = j->p;
    const int64_t b = unit / p->groups, g = unit % p->groups;
    float *row = j->l->rows + (size_t)unit * row_floats(p);
    gmai_mamba_chunk c = {.u = row, .raw = row + W, .delta = row + 2 * W, .du = row + 3 * W, .y = row + 4 * W,
                          .b = row + 5 * W, .c = row + 5 * W + p->ld};
    (void)work;
    const int width = gmai_mamba_width(p, g);
    load_row(&j->a->t[GMA_U], b, g * W, width, c.u);
    load_row(&j->a->t[GMA_DELTA], b, g * W, width, c.raw);
    load_row(&j->a->t[GMA_SSM_B], b, 0, p->states, c.b);
    load_row(&j->a->t[GMA_SSM_C], b, 0, p->states, c.c);
    gmai_mamba_chunk_ready(j->m, p, j->l->groups, g, 1, &c);
    j->m->kern->scan_forward(&c.scan, j->l->h + (size_t)unit * p->state_floats, c.y);
    const gma_tensor *y = &j->a->t[GMA_Y];
    for (int i = 0; i < width; i++) gmai_store_f32(y, b * y->stride[0] + g * W + i, c.y[i]);
}

gma_status gmai_mamba_step(const gma_mixer *m, const gmai_args *a, void *state, int threads)
{
    gmai_mamba_plan p;
    gmai_bump b = {state, 0};
    layout l;
    take(m, &p, &b, &l);
    job j = {m, &p, a, &l};
    /* A token of a group is a microsecond of work: a team pays from many groups on. */
    const int64_t units = m->d.batch * p.groups;
    gmai_each(m->kern, units * p.states >= 4096 ? gmai_threads(threads) : 1, units, NULL, 0, step_unit, &j);
    return GMA_OK;
}

gma_status gmai_mamba_step_export(const gma_mixer *m, const void *state, const gmai_args *a)
{
    gmai_mamba_plan p;
    gmai_bump b = {NULL, 0};
    layout l;
    memcpy(&b.base, &state, sizeof state); /* only read through */
    take(m, &p, &b, &l);
    for (int64_t i = 0; i < m->d.batch * p.groups; i++)
        gmai_mamba_state_export(&p, l.h + (size_t)i * p.state_floats, i / p.groups, i % p.groups, &a->t[GMA_OUT_H]);
    return GMA_OK;
}
