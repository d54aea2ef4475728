/* Loading chunks, and the levels of the state. See chunk.h. */
#include "engine/chunk.h"

#include <math.h>
#include <string.h>

#include "core/tensor.h"

/* Below e^-200 nothing of the past is left in f32, so such a decay is a reset; and sums of what remains stay small. */
#define RESET_BELOW (-200.0)

float gmai_decay_factor(gmai_decay d) { return d.dead ? 0.0f : d.log == 0.0 ? 1.0f : (float)exp(d.log); }

gmai_decay gmai_decay_join(gmai_decay a, gmai_decay b)
{
    gmai_decay d = {a.log + b.log, a.dead | b.dead};
    return d;
}

gmai_rows gmai_rows_at(const gma_tensor *t, int64_t b, int64_t h, int64_t token)
{
    gmai_rows r = {NULL, 0, 0};
    if (!gmai_present(t)) return r;
    const int64_t offset = b * t->stride[0] + h * t->stride[1] + token * t->stride[2];
    r.data = (char *)t->data + offset * (int64_t)gma_dtype_size((gma_dtype)t->dtype);
    r.stride = t->stride[2];
    r.dtype = t->dtype;
    return r;
}

int gmai_all_finite(const float *x, size_t n)
{
    float bad = 0.0f;
    for (size_t i = 0; i < n; i++) bad += x[i] - x[i];
    return bad == 0.0f;
}

/* ---- keys and queries ------------------------------------------------------------------------------- */

void gmai_keys_take(const gmai_plan *p, gmai_bump *b, gmai_keys *k)
{
    k->x = gmai_take_apart(b, (size_t)C * (size_t)p->rp);
    k->columns = gmai_take_apart(b, (size_t)C * (size_t)p->rp);
    k->phi = gmai_take_apart(b, (size_t)C * (size_t)p->kp);
    k->v = gmai_take_apart(b, (size_t)C * (size_t)p->ld);
    k->vw_own = gmai_take_apart(b, (size_t)C * (size_t)p->ld);
}

void gmai_queries_take(const gmai_plan *p, gmai_bump *b, gmai_queries *q)
{
    q->x = gmai_take_apart(b, (size_t)C * (size_t)p->rp);
    q->columns = gmai_take_apart(b, (size_t)C * (size_t)p->rp);
    q->phi = gmai_take_apart(b, (size_t)C * (size_t)p->kp);
}

static void decay_load(const gma_tensor *t, int64_t row, int64_t h, int64_t at, int n, gmai_chunk_decay *d)
{
    d->on = gmai_present(t);
    d->resets = 0;
    d->total.log = 0.0;
    d->total.dead = 0;
    if (!d->on) return;
    const float *p = (const float *)t->data + row * t->stride[0] + h * t->stride[1] + at * t->stride[2];
    double sum = 0.0;
    int first = 0;
    for (int i = 0; i < n; i++) {
        const double x = (double)p[i * t->stride[2]];
        d->reset[i] = x < RESET_BELOW;
        if (d->reset[i]) {
            first = i;
            d->resets = 1;
            sum = 0.0; /* sums across a reset are never used; what was forgotten may be NaN */
        } else {
            sum += x;
        }
        d->cs[i] = sum;
        d->first[i] = first;
        d->read[i] = d->resets ? 0.0f : (float)exp(sum);
    }
    for (int j = 0; j < n; j++) d->write[j] = j < first ? 0.0f : (float)exp(sum - d->cs[j]);
    for (int j = n; j < C; j++) {
        d->read[j] = d->write[j] = 0.0f;
        d->cs[j] = sum;
        d->first[j] = first;
        d->reset[j] = 0;
    }
    d->total.log = sum;
    d->total.dead = d->resets;
}

/* The rows of t one chunk further on. */
static gmai_ahead ahead_of(const gma_tensor *t, int64_t row, int64_t h, int64_t at)
{
    gmai_ahead a = {0, 0, 0, 0};
    if (!gmai_present(t)) return a;
    const int64_t size = (int64_t)gma_dtype_size((gma_dtype)t->dtype);
    const int64_t offset = row * t->stride[0] + h * t->stride[1] + (at + C) * t->stride[2];
    a.first = (uintptr_t)t->data + (uintptr_t)(offset * size);
    a.stride = t->stride[2] * size;
    a.bytes = (int)(t->shape[3] * size);
    a.rows = C;
    return a;
}

static const float *center_of(const gmai_call *c, const void *head)
{
    return c->map->center ? c->map->center(head) : NULL;
}

