/* GMA's feature map for the recurrences of linear_attention_naive*.c: gamma under the mixture of each head. */
#include <math.h>

#include "mixers/gma/naive.h"
#include "mixers/linear_attention_naive.h"
#include "mixers/naive_tensor.h"

static void load(void *self, const gma_mixer *m, const gmai_args *a, int64_t h) {
    gmai_naive_mixture_load(self, &a->t[GMA_MU], &a->t[GMA_OMEGA], &a->t[GMA_ALPHA], &a->t[GMA_LOGIT_SCALE], h,
                            m->d.eps_sigma);
}

static void phi(const void *self, const double *x, double *gamma) { gmai_naive_gamma(self, x, gamma); }

static void backward(void *self, const double *x, const double *gamma, const double *dgamma, double *dx) {
    gmai_naive_gamma_backward(self, x, gamma, dgamma, dx);
}

static void store(const void *self, const gmai_args *a, int64_t h) {
    const gmai_naive_mixture *mix = self;
    const gma_tensor *mu = &a->grad[GMA_MU], *omega = &a->grad[GMA_OMEGA];
    const gma_tensor *alpha = &a->grad[GMA_ALPHA], *scale = &a->grad[GMA_LOGIT_SCALE];
    for (int64_t k = 0; k < mix->K; k++) {
        for (int64_t r = 0; r < mix->R; r++) {
            if (gmai_present(mu))
                gmai_naive_put(mu, h, k, r, 0, mix->dmu[k * mix->R + r]);
            if (gmai_present(omega))
                gmai_naive_put(omega, h, k, r, 0, mix->domega[k * mix->R + r]);
        }
        if (gmai_present(alpha))
            gmai_naive_put(alpha, h, k, 0, 0, mix->dalpha[k]);
    }
    if (gmai_present(scale))
        gmai_naive_put(scale, h, 0, 0, 0, mix->dscale);
}

static gma_status check_scale(const gmai_args *a) {
    const gma_tensor *scale = &a->t[GMA_LOGIT_SCALE];
    for (int64_t h = 0; gmai_present(scale) && h < scale->shape[0]; h++)
        if (!(gmai_naive_get(scale, h, 0, 0, 0) > 0 && gmai_naive_get(scale, h, 0, 0, 0) < INFINITY))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "logit_scale[%lld] is %g, not > 0 and finite", (long long)h,
                            gmai_naive_get(scale, h, 0, 0, 0));
    return GMA_OK;
}

typedef gma_status recurrence(const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map);

static gma_status run(const gma_mixer *m, const gmai_args *a, recurrence *f) {
    gmai_naive_mixture mix;
    gma_status status = check_scale(a);
    if (!status)
        status = gmai_naive_mixture_init(&mix, m->d.components, m->d.routing_dim);
    if (status)
        return status;
    const gmai_naive_map map = {&mix, load, phi, backward, store};
    status = f(m, a, &map);
    gmai_naive_mixture_free(&mix);
    return status;
}

gma_status gmai_gma_naive_forward(const gma_mixer *m, const gmai_args *a) { return run(m, a, gmai_la_naive_forward); }
gma_status gmai_gma_naive_backward(const gma_mixer *m, const gmai_args *a) { return run(m, a, gmai_la_naive_backward); }
