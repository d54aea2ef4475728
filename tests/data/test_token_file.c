/* Token files: what is written is read, and what is damaged or wrong is refused. Word lists. */
#include "data_testing.h"

#include <sys/stat.h>

#include "data/token_file.h"
#include "data/tokenizer.h"

enum { TOKENS = 500 };
static int32_t ids[TOKENS], targets[TOKENS];

/* Three sequences of a vocabulary, one of them empty. */
static gma_status write_some(const char *path, const gma_tokenizer *t, gma_token_layout layout, int32_t bad_label) {
    gmal_token_writer w;
    const int64_t cut = 123;
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)((uint64_t)i * 7919 * 104729 % (uint64_t)gma_tokenizer_vocab(t));
        targets[i] = i % 3 ? -1 : ids[i];
    }
    gma_status s = gmal_token_writer_begin(&w, path, t, layout, layout == GMA_TOKEN_LABELS ? 4 : 0, "a \"test\"\n");
    if (s == GMA_OK) s = gmal_token_writer_add(&w, ids, cut);
    if (s == GMA_OK && layout != GMA_TOKEN_STREAM) s = gmal_token_writer_end(&w, 3);
    if (s == GMA_OK && layout != GMA_TOKEN_STREAM) s = gmal_token_writer_end(&w, bad_label);
    if (s == GMA_OK) s = gmal_token_writer_add(&w, ids + cut, TOKENS - cut);
    if (s == GMA_OK && layout == GMA_TOKEN_TARGETS) s = gmal_token_writer_targets(&w, targets, TOKENS);
    if (s == GMA_OK && layout != GMA_TOKEN_STREAM) s = gmal_token_writer_end(&w, 0);
    return s == GMA_OK ? gmal_token_writer_finish(&w) : s;
}

static void test_round_trip(void **state) {
    (void)state;
    static const int64_t vocabs[] = {1, 256, 257, 65536, 65537, 1 << 24};
    static const int widths[] = {1, 1, 2, 2, 4, 4};
    for (int v = 0; v < 6; v++)
        for (int layout = 0; layout < 3; layout++) {
            gma_tokenizer *t;
            gma_token_file *f;
            int32_t back[TOKENS], label;
            int64_t begin, end;
            TST_OK(gma_tokenizer_create(GMA_TOKENIZER_IDS, vocabs[v], &t));
            TST_OK(write_some(at("file"), t, (gma_token_layout)layout, 1));
            assert_int_equal(gma_token_file_is(at("file")), 1);
            TST_OK(gma_token_file_open(at("file"), &f));
            const gma_token_info i = info_of(f);
            assert_int_equal(i.width, widths[v]);
            assert_int_equal(i.vocab, vocabs[v]);
            assert_int_equal(i.layout, layout);
            assert_int_equal(i.tokens, TOKENS);
            assert_int_equal(i.sequences, layout ? 3 : 1);
            assert_int_equal(i.longest, layout ? TOKENS - 123 : TOKENS);
            assert_int_equal(i.classes, layout == 1 ? 4 : 0);
            assert_string_equal(i.source, "a ?test??");
            TST_OK(gma_token_file_read(f, 0, TOKENS, back));
            assert_memory_equal(back, ids, sizeof ids);
            TST_OK(gma_token_file_read(f, 499, 1, back));
            TST_ERROR(gma_token_file_read(f, 499, 2, back), GMA_ERR_INVALID_ARGUMENT, "tokens 499..500 of 500");
            TST_ERROR(gma_token_file_read(f, -1, 2, back), GMA_ERR_INVALID_ARGUMENT, "tokens -1");
            if (layout == 2) {
                TST_OK(gma_token_file_targets(f, 0, TOKENS, back));
                assert_memory_equal(back, targets, sizeof targets);
            } else {
                TST_ERROR(gma_token_file_targets(f, 0, 1, back), GMA_ERR_UNSUPPORTED, "no targets");
            }
            TST_OK(gma_token_file_sequence(f, 0, &begin, &end, &label));
            assert_int_equal(begin, 0);
            assert_int_equal(end, layout ? 123 : TOKENS);
            assert_int_equal(label, layout == 1 ? 3 : -1);
            if (layout) TST_OK(gma_token_file_sequence(f, 1, &begin, &end, &label));
            if (layout) assert_int_equal(end - begin, 0);
            TST_ERROR(gma_token_file_sequence(f, 3, &begin, &end, &label), GMA_ERR_INVALID_ARGUMENT, "sequence 3");
            gma_token_file_close(f);
            gma_tokenizer_destroy(t);
        }
}

