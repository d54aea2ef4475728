/* gma train --task seq2seq, gma eval on its models, and what else they can and cannot do. */
#define _DEFAULT_SOURCE
#include "support/check.h"

#include "lm/verbs_testing.h"

#include <math.h>

#define PAIRS                                                                                                            \
    "--task", "seq2seq", "--symbols", "8", "--context", "6", "--layers", "1", "--width", "32", "--heads", "2", "--batch", \
        "32", "--conv", "0", "--threads", "2", "--eval-windows", "16", "--lr", "5e-3"

/* Chance is 1 in 8. Mean over a task and a mixer of what greedy decoding gets right on pairs that training never saw. */
static void test_it_learns(void **state) {
    (void)state;
    static const struct {
        const char *data, *mixer, *steps;
        double least;
    } rows[] = {{"reverse", "softmax", "250", 0.98}, {"copy", "gma", "150", 0.4}, {"sort", "softmax", "150", 0.8}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(CLI("train", PAIRS, "--data", rows[i].data, "--out", rows[i].data, "--mixer", rows[i].mixer, "--steps",
                             rows[i].steps), 0);
        assert_int_equal(CLI("eval", rows[i].data, "--data", rows[i].data, "--windows", "200", "--seed", "9", "--json"), 0);
        const double accuracy = json_number_in(cli.out, "accuracy"), whole = json_number_in(cli.out, "sequence_accuracy");
        if (!(accuracy >= rows[i].least)) fprintf(stderr, "%s with %s: %g\n", rows[i].data, rows[i].mixer, accuracy);
        assert_true(accuracy >= rows[i].least && whole <= accuracy);
        assert_true(json_number_in(cli.out, "tokens") == 1200 && json_number_in(cli.out, "sequences") == 200);
        assert_true(json_number_in(cli.out, "state_bytes") > 0);
    }
    /* It is the task that was learned: another one is not done by the same model. */
    assert_int_equal(CLI("eval", "reverse", "--data", "copy", "--windows", "100", "--json"), 0);
    assert_true(json_number_in(cli.out, "accuracy") < 0.4);
    /* Shorter sources too, and the same pairs from the same seed. */
    assert_int_equal(CLI("eval", "sort", "--data", "sort", "--windows", "30", "--min-length", "3"), 0);
    assert_non_null(strstr(cli.out, "30 sequences, "));
    assert_non_null(strstr(cli.out, "of the sequences without a mistake"));
}

/* K1: stopping and resuming gives the same bits; lengths, dropout and redrawn features included. */
static void test_it_resumes(void **state) {
    (void)state;
#define SETTINGS                                                                                                         \
    PAIRS, "--data", "sort", "--min-length", "2", "--layers", "gma,performer", "--encoder-layers", "softmax,gma",         \
        "--cross-mixer", "gma,performer", "--components", "6", "--dropout", "0.1", "--redraw-every", "3", "--accumulate", \
        "2", "--batch", "4", "--steps", "12", "--eval-every", "5"
    assert_int_equal(CLI("train", SETTINGS, "--out", "straight"), 0);
    assert_non_null(strstr(cli.out, "0..0              encoder softmax:output_gate=1:conv=0:rotary=0"));
    assert_non_null(strstr(cli.out, "1..1              cross performer:components=6:output_gate=1"));
    assert_int_equal(CLI("train", SETTINGS, "--out", "halves", "--stop-at", "6"), 0);
    assert_int_equal(CLI("train", "--out", "halves", "--resume", "--threads", "2"), 0);
    assert_same_run("straight", "halves", 12);
    assert_int_equal(CLI("train", SETTINGS, "--out", "thrifty", "--recompute"), 0);
    assert_same_run("straight", "thrifty", 12);
    size_t n;
    char *config = contents("halves/last/config.json", &n);
    assert_non_null(strstr(config, "\"task\": \"seq2seq\""));
    assert_non_null(strstr(config, "\"encoder_layers\": \"softmax,gma\""));
    assert_non_null(strstr(config, "\"cross_mixer\": \"gma,performer\""));
    free(config);
    CLI("train", "--out", "halves", "--resume", "--steps", "20", "--data", "copy");
    expect_refusal(1, "copy: its training tokens are not those of the run to resume", NULL);
    CLI("train", "--out", "halves", "--resume", "--steps", "20", "--cross-mixer", "gma");
    expect_refusal(1, "cross_mixer is gma,performer in the checkpoint and 2xgma in the settings", NULL);
#undef SETTINGS
}

