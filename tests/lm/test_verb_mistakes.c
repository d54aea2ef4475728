/* Mistakes on the command line that were once taken in silence, or answered with the wrong words. */
#define _DEFAULT_SOURCE
#include "lm/verbs_testing.h"

static void options_without_a_layer(void **state) {
    (void)state;
    static const char *const rows[][4] = {{"softmax", "--eps", "1e-3", "eps: no layer"},
                                          {"mamba", "--eps", "1e-3", "eps: no layer"},
                                          {"linear", "--eps-sigma", "1e-3", "eps_sigma: no layer"},
                                          {"mamba", "--rotary-base", "500", "rotary_base: no layer"},
                                          {"gma", "--rotary-base", "500", "rotary_base: no layer"},
                                          {"mamba", "--kv-heads", "1", "kv_heads: no layer"},
                                          {"mamba", "--routing-dim", "16", "routing_dim: no layer"},
                                          {"mamba", "--value-dim", "7", "value_dim: no layer"},
                                          {"softmax", "--logit-scale-init", "2", "logit_scale_init: no layer"},
                                          {"mamba", "--states", "0", "layer 0 (mamba): states must be at least 1"},
                                          {"mamba", "--expand", "0", "layer 0 (mamba): expand must be at least 1"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CLI("train", "--data", "text", "--out", "x", "--preset", "tiny", "--mixer", rows[i][0], rows[i][1], rows[i][2]);
        expect_refusal(2, rows[i][3], "x");
        if (i < 9) /* the mixer is named */
            assert_non_null(strstr(cli.err, rows[i][0]));
    }
    /* One layer that can is enough. */
    assert_int_equal(CLI("train", "--data", "text", "--out", "mixed", SMALL, "--layers", "softmax,gma", "--eps", "1e-3",
                         "--eps-sigma", "1e-3", "--rotary-base", "500", "--kv-heads", "1", "--steps", "1"), 0);
    /* What older runs have in their config.json without having asked for it. */
    assert_int_equal(CLI("train", "--data", "text", "--out", "older", "--preset", "tiny", "--mixer", "softmax", "--logit-scale-init",
                         "0.3", "--steps", "1", "--eval-windows", "8"), 0);
}

static void patterns(void **state) {
    (void)state;
    CLI("train", "--data", "text", "--out", "x", "--layers", "gma,foo");
    expect_refusal(2, "--layers: item 2, \"foo\": mixer 'foo' is unknown", "x");
    assert_null(strstr(cli.err, "layers: layers"));
    CLI("train", "--data", "text", "--out", "x", "--steps", "0");
    expect_refusal(2, "gma train: --steps must be a whole number from 1", "x");
    CLI("train", "--data", "text", "--out", "x", "--layers", "gma,,gma");
    expect_refusal(2, "--layers: item 2, \"\": a mixer is missing", "x");
    CLI("train", "--data", "text", "--out", "x", "--layers", "2xgma,linear,softmax:window=-1");
    expect_refusal(2, "--layers: item 3, \"softmax:window=-1\": window must be", "x");
    assert_int_equal(CLI("train", "--data", "text", "--out", "from0", SMALL, "--layers", "2xgma,linear", "--steps", "1"), 0);
    assert_prints("  0..1 "); /* as gma inspect counts them */
    assert_prints("  2..2 ");
}

static void token_files(void **state) {
    (void)state;
    size_t n;
    assert_int_equal(CLI("data", "encode", "text", "t.tok"), 0);
    char *whole = contents("t.tok", &n), *at;
    static const struct {
        const char *from, *to, *say;
    } rows[] = {{"\"vocab\":\"256\"", "\"vocab\":\"zzz\"", "\"vocab\" in its header is \"zzz\""},
                {"\"vocab\":\"256\"", "\"vocab\":\"+25\"", "\"vocab\" in its header is \"+25\""},
                {"\"vocab\":\"256\"", "\"vocab\":\"025\"", "\"vocab\" in its header is \"025\""},
                {"\"classes\":\"0\"", "\"classes\":\"5\"", "\"classes\" in its header is 5, and a stream has none"},
                {"\"version\":\"1\",", "\"version\":\"01\"", "safetensors"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *bad = malloc(n);
        memcpy(bad, whole, n);
        at = strstr(bad + 8, rows[i].from);
        assert_non_null(at);
        memcpy(at, rows[i].to, strlen(rows[i].to));
        put_file("bad.tok", bad, n);
        free(bad);
        CLI("train", "--data", "bad.tok", "--out", "x", "--preset", "tiny");
        expect_refusal(1, "bad.tok: ", "x");
        assert_non_null(strstr(cli.err, rows[i].say));
        assert_null(strstr(cli.err, "--help"));
        assert_string_equal(cli.out, "");
        CLI("data", "info", "bad.tok");
        expect_refusal(1, rows[i].say, NULL);
    }
    /* The same version in other digits: the header has room for one more. */
    char *room = malloc(n);
    memcpy(room, whole, n);
    at = strstr(room + 8, "\"version\":\"1\"") + 11;
    const char *end = strstr(at, "}}");
    assert_true(end && end[2] == ' ');
    memmove(at + 1, at, (size_t)(end + 2 - at));
    *at = '0';
    put_file("bad.tok", room, n);
    free(room);
    free(whole);
    CLI("data", "info", "bad.tok");
    expect_refusal(1, "\"version\" in its header is \"01\"", NULL);
    CLI("train", "--data", "t.tok", "--tokens", "bytes", "--out", "x", "--preset", "tiny");
    expect_refusal(2, "--tokens bytes: t.tok is a token file", "x");
    assert_int_equal(CLI("train", "--data", "t.tok", "--tokens", "file", "--out", "file", SMALL, "--steps", "1"), 0);
    assert_int_equal(CLI("train", "--data", "t.tok", "--out", "unsaid", SMALL, "--steps", "1"), 0);
    CLI("data", "encode", "text", "y.tok", "--vocab-size", "300");
    expect_refusal(2, "--vocab-size and --min-count are for learning", "y.tok");
    CLI("data", "encode", "text", "y.tok", "--min-count", "3");
    expect_refusal(2, "--vocab-size and --min-count are for learning", "y.tok");
    CLI("data", "encode", "text", "y.tok", "--tokenizer", "bpe", "--vocab-size", "300", "--min-count", "3");
    expect_refusal(2, "--min-count is for words", "y.tok");
    CLI("data", "learn", "text", "--out", "y", "--vocab-size", "300", "--min-count", "3");
    expect_refusal(2, "--min-count is for words", "y");
    assert_int_equal(CLI("data", "learn", "text", "--out", "y", "--tokenizer", "words", "--min-count", "3"), 0);
}

static void train_and_generate(void **state) {
    (void)state;
    put_file("empty", "", 0);
    CLI("train", "--data", "empty", "--out", "x", SMALL);
    expect_refusal(1, "empty: is empty", "x");
    assert_string_equal(cli.out, ""); /* no table of settings before the data is open */
    assert_int_equal(CLI("train", "--data", "text", "--out", "run", SMALL, "--steps", "2", "--stop-at", "1"), 0);
    assert_prints("width");
    CLI("train", "--out", "nowhere", "--resume");
    expect_refusal(1, "nowhere/last: there is no checkpoint to resume from", "nowhere");
    CLI("train", "--out", "run", "--resume", "--preset", "paper");
    expect_refusal(2, "--preset: the run to resume has its settings", NULL);
    assert_int_equal(CLI("train", "--out", "run", "--resume"), 0);
    const unsigned char ids[40] = {1, 0, 44, 1};
    put_file("ids", ids, sizeof ids);
    assert_int_equal(CLI("train", "--data", "ids", "--tokens", "u16", "--vocab", "301", "--out", "u16", SMALL, "--context",
                         "4", "--steps", "1"), 0);
    CLI("generate", "u16", "--prompt", "abc");
    expect_refusal(1, "token ids, not text", NULL);
    assert_string_equal(cli.out, "");
}

static void inspect_and_op(void **state) {
    (void)state;
    assert_int_equal(CLI("train", "--data", "text", "--out", "seen", SMALL, "--steps", "1"), 0);
    CLI("inspect", "seen", "--data", "text", "--tokens", "1");
    expect_refusal(2, "tokens is 1, and a window takes 16", NULL);
    put_file("c.tsv", "a\tX\nb\tY\na\tZ\n", 12);
    CLI("inspect", "seen", "--data", "text", "--classes", "c.tsv");
    expect_refusal(1, "c.tsv:3: the token \"a\" is there twice, first in line 1", NULL);
    static const char header[] =
        "{\"__metadata__\":{\"causal\":\"1\",\"eps\":\"1e-60\"},\"q\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1],\"data_offsets\":[0,4]},"
        "\"k\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1],\"data_offsets\":[4,8]},"
        "\"v\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1],\"data_offsets\":[8,12]}}";
    char file[8 + sizeof header + 12] = {0};
    const size_t n = sizeof header - 1;
    for (int i = 0; i < 8; i++)
        file[i] = (char)(n >> 8 * i);
    memcpy(file + 8, header, n);
    put_file("op.safetensors", file, 8 + n + 12);
    CLI("op", "op.safetensors", "o.safetensors", "--mixer", "linear");
    expect_refusal(1, "op.safetensors: eps is 1e-60", "o.safetensors");
    file[strstr(file + 8, "1e-60") - file + 3] = '0'; /* now nothing is wrong with it */
    put_file("op.safetensors", file, 8 + n + 12);
    CLI("op", "op.safetensors", "o.safetensors", "--mixer", "linear", "--responsibilities");
    expect_refusal(2, "--responsibilities: the mixer linear has no mixture", "o.safetensors");
    put_file("o.txt", "mine", 4);
    CLI("op", "op.safetensors", "o.txt", "--mixer", "linear");
    expect_refusal(2, "o.txt is there and is not a file of tensors, so it is not replaced", NULL);
    CLI("op", "op.safetensors", "seen/last/model.safetensors", "--mixer", "linear");
    expect_refusal(2, "seen/last/model.safetensors is there and has the name of a model's file", NULL);
    CLI("op", "op.safetensors", "seen/last/optimizer.safetensors", "--mixer", "linear");
    expect_refusal(2, "seen/last/optimizer.safetensors is there and has the name of a model's file", NULL);
}

/* What is read is never replaced. */
static void inputs_stay(void **state) {
    (void)state;
    size_t n, m;
    char *text = contents("text", &n);
    assert_int_equal(CLI("train", "--data", "text", "--out", "kept", SMALL, "--steps", "1"), 0);
    char *model = contents("kept/last/model.safetensors", &m);
#define KEPT(...)                                                  \
    do {                                                           \
        CLI(__VA_ARGS__);                                          \
        expect_refusal(2, "is read, so it cannot be replaced", NULL); \
    } while (0)
    KEPT("data", "encode", "text", "text");
    KEPT("data", "decode", "text", "./text");
    KEPT("data", "listops", "--from", "text", "text");
    KEPT("plot", "kept", "--out", "kept/metrics.jsonl");
    KEPT("plot", "kept/metrics.jsonl", "--out", "kept/metrics.jsonl");
    KEPT("inspect", "kept", "--data", "text", "--out", "text");
    CLI("inspect", "kept", "--data", "text", "--json", "kept/last/model.safetensors");
    expect_refusal(2, "has the name of a model's file, so it is not replaced", NULL);
    CLI("inspect", "kept/last", "--data", "text", "--out", "kept/last/config.json");
    expect_refusal(2, "has the name of a model's file, so it is not replaced", NULL);
    CLI("inspect", "kept", "--data", "text", "--out", "both", "--json", "both");
    expect_refusal(2, "--out and --json are one file", "both");
    size_t now;
    char *after = contents("text", &now);
    assert_true(now == n && memcmp(text, after, n) == 0);
    free(after);
    after = contents("kept/last/model.safetensors", &now);
    assert_true(now == m && memcmp(model, after, m) == 0);
    free(after);
    free(model);
    free(text);
    assert_int_equal(CLI("plot", "kept", "--out", "kept.svg"), 0);
    assert_int_equal(CLI("plot", "kept", "--out", "kept.svg"), 0); /* again: a picture may be replaced */
}

/* Few different pairs are said to be few. */
static void few_pairs(void **state) {
    (void)state;
    CLI("train", "--task", "seq2seq", "--data", "copy", "--symbols", "1", "--out", "x", SMALL, "--steps", "1");
    expect_refusal(2, "symbols must be at least 2", "x");
    assert_int_equal(CLI("train", "--task", "seq2seq", "--data", "copy", "--symbols", "2", "--out", "few", SMALL, "--context", "4",
                         "--steps", "1"), 0);
    assert_prints("there are only 16 of the shortest length");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_without_a_layer), cmocka_unit_test(patterns), cmocka_unit_test(token_files),
        cmocka_unit_test(train_and_generate),      cmocka_unit_test(inspect_and_op),
        cmocka_unit_test(inputs_stay),             cmocka_unit_test(few_pairs),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
