/* Linformer (Wang et al. 2020): slots, rules, sizes and forward. README.md has the formulas. */
#include "mixers/linformer/linformer.h"

#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "mixers/mixers.h"

#define F32 (1u << GMA_F32)
#define F32_BF16 (1u << GMA_F32 | 1u << GMA_BF16)

static const gma_slot_info slots[] = {
    {GMA_Q, "BhqR", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_K, "BHkR", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_V, "BHkD", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_PROJ_K, "?HPk", GMA_ROLE_PARAM, 1, F32, 1},
    {GMA_PROJ_V, "?HPk", GMA_ROLE_PARAM, 1, F32, 1},
    {GMA_KEY_MASK, "Bk", GMA_ROLE_INPUT, 0, 1u << GMA_BOOL | 1u << GMA_U8, 0},
    {GMA_O, "BhqD", GMA_ROLE_OUTPUT, 1, F32_BF16, 1},
};

static gma_status check(gma_mixer_desc *d)
{
    if (d->causal)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "causal is 1; mixer 'linformer' mixes the whole sequence at once: bidirectional only (0)");
    if (d->segments >= 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "segments is %lld; mixer 'linformer' cannot mix packed sequences (-1)",
                        (long long)d->segments);
    if (d->routing_dim < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "routing_dim is %lld; it must be >= 1", (long long)d->routing_dim);
    if (d->components < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "components is %lld; it must be >= 1, the rows of the projections",
                        (long long)d->components);
    return GMA_OK;
}

void gmai_linformer_plan_make(const gma_mixer_desc *d, gmai_linformer_plan *p)
{
    p->batch = d->batch;
    p->hq = d->heads;
    p->h = d->kv_heads;
    p->group = d->kv_heads > 0 ? d->heads / d->kv_heads : 0;
    p->nq = d->q_len;
    p->nk = d->k_len;
    p->p = (int)d->components;
    p->r = (int)d->routing_dim;
    p->rp = (int)gmai_pad(p->r);
    p->d = (int)d->value_dim;
    p->dp = (int)gmai_pad(p->d);
    p->scale = (float)(d->scale > 0.0 ? d->scale : 1.0 / sqrt((double)p->r));
    p->heads = p->batch * p->h;
    p->summary = (size_t)p->p * (size_t)(p->rp + p->dp);
    p->parts = p->heads > 0 && p->heads < 32 ? (32 + p->heads - 1) / p->heads : 1;
    if (p->parts > 8) p->parts = 8;
}

void gmai_linformer_work_take(const gmai_linformer_plan *p, gmai_bump *b, gmai_linformer_work *w)
{
    const size_t wide = (size_t)(p->rp > p->dp ? p->rp : p->dp);
    w->x = gmai_take_floats(b, C * (size_t)p->rp);
    w->x_columns = gmai_take_floats(b, C * (size_t)p->rp);
    w->v = gmai_take_floats(b, C * (size_t)p->dp);
    w->v_columns = gmai_take_floats(b, C * (size_t)p->dp);
    w->phi = gmai_take_floats(b, C * (size_t)p->p);
    w->dphi = gmai_take_floats(b, C * (size_t)p->p);
    w->out = gmai_take_floats(b, C * wide);
}

/* The scratch of forward. */
typedef struct layout {
    float *parts;
    char *work;
    size_t work_size;
} layout;

static void take(const gmai_linformer_plan *p, gmai_bump *b, int threads, layout *l)
{
    gmai_bump work = {NULL, 0};
    gmai_linformer_work w;
    gmai_linformer_work_take(p, &work, &w);
    l->parts = gmai_take_floats(b, (size_t)(p->heads * p->parts) * p->summary);
    l->work_size = work.used;
    l->work = gmai_take(b, (size_t)threads * l->work_size);
}

static gma_status sizes(const gma_mixer *m, int threads, gma_mixer_size *size)
{
    gmai_linformer_plan p;
    layout l;
    gmai_bump forward = {NULL, 0}, backward = {NULL, 0};
    gmai_linformer_plan_make(&m->d, &p);
    take(&p, &forward, threads, &l);
    gmai_linformer_backward_take(m, &p, threads, &backward);
    size->forward_scratch = forward.used;
    size->backward_scratch = backward.used;
    size->saved = (size_t)p.heads * p.summary * sizeof(float);
    size->state = 0;
    return GMA_OK;
}

/* ---- one chunk ---------------------------------------------------------------------------------------- */

void gmai_linformer_load(const gmai_linformer_job *j, const gma_tensor *t, int masked, int64_t b, int64_t head, int64_t at,
                         int n, float *rows, float *columns)
{
    const gma_tensor *mask = &j->a->t[GMA_KEY_MASK];
    const gmai_rows src = gmai_rows_at(t, b, head, at);
    const int width = (int)t->shape[3];
    uint8_t keep[C];
    masked = masked && gmai_present(mask);
    for (int i = 0; i < n && masked; i++)
        keep[i] = ((const uint8_t *)mask->data)[b * mask->stride[0] + (at + i) * mask->stride[1]] != 0;
    (void)j->m->kern->pack(&src, n, width, masked ? keep : NULL, NULL, rows, (int)gmai_pad(width), columns);
}

gmai_term gmai_linformer_projection(const gma_tensor *proj, int64_t h, int64_t at)
{
    const int per_head = proj->rank == 3;
    const int64_t *stride = proj->stride + per_head;
    gmai_term t = {(const float *)proj->data + (per_head ? h * proj->stride[0] : 0) + at * stride[1], (ptrdiff_t)stride[0],
                   (ptrdiff_t)stride[1], NULL, 0, 0};
    return t;
}