static void test_any_damage_is_seen(void **state) {
    (void)state;
    gma_tokenizer *t;
    gma_token_file *f;
    size_t n;
    TST_OK(gma_tokenizer_create(GMA_TOKENIZER_BYTES, 0, &t));
    TST_OK(write_some(at("file"), t, GMA_TOKEN_LABELS, 1));
    char *good = get_file(at("file"), &n);
    for (size_t i = 0; i < n; i += i < 700 || i > GMAL_TOKEN_HEADER ? 3 : 101) {
        const char flip = (char)(1 << i % 8);
        good[i] ^= flip;
        const gma_status s = gma_token_file_open(put_file("bad", good, n), &f);
        if (s != GMA_ERR_FORMAT || f) tst_fail("byte %zu changed: status %d", i, (int)s);
        good[i] ^= flip;
    }
    for (size_t size = 0; size < n; size += size < 4000 ? 97 : 7)
        if (gma_token_file_open(put_file("bad", good, size), &f) != GMA_ERR_FORMAT) tst_fail("cut to %zu bytes", size);
    for (int more = 1; more < 10; more += 7) {
        char *longer = calloc(n + 10, 1);
        memcpy(longer, good, n);
        TST_ERROR(gma_token_file_open(put_file("bad", longer, n + (size_t)more), &f), GMA_ERR_FORMAT, "bad");
        free(longer);
    }
    free(good);
    gma_tokenizer_destroy(t);
    TST_ERROR(gma_token_file_open(at("none"), &f), GMA_ERR_IO, "none: cannot be opened");
    TST_ERROR(gma_token_file_open(test_folder, &f), GMA_ERR_IO, "not a regular file");
    assert_int_equal(gma_token_file_is("data/tinyshakespeare/input.txt"), 0);
    assert_int_equal(gma_token_file_is(at("none")), 0);
    assert_int_equal(mkfifo(at("fifo"), 0600), 0); /* nobody writes to it, and nobody waits */
    assert_int_equal(gma_token_file_is(at("fifo")), 0);
    TST_ERROR(gma_token_file_open(at("fifo"), &f), GMA_ERR_IO, "not a regular file");
}

/* A file whose checksum is right but whose contents are not: as a broken or hostile writer makes it. */
static void forge(const char *good, size_t n, const char *name, size_t where, const char *what) {
    char *bytes = malloc(n), digits[17];
    memcpy(bytes, good, n);
    memcpy(bytes + where, what, strlen(what));
    memcpy(bytes + GMAL_TOKEN_CHECKSUM_AT, "0000000000000000", 16);
    gmal_hash h = {0};
    gmal_hash_add(&h, bytes + GMAL_TOKEN_HEADER, n - GMAL_TOKEN_HEADER);
    gmal_hash_add(&h, bytes, GMAL_TOKEN_HEADER);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)gmal_hash_end(&h));
    memcpy(bytes + GMAL_TOKEN_CHECKSUM_AT, digits, 16);
    put_file(name, bytes, n);
    free(bytes);
}

static void test_wrong_contents(void **state) {
    (void)state;
    enum { LABELS = GMAL_TOKEN_HEADER + 504 + 8 * 4, OFFSETS = GMAL_TOKEN_HEADER + 504 };
    gma_tokenizer *t;
    gma_token_file *f;
    size_t n;
    TST_OK(gma_tokenizer_create(GMA_TOKENIZER_IDS, 100, &t));
    TST_OK(write_some(at("file"), t, GMA_TOKEN_LABELS, 1));
    char *good = get_file(at("file"), &n);
    forge(good, n, "bad", 0, ""); /* as it was */
    TST_OK(gma_token_file_open(at("bad"), &f));
    gma_token_file_close(f);
    forge(good, n, "bad", GMAL_TOKEN_HEADER + 7, "\x64");
    TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, "token id 100 at byte 4103 (token 7), the vocabulary has 100");
    forge(good, n, "bad", LABELS + 4, "\x04");
    TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, "label 4 of sequence 1 is outside 0..3");
    forge(good, n, "bad", LABELS + 3, "\xff");
    TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, "of sequence 0 is outside 0..3");
    forge(good, n, "bad", OFFSETS, "\x01");
    TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, "offset 1 of sequence 0");
    forge(good, n, "bad", OFFSETS + 16, "\x7a");
    TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, "offset 122 of sequence 2");
    forge(good, n, "bad", OFFSETS + 24, "\xf3");
    TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, "of sequence 3");
    static const struct {
        const char *from, *to, *why;
    } words[] = {{"\"version\":\"1\"", "\"version\":\"2\"", "version"}, {"\"vocab\":\"100\"", "\"vocab\":\"1x0\"", "\"vocab\""},
                 {"\"layout\":\"labels", "\"layout\":\"lapels", "\"layout\""}, {"\"classes\":\"4\"", "\"classes\":\"-\"", "\"classes\""},
                 {"\"source\"", "\"sauce\" ", "lacks \"source\""}, {"\"labels\":{", "\"lapels\":{", "\"labels\" is missing"},
                 {"\"offsets\":{\"dtype\":\"I64\"", "\"offsets\":{\"dtype\":\"F64\"", "\"offsets\" is missing"},
                 {"\"vocab\":\"100\"", "\"vocab\":\"101\"", "its tokenizer is not the one"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const char *where = strstr(good + 8, words[i].from);
        assert_non_null(where);
        forge(good, n, "bad", (size_t)(where - good), words[i].to);
        TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, words[i].why);
        assert_null(f);
    }
    free(good);
    TST_OK(write_some(at("file"), t, GMA_TOKEN_TARGETS, 0));
    good = get_file(at("file"), &n);
    forge(good, n, "bad", LABELS + 4 * 3, "\x64");
    TST_ERROR(gma_token_file_open(at("bad"), &f), GMA_ERR_FORMAT, "target 100 of token 3 is outside -1..99");
    free(good);
    gma_tokenizer_destroy(t);
}

