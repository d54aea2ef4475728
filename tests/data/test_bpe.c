/* Byte-pair encoding against naive forms of it: pieces, merging, learning; and its files. */
#include "data_testing.h"

#include "data/tokenizer.h"

/* Anything a text may hold: words, numbers, marks, all kinds of white space, broken UTF-8. */
static size_t odd_text(unsigned seed, char *out, size_t n) {
    static const char *const bits[] = {"a",  "b",  "the", " the", "Th",   "e",    " ",    "  ",       "\n",      "\t\n",
                                       "'s", "'",  "'re", "re",   "12",   "3",    "!",    "?!",       "\xc3\xa9", "\xc2\xa0",
                                       "\xe6\xad\xaa", "\xe2\x80\x83", "\xf0\x9f\x98\x80", "\xff", "\xe6\xad", "\xc0\x80",
                                       "\xed\xa0\x80", "\xc2\xbd", "\r\n", "x"};
    size_t used = 0;
    for (;;) {
        seed = seed * 1664525u + 1013904223u;
        const char *bit = bits[(seed >> 8) % (sizeof bits / sizeof bits[0])];
        if (used + strlen(bit) > n) return used;
        memcpy(out + used, bit, strlen(bit));
        used += strlen(bit);
    }
}

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

typedef struct cuts {
    size_t end[100000];
    int count;
    size_t at;
} cuts;

static gma_status cut(void *context, const char *text, size_t n) {
    cuts *c = context;
    (void)text;
    c->at += n;
    c->end[c->count++] = c->at;
    return GMA_OK;
}

static void test_pieces(void **state) {
    (void)state;
    gmal_pretokenizer *p;
    static cuts c;
    if (!has_bpe()) return;
    TST_OK(gmal_pretokenizer_create(&p));
    /* Where each piece ends, as GPT-2's encoder cuts. */
    static const struct {
        const char *text;
        size_t ends[8];
    } hand[] = {{"Hello world!", {5, 11, 12}}, {"'s't' era", {2, 4, 5, 9}}, {"y'all", {1, 2, 5}}, {"  Hello", {1, 7}},
                {"\n =", {1, 3}}, {"a \n\nb", {1, 3, 4, 5}}, {"a\xff\xff" "b", {1, 2, 3, 4}}, {"3333a", {4, 5}},
                {"\xc2\xa0" "1 2", {2, 3, 5}}, {"a   ", {1, 4}}, {"x\x1cy", {1, 2, 3}}, {"\xe2\x80\x83\xe2\x80\x83" "a", {3, 6, 7}},
                {"e\xcc\x81", {1, 3}}, {"\xe6\xad", {1, 2}}, {"'ve're'll'd'm", {3, 6, 9, 11, 13}}, {"", {0}}};
    for (size_t i = 0; i < sizeof hand / sizeof hand[0]; i++) {
        const size_t n = strlen(hand[i].text);
        size_t used;
        c.count = 0;
        c.at = 0;
        TST_OK(gmal_pretokenize(p, hand[i].text, n, 1, &used, cut, &c));
        assert_int_equal(used, n);
        for (int k = 0; k < c.count; k++)
            if (c.end[k] != hand[i].ends[k]) tst_fail("\"%s\": piece %d ends at %zu", hand[i].text, k, c.end[k]);
        assert_int_equal(c.at, n);
    }
    gmal_pretokenizer_destroy(p);
}

/* However a text comes in blocks, it is cut at the same places. */
static void test_blocks(void **state) {
    (void)state;
    static char text[3000];
    static cuts whole, parts;
    gmal_pretokenizer *p;
    if (!has_bpe()) return;
    TST_OK(gmal_pretokenizer_create(&p));
    for (unsigned seed = 1; seed < 40; seed++) {
        const size_t n = odd_text(seed, text, sizeof text);
        size_t used, begin = 0, have = 0;
        memset(&whole, 0, sizeof whole);
        memset(&parts, 0, sizeof parts);
        TST_OK(gmal_pretokenize(p, text, n, 1, &used, cut, &whole));
        while (begin < n) {
            have += 1 + (seed * 7 + have) % 23;
            if (have > n) have = n;
            /* An exact copy, so that a sanitizer sees a look past its end. */
            char *block = malloc(have - begin + 1);
            memcpy(block, text + begin, have - begin);
            TST_OK(gmal_pretokenize(p, block, have - begin, have == n, &used, cut, &parts));
            free(block);
            begin += used;
        }
        assert_int_equal(whole.count, parts.count);
        assert_memory_equal(whole.end, parts.end, (size_t)whole.count * sizeof whole.end[0]);
    }
    gmal_pretokenizer_destroy(p);
}