void gmai_linformer_weights(const gmai_linformer_job *j, const float *summary, const gmai_linformer_work *w, int n)
{
    const gmai_linformer_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    const int nvec = (n + kern->lanes - 1) / kern->lanes;
    const gmai_term t = {summary, p->rp, 1, w->x_columns, C, p->r};
    kern->product(p->p, nvec, w->phi, C, &t, NULL, NULL, 0, GMAI_FULL);
    (void)kern->softmax(w->phi, p->p, nvec);
}

void gmai_linformer_join(const gmai_linformer_job *j)
{
    const gmai_linformer_plan *p = j->p;
    for (int64_t i = 0; i < p->heads; i++) {
        float *total = j->parts + (size_t)(i * p->parts) * p->summary;
        for (int64_t part = 1; part < p->parts; part++)
            j->m->kern->axpy(1.0f, total + (size_t)part * p->summary, total, p->summary);
        for (size_t k = 0; k < (size_t)p->p * (size_t)p->rp; k++) total[k] *= p->scale;
    }
}

/* ---- forward ------------------------------------------------------------------------------------------ */

/* k' and v' over one part of the tokens of one key head. */
static void project_unit(const void *self, char *work, int64_t unit)
{
    const gmai_linformer_job *j = self;
    const gmai_linformer_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    const int64_t head = unit / p->parts, part = unit % p->parts, b = head / p->h, h = head % p->h;
    const int64_t chunks = gmai_linformer_chunks(p->nk);
    float *k = j->parts + (size_t)unit * p->summary, *v = k + (size_t)p->p * (size_t)p->rp;
    gmai_bump bump = {work, 0};
    gmai_linformer_work w;
    gmai_linformer_work_take(p, &bump, &w);
    memset(k, 0, p->summary * sizeof(float));
    for (int64_t c = part * chunks / p->parts; c < (part + 1) * chunks / p->parts; c++) {
        int64_t at;
        const int n = gmai_linformer_chunk(p->nk, c, &at);
        gmai_term tk = gmai_linformer_projection(&j->a->t[GMA_PROJ_K], h, at),
                  tv = gmai_linformer_projection(&j->a->t[GMA_PROJ_V], h, at);
        gmai_linformer_load(j, &j->a->t[GMA_K], 1, b, h, at, n, w.x, NULL);
        gmai_linformer_load(j, &j->a->t[GMA_V], 1, b, h, at, n, w.v, NULL);
        tk.b = w.x;
        tk.ldb = p->rp;
        tv.b = w.v;
        tv.ldb = p->dp;
        tk.k = tv.k = n;
        kern->product(p->p, p->rp / kern->lanes, k, p->rp, &tk, NULL, NULL, 1, GMAI_FULL);
        kern->product(p->p, p->dp / kern->lanes, v, p->dp, &tv, NULL, NULL, 1, GMAI_FULL);
    }
}

static void query_unit(const void *self, char *work, int64_t unit)
{
    const gmai_linformer_job *j = self;
    const gmai_linformer_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    const int64_t chunks = gmai_linformer_chunks(p->nq), row = unit / chunks, b = row / p->hq, hq = row % p->hq;
    const float *summary = j->parts + (size_t)((b * p->h + hq / p->group) * p->parts) * p->summary;
    gmai_bump bump = {work, 0};
    gmai_linformer_work w;
    gmai_linformer_work_take(p, &bump, &w);
    int64_t at;
    const int n = gmai_linformer_chunk(p->nq, unit % chunks, &at);
    gmai_linformer_load(j, &j->a->t[GMA_Q], 0, b, hq, at, n, w.x, w.x_columns);
    gmai_linformer_weights(j, summary, &w, n);
    const gmai_term t = {w.phi, 1, C, summary + (size_t)p->p * (size_t)p->rp, p->dp, p->p};
    kern->product(n, p->dp / kern->lanes, w.out, p->dp, &t, NULL, NULL, 0, GMAI_FULL);
    const gmai_rows o = gmai_rows_at(&j->a->t[GMA_O], b, hq, at);
    kern->unpack(w.out, p->dp, n, p->d, NULL, &o);
}

static gma_status forward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_linformer_plan p;
    layout l;
    gmai_bump b = {x->scratch, 0};
    const int threads = gmai_threads(x->threads);
    gmai_linformer_plan_make(&m->d, &p);
    take(&p, &b, threads, &l);
    gmai_linformer_job j = {m, &p, a, l.parts, NULL};
    gmai_each(m->kern, threads, p.heads * p.parts, l.work, l.work_size, project_unit, &j);
    gmai_linformer_join(&j);
    for (int64_t i = 0; i < p.heads && x->saved; i++)
        memcpy((float *)x->saved + (size_t)i * p.summary, l.parts + (size_t)(i * p.parts) * p.summary,
               p.summary * sizeof(float));
    gmai_each(m->kern, threads, p.batch * p.hq * gmai_linformer_chunks(p.nq), l.work, l.work_size, query_unit, &j);
    return GMA_OK;
}

const gmai_mixer_ops gmai_mixer_linformer = {
    .kind = GMA_MIXER_LINFORMER,
    .name = "linformer",
    .slots = slots,
    .slot_count = (int)(sizeof slots / sizeof slots[0]),
    .options = GMAI_HAS_SCALE,
    .check = check,
    .sizes = sizes,
    .forward = forward,
    .backward = gmai_linformer_backward,
    .naive_forward = gmai_linformer_naive_forward,
    .naive_backward = gmai_linformer_naive_backward,
};
