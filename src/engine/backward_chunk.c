/* One chunk of the backward scan; formulas in backward.h. */
#include <string.h>

#include "core/tensor.h"
#include "engine/backward.h"

static int64_t chunks_of(const gmai_plan *p) { return p->segment_len / C; }

void gmai_backward_take(const gmai_plan *p, size_t sums_floats, gmai_bump *b, gmai_backward *w)
{
    const size_t rows = (size_t)C * (size_t)p->ld, phi = (size_t)C * (size_t)p->kp;
    gmai_keys_take(p, b, &w->keys);
    gmai_queries_take(p, b, &w->queries);
    gmai_levels_take(p, b, &w->grad);
    memset(&w->state, 0, sizeof w->state);
    w->state.local = gmai_take_apart(b, p->state_floats);
    w->phis = gmai_take_apart(b, (size_t)chunks_of(p) * phi);
    w->states = gmai_take_apart(b, (size_t)(chunks_of(p) + 1) * p->state_floats);
    w->pt = gmai_take_apart(b, (size_t)C * C);
    w->qt = gmai_take_apart(b, (size_t)C * C);
    w->q = gmai_take_apart(b, (size_t)C * C);
    w->vt = gmai_take_apart(b, rows);
    w->go = gmai_take_apart(b, rows);
    w->o = gmai_take_apart(b, rows);
    w->dn = gmai_take_apart(b, rows);
    w->dnw = gmai_take_apart(b, rows);
    w->dnt = gmai_take_apart(b, rows);
    w->dntw = gmai_take_apart(b, rows);
    w->dphi_q = gmai_take_apart(b, phi);
    w->dphi_k = gmai_take_apart(b, phi);
    w->dv = gmai_take_apart(b, rows);
    w->dx = gmai_take_apart(b, (size_t)C * (size_t)p->rp);
    w->group_sums = gmai_take_apart(b, p->groups_wanted > 1 ? sums_floats : 0);
}

size_t gmai_backward_work(const gmai_plan *p, size_t sums_floats)
{
    gmai_bump b = {NULL, 0};
    gmai_backward w;
    gmai_backward_take(p, sums_floats, &b, &w);
    return b.used;
}

/* ---- the upstream gradient of one chunk ------------------------------------------------------------------ */

static int features_finite(const gmai_call *c, const float *column)
{
    for (int k = 0; k < c->plan->k; k++) {
        const float x = column[(ptrdiff_t)k * C];
        if (x - x != 0.0f) return 0;
    }
    return 1;
}

int gmai_output_gradient(const gmai_call *c, gmai_backward *w, int64_t row, int64_t hq, int64_t at, int n,
                         const gmai_chunk_decay *decay)
{
    const gmai_plan *p = c->plan;
    const int nvec = gmai_vectors(c, n), padded = nvec * c->kern->lanes;
    const gmai_rows go = gmai_rows_at(&c->a->grad[GMA_O], row, hq, at), o = gmai_rows_at(&c->a->t[GMA_O], row, hq, at);
    const float *den = c->saved_den + (row * p->hq + hq) * p->nq + at;
    float inverse[C], *e = w->dnt + (ptrdiff_t)p->d * C;
    for (int i = 0; i < n; i++) inverse[i] = 1.0f / den[i];
    int finite = 1;
    /* Forward gave a number: the query saw nothing (see hide_blind there). */
    for (int i = 0; i < n && !w->queries.finite; i++)
        if (den[i] - den[i] == 0.0f && !features_finite(c, w->queries.phi + i)) gmai_queries_hide(c, &w->queries, i);
    if (go.data) {
        finite &= c->kern->pack(&go, n, p->d, NULL, NULL, w->go, p->ld, NULL);
        finite &= c->kern->pack(&o, n, p->d, NULL, NULL, w->o, p->ld, NULL);
    } else {
        memset(w->go, 0, (size_t)padded * (size_t)p->ld * sizeof(float));
        memset(w->o, 0, (size_t)padded * (size_t)p->ld * sizeof(float));
    }
    float delta[C] = {0};
    memset(w->dn + (ptrdiff_t)n * p->ld, 0, (size_t)(padded - n) * (size_t)p->ld * sizeof(float));
    c->kern->output_backward(w->go, w->o, p->ld, n, inverse, w->dn, delta);
    c->kern->transpose(w->dn, p->ld, padded, p->ld, w->dnt, C);
    memcpy(e, delta, sizeof delta);
    for (int i = 0; i < n; i++) finite &= gmai_all_finite(&inverse[i], 1);
    if (decay && decay->on) {
        for (int i = 0; i < padded; i++)
            c->kern->combine(w->dn + (ptrdiff_t)i * p->ld, i < n ? decay->read[i] : 0.0f, NULL,
                             w->dnw + (ptrdiff_t)i * p->ld, (size_t)p->ld);
        for (int d = 0; d <= p->d; d++)
            for (int i = 0; i < padded; i++)
                w->dntw[(ptrdiff_t)d * C + i] =
                    i < n && decay->read[i] != 0.0f ? w->dnt[(ptrdiff_t)d * C + i] * decay->read[i] : 0.0f;
    } else {
        memcpy(w->dnw, w->dn, (size_t)padded * (size_t)p->ld * sizeof(float));
        memcpy(w->dntw, w->dnt, (size_t)(p->d + 1) * C * sizeof(float));
    }
    return finite;
}

