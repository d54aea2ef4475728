/* What the paper proves, on the naive and the fast code of every tier:
 *
 *   1. responsibilities are >= 0 and each row sums to 1
 *   2. the affinity Gq Gk^T has entries in [0,1] and rank <= K; with v = 1 (D = Nk) the operator returns it, rows
 *      divided by their sum + eps
 *   3. each output is a convex mean of the values it sees, shrunk by z / (z + eps)
 *   4. |dL/dlogit_k| <= gamma_k (max g - min g), g = dL/dgamma
 *
 * Each check is a function of plain numbers, and is itself tested: with a broken normaliser or gradient it must refuse.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/matrix.h"
#include "support/problem.h"
#include "support/tol.h"

static double precision(const tst_engine *e) { return e->naive ? 1e-12 : 2e-6; }

/* ---- the checks -------------------------------------------------------------------------------------- */

static int is_distribution(const tst_array *gamma, int64_t K, double tol) {
    for (int64_t row = 0; row < gamma->n / K; row++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) {
            if (!(gamma->x[row * K + k] >= 0))
                return 0;
            sum += gamma->x[row * K + k];
        }
        if (!(fabs(sum - 1) <= tol))
            return 0;
    }
    return 1;
}

static int is_affinity(const double *a, int64_t rows, int64_t cols, int64_t K, double tol, double rank_tol) {
    for (int64_t i = 0; i < rows * cols; i++) {
        if (!(a[i] >= -tol && a[i] <= 1 + tol))
            return 0;
    }
    return tst_rank(a, rows, cols, rank_tol) <= K;
}

/* o within [shrink min, shrink max] of the visible values of one dimension. */
static int is_convex(double o, double lo, double hi, double shrink, double tol) {
    return o >= shrink * lo - tol && o <= shrink * hi + tol;
}

static int is_bounded(const double *dl, const double *gamma, const double *g, int64_t K, double tol) {
    double lo = g[0], hi = g[0];
    for (int64_t k = 1; k < K; k++) {
        lo = g[k] < lo ? g[k] : lo;
        hi = g[k] > hi ? g[k] : hi;
    }
    for (int64_t k = 0; k < K; k++) {
        if (!(fabs(dl[k]) <= gamma[k] * (hi - lo) * (1 + tol) + tol * tol))
            return 0;
    }
    return 1;
}

/* ---- 1 and 2 ----------------------------------------------------------------------------------------- */

enum { N = 24, K = 5 };

static tst_problem identity_values(tst_rng *rng, unsigned extras) {
    const gma_mixer_desc d = tst_desc(0, 1, 2, 2, N, N, K, 3, N);
    tst_problem p = tst_problem_random(&d, NULL, extras, rng);
    for (int64_t i = 0; i < p.in[GMA_V].n; i++)
        p.in[GMA_V].x[i] = i / N % N == i % N;
    return p;
}

static void responsibilities_and_affinity(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_property_theory");
    tst_engine engines[32];
    const int threads[] = {1, 2};
    const int n = tst_engines(engines, 1, threads, 2);
    for (int round = 0; round < 4; round++) {
        tst_problem p = identity_values(&rng, round % 2 ? TST_SCALE : 0);
        for (int e = 0; e < n; e++) {
            const double tol = precision(&engines[e]), rank_tol = engines[e].naive ? 1e-12 : 5e-6;
            tst_array q = tst_gamma(&p, GMA_Q, &engines[e]), k = tst_gamma(&p, GMA_K, &engines[e]);
            assert_true(is_distribution(&q, K, tol));
            assert_true(is_distribution(&k, K, tol));
            tst_result r = tst_must_run(&p, &engines[e], 0);
            for (int64_t h = 0; h < 2; h++) {
                double affinity[N * N];
                const double *o = r.out[GMA_O].x + h * N * N;
                for (int64_t i = 0; i < N; i++) {
                    double sum = 0;
                    for (int64_t j = 0; j < N; j++) {
                        affinity[i * N + j] = 0;
                        for (int64_t c = 0; c < K; c++)
                            affinity[i * N + j] += q.x[(h * N + i) * K + c] * k.x[(h * N + j) * K + c];
                        sum += affinity[i * N + j];
                    }
                    for (int64_t j = 0; j < N; j++)
                        TST_CLOSE(o[i * N + j], affinity[i * N + j] / (sum + p.desc.eps), 10 * tol);
                }
                assert_true(is_affinity(affinity, N, N, K, tol, rank_tol));
                assert_true(is_affinity(o, N, N, K, tol, rank_tol));
            }
            tst_result_free(&r);
            tst_array_free(&q);
            tst_array_free(&k);
        }
        tst_problem_free(&p);
    }
}

/* ---- 3 ----------------------------------------------------------------------------------------------- */

