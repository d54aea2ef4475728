/* The forward scan. One chunk, with tokens as columns (phi_k, phi_q: K x C) and the state S as K x D:
 *
 *        P^T = tril(phi_k^T phi_q)  (decayed)         C x C, computed above the diagonal only
 *        O   = e^cs phi_q^T S + P V                   two terms, one set of registers
 *        den = e^cs phi_q^T Z + P 1 + eps             o = O / den
 *        S  <- e^T S + phi_k (e^(T-cs) V)             Z likewise
 */
#include <string.h>

#include "engine/chunk.h"
#include "engine/parallel.h"

typedef struct worker {
    gmai_keys keys;
    gmai_queries queries;
    gmai_levels levels;
    float *pt, *o; /* (C, C); (C, ld) */
} worker;

static void worker_take(const gmai_plan *p, gmai_bump *b, worker *w)
{
    gmai_keys_take(p, b, &w->keys);
    gmai_queries_take(p, b, &w->queries);
    gmai_levels_take(p, b, &w->levels);
    w->pt = gmai_take_apart(b, (size_t)C * C);
    w->o = gmai_take_apart(b, (size_t)C * (size_t)p->ld);
}

size_t gmai_forward_work(const gmai_plan *p)
{
    gmai_bump b = {NULL, 0};
    worker w;
    worker_take(p, &b, &w);
    return b.used;
}

/* O from row `i` on, row by row with exact limits: a value that is not finite must not meet the zeros above the diagonal. */
static void exact_rows(const gmai_call *c, worker *w, int i, const float *state, int nvec, const gmai_keys *keys)
{
    const gmai_plan *p = c->plan;
    for (; i < w->queries.n; i++) {
        float *o = w->o + (ptrdiff_t)i * p->ld;
        const float scale = keys->decay.on ? keys->decay.read[i] : 1.0f;
        const gmai_term read = {w->queries.phi + i, 1, C, state, p->ld, p->k};
        if (scale != 0.0f)
            c->kern->product(1, nvec, o, p->ld, &read, &scale, NULL, 0, GMAI_FULL);
        else
            memset(o, 0, (size_t)p->ld * sizeof(float));
        const int from = keys->decay.on ? keys->decay.first[i] : 0;
        const gmai_term own = {w->pt + (ptrdiff_t)from * C + i, 1, C, keys->v + (ptrdiff_t)from * p->ld, p->ld,
                               i + 1 - from};
        c->kern->product(1, nvec, o, p->ld, &own, NULL, NULL, 1, GMAI_FULL);
    }
}

/* O where some v_j is not finite: the rows before it with that part of V as zeros, in the same order of sums as ever, so
 * that they keep their bits; the others exactly. */
static void selecting_product(const gmai_call *c, worker *w, const float *state, int nvec, const gmai_keys *keys)
{
    const gmai_plan *p = c->plan;
    const int bad = keys->first_bad;
    const gmai_term read = {w->queries.phi, 1, C, state, p->ld, p->k};
    const gmai_term own = {w->pt, 1, C, keys->v, p->ld, bad};
    c->kern->product(bad, nvec, w->o, p->ld, &read, keys->decay.on ? keys->decay.read : NULL, &own, 0, GMAI_K_LE_M);
    exact_rows(c, w, bad, state, nvec, keys);
}

/* A query that is not finite and sees nothing gives 0 like any other that sees nothing. */
static void hide_blind(const gmai_call *c, gmai_queries *q, const float *state, const gmai_keys *keys)
{
    const gmai_plan *p = c->plan;
    int memory = 0;
    for (int k = 0; k < p->k && !memory; k++) memory = state[(ptrdiff_t)k * p->ld + p->d] != 0.0f;
    for (int i = 0; i < q->n; i++) {
        int sees = memory && !(keys && keys->decay.on && keys->decay.read[i] == 0.0f);
        for (int j = keys && keys->decay.on ? keys->decay.first[i] : 0; keys && j <= i && !sees; j++)
            sees = keys->keep_byte[j];
        if (!sees) gmai_queries_hide(c, q, i);
    }
}

