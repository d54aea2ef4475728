/* Training, evaluation and generation on token files. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli_testing.h"

static int make_text(void **state) {
    static const char *const words[] = {"the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs"};
    if (make_folder(state)) return 1;
    FILE *f = fopen(in_folder("text"), "wb"), *tail = fopen(in_folder("tail"), "wb");
    unsigned seed = 1;
    for (int i = 0; i < 3000; i++) {
        seed = seed * 1664525u + 1013904223u;
        fprintf(f, " %s%s", words[seed >> 16 & 7], i % 9 == 8 ? " \n" : "");
        if (i < 500) fprintf(tail, " %s%s", words[(seed >> 16 & 7) + 2], i % 9 == 8 ? " \n" : "");
    }
    return fclose(f) | fclose(tail);
}

#define TRAIN(...) CLI("train", "--preset", "tiny", "--layers", "1", "--width", "16", "--context", "16", "--threads", "1", __VA_ARGS__)

static double number(const char *key) {
    const char *at = strstr(cli.out, key);
    assert_non_null(at);
    return atof(at + strlen(key));
}

/* The tokenizer goes with the model: into checkpoints, through a resumed run, to text that is evaluated and generated. */
static void check_kind(const char *file, const char *vocab_file) {
    char last[64], other[64];
    TRAIN("--data", file, "--out", "a", "--steps", "6", "--force");
    assert_success();
    assert_prints("validation tokens");
    TRAIN("--data", file, "--out", "b", "--steps", "6", "--stop-at", "3", "--force");
    assert_success();
    CLI("train", "--out", "b", "--resume", "--threads", "1");
    assert_success();
    assert_same_file("a/last/model.safetensors", "b/last/model.safetensors");
    snprintf(last, sizeof last, "a/last/%s", vocab_file);
    snprintf(other, sizeof other, "b/best/%s", vocab_file);
    assert_same_file(last, other);
    /* The text and its token file are the same to the model. */
    CLI("data", "encode", "tail", "tail.tokens", "--vocab", file);
    assert_success();
    CLI("eval", "a", "--data", "tail.tokens", "--json");
    assert_success();
    const double loss = number("\"loss\": "), tokens = number("\"tokens\": "), words = number("\"text_words\": ");
    const double bytes = number("\"text_bytes\": ");
    const int keeps_bytes = strcmp(vocab_file, "vocab.txt") != 0; /* words do not: see docs/formats.md */
    assert_true(words > 0 && (keeps_bytes ? bytes > tokens : bytes == 0));
    CLI("eval", "a", "--data", "tail", "--json");
    assert_success();
    assert_true(number("\"loss\": ") == loss);
    const double per_byte = loss * tokens / bytes / 0.69314718055994531;
    if (keeps_bytes)
        assert_true(number("\"bits_per_byte\": ") < per_byte * 1.0000001 && number("\"bits_per_byte\": ") > per_byte * 0.9999999);
    CLI("generate", "a", "--prompt", " the cat", "--length", "5", "--seed", "3");
    assert_success();
    assert_prints(" the cat");
    assert_true(strlen(cli.out) > 13);
    /* Another vocabulary, another tokenizer of the same size, no tokenizer. */
    CLI("eval", "a", "--data", "other.tokens");
    assert_complaint(1, "other.tokens: was made by another tokenizer than the model's");
    CLI("eval", "a", "--data", "bytes.tokens");
    assert_complaint(1, "bytes.tokens: has a vocabulary of 256");
    CLI("train", "--out", "b", "--resume", "--steps", "9", "--data", "other.tokens");
    assert_int_equal(cli.code, 1);
    assert_non_null(strstr(cli.err, "other.tokens: was made by another tokenizer than that of the run to resume\n"));
    unlink(in_folder(last));
    char best[64];
    snprintf(best, sizeof best, "a/best/%s", vocab_file);
    unlink(in_folder(best));
    CLI("generate", "a", "--length", "1");
    assert_int_equal(cli.code, 1);
}

static void test_words(void **state) {
    (void)state;
    CLI("data", "encode", "text", "bytes.tokens");
    CLI("data", "encode", "text", "file.tokens", "--tokenizer", "words");
    assert_success();
    /* As many words, but others. */
    FILE *f = fopen(in_folder("others"), "wb");
    for (int i = 0; i < 400; i++) fprintf(f, " w%d%s", i % 8, i % 9 == 8 ? " \n" : "");
    fclose(f);
    CLI("data", "encode", "others", "other.tokens", "--tokenizer", "words");
    assert_success();
    check_kind("file.tokens", "vocab.txt");
}

static void test_bpe(void **state) {
    (void)state;
    CLI("data", "learn", "text", "--out", "v1", "--vocab-size", "270");
    if (cli.code == 1 && strstr(cli.err, "PCRE2")) {
        print_message("skipped: %s", cli.err);
        skip();
    }
    assert_success();
    CLI("data", "learn", "tail", "--out", "v2", "--vocab-size", "270");
    CLI("data", "encode", "text", "file.tokens", "--vocab", "v1");
    CLI("data", "encode", "text", "other.tokens", "--vocab", "v2");
    assert_success();
    check_kind("file.tokens", "vocab.bpe");
}

/* A token file of bytes trains as the text does. */
static void test_bytes(void **state) {
    (void)state;
    CLI("data", "encode", "text", "bytes.tokens");
    TRAIN("--data", "text", "--out", "c", "--steps", "4");
    assert_success();
    TRAIN("--data", "bytes.tokens", "--out", "d", "--steps", "4");
    assert_success();
    assert_same_file("c/last/model.safetensors", "d/last/model.safetensors");
    TRAIN("--data", "bytes.tokens", "--val-data", "tail", "--out", "e", "--steps", "2");
    assert_success();
    CLI("eval", "c", "--data", "bytes.tokens", "--split", "val", "--baselines");
    assert_success();
    assert_prints("trigram table");
}

static void test_refusals(void **state) {
    (void)state;
    CLI("data", "mqar", "m.tokens", "--sequences", "5");
    TRAIN("--data", "bytes.tokens", "--val-data", "m.tokens", "--out", "x");
    assert_int_equal(cli.code, 1);
    assert_non_null(strstr(cli.err, "m.tokens: holds sequences with targets, not one text"));
    TRAIN("--data", "bytes.tokens", "--out", "x", "--vocab", "300");
    assert_complaint(2, "vocab is 300, but bytes.tokens has a vocabulary of 256");
    TRAIN("--data", "bytes.tokens", "--out", "x", "--tokens", "u16");
    assert_complaint(2, "bytes.tokens: is a token file, so tokens cannot be u16");
    TRAIN("--data", "text", "--out", "x", "--tokens", "file");
    assert_complaint(1, "text: is not a token file");
    char command[600];
    snprintf(command, sizeof command, "head -c 9000 '%s' > '%s'", in_folder("bytes.tokens"), in_folder("cut.tokens"));
    assert_int_equal(system(command), 0);
    TRAIN("--data", "cut.tokens", "--out", "x");
    assert_int_not_equal(cli.code, 0);
    assert_non_null(strstr(cli.err, "cut.tokens: "));
    assert_int_not_equal(access(in_folder("x"), F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
