/* The same tests for every mixer of the manifest, or of one family. */
#include <stdio.h>

#include "support/check.h"
#include "support/problem.h"

static const int wanted[] = {GMA_Q, GMA_K, GMA_V, GMA_O, GMA_STATE_S, GMA_STATE_Z, GMA_OUT_S, GMA_OUT_Z};
enum { ALL = 4, LINEAR = 8 }; /* how many of them */

int tst_has(int slot) {
    gma_mixer_desc d;
    TST_OK(gma_mixer_desc_init(&d, tst_mixer));
    return tst_slot_info(&d, slot) != NULL;
}

static int belongs(gma_mixer_kind kind, int slots) {
    gma_mixer *m = NULL;
    if (!gma_mixer_kind_name(kind))
        return 0;
    tst_mixer = kind;
    if (slots < 0) /* any at all */
        return 1;
    for (int i = 0; i < slots; i++) {
        if (!tst_has(wanted[i]))
            return 0;
    }
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 1, 1, 1);
    const int causal = gma_mixer_create(&d, &m) == GMA_OK;
    gma_mixer_destroy(m);
    return causal;
}

static int for_each(const struct CMUnitTest *tests, size_t n, int slots, int at_least) {
    int failed = 0, mixers = 0;
    for (int kind = 1; kind < 100; kind++) {
        if (!belongs((gma_mixer_kind)kind, slots))
            continue;
        mixers++;
        tst_mixer = (gma_mixer_kind)kind;
        failed += _cmocka_run_group_tests(gma_mixer_kind_name(tst_mixer), tests, n, NULL, NULL);
    }
    tst_mixer = GMA_MIXER_GMA;
    if (mixers < at_least)
        printf("only %d of at least %d mixers found\n", mixers, at_least);
    return failed + (mixers < at_least);
}

int tst_for_mixers(const struct CMUnitTest *tests, size_t n) { return for_each(tests, n, ALL, 4); }
int tst_for_linear_mixers(const struct CMUnitTest *tests, size_t n) { return for_each(tests, n, LINEAR, 3); }
int tst_for_every_mixer(const struct CMUnitTest *tests, size_t n) { return for_each(tests, n, -1, 6); }
