/* Cross-entropy of rows of logits, and its gradient in place. */
#include "layers/kernels/kernel.h"

double GMAL_KERNEL(cross_entropy)(real *logits, int64_t ld, const int32_t *target, int64_t rows, int64_t n,
                                  real scale) {
    double total = 0;
    for (int64_t r = 0; r < rows; r++) {
        real *x = logits + r * ld;
        if (target[r] < 0) { /* no target here: no loss, no gradient, whatever the logits hold */
            if (scale != 0)
                for (int64_t i = 0; i < n; i++) x[i] = 0;
            continue;
        }
        real top[GMAL_LANES], sum[GMAL_LANES] = {0};
        int64_t i = 0;
        for (int l = 0; l < GMAL_LANES; l++) top[l] = x[0];
        for (; i + GMAL_LANES <= n; i += GMAL_LANES)
            for (int l = 0; l < GMAL_LANES; l++) top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
        for (int l = 0; i < n; i++, l++) top[l] = x[i] > top[l] ? x[i] : top[l];
        real max = top[0];
        for (int l = 1; l < GMAL_LANES; l++) max = top[l] > max ? top[l] : max;
        /* A NaN that the maximum skipped comes back through exp. */
        const real at_target = x[target[r]];
        for (i = 0; i + GMAL_LANES <= n; i += GMAL_LANES)
            for (int l = 0; l < GMAL_LANES; l++) {
                const real e = gmal_exp(x[i + l] - max);
                sum[l] += e;
                x[i + l] = scale != 0 ? e : x[i + l];
            }
        for (int l = 0; i < n; i++, l++) {
            const real e = gmal_exp(x[i] - max);
            sum[l] += e;
            x[i] = scale != 0 ? e : x[i];
        }
        const real all = gmal_fold(sum);
        total += log((double)all) + (double)max - (double)at_target;
        if (scale != 0) {
            const real f = scale / all;
            for (i = 0; i < n; i++) x[i] *= f;
            x[target[r]] -= scale;
        }
    }
    return total;
}
