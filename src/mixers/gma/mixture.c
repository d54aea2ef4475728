/* The whitened form:  logit_k = konst_k - sum_r t_kr^2,  t = (x - c) w - (mu - c) w,  w = sqrt(scale / (2 sigma2)),
 * c = the head's mean of mu. It has no x^2 and no difference of large squares, so its error grows with |x - c| / sigma
 * instead of its square; both w and konst carry logit_scale, so nothing downstream knows of it. */
#include "mixers/gma/mixture.h"

#include <math.h>
#include <string.h>

static void place(gmai_bump *b, int64_t k, int64_t r, gmai_gma_head *h)
{
    const size_t k4 = (size_t)(k + 3) / 4 * 4, rp = (size_t)gmai_pad(r);
    h->center = gmai_take_floats(b, rp);
    h->w = gmai_take_floats(b, k4 * rp);
    h->mw = gmai_take_floats(b, k4 * rp);
    h->blocked = gmai_take_floats(b, k4 / 4 * (size_t)r * 8);
    h->konst = gmai_take_floats(b, k4);
    h->dsigma = gmai_take_floats(b, (size_t)k * rp);
    h->log_weight = gmai_take(b, (size_t)k * sizeof(double));
    h->mu_row = gmai_take_floats(b, rp);
    h->omega_row = gmai_take_floats(b, rp);
    h->column_work = gmai_take_floats(b, 3 * rp);
}

size_t gmai_gma_head_size(int64_t k, int64_t r)
{
    gmai_bump b = {NULL, 0};
    gmai_gma_head h;
    (void)gmai_take(&b, sizeof h);
    place(&b, k, r, &h);
    return b.used;
}

static float at(const gma_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return ((const float *)t->data)[i * t->stride[0] + j * t->stride[1] + k * t->stride[2]];
}

static float *row_to_set(const gma_tensor *t, int64_t i, int64_t j)
{
    return (float *)t->data + i * t->stride[0] + j * t->stride[1];
}

/* Row (i, j, :) as floats side by side: the caller's own where it is that and as long as the kernels read, else a copy. */
static const float *row_of(const gma_tensor *t, int64_t i, int64_t j, int64_t n, int64_t padded, float *copy)
{
    const float *row = (const float *)t->data + i * t->stride[0] + j * t->stride[1];
    if (t->stride[2] == 1 && n == padded) return row;
    for (int64_t l = 0; l < n; l++) copy[l] = row[l * t->stride[2]];
    return copy;
}

/* Selection by counting: rare, or few. A NaN mean makes gamma NaN wherever it is centred. */
static float median(const gmai_gma_head *g, const gma_tensor *mu, int64_t h, int64_t j, int64_t live, float mean)
{
    const int64_t k = mu->shape[1];
    for (int64_t i = 0; i < k; i++) {
        if (!(g->log_weight[i] > -INFINITY)) continue;
        const float m = at(mu, h, i, j);
        int64_t below = 0, same = 0;
        for (int64_t l = 0; l < k; l++)
            if (g->log_weight[l] > -INFINITY) {
                below += at(mu, h, l, j) < m;
                same += at(mu, h, l, j) == m;
            }
        if (below <= (live - 1) / 2 && (live - 1) / 2 < below + same) return m;
    }
    return mean;
}

/* Where each dimension is moved to: the mean of the live components' means, unless one far away would drag it off (or K is
 * small): then their lower median. What is subtracted from x must lie near the data, or x loses its digits. */
static void find_center(gmai_gma_head *g, const gmai_kernels *kern, const gma_tensor *mu, int64_t h, int64_t live)
{
    const int64_t k = mu->shape[1], r = mu->shape[2], rp = gmai_pad(r);
    float *mean = g->column_work, *spread = mean + rp, *furthest = spread + rp;
    memset(mean, 0, 3 * (size_t)rp * sizeof(float));
    memset(g->center, 0, (size_t)rp * sizeof(float));
    if (live == 0) return;
    const float weight = 1.0f / (float)live; /* on every value: their sum might overflow */
    for (int64_t i = 0; i < k; i++)
        if (g->log_weight[i] > -INFINITY)
            kern->axpy(weight, row_of(mu, h, i, r, rp, g->mu_row), mean, (size_t)rp);
    for (int64_t i = 0; i < k; i++)
        if (g->log_weight[i] > -INFINITY)
            kern->row_spread(row_of(mu, h, i, r, rp, g->mu_row), mean, weight, (int)rp, spread, furthest);
    for (int64_t j = 0; j < r; j++)
        g->center[j] =
            live > 16 && furthest[j] <= 8.0f * spread[j] ? mean[j] : median(g, mu, h, j, live, mean[j]);
}

static void interleave(const gmai_kernels *kern, gmai_gma_head *g)
{
    const int64_t r = g->m.r, rp = g->m.rp;
    for (int64_t i = 0; i < g->m.k; i += GMAI_GROUP)
        kern->interleave(g->w + i * rp, g->mw + i * rp, (int)rp, (int)r, g->blocked + i * r * 2);
}

