/* Cases E: calling in pieces equals calling at once; decoding equals the whole sequence; the state does not drift. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

/* E1: v = 1 .. 7, K = 1, in every split named by the case. */
static void every_split_is_the_same(void **state) {
    (void)state;
    TST_NEEDS(GMA_STATE_S);
    static const int splits[4][8] = {{7, -1}, {4, 3, -1}, {1, 1, 1, 1, 1, 1, 1, -1}, {2, 5, 0, -1}};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int e = 0; e < n; e++) {
        for (int s = 0; s < 4; s++) {
            double S = 0, Z = 0;
            int at = 0;
            for (const int *count = splits[s]; *count >= 0; count++) {
                const gma_mixer_desc d = tst_desc(1, 1, 1, 1, *count, *count, 1, 1, 1);
                tst_problem p = tst_problem_plain(&d, NULL);
                for (int i = 0; i < *count; i++)
                    p.in[GMA_V].x[i] = at + i + 1;
                if (at > 0) {
                    TST_SET(&p, GMA_STATE_S, S);
                    TST_SET(&p, GMA_STATE_Z, Z);
                }
                tst_result r = tst_must_run(&p, &engines[e], 0);
                for (int i = 0; i < *count; i++)
                    TST_CLOSE(r.out[GMA_O].x[i], (at + i + 2) / 2., 3e-6 * (at + i + 2));
                S = r.out[GMA_OUT_S].x[0];
                Z = r.out[GMA_OUT_Z].x[0];
                at += *count;
                tst_result_free(&r);
                tst_problem_free(&p);
            }
            TST_CLOSE(Z, 7, 1e-6);
            TST_CLOSE(S, 28, 1e-5);
        }
    }
}

/* E2: N = 130, K = 128, width 64: steps against the whole sequence, f32 and bf16. */
static void steps_equal_the_sequence(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_e_state");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_two, 2);
    static const unsigned extras[] = {0, TST_STATE | TST_DECAY | TST_SCALE | TST_MASK};
    for (int variant = 0; variant < 2; variant++) {
        const gma_mixer_desc d = tst_desc(1, 1 + variant, 2 + 2 * variant, 2, 130, 130, 128, 64, 64);
        tst_problem p = tst_problem_random(&d, NULL, extras[variant], &rng);
        for (int e = 0; e < n; e++) {
            for (int bf16 = 0; bf16 < 2; bf16++) {
                tst_engine engine = engines[e];
                engine.io = bf16 ? GMA_BF16 : GMA_F32;
                tst_result whole = tst_must_run(&p, &engine, 0), steps = tst_steps(&p, &engine);
                double largest = 0;
                for (int64_t i = 0; i < whole.out[GMA_O].n; i++)
                    largest = fmax(largest, fabs(whole.out[GMA_O].x[i]));
                for (int64_t i = 0; i < whole.out[GMA_O].n; i++) {
                    const double a = whole.out[GMA_O].x[i], b = steps.out[GMA_O].x[i];
                    const double ulp = bf16 ? ldexp(1, ilogb(fmax(fabs(a), fabs(b)) + 1e-30) - 7) : 0;
                    TST_CLOSE(a, b, fmax((tst_in_bf16(&engine) ? TOL_TILES_O : 1e-5) * largest, ulp));
                }
                tst_array_free(&whole.out[GMA_O]);
                assert_true(tst_compare(&steps, &whole, tst_in_bf16(&engine) ? TOL_TILES_STATE : 1e-5, 0,
                                        tst_engine_name(&engine)));
                tst_result_free(&whole);
                tst_result_free(&steps);
            }
        }
        tst_problem_free(&p);
    }
}

/* Steps under the rules of the sequence: masked keys, a decay of -inf, queries that see nothing. */
static void steps_follow_the_same_rules(void **state) {
    (void)state;
    TST_NEEDS(GMA_LOG_DECAY);
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 6, 6, 2, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    TST_SET(&p, GMA_Q, NAN, 0, 0, 0, NAN, 0);
    TST_SET(&p, GMA_K, NAN, 0, 0, 0, NAN, 0);
    TST_SET(&p, GMA_V, NAN, 4, NAN, 5, NAN, 7);
    TST_SET(&p, GMA_KEY_MASK, 0, 1, 1, 1, 0, 1);
    TST_SET(&p, GMA_LOG_DECAY, 0, 0, 0, -INFINITY, -INFINITY, 0);
    for (int e = 0; e < n; e++) {
        tst_result whole = tst_must_run(&p, &engines[e], 0), steps = tst_steps(&p, &engines[e]);
        const tst_result *both[2] = {&whole, &steps};
        for (int i = 0; i < 2; i++) {
            const double *o = both[i]->out[GMA_O].x;
            const char *who = i ? "steps" : "sequence";
            if (o[0] != 0)
                tst_fail("%s, %s: a query that sees nothing gives %g, not 0", tst_engine_name(&engines[e]), who, o[0]);
            TST_CLOSE(o[1], 4, 2e-5);
            assert_true(isnan(o[2]));
            if (!tol_close(o[3], 5, 3e-5))
                tst_fail("%s, %s: after forgetting all: %g, not 5", tst_engine_name(&engines[e]), who, o[3]);
            if (o[4] != 0)
                tst_fail("%s, %s: all forgotten, key masked: %g, not 0", tst_engine_name(&engines[e]), who, o[4]);
            TST_CLOSE(o[5], 7, 4e-5);
        }
        tst_result_free(&whole);
        tst_result_free(&steps);
    }
    tst_problem_free(&p);
}

