/* Backward of Linformer, in two passes: over the queries, for dq and the gradients of the summaries; then over the keys,
 * for dk, dv and the projections. What forward saved is k' and v'; the weights are computed again. */
#include <string.h>

#include "core/cpu.h"
#include "mixers/linformer/linformer.h"

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

void gmai_linformer_backward_take(const gma_mixer *m, const gmai_linformer_plan *p, int threads, gmai_bump *b)
{
    layout l;
    (void)m;
    take(p, b, threads, &l);
}

/* One chunk of queries of one query head. With l = k' scale . q, phi = softmax(l), o = phi^T v':
 *   dphi = v' dO^T,  dl = phi o (dphi - <phi, dphi>),  dq = dl^T k' scale,  d(k') += dl q (times scale, at the end),  dv' += phi dO */
static void query_chunk(const gmai_linformer_job *j, const gmai_linformer_work *w, const float *summary, float *dk, float *dv,
                        int64_t b, int64_t hq, int64_t chunk)
{
    const gmai_linformer_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    int64_t at;
    const int n = gmai_linformer_chunk(p->nq, chunk, &at), nvec = (n + kern->lanes - 1) / kern->lanes;
    const float *v = summary + (size_t)p->p * (size_t)p->rp;
    float dot[C];
    gmai_linformer_load(j, &j->a->t[GMA_Q], 0, b, hq, at, n, w->x, w->x_columns);
    gmai_linformer_load(j, &j->a->grad[GMA_O], 0, b, hq, at, n, w->v, w->v_columns);
    gmai_linformer_weights(j, summary, w, n);
    const gmai_term to_dphi = {v, p->dp, 1, w->v_columns, C, p->d};
    kern->product(p->p, nvec, w->dphi, C, &to_dphi, NULL, NULL, 0, GMAI_FULL);
    kern->softmax_backward(w->phi, w->dphi, p->p, nvec, dot);
    const gmai_term to_dk = {w->dphi, C, 1, w->x, p->rp, n}, to_dv = {w->phi, C, 1, w->v, p->dp, n};
    kern->product(p->p, p->rp / kern->lanes, dk, p->rp, &to_dk, NULL, NULL, 1, GMAI_FULL);
    kern->product(p->p, p->dp / kern->lanes, dv, p->dp, &to_dv, NULL, NULL, 1, GMAI_FULL);
    if (!gmai_present(&j->a->grad[GMA_Q])) return;
    const gmai_term to_dq = {w->dphi, 1, C, summary, p->rp, p->p};
    const gmai_rows dq = gmai_rows_at(&j->a->grad[GMA_Q], b, hq, at);
    kern->product(n, p->rp / kern->lanes, w->out, p->rp, &to_dq, NULL, NULL, 0, GMAI_FULL);
    kern->unpack(w->out, p->rp, n, p->r, NULL, &dq);
}

/* One part of the query chunks of all query heads of one key head. */
static void query_unit(const void *self, char *work, int64_t unit)
{
    const gmai_linformer_job *j = self;
    const gmai_linformer_plan *p = j->p;
    const int64_t head = unit / p->parts, part = unit % p->parts, b = head / p->h, h = head % p->h;
    const int64_t chunks = gmai_linformer_chunks(p->nq), all = p->group * chunks;
    float *dk = j->parts + (size_t)unit * p->summary, *dv = dk + (size_t)p->p * (size_t)p->rp;
    gmai_bump bump = {work, 0};
    gmai_linformer_work w;
    gmai_linformer_work_take(p, &bump, &w);
    memset(dk, 0, p->summary * sizeof(float));
    for (int64_t i = part * all / p->parts; i < (part + 1) * all / p->parts; i++)
        query_chunk(j, &w, j->summaries + (size_t)head * p->summary, dk, dv, b, h * p->group + i / chunks, i % chunks);
}

/* Keys or values, as one pass sees them. */
typedef struct side {
    int slot, proj;
    int width, padded;
    size_t offset; /* in a summary */
} side;

static side side_of(const gmai_linformer_plan *p, int values)
{
    const side k = {GMA_K, GMA_PROJ_K, p->r, p->rp, 0}, v = {GMA_V, GMA_PROJ_V, p->d, p->dp, (size_t)p->p * (size_t)p->rp};
    return values ? v : k;
}