void gmai_gma_prepare(const gmai_kernels *kern, const gma_tensor *mu, const gma_tensor *omega, const gma_tensor *alpha,
                      const gma_tensor *scale, int64_t h, double eps_sigma, int want_slope, void *memory)
{
    gmai_gma_head *g = memory;
    const int64_t k = mu->shape[1], r = mu->shape[2], rp = gmai_pad(r), k4 = (k + 3) / 4 * 4;
    gmai_bump b = {memory, 0};
    (void)gmai_take(&b, sizeof *g);
    place(&b, k, r, g);
    g->eps_sigma = eps_sigma;
    g->scale = gmai_present(scale) ? (double)((const float *)scale->data)[h * scale->stride[0]] : 1.0;
    memset(g->mu_row, 0, (size_t)rp * sizeof(float));
    memset(g->omega_row, 0, (size_t)rp * sizeof(float));

    /* dead: alpha = -inf, or a mean at infinity; gamma is 0 whatever the other parameters hold. */
    double top_alpha = -INFINITY;
    int64_t live = 0;
    for (int64_t i = 0; i < k; i++) {
        const double a = (double)((const float *)alpha->data)[h * alpha->stride[0] + i * alpha->stride[1]];
        const int infinite = kern->row_infinite(row_of(mu, h, i, r, rp, g->mu_row), (int)rp);
        g->log_weight[i] = infinite ? -INFINITY : a;
        live += g->log_weight[i] > -INFINITY;
        if (g->log_weight[i] > top_alpha) top_alpha = g->log_weight[i];
    }
    find_center(g, kern, mu, h, live);
    memset(g->w + k * rp, 0, (size_t)((k4 - k) * rp) * sizeof(float));
    memset(g->mw + k * rp, 0, (size_t)((k4 - k) * rp) * sizeof(float));
    double top = -INFINITY;
    for (int64_t i = 0; i < k; i++) {
        if (g->log_weight[i] == -INFINITY) {
            memset(g->w + i * rp, 0, (size_t)rp * sizeof(float));
            memset(g->mw + i * rp, 0, (size_t)rp * sizeof(float));
            memset(g->dsigma + i * rp, 0, (size_t)rp * sizeof(float));
            continue;
        }
        const double log_det = kern->prepare_row(
            row_of(mu, h, i, r, rp, g->mu_row), row_of(omega, h, i, r, rp, g->omega_row), g->center, (float)eps_sigma,
            (float)g->scale, (int)rp, (int)r, g->w + i * rp, g->mw + i * rp, want_slope ? g->dsigma + i * rp : NULL);
        g->log_weight[i] = g->log_weight[i] - top_alpha - 0.5 * log_det;
        if (g->log_weight[i] > top) top = g->log_weight[i];
    }
    /* Only differences matter; near 0 they keep their digits in f32. */
    for (int64_t i = 0; i < k4; i++) {
        if (i < k && top > -INFINITY) g->log_weight[i] -= top;
        g->konst[i] = i < k ? (float)(g->scale * g->log_weight[i]) : 0.0f;
    }
    g->m.k = (int)k;
    g->m.r = (int)r;
    g->m.rp = (int)rp;
    g->m.center = g->center;
    g->m.w = g->w;
    g->m.mw = g->mw;
    g->m.blocked = g->blocked;
    g->m.konst = g->konst;
    interleave(kern, g);
}

void gmai_gma_drop_center(const gmai_kernels *kern, gmai_gma_head *g)
{
    const int64_t k = g->m.k, r = g->m.r, rp = g->m.rp;
    float *widest = g->column_work, sum = 0.0f;
    memset(widest, 0, (size_t)rp * sizeof(float));
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < r; j++) widest[j] = g->w[i * rp + j] > widest[j] ? g->w[i * rp + j] : widest[j];
    for (int64_t j = 0; j < r; j++) sum += 2.0f * (widest[j] * g->center[j]) * (widest[j] * g->center[j]);
    /* |c|^2 / sigma^2 of the narrowest component. Tokens may be 650 from where they are measured before tiles give up. */
    if (!(sum <= 40.0f)) return;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < r; j++) g->mw[i * rp + j] += g->center[j] * g->w[i * rp + j];
    g->m.center = NULL;
    interleave(kern, g);
}

/* ---- feature map ------------------------------------------------------------------------------------ */

static const float *map_center(const void *head) { return ((const gmai_gma_head *)head)->m.center; }

