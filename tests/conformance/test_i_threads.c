/* Case I1: the same bits from run to run and for every number of threads. N = 1000, H = 3, K = 128, forward and
 * backward. */
#include <math.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static void check(tst_problem *p, int repeats) {
    static const int threads[] = {1, 2, 3, 7};
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, threads, 4);
    tst_result first = {0};
    for (int e = 0; e < n; e++) {
        const int times = engines[e].isa == GMA_ISA_SCALAR ? 1 + repeats / 10 : repeats;
        for (int i = 0; i < times; i++) {
            tst_result r = tst_must_run(p, &engines[e], 0);
            if (engines[e].threads == 1 && i == 0) {
                tst_result_free(&first);
                first = r;
                continue;
            }
            if (!tst_same_bits(&first, &r))
                tst_fail("%s: repeat %d differs from the first run with one thread", tst_engine_name(&engines[e]), i);
            tst_result_free(&r);
        }
    }
    tst_result_free(&first);
}

static void same_bits_causal(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_i_threads");
    const gma_mixer_desc d = tst_desc(1, 1, 3, 3, 1000, 1000, 128, 16, 16);
    tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
    check(&p, 20);
    tst_problem_free(&p);
}

/* Shapes whose work is split along the sequence, and the other modes. */
static void same_bits_other_shapes(void **state) {
    (void)state;
    static const int64_t cu[] = {0, 300, 300, 301, 1500};
    static const struct {
        int causal;
        int64_t B, Hq, H, Nq, Nk, K, segments;
        unsigned extras;
    } rows[] = {
        {1, 1, 1, 1, 3000, 3000, 16, -1, TST_DECAY | TST_SCALE | TST_GRAD_STATE | TST_STATE},
        {0, 1, 2, 1, 1300, 2700, 16, -1, TST_MASK | TST_STATE | TST_GRAD_STATE},
        {1, 1, 2, 2, 2700, 1300, 16, -1, TST_STATE | TST_GRAD_STATE},
        {1, 1, 4, 2, 700, 2700, 16, -1, TST_MASK | TST_DECAY | TST_GRAD_STATE},
        {1, 1, 2, 2, 1500, 1500, 16, 4, TST_MASK | TST_DECAY | TST_STATE | TST_GRAD_STATE},
        {0, 1, 2, 2, 1500, 1500, 16, 4, TST_SCALE | TST_GRAD_STATE},
        {1, 5, 3, 3, 290, 290, 16, -1, TST_DECAY | TST_BACKWARD},
        /* Whole sequences, the last of them handed on from thread to thread. */
        {1, 2, 2, 2, 1100, 1100, 16, -1, TST_DECAY | TST_STATE | TST_GRAD_STATE},
        {0, 1, 4, 4, 600, 1100, 16, -1, TST_MASK | TST_STATE | TST_GRAD_STATE},
    };
    tst_rng rng = tst_rng_start("test_conformance_i_threads");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gma_mixer_desc d =
            tst_desc(rows[i].causal, rows[i].B, rows[i].Hq, rows[i].H, rows[i].Nq, rows[i].Nk, rows[i].K, 5, 7);
        d.segments = rows[i].segments;
        tst_problem p = tst_problem_random(&d, d.segments >= 0 ? cu : NULL, rows[i].extras, &rng);
        check(&p, 3);
        tst_problem_free(&p);
    }
}

/* Gradients about as small as a float can be: what is flushed to zero must not depend on which thread adds up. */
static void same_bits_near_nothing(void **state) {
    (void)state;
    static const int64_t cu[] = {0, 300, 300, 301, 1500};
    tst_rng rng = tst_rng_start("test_conformance_i_threads");
    for (int power = 34; power <= 38; power++) {
        gma_mixer_desc d = tst_desc(1, 1, 2, 2, 1500, 1500, 16, 5, 7);
        d.segments = 4;
        tst_problem p = tst_problem_random(&d, cu, TST_BACKWARD, &rng);
        for (int64_t i = 0; i < p.up[GMA_O].n; i++)
            p.up[GMA_O].x[i] *= pow(10, -power);
        check(&p, 1);
        tst_problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_causal),
        cmocka_unit_test(same_bits_other_shapes),
        cmocka_unit_test(same_bits_near_nothing),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
