/* The backward scan: groups, segments and chunks in reverse, without stored phi. Notation as in forward.c, and
 *
 *   dn_i = dO_i / den_i      e_i = -<dO_i, o_i> / den_i      so that dL/d[phi_q S, phi_q Z]_i = [dn_i, e_i]
 *   P_ij = W_ij <phi_q,i , phi_k,j>     Q_ij = W_ij (dn_i . v_j + e_i)      W_ij = e^(cs_i - cs_j), 0 for j > i
 *
 *   dphi_q = e^cs [S, Z] [dn, e]^T + phi_k Q^T          S, Z at the chunk's start
 *   dphi_k = e^(T-cs) [U, u] [v, 1]^T + phi_q Q         U, u: gradient of the state at the chunk's end
 *   dv     = e^(T-cs) phi_k^T U + P^T dn
 *   U     <- e^T U + phi_q (e^cs dn)                    u likewise with e
 *
 * Per segment: first the states at the starts of its chunks (phi_k is kept for the segment), then its chunks backwards. */
#include <math.h>
#include <string.h>

#include "core/tensor.h"
#include "engine/chunk.h"
#include "engine/parallel.h"

typedef struct worker {
    gmai_keys keys;
    gmai_queries queries;
    gmai_levels grad; /* U on its levels */
    gmai_levels state; /* S: only segment and local of it, the segment's base comes from forward */
    float *phis; /* phi_k of the chunks of a segment */
    unsigned char phis_finite[GMAI_MAX_SEGMENT / C];
    float *states; /* S at their starts, and at the segment's end */
    float *pt, *qt, *q; /* P^T, Q^T, Q: (C, C) */
    float *vt; /* (ld, C): v transposed, row D = 1 for keys that take part */
    float *go, *o, *dn, *dnw; /* (C, ld): dO, o, dn, e^cs dn */
    float *dnt, *dntw; /* (ld, C): dn transposed, row D = e; the same times e^cs */
    float *dphi_q, *dphi_k; /* (kp, C) */
    float *dv, *dx;
    float *group_sums; /* parameter sums of one group, where a bin holds those of several */
} worker;

static int64_t chunks_of(const gmai_plan *p) { return p->segment_len / C; }

static void worker_take(const gmai_plan *p, size_t sums_floats, gmai_bump *b, worker *w)
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
    worker w;
    worker_take(p, sums_floats, &b, &w);
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