/* An error on the way leaves the old file, and nothing beside it. */
static void test_nothing_half_written(void **state) {
    (void)state;
    gma_tokenizer *t;
    gmal_token_writer w;
    size_t n;
    int32_t bad = 10;
    TST_OK(gma_tokenizer_create(GMA_TOKENIZER_IDS, 10, &t));
    put_text("old", "old");
    const int before = entries_in(test_folder);
    TST_OK(gmal_token_writer_begin(&w, at("old"), t, GMA_TOKEN_STREAM, 0, ""));
    TST_ERROR(gmal_token_writer_add(&w, &bad, 1), GMA_ERR_INVALID_ARGUMENT, "token id 10, the vocabulary has 10");
    gmal_token_writer_abandon(&w);
    TST_OK(gmal_token_writer_begin(&w, at("old"), t, GMA_TOKEN_STREAM, 0, ""));
    TST_ERROR(gmal_token_writer_finish(&w), GMA_ERR_INVALID_ARGUMENT, "no tokens");
    char *old = get_file(at("old"), &n);
    assert_string_equal(old, "old");
    assert_int_equal(entries_in(test_folder), before);
    free(old);
    gma_tokenizer_destroy(t);
}

/* ---- Words ------------------------------------------------------------------------------------------------------ */

static void test_words(void **state) {
    (void)state;
    static const char text[] = " b a a \n \n c b a d \n";
    const char *file = put_text("words", text);
    gma_tokenizer *t, *back;
    gma_token_list list = {0};
    TST_OK(gma_tokenizer_learn(GMA_TOKENIZER_WORDS, &file, 1, 0, 1, &t));
    static const int32_t want[] = {3, 2, 2, 1, 1, 4, 3, 2, 5, 1}; /* <unk> <eos> a b c d */
    assert_int_equal(gma_tokenizer_vocab(t), 6);
    TST_OK(gma_tokenizer_encode(t, text, strlen(text), &list));
    assert_int_equal(list.count, 10);
    assert_memory_equal(list.ids, want, sizeof want);
    list.count = 0;
    TST_OK(gma_tokenizer_encode(t, "new b\x0b<unk>", 11, &list));
    assert_int_equal(list.count, 3);
    assert_int_equal(list.ids[0], 0);
    assert_int_equal(list.ids[1], 3);
    assert_int_equal(list.ids[2], 0);
    TST_OK(gma_tokenizer_save(t, test_folder));
    unlink(at("vocab.bpe"));
    unlink(at("encoder.json"));
    TST_OK(gma_tokenizer_load(test_folder, &back));
    assert_true(gma_tokenizer_hash(t) == gma_tokenizer_hash(back));
    gma_tokenizer_destroy(back);
    TST_OK(gma_data_encode(file, t, 0, at("tokens")));
    TST_OK(gma_data_decode(at("tokens"), at("again")));
    size_t n;
    char *again = get_file(at("again"), &n);
    assert_string_equal(again, text);
    free(again);
    gma_tokenizer_destroy(t);
    /* Fewer. */
    TST_OK(gma_tokenizer_learn(GMA_TOKENIZER_WORDS, &file, 1, 3, 1, &t));
    assert_int_equal(gma_tokenizer_vocab(t), 3);
    gma_tokenizer_destroy(t);
    TST_OK(gma_tokenizer_learn(GMA_TOKENIZER_WORDS, &file, 1, 0, 2, &t));
    assert_int_equal(gma_tokenizer_vocab(t), 4);
    gma_tokenizer_destroy(t);
    /* Without <unk> an unknown word is an error, and nothing is written. */
    put_text("vocab.txt", "a\nb\n");
    TST_OK(gma_tokenizer_load(test_folder, &t));
    list.count = 0;
    TST_ERROR(gma_tokenizer_encode(t, "a b\n c", 6, &list), GMA_ERR_FORMAT, "\"c\" at byte 5 is not in the vocabulary");
    TST_ERROR(gma_data_encode(file, t, 0, at("not-there")), GMA_ERR_FORMAT, "words: \"c\" at byte 11");
    assert_int_not_equal(access(at("not-there"), F_OK), 0);
    gma_tokenizer_destroy(t);
    gma_token_list_free(&list);
    static const char *const wrong[][2] = {{"a\nb\na\n", "line 3: the same word as line 1"}, {"a\n\nb\n", "line 2: is empty"},
                                           {"a\nb c\n", "line 2: white space"}, {"a\r\n", "line 1: white space"}};
    for (size_t i = 0; i < 4; i++) {
        put_text("vocab.txt", wrong[i][0]);
        TST_ERROR(gma_tokenizer_load(test_folder, &t), GMA_ERR_FORMAT, wrong[i][1]);
    }
    put_text("vocab.txt", "");
    TST_ERROR(gma_tokenizer_load(test_folder, &t), GMA_ERR_FORMAT, "vocab.txt: is empty");
    TST_ERROR(gma_tokenizer_create(GMA_TOKENIZER_IDS, 0, &t), GMA_ERR_INVALID_ARGUMENT, "vocab must be 1 or more");
    unlink(at("vocab.txt"));
}