/* The outputs of one chunk of queries. keys NULL: they see the state only. empty: the state is 0. */
static void read_chunk(const gmai_call *c, worker *w, int64_t row, int64_t hq, int64_t at, int n, const float *state,
                       const gmai_keys *keys, int empty)
{
    const gmai_plan *p = c->plan;
    gmai_queries *q = &w->queries;
    const int decay = keys && keys->decay.on;
    const int nvec = gmai_vectors(c, p->d);
    float den[C] = {0}, inverse[C];
    gmai_queries_load(c, q, row, hq, at, n);
    if (!q->finite) hide_blind(c, q, state, keys);
    empty = empty && keys && q->finite && keys->finite && !keys->decay.resets;
    if (!empty) c->kern->column_sums(q->phi, p->k, q->nvec, state + p->d, p->ld, den);
    if (decay && !empty)
        for (int i = 0; i < n; i++) den[i] = keys->decay.read[i] != 0.0f ? den[i] * keys->decay.read[i] : 0.0f;
    const gmai_term read = {q->phi, 1, C, state, p->ld, p->k};
    if (keys && c->kern->read_chunk && !decay && q->finite && keys->finite) {
        c->kern->read_chunk(n, p->k, p->d, p->ld, q->phi, keys->phi, keys->v, empty ? NULL : state, w->o, den);
    } else if (keys) {
        gmai_intra(c, keys, q, w->pt);
        c->kern->column_sums(w->pt, n, q->nvec, NULL, 0, den);
        const gmai_term own = {w->pt, 1, C, keys->v, p->ld, n};
        if (keys->decay.resets && !gmai_all_finite(state, p->state_floats))
            exact_rows(c, w, 0, state, nvec, keys);
        else if (empty)
            c->kern->product(n, nvec, w->o, p->ld, &own, NULL, NULL, 0, GMAI_K_LE_M);
        else if (keys->first_bad < n)
            selecting_product(c, w, state, nvec, keys);
        else
            c->kern->product(n, nvec, w->o, p->ld, &read, decay ? keys->decay.read : NULL, &own, 0, GMAI_K_LE_M);
    } else {
        c->kern->product(n, nvec, w->o, p->ld, &read, NULL, NULL, 0, GMAI_FULL);
    }
    for (int i = 0; i < n; i++) {
        den[i] += q->eps[i];
        inverse[i] = 1.0f / den[i];
    }
    if (c->saved_den) memcpy(c->saved_den + (row * p->hq + hq) * p->nq + at, den, (size_t)n * sizeof(float));
    const gmai_rows dst = gmai_rows_at(&c->a->t[GMA_O], row, hq, at);
    c->kern->unpack(w->o, p->ld, n, p->d, inverse, &dst);
}

void gmai_write_chunk(const gmai_call *c, const gmai_keys *k, gmai_levels *l)
{
    const gmai_plan *p = c->plan;
    const float factor = gmai_decay_factor(k->decay.total);
    if (c->kern->write_chunk && p->d > 0 && !k->decay.on && k->finite) {
        c->kern->write_chunk(k->n, p->k, p->d, p->ld, k->phi, k->v, l->local);
        return;
    }
    if (factor != 1.0f) c->kern->combine(l->local, factor, NULL, l->local, p->state_floats);
    /* What the chunk itself has forgotten is left out, not multiplied by 0: it may not be finite. */
    const int from = k->decay.resets ? k->decay.first[k->n - 1] : 0;
    const gmai_term t = {k->phi + from, C, 1, k->vw + (ptrdiff_t)from * p->ld, p->ld, k->n - from};
    c->kern->product(p->k, gmai_vectors(c, p->d), l->local, p->ld, &t, NULL, NULL, 1, GMAI_FULL);
    if (from == 0) {
        c->kern->row_sums(k->phi, p->k, k->nvec, k->decay.on ? k->decay.write : NULL, l->local + p->d, p->ld);
    } else {
        for (int i = 0; i < p->k; i++)
            for (int j = from; j < k->n; j++)
                l->local[(ptrdiff_t)i * p->ld + p->d] += k->phi[(ptrdiff_t)i * C + j] * k->decay.write[j];
    }
    l->segment_decay = gmai_decay_join(l->segment_decay, k->decay.total);
}

/* Nobody asks for the state after segment `number`. (Where a call is short, what its first and last chunk leave out counts.) */
static int ends_unseen(const gmai_call *c, const gmai_sequence *s, int64_t number)
{
    return number == s->segments - 1 && !gmai_present(&c->a->t[GMA_OUT_S]) && !gmai_present(&c->a->t[GMA_OUT_Z]);
}

/* Segments [begin, end) of a sequence: states, and outputs where `outputs` is set. */
static void scan(const gmai_call *c, worker *w, const gmai_sequence *s, int64_t h, int64_t begin, int64_t end,
                 int outputs)
{
    const gmai_plan *p = c->plan;
    gmai_levels *l = &w->levels;
    gmai_levels_start_group(c, l);
    for (int64_t i = begin; i < end; i++) {
        const gmai_segment g = gmai_plan_segment(p, s, i);
        const int unseen = outputs && ends_unseen(c, s, i);
        if (g.kind == GMAI_SEG_QUERIES && !outputs) continue;
        gmai_levels_start_segment(c, l);
        const int64_t slot = outputs && c->saved_state ? gmai_saved_slot(p, s, i) : -1;
        if (slot >= 0 && (p->causal || i == s->head_segments))
            memcpy(c->saved_state + (size_t)(slot * p->h + h) * p->state_floats, l->segment,
                   p->state_floats * sizeof(float));
        for (int64_t t = 0; t < g.n; t += C) {
            const int n = (int)(g.n - t < C ? g.n - t : C);
            const float *state = l->segment;
            if (g.kind != GMAI_SEG_QUERIES) {
                gmai_keys_load(c, &w->keys, s->row, h, g.k + t, n, w->keys.phi, 1);
                if (outputs && g.kind == GMAI_SEG_BOTH) state = gmai_levels_join(c, l, t == 0);
            }
            if (outputs && g.kind != GMAI_SEG_KEYS)
                for (int64_t j = 0; j < p->group_heads; j++)
                    read_chunk(c, w, s->row, h * p->group_heads + j, g.q + t, n, state,
                               g.kind == GMAI_SEG_BOTH ? &w->keys : NULL, l->empty && t == 0);
            if (g.kind != GMAI_SEG_QUERIES && !(unseen && t + C >= g.n)) gmai_write_chunk(c, &w->keys, l);
        }
        if (g.kind != GMAI_SEG_QUERIES && !unseen) gmai_levels_end_segment(c, l);
    }
}

