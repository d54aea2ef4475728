/* Cases A: keys that are not there. */
#include <math.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

static void all_zero(const tst_array *a) {
    for (int64_t i = 0; i < a->n; i++)
        assert_true(a->x[i] == 0); /* exactly, and no NaN */
}

/* A1: every key masked, or none there at all: o = 0 exactly, no gradient, no NaN, whatever the masked keys, the queries
 * or the upstream gradient of the unseen hold. */
static void no_visible_key(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int variant = 0; variant < 12; variant++) {
        const int causal = variant % 2, keys = variant / 2 % 2 ? 3 : 0, poison = variant / 4;
        if (poison && !keys)
            continue;
        const gma_mixer_desc d = tst_desc(causal, 1, 1, 1, 1, keys, 2, 1, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        if (keys) {
            TST_SET(&p, GMA_V, 1, 2, 3);
            TST_SET(&p, GMA_KEY_MASK, 0, 0, 0);
        }
        if (poison) {
            TST_SET(&p, GMA_K, poison == 1 ? NAN : INFINITY, 0, NAN);
            TST_SET(&p, GMA_V, NAN, INFINITY, 3);
        }
        tst_set_up(&p, GMA_O, 1);
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], 0);
            for (int slot = 0; slot < TST_SLOTS; slot++) {
                all_zero(&r.out[slot]);
                all_zero(&r.grad[slot]);
            }
            tst_result_free(&r);
        }
        tst_problem_free(&p);
    }
}

/* A1, larger: one batch row sees nothing; the other row has the bits it has alone. */
static void one_row_sees_nothing(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_a_masks");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int causal = 0; causal < 2; causal++) {
        const gma_mixer_desc d = tst_desc(causal, 2, 2, 1, 70, 70, 9, 5, 6);
        tst_problem p = tst_problem_random(&d, NULL, TST_MASK | TST_BACKWARD, &rng);
        for (int j = 0; j < 70; j++)
            p.in[GMA_KEY_MASK].x[j] = 0;
        tst_problem q = tst_problem_copy(&p);
        for (int j = 0; j < 70 * 6; j++)
            q.in[GMA_V].x[j] = NAN;
        for (int j = 0; j < 70 * 5; j++)
            q.in[GMA_K].x[j] = NAN;
        for (int e = 0; e < n; e++) {
            tst_result a = tst_must_run(&p, &engines[e], 0), b = tst_must_run(&q, &engines[e], 0);
            assert_true(tst_same_bits(&a, &b));
            for (int64_t i = 0; i < a.out[GMA_O].n / 2; i++)
                assert_true(a.out[GMA_O].x[i] == 0);
            for (int64_t i = 0; i < a.grad[GMA_Q].n / 2; i++)
                assert_true(a.grad[GMA_Q].x[i] == 0);
            tst_result_free(&a);
            tst_result_free(&b);
        }
        tst_problem_free(&p);
        tst_problem_free(&q);
    }
}

/* A3: padding on the left or on the right is written nowhere. */
static void padding_leaves_no_trace(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int right = 0; right < 2; right++) {
        const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 4, 4, 2, 1, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        if (right) {
            TST_SET(&p, GMA_V, 1, 3, 9, 9);
            TST_SET(&p, GMA_KEY_MASK, 1, 1, 0, 0);
        } else {
            TST_SET(&p, GMA_V, 9, 9, 1, 3);
            TST_SET(&p, GMA_KEY_MASK, 0, 0, 1, 1);
        }
        for (int e = 0; e < n; e++) {
            for (unsigned layout = 0; layout <= TST_MASK_U8; layout += TST_MASK_U8) {
                tst_result r = tst_must_run(&p, &engines[e], layout);
                const double *o = r.out[GMA_O].x;
                if (right) {
                    TST_CLOSE(o[0], 1, 5e-6);
                    TST_CLOSE(o[1], 2, 1e-5);
                } else {
                    assert_true(o[0] == 0 && o[1] == 0);
                    TST_CLOSE(o[2], 1, 5e-6);
                    TST_CLOSE(o[3], 2, 1e-5);
                }
                const double k = (double)r.out[GMA_OUT_Z].n, sum = tst_plain_sum();
                if (p.out_state) {
                    TST_CLOSE(r.out[GMA_OUT_Z].x[0] * k, 2 * sum, 1e-6);
                    TST_CLOSE(r.out[GMA_OUT_S].x[0] * k, 4 * sum, 1e-6);
                }
                tst_result_free(&r);
            }
        }
        tst_problem_free(&p);
    }
}

/* A state that came in is seen even where every key is masked; a decay of -inf makes it unseen again. */
static void state_without_keys(void **state) {
    (void)state;
    TST_NEEDS(GMA_STATE_S);
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int forget = 0; forget < 2; forget++) {
        const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 3, 3, 1, 1, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        TST_SET(&p, GMA_V, NAN, NAN, NAN);
        TST_SET(&p, GMA_KEY_MASK, 0, 0, 0);
        TST_SET(&p, GMA_STATE_S, 6);
        TST_SET(&p, GMA_STATE_Z, 2);
        TST_SET(&p, GMA_LOG_DECAY, 0, forget ? -INFINITY : -1, 0);
        tst_set_up(&p, GMA_O, 1);
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], 0);
            for (int i = 0; i < 3; i++) {
                if (forget && i > 0)
                    assert_true(r.out[GMA_O].x[i] == 0);
                else
                    TST_CLOSE(r.out[GMA_O].x[i], 3, 1.5e-5);
                assert_true(r.grad[GMA_V].x[i] == 0);
            }
            /* do/dS = 1/Z at each query that still sees the state: decay cancels in the mean */
            TST_CLOSE(r.grad[GMA_STATE_S].x[0], (forget ? 1 : 3) / 2., 1e-5);
            tst_result_free(&r);
        }
        tst_problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_visible_key),
        cmocka_unit_test(one_row_sees_nothing),
        cmocka_unit_test(padding_leaves_no_trace),
        cmocka_unit_test(state_without_keys),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
