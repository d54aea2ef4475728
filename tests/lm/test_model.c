/* Models through the public interface: streaming, folders, dropout, masked targets, sampling, text. */
#define _POSIX_C_SOURCE 200809L
#include "support/folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gma/io.h"
#include "layers/rng.h"
#include "lm/net_cases.h"
#include "models/model.h"
#include "models/net.h"

/* A model off its initial values, so that nothing cancels. */
static gma_lm *make_model(const gma_lm_config *c) {
    gma_lm *lm;
    TST_OK(gma_lm_create(c, 3, &lm));
    for (int i = 0; i < gma_lm_tensor_count(lm); i++) {
        gma_tensor t;
        TST_OK(gma_lm_tensor(lm, i, NULL, &t));
        int64_t n = 1;
        for (int d = 0; d < t.rank; d++) n *= t.shape[d];
        for (int64_t j = 0; j < n; j++) ((float *)t.data)[j] += 0.3f * (float)(gmal_uniform((uint64_t)i, (uint64_t)j) - 0.5);
    }
    return lm;
}

static void random_tokens(int32_t *x, int64_t n, int64_t vocab, uint64_t key) {
    for (int64_t i = 0; i < n; i++) x[i] = (int32_t)(gmal_random(key, (uint64_t)i) % (uint64_t)vocab);
}

/* ---- Streaming ------------------------------------------------------------------------------------------------ */

static void test_stream_is_the_forward(void **state) {
    (void)state;
    for (int k = 0; k < NET_CASES; k++) {
        enum { T = 70 };
        gma_lm_config c = net_config(&net_cases[k]);
        c.context = T;
        gma_lm *lm = make_model(&c);
        gma_lm_stream *s;
        int32_t x[T];
        float *whole = malloc(T * (size_t)c.vocab * sizeof *whole), step[64];
        random_tokens(x, T, c.vocab, 8);
        TST_OK(gma_lm_logits(lm, x, 1, T, 2, whole));
        TST_OK(gma_lm_stream_create(lm, 2, &s));
        const size_t bytes = gma_lm_stream_state_bytes(s);
        for (int round = 0; round < 2; round++) { /* the second time after a reset */
            double largest = 0;
            for (int64_t i = 0; i < T * c.vocab; i++) largest = fmax(largest, fabs((double)whole[i]));
            for (int t = 0; t < T; t++) {
                TST_OK(gma_lm_stream_feed(s, x[t], step));
                for (int64_t v = 0; v < c.vocab; v++)
                    if (!(fabs((double)step[v] - (double)whole[t * c.vocab + v]) <= 1e-4 * largest))
                        tst_fail("%s: step %d, token %lld: %g, whole sequence %g", net_cases[k].name, t, (long long)v,
                                 (double)step[v], (double)whole[t * c.vocab + v]);
            }
            assert_int_equal(gma_lm_stream_position(s), T);
            assert_true(gma_lm_stream_state_bytes(s) == bytes);
            if (c.positions == GMA_LM_POSITIONS_LEARNED)
                TST_ERROR(gma_lm_stream_feed(s, 0, step), GMA_ERR_UNSUPPORTED, "learned positions");
            TST_OK(gma_lm_stream_reset(s));
        }
        TST_ERROR(gma_lm_stream_feed(s, (int32_t)c.vocab, step), GMA_ERR_INVALID_ARGUMENT, "token");
        TST_ERROR(gma_lm_stream_feed(s, -1, step), GMA_ERR_INVALID_ARGUMENT, "token");
        gma_lm_stream_destroy(s);
        gma_lm_destroy(lm);
        free(whole);
    }
}

/* ---- Loss ----------------------------------------------------------------------------------------------------- */

/* K3: passes weigh by their targets, in loss and gradient; a pass without targets adds nothing and no NaN. In double,
 * where the order of a sum does not hide a mistake. */
