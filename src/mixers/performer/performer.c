/* Performer (Choromanski et al. 2021), FAVOR+ with positive features:
 *
 *   phi(x)_m = exp(w_m . y - |y|^2 / 2) / sqrt(M),  y = x / R^(1/4)
 *            = exp(u_m . x - shift(x)),  u = w R^(-1/4),  shift(x) = |x|^2 / (2 sqrt R) + log(M) / 2
 *
 * Keys are taken literally: their features are summed, so no factor of their own would cancel (README.md says why f32
 * has room for them). A query's features are divided by its largest, and its eps too: that cancels exactly, and only its
 * own values play a part. */
#include <math.h>
#include <string.h>

#include "mixers/linear_attention.h"
#include "mixers/mixers.h"
#include "mixers/performer/naive.h"

static const gma_slot_info slots[] = {
    GMAI_LA_SLOTS_TOKENS,
    {GMA_FEATURES, "MR", GMA_ROLE_PARAM, 1, GMAI_LA_FLOATS, 0},
    GMAI_LA_SLOTS_OPTIONS("M"),
    GMAI_LA_SLOTS_OUTPUTS("M"),
};

/* The features of all heads. */
typedef struct prepared {
    int m, r, rp;
    float half, offset, slope; /* shift(x) = half |x|^2 + offset; slope = 2 half */
    float *u; /* (M, rp) rows */
} prepared;

static void place(gmai_bump *b, int64_t m, int64_t r, prepared *p)
{
    p->u = gmai_take_floats(b, (size_t)m * (size_t)gmai_pad(r));
}

static size_t head_size(const gma_mixer_desc *d)
{
    gmai_bump b = {NULL, 0};
    prepared p;
    (void)gmai_take(&b, sizeof p);
    place(&b, d->components, d->routing_dim, &p);
    return b.used;
}

static void prepare(const gma_mixer *m, const gmai_args *a, int64_t h, void *head)
{
    prepared *p = head;
    const gma_tensor *w = &a->t[GMA_FEATURES];
    const double scale = pow((double)m->d.routing_dim, -0.25);
    gmai_bump b = {head, 0};
    (void)h;
    (void)gmai_take(&b, sizeof *p);
    place(&b, m->d.components, m->d.routing_dim, p);
    p->m = (int)m->d.components;
    p->r = (int)m->d.routing_dim;
    p->rp = (int)gmai_pad(p->r);
    p->slope = (float)(scale * scale);
    p->half = (float)(scale * scale / 2);
    p->offset = (float)(log((double)p->m) / 2);
    memset(p->u, 0, (size_t)p->m * (size_t)p->rp * sizeof(float));
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t r = 0; r < p->r; r++)
            p->u[i * p->rp + r] =
                (float)(scale * (double)((const float *)w->data)[i * w->stride[0] + r * w->stride[1]]);
}

/* ---- feature map ------------------------------------------------------------------------------------ */

enum { FETCH_ROWS = 24 }; /* features between two lots of prefetches: whole blocks of every tier */

static void logits(const prepared *p, const gmai_kernels *kern, const float *columns, int nvec, float *out,
                   float *shift, const gmai_ahead *ahead)
{
    for (int i = 0; i < p->m; i += FETCH_ROWS) {
        gmai_fetch_ahead(ahead, i / FETCH_ROWS, (p->m + FETCH_ROWS - 1) / FETCH_ROWS);
        const int rows = p->m - i < FETCH_ROWS ? p->m - i : FETCH_ROWS;
        const gmai_term t = {p->u + (ptrdiff_t)i * p->rp, p->rp, 1, columns, GMAI_CHUNK, p->r};
        kern->product(rows, nvec, out + (ptrdiff_t)i * GMAI_CHUNK, GMAI_CHUNK, &t, NULL, NULL, 0, GMAI_FULL);
    }
    kern->square_sums(columns, p->r, nvec, p->half, p->offset, shift);
}

static int map_phi(const void *head, const gmai_kernels *kern, float *columns, int nvec, float *phi,
                   const gmai_ahead *ahead)
{
    const prepared *p = head;
    float shift[GMAI_CHUNK];
    logits(p, kern, columns, nvec, phi, shift, ahead);
    return kern->exp_features(phi, p->m, nvec, shift);
}

static void map_phi_query(const void *head, const gmai_kernels *kern, const float *columns, int nvec, double eps,
                          float *phi, float *eps_of, const gmai_ahead *ahead)
{
    const prepared *p = head;
    float shift[GMAI_CHUNK];
    logits(p, kern, columns, nvec, phi, shift, ahead);
    kern->exp_features_scaled(phi, p->m, nvec, shift, (float)log(eps), eps_of);
}

