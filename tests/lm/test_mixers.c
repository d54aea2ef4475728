/* Layers of any mixer: patterns, what each mixer can honour, folders, random features, and every causal mixer trained,
 * evaluated, resumed and sampled from by the same commands. */
#define _DEFAULT_SOURCE
#include "support/check.h"

#include "lm/verbs_testing.h"

#include <math.h>

#include "models/model.h"

/* What is trained here: every causal mixer and two hybrids. */
static const struct {
    const char *name, *option, *value;
} trained[] = {
    {"gma", "--mixer", "gma"},
    {"linear", "--mixer", "linear"},
    {"performer", "--mixer", "performer"},
    {"gma-linear", "--layers", "gma,linear"},
    {"performer-gma", "--layers", "performer:components=8,gma"},
    {"softmax", "--mixer", "softmax"},
    {"mamba", "--mixer", "mamba"},
    {"gma-window", "--layers", "gma,softmax:window=8"},
    {"mamba-window", "--layers", "mamba,softmax:window=8"},
};
enum { TRAINED = sizeof trained / sizeof trained[0] };

/* ---- Patterns ------------------------------------------------------------------------------------------------- */

static gma_lm_config with(const char *pattern) {
    gma_lm_config c;
    TST_OK(gma_lm_config_init(&c));
    snprintf(c.pattern, sizeof c.pattern, "%s", pattern);
    return c;
}

static void expect_layer(const gma_lm_config *c, int64_t i, const char *want) {
    char text[256];
    TST_OK(gma_lm_config_layer(c, i, text, sizeof text));
    assert_string_equal(text, want);
}

static void test_patterns(void **state) {
    (void)state;
    gma_lm_config c = with("gma,gma,gma:components=8,linear:conv=0:forget-gate=0,linear:conv=0:forget_gate=0"), again;
    TST_OK(gma_lm_config_resolve(&c));
    assert_string_equal(c.pattern, "2xgma,gma:components=8,2xlinear:forget_gate=0:conv=0");
    assert_int_equal(c.layers, 5);
    assert_int_equal(c.mixer, 0);
    expect_layer(&c, 1, "gma:components=64:logit_scale=1:forget_gate=1:output_gate=1:conv=4:rotary=0");
    expect_layer(&c, 2, "gma:components=8:logit_scale=1:forget_gate=1:output_gate=1:conv=4:rotary=0");
    expect_layer(&c, 4, "linear:forget_gate=0:output_gate=1:conv=0:rotary=0");
    again = c;
    TST_OK(gma_lm_config_resolve(&again));
    assert_memory_equal(&again, &c, sizeof c);
    char text[64];
    TST_ERROR(gma_lm_config_layer(&c, 5, text, sizeof text), GMA_ERR_INVALID_ARGUMENT, "layer 5: the model has 5");
    c = with("performer:rotary=1,gma");
    c.positions = GMA_LM_POSITIONS_LEARNED;
    c.logit_scale = 0;
    TST_OK(gma_lm_config_resolve(&c));
    expect_layer(&c, 0, "performer:components=64:forget_gate=1:output_gate=1:conv=4:rotary=1");
    expect_layer(&c, 1, "gma:components=64:logit_scale=0:forget_gate=1:output_gate=1:conv=4:rotary=0");
    static const struct {
        const char *pattern, *says;
    } bad[] = {
        {"gma,,gma", "layers: item 2, \"\": a mixer is missing"},
        {"gma,", "layers: item 2, \"\": a mixer is missing"},
        {"gma,attention", "layers: item 2, \"attention\": mixer 'attention' is unknown"},
        {"gma,linear:components=4", "layers: item 2, \"linear:components=4\": the mixer linear has no components"},
        {"linear:logit_scale=1", "the mixer linear has no logit_scale"},
        {"gma:taps=4", "layers: item 1, \"gma:taps=4\": there is no option \"taps\"; there are: window, components, states, expand"},
        {"gma:conv", "layers: item 1, \"gma:conv\": conv must be a whole number from 0 to 64"},
        {"gma:conv=", "conv must be a whole number"},
        {"gma:conv=2:conv=3", "layers: item 1, \"gma:conv=2:conv=3\": conv is there twice"},
        {"gma:conv=65", "conv must be a whole number from 0 to 64"},
        {"gma:conv=4x", "conv must be a whole number"},
        {"gma:components=0", "components must be a whole number from 1"},
        {"gma:conv=99999999999999999999", "conv must be a whole number"},
        {"0xgma", "layers: item 1, \"0xgma\": the count must be a whole number from 1 to 1000"},
        {"1001xgma", "the count must be"},
        {"999999999999xgma", "the count must be"},
        {"600xgma,600xlinear", "more than 1000 layers"},
        {"gma:", "there is no option \"\""},
        {"gma::conv=1", "there is no option \"\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c = with(bad[i].pattern);
        TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, bad[i].says);
    }
    c = with("gma,linear");
    c.mixer = GMA_MIXER_LINEAR;
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "mixer is linear, and layers (gma,linear) names");
    char pattern[300] = "linear";
    for (int i = 0; i < 24; i++) strcat(pattern, i % 2 ? ",linear" : ",gma:conv=3");
    c = with(pattern);
    TST_OK(gma_lm_config_resolve(&c)); /* as long as it may be */
    assert_int_equal(c.layers, 25);
}

