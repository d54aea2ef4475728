/* gma inspect and gma train --inspect-every as a user runs them: files, refusals, and that looking changes nothing. */
#define _DEFAULT_SOURCE
#include "lm/verbs_testing.h"

#include <math.h>

#include "gma/inspect.h"
#include "io/crc32.h"
#include "train/events.h"

#define TRAIN(...) CLI("train", "--data", "text", SMALL, __VA_ARGS__)

static void test_report(void **state) {
    (void)state;
    assert_int_equal(TRAIN("--out", "runs/a", "--steps", "3"), 0);
    assert_int_equal(
        CLI("inspect", "runs/a", "--data", "text", "--tokens", "2000", "--out", "r.html", "--at", "20", "--span", "8"),
        0);
    assert_non_null(strstr(cli.out, "the report is in r.html"));
    assert_true(exists("r.html"));
    assert_int_equal(CLI("inspect", "runs/a", "--data", "text", "--tokens", "2000", "--out", "r.html", "--json", "-"),
                     0);
    assert_int_equal(cli.out[0], '{'); /* nothing but the JSON */
    assert_int_equal(TRAIN("--out", "runs/b", "--steps", "3", "--seed", "2"), 0);
    assert_int_equal(CLI("inspect", "--compare", "runs/a", "runs/b", "--data", "text", "--tokens", "2000", "--out",
                         "c.html", "--json", "c.json"),
                     0);
    assert_non_null(strstr(cli.out, "correlation"));
    size_t n;
    char *text = contents("c.html", &n);
    assert_non_null(strstr(text, "Compared with runs/b"));
    free(text);
    text = contents("c.json", &n);
    assert_non_null(strstr(text, "\"head_b\""));
    free(text);
}

/* One component: its responsibility is 1 for every token, and correlates with nothing. */
static void test_compare_one(void **state) {
    (void)state;
    assert_int_equal(TRAIN("--out", "runs/one", "--steps", "1", "--components", "1"), 0);
    assert_int_equal(CLI("inspect", "--compare", "runs/one", "runs/one", "--data", "text", "--tokens", "2000", "--out",
                         "one.html", "--json", "one.json"), 0);
    assert_prints("    0      0      0           -        -        -       0/1    ");
    assert_prints("-: undefined, for responsibilities that never change");
    size_t n;
    char *text = contents("one.json", &n);
    static const char *const keys[] = {"\"correlation\": ", "\"chance\": ", "\"correlation_by_usage\": "};
    for (int i = 0; i < 3; i++) {
        const char *at = strstr(text, keys[i]);
        assert_non_null(at);
        assert_memory_equal(at + strlen(keys[i]), "null", 4);
    }
    free(text);
    text = contents("one.html", &n);
    assert_non_null(strstr(text, "mean correlation \xe2\x80\x93, chance \xe2\x80\x93"));
    assert_null(strstr(text, "nan"));
    free(text);
}

