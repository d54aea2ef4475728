/* ListOps, IMDb, recall. */
#include "data_testing.h"

#include <math.h>

#include "data/hash.h"
#include "data/listops.h"
#include "data/tokenizer.h"

/* ---- ListOps ---------------------------------------------------------------------------------------------------- */

static void test_listops_values(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int value, tokens;
    } cases[] = {{"[MAX 4 3 [MIN 2 3 ] 1 0 ]", 4, 10}, {"[MED 1 2 ]", 1, 4}, {"[MED 3 8 5 6 ]", 5, 6}, {"[SM 9 9 9 ]", 7, 5},
                 {"[SM [SM 5 5 ] [MED 9 0 4 ] 7 ]", 1, 12}, {"( ( ( [MIN 3 ) 8 ) ] )", 3, 4},
                 {"[MIN [MAX 1 2 ] 3 ]", 2, 7}, {"[MIN [MAX 1 2 3 ] ]", 3, 7}, {"7", 7, 1}, {" ( 7 ) \n", 7, 1},
                 {"[MED 9 0 4 ]", 4, 5}, {"[MED 0 9 ]", 4, 4}, {"[MED 2 2 2 9 ]", 2, 6}, {"[MED 5 X", 5, 3},
                 {"[FIRST 3 [LAST 1 2 ] ]", 3, 7}, {"[LAST 3 [FIRST 1 2 ] ]", 1, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t value;
        int64_t tokens;
        TST_OK(gma_listops_evaluate(cases[i].text, strlen(cases[i].text), &value, &tokens));
        if (value != cases[i].value || tokens != cases[i].tokens)
            tst_fail("%s = %d with %d tokens", cases[i].text, (int)value, (int)tokens);
    }
    static const char *const wrong[][2] = {{"", "character 1: there is no expression"}, {"( )", "character 4: there is no"},
                                           {"]", "character 1: ] closes nothing"}, {"[MIN ]", "character 6: ] closes an operator without"},
                                           {"[MIN 1", "character 7: the expression ends with 1 operators open"},
                                           {"[MIN 1 ] 2", "character 10: there is more"}, {"[MIN 1 ] ]", "character 10: there is more"},
                                           {"[AVG 1 2 ]", "character 1: \"[AVG\" is no symbol"}, {"[MIN 10 ]", "character 6: \"10\""},
                                           {"[MIN 1 2]", "character 8: \"2]\""}, {"[MIN -1 ]", "character 6: \"-1\""}, {"( 7", "character 4: the expression ends with 1 parentheses open"},
                                           {"( 7 ) )", "character 7: ) closes nothing"}, {") 7 (", "character 1: ) closes nothing"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int32_t value;
        TST_ERROR(gma_listops_evaluate(wrong[i][0], strlen(wrong[i][0]), &value, NULL), GMA_ERR_FORMAT, wrong[i][1]);
    }
    /* As deep as one likes. */
    enum { DEEP = 100000 };
    char *text = malloc(7 * DEEP + 10);
    size_t n = 0;
    for (int i = 0; i < DEEP; i++) n += (size_t)sprintf(text + n, "[SM ");
    text[n++] = '8';
    for (int i = 0; i < DEEP; i++) n += (size_t)sprintf(text + n, " ]");
    int32_t value;
    TST_OK(gma_listops_evaluate(text, n, &value, NULL));
    assert_int_equal(value, 8);
    free(text);
}

/* The figures of 10,000 trees of the official distribution; the sampling error of a share is below half a point. */
static void test_listops_distribution(void **state) {
    (void)state;
    enum { ATTEMPTS = 122000 };
    static const double labels[10] = {16.8, 9.2, 7.3, 8.0, 9.1, 8.9, 8.0, 7.5, 8.5, 16.9}, points[5] = {5, 25, 50, 75, 95};
    static const int lengths[5] = {539, 700, 953, 1304, 1795};
    static int histogram[GMAL_LISTOPS_MOST];
    int leaves = 0, accepted = 0, long_ones = 0, class_of[10] = {0};
    double sum = 0, squares = 0, operators = 0;
    for (uint64_t i = 0; i < ATTEMPTS; i++) {
        int32_t x[GMAL_LISTOPS_MOST], length, value;
        gmal_listops_draw(42, i, x, &length, &value);
        leaves += length == 1;
        long_ones += length == 0;
        if (length <= GMAL_LISTOPS_LEAST) continue;
        int depth = 0, deepest = 0, args[12] = {0};
        accepted++;
        class_of[value]++;
        histogram[length]++;
        sum += length;
        squares += (double)length * length;
        for (int k = 0; k < length; k++) {
            assert_in_range(x[k], 1, 15);
            if (x[k] == GMAL_LISTOPS_CLOSE) {
                assert_in_range(args[depth], 2, 10);
                depth--;
                continue;
            }
            args[depth]++;
            if (x[k] < GMAL_LISTOPS_DIGIT) {
                operators++;
                args[++depth] = 0;
                if (depth > deepest) deepest = depth;
            }
        }
        assert_int_equal(depth, 0);
        assert_int_equal(deepest, 9); /* the leaves below are at depth 10 */
    }
    TST_CLOSE(100.0 * leaves / ATTEMPTS, 75, 0.5);
    TST_CLOSE(100.0 * accepted / ATTEMPTS, 8.20, 0.3);
    TST_CLOSE(100.0 * long_ones / ATTEMPTS, 1.16, 0.15);
    const double mean = sum / accepted;
    TST_CLOSE(mean, 1033, 15);
    TST_CLOSE(sqrt(squares / accepted - mean * mean), 393, 12);
    TST_CLOSE(operators / accepted, 147, 4);
    for (int c = 0; c < 10; c++) TST_CLOSE(100.0 * class_of[c] / accepted, labels[c], 1.5);
    for (int q = 0, seen = 0, length = 0; q < 5; q++) {
        while (seen < accepted * points[q] / 100) seen += histogram[++length];
        TST_CLOSE(length, lengths[q], 45);
    }
}

/* The same bits on every machine: these trees, for good. */
static void test_listops_bits(void **state) {
    (void)state;
    gmal_hash h = {0};
    for (uint64_t i = 0; i < 2000; i++) {
        int32_t x[GMAL_LISTOPS_MOST], length, value;
        gmal_listops_draw(1, i, x, &length, &value);
        for (int k = 0; k < length; k++) gmal_hash_add(&h, &(unsigned char){(unsigned char)x[k]}, 1);
        gmal_hash_add(&h, &(unsigned char){(unsigned char)value}, 1);
    }
    if (gmal_hash_end(&h) != UINT64_C(0x1d5be0e31436b12c)) tst_fail("the trees hash to %016llx", (unsigned long long)gmal_hash_end(&h));
}

static void test_listops_files(void **state) {
    (void)state;
    gma_listops_options o;
    gma_token_file *a, *b;
    size_t n, m;
    TST_OK(gma_listops_options_init(&o));
    assert_int_equal(o.train + o.val + o.test, 100000);
    o.train = 20;
    o.val = 5;
    o.test = 0;
    o.tsv = 1;
    TST_OK(gma_data_listops(&o, at("lo")));
    assert_int_equal(entries_in(at("lo")), 4);
    TST_OK(gma_data_listops(&o, at("lo2"))); /* again the same */
    char *x = get_file(at("lo/train.tokens"), &n), *y = get_file(at("lo2/train.tokens"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
    char *tsv = get_file(at("lo/basic_train.tsv"), &n);
    assert_memory_equal(tsv, "Source\tTarget\r\n( ( ( ", 21);
    assert_memory_equal(tsv + n - 2, "\r\n", 2);
    /* What is printed reads back as the same symbols and labels. */
    TST_OK(gma_data_listops_read(at("lo/basic_train.tsv"), at("read")));
    TST_OK(gma_token_file_open(at("lo/train.tokens"), &a));
    TST_OK(gma_token_file_open(at("read"), &b));
    const gma_token_info i = info_of(a);
    assert_int_equal(i.sequences, 20);
    assert_int_equal(i.classes, 10);
    assert_int_equal(i.vocab, 16);
    assert_int_equal(info_of(b).tokens, i.tokens);
    for (int64_t k = 0; k < i.tokens; k++) {
        int32_t p, q;
        TST_OK(gma_token_file_read(a, k, 1, &p));
        TST_OK(gma_token_file_read(b, k, 1, &q));
        assert_int_equal(p, q);
    }
    for (int64_t k = 0; k < 20; k++) {
        int64_t p[2], q[2];
        int32_t la, lb;
        TST_OK(gma_token_file_sequence(a, k, &p[0], &p[1], &la));
        TST_OK(gma_token_file_sequence(b, k, &q[0], &q[1], &lb));
        assert_memory_equal(p, q, sizeof p);
        assert_int_equal(la, lb);
    }
    gma_token_file_close(a);
    gma_token_file_close(b);
    /* Every pair of parentheses holds two things. */
    const char *end = strchr(tsv + 15, '\t');
    int depth = 0, parts[4000] = {0};
    for (const char *c = tsv + 15; c < end; c += strcspn(c, " \t") + 1) {
        if (*c == '(') parts[++depth] = 0;
        else if (*c == ')') assert_int_equal(parts[depth], 2);
        if (*c == ')') depth--;
        if (*c != '(') parts[depth]++;
    }
    assert_int_equal(depth, 0);
    free(tsv);
    o.seed = 2;
    TST_OK(gma_data_listops(&o, at("lo2")));
    x = get_file(at("lo/val.tokens"), &n);
    y = get_file(at("lo2/val.tokens"), &m);
    assert_true(n != m || memcmp(x, y, n) != 0);
    free(x);
    free(y);
    o.val = -1;
    TST_ERROR(gma_data_listops(&o, at("lo3")), GMA_ERR_INVALID_ARGUMENT, "val must be");
    assert_int_not_equal(access(at("lo3"), F_OK), 0);
}

static void test_listops_wrong_files(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"4\t[MAX 1 4 ]\n3\t[MAX 1 4 ]\n", "bad.tsv: line 2: its label is 3, its value 4"},
        {"4\t[MAX 1 4 ]\n\n", "line 2: is not two fields"},
        {"12\t[MAX 1 4 ]\n", "line 1: its label is not a digit"},
        {"x\t3\n", "line 1: its label is not a digit"},
        {"Source\tTarget\r\n[MAX 1 4 ]\t4\r\n[MAX 1 4\t4\r\n", "line 3: character 9: the expression ends"},
        {"4\t[FIRST 4 ]\n", "line 1: FIRST and LAST are not in the vocabulary"},
        {"4\t[MAX 1 4 ]\n4\t[MAX 1 y ]", "line 2: character 8: \"y\" is no symbol"},
        {"Source\tTarget\r\n", "holds no expressions"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *path = put_text("bad.tsv", wrong[i][0]);
        if (gma_data_listops_read(path, at("never")) == GMA_OK || !strstr(gma_last_error(), wrong[i][1]))
            tst_fail("\"%s\": \"%s\"", wrong[i][0], gma_last_error());
        assert_int_not_equal(access(at("never"), F_OK), 0);
    }
}

/* 10,000 expressions of another generator, each with its label. */
static void test_listops_others(void **state) {
    (void)state;
    const char *path = outside("listops/test_d20s.tsv");
    gma_token_file *f;
    if (!path) return;
    TST_OK(gma_data_listops_read(path, at("d20s")));
    TST_OK(gma_token_file_open(at("d20s"), &f));
    assert_int_equal(info_of(f).sequences, 10000);
    assert_int_equal(info_of(f).longest, 939);
    gma_token_file_close(f);
    /* With FIRST and LAST, which the vocabulary lacks. */
    size_t n;
    int lines = 0;
    char *text = get_file(outside("listops/test.tsv"), &n);
    for (char *line = text; *line; line = strchr(line, '\n') + 1, lines++) {
        int32_t value;
        TST_OK(gma_listops_evaluate(line + 2, (size_t)(strchr(line, '\n') - line) - 2, &value, NULL));
        assert_int_equal(value, line[0] - '0');
    }
    assert_int_equal(lines, 500);
    free(text);
}

/* ---- IMDb ------------------------------------------------------------------------------------------------------- */

static void test_imdb(void **state) {
    (void)state;
    enum { N = 40 };
    char text[8000];
    size_t used = 0;
    for (int i = 0; i < N; i++) /* reviews of our own; 30 of class 0, 10 of class 1; a tab and bytes that are no UTF-8 within */
        used += (size_t)sprintf(text + used, "%d\t%d_7\tfilm %d was\tso \xff%s\n", i % 4 == 3, i, i, i % 4 == 3 ? "so" : "good");
    gma_imdb_options o;
    gma_token_file *f[3];
    static const char *const names[] = {"im/train.tokens", "im/val.tokens", "im/test.tokens"};
    static const int sizes[] = {36, 4, 2};
    put_file("train.tsv", text, used);
    put_text("test.tsv", "0\t1_1\tbad\n1\t2_9\tgood, without a newline");
    TST_OK(gma_imdb_options_init(&o));
    TST_OK(gma_data_imdb(&o, test_folder, at("im")));
    int ones = 0, seen[N] = {0};
    for (int k = 0; k < 3; k++) {
        TST_OK(gma_token_file_open(at(names[k]), &f[k]));
        assert_int_equal(info_of(f[k]).sequences, sizes[k]);
        assert_int_equal(info_of(f[k]).classes, 2);
        assert_int_equal(info_of(f[k]).vocab, 256);
        for (int64_t i = 0; i < sizes[k]; i++) {
            int64_t begin, end;
            int32_t label, ids[100];
            char review[101] = {0};
            TST_OK(gma_token_file_sequence(f[k], i, &begin, &end, &label));
            TST_OK(gma_token_file_read(f[k], begin, end - begin, ids));
            for (int64_t j = 0; j < end - begin; j++) review[j] = (char)ids[j];
            ones += k == 1 && label == 1;
            if (k == 2) {
                assert_string_equal(review, i ? "good, without a newline" : "bad");
                continue;
            }
            int number;
            assert_int_equal(sscanf(review, "film %d was\tso ", &number), 1);
            assert_int_equal(seen[number]++, 0);
            assert_int_equal(label, number % 4 == 3);
        }
    }
    assert_int_equal(ones, 1); /* a tenth of each class */
    for (int k = 0; k < 3; k++) gma_token_file_close(f[k]);
    o.max_bytes = 5;
    o.held_out = 0;
    TST_OK(gma_data_imdb(&o, test_folder, at("im5")));
    assert_int_equal(entries_in(at("im5")), 2);
    TST_OK(gma_token_file_open(at("im5/train.tokens"), &f[0]));
    assert_int_equal(info_of(f[0]).longest, 5);
    assert_int_equal(info_of(f[0]).sequences, N);
    gma_token_file_close(f[0]);
    static const char *const wrong[][2] = {{"0\tx\ta\n2\tx\tb\n", "test.tsv: line 2: label \"2\" is not one of 0..1"},
                                           {"0\tx\ta\n\n", "test.tsv: line 2: is not label, name and text"},
                                           {"0\tx\n", "line 1: is not label, name and text"}, {"0\tx\t\n", "line 1: the review is empty"},
                                           {"01\tx\tb\n", "label \"01\""}};
    for (size_t i = 0; i < 5; i++) {
        put_text("test.tsv", wrong[i][0]);
        TST_ERROR(gma_data_imdb(&o, test_folder, at("im6")), GMA_ERR_FORMAT, wrong[i][1]);
        assert_int_not_equal(access(at("im6"), F_OK), 0);
    }
    put_text("test.tsv", "1\tx\ta\n1\ty\tb\n");
    TST_ERROR(gma_data_imdb(&o, test_folder, at("im6")), GMA_ERR_FORMAT, "test.tsv: of its 2 reviews none has the label 0");
    put_text("test.tsv", "0\tx\ta\n1\ty\tb\n");
    put_text("train.tsv", "0\tx\ta\n");
    TST_ERROR(gma_data_imdb(&o, test_folder, at("im6")), GMA_ERR_FORMAT, "train.tsv: of its 1 reviews none has the label 1");
    assert_int_not_equal(access(at("im6"), F_OK), 0);
    unlink(at("test.tsv"));
    TST_ERROR(gma_data_imdb(&o, test_folder, at("im6")), GMA_ERR_IO, "test.tsv: cannot be opened");
}

/* ---- Recall ----------------------------------------------------------------------------------------------------- */

static void test_mqar(void **state) {
    (void)state;
    gma_mqar_options o;
    gma_token_file *f;
    TST_OK(gma_mqar_options_init(&o));
    o.sequences = 2000;
    o.length = 40;
    o.pairs = 4;
    o.vocab = 64;
    for (int zeros = 0; zeros < 2; zeros++) {
        int first = 0, filler[64] = {0}, places[16] = {0};
        o.zeros = zeros;
        TST_OK(gma_data_mqar(&o, at("mqar")));
        TST_OK(gma_token_file_open(at("mqar"), &f));
        assert_int_equal(info_of(f).sequences, 2000);
        assert_int_equal(info_of(f).layout, GMA_TOKEN_TARGETS);
        for (int64_t s = 0; s < 2000; s++) {
            int32_t x[40], y[40];
            int asked = 0, used[64] = {0};
            TST_OK(gma_token_file_read(f, 40 * s, 40, x));
            TST_OK(gma_token_file_targets(f, 40 * s, 40, y));
            for (int i = 0; i < 8; i++) {
                assert_in_range(x[i], i % 2 ? 32 : 1, i % 2 ? 63 : 31);
                assert_int_equal(used[x[i]]++, 0);
                assert_int_equal(y[i], -1);
            }
            for (int i = 8; i < 40; i++) {
                if (y[i] < 0) {
                    filler[x[i]]++;
                    continue;
                }
                int k = 0;
                while (k < 8 && x[k] != x[i]) k += 2;
                assert_true(k < 8 && i % 2 == 0);
                assert_int_equal(y[i], x[k + 1]);
                assert_int_equal(used[x[i]]++, 1);
                asked++;
                places[(i - 8) / 2]++;
                first += i == 8 && k == 0;
            }
            assert_int_equal(asked, 4);
        }
        gma_token_file_close(f);
        assert_int_equal(filler[0] > 2000 * 27, zeros);
        assert_int_equal(filler[63] > 0, !zeros);
        /* The first key draws its place first: the nearest with probability 1 / sum g^-0.99 over 16 places. */
        double total = 0;
        for (int g = 1; g <= 16; g++) total += pow(g, -0.99);
        TST_CLOSE(first / 2000.0, 1 / total, 0.04);
        assert_true(places[0] > places[4] && places[4] > places[15] && places[15] > 0);
    }
    /* The same bits on every machine. */
    size_t n;
    TST_OK(gma_mqar_options_init(&o));
    o.sequences = 100;
    TST_OK(gma_data_mqar(&o, at("mqar")));
    char *bytes = get_file(at("mqar"), &n);
    const uint64_t h = gmal_hash_of(bytes + 4096, n - 4096);
    free(bytes);
    if (h != UINT64_C(0x5c3d8c8a3e4ca3d0)) tst_fail("the sequences hash to %016llx", (unsigned long long)h);
    static const struct {
        int64_t length, pairs, vocab;
        double power;
        const char *why;
    } wrong[] = {{31, 4, 64, 1, "length must be even"}, {30, 8, 64, 1, "length must be"}, {64, 8, 64, 1, "vocab must be"},
                 {64, 8, 81, 1, "vocab must be"},       {64, 8, 128, 0, "power must be"}};
    for (size_t i = 0; i < 5; i++) {
        o.length = wrong[i].length;
        o.pairs = wrong[i].pairs;
        o.vocab = wrong[i].vocab;
        o.power = wrong[i].power;
        TST_ERROR(gma_data_mqar(&o, at("never")), GMA_ERR_INVALID_ARGUMENT, wrong[i].why);
    }
    assert_int_not_equal(access(at("never"), F_OK), 0);
    /* As many places as keys: all are taken. */
    o = (gma_mqar_options){sizeof o, 1, 3, 16, 4, 18, 2.0, 1, 0};
    TST_OK(gma_data_mqar(&o, at("mqar")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listops_values), cmocka_unit_test(test_listops_distribution),
        cmocka_unit_test(test_listops_bits),   cmocka_unit_test(test_listops_files),
        cmocka_unit_test(test_listops_wrong_files), cmocka_unit_test(test_listops_others),
        cmocka_unit_test(test_imdb),           cmocka_unit_test(test_mqar),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
