/* Components and decays that must not spoil the others: one mean far away, one that is removed and holds rubbish, a
 * forgotten NaN; and a decoding state that is none. Fast code against the naive version. */
#include <math.h>
#include <string.h>

#include "gma/gma.h"
#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

enum { R = 5, D = 7 };

static void agree(tst_problem *p, const char *what) {
    tst_result want = tst_must_run(p, &TST_NAIVE, 0);
    tst_engine engines[32];
    const int one = 1, n = tst_engines(engines, 0, &one, 1);
    for (int e = 0; e < n; e++) {
        tst_result got = tst_must_run(p, &engines[e], 0);
        if (!tst_compare_to_naive(p, &got, &want, TOL_O, TOL_GRAD, what))
            tst_fail("%s: %s differs from naive", what, tst_engine_name(&engines[e]));
        tst_result_free(&got);
    }
    tst_result_free(&want);
}

static void a_far_mean_leaves_the_others_alone(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_f_far");
    const int sizes[] = {3, 64};
    for (int i = 0; i < 2; i++) {
        const gma_mixer_desc d = tst_desc(1, 1, 2, 2, 90, 90, sizes[i], R, D);
        for (double far = 1e6; far < 1e10; far *= 10) {
            tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
            for (int r = 0; r < R; r++) p.in[GMA_MU].x[R + r] = far;
            agree(&p, "one mean far away");
            tst_problem_free(&p);
        }
    }
}

static void a_removed_component_may_hold_anything(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_f_far");
    const double rubbish[] = {1e7, INFINITY, NAN};
    const int sizes[] = {3, 64};
    for (int i = 0; i < 6; i++) {
        const gma_mixer_desc d = tst_desc(1, 1, 2, 2, 90, 90, sizes[i % 2], R, D);
        tst_problem p = tst_problem_random(&d, NULL, 0, &rng);
        p.in[GMA_ALPHA].x[1] = -INFINITY;
        p.in[GMA_MU].x[R + 2] = rubbish[i / 2];
        if (i >= 4) p.in[GMA_OMEGA].x[R + 1] = NAN;
        agree(&p, "a removed component");
        tst_problem_free(&p);
    }
}

static void a_reset_forgets_a_nan(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_f_far");
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 300, 300, 4, R, D);
    for (int at = 5; at < 300; at += 58) {
        tst_problem p = tst_problem_random(&d, NULL, TST_DECAY, &rng);
        p.in[GMA_LOG_DECAY].x[at] = NAN;
        p.in[GMA_LOG_DECAY].x[at + 1] = -INFINITY;
        agree(&p, "log_decay NaN, then -inf");
        tst_problem_free(&p);
    }
}

static void a_state_of_another_mixer_is_refused(void **state) {
    (void)state;
    static _Alignas(64) unsigned char memory[1 << 16];
    float q[R] = {0}, v[D] = {0}, o[D] = {0};
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 4, R, D);
    gma_mixer *m = NULL;
    assert_int_equal(gma_mixer_create(&d, &m), GMA_OK);
    gma_mixer_size size = {.struct_size = sizeof size};
    assert_int_equal(gma_mixer_sizes(m, 1, &size), GMA_OK);
    assert_true(size.state <= sizeof memory);
    const gma_arg args[] = {
        {GMA_Q, gma_tensor_of(q, GMA_F32, 4, 1, 1, 1, R)},
        {GMA_K, gma_tensor_of(q, GMA_F32, 4, 1, 1, 1, R)},
        {GMA_V, gma_tensor_of(v, GMA_F32, 4, 1, 1, 1, D)},
        {GMA_O, gma_tensor_of(o, GMA_F32, 4, 1, 1, 1, D)},
    };
    const int rubbish[] = {0, 0x41, 0xff};
    for (int i = 0; i < 3; i++) {
        memset(memory, rubbish[i], sizeof memory);
        assert_int_equal(gma_mixer_step(m, args, 4, memory, 1), GMA_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(gma_last_error(), "state"));
    }
    gma_mixer_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_far_mean_leaves_the_others_alone),
        cmocka_unit_test(a_removed_component_may_hold_anything),
        cmocka_unit_test(a_reset_forgets_a_nan),
        cmocka_unit_test(a_state_of_another_mixer_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