static void test_refusals(void **state) {
    (void)state;
    assert_int_equal(TRAIN("--out", "runs/g", "--steps", "2"), 0);
    assert_int_equal(CLI("train", "--data", "text", "--preset", "tiny", "--layers", "linear,softmax", "--width", "16",
                         "--heads", "2", "--context", "16", "--steps", "2", "--out", "runs/none"),
                     0);
    CLI("inspect", "runs/none", "--data", "text", "--out", "no.html");
    expect_refusal(1, "no gma layer to look at; its 2 layers mix with: linear, softmax", NULL);
    CLI("train", "--data", "text", "--preset", "tiny", "--layers", "linear,softmax", "--width", "16", "--heads", "2",
        "--context", "16", "--steps", "2", "--out", "runs/x", "--inspect-every", "1");
    expect_refusal(2, "inspect_every: no layer has components to look at", "runs/x");
    CLI("train", "--task", "seq2seq", "--data", "copy", SMALL, "--steps", "2", "--out", "runs/x", "--inspect-every", "1");
    expect_refusal(2, "inspect_every: looks at language models of one text, not at other tasks", "runs/x");
    CLI("data", "mqar", "recall.tokens", "--sequences", "9", "--length", "8", "--pairs", "1", "--vocab-size", "24");
    CLI("train", "--data", "recall.tokens", SMALL, "--steps", "2", "--out", "runs/x", "--inspect-every", "1");
    expect_refusal(2, "inspect_every: looks at language models of one text, and recall.tokens holds sequences", "runs/x");
    CLI("inspect", "runs/g", "--data", "text", "--layer", "7");
    expect_refusal(2, "layer is 7, and the model's are 0 to 0", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--head", "2");
    expect_refusal(2, "head is 2, and those of a layer are 0 to 1", NULL);
    put_file("page", "no report", 9);
    CLI("inspect", "runs/g", "--data", "text", "--out", "page");
    expect_refusal(2, "page is there and is not an HTML file, so it is not replaced", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--json", "page");
    expect_refusal(2, "page is there and is not a JSON file, so it is not replaced", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--json", "runs/g/metrics.jsonl");
    expect_refusal(2, "runs/g/metrics.jsonl is there and has the name of a model's file", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--json", "runs/none/config.json");
    expect_refusal(2, "runs/none/config.json is there and has the name of a model's file", NULL);
    CLI("plot", "runs/g", "--out", "page");
    expect_refusal(2, "page is there and is not an SVG, so it is not replaced", NULL);
    CLI("inspect", "--compare", "runs/g", "runs/none", "--data", "text");
    expect_refusal(1, "linear, softmax", NULL);
    CLI("inspect", "--compare", "runs/g", "--data", "text");
    expect_refusal(2, "--compare takes two models", NULL);
    CLI("inspect", "runs/g", "runs/g", "--data", "text");
    expect_refusal(2, "two with --compare", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--top", "3");
    expect_refusal(2, "--out and --json are missing", NULL);
    CLI("inspect", "--compare", "runs/g", "runs/g", "--data", "text", "--json", "no.json", "--top", "3");
    expect_refusal(2, "the JSON of --compare lists five tokens", "no.json");
    CLI("inspect", "--compare", "runs/g", "runs/g", "--data", "text", "--classes", "text");
    expect_refusal(2, "--compare without --out has neither", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--out", "-");
    expect_refusal(2, "--out is the name of a file", "-");
    CLI("inspect", "runs/g", "--data", "text", "--span", "9");
    expect_refusal(2, "--out FILE.html is missing", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--tokens", "100", "--out", "no.html", "--at", "96");
    expect_refusal(1, "token 96 was asked for; the text that was read has 96", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--span", "129", "--out", "no.html");
    expect_refusal(2, "from 1 to 128", NULL);
    CLI("inspect", "runs/g", "--data", "text", "--out", "no/such/r.html");
    expect_refusal(1, "no/such/r.html", NULL);
    CLI("inspect", "runs/g", "--out", "no.html");
    expect_refusal(2, "--data FILE is needed", NULL);
    assert_false(exists("no.html"));
}

/* ---- While training -------------------------------------------------------------------------------------------- */

/* The records of an event file: their steps are in its order; returns how many, -1 when one is not whole. */
static int count_records(const char *name) {
    size_t size;
    char *text = contents(name, &size);
    assert_non_null(text);
    size_t at = 0;
    int count = 0;
    while (at + 12 <= size) {
        uint64_t length;
        memcpy(&length, text + at, 8);
        at += 12 + length + 4;
        count++;
    }
    free(text);
    return at == size ? count : -1;
}

enum { SCALARS = 1 + 2 * 4 }; /* a step: the loss, and four numbers of two heads */

static void test_inspect_every(void **state) {
    (void)state;
    char looked[2][8192];
    assert_int_equal(TRAIN("--out", "runs/plain", "--steps", "8"), 0);
    assert_int_equal(TRAIN("--out", "runs/look", "--steps", "8", "--inspect-every", "2"), 0);
    assert_same_file("runs/plain/last/model.safetensors", "runs/look/last/model.safetensors");
    assert_false(exists("runs/plain/events.out.tfevents.gma"));
    assert_int_equal(count_records("runs/look/events.out.tfevents.gma"), 1 + 4 * SCALARS);
    /* Stopped, gone on with: the same lines, and no record twice. A torn record at the end is no harm. */
    assert_int_equal(
        TRAIN("--out", "runs/torn", "--steps", "8", "--inspect-every", "2", "--stop-at", "6", "--save-every", "4"), 0);
    FILE *f = fopen(in_folder("runs/torn/events.out.tfevents.gma"), "ab");
    assert_non_null(f);
    assert_int_equal(fwrite("\x20\0\0\0\0\0\0\0torn", 1, 12, f), 12);
    fclose(f);
    assert_int_equal(count_records("runs/torn/events.out.tfevents.gma"), -1);
    assert_int_equal(CLI("train", "--out", "runs/torn", "--resume"), 0);
    assert_int_equal(count_records("runs/torn/events.out.tfevents.gma"), 1 + 4 * SCALARS);
    values_of("runs/look/metrics.jsonl", "usage_entropy", looked[0], sizeof looked[0]);
    values_of("runs/torn/metrics.jsonl", "usage_entropy", looked[1], sizeof looked[1]);
    assert_string_equal(looked[0], looked[1]);
    assert_int_equal(cli_lines(looked[0]), 4 * 2);
    /* Begun anew without looking: the old file would be of another run. */
    assert_int_equal(TRAIN("--out", "runs/torn", "--steps", "3", "--force"), 0);
    assert_false(exists("runs/torn/events.out.tfevents.gma"));
    assert_int_equal(CLI("plot", "runs/look", "--out", "look.svg"), 0); /* its lines are no harm there */
}

/* What training says is what gma inspect says of the same tokens. */
static void test_same_numbers(void **state) {
    (void)state;
    char looked[8192];
    size_t n;
    assert_int_equal(TRAIN("--out", "runs/same", "--steps", "4", "--inspect-every", "4", "--val-fraction", "0.5"), 0);
    char *text = contents("text", &n);
    FILE *f =
        fopen(in_folder("val"), "wb"); /* the first batch of the validation part: 4 windows of 16, and one more */
    assert_non_null(f);
    assert_int_equal(fwrite(text + 30000, 1, 65, f), 65);
    fclose(f);
    free(text);
    values_of("runs/same/metrics.jsonl", "usage_entropy", looked, sizeof looked);
    assert_int_equal(CLI("inspect", "runs/same/last", "--data", "val", "--json", "-"), 0);
    const char *at = cli.out;
    char *line = looked;
    for (int head = 0; head < 2; head++) {
        at = strstr(at, "\"usage_entropy\": ");
        assert_non_null(at);
        at += strlen("\"usage_entropy\": ");
        assert_true(fabs(strtod(at, NULL) - strtod(line, &line)) < 1e-6);
    }
    assert_int_equal(strspn(line, "\n"), strlen(line));
}

static void test_events_file(void **state) {
    (void)state;
    gmal_events e;
    put_file("notes", "these are no events, but someone's", 34);
    assert_int_equal(gmal_events_open(in_folder("notes"), 5, &e), GMA_ERR_FORMAT);
    assert_non_null(strstr(gma_last_error(), "is no event file"));
    size_t n;
    char *text = contents("notes", &n);
    assert_int_equal(n, 34); /* untouched */
    free(text);
    assert_int_equal(gmal_events_open(in_folder("no/such/file"), -1, &e), GMA_ERR_IO);
    assert_int_equal(~gmal_crc32_more(GMAL_CRC32C, GMAL_CRC32_START, "123456789", 9), 0xe3069283u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report),       cmocka_unit_test(test_compare_one),  cmocka_unit_test(test_refusals),    cmocka_unit_test(test_inspect_every),
        cmocka_unit_test(test_same_numbers), cmocka_unit_test(test_events_file),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
