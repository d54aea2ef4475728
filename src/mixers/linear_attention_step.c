/* Decoding. Per (b, key head) the state holds S and Z as
 *
 *   e^decay (hi + lo) + block
 *
 * block: the last tokens, at most FOLD_EVERY of them, summed in plain f32; hi, lo: a pair of floats for all before.
 * A token reads hi, and reads and writes block: with 64 tokens in it a block is off by 32 x 2^-24 = 2e-6 of itself at
 * worst, and what it is off by does not grow, because it then goes into the pair, which loses nothing that matters in 10^8
 * steps. decay: the logs since the last fold, in double.
 *
 * The buffer, besides what phi needs of each head (made by the mixer, features as lanes):
 *   [ head 0 ] ... [ unit 0 ] ... [ sums of unit 0: hi S | hi Z | lo S | lo Z | block S | block Z ] ... [ work of unit 0 ] ...
 */
#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "core/tensor.h"
#include "mixers/linear_attention.h"

enum { FOLD_EVERY = 64 };
static const double FOLD_BELOW = -40.0; /* e^-40: what is kept must not get lost among the smallest floats */
static const double RESET_BELOW = -200.0; /* as in the engine: nothing is left of what was before */

/* One (b, key head). */
typedef struct unit {
    double decay;
    int64_t tokens; /* in block */
} unit;

typedef struct step_layout {
    int64_t k, kp, r, rp, d, ld, tokens; /* tokens: the key and its queries */
    float *heads, *sums, *work;
    unit *units;
    size_t head_floats, part, work_floats; /* part: S and Z once */
    void *prepare; /* one head's preparation, used by state_init only */
} step_layout;

static void take(const gma_mixer *m, gmai_bump *b, step_layout *l)
{
    const gma_mixer_desc *d = &m->d;
    const gmai_linear_attention *la = m->ops->linear_attention;
    l->k = d->components;
    l->kp = gmai_pad(d->components);
    l->r = d->routing_dim;
    l->rp = gmai_pad(d->routing_dim);
    l->d = d->value_dim;
    l->ld = gmai_pad(d->value_dim);
    l->tokens = 1 + (d->kv_heads > 0 ? d->heads / d->kv_heads : 0);
    l->head_floats = la->step_floats ? la->step_floats(d) : 0;
    l->part = (size_t)(l->k * l->ld + l->kp);
    l->work_floats = (size_t)(l->tokens * (l->rp + l->kp) + l->kp + 2 * l->ld + gmai_pad(l->tokens));
    const size_t units = (size_t)(d->batch * d->kv_heads);
    l->heads = gmai_take_floats(b, (la->one_head ? 1 : (size_t)d->kv_heads) * l->head_floats);
    l->units = gmai_take(b, units * sizeof(unit));
    l->sums = gmai_take_floats(b, units * 3 * l->part);
    l->work = gmai_take_floats(b, units * l->work_floats);
    l->prepare = gmai_take(b, la->head_size ? la->head_size(d) : 0);
    if (la->one_head) l->head_floats = 0; /* from head to head */
}

size_t gmai_la_state_size(const gma_mixer *m)
{
    gmai_bump b = {NULL, 0};
    step_layout l;
    take(m, &b, &l);
    return b.used;
}

/* F64 is split into the two floats of the sum. */
static void import_value(const gma_tensor *t, int64_t element, float *hi, float *lo)
{
    if (t->dtype == GMA_F64) {
        const double x = ((const double *)t->data)[element];
        *hi = (float)x;
        const double rest = x - (double)*hi;
        *lo = rest - rest == 0.0 ? (float)rest : 0.0f;
    } else {
        *hi = gmai_load_f32(t, element);
        *lo = 0.0f;
    }
}

