/* Decoding: the state holds the keys (turned by their rotary positions) and values that the next token may see. With a
 * window it is a ring of `window` slots, else it has room for cache_len tokens and is then full.
 *
 *   [ head ] [ frequencies ] [ (b, h) 0: keep bytes | keys (slots / 64, R, 64) | values (slots, vp) | work ] ...
 *
 * Keys lie in blocks with slots side by side, values in rows, so that each is one product with the caller's one row. */
#include "mixers/softmax/step.h"

#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "core/tensor.h"
#include "engine/engine.h"

#define C GMAI_CHUNK

typedef struct state_head {
    int64_t tokens; /* seen so far: the position of the next one */
} state_head;

typedef struct layout {
    int64_t slots, padded; /* padded: to whole blocks */
    int64_t r, rp, v, vp, half;
    state_head *head;
    double *frequencies;
    char *units; /* B x H */
    size_t unit_size;
} layout;

typedef struct unit {
    uint8_t *keep; /* 1: the slot holds a key that counts */
    float *keys, *values, *scores, *row, *out;
} unit;

static int64_t slots_of(const gma_mixer_desc *d) { return d->window > 0 ? d->window : d->cache_len; }

static size_t take_unit(const layout *l, gmai_bump *b, unit *u)
{
    u->keep = gmai_take(b, (size_t)l->padded);
    u->keys = gmai_take_floats(b, (size_t)(l->padded * l->r));
    u->values = gmai_take_floats(b, (size_t)(l->padded * l->vp));
    u->scores = gmai_take_floats(b, (size_t)l->padded);
    u->row = gmai_take_floats(b, (size_t)l->rp);
    u->out = gmai_take_floats(b, (size_t)l->vp);
    return b->used;
}

static void take(const gma_mixer *m, gmai_bump *b, layout *l)
{
    const gma_mixer_desc *d = &m->d;
    unit u;
    gmai_bump one = {NULL, 0};
    l->slots = slots_of(d);
    l->padded = (l->slots + C - 1) / C * C;
    l->r = d->routing_dim;
    l->rp = gmai_pad(d->routing_dim);
    l->v = d->value_dim;
    l->vp = gmai_pad(d->value_dim);
    l->half = d->rotary_base != 0.0 ? d->routing_dim / 2 : 0;
    l->head = gmai_take(b, sizeof *l->head);
    l->frequencies = gmai_take(b, (size_t)l->half * sizeof(double));
    l->unit_size = take_unit(l, &one, &u);
    l->units = gmai_take(b, (size_t)(d->batch * d->kv_heads) * l->unit_size);
}

static unit unit_at(const layout *l, int64_t i)
{
    unit u;
    gmai_bump b = {l->units + (size_t)i * l->unit_size, 0};
    (void)take_unit(l, &b, &u);
    return u;
}

size_t gmai_softmax_state_size(const gma_mixer *m)
{
    gmai_bump b = {NULL, 0};
    layout l;
    if (!m->d.causal || slots_of(&m->d) == 0) return 0;
    take(m, &b, &l);
    return b.used;
}

static gma_status check(const gma_mixer *m)
{
    if (slots_of(&m->d) > 0) return GMA_OK;
    return gma_fail(GMA_ERR_UNSUPPORTED, "mixer 'softmax': decoding needs cache_len, the most tokens there will be, or a window; both are 0");
}

/* Row `token` of head h, turned to its position. */
static void load_row(const layout *l, const gma_tensor *t, int64_t b, int64_t h, int64_t token, int64_t position, float *row)
{
    const int64_t at = b * t->stride[0] + h * t->stride[1] + token * t->stride[2];
    for (int64_t r = 0; r < l->r; r++) row[r] = gmai_load_f32(t, at + r * t->stride[3]);
    for (int64_t r = 0; r < l->half; r++) {
        const double angle = (double)position * l->frequencies[r], c = cos(angle), s = sin(angle);
        const double x = (double)row[r], y = (double)row[l->half + r];
        row[r] = (float)(x * c - y * s);
        row[l->half + r] = (float)(y * c + x * s);
    }
}

/* The key and value of row `token` into the slot of their position; a masked one leaves an empty slot. */
static void write_slot(const gma_mixer *m, const gmai_args *a, const layout *l, const unit *u, int64_t b, int64_t h,
                       int64_t token, int64_t position)
{
    const gma_tensor *mask = &a->t[GMA_KEY_MASK], *v = &a->t[GMA_V];
    const int64_t slot = m->d.window > 0 ? position % l->slots : position;
    float *key = u->keys + slot / C * C * l->r + slot % C, *value = u->values + slot * l->vp;
    u->keep[slot] = !gmai_present(mask) ||
                    ((const uint8_t *)mask->data)[b * mask->stride[0] + token * mask->stride[1]] != 0;
    if (u->keep[slot])
        load_row(l, &a->t[GMA_K], b, h, token, position, u->row);
    else
        memset(u->row, 0, (size_t)l->rp * sizeof(float));
    for (int64_t r = 0; r < l->r; r++) key[r * C] = u->row[r];
    const int64_t at = b * v->stride[0] + h * v->stride[1] + token * v->stride[2];
    for (int64_t d = 0; d < l->v; d++) value[d] = u->keep[slot] ? gmai_load_f32(v, at + d * v->stride[3]) : 0.0f;
}