/* A switch that is on must find a layer; one that was left open follows the mixers. */
static void test_whole_model_options(void **state) {
    (void)state;
    gma_lm_config c;
    TST_OK(gma_lm_config_init(&c));
    TST_OK(gma_lm_config_resolve(&c));
    assert_true(c.mixer == GMA_MIXER_GMA && c.logit_scale == 1 && c.forget_gate == 1 && c.output_gate == 1);
    assert_true(c.conv == 4 && c.components == 64);
    TST_OK(gma_lm_config_init(&c));
    c.mixer = GMA_MIXER_LINEAR;
    TST_OK(gma_lm_config_resolve(&c));
    assert_true(c.logit_scale == 0 && c.forget_gate == 1 && c.output_gate == 1 && c.conv == 4 && c.components == 0);
    TST_OK(gma_lm_config_init(&c));
    c.mixer = GMA_MIXER_LINEAR;
    c.logit_scale = 1;
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "logit_scale: no layer can honour it; the mixer linear");
    c.logit_scale = -1;
    c.components = 8;
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "components: no layer can honour it");
    c = with("linear,gma");
    c.components = 8;
    c.logit_scale = 1;
    TST_OK(gma_lm_config_resolve(&c));
    expect_layer(&c, 1, "gma:components=8:logit_scale=1:forget_gate=1:output_gate=1:conv=4:rotary=0");
}

/* Order: softmax knows none of its own, and nobody else is given one unasked. */
static void test_softmax_and_mamba(void **state) {
    (void)state;
    gma_lm_config c;
    c = with("2xsoftmax");
    TST_OK(gma_lm_config_resolve(&c));
    assert_int_equal(c.positions, GMA_LM_POSITIONS_ROTARY);
    c = with("gma,softmax:window=9,softmax:rotary=0");
    TST_OK(gma_lm_config_resolve(&c));
    assert_int_equal(c.positions, GMA_LM_POSITIONS_NONE);
    assert_string_equal(c.pattern, "gma,softmax:window=9:rotary=1,softmax:rotary=0");
    expect_layer(&c, 1, "softmax:window=9:output_gate=1:conv=4:rotary=1");
    c = with("mamba,softmax");
    c.window = 7;
    TST_OK(gma_lm_config_resolve(&c));
    assert_int_equal(c.positions, GMA_LM_POSITIONS_ROTARY);
    expect_layer(&c, 0, "mamba:states=16:expand=2");
    expect_layer(&c, 1, "softmax:window=7:output_gate=1:conv=4:rotary=1");
    c = with("softmax");
    c.routing_dim = 3;
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "layer 0 (softmax): routing_dim (3) must be even");
    c = with("gma,linformer");
    assert_int_not_equal(gma_lm_config_resolve(&c), GMA_OK);
    assert_non_null(strstr(gma_last_error(), "layer 1 (linformer): "));
    assert_non_null(strstr(gma_last_error(), "causal"));
    static const struct {
        const char *pattern, *says;
    } bad[] = {{"softmax:forget_gate=1", "the mixer softmax has no forget_gate"},
               {"softmax:components=4", "the mixer softmax has no components"},
               {"softmax:logit_scale=1", "the mixer softmax has no logit_scale"},
               {"gma:window=4", "the mixer gma has no window"},
               {"mamba:conv=3", "the mixer mamba has no conv"},
               {"mamba:rotary=1", "the mixer mamba has no rotary"},
               {"mamba:components=3", "the mixer mamba has no components"},
               {"gma:states=3", "the mixer gma has no states"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c = with(bad[i].pattern);
        TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, bad[i].says);
    }
}

