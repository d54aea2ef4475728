/* Cases C: sizes that fit no tile, every tensor against a guard page, scratch full of NaN. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

/* C1: lengths around every power of two a chunk or segment may have. K = 1: o_i = (i + 2) / 2, dv_j = sum_{i>=j}
 * 1/(i+1). */
static void ragged_lengths(void **state) {
    (void)state;
    static const int64_t lengths[] = {1,  2,  7,  8,   9,   15,  16,  17,  31,  32,  33, 47,
                                      63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        const int64_t N = lengths[l];
        const gma_mixer_desc d = tst_desc(1, 1, 1, 1, N, N, 1, 1, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        for (int64_t j = 0; j < N; j++)
            p.in[GMA_V].x[j] = (double)(j + 1);
        tst_set_up(&p, GMA_O, 1);
        for (int e = 0; e < n; e++) {
            for (unsigned layout = 0; layout <= TST_GUARD_START; layout += TST_GUARD_START) {
                tst_result r = tst_must_run(&p, &engines[e], layout);
                double dv = 0;
                for (int64_t j = N - 1; j >= 0; j--) {
                    dv += 1 / (double)(j + 1);
                    TST_CLOSE(r.out[GMA_O].x[j], (double)(j + 2) / 2, 5e-6 * (double)(j + 2));
                    TST_CLOSE(r.grad[GMA_V].x[j], dv, 1e-5 * dv + 2e-6);
                }
                tst_result_free(&r);
            }
        }
        tst_problem_free(&p);
    }
}

static void same_four_times(const gma_mixer_desc *d, unsigned extras, tst_rng *rng) {
    tst_problem p = tst_problem_random(d, NULL, extras | TST_BACKWARD, rng);
    tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
    tst_engine engines[32];
    const int one = 1, n = tst_engines(engines, 0, &one, 1);
    char what[120];
    for (int e = 0; e < n; e++) {
        (void)snprintf(what, sizeof what, "%s N=%d,%d K=%d R=%d D=%d", tst_engine_name(&engines[e]), (int)d->q_len,
                       (int)d->k_len, (int)d->components, (int)d->routing_dim, (int)d->value_dim);
        tst_result first = tst_must_run(&p, &engines[e], 0);
        assert_true(tst_compare_to_naive(&p, &first, &want, 1e-5, TOL_GRAD, what));
        for (int repeat = 1; repeat < 4; repeat++) {
            tst_result again = tst_must_run(&p, &engines[e], repeat == 1 ? TST_GUARD_START : 0);
            if (!tst_same_bits(&first, &again))
                tst_fail("%s: repeat %d differs", what, repeat);
            tst_result_free(&again);
        }
        tst_result_free(&first);
    }
    tst_result_free(&want);
    tst_problem_free(&p);
}

/* C3: widths that are no multiple of a vector. */
static void odd_widths(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 3, 17, 63, 65, 72, 96}, components[] = {1, 2, 5, 127, 129};
    tst_rng rng = tst_rng_start("test_conformance_c_sizes");
    for (int r = 0; r < 7; r++) {
        for (int c = 0; c < 5; c++) {
            const int64_t R = widths[r], D = widths[(r + c) % 7], K = components[c];
            const gma_mixer_desc causal = tst_desc(1, 1, 1, 1, 19, 19, K, R, D),
                                 cross = tst_desc(0, 1, 1, 1, 9, 18, K, D, R);
            same_four_times(&causal, c % 2 ? TST_DECAY | TST_SCALE : 0, &rng);
            same_four_times(&cross, c % 2 ? TST_STATE : TST_MASK, &rng);
        }
    }
}

/* C4: nothing to do is no error, and no signal. */
static void zero_sizes(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_c_sizes");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int which = 0; which < 6; which++) {
        for (int causal = 0; causal < 2; causal++) {
            gma_mixer_desc d = tst_desc(causal, 2, 2, 2, 5, 5, 3, 4, 6);
            switch (which) {
            case 0:
                d.batch = 0;
                break;
            case 1:
                d.heads = d.kv_heads = 0;
                break;
            case 2:
                d.q_len = 0;
                break;
            case 3:
                d.k_len = 0;
                break;
            case 4:
                d.value_dim = 0;
                break;
            default:
                d.q_len = d.k_len = 0;
                break;
            }
            for (int with_state = 0; with_state < 2; with_state++) {
                tst_problem p =
                    tst_problem_random(&d, NULL, with_state ? TST_STATE | TST_GRAD_STATE : TST_BACKWARD, &rng);
                tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
                for (int64_t i = 0; i < want.out[GMA_O].n && which == 3 && !with_state; i++)
                    assert_true(want.out[GMA_O].x[i] == 0);
                for (int e = 0; e < n; e++) {
                    char what[80];
                    (void)snprintf(what, sizeof what, "%s, zero size %d", tst_engine_name(&engines[e]), which);
                    tst_result r = tst_must_run(&p, &engines[e], 0);
                    assert_true(tst_compare(&r, &want, TOL_O, TOL_GRAD, what));
                    tst_result_free(&r);
                }
                tst_result_free(&want);
                tst_problem_free(&p);
            }
        }
    }
    gma_mixer *m = NULL;
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 1, 1, 1);
    d.components = tst_mixer == GMA_MIXER_LINEAR || d.components == 0 ? 2 : 0; /* not R; none to have; too few */
    TST_ERROR(gma_mixer_create(&d, &m), GMA_ERR_INVALID_ARGUMENT, "components");
    d = tst_desc(1, 1, 1, 1, 1, 1, 1, 0, 1);
    TST_ERROR(gma_mixer_create(&d, &m), GMA_ERR_INVALID_ARGUMENT, "routing_dim");
    assert_null(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_lengths),
        cmocka_unit_test(odd_widths),
        cmocka_unit_test(zero_sizes),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