static void sequence_links(const gmai_call *c, char *work, const gmai_links *k)
{
    const gmai_plan *p = c->plan;
    const gmai_sequence *s = &c->seq[k->chain / p->h];
    const int64_t h = k->chain % p->h;
    worker w;
    gmai_bump b = {work, 0};
    worker_take(p, &b, &w);
    if (k->carry) {
        w.levels.base = k->carry;
        w.levels.base_lo = k->carry_lo;
    }
    if (k->begin == 0) {
        gmai_begin_head(c, h);
        gmai_levels_import(c, &c->a->t[GMA_STATE_S], &c->a->t[GMA_STATE_Z], s - c->seq, h, &w.levels);
    }
    for (int64_t g = k->begin; g < k->end; g++) {
        int64_t begin, end;
        gmai_plan_group(s, g, &begin, &end);
        scan(c, &w, s, h, begin, end, 1);
        if (!ends_unseen(c, s, end - 1)) gmai_levels_end_group(c, &w.levels);
    }
    if (k->end < s->groups) return;
    gmai_levels_export(c, &w.levels, s - c->seq, h, &c->a->t[GMA_OUT_S], &c->a->t[GMA_OUT_Z]);
    gmai_end_head(c, h);
}

/* ---- three phases, where there are more threads than heads ------------------------------------------------ */

static void phase_mids(const gmai_call *c, char *work, int64_t unit)
{
    const gmai_plan *p = c->plan;
    gmai_group_at at = gmai_group_of(c, unit);
    worker w;
    gmai_bump b = {work, 0};
    worker_take(p, &b, &w);
    scan(c, &w, at.s, at.h, at.begin, at.end, 0);
    gmai_group_store(c, &at, w.levels.mid, w.levels.mid_lo, w.levels.mid_decay);
}

/* In place: every group's mid becomes its base. */
static void phase_prefix(const gmai_call *c, char *work, int64_t unit)
{
    const gmai_plan *p = c->plan;
    const gmai_sequence *s = &c->seq[unit / p->h];
    const int64_t h = unit % p->h;
    worker w;
    gmai_bump b = {work, 0};
    worker_take(p, &b, &w);
    gmai_levels *l = &w.levels;
    gmai_levels_import(c, &c->a->t[GMA_STATE_S], &c->a->t[GMA_STATE_Z], s - c->seq, h, l);
    gmai_levels_settle(c, l);
    for (int64_t g = 0; g < s->groups; g++) gmai_group_exchange(c, s, h, g, l);
    gmai_levels_export(c, l, s - c->seq, h, &c->a->t[GMA_OUT_S], &c->a->t[GMA_OUT_Z]);
}

static void phase_outputs(const gmai_call *c, char *work, int64_t unit)
{
    const gmai_plan *p = c->plan;
    gmai_group_at at = gmai_group_of(c, unit);
    worker w;
    gmai_bump b = {work, 0};
    worker_take(p, &b, &w);
    gmai_group_load(c, &at, w.levels.base, w.levels.base_lo);
    /* Keys behind the last query of the group were dealt with in the first phase. */
    const int want_all = c->saved_state && gmai_present(&c->a->t[GMA_LOG_DECAY]);
    while (at.end > at.begin && !want_all &&
           gmai_plan_segment(p, at.s, at.end - 1).kind == GMAI_SEG_KEYS)
        at.end--;
    scan(c, &w, at.s, at.h, at.begin, at.end, 1);
}

void gmai_engine_forward(const gmai_call *c)
{
    const int64_t units = c->plan->sequences * c->plan->h;
    if (gmai_serial(c)) {
        gmai_chains(c, sequence_links);
        return;
    }
    gmai_parallel(c, gmai_group_count(c) * c->plan->h, phase_mids);
    gmai_parallel(c, units, phase_prefix);
    gmai_parallel(c, gmai_group_count(c) * c->plan->h, phase_outputs);
}