/* A token so far from everything that all its logits overflow f32: once more in double. NaN and Inf give NaN. */
static void rescue_column(const gmai_gma_head *g, const float *columns, int token, float *phi)
{
    const int64_t rp = g->m.rp;
    double top = -INFINITY, sum = 0.0;
    for (int pass = 0; pass < 3; pass++)
        for (int64_t k = 0; k < g->m.k; k++) {
            double l = g->scale * g->log_weight[k];
            for (int64_t r = 0; r < g->m.r; r++) {
                const double t = (double)columns[r * GMAI_CHUNK + token] * (double)g->w[k * rp + r] -
                                 (double)g->mw[k * rp + r];
                l -= t * t;
            }
            if (pass == 0 && l > top) top = l;
            if (pass == 1) sum += exp(l - top);
            if (pass == 2) phi[k * GMAI_CHUNK + token] = (float)(exp(l - top) / sum);
        }
}

static int map_phi(const void *head, const gmai_kernels *kern, float *columns, int nvec, float *phi,
                    const gmai_ahead *ahead)
{
    const gmai_gma_head *g = head;
    kern->logits(&g->m, columns, nvec, phi, ahead);
    if (kern->softmax(phi, g->m.k, nvec))
        for (int t = 0; t < nvec * kern->lanes; t++)
            if (phi[t] != phi[t]) rescue_column(g, columns, t, phi);
    return 1; /* finite inputs give probabilities */
}

static void map_backward(const void *head, const gmai_kernels *kern, const float *rows, const float *phi, float *dphi,
                         int n, int nvec, float *dx, float *sums, float *dot)
{
    const gmai_gma_head *g = head;
    const size_t kr = (size_t)g->m.k * (size_t)g->m.rp;
    kern->softmax_backward(phi, dphi, g->m.k, nvec, dot);
    kern->row_sums(dphi, g->m.k, nvec, NULL, sums + 2 * kr, 1);
    kern->mixture_backward(&g->m, rows, dphi, n, dx, sums, sums + kr);
}

const gmai_map gmai_gma_map = {.center = map_center, .phi = map_phi, .backward = map_backward};

/* ---- parameter gradients ---------------------------------------------------------------------------- */

size_t gmai_gma_sums_floats(int64_t k, int64_t r)
{
    return (2 * (size_t)k * (size_t)gmai_pad(r) + (size_t)k + 15) / 16 * 16;
}

/* With dl the gradient of the scaled logits and t the whitened difference:
 *   dmu = 2 w sum dl t      dsigma2 = (sum dl t^2 - scale/2 sum dl) / sigma2      dalpha = scale sum dl
 *   dscale = sum dl (log weight) - sum dl t^2 / scale                                               */
void gmai_gma_finish(const gmai_gma_head *g, const float *sums, int64_t h, const gma_tensor *dmu,
                     const gma_tensor *domega, const gma_tensor *dalpha, const gma_tensor *dscale)
{
    const int64_t rp = g->m.rp, r = g->m.r;
    const float *st = sums, *stt = sums + (size_t)g->m.k * (size_t)rp, *n = stt + (size_t)g->m.k * (size_t)rp;
    double scale_sum = 0.0;
    for (int64_t k = 0; k < g->m.k; k++, st += rp, stt += rp) {
        const float *w = g->w + k * rp, *slope = g->dsigma + k * rp;
        const double half_n = 0.5 * g->scale * (double)n[k];
        /* Loops of one kind each, which a compiler makes vectors of. */
        if (gmai_present(dmu)) {
            float *out = row_to_set(dmu, h, k);
            if (dmu->stride[2] == 1)
                for (int64_t j = 0; j < r; j++) out[j] = 2.0f * (w[j] * st[j]);
            else
                for (int64_t j = 0; j < r; j++) out[j * dmu->stride[2]] = 2.0f * (w[j] * st[j]);
        }
        if (gmai_present(domega)) {
            float *out = row_to_set(domega, h, k);
            if (domega->stride[2] == 1)
                for (int64_t j = 0; j < r; j++) out[j] = (float)((double)slope[j] * ((double)stt[j] - half_n));
            else
                for (int64_t j = 0; j < r; j++)
                    out[j * domega->stride[2]] = (float)((double)slope[j] * ((double)stt[j] - half_n));
        }
        if (gmai_present(dalpha)) *row_to_set(dalpha, h, k) = (float)(g->scale * (double)n[k]);
        if (gmai_present(dscale) && g->log_weight[k] > -INFINITY) {
            double tt = 0.0;
            for (int64_t j = 0; j < r; j++) tt += (double)stt[j];
            scale_sum += (double)n[k] * g->log_weight[k] - tt / g->scale;
        }
    }
    if (gmai_present(dscale)) ((float *)dscale->data)[h * dscale->stride[0]] = (float)scale_sum;
}

gma_status gmai_gma_check_scale(const gma_tensor *scale, int64_t heads)
{
    if (!gmai_present(scale)) return GMA_OK;
    for (int64_t h = 0; h < heads; h++) {
        const double x = scale->dtype == GMA_F64 ? ((const double *)scale->data)[h * scale->stride[0]]
                                                 : (double)((const float *)scale->data)[h * scale->stride[0]];
        if (!(x > 0.0 && x <= 3.4e38))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "logit_scale[%lld] is %g; it must be > 0 and finite",
                            (long long)h, x);
    }
    return GMA_OK;
}
