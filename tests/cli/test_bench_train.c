/* gma bench train: what it prints and what it refuses. Nothing here depends on how fast anything is. */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli_testing.h"

#include <math.h>

#include <jansson.h>

#include "gma/bench.h"
#include "gma/gma.h"

#define SMALL "--repeat", "3", "--tokens", "40", "--layers", "2", "--width", "12", "--heads", "2", "--components", "3", \
              "--vocab", "11", "--threads", "2"
#define BENCH(...) CLI("bench", "train", SMALL, __VA_ARGS__)

static json_t *parsed(void) {
    json_error_t error;
    assert_success();
    json_t *rows = json_loads(cli.out, JSON_REJECT_DUPLICATES, &error);
    if (rows == NULL) {
        fail_msg("line %d: %s in \"%s\"", error.line, error.text, cli.out);
    }
    assert_true(json_is_array(rows));
    return rows;
}

static double number(const json_t *row, const char *key) {
    const json_t *x = json_object_get(row, key);
    if (!json_is_number(x)) {
        fail_msg("\"%s\" is no number", key);
    }
    return json_number_value(x);
}

static int64_t whole(const json_t *row, const char *key) {
    const json_t *x = json_object_get(row, key);
    if (!json_is_integer(x)) {
        fail_msg("\"%s\" is no whole number", key);
    }
    return json_integer_value(x);
}

static const char *text(const json_t *row, const char *key) {
    const json_t *x = json_object_get(row, key);
    if (!json_is_string(x)) {
        fail_msg("\"%s\" is no string", key);
    }
    return json_string_value(x);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void assert_row(const json_t *row, int64_t length, int64_t batch) {
    double ms[3];
    const json_t *list = json_object_get(row, "samples_ms");
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++) {
        ms[i] = json_number_value(json_array_get(list, i));
        assert_true(ms[i] > 0.0);
    }
    qsort(ms, 3, sizeof *ms, by_size);
    assert_true(number(row, "median_ms") == ms[1]);
    assert_true(number(row, "min_ms") == ms[0]);
    assert_int_equal(whole(row, "length"), length);
    assert_int_equal(whole(row, "batch"), batch);
    assert_int_equal(whole(row, "layers"), 2);
    assert_int_equal(whole(row, "vocab"), 11);
    assert_int_equal(whole(row, "threads"), 2);
    assert_string_equal(text(row, "version"), gma_version());
    const double tokens = (double)(length * batch), median = number(row, "median_ms");
    assert_true(fabs(number(row, "tokens_per_second") * median / (1e3 * tokens) - 1.0) < 1e-4);
    const double parts = number(row, "products_ms") + number(row, "mixer_ms") + number(row, "optimizer_ms") +
                         number(row, "rest_ms");
    assert_true(number(row, "products_ms") > 0.0 && number(row, "mixer_ms") > 0.0 && number(row, "optimizer_ms") > 0.0);
    assert_true(fabs(parts / median - 1.0) < 1e-4); /* of the very step that is the median */
    assert_true(number(row, "loss") > 0.0 && number(row, "loss") < 2.0 * log(11.0));
    assert_true(whole(row, "peak_rss_bytes") > 0);
}

static void test_json(void **state) {
    (void)state;
    BENCH("--length", "8,64", "--format", "json");
    json_t *rows = parsed();
    assert_int_equal(json_array_size(rows), 2);
    assert_row(json_array_get(rows, 0), 8, 5);
    assert_row(json_array_get(rows, 1), 64, 1); /* one sequence, even when it is longer than --tokens */
    assert_string_equal(text(json_array_get(rows, 0), "mixer"), "gma");
    assert_true(json_is_false(json_object_get(json_array_get(rows, 0), "recompute")));
    json_decref(rows);
}

/* Two steps or four: the median is the mean of the middle two, and so are the parts, which make it up. */
static void test_even(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        BENCH("--length", "16", "--repeat", i ? "4" : "2", "--format", "json");
        json_t *rows = parsed();
        const json_t *row = json_array_get(rows, 0);
        const double parts = number(row, "products_ms") + number(row, "mixer_ms") + number(row, "optimizer_ms") +
                             number(row, "rest_ms");
        if (!(fabs(parts / number(row, "median_ms") - 1.0) < 1e-4)) { /* what is printed is rounded */
            fail_msg("parts %.17g, median %.17g", parts, number(row, "median_ms"));
        }
        assert_true(number(row, "rest_ms") > 0.0);
        json_decref(rows);
    }
}

