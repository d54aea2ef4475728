#include "inspect/components.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/linalg.h"
#include "inspect/route.h"

static double softplus(double x) { return x > 30 ? x : log1p(exp(x)); }

void gmal_components(const gma_inspection *n, int head, gmal_component *out) {
    const gmal_head *h = &n->c.heads[head];
    const gmal_mixture_view m = gmal_mixture_of(n->lm, h->layer, h->kv_head);
    double top = -INFINITY, all = 0;
    for (int64_t k = 0; k < m.components; k++)
        top = (double)m.alpha[k] > top ? (double)m.alpha[k] : top;
    for (int64_t k = 0; k < m.components; k++)
        all += exp((double)m.alpha[k] - top);
    for (int64_t k = 0; k < m.components; k++) {
        double sum = 0, least = INFINITY, most = 0;
        for (int64_t r = 0; r < m.width; r++) {
            const double s = softplus((double)m.omega[k * m.width + r]) + n->lm->layout->c.eps_sigma;
            sum += s;
            least = s < least ? s : least;
            most = s > most ? s : most;
        }
        out[k] = (gmal_component){.usage_q = h->usage_q[k] / (double)h->tokens,
                                  .usage_k = h->usage_k[k] / (double)h->tokens,
                                  .prior = exp((double)m.alpha[k] - top - log(all)),
                                  .variance_mean = sum / (double)m.width,
                                  .variance_min = least,
                                  .variance_max = most};
    }
}

int gmal_top_tokens(const gma_inspection *n, int head, int64_t component, int wanted, gmal_top_token *out) {
    const gmal_head *h = &n->c.heads[head];
    const int64_t vocab = n->c.vocab;
    const double *mass = h->mass + component * vocab, total = h->usage_k[component];
    double last = INFINITY;
    int64_t last_id = -1;
    for (int i = 0; i < wanted; i++) {
        int64_t best = -1;
        for (int64_t id = 0; id < vocab; id++) /* what comes after (last, last_id) in the order of mass, then of id */
            if (mass[id] > 0 && (mass[id] < last || (mass[id] == last && id > last_id)) &&
                (best < 0 || mass[id] > mass[best]))
                best = id;
        if (best < 0)
            return i;
        out[i] = (gmal_top_token){(int32_t)best, mass[best] / total, mass[best] / (double)n->c.counts[best]};
        last = mass[best];
        last_id = best;
    }
    return wanted;
}

/* ---- The map -------------------------------------------------------------------------------------------------- */

/* x (rows,width) x^T or x^T x, whichever is smaller. */
static void gram(const double *x, int64_t rows, int64_t width, int by_rows, double *out) {
    const int64_t n = by_rows ? rows : width, inner = by_rows ? width : rows;
    const int64_t step = by_rows ? width : 1, along = by_rows ? 1 : width;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t t = 0; t < inner; t++)
                sum += x[i * step + t * along] * x[j * step + t * along];
            out[i * n + j] = out[j * n + i] = sum;
        }
}

/* Coordinates from the eigenvectors: sqrt(value) u for those of x x^T, x v for those of x^T x. */
static void project(const double *x, int64_t rows, int64_t width, int by_rows, const double *values,
                    const double *vectors, int64_t n, double *xy) {
    for (int d = 0; d < 2; d++)
        for (int64_t k = 0; k < rows; k++) {
            double sum = 0;
            if (d < n && by_rows)
                sum = sqrt(values[d] > 0 ? values[d] : 0) * vectors[d * n + k];
            for (int64_t r = 0; d < n && !by_rows && r < width; r++)
                sum += x[k * width + r] * vectors[d * n + r];
            xy[2 * k + d] = sum;
        }
}

gma_status gmal_principal_plane(const float *mu, int64_t rows, int64_t width, double *xy, double explained[2]) {
    const int by_rows = rows < width;
    const int64_t n = by_rows ? rows : width;
    const size_t cells = (size_t)(n * n);
    double *x = malloc((size_t)(rows * width) * sizeof *x), *a = malloc((2 * cells + (size_t)n) * sizeof *a);
    if (!x || !a) {
        free(x);
        free(a);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a map of %lld components", (long long)rows);
    }
    double *vectors = a + cells, *values = vectors + cells, total = 0;
    for (int64_t r = 0; r < width; r++) {
        double mean = 0;
        for (int64_t k = 0; k < rows; k++)
            mean += (double)mu[k * width + r] / (double)rows;
        for (int64_t k = 0; k < rows; k++)
            x[k * width + r] = (double)mu[k * width + r] - mean;
    }
    gram(x, rows, width, by_rows, a);
    const gma_status s = gmal_symmetric_eigen(a, (int)n, values, vectors);
    for (int64_t i = 0; i < n; i++)
        total += values[i] > 0 ? values[i] : 0;
    for (int d = 0; d < 2; d++)
        explained[d] = d < n && total > 0 && values[d] > 0 ? values[d] / total : 0;
    project(x, rows, width, by_rows, values, vectors, n, xy);
    free(x);
    free(a);
    return s;
}
