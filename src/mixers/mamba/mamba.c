/* Mamba's selective scan (Gu & Dao 2023): slots, rules, sizes and forward. README.md has the formulas. */
#include <string.h>

#include "core/cpu.h"
#include "mixers/mamba/mamba.h"
#include "mixers/mixers.h"

#define F32 (1u << GMA_F32)
#define F32_BF16 (1u << GMA_F32 | 1u << GMA_BF16)

static const gma_slot_info slots[] = {
    {GMA_U, "BqE", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_DELTA, "BqE", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_SSM_A, "EK", GMA_ROLE_PARAM, 1, F32, 1},
    {GMA_SSM_B, "BqK", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_SSM_C, "BqK", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_SSM_D, "E", GMA_ROLE_PARAM, 1, F32, 1},
    {GMA_DELTA_BIAS, "E", GMA_ROLE_PARAM, 1, F32, 1},
    {GMA_CU_SEQLENS, "+", GMA_ROLE_INPUT, 0, 1u << GMA_I32 | 1u << GMA_I64, 0},
    {GMA_STATE_H, "SEK", GMA_ROLE_INPUT, 0, F32, 1},
    {GMA_Y, "BqE", GMA_ROLE_OUTPUT, 1, F32_BF16, 1},
    {GMA_OUT_H, "SEK", GMA_ROLE_OUTPUT, 0, F32, 1},
};

static gma_status check(gma_mixer_desc *d)
{
    if (!d->causal)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "causal is 0; mixer 'mamba' is always causal (1)");
    if (d->kv_heads != d->heads)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "kv_heads is %lld; mixer 'mamba' has no grouped heads: 0, or heads = %lld",
                        (long long)d->kv_heads, (long long)d->heads);
    if (d->q_len != d->k_len)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "k_len is %lld; mixer 'mamba' mixes one sequence with itself: q_len = %lld",
                        (long long)d->k_len, (long long)d->q_len);
    if (d->routing_dim != 0 && d->routing_dim != d->value_dim)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "routing_dim is %lld; mixer 'mamba' has none: 0, or value_dim = %lld",
                        (long long)d->routing_dim, (long long)d->value_dim);
    if (d->components < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "components is %lld; it must be >= 1, the states of a channel",
                        (long long)d->components);
    return GMA_OK;
}

/* The scratch of forward. */
typedef struct layout {
    gmai_sequence *seq;
    float *groups;
    char *work;
    size_t work_size;
} layout;

static size_t forward_work(const gmai_mamba_plan *p)
{
    gmai_bump b = {NULL, 0};
    gmai_mamba_chunk c;
    gmai_mamba_chunk_take(p, &b, &c);
    (void)gmai_take_floats(&b, p->state_floats);
    return b.used;
}

static void take(const gmai_mamba_plan *p, gmai_bump *b, int threads, layout *l)
{
    l->seq = gmai_take(b, (size_t)p->tokens.sequences * sizeof(gmai_sequence));
    l->groups = gmai_take_floats(b, (size_t)p->groups * gmai_mamba_group_floats(p));
    l->work_size = forward_work(p);
    l->work = gmai_take(b, (size_t)threads * l->work_size);
}

static gma_status sizes(const gma_mixer *m, int threads, gma_mixer_size *size)
{
    gmai_mamba_plan p;
    layout l;
    gmai_bump forward = {NULL, 0}, backward = {NULL, 0};
    gmai_mamba_plan_make(&m->d, &p);
    take(&p, &forward, threads, &l);
    gmai_mamba_backward_sizes(m, &p, threads, &backward);
    size->forward_scratch = forward.used;
    size->backward_scratch = backward.used;
    size->saved = (size_t)p.tokens.max_segments * (size_t)p.groups * p.state_floats * sizeof(float);
    size->state = gmai_mamba_step_size(m);
    return GMA_OK;
}

typedef struct job {
    const gma_mixer *m;
    const gmai_mamba_plan *p;
    const gmai_args *a;
    const layout *l;
    float *saved;
} job;

/* One group of one sequence, from its first token to its last. */
static void run_unit(const void *self, char *work, int64_t unit)
{
    const job *j = self;
    const gmai_mamba_plan *p = j->p;
    const gmai_kernels *kern = j->m->kern;
    const gmai_sequence *seq = &j->l->seq[unit / p->groups];
    const int64_t g = unit % p->groups;
    gmai_bump b = {work, 0};
    gmai_mamba_chunk c;
    gmai_mamba_chunk_take(p, &b, &c);
    float *h = gmai_take_floats(&b, p->state_floats);
    gmai_mamba_state_import(p, &j->a->t[GMA_STATE_H], unit / p->groups, g, h);
    for (int64_t i = 0; i < seq->segments; i++) {
        const gmai_segment s = gmai_plan_segment(&p->tokens, seq, i);
        const gmai_rows y = gmai_mamba_rows(&j->a->t[GMA_Y], seq->row, s.k, g * W);
        gmai_mamba_chunk_load(j->m, p, j->a, j->l->groups, seq->row, g, s.k, (int)s.n, &c);
        if (i + 1 < seq->segments) {
            const gmai_segment next = gmai_plan_segment(&p->tokens, seq, i + 1);
            gmai_mamba_ahead(p, &j->a->t[GMA_U], seq->row, g, next.k, (int)next.n, &c);
            gmai_mamba_ahead(p, &j->a->t[GMA_DELTA], seq->row, g, next.k, (int)next.n, &c);
            gmai_mamba_ahead(p, &j->a->t[GMA_Y], seq->row, g, next.k, (int)next.n, &c);
        }
        if (j->saved)
            memcpy(j->saved + (size_t)(s.number * p->groups + g) * p->state_floats, h, p->state_floats * sizeof(float));
        kern->scan_forward(&c.scan, h, c.y);
        kern->unpack(c.y, W, (int)s.n, gmai_mamba_width(p, g), NULL, &y);
    }
    gmai_mamba_state_export(p, h, unit / p->groups, g, &j->a->t[GMA_OUT_H]);
}

static gma_status forward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_mamba_plan p;
    layout l;
    gmai_bump b = {x->scratch, 0};
    const int threads = gmai_threads(x->threads);
    gmai_mamba_plan_make(&m->d, &p);
    take(&p, &b, threads, &l);
    const gma_status s = gmai_plan_sequences(&p.tokens, &a->t[GMA_CU_SEQLENS], l.seq);
    if (s != GMA_OK) return s;
    gmai_mamba_prepare(&p, a, l.groups);
    job j = {m, &p, a, &l, x->saved};
    gmai_each(m->kern, threads, p.tokens.sequences * p.groups, l.work, l.work_size, run_unit, &j);
    return GMA_OK;
}

const gmai_mixer_ops gmai_mixer_mamba = {
    .kind = GMA_MIXER_MAMBA,
    .name = "mamba",
    .slots = slots,
    .slot_count = (int)(sizeof slots / sizeof slots[0]),
    .always_causal = 1,
    .check = check,
    .sizes = sizes,
    .forward = forward,
    .backward = gmai_mamba_backward,
    .state_init = gmai_mamba_state_init,
    .step = gmai_mamba_step,
    .state_export = gmai_mamba_step_export,
    .naive_forward = gmai_mamba_naive_forward,
    .naive_backward = gmai_mamba_naive_backward,
};