static void test_accumulation(void **state) {
    (void)state;
    enum { T = 9, B = 3 };
    gma_lm_config c = net_config(&net_cases[1]);
    gma_lm *lm = make_model(&c);
    const gmal_layout *l = lm->layout;
    const size_t n = (size_t)l->total;
    int32_t x[B * T], y[B * T];
    random_tokens(x, B * T, c.vocab, 1);
    random_tokens(y, B * T, c.vocab, 2);
    for (int i = 0; i < T; i++) {
        y[i] = i == 4 ? y[i] : -1; /* one target in the first sequence, none in the last */
        y[2 * T + i] = -1;
    }
    const double scale = 1.0 / (1 + T);
    gmal_net_f64 *one, *all;
    double *w = calloc(n, sizeof *w), *g1 = calloc(n, sizeof *g1), *g2 = calloc(n, sizeof *g2),
           *before = calloc(n, sizeof *before);
    double sum, part, parts = 0, largest = 0;
    for (size_t i = 0; i < n; i++) w[i] = (double)lm->values[i];
    TST_OK(gmal_net_create_f64(l, B, T, 1, 1, &all));
    TST_OK(gmal_net_create_f64(l, 1, T, 1, 1, &one));
    TST_OK(gmal_net_backward_f64(all, w, g1, x, y, scale, 0, &sum));
    for (int b = 0; b < B; b++) {
        memcpy(before, g2, n * sizeof *g2);
        TST_OK(gmal_net_backward_f64(one, w, g2, x + b * T, y + b * T, scale, 0, &part));
        parts += part;
    }
    TST_CLOSE(part, 0, 0);
    for (size_t i = 0; i < n; i++) assert_true(g2[i] == before[i]);
    TST_CLOSE(parts, sum, 1e-13 * sum);
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(g1[i]));
    assert_true(largest > 1e-3);
    for (size_t i = 0; i < n; i++) TST_CLOSE(g2[i], g1[i], 1e-12 * largest);
    int64_t count;
    TST_OK(gma_lm_loss(lm, x, y, B, T, 1, &sum, &count));
    assert_int_equal(count, 1 + T);
    TST_CLOSE(sum, parts, 1e-5 * sum);
    gmal_net_destroy_f64(all);
    gmal_net_destroy_f64(one);
    gma_lm_destroy(lm);
    free(w);
    free(g1);
    free(g2);
    free(before);
}

/* K5: dropout is off in evaluation and on in training. */
static void test_dropout_is_for_training(void **state) {
    (void)state;
    enum { T = 9, B = 2 };
    gma_lm_config c = net_config(&net_cases[1]), with = c;
    with.dropout = 0.9;
    gma_lm *plain = make_model(&c), *lm = make_model(&with);
    int32_t x[B * T], y[B * T];
    double a, b, d, k1, k2, again;
    random_tokens(x, B * T, c.vocab, 1);
    random_tokens(y, B * T, c.vocab, 2);
    TST_OK(gma_lm_loss(lm, x, y, B, T, 1, &a, NULL));
    TST_OK(gma_lm_loss(lm, x, y, B, T, 1, &b, NULL));
    TST_OK(gma_lm_loss(plain, x, y, B, T, 1, &d, NULL));
    TST_CLOSE(a, b, 0);
    TST_CLOSE(a, d, 0);
    gmal_net_f32 *net;
    float *g = calloc((size_t)lm->layout->total, sizeof *g);
    TST_OK(gmal_net_create_f32(lm->layout, B, T, 1, 1, &net));
    TST_OK(gmal_net_backward_f32(net, lm->values, g, x, y, 1, 1, &k1));
    TST_OK(gmal_net_backward_f32(net, lm->values, g, x, y, 1, 2, &k2));
    TST_OK(gmal_net_backward_f32(net, lm->values, g, x, y, 1, 1, &again));
    assert_true(k1 != k2);
    assert_true(k1 != a);
    TST_CLOSE(again, k1, 0);
    gmal_net_destroy_f32(net);
    gma_lm_destroy(lm);
    gma_lm_destroy(plain);
    free(g);
}

