/* gma bench: what it prints and what it refuses. Nothing here depends on how fast anything is. */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli_testing.h"

#include <math.h>

#include <jansson.h>

#include "gma/bench.h"
#include "gma/gma.h"

#define SMALL "--repeat", "3", "--scrub", "1", "--dim", "8", "--components", "5", "--heads", "4", "--threads", "2"
#define BENCH(...) CLI("bench", "op", SMALL, __VA_ARGS__)

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

/* Three positive samples, and the median and the least of them as stated. */
static void assert_samples(const json_t *row, const char *samples, const char *median, const char *min) {
    double ms[3];
    const json_t *list = json_object_get(row, samples);
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++) {
        ms[i] = json_number_value(json_array_get(list, i));
        assert_true(ms[i] > 0.0);
    }
    qsort(ms, 3, sizeof *ms, by_size);
    assert_true(number(row, median) == ms[1]);
    assert_true(number(row, min) == ms[0]);
}

static void assert_row(const json_t *row, const char *pass, int64_t length) {
    assert_string_equal(text(row, "mixer"), "gma");
    assert_string_equal(text(row, "pass"), pass);
    assert_int_equal(whole(row, "length"), length);
    assert_int_equal(whole(row, "threads"), 2);
    assert_int_equal(whole(row, "heads"), 4);
    assert_int_equal(whole(row, "dim"), 8);
    assert_int_equal(whole(row, "components"), 5);
    assert_int_equal(whole(row, "repeat"), 3);
    assert_string_equal(text(row, "version"), gma_version());
    assert_samples(row, "samples_ms", "median_ms", "min_ms");
    assert_true(number(row, "peak_gflops") > 0.0);
    assert_true(whole(row, "peak_size") >= 256);
    assert_true(text(row, "peak_by")[0] != '\0' && text(row, "peak_isa")[0] != '\0');
    assert_true(whole(row, "workspace_bytes") > 0);
    assert_true(whole(row, "peak_rss_bytes") > 0);
    assert_true(fabs(number(row, "efficiency") * number(row, "peak_gflops") - number(row, "gflops")) <=
                1e-4 * number(row, "gflops"));
}

/* The printed rate is `flops` a call (section "useful work" of the help) by the printed median. */
static void assert_rate(const json_t *row, double flops) {
    assert_true(fabs(number(row, "gflops") * number(row, "median_ms") * 1e6 / flops - 1.0) < 1e-4);
}

static void test_forward(void **state) {
    (void)state;
    BENCH("--length", "3,64..256,70..90+10", "--format", "json", "--isa", "scalar");
    const int64_t lengths[] = {3, 64, 128, 256, 70, 80, 90};
    json_t *rows = parsed();
    assert_int_equal(json_array_size(rows), 7);
    for (size_t i = 0; i < 7; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_row(row, "fwd", lengths[i]);
        assert_rate(row, 4.0 * (double)lengths[i] * (8 + 4) * 5 * 8);
        assert_string_equal(text(row, "isa"), "scalar");
        assert_string_equal(text(row, "dtype"), "f32");
        assert_true(json_is_false(json_object_get(row, "causal")));
        assert_samples(row, "cold_samples_ms", "cold_median_ms", "cold_min_ms");
        assert_int_equal(whole(row, "scrub_bytes"), 1 << 20);
        assert_true(json_is_null(json_object_get(row, "state_bytes")));
        assert_true(json_is_null(json_object_get(row, "floor_ms")));
    }
    json_decref(rows);
}

static void test_backward(void **state) {
    (void)state;
    BENCH("--pass", "fwdbwd", "--causal", "--decay", "--scale", "--kv-heads", "2", "--length", "65", "--no-cold", "--format",
          "json");
    json_t *rows = parsed();
    const json_t *row = json_array_get(rows, 0);
    assert_row(row, "fwdbwd", 65);
    assert_int_equal(whole(row, "kv_heads"), 2);
    /* query heads: 4KR + 2KD, 12KR + 4KD; key heads: 4KR + 2KD, 12KR + 6KD */
    assert_rate(row, 65.0 * (4 * (16 + 6) + 2 * (16 + 8)) * 5 * 8);
    assert_true(json_is_true(json_object_get(row, "causal")));
    assert_true(json_is_true(json_object_get(row, "decay")));
    assert_true(json_is_true(json_object_get(row, "scale")));
    assert_true(json_is_null(json_object_get(row, "cold_median_ms")));
    assert_true(json_is_null(json_object_get(row, "cold_samples_ms")));
    json_decref(rows);
}

