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

/* Those with q k v that can be causal, and those of them that have a state (S, Z). */
static int has_first(gma_mixer_kind kind, int slots) {
    gma_mixer *m = NULL;
    if (!gma_mixer_kind_name(kind))
        return 0;
    tst_mixer = kind;
    for (int i = 0; i < slots; i++) {
        if (!tst_has(wanted[i]))
            return 0;
    }
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 1, 1, 1);
    const int causal = gma_mixer_create(&d, &m) == GMA_OK;
    gma_mixer_destroy(m);
    return causal;
}

static int is_attention(gma_mixer_kind kind) { return has_first(kind, ALL); }
static int is_linear(gma_mixer_kind kind) { return has_first(kind, LINEAR); }
static int is_any(gma_mixer_kind kind) { return gma_mixer_kind_name(kind) != NULL; }

static int for_each(int (*belongs)(gma_mixer_kind), const struct CMUnitTest *tests, size_t n, int at_least) {
    int failed = 0, mixers = 0;
    for (int kind = 1; kind < 100; kind++) {
        if (!belongs((gma_mixer_kind)kind))
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

int tst_for_mixers(const struct CMUnitTest *tests, size_t n) { return for_each(is_attention, tests, n, 4); }
int tst_for_linear_mixers(const struct CMUnitTest *tests, size_t n) { return for_each(is_linear, tests, n, 3); }
int tst_for_every_mixer(const struct CMUnitTest *tests, size_t n) { return for_each(is_any, tests, n, 6); }