static void test_wrong_calls(void **state) {
    (void)state;
    gma_lm_config c = net_config(&net_cases[0]), bad = c;
    gma_lm *lm = make_model(&c), *none;
    int32_t x[10] = {0}, y[10] = {0};
    double sum;
    x[3] = 11;
    TST_ERROR(gma_lm_loss(lm, x, y, 1, 9, 1, &sum, NULL), GMA_ERR_INVALID_ARGUMENT, "tokens[3] is 11");
    x[3] = 0;
    y[2] = 12;
    TST_ERROR(gma_lm_loss(lm, x, y, 1, 9, 1, &sum, NULL), GMA_ERR_INVALID_ARGUMENT, "targets[2] is 12");
    TST_ERROR(gma_lm_loss(lm, x, x, 1, 10, 1, &sum, NULL), GMA_ERR_INVALID_ARGUMENT, "steps is 10");
    TST_ERROR(gma_lm_loss(lm, x, x, 0, 9, 1, &sum, NULL), GMA_ERR_INVALID_ARGUMENT, "batch");
    bad.kv_heads = 3;
    TST_ERROR(gma_lm_create(&bad, 1, &none), GMA_ERR_INVALID_ARGUMENT, "kv_heads (3) must divide heads (2)");
    assert_null(none);
    bad = c;
    bad.routing_dim = 0;
    bad.heads = bad.kv_heads = 5;
    TST_ERROR(gma_lm_create(&bad, 1, &none), GMA_ERR_INVALID_ARGUMENT, "heads (5) must divide width (12)");
    bad = c;
    bad.components = 0;
    TST_ERROR(gma_lm_create(&bad, 1, &none), GMA_ERR_INVALID_ARGUMENT, "components");
    bad = c;
    bad.dropout = NAN;
    TST_ERROR(gma_lm_create(&bad, 1, &none), GMA_ERR_INVALID_ARGUMENT, "dropout");
    bad = c;
    bad.positions = GMA_LM_POSITIONS_ROTARY;
    bad.routing_dim = 3;
    TST_ERROR(gma_lm_create(&bad, 1, &none), GMA_ERR_INVALID_ARGUMENT, "even");
    bad = c;
    bad.layers = 1000;
    bad.width = 1 << 20;
    bad.heads = 1 << 10;
    TST_ERROR(gma_lm_create(&bad, 1, &none), GMA_ERR_INVALID_ARGUMENT, "parameters");
    gma_lm_destroy(lm);
}

/* ---- Folders -------------------------------------------------------------------------------------------------- */

static void test_save_and_load(void **state) {
    (void)state;
    gma_lm_config c = net_config(&net_cases[6]), back;
    gma_lm *lm = make_model(&c), *read, *half;
    TST_OK(gma_lm_save(lm, in_folder("m"), GMA_F32));
    TST_OK(gma_lm_save(lm, in_folder("m"), GMA_F32)); /* over itself */
    TST_OK(gma_lm_load(in_folder("m"), &read));
    TST_OK(gma_lm_get_config(read, &back));
    assert_memory_equal(&back, &lm->layout->c, sizeof back);
    assert_memory_equal(read->values, lm->values, (size_t)lm->layout->total * sizeof(float));
    TST_OK(gma_lm_save(lm, in_folder("h"), GMA_BF16));
    TST_OK(gma_lm_load(in_folder("h"), &half));
    for (int64_t i = 0; i < lm->layout->total; i++)
        TST_CLOSE((double)half->values[i], (double)gma_bf16_to_f32(gma_f32_to_bf16(lm->values[i])), 0);
    TST_ERROR(gma_lm_save(lm, in_folder("x"), GMA_F64), GMA_ERR_DTYPE, "F64");
    gma_lm_destroy(read);
    gma_lm_destroy(half);
    /* Other contents under the same configuration. */
    lm->values[lm->layout->blocks[1].mixer.slot[0].offset + 2] = NAN;
    TST_OK(gma_lm_save(lm, in_folder("nan"), GMA_F32));
    TST_ERROR(gma_lm_load(in_folder("nan"), &read), GMA_ERR_NON_FINITE, "blocks.1.mixer.mu");
    assert_null(read);
    TST_ERROR(gma_lm_load(in_folder("nowhere"), &read), GMA_ERR_IO, "no model here");
    gma_lm_destroy(lm);
}