/* Widths that differ, and sequences packed into one row: compared with the definition before they are timed. */
static void test_widths_and_packed(void **state) {
    (void)state;
    BENCH("--pass", "fwdbwd", "--causal", "--routing-dim", "12", "--packed", "7", "--length", "65", "--no-cold", "--format",
          "json");
    json_t *rows = parsed();
    const json_t *row = json_array_get(rows, 0);
    assert_row(row, "fwdbwd", 65);
    assert_int_equal(whole(row, "packed"), 7);
    assert_int_equal(whole(row, "routing_dim"), 12);
    assert_rate(row, 65.0 * 4 * ((8 + 24) * 5 * 12 + (4 + 10) * 5 * 8));
    json_decref(rows);
    BENCH("--mixer", "softmax", "--packed", "5", "--routing-dim", "6", "--length", "60", "--no-cold", "--format", "json");
    rows = parsed();
    assert_rate(json_array_get(rows, 0), 5.0 * 4 * (12 * 12) * (2 * 6 + 2 * 8));
    json_decref(rows);
    BENCH("--length", "20", "--no-cold", "--format", "json");
    rows = parsed();
    assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "packed")));
    json_decref(rows);
    CLI("bench", "op", "--packed", "5", "--length", "64,4");
    assert_int_equal(cli.code, 2);
    assert_non_null(strstr(cli.err, "--packed 5 sequences need as many tokens; --length has 4"));
    CLI("bench", "op", "--packed", "5", "--batch", "2");
    assert_int_equal(cli.code, 2);
    CLI("bench", "op", "--mixer", "linformer", "--packed", "2", "--length", "64");
    assert_int_equal(cli.code, 2);
    assert_non_null(strstr(cli.err, "--packed: mixer 'linformer' cannot mix packed sequences"));
    CLI("bench", "op", "--mixer", "mha", "--packed", "2", "--length", "64");
    assert_int_equal(cli.code, 2);
    assert_non_null(strstr(cli.err, "--packed: mixer 'mha'"));
}

static void test_decode(void **state) {
    (void)state;
    BENCH("--pass", "decode", "--batch", "2", "--length", "100,1000000", "--decay", "--format", "json");
    json_t *rows = parsed();
    assert_int_equal(json_array_size(rows), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_row(row, "decode", i == 0 ? 100 : 1000000);
        assert_rate(row, 2.0 * 4 * (8 + 4) * 5 * 8);
        assert_true(number(row, "floor_ms") > 0.0);
        assert_true(number(row, "cold_floor_ms") > 0.0);
        /* Decoding needs no more memory further on. */
        assert_int_equal(whole(row, "state_bytes"), whole(json_array_get(rows, 0), "state_bytes"));
        assert_int_equal(whole(row, "workspace_bytes"), whole(row, "state_bytes"));
    }
    json_decref(rows);
}

/* softmax and mha: what counts is what is seen; mha stores all scores, so twice the length takes four times the memory. */
static void test_softmax(void **state) {
    (void)state;
    static const char *const mixers[] = {"softmax", "mha"};
    for (int i = 0; i < 2; i++) {
        BENCH("--mixer", mixers[i], "--causal", "--length", "256,512", "--no-cold", "--format", "json");
        json_t *rows = parsed();
        assert_string_equal(text(json_array_get(rows, 0), "mixer"), mixers[i]);
        assert_rate(json_array_get(rows, 0), 4.0 * (256 * 257 / 2) * 4 * 8);
        const double growth = (double)whole(json_array_get(rows, 1), "workspace_bytes") /
                              (double)whole(json_array_get(rows, 0), "workspace_bytes");
        assert_true(i == 0 ? growth == 1.0 : growth > 3.0);
        json_decref(rows);
        BENCH("--mixer", mixers[i], "--pass", "fwdbwd", "--length", "65", "--no-cold", "--format", "json");
        rows = parsed();
        assert_rate(json_array_get(rows, 0), 4.0 * (65 * 65) * 14 * 8);
        json_decref(rows);
    }
    BENCH("--mixer", "softmax", "--pass", "decode", "--length", "100,1000", "--format", "json");
    json_t *rows = parsed();
    assert_rate(json_array_get(rows, 1), 4.0 * 1000 * 4 * 8);
    assert_true(number(json_array_get(rows, 1), "floor_ms") > 0.0);
    json_decref(rows);
    BENCH("--mixer", "mha", "--pass", "decode", "--length", "100");
    assert_complaint(2, "mha");
}

