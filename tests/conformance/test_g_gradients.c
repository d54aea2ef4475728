/* Cases G: the gradient through Z, and upstream gradients that are not dense. */
#include <math.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

static tst_problem trick_two(int heads) {
    const gma_mixer_desc d = tst_desc(1, 1, heads, heads, 3, 3, 2, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    static const double q[] = {.5, -.25, 1}, k[] = {-.3, .8, .1}, v[] = {1, -2, 4};
    for (int i = 0; i < 3 * heads; i++) {
        p.in[GMA_Q].x[i] = q[i % 3];
        p.in[GMA_K].x[i] = k[i % 3];
        p.in[GMA_V].x[i] = v[i % 3];
    }
    tst_set_up(&p, GMA_O, 1);
    return p;
}

/* G1 and G3: dk has its part through Z (without it: 0.57870, -0.10998, 0.89771); an upstream gradient whose strides are
 * all 0, as sum().backward() gives it, or a transposed view, gives the same. */
static void golden_whatever_the_strides(void **state) {
    (void)state;
    TST_GMA_ONLY();
    static const double dq[] = {-6.11849e-7, -0.739497244772, -0.188976828489};
    static const double dk[] = {-0.074930841654, -0.210748877241, 0.759419749315};
    static const double dv[] = {1.792894806540, 0.886869327920, 0.320231911317};
    static const double dmu[] = {0.264507676137, 0.190226978552}, domega[] = {0.081821002235, -0.034869378938};
    static const double dalpha[] = {0.227367327344, -0.227367327344};
    static const unsigned layouts[] = {0, TST_EXPAND_UP, TST_SWAP_HEADS, TST_PAD_ROWS, TST_REVERSED};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    tst_problem p = trick_two(3);
    for (int e = 0; e < n; e++) {
        const double tol = engines[e].naive ? 1e-11 : TOL_GRAD;
        for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
            tst_result r = tst_must_run(&p, &engines[e], layouts[l]);
            for (int i = 0; i < 9; i++) {
                TST_CLOSE(r.grad[GMA_Q].x[i], dq[i % 3], tol);
                TST_CLOSE(r.grad[GMA_K].x[i], dk[i % 3], tol);
                TST_CLOSE(r.grad[GMA_V].x[i], dv[i % 3], 2 * tol);
            }
            for (int i = 0; i < 6; i++) {
                TST_CLOSE(r.grad[GMA_MU].x[i], dmu[i % 2], tol);
                TST_CLOSE(r.grad[GMA_OMEGA].x[i], domega[i % 2], tol);
                TST_CLOSE(r.grad[GMA_ALPHA].x[i], dalpha[i % 2], tol);
            }
            tst_result_free(&r);
        }
    }
    tst_problem_free(&p);
}

/* The same at a size with several chunks, against the dense call, bit for bit. */
static void expanded_equals_dense(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_g_gradients");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int causal = 0; causal < 2; causal++) {
        const gma_mixer_desc d = tst_desc(causal, 2, 4, 2, 70, 70, 9, 5, 6);
        tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
        for (int64_t i = 0; i < p.up[GMA_O].n; i++)
            p.up[GMA_O].x[i] = p.up[GMA_O].x[i % 6];
        for (int e = 0; e < n; e++) {
            tst_result dense = tst_must_run(&p, &engines[e], 0),
                       expanded = tst_must_run(&p, &engines[e], TST_EXPAND_UP);
            assert_true(tst_same_bits(&dense, &expanded));
            tst_result_free(&dense);
            tst_result_free(&expanded);
        }
        tst_problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_whatever_the_strides),
        cmocka_unit_test(expanded_equals_dense),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