/* dx = proj^T d(x'),  dproj += d(x') x^T  for one chunk of one key head; a masked row is a row of zeros. */
static void key_chunk(const gmai_linformer_job *j, const gmai_linformer_work *w, const side *s, int64_t b, int64_t h,
                      int64_t at, int n, float *dproj)
{
    const gmai_linformer_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    const float *d = j->parts + (size_t)((b * p->h + h) * p->parts) * p->summary + s->offset;
    const gma_tensor *mask = &j->a->t[GMA_KEY_MASK], *dx = &j->a->grad[s->slot];
    float *rows = s->slot == GMA_K ? w->x : w->v, *columns = s->slot == GMA_K ? w->x_columns : w->v_columns;
    if (dproj) {
        gmai_linformer_load(j, &j->a->t[s->slot], 1, b, h, at, n, rows, columns);
        const gmai_term t = {d, s->padded, 1, columns, C, s->width};
        kern->product(p->p, (n + kern->lanes - 1) / kern->lanes, dproj, C, &t, NULL, NULL, 1, GMAI_FULL);
    }
    if (!gmai_present(dx)) return;
    const gmai_term proj = gmai_linformer_projection(&j->a->t[s->proj], h, at);
    const gmai_term t = {proj.a, proj.ak, proj.am, d, s->padded, p->p};
    kern->product(n, s->padded / kern->lanes, w->out, s->padded, &t, NULL, NULL, 0, GMAI_FULL);
    for (int i = 0; i < n && gmai_present(mask); i++)
        if (!((const uint8_t *)mask->data)[b * mask->stride[0] + (at + i) * mask->stride[1]])
            memset(w->out + (size_t)i * (size_t)s->padded, 0, (size_t)s->padded * sizeof(float));
    const gmai_rows to = gmai_rows_at(dx, b, h, at);
    kern->unpack(w->out, s->padded, n, s->width, NULL, &to);
}

/* unit: (keys or values, chunk). A projection of one head is summed over the batch, one of all heads over these too. */
static void key_unit(const void *self, char *work, int64_t unit)
{
    const gmai_linformer_job *j = self;
    const gmai_linformer_plan *p = j->p;
    const int64_t chunks = gmai_linformer_chunks(p->nk);
    const side s = side_of(p, unit >= chunks);
    const gma_tensor *to = &j->a->grad[s.proj];
    const int shared = j->a->t[s.proj].rank == 2;
    gmai_bump bump = {work, 0};
    gmai_linformer_work w;
    gmai_linformer_work_take(p, &bump, &w);
    int64_t at;
    const int n = gmai_linformer_chunk(p->nk, unit % chunks, &at);
    float *dproj = gmai_present(to) ? w.phi : NULL;
    for (int64_t h = 0; h < p->h || (h == 0 && shared); h++) {
        if (dproj && (h == 0 || !shared)) memset(dproj, 0, C * (size_t)p->p * sizeof(float));
        for (int64_t b = 0; b < p->batch && p->h > 0; b++) key_chunk(j, &w, &s, b, h, at, n, dproj);
        if (!dproj || (shared && h + 1 < p->h)) continue;
        const int64_t *stride = to->stride + !shared;
        float *data = (float *)to->data + (shared ? 0 : h * to->stride[0]) + at * stride[1];
        for (int64_t i = 0; i < p->p; i++)
            for (int64_t t = 0; t < n; t++) data[i * stride[0] + t * stride[1]] = dproj[i * C + t];
    }
}

gma_status gmai_linformer_backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_linformer_plan p;
    layout l;
    gmai_bump b = {x->scratch, 0};
    const int threads = gmai_threads(x->threads);
    gmai_linformer_plan_make(&m->d, &p);
    take(&p, &b, threads, &l);
    gmai_linformer_job j = {m, &p, a, l.parts, x->saved};
    gmai_each(m->kern, threads, p.heads * p.parts, l.work, l.work_size, query_unit, &j);
    gmai_linformer_join(&j);
    gmai_each(m->kern, threads, 2 * gmai_linformer_chunks(p.nk), l.work, l.work_size, key_unit, &j);
    return GMA_OK;
}
