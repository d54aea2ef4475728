/* Training and evaluation on sequences: classes, targets, accuracy; sliding windows on text. */
#define _POSIX_C_SOURCE 200809L
#include "support/check.h"

#include <math.h>
#include <stdlib.h>

#include "data/token_file.h"
#include "gma/train.h"
#include "layers/rng.h"
#include "lm/verbs_testing.h"
#include "train/evaluate.h"

enum { SEQUENCES = 400, LONGEST = 14, VOCAB = 6 };

/* Sequences of 3 to LONGEST tokens of 0..4, in every second one a 5 somewhere: that is its class. empty: number of one
 * without a token. */
static void put_sequences(const char *name, int64_t count, uint64_t seed, int64_t classes, int64_t empty) {
    gma_tokenizer *t;
    gmal_token_writer w;
    TST_OK(gma_tokenizer_create(GMA_TOKENIZER_IDS, VOCAB, &t));
    TST_OK(gmal_token_writer_begin(&w, in_folder(name), t, GMA_TOKEN_LABELS, classes, "test"));
    for (int64_t i = 0; i < count; i++) {
        int32_t ids[LONGEST];
        const uint64_t key = gmal_key(seed, (uint64_t)i);
        const int64_t n = 3 + (int64_t)(gmal_random(key, 0) % (LONGEST - 2));
        for (int64_t k = 0; k < n; k++) ids[k] = (int32_t)(gmal_random(key, 1 + (uint64_t)k) % (VOCAB - 1));
        if (i % 2) ids[gmal_random(key, 99) % (uint64_t)n] = VOCAB - 1;
        if (i != empty) TST_OK(gmal_token_writer_add(&w, ids, n));
        TST_OK(gmal_token_writer_end(&w, i % 2));
    }
    TST_OK(gmal_token_writer_finish(&w));
    gma_tokenizer_destroy(t);
}

static int make_files(void **state) {
    if (make_text(state)) return 1;
    put_sequences("train.tokens", SEQUENCES, 1, 2, -1);
    put_sequences("test.tokens", 200, 2, 2, -1);
    return 0;
}

#define TRAIN(...)                                                                                                         \
    CLI("train", "--preset", "tiny", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "16",  \
        "--threads", "2", "--warmup", "3", "--force", __VA_ARGS__)
#define CLASSIFY(...) TRAIN("--task", "classify", "--data", "train.tokens", "--positions", "learned", __VA_ARGS__)

/* ---- Classes -------------------------------------------------------------------------------------------------- */

static void test_classifier_learns(void **state) {
    static const char *const mixers[] = {"gma", "softmax", "linformer", "mamba"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(CLASSIFY("--mixer", mixers[i], "--pooling", i % 2 && i < 3 ? "cls" : "mean", "--lr", "1e-2", "--steps", i == 3 ? "240" : "100",
                                  "--out", "rule"), 0);
        assert_non_null(strstr(cli.out, "accuracy"));
        assert_true((strstr(cli.out, "left to right") != NULL) == (i == 3));
        assert_int_equal(CLI("eval", "rule", "--data", "test.tokens", "--json"), 0);
        const double accuracy = json_number_in(cli.out, "accuracy");
        if (!(accuracy >= 0.97)) tst_fail("%s: accuracy %g after training on a trivial rule", mixers[i], accuracy);
        double low, high;
        gmal_wilson((int64_t)json_number_in(cli.out, "right"), 200, &low, &high);
        TST_CLOSE(json_number_in(cli.out, "accuracy_low"), low, 1e-12);
        TST_CLOSE(json_number_in(cli.out, "accuracy_high"), high, 1e-12);
        assert_true(json_number_in(cli.out, "sequences") == 200 && json_number_in(cli.out, "state_bytes") == 0);
    }
    assert_int_equal(CLI("eval", "rule", "--data", "test.tokens", "--batch", "7"), 0); /* 200 is no multiple */
    assert_non_null(strstr(cli.out, "200 sequences of 2 classes"));
    /* The library's own call gives the class that eval counted. */
    gma_lm *lm;
    gma_token_file *file;
    gma_eval_result r = {.struct_size = sizeof r};
    TST_OK(gma_lm_load(in_folder("rule"), &lm));
    TST_OK(gma_eval(lm, in_folder("test.tokens"), NULL, &r));
    TST_OK(gma_token_file_open(in_folder("test.tokens"), &file));
    int64_t right = 0, lengths[200], total = 0;
    int32_t tokens[200 * LONGEST], label[200];
    float logits[400];
    for (int64_t i = 0; i < 200; i++) {
        int64_t begin, end;
        TST_OK(gma_token_file_sequence(file, i, &begin, &end, &label[i]));
        TST_OK(gma_token_file_read(file, begin, end - begin, tokens + total));
        lengths[i] = end - begin;
        total += lengths[i];
    }
    TST_OK(gma_lm_classify(lm, tokens, lengths, 200, 2, logits));
    for (int i = 0; i < 200; i++) right += (logits[2 * i + 1] > logits[2 * i]) == (label[i] == 1);
    assert_int_equal(right, r.right);
    lengths[3] = 17;
    TST_ERROR(gma_lm_classify(lm, tokens, lengths, 200, 2, logits), GMA_ERR_INVALID_ARGUMENT, "lengths[3] is 17");
    double loss;
    TST_ERROR(gma_lm_loss(lm, tokens, tokens, 1, 4, 1, &loss, NULL), GMA_ERR_UNSUPPORTED, "classifies whole sequences");
    gma_token_file_close(file);
    gma_lm_destroy(lm);
}

