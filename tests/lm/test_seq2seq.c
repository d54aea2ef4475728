/* Models of task seq2seq: gradients of encoder, cross-attention and decoder against differences, masks, streaming, pairs. */
#define _DEFAULT_SOURCE
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/pairs.h"
#include "layers/rng.h"
#include "models/model.h"
#include "models/seq2seq.h"

enum { B = 2, S = 6, T = S + 1, VOCAB = 9 };

typedef struct s2s_case {
    const char *name, *layers, *encoder, *cross;
    int norm, positions, gates; /* gates: every option that is on by default, else none */
    int64_t kv_heads;
    double dropout;
} s2s_case;

static const s2s_case cases[] = {
    {"softmax", "2xsoftmax", "softmax", "softmax", GMA_LM_NORM_RMS, GMA_LM_POSITIONS_LEARNED, 1, 2, 0},
    {"gma", "2xgma", "gma", "gma", GMA_LM_NORM_LAYER, GMA_LM_POSITIONS_AUTO, 1, 1, 0.3},
    {"gma, plain", "gma", "2xgma", "gma", GMA_LM_NORM_RMS, GMA_LM_POSITIONS_ROTARY, 0, 2, 0},
    {"linear and performer", "linear,performer", "performer,linear", "performer,linear", GMA_LM_NORM_RMS,
     GMA_LM_POSITIONS_LEARNED, 1, 2, 0},
    {"linformer, mamba", "mamba", "linformer", "linformer", GMA_LM_NORM_LAYER, GMA_LM_POSITIONS_LEARNED, 0, 2, 0},
    {"mixed", "softmax:window=3,mamba", "gma,softmax", "gma:components=2,softmax", GMA_LM_NORM_RMS, GMA_LM_POSITIONS_NONE, 1,
     2, 0.2},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static gma_lm_config config_of(const s2s_case *k) {
    gma_lm_config c;
    gma_lm_config_init(&c);
    c.task = GMA_LM_TASK_SEQ2SEQ;
    c.tokenizer = GMA_LM_TOKENIZER_NONE;
    c.vocab = VOCAB;
    c.context = S;
    c.width = 8;
    c.heads = 2;
    c.routing_dim = 4;
    c.value_dim = 3;
    c.mlp_width = 10;
    c.norm = k->norm;
    c.positions = k->positions;
    c.kv_heads = k->kv_heads;
    c.dropout = k->dropout;
    if (strstr(k->layers, "gma") || strstr(k->layers, "perf") || strstr(k->encoder, "linf") || strstr(k->encoder, "gma"))
        c.components = 3;
    if (!k->gates) {
        c.output_gate = 0;
        c.conv = 0;
    }
    snprintf(c.pattern, sizeof c.pattern, "%s", k->layers);
    snprintf(c.encoder_pattern, sizeof c.encoder_pattern, "%s", k->encoder);
    snprintf(c.cross_pattern, sizeof c.cross_pattern, "%s", k->cross);
    return c;
}

typedef struct model {
    gma_lm_config c;
    gmal_layout *l;
    gmal_seq2seq_f64 *net;
    double *params, *grads, *junk;
    int32_t source[B * S], tokens[B * T], targets[B * T];
    unsigned char mask[B * S];
    gmal_pairs_f64 pairs;
    uint64_t key;
} model;

static double noise(uint64_t key, int64_t i) { return 2 * gmal_uniform(key, (uint64_t)i) - 1; }

static void setup(model *m, const s2s_case *k) {
    memset(m, 0, sizeof *m);
    m->c = config_of(k);
    TST_OK(gma_lm_config_resolve(&m->c));
    TST_OK(gmal_layout_create(&m->c, &m->l));
    TST_OK(gmal_seq2seq_create_f64(m->l, B, GMAL_NET_TRAIN, 1, &m->net));
    const size_t n = (size_t)m->l->total;
    float *values = malloc(n * sizeof *values);
    TST_OK(gmal_layout_init(m->l, 7, values));
    m->params = malloc(n * sizeof(double));
    m->grads = calloc(n, sizeof(double));
    m->junk = calloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++) m->params[i] = (double)values[i] + 0.3 * noise(99, (int64_t)i);
    free(values);
    const gmal_pairs_of of = {1, VOCAB - GMAL_FRAME, 3, S, 5};
    for (int b = 0; b < B; b++) /* one shorter than the other */
        for (int64_t i = 10 * b;; i++)
            if ((gmal_pair_frame(&of, i, S, m->source + b * S, m->mask + b * S, m->tokens + b * T, m->targets + b * T) < S) == b) break;
    m->pairs = (gmal_pairs_f64){m->source, m->tokens, m->targets, m->mask};
    m->key = k->dropout > 0 ? 1234 : 0;
}

