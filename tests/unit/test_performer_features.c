/* The orthogonal random features of Performer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gma/gma.h"
#include "support/check.h"
#include "support/rng.h"

static float *features(uint64_t seed, int64_t M, int64_t R) {
    float *w = malloc((size_t)(M * R) * sizeof *w);
    assert_non_null(w);
    TST_OK(gma_performer_features(seed, M, R, w));
    return w;
}

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Rows of a block of R are orthogonal; rows of different blocks are not. */
static void blocks_are_orthogonal(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{40, 16}, {5, 16}, {64, 64}, {7, 3}, {6, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t M = sizes[i][0], R = sizes[i][1];
        float *w = features(7, M, R);
        double across = 0;
        for (int64_t a = 0; a < M; a++) {
            for (int64_t b = 0; b < a; b++) {
                const double cosine =
                    fabs(dot(w + a * R, w + b * R, R)) / sqrt(dot(w + a * R, w + a * R, R) * dot(w + b * R, w + b * R, R));
                if (a / R == b / R)
                    assert_true(cosine < 1e-6);
                else
                    across = fmax(across, cosine);
            }
        }
        assert_true(M <= R || across > 0.1);
        free(w);
    }
}

/* A seed says which features, on every machine; another gives others. */
static void a_seed_is_a_set(void **state) {
    (void)state;
    float *a = features(1, 10, 6), *b = features(1, 10, 6), *c = features(2, 10, 6);
    assert_memory_equal(a, b, 60 * sizeof *a);
    assert_memory_not_equal(a, c, 60 * sizeof *a);
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a over the bits */
    for (int i = 0; i < 60; i++) {
        uint32_t bits;
        memcpy(&bits, &a[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    if (hash != UINT64_C(0x321f0e8616ca28bd))
        tst_fail("the features of seed 1 are others than they were: %016llx", (unsigned long long)hash);
    free(a);
    free(b);
    free(c);
}

/* |w|^2 is chi-squared with R degrees: mean R, variance 2R. Its mean over M rows within five standard errors, and its
 * variance within a quarter; each component has mean 0 and variance 1. */
static void rows_are_normal(void **state) {
    (void)state;
    enum { M = 4096, R = 16 };
    float *w = features(3, M, R);
    double mean = 0, square = 0, component = 0, component2 = 0;
    for (int i = 0; i < M; i++) {
        const double n = dot(w + i * R, w + i * R, R);
        mean += n / M;
        square += n * n / M;
        component += (double)w[i * R + 5] / M;
        component2 += (double)w[i * R + 5] * (double)w[i * R + 5] / M;
    }
    TST_CLOSE(mean, R, 5 * sqrt(2. * R / M));
    TST_CLOSE(square - mean * mean, 2 * R, R / 2.);
    TST_CLOSE(component, 0, 5 / sqrt(M));
    TST_CLOSE(component2, 1, 5 * sqrt(2. / M));
    free(w);
}

/* Root mean square of (phi(q) . phi(k)) / exp(q . k / sqrt R) - 1 over pairs and seeds. */
static double error_of(int64_t M, tst_rng *rng) {
    enum { R = 8, PAIRS = 40, SEEDS = 20 };
    double sum = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        float *w = features((uint64_t)seed, M, R);
        for (int pair = 0; pair < PAIRS; pair++) {
            float q[R], k[R];
            for (int r = 0; r < R; r++) {
                q[r] = (float)(0.35 * tst_normal(rng) / sqrt(sqrt(R)));
                k[r] = (float)(0.35 * tst_normal(rng) / sqrt(sqrt(R)));
            }
            const double half = (dot(q, q, R) + dot(k, k, R)) / 2;
            double estimate = 0;
            for (int64_t m = 0; m < M; m++)
                estimate += exp(dot(w + m * R, q, R) + dot(w + m * R, k, R) - half) / (double)M;
            const double relative = estimate / exp(dot(q, k, R)) - 1;
            sum += relative * relative / (PAIRS * SEEDS);
        }
        free(w);
    }
    return sqrt(sum);
}

static void more_features_estimate_better(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_unit_performer_features");
    const double few = error_of(8, &rng), more = error_of(64, &rng), many = error_of(1024, &rng);
    if (!(few > 1.5 * more && more > 2 * many && many < 0.1))
        tst_fail("errors with 8, 64 and 1024 features: %g, %g, %g", few, more, many);
}

static void wrong_arguments(void **state) {
    (void)state;
    float w[4];
    TST_ERROR(gma_performer_features(1, 0, 2, w), GMA_ERR_INVALID_ARGUMENT, "count");
    TST_ERROR(gma_performer_features(1, 2, 0, w), GMA_ERR_INVALID_ARGUMENT, "width");
    TST_ERROR(gma_performer_features(1, 2, 2, NULL), GMA_ERR_INVALID_ARGUMENT, "w ");
    TST_ERROR(gma_performer_features(1, INT64_MAX, 2, w), GMA_ERR_INVALID_ARGUMENT, "count");
    TST_ERROR(gma_performer_features(1, 2, INT64_MAX, w), GMA_ERR_INVALID_ARGUMENT, "width");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_orthogonal),         cmocka_unit_test(a_seed_is_a_set),
        cmocka_unit_test(rows_are_normal),               cmocka_unit_test(more_features_estimate_better),
        cmocka_unit_test(wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