static int same(const char *a, const char *b) {
    size_t n, m;
    char *x = contents(a, &n), *y = contents(b, &m);
    const int yes = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return yes;
}

static void test_resume(void **state) {
    (void)state;
    static const char *const files[] = {"last/model.safetensors", "last/optimizer.safetensors", "last/trainer.json",
                                        "best/model.safetensors"};
    assert_int_equal(CLASSIFY("--dropout", "0.1", "--steps", "8", "--eval-every", "2", "--out", "whole"), 0);
    assert_int_equal(CLASSIFY("--dropout", "0.1", "--steps", "8", "--eval-every", "2", "--out", "halves", "--stop-at", "3"), 0);
    assert_int_equal(CLI("train", "--out", "halves", "--resume", "--threads", "2"), 0);
    for (int i = 0; i < 4; i++) {
        char a[80], b[80];
        snprintf(a, sizeof a, "whole/%s", files[i]);
        snprintf(b, sizeof b, "halves/%s", files[i]);
        if (!same(a, b)) tst_fail("%s differs in a run that was resumed", files[i]);
    }
}

/* ---- Targets -------------------------------------------------------------------------------------------------- */

static void test_recall(void **state) {
    (void)state;
    CLI("data", "mqar", "recall.tokens", "--sequences", "2000", "--length", "16", "--pairs", "2", "--vocab-size", "24");
    CLI("data", "mqar", "held.tokens", "--sequences", "200", "--length", "16", "--pairs", "2", "--vocab-size", "24", "--seed", "9");
    assert_int_equal(TRAIN("--data", "recall.tokens", "--mixer", "softmax", "--width", "32", "--heads", "1", "--batch", "64",
                           "--layers", "2", "--lr", "1e-2", "--steps", "120", "--out", "recall"), 0);
    assert_int_equal(CLI("eval", "recall", "--data", "held.tokens", "--json"), 0);
    if (!(json_number_in(cli.out, "accuracy") >= 0.9))
        tst_fail("softmax recalls %g of the values", json_number_in(cli.out, "accuracy"));
    assert_true(json_number_in(cli.out, "tokens") == 400 && json_number_in(cli.out, "sequences") == 200);
    const double bytes = json_number_in(cli.out, "state_bytes");
    assert_true(bytes > 0);
    assert_int_equal(CLI("generate", "recall", "--length", "3"), 1); /* ids are no text */
    /* The weight of a pass is its part of the targets of the step. */
    for (int i = 0; i < 2; i++)
        assert_int_equal(TRAIN("--data", "recall.tokens", "--mixer", "gma", "--steps", "1", "--batch", i ? "8" : "16",
                               "--accumulate", i ? "2" : "1", "--out", i ? "two" : "one"), 0);
    size_t n;
    char *one = contents("one/metrics.jsonl", &n), *two = contents("two/metrics.jsonl", &n);
    TST_CLOSE(json_number_in(two, "loss"), json_number_in(one, "loss"), 1e-6);
    TST_CLOSE(json_number_in(two, "grad_norm"), json_number_in(one, "grad_norm"), 1e-5);
    free(one);
    free(two);
    TRAIN("--data", "recall.tokens", "--context", "15", "--out", "x");
    expect_refusal(1, "sequence 0 has 16 tokens with targets, and context is 15", "x");
    CLI("eval", "recall", "--data", "held.tokens", "--stride", "4");
    expect_refusal(2, "stride is for one text, and held.tokens is read as sequences", NULL);
}