void gmai_grow_state_gradient(const gmai_call *c, gmai_backward *w, int n, const gmai_chunk_decay *decay)
{
    const gmai_plan *p = c->plan;
    /* Tokens behind a reset do not reach the chunk's start: left out, for they may not be finite. */
    int to = n;
    if (decay && decay->resets)
        for (to = 0; to < n && decay->read[to] != 0.0f;) to++;
    const gmai_term t = {w->queries.phi, C, 1, w->dnw, p->ld, to};
    if (to == 0) return;
    c->kern->product(p->k, gmai_vectors(c, p->d), w->grad.local, p->ld, &t, NULL, NULL, 1, GMAI_FULL);
    if (to == n) {
        c->kern->row_sums(w->queries.phi, p->k, w->queries.nvec, w->dntw + (ptrdiff_t)p->d * C, w->grad.local + p->d,
                          p->ld);
        return;
    }
    for (int k = 0; k < p->k; k++)
        for (int i = 0; i < to; i++)
            w->grad.local[(ptrdiff_t)k * p->ld + p->d] +=
                w->queries.phi[(ptrdiff_t)k * C + i] * w->dntw[(ptrdiff_t)p->d * C + i];
}

/* ---- one chunk --------------------------------------------------------------------------------------- */

/* The products inside the chunk, with exact limits: what is not finite must not meet the zeros of the triangles. */
static void exact_intra(const gmai_call *c, gmai_backward *w, const float *phi_k, int n, int64_t d)
{
    const gmai_plan *p = c->plan;
    const int *first = w->keys.decay.first;
    for (int i = 0; i < n; i++)
        for (int j = w->keys.decay.on ? first[i] : 0; j <= i; j++) {
            if (!w->keys.keep_byte[j]) continue;
            const float pij = w->pt[(ptrdiff_t)j * C + i], qij = w->qt[(ptrdiff_t)j * C + i];
            for (int64_t k = 0; k < p->k; k++) {
                w->dphi_q[k * C + i] += phi_k[k * C + j] * qij;
                w->dphi_k[k * C + j] += w->queries.phi[k * C + i] * qij;
            }
            for (int64_t x = 0; x < d; x++) w->dv[(ptrdiff_t)j * p->ld + x] += pij * w->dn[(ptrdiff_t)i * p->ld + x];
        }
}

int gmai_wants_state_gradient(const gmai_call *c)
{
    return gmai_present(&c->a->grad[GMA_STATE_S]) || gmai_present(&c->a->grad[GMA_STATE_Z]);
}

int gmai_starts_empty(const gmai_call *c, int64_t number, int64_t t)
{
    return number == 0 && t == 0 && !gmai_present(&c->a->t[GMA_STATE_S]) && !gmai_present(&c->a->t[GMA_STATE_Z]) &&
           !gmai_wants_state_gradient(c);
}