static void teardown(model *m) {
    gmal_seq2seq_destroy_f64(m->net);
    gmal_layout_destroy(m->l);
    free(m->params);
    free(m->grads);
    free(m->junk);
}

static double loss_at(model *m) {
    double sum;
    TST_OK(gmal_seq2seq_backward_f64(m->net, m->params, m->junk, &m->pairs, 0.25, m->key, &sum));
    return 0.25 * sum;
}

static double difference(model *m, double *x) {
    const double h = 1e-5, keep = *x;
    *x = keep + h;
    const double up = loss_at(m);
    *x = keep - h;
    const double down = loss_at(m);
    *x = keep;
    return (up - down) / (2 * h);
}

static void test_gradients(void **state) {
    (void)state;
    for (int k = 0; k < CASES; k++) {
        model m;
        double sum;
        int moved = 0, trained = 0;
        setup(&m, &cases[k]);
        TST_OK(gmal_seq2seq_backward_f64(m.net, m.params, m.grads, &m.pairs, 0.25, m.key, &sum));
        if (!m.key) {
            double plain;
            TST_OK(gmal_seq2seq_loss_f64(m.net, m.params, &m.pairs, &plain));
            TST_CLOSE(plain, sum, 0);
        }
        for (int j = 0; j < m.l->param_count; j++) {
            const gmal_param *p = &m.l->params[j];
            double largest = 0;
            if (p->fixed) continue;
            trained++;
            for (int64_t i = p->offset; i < p->offset + p->count; i++) largest = fmax(largest, fabs(m.grads[i]));
            for (int64_t q = 0; q < (p->count < 5 ? p->count : 5); q++) {
                const int64_t i = p->count <= 5 ? q : (int64_t)(gmal_random((uint64_t)j, (uint64_t)q) % (uint64_t)p->count);
                const double want = difference(&m, &m.params[p->offset + i]), got = m.grads[p->offset + i];
                if (!(fabs(got - want) <= 2e-8 + 2e-6 * largest))
                    tst_fail("%s: %s[%lld]: backward %.12g, difference %.12g", cases[k].name, p->name, (long long)i, got, want);
            }
            if (!(largest > 1e-7)) fprintf(stderr, "%s: %s does not move\n", cases[k].name, p->name);
            moved += largest > 1e-7;
        }
        assert_int_equal(moved, trained);
        teardown(&m);
    }
}

/* The float network is the same function; keeping only the blocks' inputs changes no bit of it. */
static void test_float(void **state) {
    (void)state;
    for (int k = 0; k < CASES; k++) {
        model m;
        double sum, sum_f[2];
        setup(&m, &cases[k]);
        const size_t n = (size_t)m.l->total;
        float *params = malloc(n * sizeof *params), *grads[2];
        for (size_t i = 0; i < n; i++) params[i] = (float)m.params[i];
        for (size_t i = 0; i < n; i++) m.params[i] = (double)params[i];
        TST_OK(gmal_seq2seq_backward_f64(m.net, m.params, m.grads, &m.pairs, 0.25, m.key, &sum));
        const gmal_pairs_f32 pairs = {m.source, m.tokens, m.targets, m.mask};
        for (int r = 0; r < 2; r++) {
            gmal_seq2seq_f32 *net;
            grads[r] = calloc(n, sizeof **grads);
            TST_OK(gmal_seq2seq_create_f32(m.l, B, r ? GMAL_NET_RECOMPUTE : GMAL_NET_TRAIN, 2, &net));
            TST_OK(gmal_seq2seq_backward_f32(net, params, grads[r], &pairs, 0.25, m.key, &sum_f[r]));
            TST_OK(gmal_seq2seq_backward_f32(net, params, grads[r], &pairs, 0.25, m.key, &sum_f[r])); /* finds old memory */
            gmal_seq2seq_destroy_f32(net);
        }
        TST_CLOSE(sum_f[0], sum, 2e-5 * sum);
        assert_true(sum_f[0] == sum_f[1] && memcmp(grads[0], grads[1], n * sizeof(float)) == 0);
        for (int j = 0; j < m.l->param_count; j++) {
            const gmal_param *p = &m.l->params[j];
            double largest = 0, worst = 0;
            for (int64_t i = p->offset; i < p->offset + p->count; i++) {
                largest = fmax(largest, fabs(m.grads[i]));
                worst = fmax(worst, fabs((double)grads[0][i] / 2 - m.grads[i]));
            }
            if (!(worst <= 5e-4 * largest)) tst_fail("%s: grad of %s is off by %g of %g", cases[k].name, p->name, worst, largest);
        }
        free(params);
        free(grads[0]);
        free(grads[1]);
        teardown(&m);
    }
}