/* dl = phi o dphi; dx = sum_m dl_m u_m - x / sqrt R sum_m dl_m. A query's divisor is no part of it: o does not depend on
 * it, and phi o dphi neither. */
static void map_backward(const void *head, const gmai_kernels *kern, const float *rows, const float *phi, float *dphi,
                         int n, int nvec, float *dx, float *sums, float *dot)
{
    const prepared *p = head;
    const gmai_term t = {dphi, 1, GMAI_CHUNK, p->u, p->rp, p->m};
    (void)sums;
    kern->exp_backward(phi, dphi, p->m, nvec, dot);
    kern->product(n, p->rp / kern->lanes, dx, p->rp, &t, NULL, NULL, 0, GMAI_FULL);
    for (int i = 0; i < n; i++)
        kern->axpy(-p->slope * dot[i], rows + (ptrdiff_t)i * p->rp, dx + (ptrdiff_t)i * p->rp, (size_t)p->rp);
}

static const gmai_map map = {.phi = map_phi, .phi_query = map_phi_query, .backward = map_backward};

/* ---- decoding: the features as lanes ------------------------------------------------------------------- */

/* u^T (R, kp) */
static size_t step_floats(const gma_mixer_desc *d) { return (size_t)(d->routing_dim * gmai_pad(d->components)); }

static void step_prepare(const gma_mixer *m, const void *head, float *step)
{
    const prepared *p = head;
    const int64_t kp = gmai_pad(m->d.components);
    memset(step, 0, step_floats(&m->d) * sizeof(float));
    for (int64_t k = 0; k < p->m; k++)
        for (int64_t r = 0; r < p->r; r++) step[r * kp + k] = p->u[k * p->rp + r];
}

static void phi_of_one(const gma_mixer *m, const float *step, const float *x, float *phi, float *eps)
{
    const int64_t count = m->d.components, kp = gmai_pad(count), r = m->d.routing_dim;
    double norm = 0.0, bad = 0.0;
    for (int64_t i = 0; i < r; i++) {
        norm += (double)x[i] * (double)x[i];
        bad += (double)x[i] - (double)x[i]; /* 0, or NaN */
    }
    const double shift = norm / (2.0 * sqrt((double)r)) + 0.5 * log((double)count) + bad;
    m->kern->step_read(step, x, (int)r, (int)kp, phi);
    if (eps) {
        float top = phi[0];
        for (int64_t k = 1; k < count; k++) top = phi[k] > top ? phi[k] : top;
        m->kern->step_exp(phi, (int)kp, (float)((double)top + bad));
        const double e = exp(log(m->d.eps) + shift - (double)top);
        *eps = e > 1e37 ? 1e37f : e < 1.2e-38 ? 1.2e-38f : (float)e;
    } else {
        m->kern->step_exp(phi, (int)kp, (float)shift);
    }
    memset(phi + count, 0, (size_t)(kp - count) * sizeof(float));
}

static void step_phi(const gma_mixer *m, const float *step, float *x, int keys, int n, float *phi, float *eps)
{
    const int64_t rp = gmai_pad(m->d.routing_dim), kp = gmai_pad(m->d.components);
    for (int i = 0; i < n; i++) phi_of_one(m, step, x + i * rp, phi + i * kp, i < keys ? NULL : &eps[i]);
}

static const gmai_linear_attention family = {
    .map = &map,
    .head_size = head_size,
    .prepare = prepare,
    .one_head = 1,
    .step_floats = step_floats,
    .step_prepare = step_prepare,
    .step_phi = step_phi,
};

static gma_status check(gma_mixer_desc *d)
{
    if (d->routing_dim < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "routing_dim is %lld; it must be >= 1", (long long)d->routing_dim);
    if (d->components < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "components is %lld; it must be >= 1, the number of features",
                        (long long)d->components);
    return GMA_OK;
}

const gmai_mixer_ops gmai_mixer_performer = {
    .kind = GMA_MIXER_PERFORMER,
    .name = "performer",
    .slots = slots,
    .slot_count = (int)(sizeof slots / sizeof slots[0]),
    .check = check,
    .linear_attention = &family,
    GMAI_LA_CALLS,
    .naive_forward = gmai_performer_naive_forward,
    .naive_backward = gmai_performer_naive_backward,
};
