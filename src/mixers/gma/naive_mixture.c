/* gamma(x) = softmax_k( scale * log( pi_k N(x | mu_k, diag sigma2_k) ) ) and its adjoint, in double. */
#include <math.h>

#include "mixers/gma/naive.h"
#include "mixers/linear_attention_naive.h"
#include "mixers/naive_tensor.h"

static const double LOG_2PI = 1.837877066409345483560659472811;

static double softplus(double x) { return log1p(exp(-fabs(x))) + (x > 0 ? x : 0); }
static double sigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }

gma_status gmai_naive_mixture_init(gmai_naive_mixture *mix, int64_t K, int64_t R) {
    *mix = (gmai_naive_mixture){.K = K, .R = R};
    mix->mu = gmai_naive_alloc(K, R);
    mix->sigma2 = gmai_naive_alloc(K, R);
    mix->slope = gmai_naive_alloc(K, R);
    mix->log_pi = gmai_naive_alloc(K, 1);
    mix->log_norm = gmai_naive_alloc(K, 1);
    mix->dmu = gmai_naive_alloc(K, R);
    mix->domega = gmai_naive_alloc(K, R);
    mix->dalpha = gmai_naive_alloc(K, 1);
    if (mix->mu && mix->sigma2 && mix->slope && mix->log_pi && mix->log_norm && mix->dmu && mix->domega && mix->dalpha)
        return GMA_OK;
    gmai_naive_mixture_free(mix);
    return gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for a mixture of K=%lld, R=%lld", (long long)K,
                    (long long)R);
}

void gmai_naive_mixture_free(gmai_naive_mixture *mix) {
    free(mix->mu);
    free(mix->sigma2);
    free(mix->slope);
    free(mix->log_pi);
    free(mix->log_norm);
    free(mix->dmu);
    free(mix->domega);
    free(mix->dalpha);
    *mix = (gmai_naive_mixture){0};
}

/* log softmax(alpha); -inf entries stay -inf. All of them -inf is no mixture: NaN. */
static void log_softmax(double *a, int64_t n) {
    double max = -INFINITY, sum = 0;
    for (int64_t k = 0; k < n; k++)
        if (a[k] > max)
            max = a[k];
    for (int64_t k = 0; k < n; k++)
        sum += exp(a[k] - max);
    for (int64_t k = 0; k < n; k++)
        a[k] -= max + log(sum);
}

void gmai_naive_mixture_load(gmai_naive_mixture *mix, const gma_tensor *mu, const gma_tensor *omega,
                             const gma_tensor *alpha, const gma_tensor *logit_scale, int64_t h, double eps_sigma) {
    for (int64_t k = 0; k < mix->K; k++)
        mix->log_pi[k] = gmai_naive_get(alpha, h, k, 0, 0);
    log_softmax(mix->log_pi, mix->K);
    for (int64_t k = 0; k < mix->K; k++) {
        mix->log_norm[k] = mix->log_pi[k];
        mix->dalpha[k] = 0;
        for (int64_t r = 0; r < mix->R; r++) {
            const int64_t i = k * mix->R + r;
            const double w = gmai_naive_get(omega, h, k, r, 0);
            mix->mu[i] = gmai_naive_get(mu, h, k, r, 0);
            mix->sigma2[i] = softplus(w) + eps_sigma;
            mix->slope[i] = sigmoid(w);
            mix->log_norm[k] -= 0.5 * (log(mix->sigma2[i]) + LOG_2PI);
            mix->dmu[i] = mix->domega[i] = 0;
        }
    }
    mix->scale = logit_scale && gmai_present(logit_scale) ? gmai_naive_get(logit_scale, h, 0, 0, 0) : 1;
    mix->dscale = 0;
}

static int removed(const gmai_naive_mixture *mix, int64_t k) { return mix->log_pi[k] == -INFINITY; }

