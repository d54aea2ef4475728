/* gma verify: the bounds hold, the measured numbers are those of the definition, and a wrong bound is reported. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli_testing.h"
#include "support/check.h"

#include <jansson.h>
#include <math.h>

#include "gma/verify.h"
#include "inspect/linalg.h"
#include "theory/singular.h"
#include "theory/statements.h"

/* ---- Singular values ------------------------------------------------------------------------------------------ */

static void singular_values(void **state) {
    (void)state;
    enum { N = 13 };
    double a[N * N], gram[N * N], values[N], first, after;
    for (int i = 0; i < N * N; i++)
        a[i] = gmal_normal(7, (uint64_t)i);
    for (int i = 0; i < N * N; i++) {
        gram[i] = 0;
        for (int k = 0; k < N; k++)
            gram[i] += a[k * N + i / N] * a[k * N + i % N];
    }
    TST_OK(gmal_symmetric_eigen(gram, N, values, NULL));
    for (int k = 0; k <= N; k++) {
        double copy[N * N];
        memcpy(copy, a, sizeof a);
        TST_OK(gmal_singular_values(copy, N, k, &first, &after));
        TST_CLOSE(first, sqrt(values[0]), 1e-12);
        TST_CLOSE(after, k < N ? sqrt(values[k]) : 0, 1e-12);
    }
    for (int i = 0; i < N * N; i++)
        a[i] = (double)(1 + i / N) * (double)(2 + i % N); /* rank 1 */
    TST_OK(gmal_singular_values(a, N, 1, &first, &after));
    assert_true(first > 100 && after < 1e-13 * first);
    double one[1] = {-3}, none[4] = {0}, nan[4] = {1, NAN, 0, 1};
    TST_OK(gmal_singular_values(one, 1, 0, &first, &after));
    TST_CLOSE(after, 3, 1e-12);
    TST_OK(gmal_singular_values(none, 2, 0, &first, &after));
    assert_true(first == 0 && after == 0);
    TST_OK(gmal_singular_values(nan, 2, 1, &first, &after));
    assert_true(isnan(first));
}

/* ---- Drawn mixtures ------------------------------------------------------------------------------------------- */

static gma_verify_options quick(void) {
    gma_verify_options o;
    TST_OK(gma_verify_options_init(&o));
    o.pairs = 3000;
    o.mixtures = 2;
    o.components = 5;
    o.width = 3;
    o.threads = 2;
    return o;
}

static gma_verify_row find(const gma_verification *v, const char *engine, const char *what) {
    gma_verify_row r = {.struct_size = sizeof r};
    for (int i = 0; i < gma_verification_rows(v); i++) {
        TST_OK(gma_verification_row(v, i, &r));
        if (strcmp(r.engine, engine) == 0 && strstr(r.what, what))
            return r;
    }
    tst_fail("%s: no row \"%s\"", engine, what);
    return r;
}

static void drawn_mixtures(void **state) {
    (void)state;
    gma_verification *v;
    const gma_verify_options o = quick();
    TST_OK(gma_verify(NULL, &o, &v));
    assert_int_equal(gma_verification_mixtures(v), 4);
    assert_int_equal(gma_verification_violations(v), 0);
    for (int i = GMA_ISA_SCALAR - 1; i == 0 || gma_isa_name((gma_isa)i); i++) {
        if (i && !(gma_isa_built((gma_isa)i) && gma_isa_supported((gma_isa)i)))
            continue;
        const char *engine = i ? gma_isa_name((gma_isa)i) : "double";
        const double tol = i ? 1e-5 : 1e-12;
        /* The two made mixtures are simple enough to be computed by hand. */
        TST_CLOSE(find(v, engine, "logit^q_k| / V: sharp").measured, 1, i ? 1e-5 : 1e-6); /* eps 1e-6 of a denominator of 4 */
        const double share = 1 / (1 + exp(18)); /* of the query's component, keys three times as far out */
        TST_CLOSE(find(v, engine, "logit^k_jk| / V: sharp").measured, 2 * (1 - share), tol);
        const gma_verify_row pairs = find(v, engine, "all pairs");
        assert_true(pairs.measured > 0.99 && pairs.measured <= 1.002); /* M / s of mixture 2 */
        assert_true(pairs.checked >= 3000);
        assert_true(find(v, engine, "smallest denominator").measured < 1e-19);
        assert_true(find(v, engine, "causal operator, N").measured > 1e-3);
        assert_true(find(v, engine, "floor 0.01").measured > 30 * find(v, engine, "floor 1").measured / 2);
    }
    assert_true(find(v, "double", "growth").measured > 0.95);
    gma_verification_destroy(v);
}

