/* Every golden file (data/README.md): the naive version to 1e-9, each CPU tier to the limits of support/tol.h, and the
 * same bits for 1, 2 and 7 threads. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/golden_file.h"
#include "support/tol.h"

/* The files hold 0 as gamma_k of a masked key: what it writes. */
static int gamma_agrees(const tst_golden *g, int slot, const tst_engine *e, double tol) {
    const tst_array *want = slot == GMA_Q ? &g->gamma_q : &g->gamma_k, *mask = &g->problem.in[GMA_KEY_MASK];
    tst_array got = tst_gamma(&g->problem, slot, e);
    const int64_t K = want->shape[3], N = want->shape[2], H = want->shape[1];
    for (int64_t i = 0; mask->x && slot == GMA_K && i < got.n; i++) {
        if (mask->x[i / (K * N * H) * N + i / K % N] == 0)
            got.x[i] = 0;
    }
    const double error = tol_error(got.x, want->x, want->n, TOL_FLOOR_O);
    if (!(error <= tol))
        printf("%s: gamma of %s: error %.3g, limit %.3g\n", tst_engine_name(e), gma_slot_name(slot), error, tol);
    tst_array_free(&got);
    return error <= tol;
}

static void naive_agrees(void **state) {
    tst_golden g = tst_golden_load(*state);
    const tst_engine e = TST_NAIVE;
    tst_result got = tst_must_run(&g.problem, &e, 0);
    int ok = tst_compare(&got, &g.want, TOL_NAIVE, TOL_NAIVE, "naive");
    ok &= gamma_agrees(&g, GMA_Q, &e, TOL_NAIVE);
    ok &= gamma_agrees(&g, GMA_K, &e, TOL_NAIVE);
    tst_result_free(&got);
    tst_golden_free(&g);
    assert_true(ok);
}

static void tiers_agree(void **state) {
    const char *name = *state;
    const double tol_o = tol_of_golden(name, 0), tol_grad = tol_of_golden(name, 1);
    tst_golden g = tst_golden_load(name);
    const int threads[] = {1, 2, 7};
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, threads, 3);
    tst_result first = {0};
    int ok = n > 0;
    for (int i = 0; i < n; i++) {
        tst_result got = tst_must_run(&g.problem, &engines[i], 0);
        ok &= tst_compare(&got, &g.want, tol_o, tol_grad, tst_engine_name(&engines[i]));
        ok &= gamma_agrees(&g, GMA_Q, &engines[i], tol_o);
        ok &= gamma_agrees(&g, GMA_K, &engines[i], tol_o);
        if (engines[i].threads == 1) {
            tst_result_free(&first);
            first = got;
        } else {
            if (!tst_same_bits(&got, &first)) {
                printf("%s: not the bits of one thread\n", tst_engine_name(&engines[i]));
                ok = 0;
            }
            tst_result_free(&got);
        }
    }
    tst_result_free(&first);
    tst_golden_free(&g);
    assert_true(ok);
}

/* The comparison itself: it must refuse what it is there to refuse. */
static void comparison_refuses(void **state) {
    (void)state;
    assert_false(tol_close(NAN, 1.0, 1e9));
    assert_false(tol_close(1.0, NAN, 1e9));
    assert_false(tol_close(NAN, NAN, 1e9));
    assert_false(tol_close(INFINITY, 1.0, 1e9));
    assert_false(tol_close(INFINITY, -INFINITY, 1e9));
    const double want[3] = {1, 2, 3}, bad[3] = {1, NAN, 3}, off[3] = {1, 2.001, 3};
    assert_true(tol_error(want, want, 3, 1e-3) == 0);
    assert_true(isinf(tol_error(bad, want, 3, 1e-3)));
    assert_true(isinf(tol_error(want, bad, 3, 1e-3)));
    assert_true(tol_error(off, want, 3, 1e-3) > 3e-4);

    tst_golden g = tst_golden_load("causal_small");
    tst_result got = tst_must_run(&g.problem, &TST_NAIVE, 0);
    printf("the lines about errors that follow are expected:\n");
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        for (int side = 0; side < 2; side++) {
            tst_array *a = side ? &got.grad[slot] : &got.out[slot];
            const tst_array *reference = side ? &g.want.grad[slot] : &g.want.out[slot];
            if (!a->x || !reference->x)
                continue;
            const double kept = a->x[a->n / 2];
            a->x[a->n / 2] += 0.01;
            assert_false(tst_compare(&got, &g.want, TOL_O, TOL_GRAD, "broken on purpose"));
            a->x[a->n / 2] = NAN;
            assert_false(tst_compare(&got, &g.want, TOL_O, TOL_GRAD, "broken on purpose"));
            a->x[a->n / 2] = kept;
        }
    }
    assert_true(tst_compare(&got, &g.want, TOL_NAIVE, TOL_NAIVE, "naive"));
    tst_result_free(&got);
    tst_golden_free(&g);
}

enum { MAX_FILES = 100 };

static char names[MAX_FILES][64];
static char titles[2 * MAX_FILES][80];

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

int main(void) {
    char folder[1024];
    (void)snprintf(folder, sizeof folder, "%s/golden/data", GMA_TESTS_DIR);
    DIR *dir = opendir(folder);
    int files = 0, count = 0;
    for (struct dirent *d; dir && (d = readdir(dir)) && files < MAX_FILES;) {
        const char *dot = strstr(d->d_name, ".safetensors");
        if (dot && (size_t)(dot - d->d_name) < sizeof names[0])
            (void)snprintf(names[files++], sizeof names[0], "%.*s", (int)(dot - d->d_name), d->d_name);
    }
    if (dir)
        (void)closedir(dir);
    if (files != 32) {
        fprintf(stderr, "%s: %d golden files, expected 32\n", folder, files);
        return 1;
    }
    qsort(names, (size_t)files, sizeof names[0], by_name);

    struct CMUnitTest tests[2 * MAX_FILES + 1];
    memset(tests, 0, sizeof tests);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(comparison_refuses);
    for (int i = 0; i < files; i++) {
        (void)snprintf(titles[2 * i], sizeof titles[0], "%.60s, naive", names[i]);
        (void)snprintf(titles[2 * i + 1], sizeof titles[0], "%.60s, tiers", names[i]);
        tests[count++] = (struct CMUnitTest){titles[2 * i], naive_agrees, NULL, NULL, names[i]};
        tests[count++] = (struct CMUnitTest){titles[2 * i + 1], tiers_agree, NULL, NULL, names[i]};
    }
    return _cmocka_run_group_tests("golden", tests, (size_t)count, NULL, NULL);
}