/* Whether query i may see key j (both absolute), by the words of the definition. */
static int visible(const tst_problem *p, const int64_t *cu, int64_t b, int64_t i, int64_t j) {
    const tst_array *mask = &p->in[GMA_KEY_MASK];
    if (mask->x && mask->x[b * p->desc.k_len + j] == 0)
        return 0;
    for (int64_t g = 1; cu && g < p->desc.segments; g++) {
        if ((i < cu[g]) != (j < cu[g]))
            return 0;
    }
    return !p->desc.causal || j <= i + p->desc.k_len - p->desc.q_len;
}

static int all_convex(const tst_problem *p, const int64_t *cu, const tst_array *o, double tol) {
    const gma_mixer_desc *d = &p->desc;
    tst_array q = tst_gamma(p, GMA_Q, &TST_NAIVE), k = tst_gamma(p, GMA_K, &TST_NAIVE);
    const double *v = p->in[GMA_V].x;
    const int64_t group = d->heads / d->kv_heads;
    int ok = 1;
    for (int64_t row = 0; row < d->batch * d->heads * d->q_len; row++) {
        const int64_t i = row % d->q_len, h = row / d->q_len % d->heads / group, b = row / d->q_len / d->heads;
        const int64_t keys = (b * d->kv_heads + h) * d->k_len;
        double z = 0;
        for (int64_t c = 0; c < d->value_dim; c++) {
            double lo = INFINITY, hi = -INFINITY;
            z = 0;
            for (int64_t j = 0; j < d->k_len; j++) {
                if (!visible(p, cu, b, i, j))
                    continue;
                for (int64_t m = 0; m < d->components; m++)
                    z += q.x[row * d->components + m] * k.x[(keys + j) * d->components + m];
                lo = fmin(lo, v[(keys + j) * d->value_dim + c]);
                hi = fmax(hi, v[(keys + j) * d->value_dim + c]);
            }
            const double got = o->x[row * d->value_dim + c];
            ok &= z == 0 ? got == 0 : is_convex(got, lo, hi, z / (z + d->eps), tol);
        }
    }
    tst_array_free(&q);
    tst_array_free(&k);
    return ok;
}

static void outputs_are_convex_means(void **state) {
    (void)state;
    static const struct {
        int causal;
        int64_t B, Hq, H, Nq, Nk, segments;
        unsigned extras;
    } rows[] = {{0, 2, 2, 2, 33, 33, -1, 0},         {1, 2, 2, 2, 70, 70, -1, TST_MASK},
                {1, 1, 4, 2, 20, 90, -1, TST_SCALE}, {1, 1, 2, 2, 90, 20, -1, 0},
                {0, 2, 2, 1, 17, 50, -1, TST_MASK},  {1, 1, 2, 2, 70, 70, 4, 0},
                {0, 1, 2, 2, 70, 70, 4, TST_MASK}};
    static const int64_t cu[] = {0, 30, 30, 31, 70};
    tst_rng rng = tst_rng_start("test_property_theory");
    tst_engine engines[32];
    const int threads[] = {1, 2};
    const int n = tst_engines(engines, 1, threads, 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gma_mixer_desc d = tst_desc(rows[i].causal, rows[i].B, rows[i].Hq, rows[i].H, rows[i].Nq, rows[i].Nk, 7, 5, 3);
        d.segments = rows[i].segments;
        const int64_t *offsets = d.segments >= 0 ? cu : NULL;
        tst_problem p = tst_problem_random(&d, offsets, rows[i].extras, &rng);
        for (int64_t j = 0; j < p.in[GMA_V].n; j++)
            p.in[GMA_V].x[j] += 3; /* away from 0, so that a wrong normaliser leaves the interval */
        for (int e = 0; e < n; e++) {
            const double tol = engines[e].naive ? 1e-11 : 6 * TOL_O; /* largest entry about 6 */
            tst_result r = tst_must_run(&p, &engines[e], 0);
            if (!all_convex(&p, offsets, &r.out[GMA_O], tol))
                tst_fail("row %zu, %s: an output outside its values", i, tst_engine_name(&engines[e]));
            for (int64_t j = 0; j < r.out[GMA_O].n; j++)
                r.out[GMA_O].x[j] *= 1.6; /* broken normaliser */
            assert_false(all_convex(&p, offsets, &r.out[GMA_O], tol));
            tst_result_free(&r);
        }
        tst_problem_free(&p);
    }
}

/* ---- 4 ----------------------------------------------------------------------------------------------- */

/* One token a head isolates dL/dlogit: it is grad_alpha. A query that reads only an incoming state, or a key that only
 * an outgoing gradient looks at; g = dL/dgamma follows from the definition. */