/* ---- Folders -------------------------------------------------------------------------------------------------- */

static void test_folder_of_a_hybrid(void **state) {
    (void)state;
    gma_lm_config c = with("performer:components=5,2xgma:components=3,linear"), back;
    gma_lm *lm, *read;
    c.width = 12;
    c.heads = 2;
    TST_OK(gma_lm_create(&c, 4, &lm));
    TST_OK(gma_lm_save(lm, in_folder("hybrid"), GMA_F32));
    TST_OK(gma_lm_load(in_folder("hybrid"), &read));
    TST_OK(gma_lm_get_config(read, &back));
    assert_memory_equal(&back, &lm->layout->c, sizeof back);
    assert_memory_equal(read->values, lm->values, (size_t)lm->layout->total * sizeof(float));
    int fixed = 0;
    for (int i = 0; i < gma_lm_tensor_count(lm); i++) {
        const char *name;
        TST_OK(gma_lm_tensor(lm, i, &name, NULL));
        fixed += lm->layout->params[i].fixed;
        assert_int_equal(lm->layout->params[i].fixed, strcmp(name, "blocks.0.mixer.features") == 0);
        if (strstr(name, ".mu")) assert_true(name[7] == '1' || name[7] == '2');
    }
    assert_int_equal(fixed, 1);
    gma_lm_destroy(lm);
    gma_lm_destroy(read);
    /* A model from before there were patterns: one mixer for all, "layers" a number. */
    TST_OK(gma_lm_load("models/shakespeare-gma", &read));
    TST_OK(gma_lm_get_config(read, &back));
    assert_true(back.mixer == GMA_MIXER_GMA && back.layers == 4 && back.components == 64 && !*back.pattern);
    gma_lm_destroy(read);
}

/* ---- Random features ------------------------------------------------------------------------------------------ */

static void test_redraw(void **state) {
    (void)state;
    gma_lm_config c = with("performer:components=5,gma,performer");
    gma_lm *a, *b;
    int64_t count;
    TST_OK(gma_lm_create(&c, 4, &a));
    TST_OK(gma_lm_create(&c, 4, &b));
    TST_OK(gma_lm_redraw_features(a, 77, &count));
    assert_int_equal(count, 2);
    for (int i = 0; i < a->layout->param_count; i++) {
        const gmal_param *p = &a->layout->params[i];
        const size_t bytes = (size_t)p->count * sizeof(float);
        const int same = memcmp(a->values + p->offset, b->values + p->offset, bytes) == 0;
        assert_int_equal(same, !p->fixed);
    }
    TST_OK(gma_lm_redraw_features(b, 77, NULL));
    assert_memory_equal(a->values, b->values, (size_t)a->layout->total * sizeof(float));
    gma_lm_destroy(a);
    gma_lm_destroy(b);
}

/* ---- Verbs ---------------------------------------------------------------------------------------------------- */

/* Nats a byte that a table of single bytes, counted on the whole text, costs. */
static double unigram_entropy(void) {
    size_t n;
    char *text = contents("text", &n);
    double count[256] = {0}, sum = 0;
    for (size_t i = 0; i < n; i++) count[(unsigned char)text[i]]++;
    free(text);
    for (int i = 0; i < 256; i++)
        if (count[i] > 0) sum -= count[i] / (double)n * log(count[i] / (double)n);
    return sum;
}

static void test_every_mixer_learns(void **state) {
    (void)state;
    const double entropy = unigram_entropy();
    assert_true(entropy > 3 && entropy < 3.6);
    for (int i = 0; i < TRAINED; i++) {
        char out[64];
        snprintf(out, sizeof out, "runs/%s", trained[i].name);
        assert_int_equal(CLI("train", "--data", "text", "--out", out, "--preset", "tiny", "--steps", "80", "--width",
                             "32", "--context", "32", trained[i].option, trained[i].value), 0);
        assert_int_equal(CLI("eval", out, "--data", "text", "--split", "val", "--windows", "64", "--json"), 0);
        const double loss = json_number_in(cli.out, "loss");
        if (!(loss < entropy - 0.1)) fprintf(stderr, "%s: %g nats, single bytes %g\n", out, loss, entropy);
        assert_true(loss < entropy - 0.1);
        assert_int_equal(CLI("generate", out, "--length", "100", "--seed", "3"), 0);
        assert_int_equal(strlen(cli.out) > 100, 1);
    }
}