static void test_bf16(void **state) {
    (void)state;
    BENCH("--pass", "fwdbwd", "--dtype", "bf16", "--length", "40", "--format", "json");
    json_t *rows = parsed();
    assert_row(json_array_get(rows, 0), "fwdbwd", 40);
    assert_string_equal(text(json_array_get(rows, 0), "dtype"), "bf16");
    json_decref(rows);
}

static int fields(const char *line) {
    int count = 1;
    for (; *line != '\n' && *line != '\0'; line++) {
        count += *line == ',';
    }
    return count;
}

static void test_csv(void **state) {
    (void)state;
    BENCH("--length", "8,16", "--format", "csv");
    assert_success();
    assert_int_equal(cli_lines(cli.out), 3);
    assert_int_equal(strncmp(cli.out, "mixer,pass,causal,", 18), 0);
    const char *second = strchr(cli.out, '\n') + 1, *third = strchr(second, '\n') + 1;
    assert_int_equal(strncmp(second, "gma,fwd,0,1,4,4,8,,8,8,5,f32,", 29), 0);
    assert_int_equal(fields(second), fields(cli.out));
    assert_int_equal(fields(third), fields(cli.out));
}

static void test_table(void **state) {
    (void)state;
    BENCH("--length", "8,16");
    assert_success();
    assert_prints("gma fwd, f32, batch 1, 4 heads");
    assert_prints("\n          16  ");
    BENCH("--pass", "decode", "--no-cold", "--length", "7");
    assert_success();
    assert_prints("position");
    assert_prints("floor ms");
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *option, *value, *complaint;
    } wrong[] = {
        {"--length", "0", "--length must be"},
        {"--length", "8..4", "--length must be"},
        {"--length", "8,", "--length must be"},
        {"--length", "8..16+0", "--length must be"},
        {"--length", "-5", "--length must be"},
        {"--length", "9999999999", "--length must be"},
        {"--length", "1..1000+1", "--length must be"},
        {"--pass", "sideways", "--pass must be one of fwd|fwdbwd|decode"},
        {"--format", "xml", "--format must be one of table|json|csv"},
        {"--mixer", "tarot", "--mixer: "},
        {"--isa", "quantum", "--isa: "},
        {"--repeat", "0", "--repeat must be"},
        {"--components", "0", "--components must be"},
        {"--kv-heads", "3", "--kv-heads must divide --heads"},
        {"--turbo", "1", "there is no option --turbo"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        BENCH(wrong[i].option, wrong[i].value);
        assert_complaint(2, wrong[i].complaint);
    }
    BENCH("--decay");
    assert_complaint(2, "--decay needs --causal");
    BENCH("extra");
    assert_complaint(2, "extra");
    CLI("bench");
    assert_complaint(2, "expects what to measure");
    CLI("bench", "tea");
    assert_complaint(2, "\"tea\"");
    BENCH("--length", "4294967296", "--batch", "1048576");
    assert_complaint(1, "2^40 elements");
}

static void test_help(void **state) {
    (void)state;
    CLI("bench", "--help");
    assert_success();
    assert_prints("gma bench WHAT");
    CLI("bench", "op", "--help");
    assert_success();
    assert_prints("--components");
}

/* The library's side. */
static void test_memory_pass(void **state) {
    (void)state;
    static const size_t counts[][2] = {{0, 0}, {1000, 0}, {0, 1000}, {1000, 37}, {37, 1000}, {5, 5}};
    float read[1000] = {0}, update[1000];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            memset(update, 0, sizeof update);
            assert_int_equal(gma_memory_pass(read, counts[i][0], update, counts[i][1], threads), GMA_OK);
            for (size_t j = 0; j < 1000; j++) {
                assert_true(update[j] == 0.0f && read[j] == 0.0f);
            }
        }
    }
    /* Every float is reached, once. */
    for (size_t j = 0; j < 1000; j++) {
        read[j] = 1.0f;
    }
    assert_int_equal(gma_memory_pass(read, 1000, update, 1000, 3), GMA_OK);
    for (size_t j = 0; j < 1000; j++) {
        assert_true(update[j] == 1.0f);
    }
    assert_int_equal(gma_memory_pass(NULL, 1, update, 1000, 1), GMA_ERR_INVALID_ARGUMENT);
    assert_int_equal(gma_memory_pass(read, 1, NULL, 1, 1), GMA_ERR_INVALID_ARGUMENT);
}

