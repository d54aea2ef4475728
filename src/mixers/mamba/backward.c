/* Backward of the scan. From the last chunk to the first: the states of a chunk are computed again from the one that was
 * saved at its start, then the gradient of the state runs back through it.
 *
 * B and C are shared by all channels, so their gradients are sums over the groups. To keep them out of memory that grows
 * with N, all units (sequence, group) of a band of sequences do one chunk, then the sums of that chunk are finished,
 * then comes the chunk before. The partition depends on the shape only, and every sum has its order. */
#include <string.h>

#include "core/cpu.h"
#include "core/tensor.h"
#include "mixers/mamba/mamba.h"

typedef struct layout {
    gmai_sequence *seq;
    float *groups;
    float *dh; /* of each unit of a band: (S,W) */
    float *da, *dd; /* (S,W); D and bias (2,W), over all bands */
    float *db, *dc; /* (C, ld) of the chunk under way */
    char *work;
    size_t work_size;
} layout;

static size_t work_size(const gmai_mamba_plan *p)
{
    gmai_bump b = {NULL, 0};
    gmai_mamba_chunk c;
    gmai_mamba_chunk_take(p, &b, &c);
    (void)gmai_take_floats(&b, (size_t)2 * GMAI_CHUNK * W);
    (void)gmai_take_floats(&b, GMAI_SCAN_WORK);
    return b.used;
}

static void take(const gmai_mamba_plan *p, gmai_bump *b, int threads, layout *l)
{
    const size_t units = (size_t)(p->band * p->groups), chunk = (size_t)GMAI_CHUNK * (size_t)p->ld;
    l->seq = gmai_take(b, (size_t)p->tokens.sequences * sizeof(gmai_sequence));
    l->groups = gmai_take_floats(b, (size_t)p->groups * gmai_mamba_group_floats(p));
    l->dh = gmai_take_floats(b, units * p->state_floats);
    l->da = gmai_take_floats(b, units * p->state_floats);
    l->dd = gmai_take_floats(b, units * 2 * W);
    /* Without a channel there is no unit, but still a gradient of B and C: 0. */
    l->db = gmai_take_floats(b, (units > 0 ? units : (size_t)p->band) * chunk);
    l->dc = gmai_take_floats(b, (units > 0 ? units : (size_t)p->band) * chunk);
    l->work_size = work_size(p);
    l->work = gmai_take(b, (size_t)threads * l->work_size);
}

void gmai_mamba_backward_sizes(const gma_mixer *m, const gmai_mamba_plan *p, int threads, gmai_bump *b)
{
    layout l;
    (void)m;
    take(p, b, threads, &l);
}

typedef struct job {
    const gma_mixer *m;
    const gmai_mamba_plan *p;
    const gmai_args *a;
    const layout *l;
    const float *saved;
    int64_t first; /* sequence of the band */
    int64_t round; /* chunks from the end */
} job;

/* The chunk of this round of the sequence at `place` of the band; 0 when it has none left. */
static int chunk_of(const job *j, int64_t place, gmai_segment *s)
{
    const gmai_sequence *seq = &j->l->seq[j->first + place];
    if (j->round >= seq->segments) return 0;
    *s = gmai_plan_segment(&j->p->tokens, seq, seq->segments - 1 - j->round);
    return 1;
}

static void chunk_unit(const void *self, char *work, int64_t unit)
{
    const job *j = self;
    const gmai_mamba_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    const int64_t place = unit / p->groups, g = unit % p->groups, row = j->l->seq[j->first + place].row;
    const size_t chunk = (size_t)GMAI_CHUNK * (size_t)p->ld;
    gmai_segment s;
    if (!chunk_of(j, place, &s)) return;
    gmai_bump b = {work, 0};
    gmai_mamba_chunk c;
    gmai_mamba_chunk_take(p, &b, &c);
    float *gu = gmai_take_floats(&b, (size_t)2 * GMAI_CHUNK * W), *graw = gu + (size_t)GMAI_CHUNK * W;
    float *buffers = gmai_take_floats(&b, GMAI_SCAN_WORK);
    const int n = (int)s.n, width = gmai_mamba_width(p, g);
    gmai_mamba_chunk_load(j->m, p, j->a, j->l->groups, row, g, s.k, n, &c);
    if (g + 1 < p->groups) { /* likely the next unit of this thread */
        gmai_mamba_ahead(p, &j->a->t[GMA_U], row, g + 1, s.k, n, &c);
        gmai_mamba_ahead(p, &j->a->t[GMA_DELTA], row, g + 1, s.k, n, &c);
        gmai_mamba_ahead(p, &j->a->grad[GMA_Y], row, g + 1, s.k, n, &c);
    }
    const gmai_rows dy = gmai_mamba_rows(&j->a->grad[GMA_Y], row, s.k, g * W);
    if (dy.data)
        (void)kern->pack(&dy, n, width, NULL, NULL, c.y, W, NULL);
    else
        memset(c.y, 0, (size_t)n * W * sizeof(float));
    float *dd = j->l->dd + (size_t)unit * 2 * W;
    kern->scan_backward(&c.scan, c.y, j->saved + (size_t)(s.number * p->groups + g) * p->state_floats,
                        j->l->dh + (size_t)unit * p->state_floats, buffers, gu, graw, j->l->db + (size_t)unit * chunk,
                        j->l->dc + (size_t)unit * chunk, j->l->da + (size_t)unit * p->state_floats, dd, dd + W);
    const gmai_rows to_u = gmai_mamba_rows(&j->a->grad[GMA_U], row, s.k, g * W),
                    to_delta = gmai_mamba_rows(&j->a->grad[GMA_DELTA], row, s.k, g * W);
    if (to_u.data) kern->unpack(gu, W, n, width, NULL, &to_u);
    if (to_delta.data) kern->unpack(graw, W, n, width, NULL, &to_delta);
}

