/* Section 0 of the cases: values worked out by hand from the definition, for H = R = D = 1, mu = (-1, 1), sigma2 = 1.
 */
#include <math.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

static tst_problem trick_two(int causal) {
    const gma_mixer_desc d = tst_desc(causal, 1, 1, 1, 3, 3, 2, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    TST_SET(&p, GMA_Q, .5, -.25, 1);
    TST_SET(&p, GMA_K, -.3, .8, .1);
    TST_SET(&p, GMA_V, 1, -2, 4);
    tst_set_up(&p, GMA_O, 1);
    return p;
}

static void expect(const tst_array *a, const double *want, int64_t n, double tol) {
    assert_int_equal(a->n, n);
    for (int64_t i = 0; i < n; i++)
        TST_CLOSE(a->x[i], want[i], tol);
}

/* gamma_2(x) = sigmoid(2x) */
static void sigmoid_of_two_x(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    tst_problem p = trick_two(0);
    for (int e = 0; e < n; e++) {
        tst_array gamma = tst_gamma(&p, GMA_Q, &engines[e]);
        for (int i = 0; i < 3; i++) {
            TST_CLOSE(gamma.x[2 * i + 1], 1 / (1 + exp(-2 * p.in[GMA_Q].x[i])), engines[e].naive ? 1e-12 : 1e-6);
            TST_CLOSE(gamma.x[2 * i] + gamma.x[2 * i + 1], 1, engines[e].naive ? 1e-14 : 1e-6);
        }
        tst_array_free(&gamma);
    }
    tst_problem_free(&p);
}

/* Trick 1: with every q = 0 each key has the same weight, so outputs are running means. */
static void running_means(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int causal = 0; causal < 2; causal++) {
        const gma_mixer_desc d = tst_desc(causal, 1, 1, 1, 5, 5, 2, 1, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        TST_SET(&p, GMA_K, 3, -1, .5, 0, -2);
        TST_SET(&p, GMA_V, 1, 2, 3, 4, 5);
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], 0);
            for (int i = 0; i < 5; i++) {
                const double mean = causal ? (i + 2) / 2. : 3, seen = causal ? i + 1 : 5;
                TST_CLOSE(r.out[GMA_O].x[i], mean * seen / (seen + 2e-6), engines[e].naive ? 1e-9 : 5e-6);
            }
            tst_result_free(&r);
        }
        tst_problem_free(&p);
    }
}

static void golden_values(void **state) {
    (void)state;
    static const double bidirectional[] = {0.756885663104, 1.143768232187, 0.616205664902};
    static const double causal[] = {0.999997688880, -0.316119557815, 0.616205664902};
    static const double dq[] = {-6.11849e-7, -0.739497244772, -0.188976828489};
    static const double dk[] = {-0.074930841654, -0.210748877241, 0.759419749315};
    static const double dv[] = {1.792894806540, 0.886869327920, 0.320231911317};
    static const double dmu[] = {0.264507676137, 0.190226978552}, domega[] = {0.081821002235, -0.034869378938};
    static const double dalpha[] = {0.227367327344, -0.227367327344};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int e = 0; e < n; e++) {
        const double tol = engines[e].naive ? 1e-11 : TOL_O, tol_grad = engines[e].naive ? 1e-11 : TOL_GRAD;
        tst_problem p = trick_two(0), q = trick_two(1);
        tst_result a = tst_must_run(&p, &engines[e], 0), b = tst_must_run(&q, &engines[e], 0);
        expect(&a.out[GMA_O], bidirectional, 3, tol);
        expect(&b.out[GMA_O], causal, 3, tol);
        expect(&b.grad[GMA_Q], dq, 3, tol_grad);
        expect(&b.grad[GMA_K], dk, 3, tol_grad);
        expect(&b.grad[GMA_V], dv, 3, tol_grad);
        expect(&b.grad[GMA_MU], dmu, 2, tol_grad);
        expect(&b.grad[GMA_OMEGA], domega, 2, tol_grad);
        expect(&b.grad[GMA_ALPHA], dalpha, 2, tol_grad);
        tst_result_free(&a);
        tst_result_free(&b);
        tst_problem_free(&p);
        tst_problem_free(&q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sigmoid_of_two_x),
        cmocka_unit_test(running_means),
        cmocka_unit_test(golden_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
