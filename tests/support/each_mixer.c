/* The same tests for every mixer of one family. */
#include <stdio.h>

#include "support/check.h"
#include "support/problem.h"

static int is_linear(gma_mixer_kind kind) {
    static const int wanted[] = {GMA_Q, GMA_K, GMA_V, GMA_STATE_S, GMA_STATE_Z, GMA_OUT_S, GMA_OUT_Z};
    gma_mixer_desc d;
    if (!gma_mixer_kind_name(kind))
        return 0;
    TST_OK(gma_mixer_desc_init(&d, kind));
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (!tst_slot_info(&d, wanted[i]))
            return 0;
    }
    return 1;
}

static int is_any(gma_mixer_kind kind) { return gma_mixer_kind_name(kind) != NULL; }

static int for_mixers(int (*wanted)(gma_mixer_kind), const struct CMUnitTest *tests, size_t n) {
    int failed = 0, mixers = 0;
    for (int kind = 1; kind < 100; kind++) {
        if (!wanted((gma_mixer_kind)kind))
            continue;
        mixers++;
        tst_mixer = (gma_mixer_kind)kind;
        failed += _cmocka_run_group_tests(gma_mixer_kind_name(tst_mixer), tests, n, NULL, NULL);
    }
    tst_mixer = GMA_MIXER_GMA;
    if (mixers < 3)
        printf("only %d of at least 3 mixers found\n", mixers);
    return failed + (mixers < 3);
}

int tst_for_linear_mixers(const struct CMUnitTest *tests, size_t n) { return for_mixers(is_linear, tests, n); }
int tst_for_every_mixer(const struct CMUnitTest *tests, size_t n) { return for_mixers(is_any, tests, n); }