void gmai_keys_load(const gmai_call *c, gmai_keys *k, int64_t row, int64_t h, int64_t at, int n, float *phi,
                    int want_values)
{
    const gmai_plan *p = c->plan;
    const gma_tensor *mask = &c->a->t[GMA_KEY_MASK];
    const void *head = c->heads + (size_t)h * c->head_size;
    k->n = n;
    k->nvec = gmai_vectors(c, n);
    k->masked = 0;
    for (int i = 0; i < C; i++) {
        k->keep_byte[i] = i < n;
        if (i < n && gmai_present(mask))
            k->keep_byte[i] = ((const uint8_t *)mask->data)[row * mask->stride[0] + (at + i) * mask->stride[1]] != 0;
        k->keep[i] = k->keep_byte[i] ? 1.0f : 0.0f;
        k->masked |= i < n && !k->keep_byte[i];
    }
    const unsigned char *keep = k->masked ? k->keep_byte : NULL;
    gmai_rows src = gmai_rows_at(&c->a->t[GMA_K], row, h, at);
    k->finite = c->kern->pack(&src, n, p->r, keep, center_of(c, head), k->x, p->rp, phi ? k->columns : NULL);
    if (phi) {
        const gmai_ahead ahead[2] = {ahead_of(&c->a->t[GMA_K], row, h, at), ahead_of(&c->a->t[GMA_V], row, h, at)};
        k->phi_finite = c->map->phi(head, c->kern, k->columns, k->nvec, phi, ahead);
        k->finite &= k->phi_finite;
        if (k->masked || n % c->kern->lanes) c->kern->scale_columns(phi, p->k, k->nvec, k->keep);
    }
    decay_load(&c->a->t[GMA_LOG_DECAY], row, h, at, n, &k->decay);
    k->vw = k->v;
    if (!want_values) return;
    src = gmai_rows_at(&c->a->t[GMA_V], row, h, at);
    k->first_bad = n;
    if (!c->kern->pack(&src, n, p->d, keep, NULL, k->v, p->ld, NULL)) {
        k->finite = 0;
        for (k->first_bad = 0; gmai_all_finite(k->v + (ptrdiff_t)k->first_bad * p->ld, (size_t)p->ld);) k->first_bad++;
    }
    if (!k->decay.on) return;
    k->vw = k->vw_own;
    for (int j = 0; j < n; j++)
        c->kern->combine(k->v + (ptrdiff_t)j * p->ld, k->decay.write[j], NULL, k->vw + (ptrdiff_t)j * p->ld,
                         (size_t)p->ld);
}

void gmai_queries_load(const gmai_call *c, gmai_queries *q, int64_t row, int64_t hq, int64_t at, int n)
{
    const gmai_plan *p = c->plan;
    const void *head = c->heads + (size_t)(hq / p->group_heads) * c->head_size;
    const gmai_rows src = gmai_rows_at(&c->a->t[GMA_Q], row, hq, at);
    q->n = n;
    q->nvec = gmai_vectors(c, n);
    q->finite = c->kern->pack(&src, n, p->r, NULL, center_of(c, head), q->x, p->rp, q->columns);
    const gmai_ahead ahead[2] = {ahead_of(&c->a->t[GMA_Q], row, hq, at), ahead_of(&c->a->t[GMA_O], row, hq, at)};
    if (c->map->phi_query) {
        c->map->phi_query(head, c->kern, q->columns, q->nvec, p->eps, q->phi, q->eps, ahead);
        return;
    }
    (void)c->map->phi(head, c->kern, q->columns, q->nvec, q->phi, ahead);
    for (int i = 0; i < n; i++) q->eps[i] = (float)p->eps;
}

void gmai_queries_hide(const gmai_call *c, gmai_queries *q, int i)
{
    for (int k = 0; k < c->plan->k; k++) q->phi[(ptrdiff_t)k * C + i] = 0.0f;
    q->eps[i] = (float)c->plan->eps;
    memset(q->x + (ptrdiff_t)i * c->plan->rp, 0, (size_t)c->plan->rp * sizeof(float));
}

void gmai_intra(const gmai_call *c, const gmai_keys *k, const gmai_queries *q, float *pt)
{
    const gmai_term t = {k->phi, 1, C, q->phi, C, c->plan->k};
    c->kern->product(k->n, q->nvec, pt, C, &t, NULL, NULL, 0, GMAI_N_GE_M);
    c->kern->lower_decay(pt, k->n, q->nvec, k->decay.on ? k->decay.cs : NULL, k->decay.first);
}

/* ---- levels of the state ---------------------------------------------------------------------------- */