/* The groups' parts of the gradients of B and C: into the first, then to the caller. */
static void shared_unit(const void *self, char *work, int64_t place)
{
    const job *j = self;
    const gmai_mamba_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    const size_t chunk = (size_t)GMAI_CHUNK * (size_t)p->ld;
    const int64_t row = j->l->seq[j->first + place].row;
    gmai_segment s;
    (void)work;
    if (!chunk_of(j, place, &s)) return;
    const size_t first = (size_t)(p->groups > 0 ? place * p->groups : place) * chunk;
    float *parts[] = {j->l->db + first, j->l->dc + first};
    const gmai_rows to[] = {gmai_mamba_rows(&j->a->grad[GMA_SSM_B], row, s.k, 0),
                            gmai_mamba_rows(&j->a->grad[GMA_SSM_C], row, s.k, 0)};
    for (int i = 0; i < 2; i++) {
        if (!to[i].data) continue;
        if (p->groups == 0) memset(parts[i], 0, chunk * sizeof(float));
        for (int64_t g = 1; g < p->groups; g++)
            kern->axpy(1.0f, parts[i] + (size_t)g * chunk, parts[i], (size_t)s.n * (size_t)p->ld);
        kern->unpack(parts[i], p->ld, (int)s.n, p->states, NULL, &to[i]);
    }
}

static void band(job *j, int threads)
{
    const gmai_mamba_plan *p = j->p;
    const layout *l = j->l;
    const int64_t left = p->tokens.sequences - j->first, count = left < p->band ? left : p->band;
    int64_t rounds = 0;
    for (int64_t i = 0; i < count; i++) {
        if (l->seq[j->first + i].segments > rounds) rounds = l->seq[j->first + i].segments;
        for (int64_t g = 0; g < p->groups; g++)
            gmai_mamba_state_import(p, &j->a->grad[GMA_OUT_H], j->first + i, g,
                                    l->dh + (size_t)(i * p->groups + g) * p->state_floats);
    }
    for (j->round = 0; j->round < rounds; j->round++) {
        gmai_each(j->m->kern, threads, count * p->groups, l->work, l->work_size, chunk_unit, j);
        gmai_each(j->m->kern, threads, count, l->work, 0, shared_unit, j);
    }
    for (int64_t i = 0; i < count; i++)
        for (int64_t g = 0; g < p->groups; g++)
            gmai_mamba_state_export(p, l->dh + (size_t)(i * p->groups + g) * p->state_floats, j->first + i, g,
                                    &j->a->grad[GMA_STATE_H]);
}

static void put(const gma_tensor *t, int64_t at, float x)
{
    if (gmai_present(t)) ((float *)t->data)[at] = x;
}

/* Over the places of the band, in order. */
static void finish(const job *j)
{
    const gmai_mamba_plan *p = j->p;
    const size_t da = (size_t)p->groups * p->state_floats, dd = (size_t)p->groups * 2 * W;
    const gma_tensor *A = &j->a->grad[GMA_SSM_A], *D = &j->a->grad[GMA_SSM_D], *bias = &j->a->grad[GMA_DELTA_BIAS];
    for (int64_t i = 1; i < p->band; i++) {
        j->m->kern->axpy(1.0f, j->l->da + (size_t)i * da, j->l->da, da);
        j->m->kern->axpy(1.0f, j->l->dd + (size_t)i * dd, j->l->dd, dd);
    }
    for (int64_t e = 0; e < p->channels; e++) {
        const float *g = j->l->dd + e / W * 2 * W, *ga = j->l->da + (size_t)(e / W) * p->state_floats;
        for (int s = 0; s < p->states; s++) put(A, e * A->stride[0] + s * A->stride[1], ga[s * W + e % W]);
        put(D, e * D->stride[0], g[e % W]);
        put(bias, e * bias->stride[0], g[W + e % W]);
    }
}

gma_status gmai_mamba_backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_mamba_plan p;
    layout l;
    gmai_bump b = {x->scratch, 0};
    const int threads = gmai_threads(x->threads);
    gmai_mamba_plan_make(&m->d, &p);
    take(&p, &b, threads, &l);
    const gma_status s = gmai_plan_sequences(&p.tokens, &a->t[GMA_CU_SEQLENS], l.seq);
    if (s != GMA_OK) return s;
    gmai_mamba_prepare(&p, a, l.groups);
    memset(l.da, 0, (size_t)(p.band * p.groups) * p.state_floats * sizeof(float));
    memset(l.dd, 0, (size_t)(p.band * p.groups) * 2 * W * sizeof(float));
    job j = {m, &p, a, &l, x->saved, 0, 0};
    for (; j.first < p.tokens.sequences; j.first += p.band) band(&j, threads);
    finish(&j);
    return GMA_OK;
}