/* E4: bf16 inputs and outputs, K = 1, 256 times v = 0, then 256 times v = 1: the state must not be bf16. */
static void state_is_not_bf16(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 512, 512, 1, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    for (int i = 0; i < 512; i++)
        p.in[GMA_V].x[i] = i >= 256;
    for (int e = 0; e < n; e++) {
        tst_engine engine = engines[e];
        engine.io = GMA_BF16;
        tst_result whole = tst_must_run(&p, &engine, 0), steps = tst_steps(&p, &engine);
        TST_CLOSE(whole.out[GMA_O].x[511], 0.5, 1e-6);
        TST_CLOSE(steps.out[GMA_O].x[511], 0.5, 1e-6);
        tst_result_free(&whole);
        tst_result_free(&steps);
    }
    tst_problem_free(&p);
}

/* E4, long run: Z = 2^24, S = 2^23 in a saved f32 state; one step more must count. */
static void a_large_sum_still_grows(void **state) {
    (void)state;
    TST_NEEDS(GMA_STATE_S);
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 3, 3, 1, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    TST_SET(&p, GMA_V, 1, 1, 1);
    TST_SET(&p, GMA_STATE_S, 0x1p23);
    TST_SET(&p, GMA_STATE_Z, 0x1p24);
    for (int e = 0; e < n; e++) {
        tst_result steps = tst_steps(&p, &engines[e]);
        assert_true(steps.out[GMA_OUT_Z].x[0] == 0x1p24 + 3);
        assert_true(steps.out[GMA_OUT_S].x[0] == 0x1p23 + 3);
        tst_result_free(&steps);
    }
    tst_problem_free(&p);
}

/* The same inside one long call: more tokens than f32 can count. v steps from 0 to 1 half way, so the mean ends at 1/2.
 * Strides of 0 give the keys without memory for them; o is one value a token, so 2^25 + 2^24 tokens take 200 MB of
 * address space, of which only v and o are touched: kept out of the default run. */
static void long_sequence(void **state) {
    (void)state;
    TST_GMA_ONLY();
    const char *wanted = getenv("GMA_TEST_LONG");
    if (!wanted || strcmp(wanted, "1") != 0)
        skip();
    const int64_t N = 3 * ((int64_t)1 << 24);
    float zero = 0, omega = 0.5411666523385311f, *v = calloc((size_t)N, sizeof *v), *o = calloc((size_t)N, sizeof *o);
    assert_true(v && o);
    for (int64_t i = N / 2; i < N; i++)
        v[i] = 1;
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, N, N, 1, 1, 1);
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&d, &m));
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(m, 1, &size));
    gma_tensor x = gma_tensor_of(&zero, GMA_F32, 4, 1, 1, N, 1);
    x.stride[2] = 0;
    gma_arg args[] = {{GMA_Q, x},
                      {GMA_K, x},
                      {GMA_V, gma_tensor_of(v, GMA_F32, 4, 1, 1, N, 1)},
                      {GMA_MU, gma_tensor_of(&zero, GMA_F32, 3, 1, 1, 1, 0)},
                      {GMA_OMEGA, gma_tensor_of(&omega, GMA_F32, 3, 1, 1, 1, 0)},
                      {GMA_ALPHA, gma_tensor_of(&zero, GMA_F32, 2, 1, 1, 0, 0)},
                      {GMA_O, gma_tensor_of(o, GMA_F32, 4, 1, 1, N, 1)}};
    gma_exec exec = {.struct_size = sizeof exec, .threads = 2, .scratch_bytes = (size.forward_scratch + 63) / 64 * 64};
    exec.scratch = aligned_alloc(64, exec.scratch_bytes);
    TST_OK(gma_mixer_forward(m, args, 7, &exec));
    TST_CLOSE((double)o[N - 1], 0.5, 1e-6);
    TST_CLOSE((double)o[3 * N / 4 - 1], 1 / 3., 1e-6);
    free(exec.scratch);
    free(v);
    free(o);
    gma_mixer_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_is_the_same),     cmocka_unit_test(steps_equal_the_sequence),
        cmocka_unit_test(steps_follow_the_same_rules), cmocka_unit_test(state_is_not_bf16),
        cmocka_unit_test(a_large_sum_still_grows),     cmocka_unit_test(long_sequence),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
