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

static void set(const gma_tensor *t, int64_t i, int64_t j, int64_t k, double x)
{
    ((float *)t->data)[i * t->stride[0] + j * t->stride[1] + k * t->stride[2]] = (float)x;
}

/* Where dimension j is moved to: the mean of the live components' means, unless one far away would drag it off (or K is
 * small): then their lower median. What is subtracted from x must lie near the data, or x loses its digits. */
static float center_of(gmai_gma_head *g, const gma_tensor *mu, int64_t h, int64_t j)
{
    const int64_t k = mu->shape[1];
    int64_t live = 0;
    double sum = 0.0, spread = 0.0, furthest = 0.0;
    for (int64_t i = 0; i < k; i++)
        if (g->log_weight[i] > -INFINITY) {
            sum += (double)at(mu, h, i, j);
            live++;
        }
    if (live == 0) return 0.0f;
    const double mean = sum / (double)live;
    for (int64_t i = 0; i < k; i++)
        if (g->log_weight[i] > -INFINITY) {
            const double d = fabs((double)at(mu, h, i, j) - mean);
            spread += d;
            if (d > furthest) furthest = d;
        }
    if (live > 16 && furthest * (double)live <= 8.0 * spread) return (float)mean;
    /* Selection by counting: rare, or few. A NaN mean makes gamma NaN wherever it is centred. */
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
    return (float)mean;
}

void gmai_gma_prepare(const gmai_kernels *kern, const gma_tensor *mu, const gma_tensor *omega, const gma_tensor *alpha,
                      const gma_tensor *scale, int64_t h, double eps_sigma, void *memory)
{
    gmai_gma_head *g = memory;
    const int64_t k = mu->shape[1], r = mu->shape[2], rp = gmai_pad(r), k4 = (k + 3) / 4 * 4;
    gmai_bump b = {memory, 0};
    (void)gmai_take(&b, sizeof *g);
    place(&b, k, r, g);
    g->eps_sigma = eps_sigma;
    g->scale = gmai_present(scale) ? (double)((const float *)scale->data)[h * scale->stride[0]] : 1.0;

    /* dead: alpha = -inf, or a mean at infinity; gamma is 0 whatever the other parameters hold. */
    double top_alpha = -INFINITY;
    for (int64_t i = 0; i < k; i++) {
        const double a = (double)((const float *)alpha->data)[h * alpha->stride[0] + i * alpha->stride[1]];
        int dead = a == -INFINITY;
        for (int64_t j = 0; j < r && !dead; j++) dead = isinf(at(mu, h, i, j));
        g->log_weight[i] = dead ? -INFINITY : a;
        if (g->log_weight[i] > top_alpha) top_alpha = g->log_weight[i];
    }
    for (int64_t j = 0; j < rp; j++) g->center[j] = j < r ? center_of(g, mu, h, j) : 0.0f;
    memset(g->w, 0, (size_t)(k4 * rp) * sizeof(float));
    memset(g->mw, 0, (size_t)(k4 * rp) * sizeof(float));
    memset(g->mu_row, 0, (size_t)rp * sizeof(float));
    memset(g->omega_row, 0, (size_t)rp * sizeof(float));
    double top = -INFINITY;
    for (int64_t i = 0; i < k; i++) {
        if (g->log_weight[i] == -INFINITY) {
            memset(g->dsigma + i * rp, 0, (size_t)rp * sizeof(float));
            continue;
        }
        for (int64_t j = 0; j < r; j++) {
            g->mu_row[j] = at(mu, h, i, j);
            g->omega_row[j] = at(omega, h, i, j);
        }
        const double log_det = kern->prepare_row(g->mu_row, g->omega_row, g->center, (float)eps_sigma, (float)g->scale,
                                                 (int)rp, (int)r, g->w + i * rp, g->mw + i * rp, g->dsigma + i * rp);
        g->log_weight[i] = g->log_weight[i] - top_alpha - 0.5 * log_det;
        if (g->log_weight[i] > top) top = g->log_weight[i];
    }
    /* Only differences matter; near 0 they keep their digits in f32. */
    for (int64_t i = 0; i < k4; i++) {
        if (i < k && top > -INFINITY) g->log_weight[i] -= top;
        g->konst[i] = i < k ? (float)(g->scale * g->log_weight[i]) : 0.0f;
    }
    for (int64_t i = 0; i < k4; i++)
        for (int64_t j = 0; j < r; j++) {
            float *p = g->blocked + (i / 4 * r + j) * 8 + i % 4;
            p[0] = g->w[i * rp + j];
            p[4] = g->mw[i * rp + j];
        }
    g->m.k = (int)k;
    g->m.r = (int)r;
    g->m.rp = (int)rp;
    g->m.center = g->center;
    g->m.w = g->w;
    g->m.mw = g->mw;
    g->m.blocked = g->blocked;
    g->m.konst = g->konst;
}

/* ---- feature map ------------------------------------------------------------------------------------ */

static const float *map_center(const void *head) { return ((const gmai_gma_head *)head)->center; }

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

static int map_phi(const void *head, const gmai_kernels *kern, const float *columns, int nvec, float *phi,
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
    const int64_t rp = g->m.rp;
    const float *st = sums, *stt = sums + (size_t)g->m.k * (size_t)rp, *n = stt + (size_t)g->m.k * (size_t)rp;
    double scale_sum = 0.0;
    for (int64_t k = 0; k < g->m.k; k++) {
        double tt = 0.0;
        for (int64_t r = 0; r < g->m.r; r++) {
            const int64_t i = k * rp + r;
            tt += (double)stt[i];
            if (gmai_present(dmu)) set(dmu, h, k, r, 2.0 * (double)g->w[i] * (double)st[i]);
            if (gmai_present(domega))
                set(domega, h, k, r, (double)g->dsigma[i] * ((double)stt[i] - 0.5 * g->scale * (double)n[k]));
        }
        if (gmai_present(dalpha)) set(dalpha, h, k, 0, g->scale * (double)n[k]);
        if (g->log_weight[k] > -INFINITY) scale_sum += (double)n[k] * g->log_weight[k] - tt / g->scale;
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