static void wrong_bounds(void **state) {
    (void)state;
    gma_verification *v;
    gma_verify_options o = quick();
    o.bound_scale = 0.9;
    TST_OK(gma_verify(NULL, &o, &v));
    assert_true(gma_verification_violations(v) >= 5);
    const gma_verify_row r = find(v, "double", "logit^k_jk| / V: sharp");
    assert_int_equal(r.holds, 0);
    assert_true(r.violations > 0 && r.measured > r.bound);
    assert_int_equal(find(v, "double", "logit^q_k| / V").holds, 1); /* 2.7 is still enough */
    gma_verification_destroy(v);
    o.bound_scale = 1e-9; /* every bound but those of 0 */
    TST_OK(gma_verify(NULL, &o, &v));
    gma_verify_row row = {.struct_size = sizeof row};
    for (int i = 0; i < gma_verification_rows(v); i++) {
        TST_OK(gma_verification_row(v, i, &row));
        if (row.relation && row.bound != 0 && row.measured != 0 && !strstr(row.what, "sigma_(K+1)"))
            assert_int_equal(row.holds, 0);
    }
    gma_verification_destroy(v);
    o.bound_scale = 1;
    o.components = 1; /* nothing to choose from: gamma = 1 */
    TST_OK(gma_verify(NULL, &o, &v));
    assert_int_equal(gma_verification_violations(v), 0);
    gma_verification_destroy(v);
}

static void records(void **state) {
    (void)state;
    gmal_report report = {.bound_scale = 1};
    const gmal_engine e = {"double", 1, 1, GMA_ISA_AUTO, 0x1p-53};
    const gmal_case m = {.layer = 3, .head = 1}, other = {.layer = 4, .head = 0};
    const gmal_subject a = {&e, &m, &report, 0}, b = {&e, &other, &report, 0};
    gmal_record(&a, "i", "x", GMAL_AT_MOST, 0.5, 1, 10);
    gmal_record(&b, "i", "x", GMAL_AT_MOST, 0.8, 2, 10);
    assert_int_equal(report.count, 1);
    assert_true(report.rows[0].measured == 0.5 && report.rows[0].layer == 3 && report.rows[0].checked == 20); /* closest */
    gmal_record(&b, "i", "x", GMAL_AT_MOST, NAN, 2, 1);
    assert_true(isnan(report.rows[0].measured) && !report.rows[0].holds && report.rows[0].layer == 4);
    gmal_record(&a, "i", "y", GMAL_AT_LEAST, 2, 1, 1);
    assert_int_equal(report.rows[1].holds, 1);
    gmal_record(&a, "i", "y", GMAL_AT_LEAST, 0.9, 1, 1);
    assert_true(!report.rows[1].holds && report.rows[1].violations == 1 && report.rows[1].measured == 0.9);
    gmal_record(&a, "i", "z", GMAL_AT_LEAST, -1e-30, 0, 1);
    assert_int_equal(report.rows[2].holds, 0);
    free(report.rows);
}

/* ---- Models --------------------------------------------------------------------------------------------------- */

static gma_lm *model(const char *pattern, int levers) {
    gma_lm_config c;
    gma_lm *lm;
    TST_OK(gma_lm_config_init(&c));
    snprintf(c.pattern, sizeof c.pattern, "%s", pattern);
    c.width = 32;
    c.heads = 4;
    c.kv_heads = 2;
    c.value_dim = 12;
    c.context = 30;
    c.conv = levers ? 3 : 0;
    if (strstr(pattern, "gma")) {
        c.components = 6;
        c.logit_scale = c.forget_gate = levers;
    }
    TST_OK(gma_lm_create(&c, 5, &lm));
    return lm;
}