/* What stands behind a source's end and behind a target's end changes nothing, and the source is read to its last symbol. */
static void test_mask(void **state) {
    (void)state;
    for (int k = 0; k < CASES; k++) {
        model m;
        double sum, again;
        setup(&m, &cases[k]);
        assert_true(m.mask[S - 1] && !m.mask[2 * S - 1] && m.targets[2 * T - 1] == -1);
        TST_OK(gmal_seq2seq_loss_f64(m.net, m.params, &m.pairs, &sum));
        m.source[2 * S - 1] = 5;
        m.tokens[2 * T - 1] = 6;
        TST_OK(gmal_seq2seq_loss_f64(m.net, m.params, &m.pairs, &again));
        TST_CLOSE(again, sum, 0);
        m.source[S - 1] = (m.source[S - 1] + 1) % (VOCAB - 2);
        TST_OK(gmal_seq2seq_loss_f64(m.net, m.params, &m.pairs, &again));
        assert_true(fabs(again - sum) > 1e-6);
        teardown(&m);
    }
}

/* Token by token, with the source's keys and values kept, is the network; sources of any length, one after the other. */
static void test_stream_is_the_network(void **state) {
    (void)state;
    for (int k = 0; k < CASES; k++) {
        model m;
        gma_lm *lm, *read;
        gma_lm_stream *stream;
        gmal_seq2seq_f32 *net;
        setup(&m, &cases[k]);
        TST_OK(gma_lm_create(&m.c, 1, &lm));
        for (int64_t i = 0; i < m.l->total; i++) lm->values[i] = (float)m.params[i];
        char path[] = "/tmp/gma-test-s2s-XXXXXX", command[100];
        assert_non_null(mkdtemp(path));
        TST_OK(gma_lm_save(lm, path, GMA_F32));
        TST_OK(gma_lm_load(path, &read));
        snprintf(command, sizeof command, "rm -rf '%s'", path);
        assert_int_equal(system(command), 0);
        assert_memory_equal(&read->layout->c, &lm->layout->c, sizeof m.c);
        float logits[B * T * VOCAB], step[VOCAB];
        TST_OK(gmal_seq2seq_create_f32(m.l, B, GMAL_NET_EVALUATE, 2, &net));
        TST_OK(gmal_seq2seq_logits_f32(net, lm->values, &(gmal_pairs_f32){m.source, m.tokens, m.targets, m.mask}, logits));
        TST_OK(gma_lm_stream_create(read, 2, &stream));
        TST_ERROR(gma_lm_stream_feed(stream, 0, step), GMA_ERR_INVALID_ARGUMENT, "no source to read");
        for (int b = B - 1; b >= 0; b--) {
            int64_t length = 0;
            double largest = 0;
            while (length < S && m.mask[b * S + length]) length++;
            TST_OK(gma_lm_stream_source(stream, m.source + b * S, length));
            for (int i = 0; i < T * VOCAB; i++) largest = fmax(largest, fabs((double)logits[b * T * VOCAB + i]));
            for (int t = 0; t < T; t++) {
                TST_OK(gma_lm_stream_feed(stream, m.tokens[b * T + t], step));
                for (int v = 0; v < VOCAB; v++)
                    if (!(fabs((double)(step[v] - logits[(b * T + t) * VOCAB + v])) <= 1e-4 * largest))
                        tst_fail("%s: sequence %d, step %d, token %d: %g, the network %g", cases[k].name, b, t, v, (double)step[v],
                                 (double)logits[(b * T + t) * VOCAB + v]);
            }
            if (m.c.positions == GMA_LM_POSITIONS_LEARNED)
                TST_ERROR(gma_lm_stream_feed(stream, 0, step), GMA_ERR_UNSUPPORTED, "learned positions for 7 tokens");
        }
        const int32_t bad[2] = {0, VOCAB};
        TST_ERROR(gma_lm_stream_source(stream, bad, 2), GMA_ERR_INVALID_ARGUMENT, "tokens[1] is 9");
        TST_ERROR(gma_lm_stream_source(stream, m.source, S + 1), GMA_ERR_INVALID_ARGUMENT, "1 to 6 tokens, not 7");
        double sum;
        TST_ERROR(gma_lm_loss(lm, m.source, m.source, 1, S, 1, &sum, NULL), GMA_ERR_UNSUPPORTED, "task seq2seq");
        gma_lm_stream_destroy(stream);
        gmal_seq2seq_destroy_f32(net);
        gma_lm_destroy(lm);
        gma_lm_destroy(read);
        teardown(&m);
    }
}