void gmai_query_backward(const gmai_call *c, gmai_backward *w, const gmai_segment *g, int64_t t, int n, int64_t row,
                         int64_t hq, const float *phi_k, const float *state, int empty, double *dot_sum, float *sums)
{
    const gmai_plan *p = c->plan;
    const int both = g->kind == GMAI_SEG_BOTH;
    const gmai_chunk_decay *decay = both ? &w->keys.decay : NULL;
    gmai_queries *q = &w->queries;
    gmai_queries_load(c, q, row, hq, g->q + t, n);
    int finite = gmai_output_gradient(c, w, row, hq, g->q + t, n, decay) && q->finite;
    const gmai_term from_state = {state, p->ld, 1, w->dntw, C, p->d + 1};
    if (both) {
        finite &= w->keys.finite && !(decay->resets && !gmai_all_finite(state, p->state_floats));
        gmai_intra(c, &w->keys, q, w->pt);
        const gmai_term dnv = {w->keys.v, p->ld, 1, w->dnt, C, p->d};
        const gmai_term plus_e = {w->keys.keep, 1, 0, w->dnt + (ptrdiff_t)p->d * C, 0, 1};
        c->kern->product(n, q->nvec, w->qt, C, &dnv, NULL, &plus_e, 0, GMAI_N_GE_M);
        c->kern->lower_decay(w->qt, n, q->nvec, decay->on ? decay->cs : NULL, decay->first);
    }
    if (both && finite) {
        const int padded = q->nvec * c->kern->lanes;
        for (int i = n; i < padded; i++) memset(w->qt + (ptrdiff_t)i * C, 0, (size_t)padded * sizeof(float));
        c->kern->transpose(w->qt, C, padded, padded, w->q, C);
        const gmai_term own = {phi_k, C, 1, w->qt, C, n};
        if (empty)
            c->kern->product(p->k, q->nvec, w->dphi_q, C, &own, NULL, NULL, 0, GMAI_K_LE_N);
        else
            c->kern->product(p->k, q->nvec, w->dphi_q, C, &from_state, NULL, &own, 0, GMAI_K_LE_N);
        const gmai_term to_keys = {q->phi, C, 1, w->q, C, n};
        c->kern->product(p->k, q->nvec, w->dphi_k, C, &to_keys, NULL, NULL, 1, GMAI_K_GE_N);
        const gmai_term to_values = {w->pt, C, 1, w->dn, p->ld, n};
        c->kern->product(n, gmai_vectors(c, p->d), w->dv, p->ld, &to_values, NULL, NULL, 1, GMAI_K_GE_M);
    } else {
        c->kern->product(p->k, q->nvec, w->dphi_q, C, &from_state, NULL, NULL, 0, GMAI_FULL);
        if (both) {
            /* A forgotten state is no part of the sum: 0 x NaN is not 0. */
            for (int i = 0; i < n && decay->on; i++)
                for (int64_t k = 0; k < p->k && decay->read[i] == 0.0f; k++) w->dphi_q[k * C + i] = 0.0f;
            exact_intra(c, w, phi_k, n, p->d);
        }
    }
    if (!empty) gmai_grow_state_gradient(c, w, n, decay);
    float dot[C];
    const void *head = c->heads + (size_t)(hq / p->group_heads) * c->head_size;
    c->map->backward(head, c->kern, q->x, q->phi, w->dphi_q, n, q->nvec, w->dx, sums, dot);
    for (int i = 0; i < n; i++) dot_sum[i] += (double)dot[i];
    const gmai_rows dq = gmai_rows_at(&c->a->grad[GMA_Q], row, hq, g->q + t);
    if (dq.data) c->kern->unpack(w->dx, p->rp, n, p->r, NULL, &dq);
}

void gmai_decay_gradient(const gmai_call *c, const gmai_backward *w, int64_t row, int64_t h, int64_t at, int n,
                         const double *dot_q, const float *dot_k, const float *end_state, const float *end_grad)
{
    const gma_tensor *g = &c->a->grad[GMA_LOG_DECAY];
    if (!gmai_present(g)) return;
    double sum = 0.0;
    for (int64_t k = 0; k < c->plan->k; k++)
        for (int64_t d = 0; d <= c->plan->d; d++) {
            const int64_t i = k * c->plan->ld + d;
            sum += (double)end_state[i] * (double)end_grad[i];
        }
    for (int t = n - 1; t >= 0; t--) {
        sum += dot_q[t] - (w->keys.keep_byte[t] ? (double)dot_k[t] : 0.0);
        const int64_t i = row * g->stride[0] + h * g->stride[1] + (at + t) * g->stride[2];
        /* Nothing of the past comes through a reset, and nothing of what follows reaches the tokens before it. */
        if (w->keys.decay.reset[t]) sum = 0.0;
        gmai_store_f32(g, i, (float)sum);
    }
}