static void copy_file(const char *from, const char *to) {
    char command[400];
    snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

static void test_other_shapes(void **state) {
    (void)state;
    gma_lm_config c = net_config(&net_cases[6]), wide = c, plain = c;
    wide.components = 4;
    plain.output_gate = 0;
    gma_lm *a = make_model(&c), *b = make_model(&wide), *d = make_model(&plain), *read;
    TST_OK(gma_lm_save(a, in_folder("a"), GMA_F32));
    TST_OK(gma_lm_save(b, in_folder("b"), GMA_F32));
    TST_OK(gma_lm_save(d, in_folder("d"), GMA_F32));
    copy_file(in_folder("a/model.safetensors"), in_folder("b/model.safetensors"));
    TST_ERROR(gma_lm_load(in_folder("b"), &read), GMA_ERR_SHAPE, "the configuration says 1 x 4 x 4");
    copy_file(in_folder("d/model.safetensors"), in_folder("b/model.safetensors"));
    copy_file(in_folder("a/model.safetensors"), in_folder("d/model.safetensors"));
    TST_ERROR(gma_lm_load(in_folder("d"), &read), GMA_ERR_SHAPE, "holds");
    copy_file(in_folder("b/model.safetensors"), in_folder("a/model.safetensors"));
    TST_ERROR(gma_lm_load(in_folder("a"), &read), GMA_ERR_SHAPE, "gate_proj.weight is missing");
    put_text("d/config.json", "{\"format\": \"gma-lm\", \"version\": 2, \"model\": {}}");
    TST_ERROR(gma_lm_load(in_folder("d"), &read), GMA_ERR_FORMAT, "version 2");
    put_text("d/config.json", "{\"format\": \"gma-lm\", \"version\": 1, \"dropout\": 0.5, \"model\": {}}");
    TST_ERROR(gma_lm_load(in_folder("d"), &read), GMA_ERR_FORMAT, "a model's configuration has no \"dropout\"");
    put_text("d/config.json", "{\"format\": \"gma-lm\", ");
    TST_ERROR(gma_lm_load(in_folder("d"), &read), GMA_ERR_FORMAT, "config.json");
    /* L3: a tokenizer of 256 bytes and a vocabulary of 11 do not go together. */
    TST_OK(gma_lm_save(a, in_folder("v"), GMA_F32));
    char command[400];
    snprintf(command, sizeof command, "sed -i 's/\"tokenizer\": \"none\"/\"tokenizer\": \"bytes\"/' '%s'",
             in_folder("v/config.json"));
    assert_int_equal(system(command), 0);
    TST_ERROR(gma_lm_load(in_folder("v"), &read), GMA_ERR_FORMAT, "vocab must be 256 when tokens are bytes, not 11");
    gma_lm_destroy(a);
    gma_lm_destroy(b);
    gma_lm_destroy(d);
}

/* ---- Sampling and text ---------------------------------------------------------------------------------------- */

static void test_sampling(void **state) {
    (void)state;
    const float logits[5] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.25f), logf(0.05f)};
    const double p[5] = {0.1, 0.4, 0.2, 0.25, 0.05};
    float work[10];
    gma_sampling s;
    int32_t t;
    TST_OK(gma_sampling_init(&s));
    struct {
        double temperature, top_p;
        int64_t top_k;
        int kept; /* bit set of tokens that may come */
    } rows[] = {{1, 1, 0, 31}, {1, 1, 2, 10}, {1, 0.5, 0, 10}, {1, 0.4, 0, 2}, {1, 0.7, 3, 10}, {0.5, 1, 0, 31},
                {0, 1, 0, 2}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        enum { DRAWS = 20000 };
        int hits[5] = {0};
        double all = 0;
        s.temperature = rows[r].temperature;
        s.top_p = rows[r].top_p;
        s.top_k = rows[r].top_k;
        for (uint64_t i = 0; i < DRAWS; i++) {
            TST_OK(gma_sample(logits, 5, &s, i, work, &t));
            assert_in_range(t, 0, 4);
            hits[t]++;
        }
        for (int i = 0; i < 5; i++)
            if (rows[r].kept >> i & 1) all += s.temperature > 0 ? pow(p[i], 1 / s.temperature) : 1;
        for (int i = 0; i < 5; i++) {
            const double w = s.temperature > 0 ? pow(p[i], 1 / s.temperature) : 1;
            TST_CLOSE((double)hits[i] / DRAWS, rows[r].kept >> i & 1 ? w / all : 0, 0.015);
        }
    }
    const float bad[3] = {0, NAN, 1}, gone[3] = {-HUGE_VALF, -HUGE_VALF, -HUGE_VALF}, some[3] = {-HUGE_VALF, 0, -HUGE_VALF};
    TST_OK(gma_sampling_init(&s));
    TST_ERROR(gma_sample(bad, 3, &s, 0, work, &t), GMA_ERR_NON_FINITE, "token 1");
    TST_ERROR(gma_sample(gone, 3, &s, 0, work, &t), GMA_ERR_NON_FINITE, "minus infinity");
    TST_OK(gma_sample(some, 3, &s, 0, work, &t));
    assert_int_equal(t, 1);
    s.top_p = 0;
    TST_ERROR(gma_sample(some, 3, &s, 0, work, &t), GMA_ERR_INVALID_ARGUMENT, "top_p");
    s.top_p = 1;
    s.temperature = -1;
    TST_ERROR(gma_sample(some, 3, &s, 0, work, &t), GMA_ERR_INVALID_ARGUMENT, "temperature");
}

