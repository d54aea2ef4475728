/* Data, settings, n-gram tables, plots. */
#define _POSIX_C_SOURCE 200809L
#include "support/folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokens.h"
#include "gma/train.h"
#include "train/evaluate.h"
#include "train/settings.h"

/* ---- Tokens ---------------------------------------------------------------------------------------------------- */

/* K2 for bytes: how many windows, and which tokens they hold. */
static void test_windows(void **state) {
    (void)state;
    static const int64_t lengths[][2] = {{1, 0}, {8, 0}, {9, 1}, {16, 1}, {17, 2}, {24, 2}, {25, 3}};
    char text[64];
    for (int i = 0; i < 64; i++) text[i] = (char)(200 + i);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        gmal_tokens t;
        TST_OK(gmal_tokens_open(put_file("data", text, (size_t)lengths[i][0]), 1, 256, &t));
        const gmal_span span = {&t, 0, t.count};
        assert_int_equal(gmal_span_windows(&span, 8), lengths[i][1]);
        if (lengths[i][1] == 0) {
            TST_ERROR(gmal_need_window(&span, 8, "data", "it"), GMA_ERR_INVALID_ARGUMENT, "needs at least 9");
        } else {
            int32_t x[8], y[8];
            const int64_t at = gmal_order_window(&span, 8, 1, 0);
            assert_int_equal(at % 8, 0);
            gmal_tokens_window(&t, at, 8, x, y);
            for (int j = 0; j < 8; j++) {
                assert_int_equal(x[j], (200 + at + j) % 256);
                assert_int_equal(y[j], (201 + at + j) % 256);
            }
        }
        gmal_tokens_close(&t);
    }
}

static void test_wrong_files(void **state) {
    (void)state;
    gmal_tokens t;
    const uint16_t ids[5] = {0, 9, 3, 10, 65535}, top[2] = {65535, 1};
    TST_ERROR(gmal_tokens_open(put_file("none", "", 0), 1, 256, &t), GMA_ERR_FORMAT, "is empty");
    TST_ERROR(gmal_tokens_open("/nonexistent/file", 1, 256, &t), GMA_ERR_IO, "/nonexistent/file: cannot be opened");
    TST_ERROR(gmal_tokens_open(test_folder, 1, 256, &t), GMA_ERR_IO, "not a regular file");
    TST_ERROR(gmal_tokens_open(put_file("odd", "abc", 3), 2, 256, &t), GMA_ERR_FORMAT, "odd number of bytes (3)");
    /* K7: the id and where it is. */
    TST_ERROR(gmal_tokens_open(put_file("ids", ids, sizeof ids), 2, 10, &t), GMA_ERR_FORMAT, "token id 10 at byte 6");
    TST_ERROR(gmal_tokens_open(put_file("ids", ids, sizeof ids), 2, 65535, &t), GMA_ERR_FORMAT,
              "token id 65535 at byte 8");
    TST_ERROR(gmal_tokens_open(put_file("top", top, sizeof top), 2, 65535, &t), GMA_ERR_FORMAT,
              "token id 65535 at byte 0");
    TST_OK(gmal_tokens_open(put_file("ids", ids, sizeof ids), 2, 65536, &t));
    assert_int_equal(t.count, 5);
    assert_int_equal(gmal_token(&t, 4), 65535);
    gmal_tokens_close(&t);
    /* L1: every byte counts, whatever it is. */
    static const char *const bytes[] = {("a\xff" "b"), "\xe6\xad", "\xc0\x80", "\xed\xa0\x80"};
    for (size_t i = 0; i < 4; i++) {
        TST_OK(gmal_tokens_open(put_file("bytes", bytes[i], strlen(bytes[i])), 1, 256, &t));
        assert_int_equal(t.count, strlen(bytes[i]));
        for (int64_t j = 0; j < t.count; j++) assert_int_equal(gmal_token(&t, j), (unsigned char)bytes[i][j]);
        gmal_tokens_close(&t);
    }
}