/* The same bits: after several steps of training the loss is equal to the last digit printed. */
static void test_recompute(void **state) {
    (void)state;
    double loss[2];
    for (int i = 0; i < 2; i++) {
        BENCH("--length", "16", "--preset", "default", i ? "--recompute" : "--no-recompute", "--format", "json");
        json_t *rows = parsed();
        loss[i] = number(json_array_get(rows, 0), "loss");
        assert_true(json_is_true(json_object_get(json_array_get(rows, 0), "recompute")) == i);
        json_decref(rows);
    }
    assert_true(loss[0] == loss[1]);
}

static void test_table_and_csv(void **state) {
    (void)state;
    BENCH("--length", "8,16", "--preset", "default");
    assert_success();
    assert_prints("training step, mixer gma, preset default, 2 layers, width 12");
    assert_prints("\n      16       2  ");
    BENCH("--length", "8,16", "--format", "csv");
    assert_success();
    assert_int_equal(cli_lines(cli.out), 3);
    assert_int_equal(strncmp(cli.out, "mixer,preset,length,batch,", 26), 0);
    assert_int_equal(strncmp(strchr(cli.out, '\n') + 1, "gma,paper,8,5,2,12,2,3,11,", 26), 0);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *option, *value, *complaint;
        int code;
    } wrong[] = {
        {"--length", "0", "--length must be", 2},       {"--length", "8..4", "--length must be", 2},
        {"--mixer", "tarot", "mixer", 2},               {"--preset", "lavish", "preset must be one of", 2},
        {"--heads", "5", "heads (5) must divide width", 2}, {"--vocab", "1", "--vocab must be", 2},
        {"--format", "xml", "--format must be one of", 2}, {"--turbo", "1", "there is no option --turbo", 2},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        BENCH(wrong[i].option, wrong[i].value);
        assert_complaint(wrong[i].code, wrong[i].complaint);
    }
}

/* The library's side: the steps train, and tokens are checked. */
static void test_steps(void **state) {
    (void)state;
    enum { COUNT = 2 * 8 };
    gma_settings *s;
    gma_train_bench *b;
    gma_train_times t = {.struct_size = sizeof t};
    int32_t x[COUNT], y[COUNT];
    assert_int_equal(gma_settings_create("tiny", &s), GMA_OK);
    static const char *const values[][2] = {{"batch", "2"}, {"context", "8"}, {"width", "12"}, {"lr", "0.01"}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        assert_int_equal(gma_settings_set(s, values[i][0], values[i][1]), GMA_OK);
    }
    for (int i = 0; i < COUNT; i++) {
        x[i] = i % 5;
        y[i] = (i + 1) % 5;
    }
    assert_int_equal(gma_train_bench_create(s, &b), GMA_OK);
    assert_int_equal(gma_train_bench_step(b, x, y, &t), GMA_OK);
    const double first = t.loss;
    for (int i = 0; i < 30; i++) {
        assert_int_equal(gma_train_bench_step(b, x, y, &t), GMA_OK);
    }
    assert_true(t.loss < 0.5 * first);
    assert_true(t.products > 0.0 && t.mixer > 0.0 && t.products + t.mixer + t.optimizer <= t.seconds);
    double sum;
    int64_t count;
    assert_int_equal(gma_lm_loss(gma_train_bench_model(b), x, y, 2, 8, 1, &sum, &count), GMA_OK);
    assert_true(sum / (double)count < first);
    y[3] = 256;
    assert_int_equal(gma_train_bench_step(b, x, y, &t), GMA_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(gma_last_error(), "targets[3] is 256"));
    y[3] = 0;
    t.struct_size = 0;
    assert_int_equal(gma_train_bench_step(b, x, y, &t), GMA_ERR_INVALID_ARGUMENT);
    assert_int_equal(gma_train_bench_create(NULL, &b), GMA_ERR_INVALID_ARGUMENT);
    gma_train_bench_destroy(b);
    gma_train_bench_destroy(NULL);
    gma_settings_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),    cmocka_unit_test(test_even), cmocka_unit_test(test_recompute), cmocka_unit_test(test_table_and_csv),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
