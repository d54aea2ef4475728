/* CPU tiers: names, what is built and supported, and GMA_ISA in the environment (each value in a process of its own,
 * because it is read once). */
#define _POSIX_C_SOURCE 200809L /* setenv, fork */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gma/gma.h"
#include "support/check.h"
#include "support/problem.h"

static const gma_isa tiers[] = {GMA_ISA_SCALAR, GMA_ISA_NEON, GMA_ISA_AVX2, GMA_ISA_AVX512, GMA_ISA_AMX};
enum { TIERS = 5, FAILED = 100, UNNAMED = 101 };

static void names(void **state) {
    (void)state;
    static const char *const text[TIERS] = {"scalar", "neon", "avx2", "avx512", "amx"};
    for (int i = 0; i < TIERS; i++) {
        gma_isa isa = GMA_ISA_AUTO;
        assert_string_equal(gma_isa_name(tiers[i]), text[i]);
        TST_OK(gma_isa_from_name(text[i], &isa));
        assert_int_equal(isa, tiers[i]);
    }
    assert_null(gma_isa_name((gma_isa)77));
    static const char *const wrong[] = {"AVX2", "sse", "", " avx2", "avx2 ", "avx5120"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gma_isa isa = GMA_ISA_AUTO;
        TST_ERROR(gma_isa_from_name(wrong[i], &isa), GMA_ERR_INVALID_ARGUMENT, wrong[i]);
    }
    gma_isa isa;
    TST_ERROR(gma_isa_from_name(NULL, &isa), GMA_ERR_INVALID_ARGUMENT, NULL);
    TST_ERROR(gma_isa_from_name("avx2", NULL), GMA_ERR_INVALID_ARGUMENT, NULL);
}

static void built_and_supported(void **state) {
    (void)state;
    assert_true(gma_isa_built(GMA_ISA_SCALAR) && gma_isa_supported(GMA_ISA_SCALAR));
    for (int i = 0; i < TIERS; i++) {
        if (gma_isa_supported(tiers[i]))
            assert_true(gma_isa_built(tiers[i]));
        gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 1, 1, 1), got;
        d.isa = tiers[i];
        gma_mixer *m = NULL;
        if (!gma_isa_supported(tiers[i])) {
            TST_ERROR(gma_mixer_create(&d, &m), GMA_ERR_UNSUPPORTED, gma_isa_name(tiers[i]));
            assert_null(m);
            continue;
        }
        TST_OK(gma_mixer_create(&d, &m));
        TST_OK(gma_mixer_get_desc(m, &got));
        assert_int_equal(got.isa, tiers[i]); /* exactly that tier */
        gma_mixer_destroy(m);
    }
    assert_false(gma_isa_built((gma_isa)77) || gma_isa_supported((gma_isa)77));
    assert_true(gma_max_threads() >= 1);
}

/* In a child with that GMA_ISA: the tier that AUTO becomes, FAILED for a proper error, UNNAMED for one that does not
 * name the variable. */
static int child(const char *value) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (value)
            setenv("GMA_ISA", value, 1);
        else
            unsetenv("GMA_ISA");
        gma_isa isa = GMA_ISA_AUTO;
        if (gma_isa_default(&isa) != GMA_OK) {
            const int named = strstr(gma_last_error(), "GMA_ISA") && strstr(gma_last_error(), value);
            gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 1, 1, 1); /* AUTO must fail too; a named tier works */
            gma_mixer *m = NULL;
            const int refused = gma_mixer_create(&d, &m) == GMA_ERR_INVALID_ARGUMENT;
            d.isa = GMA_ISA_SCALAR;
            const int works = gma_mixer_create(&d, &m) == GMA_OK;
            _exit(named && refused && works ? FAILED : UNNAMED);
        }
        setenv("GMA_ISA", "scalar", 1); /* later changes have no effect */
        gma_isa again = GMA_ISA_AUTO;
        _exit(gma_isa_default(&again) == GMA_OK && again == isa ? (int)isa : UNNAMED);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int best_up_to(gma_isa ceiling) {
    int best = GMA_ISA_SCALAR;
    for (int i = 0; i < TIERS; i++) {
        if (tiers[i] <= ceiling && gma_isa_supported(tiers[i]))
            best = (int)tiers[i];
    }
    return best;
}

static void environment_is_a_ceiling(void **state) {
    (void)state;
    for (int i = 0; i < TIERS; i++)
        assert_int_equal(child(gma_isa_name(tiers[i])), best_up_to(tiers[i]));
    assert_int_equal(child(NULL), best_up_to(GMA_ISA_AMX));
    assert_int_equal(child(""), best_up_to(GMA_ISA_AMX));
    assert_int_equal(child("bogus"), FAILED);
    assert_int_equal(child("AVX2"), FAILED);
}

/* Which tiers the tests of this build run through. */
static void say_which(void) {
    printf("tiers that run here:");
    for (int i = 0; i < TIERS; i++) {
        int emulated = 0;
#ifdef GMAI_EMULATE
        emulated = tiers[i] >= GMA_ISA_AVX512;
#endif
        if (gma_isa_supported(tiers[i]))
            printf(" %s%s", gma_isa_name(tiers[i]), emulated ? " (emulated)" : "");
    }
    printf("\n");
}

int main(void) {
    say_which();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_is_a_ceiling), /* first: nothing has read the environment yet */
        cmocka_unit_test(names),
        cmocka_unit_test(built_and_supported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