/* L1: whatever bytes, they come back. */
static void test_bytes(void **state) {
    (void)state;
    static const char *const texts[] = {("a\xff" "b"), "\xe6\xad", "\xc0\x80", "\xed\xa0\x80"};
    gma_tokenizer *t;
    TST_OK(gma_tokenizer_create(GMA_TOKENIZER_BYTES, 0, &t));
    for (size_t i = 0; i < 4; i++) {
        size_t n;
        TST_OK(gma_data_encode(put_text("bytes", texts[i]), t, 0, at("tokens")));
        TST_OK(gma_data_decode(at("tokens"), at("again")));
        char *again = get_file(at("again"), &n);
        assert_int_equal(n, strlen(texts[i]));
        assert_string_equal(again, texts[i]);
        free(again);
    }
    TST_ERROR(gma_data_encode(put_text("bytes", ""), t, 0, at("nothing")), GMA_ERR_FORMAT, "bytes: is empty");
    TST_ERROR(gma_data_encode("/nonexistent", t, 0, at("nothing")), GMA_ERR_IO, "/nonexistent");
    assert_int_not_equal(access(at("nothing"), F_OK), 0);
    gma_tokenizer_destroy(t);
}

static void test_composing(void **state) {
    (void)state;
    gma_tokenizer *t;
    size_t n;
    TST_OK(gma_tokenizer_create(GMA_TOKENIZER_BYTES, 0, &t));
    const gma_status s = gma_data_encode(put_text("nfc", "e\xcc\x81 \xc3\xa9\ne"), t, 1, at("tokens"));
    if (s == GMA_ERR_UNSUPPORTED) {
        print_message("skipped: %s\n", gma_last_error());
        gma_tokenizer_destroy(t);
        skip();
    }
    TST_OK(s);
    TST_OK(gma_data_decode(at("tokens"), at("again")));
    char *again = get_file(at("again"), &n);
    assert_string_equal(again, "\xc3\xa9 \xc3\xa9\ne");
    free(again);
    TST_ERROR(gma_data_encode(put_text("nfc", "ok\n\xff"), t, 1, at("nothing")), GMA_ERR_FORMAT, "nfc: near byte 0");
    assert_int_not_equal(access(at("nothing"), F_OK), 0);
    /* Blocks of a megabyte cut within a line. */
    enum { N = 3000000 };
    char *text = malloc(N + 1);
    for (int i = 0; i < N; i += 3) memcpy(text + i, i % 30000 == 29997 ? "ab\n" : "e\xcc\x81", 3);
    TST_OK(gma_data_encode(put_file("nfc", text, N), t, 1, at("tokens")));
    gma_token_file *f;
    TST_OK(gma_token_file_open(at("tokens"), &f));
    assert_int_equal(info_of(f).tokens, N / 3 * 2 + N / 30000);
    gma_token_file_close(f);
    free(text);
    gma_tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),           cmocka_unit_test(test_any_damage_is_seen),
        cmocka_unit_test(test_wrong_contents),       cmocka_unit_test(test_nothing_half_written),
        cmocka_unit_test(test_words),                cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_composing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