/* log(pi_k N(x | mu_k, sigma2_k)) */
static double log_density(const gmai_naive_mixture *mix, const double *x, int64_t k) {
    double sum = mix->log_norm[k];
    for (int64_t r = 0; r < mix->R; r++) {
        const double d = x[r] - mix->mu[k * mix->R + r];
        sum -= 0.5 * d * d / mix->sigma2[k * mix->R + r];
    }
    return sum;
}

void gmai_naive_gamma(const gmai_naive_mixture *mix, const double *x, double *gamma) {
    double max = -INFINITY, sum = 0;
    for (int64_t k = 0; k < mix->K; k++) {
        gamma[k] = removed(mix, k) ? -INFINITY : mix->scale * log_density(mix, x, k);
        if (gamma[k] > max)
            max = gamma[k];
    }
    for (int64_t k = 0; k < mix->K; k++) {
        gamma[k] = removed(mix, k) ? 0 : exp(gamma[k] - max); /* a NaN logit makes the sum NaN */
        sum += gamma[k];
    }
    for (int64_t k = 0; k < mix->K; k++)
        if (!removed(mix, k))
            gamma[k] /= sum;
}

void gmai_naive_gamma_backward(gmai_naive_mixture *mix, const double *x, const double *gamma, const double *dgamma,
                               double *dx) {
    double mean = 0; /* <gamma, dgamma> */
    for (int64_t k = 0; k < mix->K; k++)
        if (!removed(mix, k))
            mean += gamma[k] * dgamma[k];
    for (int64_t r = 0; r < mix->R; r++)
        dx[r] = 0;

    for (int64_t k = 0; k < mix->K; k++) {
        if (removed(mix, k))
            continue;
        const double dlogit = gamma[k] * (dgamma[k] - mean); /* the softmax */
        mix->dscale += dlogit * log_density(mix, x, k);
        const double dl = mix->scale * dlogit; /* of log(pi_k N_k) */
        mix->dalpha[k] += dl;                  /* sum_k dl = 0, so the normaliser of pi = softmax(alpha) adds nothing */
        for (int64_t r = 0; r < mix->R; r++) {
            const int64_t i = k * mix->R + r;
            const double d = x[r] - mix->mu[i], s = mix->sigma2[i];
            dx[r] -= dl * d / s;
            mix->dmu[i] += dl * d / s;
            mix->domega[i] += dl * 0.5 * (d * d / (s * s) - 1 / s) * mix->slope[i];
        }
    }
}

gma_status gmai_gma_naive_responsibilities(const gma_tensor *x, const gma_tensor *mu, const gma_tensor *omega,
                                           const gma_tensor *alpha, const gma_tensor *logit_scale,
                                           const gma_tensor *gamma, double eps_sigma) {
    const int64_t H = mu->shape[0], K = mu->shape[1], R = mu->shape[2];
    const int64_t B = x->shape[0], Hx = x->shape[1], N = x->shape[2], group = H > 0 ? Hx / H : 0;
    gmai_naive_mixture mix;
    gma_status status = gmai_naive_mixture_init(&mix, K, R);
    if (status)
        return status;
    double *row = gmai_naive_alloc(R, 1), *g = gmai_naive_alloc(K, 1);
    if (!row || !g)
        status = gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for a row of K=%lld", (long long)K);

    for (int64_t h = 0; h < H && !status; h++) {
        gmai_naive_mixture_load(&mix, mu, omega, alpha, logit_scale, h, eps_sigma);
        for (int64_t b = 0; b < B; b++) {
            for (int64_t hx = h * group; hx < (h + 1) * group; hx++) {
                for (int64_t n = 0; n < N; n++) {
                    gmai_naive_row(x, b, hx, n, R, row);
                    gmai_naive_gamma(&mix, row, g);
                    for (int64_t k = 0; k < K; k++)
                        gmai_naive_put(gamma, b, hx, n, k, g[k]);
                }
            }
        }
    }
    free(row);
    free(g);
    gmai_naive_mixture_free(&mix);
    return status;
}
