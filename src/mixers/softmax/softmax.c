/* Softmax attention (Vaswani et al. 2017), tiled with a running softmax (Milakov & Gimelshein 2018, Rabe & Staats 2021,
 * Dao et al. 2022). The maths: README.md. */
#include <limits.h>
#include <math.h>

#include "core/cpu.h"
#include "mixers/mixers.h"
#include "mixers/softmax/naive.h"
#include "mixers/softmax/step.h"
#include "mixers/softmax/stored.h"
#include "mixers/softmax/tiles.h"

#define F32_BF16 (1u << GMA_F32 | 1u << GMA_BF16)

static const gma_slot_info slots[] = {
    {GMA_Q, "BhqR", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_K, "BHkR", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_V, "BHkD", GMA_ROLE_INPUT, 1, F32_BF16, 1},
    {GMA_KEY_MASK, "Bk", GMA_ROLE_INPUT, 0, 1u << GMA_BOOL | 1u << GMA_U8, 0},
    {GMA_CU_SEQLENS, "+", GMA_ROLE_INPUT, 0, 1u << GMA_I32 | 1u << GMA_I64, 0},
    {GMA_O, "BhqD", GMA_ROLE_OUTPUT, 1, F32_BF16, 1},
};

static gma_status wrong(const char *option, const char *why)
{
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixer 'softmax': %s %s", option, why);
}

static gma_status check(gma_mixer_desc *d)
{
    if (d->routing_dim < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "routing_dim is %lld; it must be >= 1", (long long)d->routing_dim);
    if (d->components != 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixer 'softmax': components is %lld; it has none (0)",
                        (long long)d->components);
    if (d->window > 0 && !d->causal) return wrong("window", "needs causal");
    if (d->window > 0 && d->cache_len > 0)
        return wrong("cache_len", "is for decoding without a window; with one the state holds `window` tokens");
    if (d->cache_len > 0 && !d->causal) return wrong("cache_len", "needs causal");
    if (d->window > INT_MAX / 2 || d->cache_len > INT_MAX / 2)
        return wrong(d->window > 0 ? "window" : "cache_len", "is too large; it must be below 2^30");
    if (d->rotary_base != 0.0) {
        if (d->routing_dim % 2)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                            "mixer 'softmax': rotary_base needs an even routing_dim; it is %lld", (long long)d->routing_dim);
        if (d->rotary_base <= 1.0) return wrong("rotary_base", "must be > 1");
        if (!d->causal && d->q_len != d->k_len) return wrong("rotary_base", "needs q_len = k_len, or causal");
    }
    if (d->store_scores != 0) {
        if (d->store_scores != 1) return wrong("store_scores", "must be 0 or 1");
        if (d->window > 0 || d->rotary_base != 0.0 || d->segments >= 0 || d->heads != d->kv_heads)
            return wrong("store_scores", "goes with neither window, rotary_base, segments nor kv_heads");
        if ((double)d->batch * (double)d->heads * (double)(d->q_len + GMAI_CHUNK) * (double)d->k_len > 0x1p40 ||
            d->k_len > INT_MAX / GMAI_CHUNK)
            return wrong("store_scores", "would need more than 2^40 scores");
    }
    if (d->scale == 0.0) d->scale = 1.0 / sqrt((double)d->routing_dim);
    return GMA_OK;
}

/* Scratch: what the threads share, the weights of store_scores, the work of each thread. */
static void take_scratch(const gma_mixer *m, gmai_bump *b, int threads, int backward, gmai_tiles *c)
{
    gmai_tiles_take(m, b, c);
    if (m->d.store_scores) {
        float *part = gmai_take_floats(b, gmai_stored_floats(&m->d));
        if (backward)
            c->weight_gradients = part;
        else
            c->weights = part;
        c->work_size = gmai_stored_work(c);
    } else {
        c->work_size = backward ? gmai_softmax_backward_work(c) : gmai_softmax_forward_work(c);
    }
    c->work = gmai_take(b, (size_t)threads * c->work_size);
}

static gma_status sizes(const gma_mixer *m, int threads, gma_mixer_size *size)
{
    const gma_mixer_desc *d = &m->d;
    gmai_tiles c;
    gmai_bump forward = {NULL, 0}, backward = {NULL, 0}, saved = {NULL, 0};
    take_scratch(m, &forward, threads, 0, &c);
    take_scratch(m, &backward, threads, 1, &c);
    (void)gmai_take_floats(&saved,
                           d->store_scores ? gmai_stored_floats(d) : (size_t)(d->batch * d->heads * d->q_len));
    size->forward_scratch = forward.used;
    size->backward_scratch = backward.used;
    size->saved = saved.used;
    size->state = gmai_softmax_state_size(m);
    return GMA_OK;
}

static gma_status start(const gma_mixer *m, const gmai_args *a, const gma_exec *x, int backward, gmai_tiles *c)
{
    gmai_bump b = {x->scratch, 0};
    if (m->d.store_scores && gmai_present(&a->t[GMA_KEY_MASK])) return wrong("store_scores", "takes no key_mask");
    take_scratch(m, &b, gmai_threads(x->threads), backward, c);
    if (m->d.store_scores && x->saved) c->weights = x->saved;
    if (!m->d.store_scores) c->lse = x->saved;
    return gmai_tiles_start(m, a, x->threads, c);
}

static gma_status forward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_tiles c;
    const gma_status s = start(m, a, x, 0, &c);
    if (s != GMA_OK) return s;
    if (m->d.store_scores)
        gmai_stored_forward(&c);
    else
        gmai_softmax_forward(&c);
    return GMA_OK;
}

static gma_status backward(const gma_mixer *m, const gmai_args *a, const gma_exec *x)
{
    gmai_tiles c;
    const gma_status s = start(m, a, x, 1, &c);
    if (s != GMA_OK) return s;
    if (m->d.store_scores)
        gmai_stored_backward(&c);
    else
        gmai_softmax_backward(&c);
    return GMA_OK;
}

const gmai_mixer_ops gmai_mixer_softmax = {
    .kind = GMA_MIXER_SOFTMAX,
    .name = "softmax",
    .slots = slots,
    .slot_count = (int)(sizeof slots / sizeof slots[0]),
    .options = GMAI_HAS_SCALE | GMAI_HAS_ROTARY | GMAI_HAS_WINDOW | GMAI_HAS_CACHE | GMAI_HAS_STORE_SCORES,
    .keys_fill_state = 1,
    .check = check,
    .sizes = sizes,
    .forward = forward,
    .backward = backward,
    .state_init = gmai_softmax_state_init,
    .step = gmai_softmax_step,
    .naive_forward = gmai_softmax_naive_forward,
    .naive_backward = gmai_softmax_naive_backward,
};