gma_status gmai_la_state_init(const gma_mixer *m, const gmai_args *a, void *state)
{
    const gma_mixer_desc *d = &m->d;
    const gma_tensor *s = &a->t[GMA_STATE_S], *z = &a->t[GMA_STATE_Z];
    step_layout l;
    gmai_bump b = {state, 0};
    const gmai_linear_attention *la = m->ops->linear_attention;
    const gma_status status = la->check ? la->check(m, a) : GMA_OK;
    if (status != GMA_OK) return status;
    take(m, &b, &l);
    memset(state, 0, b.used);
    for (int64_t h = 0; h < (la->one_head ? 1 : d->kv_heads) && la->step_prepare; h++) {
        la->prepare(m, a, h, l.prepare);
        la->step_prepare(m, l.prepare, l.heads + (size_t)h * l.head_floats);
    }
    for (int64_t bi = 0; bi < d->batch; bi++)
        for (int64_t h = 0; h < d->kv_heads; h++) {
            const int64_t i = bi * d->kv_heads + h;
            float *hi = l.sums + (size_t)i * 3 * l.part, *lo = hi + l.part;
            float *z_hi = hi + l.k * l.ld, *z_lo = lo + l.k * l.ld;
            l.units[i].tokens = i % FOLD_EVERY; /* not all in the same step */
            for (int64_t k = 0; k < l.k; k++) {
                for (int64_t j = 0; j < l.d && gmai_present(s); j++)
                    import_value(s, bi * s->stride[0] + h * s->stride[1] + k * s->stride[2] + j * s->stride[3],
                                 &hi[k * l.ld + j], &lo[k * l.ld + j]);
                if (gmai_present(z))
                    import_value(z, bi * z->stride[0] + h * z->stride[1] + k * z->stride[2], &z_hi[k], &z_lo[k]);
            }
        }
    return GMA_OK;
}

/* A row of the caller, padded with zeros. Its last dimension is contiguous. */
static void load_row(const gma_tensor *t, int64_t at, int64_t n, int64_t padded, float *x)
{
    if (t->dtype == GMA_F32) {
        memcpy(x, (const float *)t->data + at, (size_t)n * sizeof(float));
    } else {
        const uint16_t *p = (const uint16_t *)t->data + at;
        for (int64_t i = 0; i < n; i++) {
            const uint32_t bits = (uint32_t)p[i] << 16;
            memcpy(&x[i], &bits, sizeof bits);
        }
    }
    memset(x + n, 0, (size_t)(padded - n) * sizeof(float));
}

static void store_row(const gma_tensor *t, int64_t at, int64_t n, float scale, const float *x)
{
    if (t->dtype == GMA_F32) {
        float *p = (float *)t->data + at;
        for (int64_t i = 0; i < n; i++) p[i] = x[i] * scale;
    } else {
        for (int64_t i = 0; i < n; i++) gmai_store_f32(t, at + i, x[i] * scale);
    }
}

/* Nothing has been written yet: every query gives 0, one that is not finite too. */
static int is_empty(const gmai_step_sums *s)
{
    for (int k = 0; k < s->k; k++)
        if (s->z_base[k] != 0.0f || s->z_block[k] != 0.0f) return 0;
    return 1;
}

static void fold(const gma_mixer *m, const step_layout *l, unit *u, float *hi)
{
    const double factor = exp(u->decay);
    const float high = (float)factor;
    m->kern->step_fold(hi, hi + l->part, high, (float)(factor - (double)high), hi + 2 * l->part, l->part);
    u->decay = 0.0;
    u->tokens = 0;
}

/* The token's log_decay into the unit; returns the factor of its block. */
static float forget(const step_layout *l, unit *u, float *hi, double log_decay)
{
    if (log_decay < RESET_BELOW) {
        memset(hi, 0, 3 * l->part * sizeof(float));
        u->decay = 0.0;
        return 1.0f;
    }
    u->decay += log_decay;
    return (float)exp(log_decay);
}