void gmai_levels_take(const gmai_plan *p, gmai_bump *b, gmai_levels *l)
{
    l->base = gmai_take_apart(b, p->state_floats);
    l->base_lo = gmai_take_apart(b, p->state_floats);
    l->mid = gmai_take_apart(b, p->state_floats);
    l->mid_lo = gmai_take_apart(b, p->state_floats);
    l->segment = gmai_take_apart(b, p->state_floats);
    l->local = gmai_take_apart(b, p->state_floats);
    l->joined = gmai_take_apart(b, p->state_floats);
    l->empty = 0;
}

static void clear(const gmai_call *c, float *state) { memset(state, 0, c->plan->state_floats * sizeof(float)); }

void gmai_levels_import(const gmai_call *c, const gma_tensor *s, const gma_tensor *z, int64_t seq, int64_t h,
                        gmai_levels *l)
{
    l->empty = !gmai_present(s) && !gmai_present(z);
    if (l->empty) return;
    gmai_state_import(c, s, z, seq, h, l->base);
    clear(c, l->base_lo);
}

void gmai_levels_settle(const gmai_call *c, gmai_levels *l)
{
    if (!l->empty) return;
    clear(c, l->base);
    clear(c, l->base_lo);
    clear(c, l->mid);
    clear(c, l->mid_lo);
    l->empty = 0;
}

static void state_export(const gmai_call *c, const float *src, int64_t seq, int64_t h, const gma_tensor *s,
                         const gma_tensor *z)
{
    const gmai_plan *p = c->plan;
    for (int64_t k = 0; k < p->k; k++) {
        const float *row = src + k * p->ld;
        if (gmai_present(s)) {
            const int64_t at = seq * s->stride[0] + h * s->stride[1] + k * s->stride[2];
            for (int64_t d = 0; d < p->d; d++) gmai_store_f32(s, at + d * s->stride[3], row[d]);
        }
        if (gmai_present(z))
            gmai_store_f32(z, seq * z->stride[0] + h * z->stride[1] + k * z->stride[2], row[p->d]);
    }
}

void gmai_levels_export(const gmai_call *c, gmai_levels *l, int64_t seq, int64_t h, const gma_tensor *s,
                        const gma_tensor *z)
{
    if (!gmai_present(s) && !gmai_present(z)) return;
    gmai_levels_settle(c, l);
    state_export(c, l->base, seq, h, s, z);
}

void gmai_levels_start_group(const gmai_call *c, gmai_levels *l)
{
    if (!l->empty) {
        clear(c, l->mid);
        clear(c, l->mid_lo);
    }
    l->mid_decay.log = 0.0;
    l->mid_decay.dead = 0;
}

void gmai_levels_start_segment(const gmai_call *c, gmai_levels *l)
{
    if (l->empty)
        clear(c, l->segment);
    else
        c->kern->combine(l->base, gmai_decay_factor(l->mid_decay), l->mid, l->segment, c->plan->state_floats);
    clear(c, l->local);
    l->segment_decay.log = 0.0;
    l->segment_decay.dead = 0;
}

const float *gmai_levels_join(const gmai_call *c, gmai_levels *l, int first_chunk)
{
    if (first_chunk) return l->segment;
    if (l->empty) return l->local;
    c->kern->combine(l->segment, gmai_decay_factor(l->segment_decay), l->local, l->joined, c->plan->state_floats);
    return l->joined;
}

void gmai_levels_end_segment(const gmai_call *c, gmai_levels *l)
{
    gmai_levels_settle(c, l);
    c->kern->accumulate(l->mid, l->mid_lo, gmai_decay_factor(l->segment_decay), l->local, NULL, c->plan->state_floats);
    l->mid_decay = gmai_decay_join(l->mid_decay, l->segment_decay);
}

void gmai_levels_end_group(const gmai_call *c, gmai_levels *l)
{
    gmai_levels_settle(c, l);
    c->kern->accumulate(l->base, l->base_lo, gmai_decay_factor(l->mid_decay), l->mid, l->mid_lo, c->plan->state_floats);
}

void gmai_state_import(const gmai_call *c, const gma_tensor *s, const gma_tensor *z, int64_t seq, int64_t h, float *dst)
{
    const gmai_plan *p = c->plan;
    memset(dst, 0, p->state_floats * sizeof(float));
    for (int64_t k = 0; k < p->k; k++) {
        float *row = dst + k * p->ld;
        if (gmai_present(s)) {
            const int64_t at = seq * s->stride[0] + h * s->stride[1] + k * s->stride[2];
            for (int64_t d = 0; d < p->d; d++) row[d] = gmai_load_f32(s, at + d * s->stride[3]);
        }
        if (gmai_present(z))
            row[p->d] = gmai_load_f32(z, seq * z->stride[0] + h * z->stride[1] + k * z->stride[2]);
    }
}

