/* The backward scan: groups, segments and chunks in reverse, without stored phi; formulas in backward.h, chunks in
 * backward_chunk.c. Per segment: first the states at the starts of its chunks (phi_k is kept for the segment), then its
 * chunks backwards. */
#include <string.h>

#include "core/tensor.h"
#include "engine/backward.h"
#include "engine/parallel.h"

/* The states at the starts of the segment's chunks, and phi_k of each. */
static void replay(const gmai_call *c, gmai_backward *w, const gmai_sequence *s, const gmai_segment *g, int64_t slot,
                   int64_t h)
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

static void segment_backward(const gmai_call *c, gmai_backward *w, const gmai_sequence *s, int64_t number, int64_t h,
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
            gmai_from_later(c, w, n, phi_k, u, w->grad.empty && i == chunks - 1);
            gmai_shrink(c, w, w->keys.decay.total);
        }
        if (g->kind != GMAI_SEG_KEYS)
            for (int64_t j = 0; j < p->group_heads; j++)
                gmai_query_backward(c, w, g, t, n, s->row, h * p->group_heads + j, phi_k, state,
                               g->kind == GMAI_SEG_BOTH && gmai_starts_empty(c, number, t), dot_q, sums);
        if (g->kind != GMAI_SEG_QUERIES) {
            gmai_keys_backward(c, w, s->row, h, g->k + t, n, phi_k, sums, dot_k);
            gmai_decay_gradient(c, w, s->row, h, g->k + t, n, dot_q, dot_k, state + p->state_floats, u);
        }
    }
}

/* Only U of the segment, for the first phase. */
static void segment_gradient_only(const gmai_call *c, gmai_backward *w, const gmai_sequence *s, const gmai_segment *g,
                                  int64_t h)
{
    const gmai_plan *p = c->plan;
    for (int64_t t = (g->n - 1) / C * C; t >= 0; t -= C) {
        const int n = (int)(g->n - t < C ? g->n - t : C);
        const gmai_chunk_decay *decay = NULL;
        if (g->kind != GMAI_SEG_QUERIES) {
            gmai_keys_load(c, &w->keys, s->row, h, g->k + t, n, NULL, 0);
            gmai_shrink(c, w, w->keys.decay.total);
            decay = &w->keys.decay;
        }
        for (int64_t j = 0; j < p->group_heads && g->kind != GMAI_SEG_KEYS; j++) {
            const int64_t hq = h * p->group_heads + j;
            gmai_queries_load(c, &w->queries, s->row, hq, g->q + t, n);
            (void)gmai_output_gradient(c, w, s->row, hq, g->q + t, n, decay);
            gmai_grow_state_gradient(c, w, n, decay);
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

static void scan(const gmai_call *c, gmai_backward *w, const gmai_sequence *s, int64_t h, int64_t group, int whole)
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
        if (i > 0 || !whole || gmai_wants_state_gradient(c)) gmai_levels_end_segment(c, &w->grad);
    }
    if (aside) c->kern->axpy(1.0f, sums, bin, c->sums_floats);
}

static void prepare(const gmai_call *c, char *work, gmai_backward *w)
{
    gmai_bump b = {work, 0};
    gmai_backward_take(c->plan, c->sums_floats, &b, w);
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
    gmai_backward w;
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
        if (i < s->groups - 1 || gmai_wants_state_gradient(c)) gmai_levels_end_group(c, &w.grad);
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
    gmai_backward w;
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
    gmai_backward w;
    prepare(c, work, &w);
    import_gradient(c, s, h, &w.grad);
    gmai_levels_settle(c, &w.grad);
    for (int64_t g = s->groups - 1; g >= 0; g--) gmai_group_exchange(c, s, h, g, &w.grad);
    export_gradient(c, s, h, &w.grad);
}

static void phase_gradients(const gmai_call *c, char *work, int64_t unit)
{
    gmai_group_at at = gmai_group_of(c, unit);
    gmai_backward w;
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