static void test_peak_refuses(void **state) {
    (void)state;
    gma_gemm_speed speed = {.struct_size = 1};
    assert_int_equal(gma_gemm_peak(GMA_ISA_AUTO, 1, NULL), GMA_ERR_INVALID_ARGUMENT);
    assert_int_equal(gma_gemm_peak(GMA_ISA_AUTO, 1, &speed), GMA_ERR_INVALID_ARGUMENT);
    speed.struct_size = sizeof speed;
    assert_int_equal(gma_gemm_peak(GMA_ISA_AUTO, -1, &speed), GMA_ERR_INVALID_ARGUMENT);
}

/* An option that the mixer has no use for is accepted, and is not told as if it had been used. */
static void test_unused_options(void **state) {
    (void)state;
    static const struct {
        const char *mixer;
        int64_t components, kv_heads; /* 0: null */
        int decay, scale, causal;
    } all[] = {{"gma", 5, 2, 1, 1, 1},       {"linear", 8, 2, 1, 0, 1}, {"performer", 5, 2, 1, 0, 1},
               {"softmax", 0, 2, 0, 0, 1}, {"mha", 0, 4, 0, 0, 1},    {"mamba", 16, 4, 0, 0, 1}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        BENCH("--mixer", all[i].mixer, "--causal", "--decay", "--scale", "--kv-heads", "2", "--length", "20", "--no-cold", "--format",
              "json");
        json_t *rows = parsed();
        const json_t *row = json_array_get(rows, 0);
        if (all[i].components > 0) {
            assert_int_equal(whole(row, "components"), all[i].components);
        } else {
            assert_true(json_is_null(json_object_get(row, "components")));
        }
        assert_int_equal(whole(row, "kv_heads"), all[i].kv_heads);
        assert_int_equal(json_is_true(json_object_get(row, "decay")), all[i].decay);
        assert_int_equal(json_is_true(json_object_get(row, "scale")), all[i].scale);
        assert_int_equal(json_is_true(json_object_get(row, "causal")), all[i].causal);
        json_decref(rows);
    }
    /* mamba has no choice; decay needs no --causal where there is none to use; no heads to share out. */
    BENCH("--mixer", "mamba", "--decay", "--kv-heads", "3", "--length", "20", "--no-cold", "--format", "json");
    json_t *rows = parsed();
    assert_true(json_is_true(json_object_get(json_array_get(rows, 0), "causal")));
    json_decref(rows);
    BENCH("--mixer", "linformer", "--causal", "--length", "20");
    assert_complaint(2, "linformer");
    BENCH("--mixer", "softmax", "--length", "20", "--no-cold");
    assert_success();
    assert_null(strstr(cli.out, "components"));
}

/* Every mixer of the manifest, each pass it has; what it lacks is an error that names it. */
static void test_every_mixer(void **state) {
    (void)state;
    static const char *const passes[] = {"fwd", "fwdbwd", "decode"};
    int mixers = 0;
    for (int kind = 1; kind < 100; kind++) {
        const char *name = gma_mixer_kind_name((gma_mixer_kind)kind);
        for (int pass = 0; pass < 3 && name != NULL; pass++) {
            BENCH("--mixer", name, "--pass", passes[pass], "--length", "20", "--format", "json");
            if (strcmp(name, "linformer") == 0 && pass == 2) {
                assert_int_not_equal(cli.code, 0);
                assert_non_null(strstr(cli.err, name));
                continue;
            }
            json_t *rows = parsed();
            assert_string_equal(text(json_array_get(rows, 0), "mixer"), name);
            assert_true(number(json_array_get(rows, 0), "gflops") > 0.0);
            json_decref(rows);
        }
        mixers += name != NULL;
    }
    assert_true(mixers >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward), cmocka_unit_test(test_backward), cmocka_unit_test(test_widths_and_packed), cmocka_unit_test(test_decode), cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_bf16),    cmocka_unit_test(test_csv),      cmocka_unit_test(test_table),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_help),     cmocka_unit_test(test_memory_pass),
        cmocka_unit_test(test_peak_refuses), cmocka_unit_test(test_every_mixer),
        cmocka_unit_test(test_unused_options),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
