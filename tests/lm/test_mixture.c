/* Training with mixtures that are held still, tied, or set by k-means (train/mixture.h). */
#define _DEFAULT_SOURCE
#include "lm/verbs_testing.h"

#include <math.h>

#include "train/mixture.h"

static const gmal_slot_param *slot(const gmal_layout *l, int64_t layer, int32_t kind) {
    const gmal_sub *m = &l->blocks[layer].mixer;
    for (int i = 0; i < m->slots; i++)
        if (m->slot[i].slot == kind) return &m->slot[i];
    return NULL;
}

static gma_lm *load(const char *name) {
    gma_lm *lm = NULL;
    assert_int_equal(gma_lm_load(in_folder(name), &lm), GMA_OK);
    return lm;
}

/* The largest difference of a parameter of layer 0 between two models. */
static double moved(const gma_lm *a, const gma_lm *b, int32_t kind) {
    const gmal_slot_param *p = slot(a->layout, 0, kind);
    double most = 0;
    assert_non_null(p);
    for (int64_t i = 0; i < p->count; i++) {
        const double d = fabs((double)a->values[p->offset + i] - (double)b->values[p->offset + i]);
        most = d > most ? d : most;
    }
    return most;
}

#define TRAIN(to, ...) CLI("train", SMALL, "--data", "text", "--out", to, "--mixer", "gma", __VA_ARGS__)

static void test_frozen(void **state) {
    (void)state;
    static const int32_t kinds[] = {GMA_MU, GMA_OMEGA, GMA_ALPHA};
    assert_int_equal(TRAIN("free1", "--steps", "20", "--stop-at", "1"), 0);
    assert_int_equal(TRAIN("free", "--steps", "20"), 0);
    assert_int_equal(TRAIN("held1", "--steps", "20", "--stop-at", "1", "--freeze-mixture"), 0);
    assert_int_equal(TRAIN("held", "--steps", "20", "--freeze-mixture"), 0);
    gma_lm *free1 = load("free1/last"), *free20 = load("free/last"), *held1 = load("held1/last"), *held20 = load("held/last");
    for (int i = 0; i < 3; i++) {
        assert_true(moved(held1, held20, kinds[i]) == 0);
        assert_true(moved(free1, free20, kinds[i]) > 1e-4);
    }
    const gmal_sub *m = &held1->layout->blocks[0].mixer; /* the rest learns */
    assert_true(held1->values[m->w_proj] < held20->values[m->w_proj] || held1->values[m->w_proj] > held20->values[m->w_proj]);
    gma_lm_destroy(free1);
    gma_lm_destroy(free20);
    gma_lm_destroy(held1);
    gma_lm_destroy(held20);
}

/* mu_std multiplies the drawn means, in the encoder and where the decoder reads it too, and nothing else; a resumed run does not
 * do it again. */
static void test_spread(void **state) {
    (void)state;
#define PAIRS(to, ...)                                                                                                            \
    CLI("train", "--preset", "tiny", "--mixer", "gma", "--steps", "4", "--lr", "1e-30", "--weight-decay", "0", "--task", "seq2seq", \
        "--data", "copy", "--context", "16", "--symbols", "8", "--out", to, __VA_ARGS__)
    assert_int_equal(PAIRS("wide", "--stop-at", "1"), 0);
    assert_int_equal(PAIRS("near", "--stop-at", "1", "--mu-std", "0.125"), 0);
    assert_int_equal(CLI("train", "--out", "near", "--resume"), 0);
    gma_lm *wide = load("wide/last"), *near = load("near/last");
    int64_t means = 0;
    for (int64_t j = 0; j < wide->layout->param_count; j++) {
        const gmal_param *p = &wide->layout->params[j];
        const float factor = strstr(p->name, ".mu") ? 0.125f : 1;
        means += strstr(p->name, ".mu") != NULL;
        for (int64_t i = p->offset; i < p->offset + p->count; i++)
            assert_true(fabsf(near->values[i] - factor * wide->values[i]) < 1e-20f); /* the steps go no further */
    }
    assert_int_equal(means, 6); /* two layers each: encoder, decoder, what reads the encoder */
    gma_lm_destroy(wide);
    gma_lm_destroy(near);
}

/* One variance a head and width, and not where it started. */
static void assert_tied(const char *name) {
    gma_lm *lm = load(name);
    const gmal_slot_param *p = slot(lm->layout, 0, GMA_OMEGA);
    const int64_t k = 4, r = lm->layout->c.routing_dim;
    int moved_at = 0;
    for (int64_t h = 0; h < lm->layout->c.kv_heads; h++)
        for (int64_t i = 0; i < r; i++)
            for (int64_t j = 0; j < k; j++) {
                const float *omega = lm->values + p->offset + h * k * r;
                moved_at += fabsf(omega[i]) > 1e-4f;
                assert_true(!(omega[j * r + i] < omega[i]) && !(omega[j * r + i] > omega[i]));
            }
    assert_true(moved_at > 0);
    gma_lm_destroy(lm);
}

static void test_tied(void **state) {
    (void)state;
    assert_int_equal(TRAIN("tied", "--steps", "20", "--tied-variances", "--weight-decay", "0.5"), 0);
    assert_tied("tied/last");
}