static void step_one(const gma_mixer *m, const gmai_args *a, const step_layout *l, int64_t bi, int64_t h)
{
    const gma_mixer_desc *d = &m->d;
    const int64_t number = bi * d->kv_heads + h, group = d->heads / d->kv_heads;
    const gma_tensor *v = &a->t[GMA_V], *o = &a->t[GMA_O], *mask = &a->t[GMA_KEY_MASK], *ld = &a->t[GMA_LOG_DECAY];
    const gma_tensor *kt = &a->t[GMA_K], *qt = &a->t[GMA_Q];
    unit *u = &l->units[number];
    float *hi = l->sums + (size_t)number * 3 * l->part, *block = hi + 2 * l->part;
    float *x = l->work + (size_t)number * l->work_floats, *phi = x + l->tokens * l->rp;
    float *on_base = phi + l->tokens * l->kp, *row = on_base + l->kp, *out = row + l->ld;
    const gmai_step_sums sums = {(int)l->k,         (int)l->kp, (int)l->d, (int)l->ld, hi, hi + l->k * l->ld, block,
                                 block + l->k * l->ld};
    float *eps = out + l->ld, factor = 1.0f;
    if (gmai_present(ld))
        factor = forget(l, u, hi, (double)((const float *)ld->data)[bi * ld->stride[0] + h * ld->stride[1]]);

    /* phi of the key, unless it is masked, and of its queries */
    const int key = !gmai_present(mask) || ((const uint8_t *)mask->data)[bi * mask->stride[0]] != 0;
    if (key) load_row(kt, bi * kt->stride[0] + h * kt->stride[1], l->r, l->rp, x);
    for (int64_t j = 0; j < group; j++) {
        const int64_t at = bi * qt->stride[0] + (h * group + j) * qt->stride[1];
        load_row(qt, at, l->r, l->rp, x + (key + j) * l->rp);
        eps[key + j] = (float)d->eps;
    }
    m->ops->linear_attention->step_phi(m, l->heads + (size_t)h * l->head_floats, x, key, (int)(key + group), phi, eps);
    if (key)
        load_row(v, bi * v->stride[0] + h * v->stride[1], l->d, l->ld, row);
    else
        memset(row, 0, (size_t)l->ld * sizeof(float));

    /* The first query reads while the sums change; where only the decay changes them, the key is 0. */
    const float *g = key ? phi : NULL, *q = phi + key * l->kp;
    if (!key && factor != 1.0f) {
        float *zero = phi + group * l->kp;
        memset(zero, 0, (size_t)l->kp * sizeof(float));
        g = zero;
    }
    const float shrunk = u->decay == 0.0 ? 1.0f : (float)exp(u->decay);
    for (int64_t j = 0; j < group; j++, q += l->kp, g = NULL) {
        const int64_t at = bi * o->stride[0] + (h * group + j) * o->stride[1];
        if (shrunk != 1.0f)
            for (int64_t k = 0; k < l->kp; k++) on_base[k] = shrunk * q[k];
        float den = m->kern->step_sums(&sums, factor, g, row, q, shrunk != 1.0f ? on_base : q, out) + eps[key + j];
        if (den - den != 0.0f && is_empty(&sums)) {
            memset(out, 0, (size_t)l->ld * sizeof(float));
            den = (float)d->eps;
        }
        store_row(o, at, l->d, 1.0f / den, out);
    }
    if (++u->tokens >= FOLD_EVERY || u->decay < FOLD_BELOW) fold(m, l, u, hi);
}

gma_status gmai_la_step(const gma_mixer *m, const gmai_args *a, void *state, int threads)
{
    const gma_mixer_desc *d = &m->d;
    const gma_tensor *ld = &a->t[GMA_LOG_DECAY];
    const int64_t units = d->batch * d->kv_heads;
    step_layout l;
    gmai_bump b = {state, 0};
    take(m, &b, &l);
    for (int64_t i = 0; i < units && gmai_present(ld); i++) {
        const float x = ((const float *)ld->data)[i / d->kv_heads * ld->stride[0] + i % d->kv_heads * ld->stride[1]];
        if (x > 0.0f) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "log_decay is %g; it must be <= 0", (double)x);
    }
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
        for (int64_t i = 0; i < units; i++) step_one(m, a, &l, i / d->kv_heads, i % d->kv_heads);
        m->kern->flush_restore(before);
    }
    return GMA_OK;
}

gma_status gmai_la_state_export(const gma_mixer *m, const void *state, const gmai_args *a)
{
    const gma_mixer_desc *d = &m->d;
    const gma_tensor *s = &a->t[GMA_OUT_S], *z = &a->t[GMA_OUT_Z];
    step_layout l;
    gmai_bump b = {NULL, 0};
    memcpy(&b.base, &state, sizeof state); /* only read through */
    take(m, &b, &l);
    for (int64_t i = 0; i < d->batch * d->kv_heads; i++) {
        const int64_t bi = i / d->kv_heads, h = i % d->kv_heads;
        const float *hi = l.sums + (size_t)i * 3 * l.part, *lo = hi + l.part, *block = lo + l.part;
        const double factor = exp(l.units[i].decay);
        for (int64_t k = 0; k < l.k; k++)
            for (int64_t j = 0; j <= l.d; j++) {
                const int64_t from = j < l.d ? k * l.ld + j : l.k * l.ld + k;
                const double base = (double)hi[from] + (double)lo[from];
                const double x = (factor == 1.0 ? base : factor * base) + (double)block[from];
                const gma_tensor *t = j < l.d ? s : z;
                if (!gmai_present(t)) continue;
                int64_t at = bi * t->stride[0] + h * t->stride[1] + k * t->stride[2];
                if (j < l.d) at += j * t->stride[3];
                if (t->dtype == GMA_F64)
                    ((double *)t->data)[at] = x;
                else
                    gmai_store_f32(t, at, (float)x);
            }
    }
    return GMA_OK;
}