/* ---- Merging --------------------------------------------------------------------------------------------------- */

/* As GPT-2's encoder: the most urgent pair, all its occurrences from the left, again. */
static int naive_piece(const gma_tokenizer *t, const char *text, size_t n, int32_t *ids) {
    int count = (int)n;
    for (int i = 0; i < count; i++) ids[i] = t->byte_id[(unsigned char)text[i]];
    for (;;) {
        int32_t best = -1;
        for (int i = 0; i + 1 < count; i++) {
            const int32_t rank = gmal_pairs_find(&t->ranks, gmal_pair(ids[i], ids[i + 1]));
            if (rank >= 0 && (best < 0 || rank < best)) best = rank;
        }
        if (best < 0) return count;
        int to = 0;
        for (int i = 0; i < count; i++) {
            const int both = i + 1 < count && ids[i] == t->merges[best].left && ids[i + 1] == t->merges[best].right;
            ids[to++] = both ? t->merges[best].product : ids[i];
            i += both;
        }
        count = to;
    }
}

typedef struct naive {
    const gma_tokenizer *t;
    gma_token_list out;
} naive;

static gma_status naive_take(void *context, const char *text, size_t n) {
    static int32_t ids[100000];
    naive *x = context;
    assert_true(n < 100000);
    const int count = naive_piece(x->t, text, n, ids);
    for (int i = 0; i < count; i++) TST_OK(gmal_token_push(&x->out, ids[i]));
    return GMA_OK;
}

static void assert_as_naive(const gma_tokenizer *t, const char *text, size_t n) {
    naive x = {.t = t};
    gma_token_list list = {0};
    size_t used;
    TST_OK(gmal_pretokenize(t->pre, text, n, 1, &used, naive_take, &x));
    TST_OK(gma_tokenizer_encode(t, text, n, &list));
    assert_int_equal(list.count, x.out.count);
    assert_memory_equal(list.ids, x.out.ids, (size_t)list.count * sizeof *list.ids);
    /* And back, byte for byte. */
    size_t at_byte = 0;
    for (int64_t i = 0; i < list.count; i++) {
        const char *bytes;
        size_t size;
        assert_int_equal(gma_tokenizer_token(t, list.ids[i], &bytes, &size), 1);
        assert_true(at_byte + size <= n);
        assert_memory_equal(bytes, text + at_byte, size);
        at_byte += size;
    }
    assert_int_equal(at_byte, n);
    gma_token_list_free(&list);
    gma_token_list_free(&x.out);
}

static gma_tokenizer *learn(const char *file, int64_t vocab) {
    gma_tokenizer *t;
    TST_OK(gma_tokenizer_learn(GMA_TOKENIZER_BPE, &file, 1, vocab, 1, &t));
    assert_int_equal(gma_tokenizer_vocab(t), vocab);
    return t;
}