/* ---- What cannot be ------------------------------------------------------------------------------------------- */

/* gma eval says how many sequences it did not read to the end: of those it read. */
static void test_cut_ones(void) {
    gma_token_file *file;
    int64_t begin, end, cut[2] = {0, 0};
    char want[80];
    TST_OK(gma_token_file_open(in_folder("test.tokens"), &file));
    for (int64_t i = 0; i < 200; i++) {
        TST_OK(gma_token_file_sequence(file, i, &begin, &end, NULL));
        for (int few = 0; few < 2; few++) cut[few] += end - begin > 8 && (!few || i < 10);
    }
    gma_token_file_close(file);
    assert_true(cut[1] > 0 && cut[0] > cut[1] && cut[0] < 200);
    assert_int_equal(CLI("eval", "cut", "--data", "test.tokens"), 0);
    assert_prints("200 sequences of 2 classes, ");
    snprintf(want, sizeof want, "note: %d of them are longer than the context of 8 and are cut\n", (int)cut[0]);
    assert_prints(want);
    assert_int_equal(CLI("eval", "cut", "--data", "test.tokens", "--windows", "10", "--json"), 0);
    assert_true(json_number_in(cli.out, "cut") == (double)cut[1]);
}

static void test_refusals(void **state) {
    (void)state;
    assert_int_equal(CLASSIFY("--steps", "2", "--context", "8", "--out", "cut"), 0);
    assert_non_null(strstr(cli.out, "of 400 sequences are longer than the context of 8 and are cut"));
    test_cut_ones();
    put_sequences("three.tokens", 10, 1, 3, -1);
    put_sequences("empty.tokens", 10, 1, 2, 4);
    CLASSIFY("--data", "empty.tokens", "--out", "x");
    expect_refusal(1, "empty.tokens: sequence 4 is empty", "x");
    CLASSIFY("--val-data", "three.tokens", "--out", "x");
    expect_refusal(1, "three.tokens: has 3 classes, the model 2", "x");
    CLI("eval", "cut", "--data", "three.tokens");
    expect_refusal(1, "three.tokens: has 3 classes, the model 2", NULL);
    CLASSIFY("--classes", "4", "--out", "x");
    expect_refusal(2, "classes is 4, but train.tokens has 2", "x");
    CLASSIFY("--data", "text", "--out", "x");
    expect_refusal(2, "text: task classify needs a token file of sequences with classes", "x");
    CLASSIFY("--data", "nowhere", "--out", "x");
    expect_refusal(1, "nowhere: cannot be opened", "x");
    TRAIN("--data", "train.tokens", "--out", "x");
    expect_refusal(2, "train.tokens: holds sequences with classes; task classify is for them", "x");
    TRAIN("--data", "text", "--pooling", "cls", "--out", "x");
    expect_refusal(2, "pooling cls is of task classify", "x");
    CLASSIFY("--mixer", "softmax", "--window", "4", "--out", "x");
    expect_refusal(2, "window", "x");
    CLASSIFY("--mixer", "mamba", "--pooling", "cls", "--out", "x");
    expect_refusal(2, "pooling cls: its token stands before the sequence", "x");
    CLASSIFY("--causal", "--pooling", "cls", "--out", "x");
    expect_refusal(2, "pooling cls: its token stands before the sequence", "x");
    CLASSIFY("--forget-gate", "--out", "x");
    expect_refusal(2, "forget_gate", "x");
    CLI("eval", "cut", "--data", "text");
    expect_refusal(1, "text: is not a token file", NULL);
    CLI("eval", "cut", "--data", "test.tokens", "--context", "9");
    expect_refusal(2, "context is 9", NULL);
    CLI("generate", "cut");
    expect_refusal(1, "classifies whole sequences", NULL);
    CLI("inspect", "cut", "--data", "text");
    expect_refusal(1, "only language models", NULL);
    CLI("data", "mqar", "m.tokens", "--sequences", "5", "--length", "16", "--pairs", "2", "--vocab-size", "24");
    CLASSIFY("--data", "m.tokens", "--out", "x");
    expect_refusal(2, "m.tokens: holds no classes", "x");
}