static const char *filtered(const char *bytes, size_t n) {
    static char out[200];
    gma_utf8 f = {{0}, 0};
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += gma_utf8_push(&f, (unsigned char)bytes[i], out + used);
    used += gma_utf8_finish(&f, out + used);
    used += gma_utf8_finish(&f, out + used); /* nothing is left */
    out[used] = 0;
    return out;
}

/* L4, and the bytes of L1 on their way out. */
static void test_text_comes_whole(void **state) {
    (void)state;
    char out[GMA_UTF8_MAX];
    gma_utf8 f = {{0}, 0};
    assert_int_equal(gma_utf8_push(&f, 0xe6, out), 0);
    assert_int_equal(gma_utf8_push(&f, 0xad, out), 0);
    assert_int_equal(gma_utf8_push(&f, 0xaa, out), 3);
    assert_memory_equal(out, "\xe6\xad\xaa", 3);
    assert_string_equal(filtered("\xe6\xadx", 3), "\xef\xbf\xbdx");
    assert_string_equal(filtered("\xe6\xad", 2), "\xef\xbf\xbd");
    assert_string_equal(filtered("a\xff" "b", 3), "a\xef\xbf\xbd" "b");
    assert_string_equal(filtered("\xc0\x80", 2), "\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(filtered("\xed\xa0\x80", 3), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(filtered("\xf0\x9f\x98\x80", 4), "\xf0\x9f\x98\x80");
    assert_string_equal(filtered("\xf4\x90\x80\x80", 4), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(filtered("\xc3\xa4\xe6\xe6\xad\xaa", 6), "\xc3\xa4\xef\xbf\xbd\xe6\xad\xaa");
}

typedef struct text {
    char s[4000];
    size_t n;
    size_t stop_after;
} text;

static int collect(void *context, const char *s, size_t n) {
    text *t = context;
    memcpy(t->s + t->n, s, n);
    t->n += n;
    return t->stop_after && t->n >= t->stop_after;
}

static void generate(gma_lm *lm, const char *prompt, size_t n, int64_t length, uint64_t seed, int raw, text *t) {
    gma_lm_stream *s;
    gma_sampling how;
    TST_OK(gma_sampling_init(&how));
    how.seed = seed;
    t->n = 0;
    TST_OK(gma_lm_stream_create(lm, 1, &s));
    TST_OK(gma_generate(s, prompt, n, length, &how, raw, collect, t));
    gma_lm_stream_destroy(s);
}

static void test_generate(void **state) {
    (void)state;
    gma_lm_config c = net_config(&net_cases[1]);
    c.vocab = 256;
    c.tokenizer = GMA_LM_TOKENIZER_BYTES;
    gma_lm *lm = make_model(&c);
    static text a, b;
    generate(lm, "", 0, 300, 5, 1, &a); /* any byte may come, and none is lost */
    assert_int_equal(a.n, 300);
    generate(lm, "", 0, 300, 5, 1, &b);
    assert_memory_equal(a.s, b.s, 300);
    generate(lm, "", 0, 300, 6, 1, &b);
    assert_memory_not_equal(a.s, b.s, 300);
    generate(lm, "\n", 1, 300, 5, 1, &b); /* what an empty prompt stands for */
    assert_memory_equal(a.s, b.s, 300);
    generate(lm, "a\xff\0\xc0\x80", 5, 300, 5, 1, &b);
    assert_memory_not_equal(a.s, b.s, 300);
    generate(lm, "", 0, 0, 5, 1, &b);
    assert_int_equal(b.n, 0);
    generate(lm, "", 0, 300, 5, 0, &b);
    const char *head = filtered(a.s, 30); /* the same bytes, made whole; the last character may be cut off */
    assert_true(strlen(head) > 30);
    assert_memory_equal(b.s, head, strlen(head) - 3);
    /* In two calls as in one. */
    gma_lm_stream *s;
    gma_sampling how;
    TST_OK(gma_sampling_init(&how));
    how.seed = 5;
    b.n = 0;
    TST_OK(gma_lm_stream_create(lm, 1, &s));
    TST_OK(gma_generate(s, NULL, 0, 100, &how, 1, collect, &b));
    TST_OK(gma_generate(s, NULL, 0, 200, &how, 1, collect, &b));
    assert_memory_equal(a.s, b.s, 300);
    b.n = 0;
    b.stop_after = 5;
    TST_ERROR(gma_generate(s, "x", 1, 100, &how, 1, collect, &b), GMA_ERR_INTERRUPTED, "stopped");
    assert_int_equal(b.n, 5);
    b.stop_after = 0;
    TST_ERROR(gma_generate(s, "x", 1, -1, &how, 1, collect, &b), GMA_ERR_INVALID_ARGUMENT, "length");
    gma_lm_stream_destroy(s);
    gma_lm_destroy(lm);
    c = net_config(&net_cases[1]);
    lm = make_model(&c);
    TST_OK(gma_lm_stream_create(lm, 1, &s));
    TST_ERROR(gma_generate(s, "x", 1, 1, &how, 1, collect, &b), GMA_ERR_UNSUPPORTED, "token ids");
    gma_lm_stream_destroy(s);
    gma_lm_destroy(lm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_is_the_forward), cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_dropout_is_for_training), cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_save_and_load), cmocka_unit_test(test_other_shapes),
        cmocka_unit_test(test_sampling), cmocka_unit_test(test_text_comes_whole),
        cmocka_unit_test(test_generate),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