static void test_merging(void **state) {
    (void)state;
    static char text[20000];
    if (!has_bpe()) return;
    gma_tokenizer *t = learn(put_file("odd", text, odd_text(99, text, sizeof text)), 400);
    for (unsigned seed = 1; seed < 20; seed++) assert_as_naive(t, text, odd_text(seed, text, 2000));
    memset(text, 'a', sizeof text); /* one piece, and overlapping pairs */
    assert_as_naive(t, text, 3000);
    for (size_t i = 0; i < 3000; i++) text[i] = "theTh"[i * i % 5];
    assert_as_naive(t, text, 3000);
    gma_tokenizer_destroy(t);
    t = learn(put_text("a", "aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaa aaaaaaaa aa a"), 262);
    for (size_t n = 0; n < 60; n++) assert_as_naive(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", n);
    gma_tokenizer_destroy(t);
}

/* A piece of a million bytes takes no time to speak of (a quadratic form would take hours). */
static void test_long_piece(void **state) {
    (void)state;
    enum { N = 1000000 };
    if (!has_bpe()) return;
    gma_tokenizer *t = learn("data/tinyshakespeare/input.txt", 300);
    char *text = malloc(N);
    gma_token_list list = {0};
    for (int i = 0; i < N; i++) text[i] = "thenoras"[(unsigned)i * 2654435761u >> 29];
    TST_OK(gma_tokenizer_encode(t, text, N, &list));
    assert_in_range(list.count, 1000, N - 1);
    gma_token_list_free(&list);
    free(text);
    gma_tokenizer_destroy(t);
}

/* ---- Learning -------------------------------------------------------------------------------------------------- */

typedef struct count_of {
    int32_t left, right;
    int64_t count;
} count_of;

/* Counts all pairs anew for every merge. */
static void test_learning(void **state) {
    (void)state;
    static char text[6000];
    static int32_t ids[6000], begin[6000];
    static cuts c;
    static count_of counts[4000];
    if (!has_bpe()) return;
    size_t n = odd_text(5, text, 5000), used;
    memcpy(text + n, "ababababab abcabcabc aaaa aaa aa", 32); /* overlaps, and one token from two sides */
    n += 32;
    gma_tokenizer *t = learn(put_file("learn", text, n), 330);
    memset(&c, 0, sizeof c);
    TST_OK(gmal_pretokenize(t->pre, text, n, 1, &used, cut, &c));
    int32_t total = 0;
    for (int i = 0; i < c.count; i++) {
        begin[i] = total;
        for (size_t k = i ? c.end[i - 1] : 0; k < c.end[i]; k++) ids[total++] = t->byte_id[(unsigned char)text[k]];
    }
    begin[c.count] = total;
    for (int64_t m = 0; m < t->merge_count; m++) {
        int pairs = 0;
        for (int i = 0; i < c.count; i++)
            for (int k = begin[i]; k + 1 < begin[i + 1]; k++) {
                int p = 0;
                while (p < pairs && (counts[p].left != ids[k] || counts[p].right != ids[k + 1])) p++;
                if (p == pairs) counts[pairs++] = (count_of){ids[k], ids[k + 1], 0};
                counts[p].count++;
            }
        const gmal_merge *got = &t->merges[m];
        count_of best = {-1, -1, 0};
        for (int p = 0; p < pairs; p++) {
            const count_of *x = &counts[p];
            const int lower = x->left != best.left ? x->left < best.left : x->right < best.right;
            if (x->count < best.count || (x->count == best.count && !lower)) continue;
            /* A token that is there already is not made again. */
            size_t a, b;
            char joined[600];
            const char *l = gmal_string(&t->tokens, x->left, &a), *r = gmal_string(&t->tokens, x->right, &b);
            memcpy(joined, l, a);
            memcpy(joined + a, r, b);
            const int32_t id = gmal_strings_find(&t->tokens, joined, a + b);
            if (id >= 0 && id < 256 + m) continue;
            best = *x;
        }
        if (got->left != best.left || got->right != best.right)
            tst_fail("merge %d joins %d and %d, not %d and %d", (int)m, got->left, got->right, best.left, best.right);
        assert_int_equal(got->product, 256 + m);
        for (int i = 0, to = 0; i < c.count; i++) {
            const int first = begin[i], last = begin[i + 1];
            begin[i] = to;
            for (int k = first; k < last; k++) {
                const int both = k + 1 < last && ids[k] == got->left && ids[k + 1] == got->right;
                ids[to++] = both ? got->product : ids[k];
                k += both;
            }
            if (i == c.count - 1) begin[c.count] = to;
        }
    }
    assert_int_equal(t->merge_count, 330 - 257);
    const char *bytes;
    size_t size;
    assert_int_equal(gma_tokenizer_token(t, 329, &bytes, &size), 1);
    assert_int_equal(size, 13);
    assert_memory_equal(bytes, "<|endoftext|>", 13);
    gma_tokenizer_destroy(t);
    const char *little = put_text("little", "ab ab");
    TST_ERROR(gma_tokenizer_learn(GMA_TOKENIZER_BPE, &little, 1, 300, 1, &t), GMA_ERR_INVALID_ARGUMENT, "vocabulary of 259, not of 300");
    assert_null(t);
    TST_ERROR(gma_tokenizer_learn(GMA_TOKENIZER_BPE, &little, 1, 256, 1, &t), GMA_ERR_INVALID_ARGUMENT, "from 257");
    little = put_text("little", "");
    TST_ERROR(gma_tokenizer_learn(GMA_TOKENIZER_BPE, &little, 1, 300, 1, &t), GMA_ERR_FORMAT, "little: is empty");
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

static void test_files(void **state) {
    (void)state;
    if (!has_bpe()) return;
    gma_tokenizer *t = learn("data/tinyshakespeare/input.txt", 700), *back;
    TST_OK(gma_tokenizer_save(t, test_folder));
    TST_OK(gma_tokenizer_load(test_folder, &back));
    assert_true(gma_tokenizer_hash(t) == gma_tokenizer_hash(back));
    assert_int_equal(gma_tokenizer_get_kind(back), GMA_TOKENIZER_BPE);
    size_t n, m;
    char *text = get_file("data/tinyshakespeare/input.txt", &n), *merges = get_file(at("vocab.bpe"), &m);
    assert_memory_equal(merges, "#version: 0.2\n", 14);
    assert_as_naive(back, text, 30000);
    free(merges);
    /* A file of more than one block gives the tokens of the whole text. */
    gma_token_list list = {0};
    gma_token_file *f;
    TST_OK(gma_tokenizer_encode(back, text, n, &list));
    TST_OK(gma_data_encode("data/tinyshakespeare/input.txt", back, 0, at("tokens")));
    TST_OK(gma_token_file_open(at("tokens"), &f));
    assert_int_equal(info_of(f).tokens, list.count);
    assert_int_equal(info_of(f).text_bytes, n);
    assert_int_equal(info_of(f).text_lines, 40000);
    int32_t *ids = malloc((size_t)list.count * sizeof *ids);
    TST_OK(gma_token_file_read(f, 0, list.count, ids));
    assert_memory_equal(ids, list.ids, (size_t)list.count * sizeof *ids);
    assert_true(gma_tokenizer_hash(gma_token_file_tokenizer(f)) == gma_tokenizer_hash(t));
    gma_token_file_close(f);
    TST_OK(gma_data_decode(at("tokens"), at("text")));
    char *again = get_file(at("text"), &m);
    assert_int_equal(m, n);
    assert_memory_equal(again, text, n);
    free(again);
    free(ids);
    free(text);
    gma_token_list_free(&list);
    gma_tokenizer_destroy(back);
    TST_OK(gma_tokenizer_load(at("tokens"), &back)); /* a token file brings its tokenizer */
    assert_true(gma_tokenizer_hash(t) == gma_tokenizer_hash(back));
    gma_tokenizer_destroy(back);
    gma_tokenizer_destroy(t);
}

/* The 256 bytes and one token "ab", spelled as GPT-2 does. */
static void put_encoder(const char *more) {
    static char text[8000];
    size_t used = 1;
    text[0] = '{';
    for (int b = 0, other = 256; b < 256; b++) {
        const int prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        used += (size_t)snprintf(text + used, sizeof text - used, "\"\\u%04x\": %d, ", prints ? b : other++, b);
    }
    snprintf(text + used, sizeof text - used, "%s}", more);
    put_text("encoder.json", text);
}

static void test_wrong_files(void **state) {
    (void)state;
    static const struct {
        const char *merges, *more, *why;
    } cases[] = {
        {"#version: 0.2\na b\n", "\"ab\": 256, \"<|end|>\": 257", NULL},
        {"a b\r\n\r\n", "\"ab\": 256", NULL},
        {"#version: 0.2\na b\nab c\n", "\"ab\": 256", "line 3: its token is not in encoder.json"},
        {"a b c\n", "\"ab\": 256", "line 1: is not two tokens"},
        {"ab\n", "\"ab\": 256", "line 1: is not two tokens"},
        {" ab\n", "\"ab\": 256", "line 1: is not two tokens"},
        {"ab c\na b\n", "\"ab\": 256, \"abc\": 257", "line 1: merges a token that no line before it made"},
        {"a b\na b\n", "\"ab\": 256", "line 2: makes a token that was made before"},
        {"a \xe6\xad\xaa\n", "\"ab\": 256", "line 1: holds a character that spells no byte"},
        {"a b\n", "\"ab\": 257", "is not one of 0..256"},
        {"a b\n", "\"ab\": 3", "is not one of 0..256"},
        {"a b\n", "\"ab\": -1", "is not one of 0..256"},
        {"a b\n", "\"ab\": \"x\"", "is not one of 0..256"},
        {"a b\n", "\"ab\": 256, \"ab\": 257", "encoder.json: line 1: duplicate"},
        {"a b\n", "\"ab\": ", "encoder.json: line 1"},
        {"a b\n", "\"\": 256", "is empty or the same token"},
    };
    if (!has_bpe()) return;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gma_tokenizer *t;
        put_text("vocab.bpe", cases[i].merges);
        put_encoder(cases[i].more);
        const gma_status s = gma_tokenizer_load(test_folder, &t);
        if (cases[i].why ? s != GMA_ERR_FORMAT || !strstr(gma_last_error(), cases[i].why) : s != GMA_OK)
            tst_fail("case %zu: status %d, \"%s\"", i, (int)s, gma_last_error());
        gma_tokenizer_destroy(t);
    }
    gma_tokenizer *t;
    put_text("encoder.json", "{\"a\": 0}");
    TST_ERROR(gma_tokenizer_load(test_folder, &t), GMA_ERR_FORMAT, "has no token for byte 0");
    put_text("encoder.json", "[]");
    TST_ERROR(gma_tokenizer_load(test_folder, &t), GMA_ERR_FORMAT, "is no object of tokens");
    unlink(at("encoder.json"));
    TST_ERROR(gma_tokenizer_load(test_folder, &t), GMA_ERR_IO, "encoder.json: cannot be opened");
    unlink(at("vocab.bpe"));
    TST_ERROR(gma_tokenizer_load(test_folder, &t), GMA_ERR_IO, "there is no tokenizer here");
    TST_ERROR(gma_tokenizer_load("/nonexistent", &t), GMA_ERR_IO, "/nonexistent");
    TST_ERROR(gma_tokenizer_load(put_text("x", "hello"), &t), GMA_ERR_FORMAT, "neither a folder");
}

/* ---- GPT-2 ----------------------------------------------------------------------------------------------------- */

/* The 47 strings that llama.cpp tests its GPT-2 tokenizer with. */
static void test_gpt2(void **state) {
    (void)state;
    static const char between[] = "\n__ggml_vocab_test__\n";
    if (!has_bpe()) return;
    const char *given = outside("gpt2-bpe/gpt-2.inp");
    if (!given) return;
    size_t n, m;
    char *in = get_file(given, &n), *out = get_file(outside("gpt2-bpe/gpt-2.out"), &m), *text = in, *line = out;
    gma_tokenizer *t;
    int strings = 0;
    TST_OK(gma_tokenizer_load(outside("gpt2-bpe"), &t));
    assert_int_equal(gma_tokenizer_vocab(t), 50257);
    for (;;) {
        char *end = strstr(text, between), *next;
        const size_t size = end ? (size_t)(end - text) : strlen(text);
        gma_token_list list = {0};
        TST_OK(gma_tokenizer_encode(t, text, size, &list));
        for (int64_t i = 0; i < list.count; i++) {
            const long want = strtol(line, &next, 10);
            if (next == line || want != list.ids[i]) tst_fail("string %d, token %d: %d", strings, (int)i, list.ids[i]);
            line = next;
        }
        assert_true(*line == '\n' || *line == 0);
        line += *line == '\n';
        gma_token_list_free(&list);
        strings++;
        if (!end) break;
        text = end + sizeof between - 1;
    }
    assert_int_equal(strings, 47);
    gma_tokenizer_destroy(t);
    free(in);
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),     cmocka_unit_test(test_blocks),   cmocka_unit_test(test_merging),
        cmocka_unit_test(test_long_piece), cmocka_unit_test(test_learning), cmocka_unit_test(test_files),
        cmocka_unit_test(test_wrong_files), cmocka_unit_test(test_gpt2),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