gma_status gmai_softmax_state_init(const gma_mixer *m, const gmai_args *a, void *state)
{
    const gma_mixer_desc *d = &m->d;
    const int filled = gmai_present(&a->t[GMA_K]);
    layout l;
    gmai_bump b = {state, 0};
    const gma_status s = check(m);
    if (s != GMA_OK) return s;
    if (filled != gmai_present(&a->t[GMA_V]))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is missing; k and v go together", filled ? "v" : "k");
    take(m, &b, &l);
    if (filled && d->window == 0 && d->k_len > l.slots)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixer 'softmax': k has %lld tokens; cache_len is %lld",
                        (long long)d->k_len, (long long)l.slots);
    memset(state, 0, b.used);
    for (int64_t r = 0; r < l.half; r++) l.frequencies[r] = pow(d->rotary_base, -2.0 * (double)r / (double)l.r);
    if (!filled) return GMA_OK;
    l.head->tokens = d->k_len;
    for (int64_t i = 0; i < d->batch * d->kv_heads; i++) {
        const unit u = unit_at(&l, i);
        for (int64_t t = d->k_len > l.slots ? d->k_len - l.slots : 0; t < d->k_len; t++)
            write_slot(m, a, &l, &u, i / d->kv_heads, i % d->kv_heads, t, t);
    }
    return GMA_OK;
}

/* Scores of the first `used` slots (whole blocks) against the query in u->row; the rest of them -inf. */
static int score(const gma_mixer *m, const layout *l, const unit *u, int64_t used)
{
    int seen = 0;
    for (int64_t at = 0; at < used; at += C) {
        const gmai_term t = {u->row, 0, 1, u->keys + at * l->r, C, (int)l->r};
        m->kern->product(1, C / m->kern->lanes, u->scores + at, C, &t, NULL, NULL, 0, GMAI_FULL);
    }
    for (int64_t i = 0; i < used; i++) {
        seen |= u->keep[i];
        if (!u->keep[i]) u->scores[i] = -INFINITY;
    }
    return seen;
}

typedef struct step_call {
    const gma_mixer *m;
    const gmai_args *a;
    const layout *l;
} step_call;

static void step_unit(const step_call *c, int64_t i)
{
    const gma_mixer *m = c->m;
    const gma_mixer_desc *d = &m->d;
    const layout *l = c->l;
    const gma_tensor *o = &c->a->t[GMA_O];
    const int64_t b = i / d->kv_heads, h = i % d->kv_heads, group = d->heads / d->kv_heads, position = l->head->tokens;
    const int64_t count = position + 1 < l->slots ? position + 1 : l->slots, used = (count + C - 1) / C * C;
    const unit u = unit_at(l, i);
    write_slot(m, c->a, l, &u, b, h, 0, position);
    for (int64_t g = 0; g < group; g++) {
        const int64_t hq = h * group + g, at = b * o->stride[0] + hq * o->stride[1];
        load_row(l, &c->a->t[GMA_Q], b, hq, 0, position, u.row);
        for (int64_t r = 0; r < l->r; r++) u.row[r] *= (float)d->scale;
        if (score(m, l, &u, used)) {
            m->kern->step_softmax(u.scores, 1, (int)used);
            m->kern->step_read(u.values, u.scores, (int)used, (int)l->vp, u.out);
        } else {
            memset(u.out, 0, (size_t)l->vp * sizeof(float)); /* it sees no key */
        }
        for (int64_t j = 0; j < l->v; j++) gmai_store_f32(o, at + j * o->stride[3], u.out[j]);
    }
}

gma_status gmai_softmax_step(const gma_mixer *m, const gmai_args *a, void *state, int threads)
{
    const gma_mixer_desc *d = &m->d;
    const int64_t units = d->batch * d->kv_heads;
    layout l;
    gmai_bump bump = {state, 0};
    take(m, &bump, &l);
    if (d->window == 0 && l.head->tokens >= l.slots)
        return gma_fail(GMA_ERR_UNSUPPORTED, "mixer 'softmax': the state is full: it has room for cache_len = %lld tokens",
                        (long long)l.slots);
    const step_call c = {m, a, &l};
    const int n = gmai_threads(threads) < units ? gmai_threads(threads) : (int)units;
    (void)n;
#ifdef _OPENMP
#pragma omp parallel num_threads(n) if (n > 1)
#endif
    {
        const unsigned before = m->kern->flush_on();
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
        for (int64_t i = 0; i < units; i++) step_unit(&c, i);
        m->kern->flush_restore(before);
    }
    l.head->tokens++;
    return GMA_OK;
}