/* Gradients of ties by hand: the norm of K copies is that of the one common parameter. */
static void test_tied_gradient(void **state) {
    (void)state;
    gma_settings *s = NULL;
    gma_lm *lm = NULL;
    assert_int_equal(gma_settings_create("tiny", &s), GMA_OK);
    s->tied_variances = 1;
    assert_int_equal(gma_settings_set(s, "mixer", "gma"), GMA_OK);
    assert_int_equal(gma_settings_resolve(s), GMA_OK);
    assert_int_equal(gma_lm_create(&s->model, 1, &lm), GMA_OK);
    const gmal_slot_param *p = slot(lm->layout, 1, GMA_OMEGA);
    const int64_t k = 16, r = lm->layout->c.routing_dim;
    float *g = calloc((size_t)lm->layout->total, sizeof *g);
    for (int64_t j = 0; j < k; j++) g[p->offset + k * r + j * r + 3] = (float)j; /* second head, width 3 */
    gmal_mixture_gradients(s, lm->layout, g);
    double sum = 0;
    for (int64_t i = 0; i < lm->layout->total; i++) sum += (double)g[i] * (double)g[i];
    assert_true(fabs(sqrt(sum) - 120) < 1e-4); /* 0 + 1 + .. + 15 */
    assert_true(fabs((double)g[p->offset + k * r + 3] - 30) < 1e-5);
    free(g);
    gma_lm_destroy(lm);
    gma_settings_destroy(s);
}

/* Before training, k-means routes a token's queries and keys much nearer to a mean than drawn means are; the mixture is the same
 * for every number of threads, and stays while frozen. */
static void test_kmeans(void **state) {
    (void)state;
    assert_int_equal(TRAIN("drawn", "--steps", "20", "--stop-at", "1", "--lr", "1e-30", "--weight-decay", "0"), 0);
    assert_int_equal(TRAIN("means", "--steps", "20", "--stop-at", "1", "--lr", "1e-30", "--weight-decay", "0", "--mixture-init", "kmeans"), 0);
    assert_int_equal(TRAIN("means1", "--steps", "20", "--stop-at", "1", "--mixture-init", "kmeans", "--freeze-mixture", "--threads", "1"), 0);
    assert_int_equal(TRAIN("means20", "--steps", "20", "--mixture-init", "kmeans", "--freeze-mixture"), 0);
    gma_lm *drawn = load("drawn/last"), *means = load("means/last"), *one = load("means1/last"), *late = load("means20/last");
    static const int32_t kinds[] = {GMA_MU, GMA_OMEGA, GMA_ALPHA};
    for (int i = 0; i < 3; i++) {
        assert_true(moved(drawn, means, kinds[i]) > 1e-2);
        assert_true(moved(means, one, kinds[i]) == 0);
        assert_true(moved(one, late, kinds[i]) == 0);
    }
    const gmal_slot_param *omega = slot(means->layout, 0, GMA_OMEGA), *alpha = slot(means->layout, 0, GMA_ALPHA);
    double share = 0;
    for (int64_t i = 0; i < alpha->count; i++) share += exp((double)means->values[alpha->offset + i]);
    assert_true(fabs(share / (double)alpha->count - 1) < 1e-3); /* sizes + 1, over points + K, times K */
    for (int64_t i = 0; i < omega->count; i++) { /* queries and keys have variance about 1 at the start; clusters have less */
        const double sigma2 = log1p(exp((double)means->values[omega->offset + i]));
        assert_true(sigma2 > 1e-3 && sigma2 < 3);
    }
    gma_lm_destroy(drawn);
    gma_lm_destroy(means);
    gma_lm_destroy(one);
    gma_lm_destroy(late);
}

/* A resumed run does not start its mixture again. */
static void test_resume(void **state) {
    (void)state;
    assert_int_equal(TRAIN("whole", "--steps", "8", "--mixture-init", "kmeans", "--tied-variances"), 0);
    assert_int_equal(TRAIN("halves", "--steps", "8", "--mixture-init", "kmeans", "--tied-variances", "--stop-at", "3"), 0);
    assert_int_equal(CLI("train", "--out", "halves", "--resume", "--threads", "2"), 0);
    assert_same_file("whole/last/model.safetensors", "halves/last/model.safetensors");
    assert_tied("whole/last");
}

static void test_refusals(void **state) {
    (void)state;
    CLI("train", "--preset", "tiny", "--data", "text", "--out", "no", "--mixer", "softmax", "--freeze-mixture");
    expect_refusal(2, "freeze_mixture: no layer has Gaussians", "no");
    TRAIN("no", "--steps", "2", "--mixture-init", "kmeans", "--recompute");
    expect_refusal(2, "recompute does not keep", "no");
    CLI("train", "--preset", "tiny", "--data", "text", "--out", "no", "--mixer", "linear", "--mu-std", "0.1");
    expect_refusal(2, "mu_std: no layer has Gaussians", "no");
    TRAIN("no", "--steps", "2", "--mixture-init", "kmeans", "--mu-std", "0.1");
    expect_refusal(2, "mu_std is of mixture_init drawn", "no");
    TRAIN("no", "--steps", "2", "--mixture-init", "guess");
    expect_refusal(2, "drawn|kmeans", "no");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen),  cmocka_unit_test(test_spread),  cmocka_unit_test(test_tied),     cmocka_unit_test(test_tied_gradient),
        cmocka_unit_test(test_kmeans),  cmocka_unit_test(test_resume),   cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