static void models(void **state) {
    (void)state;
    gma_verify_options o = quick();
    gma_verification *v;
    char text[200];
    for (int i = 0; i < 200; i++)
        text[i] = (char)('a' + i * i % 23);
    FILE *f = fopen(in_folder("long"), "wb");
    assert_int_equal(fwrite(text, 1, 31, f), 31);
    fclose(f);
    f = fopen(in_folder("short"), "wb");
    assert_int_equal(fwrite(text, 1, 30, f), 30);
    fclose(f);
    for (int levers = 0; levers < 2; levers++) {
        gma_lm *lm = model("gma,softmax,gma", levers);
        o.mixtures = 0;
        for (int i = 0; i < 2; i++) {
            o.data = i ? in_folder("long") : NULL; /* 4K = 24 tokens, a window of 30 */
            TST_OK(gma_verify(lm, &o, &v));
            assert_int_equal(gma_verification_mixtures(v), 8);
            assert_int_equal(gma_verification_violations(v), 0);
            const gma_verify_row r = find(v, "double", "drawn pairs");
            assert_true((r.layer == 0 || r.layer == 2) && r.head >= 0 && r.head < 4);
            gma_verification_destroy(v);
        }
        o.mixtures = 3;
        TST_OK(gma_verify(lm, &o, &v));
        assert_int_equal(gma_verification_mixtures(v), 3);
        gma_verification_destroy(v);
        o.data = in_folder("short");
        TST_ERROR(gma_verify(lm, &o, &v), GMA_ERR_INVALID_ARGUMENT, "has 30 tokens; 1 windows of 30 need 31");
        assert_null(v);
        o.data = "nowhere";
        TST_ERROR(gma_verify(lm, &o, &v), GMA_ERR_IO, "nowhere");
        gma_lm_destroy(lm);
    }
    TST_ERROR(gma_verify(NULL, &o, &v), GMA_ERR_INVALID_ARGUMENT, "needs a model");
    gma_lm *lm = model("softmax", 0);
    TST_ERROR(gma_verify(lm, NULL, &v), GMA_ERR_UNSUPPORTED, "no gma layer");
    gma_lm_destroy(lm);
    o.data = NULL;
    o.bound_scale = 0;
    TST_ERROR(gma_verify(NULL, &o, &v), GMA_ERR_INVALID_ARGUMENT, "bound_scale");
    TST_ERROR(gma_verify(NULL, &(gma_verify_options){0}, &v), GMA_ERR_INVALID_ARGUMENT, "gma_verify_options_init");
}

/* ---- The verb ------------------------------------------------------------------------------------------------- */

#define SMALL "--random", "--mixtures", "1", "--components", "3", "--width", "2", "--pairs", "500"

static void verb(void **state) {
    (void)state;
    assert_int_equal(CLI("verify", SMALL), 0);
    assert_success();
    assert_prints("3 mixtures, 0 violations");
    assert_prints("scalar");
    assert_int_equal(CLI("verify", SMALL, "--bound-scale", "0.5"), 1);
    assert_prints("VIOLATED");
    assert_int_equal(cli_lines(cli.err), 1);
    assert_non_null(strstr(cli.err, "violated"));
    assert_int_equal(CLI("verify", SMALL, "--json", "--bound-scale", "0.5"), 1);
    json_t *json = json_loads(cli.out, 0, NULL);
    assert_non_null(json);
    const json_t *rows = json_object_get(json, "rows");
    json_int_t broken = 0;
    for (size_t i = 0; i < json_array_size(rows); i++)
        broken += json_is_false(json_object_get(json_array_get(rows, i), "holds"));
    assert_true(broken > 0 && json_integer_value(json_object_get(json, "violations")) == broken);
    json_decref(json);
    CLI("verify");
    assert_complaint(2, "give a MODEL, or --random");
    CLI("verify", "x", "--random");
    assert_complaint(2, "exclude each other");
    CLI("verify", "nowhere");
    assert_complaint(1, "no model here");
    CLI("verify", "x", "--components", "3");
    assert_complaint(2, "--components is for --random");
    CLI("verify", "x", "--context", "8");
    assert_complaint(2, "there is no --data FILE");
    gma_lm *lm = model("gma", 0);
    TST_OK(gma_lm_save(lm, in_folder("four"), GMA_F32));
    gma_lm_destroy(lm);
    CLI("verify", "four", "--mixtures", "9");
    assert_complaint(2, "mixtures is 9, and the model has 4 gma heads");
    CLI("verify", "--random", "--data", "x");
    assert_complaint(2, "--data and --context are for a MODEL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(singular_values), cmocka_unit_test(drawn_mixtures), cmocka_unit_test(wrong_bounds),
        cmocka_unit_test(records),         cmocka_unit_test(models),         cmocka_unit_test(verb),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
