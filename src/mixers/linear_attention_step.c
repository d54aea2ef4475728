/* Decoding: the state buffer holds, per key head, what phi needs (made by the mixer, features as lanes), and per
 * (b, key head) the sums S and Z as pairs of floats (value, what it lost to rounding), so that 10^8 steps lose nothing
 * that matters.
 *
 *   [ head 0 of the mixer ] ... [ (b, h) 0: hi (K, ld) | lo (K, ld) ] ... [ (b, h) 0: work ] ...
 */
#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "core/tensor.h"
#include "mixers/linear_attention.h"

typedef struct step_layout {
    int64_t k, kp, r, rp, d, ld;
    float *heads, *sums, *work;
    size_t head_floats, sum_floats, work_floats;
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
    l->ld = gmai_pad(d->value_dim + 1);
    l->head_floats = la->step_floats ? la->step_floats(d) : 0;
    l->sum_floats = (size_t)(2 * l->k * l->ld);
    l->work_floats = (size_t)(l->rp + l->kp + 2 * l->ld);
    l->heads = gmai_take_floats(b, (la->one_head ? 1 : (size_t)d->kv_heads) * l->head_floats);
    l->sums = gmai_take_floats(b, (size_t)(d->batch * d->kv_heads) * l->sum_floats);
    l->work = gmai_take_floats(b, (size_t)(d->batch * d->kv_heads) * l->work_floats);
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
            float *hi = l.sums + (size_t)(bi * d->kv_heads + h) * l.sum_floats, *lo = hi + l.k * l.ld;
            for (int64_t k = 0; k < l.k; k++) {
                for (int64_t j = 0; j < l.d && gmai_present(s); j++)
                    import_value(s, bi * s->stride[0] + h * s->stride[1] + k * s->stride[2] + j * s->stride[3],
                                 &hi[k * l.ld + j], &lo[k * l.ld + j]);
                if (gmai_present(z))
                    import_value(z, bi * z->stride[0] + h * z->stride[1] + k * z->stride[2], &hi[k * l.ld + l.d],
                                 &lo[k * l.ld + l.d]);
            }
        }
    return GMA_OK;
}

/* phi of one token. */
static void phi_of(const gma_mixer *m, const step_layout *l, const float *head, const gma_tensor *t, int64_t bi,
                   int64_t h, float *x, float *phi, float *eps)
{
    const int64_t at = bi * t->stride[0] + h * t->stride[1];
    for (int64_t r = 0; r < l->r; r++) x[r] = gmai_load_f32(t, at + r * t->stride[3]);
    for (int64_t r = l->r; r < l->rp; r++) x[r] = 0.0f;
    m->ops->linear_attention->step_phi(m, head, x, phi, eps);
}

/* Nothing has been written yet: every query gives 0, one that is not finite too. */
static int is_empty(const step_layout *l, const float *hi)
{
    for (int64_t k = 0; k < l->k; k++)
        if (hi[k * l->ld + l->d] != 0.0f) return 0;
    return 1;
}

static void step_one(const gma_mixer *m, const gmai_args *a, const step_layout *l, int64_t bi, int64_t h)
{
    const gma_mixer_desc *d = &m->d;
    const gmai_kernels *kern = m->kern;
    const int64_t unit = bi * d->kv_heads + h, group = d->heads / d->kv_heads;
    const gma_tensor *v = &a->t[GMA_V], *o = &a->t[GMA_O], *mask = &a->t[GMA_KEY_MASK], *ld = &a->t[GMA_LOG_DECAY];
    const float *head = l->heads + (size_t)h * l->head_floats;
    float *hi = l->sums + (size_t)unit * l->sum_floats, *lo = hi + l->k * l->ld;
    float *x = l->work + (size_t)unit * l->work_floats, *phi = x + l->rp, *row = phi + l->kp,
          *out = row + l->ld;
    float factor = 1.0f;
    if (gmai_present(ld)) {
        const double log_decay = (double)((const float *)ld->data)[bi * ld->stride[0] + h * ld->stride[1]];
        factor = log_decay < -200.0 ? 0.0f : (float)exp(log_decay);
    }
    const int keep = !gmai_present(mask) || ((const uint8_t *)mask->data)[bi * mask->stride[0]] != 0;
    if (keep) {
        phi_of(m, l, head, &a->t[GMA_K], bi, h, x, phi, NULL);
        const int64_t at = bi * v->stride[0] + h * v->stride[1];
        memset(row, 0, (size_t)l->ld * sizeof(float));
        for (int64_t j = 0; j < l->d; j++) row[j] = gmai_load_f32(v, at + j * v->stride[3]);
        row[l->d] = 1.0f; /* Z is the sum of 1 */
        kern->step_update(hi, lo, factor, phi, row, (int)l->k, (int)l->ld);
    } else if (factor != 1.0f) {
        memset(phi, 0, (size_t)l->kp * sizeof(float));
        memset(row, 0, (size_t)l->ld * sizeof(float));
        kern->step_update(hi, lo, factor, phi, row, (int)l->k, (int)l->ld);
    }
    for (int64_t j = 0; j < group; j++) {
        const int64_t hq = h * group + j, at = bi * o->stride[0] + hq * o->stride[1];
        float eps = (float)d->eps;
        phi_of(m, l, head, &a->t[GMA_Q], bi, hq, x, phi, &eps);
        kern->step_read(hi, phi, (int)l->k, (int)l->ld, out);
        float den = out[l->d] + eps;
        if (den - den != 0.0f && is_empty(l, hi)) {
            memset(out, 0, (size_t)l->ld * sizeof(float));
            den = (float)d->eps;
        }
        const float inverse = 1.0f / den;
        for (int64_t i = 0; i < l->d; i++) gmai_store_f32(o, at + i * o->stride[3], out[i] * inverse);
    }
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
    for (int64_t bi = 0; bi < d->batch; bi++)
        for (int64_t h = 0; h < d->kv_heads; h++) {
            const float *hi = l.sums + (size_t)(bi * d->kv_heads + h) * l.sum_floats, *lo = hi + l.k * l.ld;
            for (int64_t k = 0; k < l.k; k++)
                for (int64_t j = 0; j <= l.d; j++) {
                    const double x = (double)hi[k * l.ld + j] + (double)lo[k * l.ld + j];
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