static void logit_gradient_is_bounded(void **state) {
    (void)state;
    enum { HEADS = 12, COMP = 6, R = 3, D = 4 };
    tst_rng rng = tst_rng_start("test_property_theory");
    tst_engine engines[32];
    const int threads[] = {1, 2};
    const int n = tst_engines(engines, 1, threads, 2);
    for (int round = 0; round < 8; round++) {
        const int key = round % 2, causal = round / 2 % 2;
        const gma_mixer_desc d = tst_desc(causal, 1, HEADS, HEADS, !key, key, COMP, R, D);
        tst_problem p = tst_problem_random(&d, NULL, TST_STATE | TST_GRAD_STATE, &rng);
        for (int e = 0; e < n; e++) {
            tst_array gamma = tst_gamma(&p, key ? GMA_K : GMA_Q, &TST_NAIVE);
            tst_result r = tst_must_run(&p, &engines[e], 0);
            for (int64_t h = 0; h < HEADS; h++) {
                const double *up = p.up[GMA_O].x + h * D, *v = p.in[GMA_V].x + h * D, *gm = gamma.x + h * COMP;
                const double *S = (key ? p.up[GMA_OUT_S].x : p.in[GMA_STATE_S].x) + h * COMP * D;
                const double *Z = (key ? p.up[GMA_OUT_Z].x : p.in[GMA_STATE_Z].x) + h * COMP;
                double g[COMP], mean = 0, den = p.desc.eps, dot = 0, largest = 0.1;
                for (int64_t c = 0; c < COMP && !key; c++) {
                    den += gm[c] * Z[c];
                    for (int64_t j = 0; j < D; j++)
                        dot += gm[c] * S[c * D + j] * up[j];
                }
                for (int64_t c = 0; c < COMP; c++) {
                    g[c] = key ? Z[c] : -Z[c] * dot / (den * den);
                    for (int64_t j = 0; j < D; j++)
                        g[c] += key ? S[c * D + j] * v[j] : S[c * D + j] * up[j] / den;
                    mean += gm[c] * g[c];
                    largest = fmax(largest, fabs(g[c]));
                }
                const double *dl = r.grad[GMA_ALPHA].x + h * COMP;
                const double tol = engines[e].naive ? 1e-11 : TOL_GRAD;
                double broken[COMP];
                for (int64_t c = 0; c < COMP; c++) {
                    TST_CLOSE(dl[c], gm[c] * (g[c] - mean), tol * largest);
                    broken[c] = gm[c] * (g[c] + 10 * largest); /* the mean not taken off */
                }
                if (!is_bounded(dl, gm, g, COMP, engines[e].naive ? 1e-11 : 1e-2))
                    tst_fail("%s: head %d: |dlogit| above its bound", tst_engine_name(&engines[e]), (int)h);
                assert_false(is_bounded(broken, gm, g, COMP, 1e-2));
            }
            tst_result_free(&r);
            tst_array_free(&gamma);
        }
        tst_problem_free(&p);
    }
}

/* ---- the checks, broken ------------------------------------------------------------------------------ */

static void checks_refuse(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_property_theory");
    tst_problem p = identity_values(&rng, 0);
    tst_array gamma = tst_gamma(&p, GMA_Q, &TST_NAIVE);
    const double kept = gamma.x[7];
    assert_true(is_distribution(&gamma, K, 1e-12));
    gamma.x[7] = kept + 1e-4;
    assert_false(is_distribution(&gamma, K, 2e-6));
    gamma.x[7] = NAN;
    assert_false(is_distribution(&gamma, K, 2e-6));
    gamma.x[7] = kept;
    gamma.x[0] += 2 * gamma.x[1]; /* sums to 1 but not >= 0 */
    gamma.x[1] = -gamma.x[1];
    assert_false(is_distribution(&gamma, K, 2e-6));

    tst_result r = tst_must_run(&p, &TST_NAIVE, 0);
    double *o = r.out[GMA_O].x;
    assert_true(is_affinity(o, N, N, K, 1e-12, 1e-12));
    o[5] += 1e-3; /* one more direction */
    assert_false(is_affinity(o, N, N, K, 1e-12, 5e-6));
    o[5] = 1.1;
    assert_false(is_affinity(o, N, N, N, 1e-6, 5e-6));
    const double diagonal[9] = {3, 0, 0, 0, 1, 0, 0, 0, 1e-9};
    assert_int_equal(tst_rank(diagonal, 3, 3, 1e-6), 2);
    assert_int_equal(tst_rank(diagonal, 3, 3, 1e-10), 3);
    assert_false(is_convex(1.1, 0, 1, 1, 1e-6));
    assert_false(is_convex(NAN, 0, 1, 1, 1e-6));
    tst_result_free(&r);
    tst_array_free(&gamma);
    tst_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(responsibilities_and_affinity),
        cmocka_unit_test(outputs_are_convex_means),
        cmocka_unit_test(logit_gradient_is_bounded),
        cmocka_unit_test(checks_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