void gmai_keys_backward(const gmai_call *c, gmai_backward *w, int64_t row, int64_t h, int64_t at, int n,
                        const float *phi_k, float *sums, float *dot)
{
    const gmai_plan *p = c->plan;
    const void *head = c->heads + (size_t)h * c->head_size;
    gmai_keys *k = &w->keys;
    if (k->masked)
        for (int j = 0; j < n; j++) {
            if (k->keep_byte[j]) continue;
            for (int64_t i = 0; i < p->k; i++) w->dphi_k[i * C + j] = 0.0f;
            memset(w->dv + (ptrdiff_t)j * p->ld, 0, (size_t)p->ld * sizeof(float));
        }
    c->map->backward(head, c->kern, k->x, phi_k, w->dphi_k, n, k->nvec, w->dx, sums, dot);
    for (int j = 0; j < n && k->masked; j++)
        if (!k->keep_byte[j]) memset(w->dx + (ptrdiff_t)j * p->rp, 0, (size_t)p->rp * sizeof(float));
    const gmai_rows dk = gmai_rows_at(&c->a->grad[GMA_K], row, h, at), dv = gmai_rows_at(&c->a->grad[GMA_V], row, h, at);
    if (dk.data) c->kern->unpack(w->dx, p->rp, n, p->r, NULL, &dk);
    if (dv.data) c->kern->unpack(w->dv, p->ld, n, p->d, NULL, &dv);
}

void gmai_from_later(const gmai_call *c, gmai_backward *w, int n, const float *phi_k, const float *u, int zero)
{
    const gmai_plan *p = c->plan;
    gmai_keys *k = &w->keys;
    if (zero && k->finite) {
        memset(w->dphi_k, 0, (size_t)p->kp * C * sizeof(float));
        memset(w->dv, 0, (size_t)C * (size_t)p->ld * sizeof(float));
        return;
    }
    const int padded = k->nvec * c->kern->lanes;
    const float *write = k->decay.on ? k->decay.write : k->keep;
    c->kern->transpose(k->v, p->ld, padded, p->ld, w->vt, C);
    for (int d = 0; d < p->d; d++)
        for (int j = 0; j < padded && k->decay.on; j++)
            w->vt[(ptrdiff_t)d * C + j] = write[j] != 0.0f ? w->vt[(ptrdiff_t)d * C + j] * write[j] : 0.0f;
    for (int j = 0; j < padded; j++) w->vt[(ptrdiff_t)p->d * C + j] = k->keep[j] != 0.0f ? write[j] : 0.0f;
    const gmai_term to_phi = {u, p->ld, 1, w->vt, C, p->d + 1};
    c->kern->product(p->k, k->nvec, w->dphi_k, C, &to_phi, NULL, NULL, 0, GMAI_FULL);
    const gmai_term to_v = {phi_k, 1, C, u, p->ld, p->k};
    c->kern->product(n, gmai_vectors(c, p->d), w->dv, p->ld, &to_v, k->decay.on ? write : NULL, NULL, 0, GMAI_FULL);
    /* Forgotten before the chunk's end: select, do not multiply. */
    for (int j = 0; j < n && k->decay.resets; j++)
        if (write[j] == 0.0f) {
            for (int64_t i = 0; i < p->k; i++) w->dphi_k[i * C + j] = 0.0f;
            memset(w->dv + (ptrdiff_t)j * p->ld, 0, (size_t)p->ld * sizeof(float));
        }
}

void gmai_shrink(const gmai_call *c, gmai_backward *w, gmai_decay total)
{
    const float factor = gmai_decay_factor(total);
    if (factor != 1.0f) c->kern->combine(w->grad.local, factor, NULL, w->grad.local, c->plan->state_floats);
    w->grad.segment_decay = gmai_decay_join(w->grad.segment_decay, total);
}