/* Every window once an epoch, whatever their number; other epochs and seeds in another order, inside the span. */
static void test_order(void **state) {
    (void)state;
    static char text[4000];
    gmal_tokens t;
    TST_OK(gmal_tokens_open(put_file("data", text, sizeof text), 1, 256, &t));
    for (int64_t windows = 1; windows < 260; windows = windows * 3 / 2 + 1) {
        const int64_t spare = windows % 5, n = 7;
        const gmal_span span = {&t, 10, 10 + windows * n + 1 + spare};
        int same = 0, shifted = 0;
        for (int64_t epoch = 0; epoch < 6; epoch++) {
            char seen[300] = {0};
            int64_t shift = -1;
            for (int64_t i = 0; i < windows; i++) {
                const int64_t at = gmal_order_window(&span, n, 3, epoch * windows + i) - span.begin;
                if (shift < 0) shift = at % n;
                assert_in_range(at, 0, span.end - span.begin - n - 1);
                assert_int_equal(at % n, shift);
                assert_false(seen[at / n]);
                seen[at / n] = 1;
                same += at / n == i;
            }
            shifted += shift != 0;
            assert_true(epoch > 0 || shift == 0);
        }
        if (windows > 20) assert_true(same < 3 * windows);
        if (spare == 4) assert_true(shifted > 0);
    }
    gmal_tokens_close(&t);
}

static void test_split(void **state) {
    (void)state;
    gmal_tokens t = {.count = 1115394, .width = 1};
    gmal_span train, val;
    gmal_split(&t, 0.1, 256, &train, &val);
    assert_int_equal(train.end, 1003854);
    assert_int_equal(val.end - val.begin, 111540);
    t.count = 90; /* 9 tokens hold no window of 9 and its target: all is for training */
    gmal_split(&t, 0.1, 9, &train, &val);
    assert_int_equal(train.end, 90);
    assert_int_equal(val.end - val.begin, 0);
    gmal_split(&t, 0.1, 8, &train, &val);
    assert_int_equal(train.end, 81);
}

/* ---- Tables ---------------------------------------------------------------------------------------------------- */

static void test_ngrams(void **state) {
    (void)state;
    double two, three;
    /* By hand: train "ababababa" + "b", test "ab..." */
    char text[20];
    for (int i = 0; i < 20; i++) text[i] = i % 2 ? 'b' : 'a';
    TST_OK(gma_ngram_loss(put_file("ab", text, 20), 0.5, 2, &two));
    /* a->b seen 5 times, b->a 4 times among the first ten; the test has 5 ab and 4 ba. */
    const double ab = log((5 + 0.05) / (5 + 0.05 * 256)), ba = log((4 + 0.05) / (4 + 0.05 * 256));
    TST_CLOSE(two, -(5 * ab + 4 * ba) / 9, 1e-12);
    /* The figures everyone compares with. */
    TST_OK(gma_ngram_loss("data/tinyshakespeare/input.txt", 0.1, 2, &two));
    TST_OK(gma_ngram_loss("data/tinyshakespeare/input.txt", 0.1, 3, &three));
    TST_CLOSE(two, 2.485, 0.0006);
    TST_CLOSE(three, 2.066, 0.0006);
    TST_ERROR(gma_ngram_loss("data/tinyshakespeare/input.txt", 0.1, 4, &three), GMA_ERR_INVALID_ARGUMENT, "order");
}

/* ---- Settings -------------------------------------------------------------------------------------------------- */

