/* phi(x)_m = exp(w_m . y - |y|^2 / 2) / sqrt(M), y = x / R^(1/4), and its adjoint. */
#include "mixers/performer/naive.h"

#include <math.h>

#include "mixers/linear_attention_naive.h"
#include "mixers/naive_tensor.h"

typedef struct feature_set {
    int64_t M, R;
    double *w;    /* (M,R) */
    double scale; /* y = scale x */
} feature_set;

static void phi(const void *self, const double *x, double *out) {
    const feature_set *f = self;
    double norm = 0;
    for (int64_t r = 0; r < f->R; r++)
        norm += f->scale * f->scale * x[r] * x[r];
    for (int64_t m = 0; m < f->M; m++) {
        double dot = 0;
        for (int64_t r = 0; r < f->R; r++)
            dot += f->w[m * f->R + r] * f->scale * x[r];
        out[m] = exp(dot - norm / 2) / sqrt((double)f->M);
        if (!isfinite(norm)) /* e^-inf = 0 would hide it */
            out[m] = NAN;
    }
}

static void backward(void *self, const double *x, const double *features, const double *dphi, double *dx) {
    const feature_set *f = self;
    for (int64_t r = 0; r < f->R; r++)
        dx[r] = 0;
    for (int64_t m = 0; m < f->M; m++) {
        const double dl = dphi[m] * features[m]; /* of w_m . y - |y|^2 / 2 */
        for (int64_t r = 0; r < f->R; r++)
            dx[r] += dl * (f->w[m * f->R + r] - f->scale * x[r]) * f->scale;
    }
}

typedef gma_status recurrence(const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map);

static gma_status run(const gma_mixer *m, const gmai_args *a, recurrence *recur) {
    feature_set f = {.M = m->d.components, .R = m->d.routing_dim, .scale = pow((double)m->d.routing_dim, -0.25)};
    f.w = gmai_naive_alloc(f.M, f.R);
    if (!f.w)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for features of M=%lld, R=%lld", (long long)f.M,
                        (long long)f.R);
    for (int64_t i = 0; i < f.M; i++)
        for (int64_t r = 0; r < f.R; r++)
            f.w[i * f.R + r] = gmai_naive_get(&a->t[GMA_FEATURES], i, r, 0, 0);
    const gmai_naive_map map = {&f, NULL, phi, backward, NULL};
    const gma_status status = recur(m, a, &map);
    free(f.w);
    return status;
}

gma_status gmai_performer_naive_forward(const gma_mixer *m, const gmai_args *a) {
    return run(m, a, gmai_la_naive_forward);
}

gma_status gmai_performer_naive_backward(const gma_mixer *m, const gmai_args *a) {
    return run(m, a, gmai_la_naive_backward);
}
