/* Gaussian Mixture Attention: its row in the table of mixers, and the calls that put mixture and engine together. */
#include <string.h>

#include "core/cpu.h"
#include "mixers/gma/mixture.h"
#include "mixers/gma/naive.h"
#include "mixers/gma/step.h"
#include "mixers/mixers.h"

#define FLOATS (1u << GMA_F32)
#define FLOAT_BF16 (1u << GMA_F32 | 1u << GMA_BF16)

static const gma_slot_info slots[] = {
    {GMA_Q, "BhqR", GMA_ROLE_INPUT, 1, FLOAT_BF16, 1},
    {GMA_K, "BHkR", GMA_ROLE_INPUT, 1, FLOAT_BF16, 1},
    {GMA_V, "BHkD", GMA_ROLE_INPUT, 1, FLOAT_BF16, 1},
    {GMA_MU, "HKR", GMA_ROLE_PARAM, 1, FLOATS, 1},
    {GMA_OMEGA, "HKR", GMA_ROLE_PARAM, 1, FLOATS, 1},
    {GMA_ALPHA, "HK", GMA_ROLE_PARAM, 1, FLOATS, 1},
    {GMA_KEY_MASK, "Bk", GMA_ROLE_INPUT, 0, 1u << GMA_BOOL | 1u << GMA_U8, 0},
    {GMA_CU_SEQLENS, "+", GMA_ROLE_INPUT, 0, 1u << GMA_I32 | 1u << GMA_I64, 0},
    {GMA_STATE_S, "SHKD", GMA_ROLE_INPUT, 0, FLOATS, 1},
    {GMA_STATE_Z, "SHK", GMA_ROLE_INPUT, 0, FLOATS, 1},
    {GMA_LOG_DECAY, "BHk", GMA_ROLE_INPUT, 0, FLOATS, 1},
    {GMA_LOGIT_SCALE, "H", GMA_ROLE_PARAM, 0, FLOATS, 1},
    {GMA_O, "BhqD", GMA_ROLE_OUTPUT, 1, FLOAT_BF16, 1},
    {GMA_OUT_S, "SHKD", GMA_ROLE_OUTPUT, 0, FLOATS, 1},
    {GMA_OUT_Z, "SHK", GMA_ROLE_OUTPUT, 0, FLOATS, 1},
};

/* The scratch of a call, in the order it is laid out. */
typedef struct layout {
    gmai_sequence *seq;
    char *heads, *shared, *work;
    float *sums;
    size_t work_size, head_size;
} layout;

static void take_layout(const gma_mixer *m, const gmai_plan *p, gmai_bump *b, int threads, int backward, layout *l)
{
    l->head_size = gmai_gma_head_size(p->k, p->r);
    l->seq = gmai_take(b, (size_t)p->sequences * sizeof(gmai_sequence));
    l->heads = gmai_take(b, (size_t)p->h * l->head_size);
    l->shared = gmai_take(b, backward ? gmai_backward_shared(p) : gmai_forward_shared(p));
    l->sums = backward ? gmai_take_floats(b, (size_t)(p->h * p->bins) * gmai_gma_sums_floats(p->k, p->r)) : NULL;
    l->work_size = backward ? gmai_backward_work(p) : gmai_forward_work(p);
    l->work = gmai_take(b, (size_t)threads * l->work_size);
    (void)m;
}

static gma_status sizes(const gma_mixer *m, int threads, gma_mixer_size *size)
{
    gmai_plan p;
    layout l;
    gmai_plan_make(&m->d, &p);
    gmai_bump forward = {NULL, 0}, backward = {NULL, 0};
    take_layout(m, &p, &forward, threads, 0, &l);
    take_layout(m, &p, &backward, threads, 1, &l);
    size->forward_scratch = forward.used;
    size->backward_scratch = backward.used;
    size->saved = gmai_saved_size(&p);
    size->state = gmai_gma_state_size(&m->d);
    return GMA_OK;
}