static void test_settings(void **state) {
    (void)state;
    gma_settings *s, *back;
    char text[100];
    for (int i = 0; gma_settings_preset(i, NULL); i++) {
        TST_OK(gma_settings_create(gma_settings_preset(i, NULL), &s));
        TST_OK(gma_settings_resolve(s));
        gma_settings_destroy(s);
    }
    TST_ERROR(gma_settings_create("nope", &s), GMA_ERR_INVALID_ARGUMENT, "default, paper, demo, tiny");
    TST_OK(gma_settings_create("paper", &s));
    static const char *const off[] = {"logit_scale", "forget_gate", "output_gate", "conv"};
    for (size_t i = 0; i < 4; i++) {
        TST_OK(gma_settings_get(s, off[i], text, sizeof text));
        assert_string_equal(text, "0");
    }
    TST_OK(gma_settings_set(s, "min-lr-ratio", "0.3"));
    TST_OK(gma_settings_set(s, "data", "x\"y"));
    TST_OK(gma_settings_set(s, "seed", "9000000000000000"));
    TST_OK(gma_settings_resolve(s));
    /* What is saved reads back the same. */
    json_t *json = gmal_settings_to_json(s);
    char *dump = json_dumps(json, JSON_REAL_PRECISION(17));
    TST_OK(gma_settings_create("default", &back));
    TST_OK(gma_settings_read(back, put_file("s.json", dump, strlen(dump))));
    TST_OK(gma_settings_resolve(back)); /* what was derived is saved as such */
    for (int i = 0; i < gma_settings_count(); i++) {
        gma_setting_info info;
        char a[100], b[100];
        TST_OK(gma_settings_info(i, &info));
        TST_OK(gma_settings_get(s, info.name, a, sizeof a));
        TST_OK(gma_settings_get(back, info.name, b, sizeof b));
        assert_string_equal(a, b);
        assert_true(strlen(info.help) > 5);
    }
    TST_OK(gma_settings_read(back, put_file("s.json", dump, strlen(dump))));
    TST_OK(gma_settings_set(back, "width", "96"));
    TST_OK(gma_settings_resolve(back));
    TST_OK(gma_settings_get(back, "mlp_width", text, sizeof text));
    assert_string_equal(text, "384"); /* follows the new width */
    free(dump);
    json_decref(json);
    /* Wrong ones. */
    TST_ERROR(gma_settings_set(s, "layrs", "3"), GMA_ERR_INVALID_ARGUMENT, "\"layrs\"");
    TST_ERROR(gma_settings_set(s, "layers", "0"), GMA_ERR_INVALID_ARGUMENT, "layers must be a whole number from 1");
    TST_ERROR(gma_settings_set(s, "layers", "3x"), GMA_ERR_INVALID_ARGUMENT, "layers");
    TST_ERROR(gma_settings_set(s, "lr", "nan"), GMA_ERR_INVALID_ARGUMENT, "lr");
    TST_ERROR(gma_settings_set(s, "mlp", "relu"), GMA_ERR_INVALID_ARGUMENT, "gelu|swiglu");
    static const struct {
        const char *text, *why;
    } wrong[] = {{"{\"layers\": 0}", "layers must be"}, {"{\"layrs\": 1}", "\"layrs\""},
                 {"{\"layers\": [1]}", "plain value"},  {"{\"layers\": 1", "line 1"},
                 {"[1]", "not a JSON object"},          {"{\"preset\": \"x\"}", "preset must be"},
                 {"{\"lr\": 1, \"lr\": 2}", "duplicate"}, {"", "line"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *path = put_file("w.json", wrong[i].text, strlen(wrong[i].text));
        gma_status got = gma_settings_read(s, path);
        assert_int_not_equal(got, GMA_OK);
        if (!strstr(gma_last_error(), wrong[i].why) || !strstr(gma_last_error(), "w.json"))
            tst_fail("%s: \"%s\"", wrong[i].text, gma_last_error());
    }
    TST_OK(gma_settings_set(s, "resume", "1"));
    TST_OK(gma_settings_set(s, "force", "1"));
    TST_ERROR(gma_settings_resolve(s), GMA_ERR_INVALID_ARGUMENT, "exclude each other");
    gma_settings_destroy(s);
    gma_settings_destroy(back);
    static const char *const configs[] = {"configs/shakespeare-gma.json", "configs/paper-toy.json"};
    for (size_t i = 0; i < 2; i++) {
        TST_OK(gma_settings_create("default", &s));
        TST_OK(gma_settings_read(s, configs[i]));
        TST_OK(gma_settings_resolve(s));
        gma_settings_destroy(s);
    }
}

/* ---- Plot ------------------------------------------------------------------------------------------------------ */

/* Losses that a careless axis never gets to the end of, or draws as nan; a line that a kill cut short. */
static void test_plot_extremes(void **state) {
    (void)state;
    static const char *const cases[] = {
        "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": 2.5000000000000004}\n",
        "{\"step\": 1, \"loss\": 1e20}\n{\"step\": 2, \"loss\": 1e20}\n",
        "{\"step\": 1, \"loss\": 1e308}\n{\"step\": 2, \"loss\": -1e308}\n{\"step\": 3, \"loss\": 1}\n",
        "{\"step\": 1e300, \"loss\": 1}\n{\"step\": 2, \"loss\": 0}\n",
        "{\"step\": 1, \"loss\": 5}\n{\"step\": 2, \"lo",
    };
    char out[200], svg[20000];
    snprintf(out, sizeof out, "%s/extreme.svg", test_folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *run = put_file("extreme.jsonl", cases[i], strlen(cases[i]));
        TST_OK(gma_plot(&run, 1, NULL, out));
        FILE *f = fopen(out, "rb");
        const size_t n = fread(svg, 1, sizeof svg - 1, f);
        fclose(f);
        svg[n] = 0;
        assert_true(n > 500 && n < 15000);
        assert_non_null(strstr(svg, "</svg>"));
        assert_null(strstr(svg, "nan"));
        assert_null(strstr(svg, "inf"));
        unlink(out);
    }
}