/* dn, e and what is made of them. decay NULL: none. Returns 1 when all is finite. */
static int output_gradient(const gmai_call *c, worker *w, int64_t row, int64_t hq, int64_t at, int n,
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

/* U += phi_q (e^cs dn), u += phi_q (e^cs e), into the segment's local sums. */
static void grow_state_gradient(const gmai_call *c, worker *w, int n, const gmai_chunk_decay *decay)
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
static void exact_intra(const gmai_call *c, worker *w, const float *phi_k, int n, int64_t d)
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

static int wants_state_gradient(const gmai_call *c)
{
    return gmai_present(&c->a->grad[GMA_STATE_S]) || gmai_present(&c->a->grad[GMA_STATE_Z]);
}

/* The chunk at `t` of segment `number` has nothing before it: its state is 0, and nobody asks for the gradient of that. */
static int starts_empty(const gmai_call *c, int64_t number, int64_t t)
{
    return number == 0 && t == 0 && !gmai_present(&c->a->t[GMA_STATE_S]) && !gmai_present(&c->a->t[GMA_STATE_Z]) &&
           !wants_state_gradient(c);
}

/* One query head of a chunk: dq, and what it adds to dphi_k, dv and U. empty: as starts_empty. */
static void query_backward(const gmai_call *c, worker *w, const gmai_segment *g, int64_t t, int n, int64_t row, int64_t hq,
                           const float *phi_k, const float *state, int empty, double *dot_sum, float *sums)
{
    const gmai_plan *p = c->plan;
    const int both = g->kind == GMAI_SEG_BOTH;
    const gmai_chunk_decay *decay = both ? &w->keys.decay : NULL;
    gmai_queries *q = &w->queries;
    gmai_queries_load(c, q, row, hq, g->q + t, n);
    int finite = output_gradient(c, w, row, hq, g->q + t, n, decay) && q->finite;
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
    if (!empty) grow_state_gradient(c, w, n, decay);
    float dot[C];
    const void *head = c->heads + (size_t)(hq / p->group_heads) * c->head_size;
    c->map->backward(head, c->kern, q->x, q->phi, w->dphi_q, n, q->nvec, w->dx, sums, dot);
    for (int i = 0; i < n; i++) dot_sum[i] += (double)dot[i];
    const gmai_rows dq = gmai_rows_at(&c->a->grad[GMA_Q], row, hq, g->q + t);
    if (dq.data) c->kern->unpack(w->dx, p->rp, n, p->r, NULL, &dq);
}

/* dlog_decay_t = sum over i >= t of (<phi_q, dphi_q>_i - <phi_k, dphi_k>_i) + <S_end, U_end>, in double. */
static void decay_gradient(const gmai_call *c, const worker *w, int64_t row, int64_t h, int64_t at, int n,
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

/* The keys of a chunk, once its query heads are through: dk, dv, dlog_decay. */
static void keys_backward(const gmai_call *c, worker *w, int64_t row, int64_t h, int64_t at, int n, const float *phi_k,
                          float *sums, float *dot)
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

/* dphi_k and dv from the later chunks: through U at the chunk's end. zero: U is 0. */
static void from_later(const gmai_call *c, worker *w, int n, const float *phi_k, const float *u, int zero)
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

static void shrink(const gmai_call *c, worker *w, gmai_decay total)
{
    const float factor = gmai_decay_factor(total);
    if (factor != 1.0f) c->kern->combine(w->grad.local, factor, NULL, w->grad.local, c->plan->state_floats);
    w->grad.segment_decay = gmai_decay_join(w->grad.segment_decay, total);
}

/* The states at the starts of the segment's chunks, and phi_k of each. */
static void replay(const gmai_call *c, worker *w, const gmai_sequence *s, const gmai_segment *g, int64_t slot, int64_t h)
{
    const gmai_plan *p = c->plan;
    gmai_levels *l = &w->state;
    /* Keys that no query of the segment reads: only the decay's gradient asks for the state they met. */
    const int states = g->kind != GMAI_SEG_KEYS || gmai_present(&c->a->grad[GMA_LOG_DECAY]);
    l->segment = w->states;
    if (slot >= 0)
        memcpy(l->segment, c->saved_state + (size_t)(slot * p->h + h) * p->state_floats, p->state_floats * sizeof(float));
    else if (states)
        gmai_state_import(c, &c->a->t[GMA_STATE_S], &c->a->t[GMA_STATE_Z], s - c->seq, h, l->segment);
    if (g->kind == GMAI_SEG_QUERIES) return;
    memset(l->local, 0, p->state_floats * sizeof(float));
    l->segment_decay.log = 0.0;
    l->segment_decay.dead = 0;
    for (int64_t i = 0, t = 0; t < g->n; i++, t += C) {
        const int n = (int)(g->n - t < C ? g->n - t : C);
        float *phi = w->phis + (size_t)i * (size_t)p->kp * C;
        gmai_keys_load(c, &w->keys, s->row, h, g->k + t, n, phi, states);
        gmai_keys k = w->keys;
        k.phi = phi;
        w->phis_finite[i] = (unsigned char)k.phi_finite;
        /* The state behind the last chunk is for the decay's gradient only. */
        if (!states || (t + C >= g->n && !gmai_present(&c->a->grad[GMA_LOG_DECAY]))) continue;
        gmai_write_chunk(c, &k, l);
        c->kern->combine(l->segment, gmai_decay_factor(l->segment_decay), l->local,
                         w->states + (size_t)(i + 1) * p->state_floats, p->state_floats);
    }
}

static void segment_backward(const gmai_call *c, worker *w, const gmai_sequence *s, int64_t number, int64_t h,
                             float *sums)
{
    const gmai_plan *p = c->plan;
    const gmai_segment segment = gmai_plan_segment(p, s, number), *g = &segment;
    replay(c, w, s, g, gmai_saved_slot(p, s, number), h);
    const int64_t chunks = (g->n + C - 1) / C;
    for (int64_t i = chunks - 1; i >= 0; i--) {
        const int64_t t = i * C;
        const int n = (int)(g->n - t < C ? g->n - t : C);
        /* Queries without keys of their own see the same state all along. */
        const float *state = w->states + (g->kind == GMAI_SEG_QUERIES ? 0 : (size_t)i * p->state_floats);
        const float *u = gmai_levels_join(c, &w->grad, i == chunks - 1);
        if (u == w->grad.local && gmai_present(&c->a->grad[GMA_LOG_DECAY])) /* asked for again, when local has moved on */
            u = memcpy(w->grad.joined, u, p->state_floats * sizeof(float));
        float *phi_k = w->phis + (size_t)i * (size_t)p->kp * C;
        double dot_q[C] = {0};
        float dot_k[C];
        if (g->kind != GMAI_SEG_QUERIES) {
            gmai_keys_load(c, &w->keys, s->row, h, g->k + t, n, NULL, 1);
            w->keys.phi = phi_k;
            w->keys.finite &= w->phis_finite[i];
            from_later(c, w, n, phi_k, u, w->grad.empty && i == chunks - 1);
            shrink(c, w, w->keys.decay.total);
        }
        if (g->kind != GMAI_SEG_KEYS)
            for (int64_t j = 0; j < p->group_heads; j++)
                query_backward(c, w, g, t, n, s->row, h * p->group_heads + j, phi_k, state,
                               g->kind == GMAI_SEG_BOTH && starts_empty(c, number, t), dot_q, sums);
        if (g->kind != GMAI_SEG_QUERIES) {
            keys_backward(c, w, s->row, h, g->k + t, n, phi_k, sums, dot_k);
            decay_gradient(c, w, s->row, h, g->k + t, n, dot_q, dot_k, state + p->state_floats, u);
        }
    }
}

/* Only U of the segment, for the first phase. */
static void segment_gradient_only(const gmai_call *c, worker *w, const gmai_sequence *s, const gmai_segment *g, int64_t h)
{
    const gmai_plan *p = c->plan;
    for (int64_t t = (g->n - 1) / C * C; t >= 0; t -= C) {
        const int n = (int)(g->n - t < C ? g->n - t : C);
        const gmai_chunk_decay *decay = NULL;
        if (g->kind != GMAI_SEG_QUERIES) {
            gmai_keys_load(c, &w->keys, s->row, h, g->k + t, n, NULL, 0);
            shrink(c, w, w->keys.decay.total);
            decay = &w->keys.decay;
        }
        for (int64_t j = 0; j < p->group_heads && g->kind != GMAI_SEG_KEYS; j++) {
            const int64_t hq = h * p->group_heads + j;
            gmai_queries_load(c, &w->queries, s->row, hq, g->q + t, n);
            (void)output_gradient(c, w, s->row, hq, g->q + t, n, decay);
            grow_state_gradient(c, w, n, decay);
        }
    }
}

static float *bin_at(const gmai_call *c, int64_t h, int64_t bin)
{
    return c->sums + (size_t)(h * c->bins + bin) * c->sums_floats;
}

static float *bin_of(const gmai_call *c, const gmai_sequence *s, int64_t h, int64_t group)
{
    const gmai_plan *p = c->plan;
    /* With several groups a sequence each has a bin of its own, or (serial) its sequence has; else bins are runs of
     * sequences. */
    if (p->groups_wanted <= 1) return bin_at(c, h, (s - c->seq) * p->bins / p->sequences);
    return bin_at(c, h, c->serial ? s - c->seq : s->first_group + group);
}

/* Groups from the last to the first, then sequences from the first to the last: the same sums however bins are cut, with the
 * same signs of zero, so what is empty is left out in any case. */
static float *join_bins(const gmai_call *c, int64_t h)
{
    float *total = NULL;
    if (c->plan->groups_wanted <= 1) {
        total = bin_at(c, h, 0);
        for (int64_t i = 1; i < c->bins; i++) c->kern->axpy(1.0f, bin_at(c, h, i), total, c->sums_floats);
        return total;
    }
    for (int64_t i = 0; i < c->plan->sequences; i++) {
        const gmai_sequence *s = &c->seq[i];
        if (s->groups == 0) continue;
        float *sum = bin_of(c, s, h, s->groups - 1);
        for (int64_t g = s->groups - 2; g >= 0 && !c->serial; g--) c->kern->axpy(1.0f, bin_of(c, s, h, g), sum, c->sums_floats);
        if (total)
            c->kern->axpy(1.0f, sum, total, c->sums_floats);
        else
            total = sum;
    }
    return total ? total : bin_at(c, h, 0);
}

/* Serial sequences join their groups while they are scanned, with flushing to zero on: so it is on here. */
const float *gmai_engine_sums(const gmai_call *c, int64_t h)
{
    const unsigned before = c->kern->flush_on();
    const float *total = join_bins(c, h);
    c->kern->flush_restore(before);
    return total;
}

static void scan(const gmai_call *c, worker *w, const gmai_sequence *s, int64_t h, int64_t group, int whole)
{
    int64_t begin, end;
    float *bin = whole ? bin_of(c, s, h, group) : NULL, *sums = bin;
    /* A bin of several groups: the last one, which comes first, straight into it. */
    const int aside = whole && c->plan->groups_wanted > 1 && c->serial && group < s->groups - 1 && c->sums_floats > 0;
    if (aside) {
        sums = w->group_sums;
        memset(sums, 0, c->sums_floats * sizeof(float));
    }
    gmai_plan_group(s, group, &begin, &end);
    gmai_levels_start_group(c, &w->grad);
    for (int64_t i = end - 1; i >= begin; i--) {
        const gmai_segment g = gmai_plan_segment(c->plan, s, i);
        gmai_levels_start_segment(c, &w->grad);
        if (whole)
            segment_backward(c, w, s, i, h, sums);
        else
            segment_gradient_only(c, w, s, &g, h);
        if (i > 0 || !whole || wants_state_gradient(c)) gmai_levels_end_segment(c, &w->grad);
    }
    if (aside) c->kern->axpy(1.0f, sums, bin, c->sums_floats);
}

static void prepare(const gmai_call *c, char *work, worker *w)
{
    gmai_bump b = {work, 0};
    worker_take(c->plan, c->sums_floats, &b, w);
}

static void import_gradient(const gmai_call *c, const gmai_sequence *s, int64_t h, gmai_levels *l)
{
    gmai_levels_import(c, &c->a->grad[GMA_OUT_S], &c->a->grad[GMA_OUT_Z], s - c->seq, h, l);
}

static void export_gradient(const gmai_call *c, const gmai_sequence *s, int64_t h, gmai_levels *l)
{
    gmai_levels_export(c, l, s - c->seq, h, &c->a->grad[GMA_STATE_S], &c->a->grad[GMA_STATE_Z]);
}

/* Links count from the sequence's end. */
static void sequence_links(const gmai_call *c, char *work, const gmai_links *k)
{
    const gmai_plan *p = c->plan;
    const gmai_sequence *s = &c->seq[k->chain / p->h];
    const int64_t h = k->chain % p->h;
    worker w;
    prepare(c, work, &w);
    if (k->carry) {
        w.grad.base = k->carry;
        w.grad.base_lo = k->carry_lo;
    }
    if (k->begin == 0) {
        gmai_begin_head(c, h);
        import_gradient(c, s, h, &w.grad);
    }
    for (int64_t i = k->begin; i < k->end; i++) {
        scan(c, &w, s, h, s->groups - 1 - i, 1);
        if (i < s->groups - 1 || wants_state_gradient(c)) gmai_levels_end_group(c, &w.grad);
    }
    if (k->end < s->groups) return;
    export_gradient(c, s, h, &w.grad);
    gmai_end_head(c, h);
}

/* All sequences of one bin of one head. */
static void one_bin(const gmai_call *c, char *work, int64_t unit)
{
    const gmai_plan *p = c->plan;
    const int64_t bin = unit / p->h, h = unit % p->h;
    /* The sequences i with i bins / sequences = bin. */
    int64_t first = (bin * p->sequences + p->bins - 1) / p->bins, last = ((bin + 1) * p->sequences + p->bins - 1) / p->bins;
    for (int64_t i = first; i < last; i++) {
        const gmai_links all = {i * p->h + h, 0, c->seq[i].groups, NULL, NULL};
        sequence_links(c, work, &all);
    }
}

/* ---- three phases ------------------------------------------------------------------------------------ */

static void phase_mids(const gmai_call *c, char *work, int64_t unit)
{
    gmai_group_at at = gmai_group_of(c, unit);
    worker w;
    prepare(c, work, &w);
    /* The gradient of the state at the group's end comes later; the group's own part starts from 0. */
    memset(w.grad.base, 0, c->plan->state_floats * sizeof(float));
    memset(w.grad.base_lo, 0, c->plan->state_floats * sizeof(float));
    scan(c, &w, at.s, at.h, at.group, 0);
    gmai_group_store(c, &at, w.grad.mid, w.grad.mid_lo, w.grad.mid_decay);
}

static void phase_prefix(const gmai_call *c, char *work, int64_t unit)
{
    const gmai_sequence *s = &c->seq[unit / c->plan->h];
    const int64_t h = unit % c->plan->h;
    worker w;
    prepare(c, work, &w);
    import_gradient(c, s, h, &w.grad);
    gmai_levels_settle(c, &w.grad);
    for (int64_t g = s->groups - 1; g >= 0; g--) gmai_group_exchange(c, s, h, g, &w.grad);
    export_gradient(c, s, h, &w.grad);
}

static void phase_gradients(const gmai_call *c, char *work, int64_t unit)
{
    gmai_group_at at = gmai_group_of(c, unit);
    worker w;
    prepare(c, work, &w);
    gmai_group_load(c, &at, w.grad.base, w.grad.base_lo);
    scan(c, &w, at.s, at.h, at.group, 1);
}

void gmai_engine_backward(const gmai_call *c)
{
    const gmai_plan *p = c->plan;
    if (p->sequences * p->h == 0) return;
    if (p->groups_wanted <= 1) {
        gmai_parallel(c, p->bins * p->h, one_bin);
    } else if (gmai_serial(c)) {
        gmai_chains(c, sequence_links);
    } else {
        gmai_parallel(c, gmai_group_count(c) * p->h, phase_mids);
        gmai_parallel(c, p->sequences * p->h, phase_prefix);
        gmai_parallel(c, gmai_group_count(c) * p->h, phase_gradients);
    }
}