static gma_status check_values(const gma_mixer *m, const gmai_args *a)
{
    const gma_mixer_desc *d = &m->d;
    const gma_tensor *ld = &a->t[GMA_LOG_DECAY];
    if (gmai_present(ld)) {
        if (!d->causal)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "log_decay needs a causal mixer; this one is bidirectional");
        if (d->q_len > d->k_len)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "log_decay needs Nq <= Nk; Nq is %lld, Nk is %lld",
                            (long long)d->q_len, (long long)d->k_len);
        for (int64_t b = 0; b < d->batch; b++)
            for (int64_t h = 0; h < d->kv_heads; h++)
                for (int64_t n = 0; n < d->k_len; n++) {
                    const float x =
                        ((const float *)ld->data)[b * ld->stride[0] + h * ld->stride[1] + n * ld->stride[2]];
                    if (x > 0.0f)
                        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "log_decay[%lld,%lld,%lld] is %g; it must be <= 0",
                                        (long long)b, (long long)h, (long long)n, (double)x);
                }
    }
    return gmai_gma_check_scale(&a->t[GMA_LOGIT_SCALE], d->kv_heads);
}

static void prepare_heads(gmai_call *c, char *heads, double eps_sigma)
{
    const gmai_args *a = c->a;
    const int64_t n = c->plan->h;
    const int threads = n < c->threads ? (int)n : c->threads;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) if (threads > 1)
#endif
    for (int64_t h = 0; h < n; h++)
        gmai_gma_prepare(c->kern, &a->t[GMA_MU], &a->t[GMA_OMEGA], &a->t[GMA_ALPHA], &a->t[GMA_LOGIT_SCALE], h,
                         eps_sigma, heads + (size_t)h * c->head_size);
}

/* The call, ready for the engine. */
static gma_status start(const gma_mixer *m, const gmai_args *a, const gma_exec *x, int backward, gmai_plan *p,
                        gmai_call *c)
{
    gma_status s = check_values(m, a);
    if (s != GMA_OK) return s;
    gmai_plan_make(&m->d, p);
    const int threads = gmai_threads(x->threads);
    layout l;
    gmai_bump b = {x->scratch, 0};
    take_layout(m, p, &b, threads, backward, &l);
    s = gmai_plan_sequences(p, &a->t[GMA_CU_SEQLENS], l.seq);
    if (s != GMA_OK) return s;
    memset(c, 0, sizeof *c);
    c->plan = p;
    c->kern = m->kern;
    c->map = &gmai_gma_map;
    c->heads = l.heads;
    c->head_size = l.head_size;
    c->a = a;
    c->seq = l.seq;
    c->threads = threads;
    c->sums = l.sums;
    c->sums_floats = gmai_gma_sums_floats(p->k, p->r);
    c->shared = l.shared;
    c->work = l.work;
    c->work_size = l.work_size;
    if (x->saved) gmai_saved_split(p, x->saved, &c->saved_state, &c->saved_den);
    prepare_heads(c, l.heads, m->d.eps_sigma);
    return GMA_OK;
}

static gma_status forward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_plan p;
    gmai_call c;
    const gma_status s = start(m, a, x, 0, &p, &c);
    if (s == GMA_OK) gmai_engine_forward(&c);
    return s;
}

static gma_status backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_plan p;
    gmai_call c;
    const gma_status s = start(m, a, x, 1, &p, &c);
    if (s != GMA_OK) return s;
    memset(c.sums, 0, (size_t)(p.h * p.bins) * c.sums_floats * sizeof(float));
    gmai_engine_backward(&c);
    for (int64_t h = 0; h < p.h; h++) {
        float *sums = c.sums + (size_t)(h * p.bins) * c.sums_floats;
        for (int64_t i = 1; i < p.bins; i++) m->kern->axpy(1.0f, sums + (size_t)i * c.sums_floats, sums, c.sums_floats);
        gmai_gma_finish((const gmai_gma_head *)(const void *)(c.heads + (size_t)h * c.head_size), sums, h,
                        &a->grad[GMA_MU], &a->grad[GMA_OMEGA], &a->grad[GMA_ALPHA], &a->grad[GMA_LOGIT_SCALE]);
    }
    return GMA_OK;
}

static gma_status check(const gma_mixer_desc *d)
{
    if (d->routing_dim < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "routing_dim is %lld; it must be >= 1", (long long)d->routing_dim);
    if (d->components < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "components is %lld; it must be >= 1", (long long)d->components);
    return GMA_OK;
}

const gmai_mixer_ops gmai_mixer_gma = {
    .kind = GMA_MIXER_GMA,
    .name = "gma",
    .slots = slots,
    .slot_count = (int)(sizeof slots / sizeof slots[0]),
    .check = check,
    .sizes = sizes,
    .forward = forward,
    .backward = backward,
    .state_init = gmai_gma_state_init,
    .step = gmai_gma_step,
    .state_export = gmai_gma_state_export,
    .naive_forward = gmai_gma_naive_forward,
    .naive_backward = gmai_gma_naive_backward,
};