/* K1 for every mixer: stopping and resuming gives the same bits. */
static void test_every_mixer_resumes(void **state) {
    (void)state;
    for (int i = 0; i < TRAINED; i++) {
        const int redraw = strstr(trained[i].value, "performer") != NULL;
        char a[64], b[64];
        snprintf(a, sizeof a, "straight-%s", trained[i].name);
        snprintf(b, sizeof b, "halves-%s", trained[i].name);
#define SETTINGS                                                                                                     \
    "--preset", "tiny", "--width", "16", "--heads", "2", "--context", "16", "--batch", "4", "--threads", "2",         \
        "--eval-windows", "8", "--warmup", "3", "--steps", "12", "--eval-every", "5", "--dropout", "0.1",             \
        "--redraw-every", redraw ? "3" : "0", trained[i].option, trained[i].value
        assert_int_equal(CLI("train", "--data", "text", "--out", a, SETTINGS), 0);
        assert_int_equal(CLI("train", "--data", "text", "--out", b, SETTINGS, "--stop-at", "6"), 0);
        assert_int_equal(CLI("train", "--out", b, "--resume", "--threads", "2"), 0);
        assert_same_run(a, b, 12);
#undef SETTINGS
    }
    CLI("train", "--out", "halves-gma-linear", "--resume", "--steps", "20", "--layers", "linear,gma");
    expect_refusal(1, "layers is gma,linear in the checkpoint and linear,gma in the settings", NULL);
    CLI("train", "--out", "halves-gma-linear", "--resume", "--steps", "20", "--layers", "2");
    expect_refusal(1, "layers is gma,linear in the checkpoint and 2 in the settings", NULL);
}

static void test_wrong_settings(void **state) {
    (void)state;
    CLI("train", "--data", "text", "--out", "x", "--mixer", "attention");
    expect_refusal(2, "--mixer 'attention' is unknown; there are: gma, linear", "x");
    CLI("train", "--data", "text", "--out", "x", "--layers", "gma,linear:window=4");
    expect_refusal(2, "--layers: item 2, \"linear:window=4\": the mixer linear has no window", "x");
    CLI("train", "--data", "text", "--out", "x", "--layers", "gma,linear", "--mixer", "gma");
    expect_refusal(2, "mixer is gma, and layers (gma,linear)", "x");
    CLI("train", "--data", "text", "--out", "x", "--mixer", "gma", "--layers", "gma,linear");
    expect_refusal(2, "mixer is gma, and layers (gma,linear)", "x");
    CLI("train", "--data", "text", "--out", "x", "--mixer", "linear", "--logit-scale");
    expect_refusal(2, "logit_scale: no layer can honour it", "x");
    CLI("train", "--data", "text", "--out", "x", "--preset", "tiny", "--mixer", "linear", "--components", "8");
    expect_refusal(2, "components: no layer can honour it", "x");
    CLI("train", "--data", "text", "--out", "x", "--window", "5");
    expect_refusal(2, "window: no layer can honour it; the mixer gma has none", "x");
    CLI("train", "--data", "text", "--out", "x", "--redraw-every", "5");
    expect_refusal(2, "redraw_every: no layer has random features", "x");
    CLI("train", "--data", "text", "--out", "x", "--layers", "0");
    expect_refusal(2, "layers must be a whole number from 1 to 1000", "x");
    /* What it came to is shown. */
    assert_int_equal(CLI("train", "--data", "text", "--out", "shown", SMALL, "--steps", "1", "--layers", "2xgma,linear"), 0);
    assert_non_null(strstr(cli.out, "0..1              gma:components=4:logit_scale=1:forget_gate=1"));
    assert_non_null(strstr(cli.out, "2..2              linear:forget_gate=1:output_gate=1:conv=4:rotary=0"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),           cmocka_unit_test(test_whole_model_options),
        cmocka_unit_test(test_softmax_and_mamba),
        cmocka_unit_test(test_folder_of_a_hybrid),
        cmocka_unit_test(test_redraw),             cmocka_unit_test(test_every_mixer_learns),
        cmocka_unit_test(test_every_mixer_resumes), cmocka_unit_test(test_wrong_settings),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
