/* phi(x)_r = elu(x_r) + 1 and its adjoint. */
#include "mixers/linear/naive.h"

#include <math.h>

#include "mixers/linear_attention_naive.h"

static void phi(const void *self, const double *x, double *out) {
    const int64_t R = *(const int64_t *)self;
    for (int64_t r = 0; r < R; r++)
        out[r] = x[r] <= 0 ? exp(x[r]) : x[r] + 1; /* elu(x) = e^x - 1 for x <= 0, else x; NaN stays NaN */
}

static void backward(void *self, const double *x, const double *features, const double *dphi, double *dx) {
    const int64_t R = *(const int64_t *)self;
    for (int64_t r = 0; r < R; r++)
        dx[r] = dphi[r] * (x[r] <= 0 ? features[r] : x[r] > 0 ? 1 : x[r]); /* slope: e^x, or 1 */
}

gma_status gmai_linear_naive_forward(const gma_mixer *m, const gmai_args *a) {
    int64_t R = m->d.routing_dim;
    const gmai_naive_map map = {&R, NULL, phi, backward, NULL};
    return gmai_la_naive_forward(m, a, &map);
}

gma_status gmai_linear_naive_backward(const gma_mixer *m, const gmai_args *a) {
    int64_t R = m->d.routing_dim;
    const gmai_naive_map map = {&R, NULL, phi, backward, NULL};
    return gmai_la_naive_backward(m, a, &map);
}
