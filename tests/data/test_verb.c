#define _POSIX_C_SOURCE 200809L
/* gma data as a user runs it. */
#include "cli/cli_testing.h"

#include <sys/resource.h>
#include <sys/stat.h>

static int make_text(void **state) {
    if (make_folder(state)) return 1;
    FILE *f = fopen(in_folder("text"), "wb");
    for (int i = 0; i < 3000; i++) fprintf(f, "the cat %d sat on the mat\n", i * i % 97);
    return fclose(f);
}

static void test_help(void **state) {
    (void)state;
    static const char *const works[] = {"learn", "encode", "decode", "info", "listops", "imdb", "mqar"};
    CLI("data", "--help");
    assert_success();
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
        CLI("data", "--help");
        assert_prints(works[i]);
        CLI("data", works[i], "--help");
        assert_success();
        assert_prints("Usage: gma data ");
    }
    CLI("data");
    assert_complaint(2, "expects what to do");
    CLI("data", "frob");
    assert_complaint(2, "\"frob\"");
    CLI("data", "--frob");
    assert_complaint(2, "no option --frob");
}

static void test_text(void **state) {
    (void)state;
    CLI("data", "encode", "text", "bytes.tokens");
    assert_success();
    assert_prints("tokenizer     bytes, vocabulary 256");
    CLI("data", "encode", "text", "words.tokens", "--tokenizer", "words", "--json");
    assert_success();
    assert_prints("\"tokenizer\": \"words\"");
    assert_prints("\"text_lines\": 3000");
    assert_prints("\"text_words\": 21000");
    assert_prints("\"tokens\": 24000");
    CLI("data", "encode", "text", "again.tokens", "--vocab", "words.tokens");
    assert_success();
    assert_same_file("words.tokens", "again.tokens");
    CLI("data", "info", "words.tokens", "--json");
    assert_success();
    assert_prints("\"layout\": \"stream\"");
    CLI("data", "decode", "bytes.tokens", "bytes.text");
    assert_success();
    assert_same_file("text", "bytes.text");
    CLI("data", "learn", "text", "--out", "vocab", "--tokenizer", "words", "--vocab-size", "10");
    assert_success();
    assert_prints("words, vocabulary 10");
    CLI("data", "encode", "text", "few.tokens", "--vocab", "vocab");
    assert_success();
    /* Wrong. */
    CLI("data", "encode", "text", "x", "--tokenizer", "bpe");
    assert_complaint(2, "bpe needs --vocab");
    CLI("data", "learn", "text", "--out", "v");
    assert_complaint(2, "--vocab-size N is needed");
    CLI("data", "learn", "text", "--tokenizer", "words");
    assert_complaint(2, "--out DIR is needed");
    CLI("data", "encode", "text", "x", "--vocab", "vocab", "--tokenizer", "bpe");
    assert_complaint(1, "vocab: holds a tokenizer of kind words, not bpe");
    CLI("data", "learn", "text", "--out", "v", "--vocab-size", "256");
    assert_complaint(2, "--vocab-size must be at least 257 for bpe");
    CLI("data", "encode", "text", "x", "--tokenizer", "words", "--vocab-size", "1");
    assert_complaint(2, "--vocab-size must be at least 2 for words");
    CLI("data", "encode", "text", "x", "--vocab", "vocab", "--vocab-size", "5");
    assert_complaint(2, "--vocab is learned already");
    CLI("data", "encode", "none", "x");
    assert_complaint(1, "none: cannot be opened");
    CLI("data", "encode", "text", "nowhere/x");
    assert_complaint(1, "nowhere/x: cannot write");
    CLI("data", "info", "text");
    assert_complaint(1, "text: is not a token file");
    CLI("data", "decode", "text", "x");
    assert_complaint(1, "text: is not a token file");
    char command[600];
    snprintf(command, sizeof command, "head -c 10000 '%s' > '%s'", in_folder("bytes.tokens"), in_folder("damaged"));
    assert_int_equal(system(command), 0);
    CLI("data", "info", "damaged");
    assert_complaint(1, "damaged: ");
    assert_int_not_equal(access(in_folder("x"), F_OK), 0);
}

static void test_bpe(void **state) {
    (void)state;
    CLI("data", "learn", "text", "--out", "bpe", "--vocab-size", "280");
    if (cli.code == 1 && strstr(cli.err, "PCRE2")) {
        print_message("skipped: %s", cli.err);
        skip();
    }
    assert_success();
    assert_prints("bpe, vocabulary 280");
    CLI("data", "encode", "text", "bpe.tokens", "--vocab", "bpe");
    assert_success();
    CLI("data", "encode", "text", "bpe2.tokens", "--tokenizer", "bpe", "--vocab-size", "280");
    assert_success();
    assert_same_file("bpe.tokens", "bpe2.tokens");
    CLI("data", "decode", "bpe.tokens", "bpe.text");
    assert_success();
    assert_same_file("text", "bpe.text");
    CLI("data", "learn", "text", "--out", "bpe9", "--vocab-size", "9000");
    assert_complaint(1, "not of 9000");
    assert_int_not_equal(access(in_folder("bpe9"), F_OK), 0);
}