/* ---- Configurations ------------------------------------------------------------------------------------------- */

static void test_configurations(void **state) {
    (void)state;
    gma_lm_config c, again;
    char text[200];
    static const s2s_case plain = {"plain", "", "", "", GMA_LM_NORM_RMS, GMA_LM_POSITIONS_AUTO, 1, 0, 0};
    c = config_of(&plain);
    c.layers = 3;
    c.components = -1;
    c.mixer = GMA_MIXER_SOFTMAX;
    TST_OK(gma_lm_config_resolve(&c));
    assert_true(c.encoder_layers == 3 && c.positions == GMA_LM_POSITIONS_LEARNED && c.causal == 1);
    again = c;
    TST_OK(gma_lm_config_resolve(&again));
    assert_memory_equal(&again, &c, sizeof c);
    TST_OK(gma_lm_config_layer(&c, 2, text, sizeof text));
    assert_string_equal(text, "softmax:window=0:output_gate=1:conv=4:rotary=0");
    TST_OK(gma_lm_config_layer(&c, 3, text, sizeof text));
    assert_string_equal(text, "encoder softmax:output_gate=1:conv=4:rotary=0");
    TST_OK(gma_lm_config_layer(&c, 8, text, sizeof text));
    assert_string_equal(text, "cross softmax:output_gate=1");
    TST_ERROR(gma_lm_config_layer(&c, 9, text, sizeof text), GMA_ERR_INVALID_ARGUMENT, "layer 9: the model has 9");
    static const struct {
        const char *layers, *encoder, *cross, *says;
    } bad[] = {
        {"2xmamba", "softmax", "", "cross-attention of layer 0 (mamba): this mixer has no queries"},
        {"gma", "mamba", "", "encoder layer 0 (mamba): this mixer runs in one direction only"},
        {"linformer", "gma", "", "layer 0 (linformer): "},
        {"gma,linear", "2xgma", "gma,gma,gma", "cross_mixer names 3 mixers for a decoder of 2 layers"},
        {"gma", "softmax:window=3", "", "encoder_layers: item 1, \"softmax:window=3\": the mixer softmax has no window where it is not causal"},
        {"softmax:window=3", "", "", "encoder_layers: item 1, \"softmax:window=3\""},
        {"gma", "gma:forget_gate=1", "", "the mixer gma has no forget_gate where it is not causal"},
        {"gma", "gma", "softmax:rotary=1", "cross_mixer: item 1, \"softmax:rotary=1\": the mixer softmax has no rotary where it reads another sequence"},
        {"gma", "gma", "gma:conv=2", "cross_mixer: item 1, \"gma:conv=2\": the mixer gma has no conv where it reads another sequence"},
        {"gma", "gma", "attention", "cross_mixer: item 1, \"attention\": mixer 'attention' is unknown"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const s2s_case k = {"bad", bad[i].layers, bad[i].encoder, bad[i].cross, GMA_LM_NORM_RMS, GMA_LM_POSITIONS_AUTO, 1, 0, 0};
        c = config_of(&k);
        assert_int_not_equal(gma_lm_config_resolve(&c), GMA_OK);
        if (!strstr(gma_last_error(), bad[i].says)) tst_fail("%s: %s", bad[i].says, gma_last_error());
    }
    c = config_of(&plain);
    c.mixer = 0;
    c.encoder_layers = 2;
    snprintf(c.pattern, sizeof c.pattern, "gma,softmax");
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "encoder_layers is a number, and layers (gma,softmax) names");
    TST_OK(gma_lm_config_init(&c));
    c.encoder_layers = 2;
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "only a model of task seq2seq has an encoder");
    TST_OK(gma_lm_config_init(&c));
    snprintf(c.cross_pattern, sizeof c.cross_pattern, "gma");
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "cross_mixer: only a model of task seq2seq");
    TST_OK(gma_lm_config_init(&c));
    c.task = GMA_LM_TASK_SEQ2SEQ;
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "reads ids");
}