static void test_wrong_use(void **state) {
    (void)state;
#define TRAIN(...) CLI("train", PAIRS, "--data", "sort", "--out", "x", __VA_ARGS__)
    CLI("train", PAIRS, "--data", "text", "--out", "x");
    expect_refusal(2, "\"text\" is none of the pairs that task seq2seq generates: copy, reverse, sort", "x");
    TRAIN("--mixer", "mamba");
    expect_refusal(2, "encoder layer 0 (mamba): this mixer runs in one direction only", "x");
    TRAIN("--mixer", "mamba", "--encoder-layers", "gma");
    expect_refusal(2, "cross-attention of layer 0 (mamba): this mixer has no queries", "x");
    TRAIN("--mixer", "linformer");
    expect_refusal(2, "layer 0 (linformer): ", "x");
    TRAIN("--mixer", "softmax", "--encoder-layers", "softmax:window=3");
    expect_refusal(2, "encoder_layers: item 1, \"softmax:window=3\": the mixer softmax has no window where it is not causal", "x");
    TRAIN("--cross-mixer", "3xgma");
    expect_refusal(2, "cross_mixer names 3 mixers for a decoder of 1 layers", "x");
    TRAIN("--val-data", "text");
    expect_refusal(2, "val_data: task seq2seq generates its validation pairs", "x");
    TRAIN("--min-length", "7");
    expect_refusal(2, "min_length (7) is more than the context (6)", "x");
    TRAIN("--vocab", "12");
    expect_refusal(2, "8 symbols make a vocabulary of 10", "x");
    TRAIN("--tokens", "u16");
    expect_refusal(2, "tokens: task seq2seq reads no file", "x");
    TRAIN("--no-causal");
    expect_refusal(2, "causal cannot be off", "x");
    CLI("train", SMALL, "--data", "text", "--out", "x", "--min-length", "2");
    expect_refusal(2, "min_length is of task seq2seq", "x");
    CLI("train", SMALL, "--data", "text", "--out", "x", "--symbols", "2");
    expect_refusal(2, "symbols is of task seq2seq", "x");
    CLI("train", SMALL, "--data", "text", "--out", "x", "--encoder-layers", "2");
    expect_refusal(2, "encoder_layers: only a model of task seq2seq has an encoder", "x");
    CLI("train", SMALL, "--data", "text", "--out", "x", "--cross-mixer", "gma");
    expect_refusal(2, "cross_mixer: only a model of task seq2seq", "x");
    assert_int_equal(TRAIN("--steps", "1", "--encoder-layers", "2xlinformer", "--cross-mixer", "linformer", "--components", "3",
                           "--layers", "mamba"), 0);
    CLI("eval", "x", "--data", "text");
    expect_refusal(1, "\"text\" is none of the pairs", NULL);
    CLI("eval", "x", "--data", "sort", "--stride", "2");
    expect_refusal(2, "stride is for a file, and sort is generated", NULL);
    CLI("eval", "x", "--data", "sort", "--split", "val");
    expect_refusal(2, "split is for a file, and sort is generated", NULL);
    CLI("eval", "x", "--data", "sort", "--context", "7");
    expect_refusal(2, "context is 7, but the model has learned positions for 6", NULL);
    CLI("eval", "x", "--data", "sort", "--min-length", "7");
    expect_refusal(2, "min_length must be from 1 to 6, not 7", NULL);
    CLI("generate", "x", "--length", "3");
    expect_refusal(1, "makes a sequence from a source (task seq2seq) and continues no text", NULL);
    CLI("inspect", "x", "--data", "text");
    expect_refusal(1, "only language models can be inspected", NULL);
    assert_int_equal(CLI("train", SMALL, "--data", "text", "--out", "lm", "--steps", "1"), 0);
    CLI("eval", "lm", "--data", "text", "--min-length", "2");
    expect_refusal(2, "min_length is for pairs that are generated", NULL);
    CLI("eval", "lm", "--data", "text", "--seed", "2");
    expect_refusal(2, "seed is of generated pairs", NULL);
    CLI("eval", "lm", "--data", "text", "--stride", "17");
    expect_refusal(2, "stride must be from 1 to the context (16), not 17", NULL);
    CLI("eval", "lm", "--data", "text", "--val-fraction", "0.2");
    expect_refusal(2, "--val-fraction says where the file is cut", NULL);
    CLI("train", SMALL, "--data", "text", "--val-data", "text", "--val-fraction", "0.1", "--out", "y");
    expect_refusal(2, "--val-fraction: --val-data text is what is validated on", "y");
    CLI("train", SMALL, "--task", "seq2seq", "--data", "copy", "--val-fraction", "0.2", "--out", "y");
    expect_refusal(2, "--val-fraction: task seq2seq generates its validation pairs", "y");
    CLI("train", SMALL, "--task", "classify", "--data", "text", "--tied", "--out", "y");
    expect_refusal(2, "--tied: the head of task classify has a row for each class", "y");
#undef TRAIN
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_learns),
        cmocka_unit_test(test_it_resumes),
        cmocka_unit_test(test_wrong_use),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