static void test_sets(void **state) {
    (void)state;
    CLI("data", "listops", "lo", "--train", "3", "--val", "1", "--test", "1", "--tsv", "--seed", "7");
    assert_success();
    CLI("data", "listops", "--from", "lo/basic_train.tsv", "back.tokens");
    assert_success();
    CLI("data", "info", "back.tokens");
    assert_success();
    assert_prints("sequences     3, the longest");
    assert_prints("classes       10");
    put_text("bad.tsv", "Source\tTarget\r\n( ( ( [MAX 1 ) 2 ) ] )\t2\r\n( ( ( [MAX 1 ) 2 ) ] )\t3\r\n");
    CLI("data", "listops", "--from", "bad.tsv", "x");
    assert_complaint(1, "bad.tsv: line 3: its label is 3, its value 2");
    put_text("open.tsv", "2\t( ( [MAX 1 ) 2 ]\n");
    CLI("data", "listops", "--from", "open.tsv", "x");
    assert_complaint(1, "open.tsv: line 1: character 17: the expression ends with 1 parentheses open");
    CLI("data", "listops", "--from", "bad.tsv", "x", "--train", "4");
    assert_complaint(2, "--from generates nothing");
    put_text("train.tsv", "0\ta\tbad\n1\tb\tgood\n0\tc\tbad\n1\td\tgood\n");
    put_text("test.tsv", "1\te\tgood\n7\tf\tbad\n");
    CLI("data", "imdb", ".", "im", "--held-out", "0.5");
    assert_complaint(1, "./test.tsv: line 2: label \"7\"");
    assert_int_not_equal(access(in_folder("im"), F_OK), 0);
    put_text("test.tsv", "1\te\tgood\n0\tf\tbad\n");
    CLI("data", "imdb", ".", "im", "--held-out", "0.5");
    assert_success();
    CLI("data", "info", "im/val.tokens");
    assert_prints("sequences     2, the longest 4 tokens");
    CLI("data", "mqar", "m.tokens", "--sequences", "5", "--pairs", "2", "--length", "12", "--vocab-size", "20", "--zeros");
    assert_success();
    CLI("data", "info", "m.tokens");
    assert_prints("sequences with targets");
    CLI("data", "decode", "m.tokens", "x");
    assert_complaint(1, "stand for no text");
    CLI("data", "mqar", "x", "--length", "13");
    assert_complaint(2, "length must be even");
    CLI("data", "mqar", "x", "--length", "15", "--vocab-size", "19");
    assert_complaint(2, "length must be even");
    CLI("data", "mqar", "x", "--vocab-size", "19");
    assert_complaint(2, "vocab must be even");
    assert_int_not_equal(access(in_folder("x"), F_OK), 0);
}

/* A disk that is full leaves the old file, and nothing else. */
static void small_files(void) { setrlimit(RLIMIT_FSIZE, &(struct rlimit){20000, 20000}); }