static void test_plot(void **state) {
    (void)state;
    static const char lines[] = "{\"step\": 1, \"loss\": 5.5}\n{\"step\": 2, \"loss\": 3.25}\n"
                                "{\"step\": 2, \"val_loss\": 3.125}\n";
    char run[200], out[200], svg[20000];
    snprintf(run, sizeof run, "%s/a<b>.jsonl", test_folder);
    snprintf(out, sizeof out, "%s/out.svg", test_folder);
    put_file("a<b>.jsonl", lines, strlen(lines));
    const char *runs[2] = {run, run}, *empty[1] = {put_file("empty.jsonl", "", 0)};
    TST_OK(gma_plot(runs, 2, "x & y", out));
    FILE *f = fopen(out, "rb");
    const size_t n = fread(svg, 1, sizeof svg - 1, f);
    fclose(f);
    svg[n] = 0;
    assert_memory_equal(svg, "<svg ", 5);
    assert_non_null(strstr(svg, "</svg>"));
    assert_non_null(strstr(svg, "x &#38; y"));
    assert_non_null(strstr(svg, "a&#60;b&#62;"));
    assert_non_null(strstr(svg, "best validation 3.1250"));
    assert_non_null(strstr(svg, "<polyline"));
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    unlink(out);
    TST_ERROR(gma_plot(empty, 1, NULL, out), GMA_ERR_FORMAT, "holds no losses");
    runs[0] = put_file("bad.jsonl", "{\"step\": 1, \"loss\": 2}\n{\"st\n", 28);
    TST_ERROR(gma_plot(runs, 1, NULL, out), GMA_ERR_FORMAT, "bad.jsonl: line 2");
    runs[0] = "/nonexistent";
    TST_ERROR(gma_plot(runs, 1, NULL, out), GMA_ERR_IO, "/nonexistent");
    TST_ERROR(gma_plot(runs, 0, NULL, out), GMA_ERR_INVALID_ARGUMENT, "1 to 10");
    assert_int_not_equal(access(out, F_OK), 0); /* nothing half-drawn */
}

/* ---- Runs ------------------------------------------------------------------------------------------------------ */

static gma_settings *tiny_run(const char *data, const char *out) {
    static const char *const pairs[][2] = {{"layers", "1"}, {"width", "16"}, {"components", "4"}, {"context", "16"},
                                           {"batch", "4"}, {"steps", "3"}, {"eval_every", "0"}, {"threads", "1"}};
    gma_settings *s;
    TST_OK(gma_settings_create("tiny", &s));
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) TST_OK(gma_settings_set(s, pairs[i][0], pairs[i][1]));
    TST_OK(gma_settings_set(s, "data", data));
    TST_OK(gma_settings_set(s, "out", out));
    return s;
}

static char *put_letters(void) {
    static char text[4000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 23);
    return put_file("run.txt", text, sizeof text);
}

/* The file is cut off while the run goes on. */
static int cut_it(void *context, const gma_train_progress *p) {
    if (p->event == GMA_TRAIN_START) assert_int_equal(truncate(context, 0), 0);
    return 0;
}

static void test_cut_short(void **state) {
    (void)state;
    char *data = put_letters();
    gma_settings *s = tiny_run(data, in_folder("cut"));
    TST_OK(gma_train(s, cut_it, data, NULL));
    gma_settings_destroy(s);
}

static int stop_validation(void *context, const gma_train_progress *p) {
    (void)context;
    return p->event == GMA_TRAIN_EVAL && p->text != NULL;
}

/* Stopped in the validation after the last step: resuming makes it up, once, and best/ with it. */
static void test_owed_validation(void **state) {
    (void)state;
    const char *best = in_folder("owed/best/model.safetensors");
    gma_settings *s = tiny_run(put_letters(), in_folder("owed"));
    gma_train_result r = {.struct_size = sizeof r};
    TST_ERROR(gma_train(s, stop_validation, NULL, &r), GMA_ERR_INTERRUPTED, "after step 3 of 3");
    assert_int_not_equal(access(best, F_OK), 0);
    TST_OK(gma_settings_set(s, "resume", "1"));
    TST_OK(gma_train(s, NULL, NULL, &r));
    assert_true(isfinite(r.best_val_loss));
    assert_int_equal(access(best, F_OK), 0);
    TST_ERROR(gma_train(s, NULL, NULL, &r), GMA_ERR_INVALID_ARGUMENT, "already at step 3 of 3");
    gma_settings_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows), cmocka_unit_test(test_wrong_files), cmocka_unit_test(test_order),
        cmocka_unit_test(test_split),   cmocka_unit_test(test_ngrams),      cmocka_unit_test(test_settings),
        cmocka_unit_test(test_plot),    cmocka_unit_test(test_plot_extremes), cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_owed_validation),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
