/* One AdamW update of a run of parameters. */
#include "layers/kernels/kernel.h"

void GMAL_KERNEL(adamw)(real *p, const real *g, real *m, real *v, int64_t n, real lr, real beta1, real beta2, real eps,
                        real decay, real c1, real c2, real grad_scale) {
    const real a1 = 1 - beta1, a2 = 1 - beta2, shrink = 1 - lr * decay;
    for (int64_t i = 0; i < n; i++) {
        const real gi = g[i] * grad_scale;
        const real mi = beta1 * m[i] + a1 * gi;
        const real vi = beta2 * v[i] + a2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * shrink - lr * (mi * c1) / (gmal_sqrt(vi * c2) + eps);
    }
}