static void test_full_disk(void **state) {
    (void)state;
    put_text("few", "a few words");
    CLI("data", "encode", "few", "old");
    assert_success();
    size_t n, m;
    char *was = get_file(in_folder("old"), &n);
    const int before = entries_in(test_folder);
    cli_prepare = small_files;
    CLI("data", "encode", "text", "old");
    cli_prepare = NULL;
    assert_complaint(1, "old: cannot write");
    assert_int_equal(entries_in(test_folder), before);
    char *is = get_file(in_folder("old"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(was, is, n);
    free(was);
    free(is);
}

/* What a call does not write anew it does not leave there either: nothing of two data sets in one folder. */
static void test_leftovers(void **state) {
    (void)state;
    CLI("data", "listops", "left", "--train", "3", "--val", "1", "--test", "1", "--tsv");
    assert_success();
    CLI("data", "listops", "left", "--train", "2", "--val", "0", "--test", "1", "--seed", "2", "--tsv");
    assert_complaint(1, "left/val.tokens: is of an earlier data set");
    CLI("data", "info", "left/train.tokens");
    assert_prints("sequences     3"); /* nothing was begun */
    CLI("data", "listops", "left", "--train", "2", "--val", "1", "--test", "1", "--seed", "2");
    assert_complaint(1, "left/basic_train.tsv: is of an earlier data set");
    CLI("data", "listops", "left", "--train", "2", "--val", "1", "--test", "1", "--seed", "2", "--tsv");
    assert_success();
    unlink(in_folder("left/val.tokens"));
    CLI("data", "listops", "left", "--train", "2", "--val", "0", "--test", "1", "--tsv");
    assert_complaint(1, "left/basic_val.tsv: is of an earlier data set");
    CLI("data", "listops", "nothing", "--train", "0", "--val", "0", "--test", "0");
    assert_complaint(2, "train is 0, and so are val and test");
    assert_int_equal(access(in_folder("nothing"), F_OK), -1);
    put_text("headed.tsv", "Source\tTarget\n");
    CLI("data", "listops", "--from", "headed.tsv", "headed.tokens");
    assert_complaint(1, "headed.tsv: holds no expressions");
    assert_int_equal(access(in_folder("headed.tokens"), F_OK), -1);
    put_text("train.tsv", "0\ta\tbad\n1\tb\tgood\n0\tc\tbad\n1\td\tgood\n");
    put_text("test.tsv", "1\te\tgood\n0\tf\tbad\n");
    CLI("data", "imdb", ".", "held", "--held-out", "0.5");
    assert_success();
    CLI("data", "imdb", ".", "held", "--held-out", "0");
    assert_complaint(1, "held/val.tokens: is of an earlier data set");
    CLI("data", "imdb", ".", "less", "--held-out", "0.01");
    assert_complaint(2, "held_out is 0.01, which of 4 reviews is none");
    CLI("data", "info", "held/train.tokens");
    assert_prints("sequences     2");
    CLI("data", "learn", "text", "--out", "kinds", "--tokenizer", "words");
    assert_success();
    CLI("data", "learn", "text", "--out", "kinds", "--vocab-size", "260");
    assert_complaint(2, "kinds/vocab.txt is there, a vocabulary of another kind");
    CLI("data", "learn", "text", "--out", "kinds", "--tokenizer", "words", "--vocab-size", "10");
    assert_success();
    put_text("kinds/vocab.bpe", "#version: 0.2\n");
    CLI("data", "learn", "text", "--out", "kinds", "--tokenizer", "words");
    assert_complaint(2, "kinds/vocab.bpe is there");
    CLI("data", "encode", "text", "x", "--vocab", "kinds");
    assert_complaint(1, "kinds: holds two tokenizers");
}

/* What is there already is replaced by its like only. */
static void test_other_kinds(void **state) {
    (void)state;
    static const char *const refusal = "is there and is not a token file, so it is not replaced";
    put_text("notes", "years of work");
    CLI("data", "encode", "text", "notes");
    assert_complaint(2, refusal);
    CLI("data", "mqar", "notes");
    assert_complaint(2, refusal);
    put_text("seven.tsv", "7\t[MAX 7 1 ]\n");
    CLI("data", "listops", "--from", "seven.tsv", "notes");
    assert_complaint(2, refusal);
    assert_int_equal(mkdir(in_folder("mine"), 0700), 0);
    put_text("mine/test.tokens", "years of work");
    CLI("data", "listops", "mine", "--train", "1", "--val", "1", "--test", "1");
    assert_complaint(2, "mine/test.tokens is there and is not a token file");
    CLI("data", "imdb", ".", "mine");
    assert_complaint(2, "mine/test.tokens is there and is not a token file");
    assert_int_equal(entries_in(in_folder("mine")), 1);
    assert_int_equal(mkdir(in_folder("sheets"), 0700), 0);
    put_text("sheets/basic_val.tsv", "name\tage\n");
    CLI("data", "listops", "sheets", "--train", "1", "--val", "1", "--test", "1", "--tsv");
    assert_complaint(2, "sheets/basic_val.tsv is there and is not an official ListOps file");
    assert_int_equal(entries_in(in_folder("sheets")), 1);
    CLI("data", "listops", "official", "--train", "1", "--val", "1", "--test", "1", "--tsv");
    assert_success();
    CLI("data", "listops", "official", "--train", "1", "--val", "1", "--test", "1", "--tsv");
    assert_success();
    put_text("config.json", "{\"width\": 64}\n");
    CLI("data", "encode", "text", "plain.tokens");
    assert_success();
    CLI("data", "decode", "plain.tokens", "config.json");
    assert_complaint(2, "config.json is there and has the name of a model's file");
    put_text("vocab.txt", "some words of a text\n");
    CLI("data", "learn", "vocab.txt", "--out", ".", "--tokenizer", "words");
    assert_complaint(2, "vocab.txt is read, so it cannot be replaced");
    CLI("data", "encode", "text", "kept.tokens");
    assert_success();
    CLI("data", "encode", "text", "more.tokens");
    assert_success();
    CLI("data", "decode", "kept.tokens", "more.tokens");
    assert_complaint(2, "more.tokens is there and is not a text");
    put_text("empty", "");
    CLI("data", "encode", "text", "empty"); /* as mktemp makes it */
    assert_success();
    CLI("data", "encode", "text", "empty", "--tokenizer", "words");
    assert_success();
    size_t n;
    char *notes = get_file(in_folder("notes"), &n);
    assert_string_equal(notes, "years of work");
    free(notes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help), cmocka_unit_test(test_text), cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_sets), cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_leftovers), cmocka_unit_test(test_other_kinds),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