/* ---- Pairs ---------------------------------------------------------------------------------------------------- */

static void test_pairs(void **state) {
    (void)state;
    enum { SYMBOLS = 64, MOST = 32, DRAWS = 2000 };
    static const char *const names[] = {"copy", "reverse", "sort"};
    int kind;
    int64_t of_length[MOST + 1] = {0}, of_symbol[SYMBOLS] = {0}, all = 0;
    for (int k = 0; k < 3; k++) {
        TST_OK(gmal_pairs_kind(names[k], &kind));
        const gmal_pairs_of of = {kind, SYMBOLS, 8, MOST, 77 + (uint64_t)k};
        for (int64_t i = 0; i < DRAWS; i++) {
            int32_t x[MOST], y[MOST], again[MOST];
            const int64_t n = gmal_pair_draw(&of, i, x, y);
            assert_int_equal(gmal_pair_length(&of, i), n);
            assert_int_equal(gmal_pair_draw(&of, i, again, y), n);
            assert_memory_equal(x, again, (size_t)n * sizeof *x);
            assert_in_range(n, 8, MOST);
            of_length[n]++;
            int count[SYMBOLS] = {0};
            for (int64_t j = 0; j < n; j++) {
                assert_in_range(x[j], 0, SYMBOLS - 1);
                of_symbol[x[j]]++;
                count[x[j]]++;
                count[y[j]]--;
                if (k == 0) assert_int_equal(y[j], x[j]);
                if (k == 1) assert_int_equal(y[j], x[n - 1 - j]);
                if (k == 2 && j) assert_true(y[j] >= y[j - 1]);
            }
            for (int v = 0; v < SYMBOLS; v++) assert_int_equal(count[v], 0);
            all += n;
        }
    }
    for (int n = 8; n <= MOST; n++) TST_CLOSE((double)of_length[n] / (3 * DRAWS), 1.0 / 25, 0.012);
    for (int v = 0; v < SYMBOLS; v++) TST_CLOSE((double)of_symbol[v] / (double)all, 1.0 / SYMBOLS, 0.002);
    TST_ERROR(gmal_pairs_kind("input.txt", &kind), GMA_ERR_INVALID_ARGUMENT, "\"input.txt\" is none of the pairs");
    const gmal_pairs_of two = {1, 5, 2, 2, 1};
    int32_t x[4], t[5], y[5];
    unsigned char mask[4];
    gmal_pairs_of four = two;
    four.most = 4;
    for (int64_t i = 0;; i++)
        if (gmal_pair_frame(&four, i, 4, x, mask, t, y) == 2) break;
    assert_true(t[0] == 5 && t[1] == x[1] && t[2] == x[0] && y[0] == x[1] && y[1] == x[0] && y[2] == 6 && y[3] == -1 && y[4] == -1);
    assert_true(mask[0] && mask[1] && !mask[2] && !mask[3]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_float),         cmocka_unit_test(test_mask),
        cmocka_unit_test(test_stream_is_the_network), cmocka_unit_test(test_configurations), cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
