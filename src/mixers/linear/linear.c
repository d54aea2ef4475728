/* Linear Transformer (Katharopoulos et al. 2020): phi(x) = elu(x) + 1, one feature an input, no parameters. */
#include <string.h>

#include "mixers/linear_attention.h"
#include "mixers/linear/naive.h"
#include "mixers/mixers.h"

static const gma_slot_info slots[] = {
    GMAI_LA_SLOTS_TOKENS,
    GMAI_LA_SLOTS_OPTIONS("R"),
    GMAI_LA_SLOTS_OUTPUTS("R"),
};

enum { FETCH_ROWS = 4 }; /* features between two lots of prefetches */

static int map_phi(const void *head, const gmai_kernels *kern, float *columns, int nvec, float *phi,
                   const gmai_ahead *ahead)
{
    const int features = *(const int *)head;
    for (int i = 0; i < features; i += FETCH_ROWS) {
        gmai_fetch_ahead(ahead, i / FETCH_ROWS, (features + FETCH_ROWS - 1) / FETCH_ROWS);
        const int rows = features - i < FETCH_ROWS ? features - i : FETCH_ROWS;
        kern->elu_features(columns + (ptrdiff_t)i * GMAI_CHUNK, rows, nvec, phi + (ptrdiff_t)i * GMAI_CHUNK);
    }
    return 1; /* x + 1 of a finite x is finite */
}

static void map_backward(const void *head, const gmai_kernels *kern, const float *rows, const float *phi, float *dphi,
                         int n, int nvec, float *dx, float *sums, float *dot)
{
    const int features = *(const int *)head, rp = (int)gmai_pad(features);
    (void)rows;
    (void)sums;
    (void)n;
    kern->elu_backward(phi, dphi, features, nvec, dot);
    /* Feature rows up to a whole vector: what lies behind the last goes into the padding of dx. */
    kern->transpose(dphi, GMAI_CHUNK, (features + kern->lanes - 1) / kern->lanes * kern->lanes, nvec * kern->lanes, dx,
                    rp);
}

static const gmai_map map = {.phi = map_phi, .backward = map_backward};

static size_t head_size(const gma_mixer_desc *d)
{
    (void)d;
    return sizeof(int);
}

static void prepare(const gma_mixer *m, const gmai_args *a, int64_t h, void *head)
{
    (void)a;
    (void)h;
    *(int *)head = (int)m->d.routing_dim;
}

static void step_phi(const gma_mixer *m, const float *step, float *x, int keys, int n, float *phi, float *eps)
{
    const int64_t r = m->d.routing_dim, rp = gmai_pad(r);
    (void)step;
    (void)keys;
    (void)eps;
    for (int i = 0; i < n; i++, x += rp, phi += rp) {
        m->kern->elu_features(x, 1, (int)rp / m->kern->lanes, phi);
        memset(phi + r, 0, (size_t)(rp - r) * sizeof(float));
    }
}

static const gmai_linear_attention family = {
    .map = &map,
    .head_size = head_size,
    .prepare = prepare,
    .one_head = 1,
    .step_phi = step_phi,
};

static gma_status check(gma_mixer_desc *d)
{
    if (d->routing_dim < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "routing_dim is %lld; it must be >= 1", (long long)d->routing_dim);
    if (d->components != 0 && d->components != d->routing_dim)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "components is %lld; mixer 'linear' has one feature an input: 0, or routing_dim = %lld",
                        (long long)d->components, (long long)d->routing_dim);
    d->components = d->routing_dim;
    return GMA_OK;
}

const gmai_mixer_ops gmai_mixer_linear = {
    .kind = GMA_MIXER_LINEAR,
    .name = "linear",
    .slots = slots,
    .slot_count = (int)(sizeof slots / sizeof slots[0]),
    .check = check,
    .linear_attention = &family,
    GMAI_LA_CALLS,
    .naive_forward = gmai_linear_naive_forward,
    .naive_backward = gmai_linear_naive_backward,
};
