/* Gaussian Mixture Attention: its row in the table of mixers, and its feature map in the family of linear mixers. */
#include <math.h>
#include <string.h>

#include "mixers/gma/mixture.h"
#include "mixers/gma/naive.h"
#include "mixers/linear_attention.h"
#include "mixers/mixers.h"

static const gma_slot_info slots[] = {
    GMAI_LA_SLOTS_TOKENS,
    {GMA_MU, "HKR", GMA_ROLE_PARAM, 1, GMAI_LA_FLOATS, 1},
    {GMA_OMEGA, "HKR", GMA_ROLE_PARAM, 1, GMAI_LA_FLOATS, 1},
    {GMA_ALPHA, "HK", GMA_ROLE_PARAM, 1, GMAI_LA_FLOATS, 1},
    GMAI_LA_SLOTS_OPTIONS("K"),
    {GMA_LOGIT_SCALE, "H", GMA_ROLE_PARAM, 0, GMAI_LA_FLOATS, 1},
    GMAI_LA_SLOTS_OUTPUTS("K"),
};

/* The prepared mixture, and behind it what tiles want of it. */
static size_t head_size(const gma_mixer_desc *d)
{
    const gmai_kernels *kern = gmai_kernels_of(d->isa);
    const size_t tiles = kern->tile_floats ? kern->tile_floats(d->components, d->routing_dim) : 0;
    return gmai_gma_head_size(d->components, d->routing_dim) + (tiles * sizeof(float) + 63) / 64 * 64;
}
static size_t sums_floats(const gma_mixer_desc *d) { return gmai_gma_sums_floats(d->components, d->routing_dim); }

static gma_status check_values(const gma_mixer *m, const gmai_args *a)
{
    return gmai_gma_check_scale(&a->t[GMA_LOGIT_SCALE], m->d.kv_heads);
}

static void prepare(const gma_mixer *m, const gmai_args *a, int64_t h, void *head)
{
    gmai_gma_prepare(m->kern, &a->t[GMA_MU], &a->t[GMA_OMEGA], &a->t[GMA_ALPHA], &a->t[GMA_LOGIT_SCALE], h,
                     m->d.eps_sigma, gmai_present(&a->grad[GMA_OMEGA]), head);
    gmai_gma_head *g = head;
    g->m.tile_rows = NULL;
    if (!m->kern->tile_prepare || !gmai_la_in_bf16(m, a)) return;
    gmai_gma_drop_center(m->kern, g);
    m->kern->tile_prepare(&g->m, (float *)(void *)((char *)head +
                                                   gmai_gma_head_size(m->d.components, m->d.routing_dim)));
}

static void finish(const void *head, const float *sums, int64_t h, const gmai_args *a)
{
    gmai_gma_finish(head, sums, h, &a->grad[GMA_MU], &a->grad[GMA_OMEGA], &a->grad[GMA_ALPHA],
                    &a->grad[GMA_LOGIT_SCALE]);
}

/* ---- decoding: the mixture with components as lanes ------------------------------------------------------- */

enum { STEP_BLOCK = 16 }; /* components side by side, see gmai_kernels.step_logits */

/* center (rp) | konst (kp) | weights (kp / 16, R, 2, 16) */
typedef struct step_head {
    int64_t rp, kp;
    size_t konst, weights, floats; /* offsets */
} step_head;

static step_head step_layout(const gma_mixer_desc *d)
{
    step_head s;
    s.rp = gmai_pad(d->routing_dim);
    s.kp = gmai_pad(d->components);
    s.konst = (size_t)s.rp;
    s.weights = s.konst + (size_t)s.kp;
    s.floats = s.weights + (size_t)(2 * d->routing_dim * s.kp);
    return s;
}

static size_t step_floats(const gma_mixer_desc *d) { return step_layout(d).floats; }

/* Where w of (k, r) lies; mw follows STEP_BLOCK later. */
static size_t weight_at(const step_head *s, int64_t r_count, int64_t k, int64_t r)
{
    return s->weights + (size_t)((k / STEP_BLOCK * r_count + r) * 2 * STEP_BLOCK + k % STEP_BLOCK);
}

static void step_prepare(const gma_mixer *m, const void *head, float *step)
{
    const step_head s = step_layout(&m->d);
    const gmai_gma_head *g = head;
    memcpy(step, g->center, (size_t)s.rp * sizeof(float));
    for (int64_t k = 0; k < s.kp; k++) {
        step[s.konst + (size_t)k] = k < m->d.components ? g->konst[k] : -INFINITY;
        for (int64_t r = 0; r < m->d.routing_dim; r++) {
            const size_t at = weight_at(&s, m->d.routing_dim, k, r);
            step[at] = k < m->d.components ? g->w[k * s.rp + r] : 0.0f;
            step[at + STEP_BLOCK] = k < m->d.components ? g->mw[k * s.rp + r] : 0.0f;
        }
    }
}

/* All logits of a token beyond f32: once more in double (NaN and Inf stay NaN). */
static void phi_in_double(const gma_mixer *m, const float *step, const float *x, float *phi)
{
    const step_head s = step_layout(&m->d);
    const int64_t components = m->d.components, r_count = m->d.routing_dim;
    double top = -INFINITY, sum = 0.0;
    for (int pass = 0; pass < 3; pass++)
        for (int64_t k = 0; k < components; k++) {
            double v = (double)step[s.konst + (size_t)k];
            for (int64_t r = 0; r < r_count; r++) {
                const float *w = step + weight_at(&s, r_count, k, r);
                const double t = (double)x[r] * (double)w[0] - (double)w[STEP_BLOCK];
                v -= t * t;
            }
            if (pass == 0 && v > top) top = v;
            if (pass == 1) sum += exp(v - top);
            if (pass == 2) phi[k] = (float)(exp(v - top) / sum);
        }
    for (int64_t k = components; k < s.kp; k++) phi[k] = 0.0f;
}

static void step_phi(const gma_mixer *m, const float *step, float *x, int keys, int n, float *phi, float *eps)
{
    const step_head s = step_layout(&m->d);
    (void)keys;
    (void)eps;
    for (int i = 0; i < n; i++)
        for (int64_t r = 0; r < m->d.routing_dim; r++) x[i * s.rp + r] -= step[r];
    m->kern->step_logits(x, (int)s.rp, n, (int)m->d.routing_dim, (int)s.kp, step + s.weights, step + s.konst, phi);
    m->kern->step_softmax(phi, n, (int)s.kp);
    for (int i = 0; i < n; i++)
        if (phi[i * s.kp] != phi[i * s.kp]) phi_in_double(m, step, x + i * s.rp, phi + i * s.kp);
}

static const gmai_linear_attention family = {
    .map = &gmai_gma_map,
    .bf16_products = 1,
    .head_size = head_size,
    .prepare = prepare,
    .check = check_values,
    .sums_floats = sums_floats,
    .finish = finish,
    .step_floats = step_floats,
    .step_prepare = step_prepare,
    .step_phi = step_phi,
};

static gma_status check(gma_mixer_desc *d)
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
    .linear_attention = &family,
    GMAI_LA_CALLS,
    .naive_forward = gmai_gma_naive_forward,
    .naive_backward = gmai_gma_naive_backward,
};
