/* The calls of every linear mixer: its feature map and the engine put together. See linear_attention.h. */
#include "mixers/linear_attention.h"

#include <string.h>

#include "core/cpu.h"

/* The scratch of a call, in the order it is laid out. */
typedef struct layout {
    gmai_sequence *seq;
    char *heads, *shared, *work;
    float *sums;
    size_t work_size, head_size, sums_floats;
    int64_t bins;
} layout;

static size_t head_size(const gma_mixer *m)
{
    const gmai_linear_attention *la = m->ops->linear_attention;
    return la->head_size ? la->head_size(&m->d) : 0;
}

static void take_layout(const gma_mixer *m, const gmai_plan *p, gmai_bump *b, int threads, int backward, layout *l)
{
    const gmai_linear_attention *la = m->ops->linear_attention;
    l->head_size = head_size(m);
    l->sums_floats = la->sums_floats ? la->sums_floats(&m->d) : 0;
    l->seq = gmai_take(b, (size_t)p->sequences * sizeof(gmai_sequence));
    l->heads = gmai_take(b, (la->one_head ? 1 : (size_t)p->h) * l->head_size);
    l->shared = gmai_take(b, gmai_engine_shared(p, threads));
    l->bins = gmai_plan_bins(p, threads);
    l->sums = backward ? gmai_take_floats(b, (size_t)(p->h * l->bins) * l->sums_floats) : NULL;
    l->work_size = backward ? gmai_backward_work(p, l->sums_floats) : gmai_forward_work(p);
    l->work = gmai_take(b, (size_t)threads * l->work_size);
}

gma_status gmai_la_sizes(const gma_mixer *m, int threads, gma_mixer_size *size)
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
    size->state = gmai_la_state_size(m);
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
    return m->ops->linear_attention->check ? m->ops->linear_attention->check(m, a) : GMA_OK;
}

int gmai_la_in_bf16(const gma_mixer *m, const gmai_args *a)
{
    return m->ops->linear_attention->bf16_products && m->kern->bf16_forward && a->t[GMA_Q].dtype == GMA_BF16 &&
           a->t[GMA_K].dtype == GMA_BF16 && a->t[GMA_V].dtype == GMA_BF16;
}

/* ---- before and after the engine: by head ------------------------------------------------------------------ */

static void begin_head(const gmai_call *c, int64_t h)
{
    const gma_mixer *m = c->owner;
    const gmai_linear_attention *la = m->ops->linear_attention;
    const size_t sums = (size_t)c->bins * c->sums_floats;
    if (la->prepare && !la->one_head) la->prepare(m, c->a, h, c->heads + (size_t)h * c->head_size);
    if (c->sums && sums) memset(c->sums + (size_t)h * sums, 0, sums * sizeof(float));
}

static void end_head(const gmai_call *c, int64_t h)
{
    const gma_mixer *m = c->owner;
    if (c->sums && c->sums_floats)
        m->ops->linear_attention->finish(c->heads + (size_t)h * c->head_size, gmai_engine_sums(c, h), h, c->a);
}

static void each_head(const gmai_call *c, void (*f)(const gmai_call *c, int64_t h))
{
    const int threads = c->plan->h < c->threads ? (int)c->plan->h : c->threads;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) if (threads > 1)
#endif
    for (int64_t h = 0; h < c->plan->h; h++) f(c, h);
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
    if (gmai_la_in_bf16(m, a)) c->kern = backward ? m->kern->bf16_backward : m->kern->bf16_forward;
    c->map = m->ops->linear_attention->map;
    c->heads = l.heads;
    c->head_size = m->ops->linear_attention->one_head ? 0 : l.head_size;
    c->a = a;
    c->seq = l.seq;
    c->threads = threads;
    c->serial = gmai_plan_serial(p, threads);
    c->bins = l.bins;
    c->sums = l.sums;
    c->sums_floats = l.sums_floats;
    c->shared = l.shared;
    c->work = l.work;
    c->work_size = l.work_size;
    if (x->saved) gmai_saved_split(p, x->saved, &c->saved_state, &c->saved_den);
    c->owner = m;
    c->flags = c->kern->flush_on();
    c->kern->flush_restore(c->flags);
    if (m->ops->linear_attention->one_head && m->ops->linear_attention->prepare)
        m->ops->linear_attention->prepare(m, a, 0, l.heads);
    return GMA_OK;
}

/* f, the engine's, with begin_head and end_head around it: by the thread that has the head, or in regions of their own. */
static void run(gmai_call *c, void (*engine)(const gmai_call *c))
{
    if (gmai_per_head(c)) {
        c->begin = begin_head;
        c->end = end_head;
        engine(c);
        return;
    }
    each_head(c, begin_head);
    engine(c);
    if (c->sums_floats && c->sums) each_head(c, end_head);
}

gma_status gmai_la_forward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_plan p;
    gmai_call c;
    const gma_status s = start(m, a, x, 0, &p, &c);
    if (s == GMA_OK) run(&c, gmai_engine_forward);
    return s;
}

gma_status gmai_la_backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_plan p;
    gmai_call c;
    const gma_status s = start(m, a, x, 1, &p, &c);
    if (s == GMA_OK) run(&c, gmai_engine_backward);
    return s;
}