static void test_wilson(void **state) {
    (void)state;
    double low, high;
    gmal_wilson(8, 100, &low, &high);
    TST_CLOSE(low, 0.041093, 1e-6);
    TST_CLOSE(high, 0.149981, 1e-6);
    gmal_wilson(0, 10, &low, &high);
    TST_CLOSE(low, 0, 0);
    TST_CLOSE(high, 0.277533, 1e-6);
    gmal_wilson(10, 10, &low, &high);
    TST_CLOSE(low, 1 - 0.277533, 1e-6);
    TST_CLOSE(high, 1, 0);
}

/* ---- Sliding windows ------------------------------------------------------------------------------------------ */

/* Every token's loss by itself, from the first window that holds it. */
static double slid(const gma_lm *lm, const unsigned char *text, int64_t windows, int64_t context, int64_t stride) {
    const int64_t count = windows * context;
    double total = 0;
    for (int64_t target = 1; target <= count; target++) {
        int32_t x[16], y[16];
        int64_t at = 0;
        double loss;
        while (at + context < target) at = at + stride < count - context ? at + stride : count - context;
        for (int64_t i = 0; i < context; i++) {
            x[i] = text[at + i];
            y[i] = at + i + 1 == target ? text[target] : -1;
        }
        TST_OK(gma_lm_loss(lm, x, y, 1, context, 1, &loss, NULL));
        total += loss;
    }
    return total / (double)count;
}

static void test_stride(void **state) {
    (void)state;
    static const char *const mixers[] = {"gma", "linear", "performer", "softmax", "mamba"};
    static const unsigned char text[] = "The sea, the sea; and then the land beyond it, far.";
    put_file("line", text, 44); /* five windows of 8, and a rest */
    for (int m = 0; m < 5; m++) {
        gma_lm_config c;
        gma_lm *lm;
        gma_mixer_kind kind;
        gma_eval_options o;
        gma_eval_result r = {.struct_size = sizeof r};
        TST_OK(gma_lm_config_init(&c));
        TST_OK(gma_mixer_kind_from_name(mixers[m], &kind));
        c.mixer = (int32_t)kind;
        c.layers = 1;
        c.width = 16;
        c.heads = 2;
        c.context = 8;
        TST_OK(gma_lm_create(&c, 5, &lm));
        TST_OK(gma_eval_options_init(&o));
        TST_OK(gma_eval(lm, in_folder("line"), &o, &r));
        const double plain = r.loss;
        assert_true(r.tokens == 40 && r.windows == 5);
        TST_CLOSE(plain, slid(lm, text, 5, 8, 8), 1e-5);
        o.batch = 4;
        for (o.stride = 1; o.stride <= 8; o.stride++) {
            TST_OK(gma_eval(lm, in_folder("line"), &o, &r));
            assert_true(r.tokens == 40 && r.windows == 1 + (32 + o.stride - 1) / o.stride);
            TST_CLOSE(r.loss, slid(lm, text, 5, 8, o.stride), 1e-5);
        }
        TST_CLOSE(r.loss, plain, 1e-7);
        o.stride = 9;
        TST_ERROR(gma_eval(lm, in_folder("line"), &o, &r), GMA_ERR_INVALID_ARGUMENT, "stride must be from 1 to the context (8)");
        gma_lm_destroy(lm);
    }
    assert_int_equal(CLI("train", "--data", "text", "--out", "slide", SMALL, "--steps", "2"), 0);
    assert_int_equal(CLI("eval", "slide", "--data", "line", "--stride", "4", "--json"), 0);
    assert_non_null(strstr(cli.out, "\"sliding\": {\"stride\": 4, \"windows\": 5, \"loss\": "));
    assert_int_equal(CLI("eval", "slide", "--data", "line", "--stride", "4"), 0);
    assert_non_null(strstr(cli.out, "stride 4"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classifier_learns), cmocka_unit_test(test_resume), cmocka_unit_test(test_recall),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_wilson), cmocka_unit_test(test_stride),
    };
    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
