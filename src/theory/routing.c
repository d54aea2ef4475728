/* (i): responsibilities and affinities. */
#include <math.h>
#include <stdlib.h>

#include "theory/singular.h"
#include "theory/statements.h"

/* How far sums of rounded terms that make 1 may be from it. */
static double rounding(const gmal_subject *s) { return (32 + (double)s->m->k) * s->e->unit; }

static void check_gamma(const gmal_subject *s, const double *gamma) {
    const int64_t k = s->m->k, n = s->m->n;
    double least = INFINITY, off = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) {
            const double x = gamma[i * k + j];
            least = x >= least ? least : x; /* NaN stays */
            sum += x;
        }
        off = fabs(sum - 1) <= off ? off : fabs(sum - 1);
    }
    gmal_record(s, "i", "gamma: smallest entry", GMAL_AT_LEAST, least, 0, n * k);
    gmal_record(s, "i", "gamma: largest |sum of a row - 1|", GMAL_AT_MOST, off, rounding(s), n);
}

static gma_status check_affinity(const gmal_subject *s, const double *gq, const double *gk, double *a) {
    const int64_t k = s->m->k, n = s->m->n;
    double low = INFINITY, high = -INFINITY, first, after;
    for (int64_t i = 0; i < n * n; i++) {
        a[i] = 0;
        for (int64_t c = 0; c < k; c++)
            a[i] += gq[i / n * k + c] * gk[i % n * k + c];
        low = a[i] >= low ? low : a[i];
        high = a[i] <= high ? high : a[i];
    }
    gmal_record(s, "i", "affinity without mask: smallest entry", GMAL_AT_LEAST, low, 0, n * n);
    gmal_record(s, "i", "affinity without mask: largest entry", GMAL_AT_MOST, high, 1 + 2 * rounding(s), n * n);
    const gma_status status = gmal_singular_values(a, n, k, &first, &after);
    if (status == GMA_OK && first != 0)
        gmal_record(s, "i", "affinity without mask, N = 4K: sigma_(K+1) / sigma_1", GMAL_AT_MOST, after / first, 1e-12, 1);
    return status;
}

/* The causal operator on v = the identity is its own matrix: lower triangular. The product of its singular values is that
 * of its diagonal, so sigma_(K+1) >= (prod a_ii / sigma_1^K)^(1/(N-K)). */
static gma_status check_triangle(const gmal_subject *s, double *identity, double *o) {
    const gmal_case *m = s->m;
    const int64_t n = m->n, k = m->k;
    double first, after, logs = 0, beyond = 0;
    for (int64_t i = 0; i < n * n; i++)
        identity[i] = i / n == i % n;
    gmal_call c;
    gmal_call_begin(&c, s->e, m, 1, n, n, n, 1);
    gmal_call_in(&c, GMA_Q, m->q, 4, 1, n, m->r);
    gmal_call_in(&c, GMA_K, m->key, 4, 1, n, m->r);
    gmal_call_in(&c, GMA_V, identity, 4, 1, n, n);
    gmal_call_out(&c, GMA_O, o, 4, 1, n, n);
    gma_status status = gmal_call_run(&c, 0);
    if (status != GMA_OK)
        return status;
    for (int64_t i = 0; i < n; i++) {
        logs += log(fabs(o[i * n + i])); /* -inf for a 0: then nothing is claimed */
        for (int64_t j = i + 1; j < n; j++)
            beyond = fabs(o[i * n + j]) <= beyond ? beyond : fabs(o[i * n + j]);
    }
    gmal_record(s, "i", "causal operator: largest entry above the diagonal", GMAL_AT_MOST, beyond, 0, n * (n - 1) / 2);
    status = gmal_singular_values(o, n, k, &first, &after);
    if (status == GMA_OK && first > 0)
        gmal_record(s, "i", "causal operator, N = 4K: sigma_(K+1) / sigma_1", GMAL_AT_LEAST, after / first,
                    exp((logs - (double)n * log(first)) / (double)(n - k)), 1);
    return status;
}

gma_status gmal_check_routing(const gmal_subject *s) {
    const int64_t n = s->m->n, k = s->m->k;
    double *a = malloc((size_t)(2 * n * (n + k)) * sizeof *a);
    if (!a)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for affinities of %lld tokens", (long long)n);
    double *b = a + n * n, *gq = b + n * n, *gk = gq + n * k;
    gma_status status = gmal_gamma(s->e, s->m, s->m->q, n, gq);
    if (status == GMA_OK)
        status = gmal_gamma(s->e, s->m, s->m->key, n, gk);
    if (status == GMA_OK) {
        check_gamma(s, gq);
        check_gamma(s, gk);
        status = check_affinity(s, gq, gk, a);
    }
    if (status == GMA_OK)
        status = check_triangle(s, a, b);
    free(a);
    return status;
}
