/* The backward of the network and of every layer in double against central differences of its forward. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/rng.h"
#include "lm/net_cases.h"
#include "models/net.h"

enum { B = 2, T = 9, ROWS = B * T };

static double noise(uint64_t key, int64_t i) { return 2 * gmal_uniform(key, (uint64_t)i) - 1; }

static double *random_array(int64_t n, uint64_t key) {
    double *p = malloc((size_t)(n + 1) * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = noise(key, i);
    return p;
}

/* ---- The whole network ---------------------------------------------------------------------------------------- */

typedef struct model {
    gmal_layout *layout;
    gmal_net_f64 *net;
    double *params, *grads, *junk;
    int32_t tokens[ROWS], targets[ROWS];
    uint64_t key;
} model;

static double loss_at(model *m) {
    double sum;
    TST_OK(gmal_net_backward_f64(m->net, m->params, m->junk, m->tokens, m->targets, 0.25, m->key, &sum));
    return 0.25 * sum;
}

static void setup(model *m, const net_case *nc, const gma_lm_config *c) {
    TST_OK(gmal_layout_create(c, &m->layout));
    TST_OK(gmal_net_create_f64(m->layout, B, T, 1, 1, &m->net));
    const size_t n = (size_t)m->layout->total;
    float *values = malloc(n * sizeof *values);
    TST_OK(gmal_layout_init(m->layout, 7, values));
    m->params = malloc(n * sizeof(double));
    m->grads = calloc(n, sizeof(double));
    m->junk = calloc(n, sizeof(double));
    /* Off the initial values, where many derivatives vanish. */
    for (size_t i = 0; i < n; i++) m->params[i] = (double)values[i] + 0.3 * noise(99, (int64_t)i);
    free(values);
    for (int i = 0; i < ROWS; i++) {
        m->tokens[i] = (int32_t)(gmal_random(5, (uint64_t)i) % (uint64_t)c->vocab);
        m->targets[i] = i % 7 == 3 ? -1 : (int32_t)(gmal_random(6, (uint64_t)i) % (uint64_t)c->vocab);
    }
    m->key = nc->dropout > 0 ? 1234 : 0;
}

static void teardown(model *m) {
    gmal_net_destroy_f64(m->net);
    gmal_layout_destroy(m->layout);
    free(m->params);
    free(m->grads);
    free(m->junk);
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

/* change: of the shape that setup gave; NULL = none. */
static void check_model(const net_case *nc, const gma_lm_config *c, void (*change)(model *)) {
    model m;
    double sum;
    setup(&m, nc, c);
    if (change) change(&m);
    TST_OK(gmal_net_backward_f64(m.net, m.params, m.grads, m.tokens, m.targets, 0.25, m.key, &sum));
    if (m.key == 0) {
        double plain;
        TST_OK(gmal_net_loss_f64(m.net, m.params, m.tokens, m.targets, &plain));
        TST_CLOSE(plain, sum, 0);
    }
    int moved = 0;
    for (int j = 0; j < m.layout->param_count; j++) {
        const gmal_param *p = &m.layout->params[j];
        double largest = 0;
        for (int64_t i = 0; i < p->count; i++) largest = fmax(largest, fabs(m.grads[p->offset + i]));
        if (p->fixed) { /* random features */
            assert_true(largest == 0);
            moved++;
            continue;
        }
        const int64_t probes = p->count < 6 ? p->count : 6;
        for (int64_t k = 0; k < probes; k++) {
            const int64_t i = p->count <= 6 ? k : (int64_t)(gmal_random((uint64_t)j, (uint64_t)k) % (uint64_t)p->count);
            const double want = difference(&m, &m.params[p->offset + i]), got = m.grads[p->offset + i];
            if (!(fabs(got - want) <= 2e-8 + 2e-6 * largest))
                tst_fail("%s: %s[%lld]: backward %.12g, difference %.12g", nc->name, p->name, (long long)i, got, want);
        }
        moved += largest > 1e-6;
    }
    /* Every tensor takes part; with learned positions and all tokens in use no gradient may be zero. */
    assert_int_equal(moved, m.layout->param_count);
    teardown(&m);
}

static void test_network(void **state) {
    (void)state;
    for (int i = 0; i < NET_CASES; i++) {
        gma_lm_config c = net_config(&net_cases[i]);
        TST_OK(gma_lm_config_resolve(&c));
        check_model(&net_cases[i], &c, NULL);
    }
}

/* ---- Bidirectional, and packed -------------------------------------------------------------------------------- */

static const net_case bidirectional_cases[] = {
    {"bidirectional gma", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 1, 1, -1, 1, 4, 2, 0, NULL},
    {"bidirectional softmax", GMA_LM_NORM_LAYER, GMA_LM_MLP_SWIGLU, GMA_LM_POSITIONS_AUTO, 1, -1, -1, -1, 0, 1, 0, "2xsoftmax"},
    {"bidirectional hybrid", GMA_LM_NORM_RMS, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_NONE, 0, -1, -1, -1, 3, 2, 0.2,
     "linear:rotary=1,performer:components=5"},
    {"bidirectional linformer", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 1, -1, -1, 1, 0, 2, 0,
     "2xlinformer:components=4"},
    {"mamba among others", GMA_LM_NORM_LAYER, GMA_LM_MLP_GELU, GMA_LM_POSITIONS_LEARNED, 1, -1, -1, -1, 0, 2, 0,
     "gma:components=4,mamba:states=3"},
};
enum { BIDIRECTIONAL = sizeof bidirectional_cases / sizeof bidirectional_cases[0] };

static gma_lm_config bidirectional_config(const net_case *nc) {
    gma_lm_config c = net_config(nc);
    c.task = GMA_LM_TASK_CLASSIFY; /* the task whose layers may be bidirectional */
    c.classes = c.vocab; /* so that targets can be classes */
    c.pooling = nc->norm == GMA_LM_NORM_RMS ? GMA_LM_POOLING_CLS : GMA_LM_POOLING_MEAN;
    return c;
}

static const int64_t lengths[] = {4, 0, 1, 9, 4};
enum { PACKED = sizeof lengths / sizeof lengths[0] };

static void pack(model *m) { TST_OK(gmal_net_pack_f64(m->net, lengths, PACKED)); }

static void test_bidirectional(void **state) {
    (void)state;
    for (int i = 0; i < BIDIRECTIONAL; i++) {
        const net_case *nc = &bidirectional_cases[i];
        gma_lm_config c = bidirectional_config(nc);
        TST_OK(gma_lm_config_resolve(&c));
        assert_int_equal(c.causal, 0);
        check_model(nc, &c, NULL);
        check_model(nc, &c, pack);
        /* What comes of a sequence hangs on its last token, also where its first one stands for it. */
        model m;
        setup(&m, nc, &c);
        double *logits = malloc((size_t)(ROWS * c.vocab) * sizeof *logits), before;
        TST_OK(gmal_net_logits_f64(m.net, m.params, m.tokens, logits));
        before = logits[0];
        m.tokens[T - 1] = (m.tokens[T - 1] + 1) % (int32_t)c.vocab;
        TST_OK(gmal_net_logits_f64(m.net, m.params, m.tokens, logits));
        assert_true(fabs(logits[0] - before) > 1e-6);
        free(logits);
        teardown(&m);
    }
}

/* Loss and gradients of packed sequences are those of each alone, added up; causal or not, twice in a row, and with the
 * memory of a smaller shape before. */
static void check_packed(const net_case *nc, const gma_lm_config *c) {
    model m;
    double sum, part, parts = 0, largest = 0;
    setup(&m, nc, c);
    const size_t n = (size_t)m.layout->total;
    m.key = 0; /* the places of dropout are those of the rows */
    gmal_net_f64 *alone;
    const int classify = c->task == GMA_LM_TASK_CLASSIFY;
    if (classify) m.targets[1] = -1; /* of the empty one */
    TST_OK(gmal_net_create_f64(m.layout, 1, 1, 1, 1, &alone));
    for (int64_t b = 0, at = 0; b < PACKED; at += lengths[b++]) {
        if (!lengths[b]) continue;
        TST_OK(gmal_net_reshape_f64(alone, 1, lengths[b]));
        TST_OK(gmal_net_backward_f64(alone, m.params, m.junk, m.tokens + at, m.targets + (classify ? b : at), 0.25, 0, &part));
        parts += part;
    }
    pack(&m);
    TST_OK(gmal_net_loss_f64(m.net, m.params, m.tokens, m.targets, &sum));
    TST_CLOSE(sum, parts, 1e-11 * parts);
    TST_OK(gmal_net_backward_f64(m.net, m.params, m.grads, m.tokens, m.targets, 0.25, 0, &sum));
    TST_CLOSE(sum, parts, 1e-11 * parts);
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(m.junk[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(m.grads[i] - m.junk[i]) <= 1e-11 * largest))
            tst_fail("%s: gradient %lld of packed sequences is %.15g, one by one %.15g", nc->name, (long long)i, m.grads[i],
                     m.junk[i]);
    /* In float, from a net that was smaller. */
    gmal_net_f32 *net;
    double sum_f;
    float *params = malloc(n * sizeof *params), *grads = calloc(n, sizeof *grads);
    for (size_t i = 0; i < n; i++) params[i] = (float)m.params[i];
    TST_OK(gmal_net_create_f32(m.layout, 1, 2, GMAL_NET_TRAIN, 2, &net));
    TST_OK(gmal_net_pack_f32(net, lengths, PACKED));
    TST_OK(gmal_net_backward_f32(net, params, grads, m.tokens, m.targets, 0.25, 0, &sum_f));
    TST_CLOSE(sum_f, sum, 2e-5 * sum);
    for (size_t i = 0; i < n; i++) TST_CLOSE((double)grads[i], m.grads[i], 3e-4 * largest);
    gmal_net_destroy_f32(net);
    free(params);
    free(grads);
    gmal_net_destroy_f64(alone);
    teardown(&m);
}

static void test_packed(void **state) {
    (void)state;
    for (int i = 0; i < NET_CASES; i++) {
        gma_lm_config c = net_config(&net_cases[i]);
        TST_OK(gma_lm_config_resolve(&c));
        check_packed(&net_cases[i], &c);
    }
    for (int i = 0; i < BIDIRECTIONAL; i++) {
        gma_lm_config c = bidirectional_config(&bidirectional_cases[i]);
        TST_OK(gma_lm_config_resolve(&c));
        check_packed(&bidirectional_cases[i], &c);
    }
}

static void test_shapes_that_cannot_be(void **state) {
    (void)state;
    static const int64_t long_one[] = {3, 10}, none[] = {0, 0}, negative[] = {3, -1};
    model m;
    gma_lm_config c = bidirectional_config(&bidirectional_cases[3]);
    TST_OK(gma_lm_config_resolve(&c));
    setup(&m, &bidirectional_cases[3], &c);
    TST_ERROR(gmal_net_pack_f64(m.net, long_one, 2), GMA_ERR_INVALID_ARGUMENT, "linformer has projections for sequences of");
    teardown(&m);
    c = net_config(&net_cases[0]);
    TST_OK(gma_lm_config_resolve(&c));
    setup(&m, &net_cases[0], &c);
    TST_ERROR(gmal_net_pack_f64(m.net, long_one, 2), GMA_ERR_INVALID_ARGUMENT, "has 10 tokens, but the model has learned positions for 9");
    for (int i = 0; i < 2; i++) /* a shape that was refused is not remembered as taken */
        TST_ERROR(gmal_net_reshape_f64(m.net, 1, 10), GMA_ERR_INVALID_ARGUMENT, "has 10 tokens, but the model has learned positions for 9");
    TST_ERROR(gmal_net_pack_f64(m.net, none, 2), GMA_ERR_INVALID_ARGUMENT, "no token");
    TST_ERROR(gmal_net_pack_f64(m.net, negative, 2), GMA_ERR_INVALID_ARGUMENT, "sequence 1 has -1 tokens");
    teardown(&m);
    c = net_config(&net_cases[0]);
    c.causal = 0;
    TST_ERROR(gma_lm_config_resolve(&c), GMA_ERR_INVALID_ARGUMENT, "causal cannot be off");
    static const struct {
        const char *pattern, *says;
    } bad[] = {
        {"softmax:window=4", "the mixer softmax has no window where it is not causal"},
        {"gma:forget_gate=1", "the mixer gma has no forget_gate where it is not causal"},
        {"linformer:states=4", "the mixer linformer has no states"}, /* of no role */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c = bidirectional_config(&bidirectional_cases[1]);
        snprintf(c.pattern, sizeof c.pattern, "%s", bad[i].pattern);
        assert_int_not_equal(gma_lm_config_resolve(&c), GMA_OK);
        const char *said = strstr(gma_last_error(), bad[i].says);
        if (!said || said[strlen(bad[i].says)]) tst_fail("%s: %s", bad[i].pattern, gma_last_error());
    }
}

/* The float network is the same function: loss and every gradient against the double one. */
static void test_float_against_double(void **state) {
    (void)state;
    for (int k = 0; k < NET_CASES; k++) {
        model m;
        double sum, sum_f;
        gmal_net_f32 *net;
        gma_lm_config c = net_config(&net_cases[k]);
        TST_OK(gma_lm_config_resolve(&c));
        setup(&m, &net_cases[k], &c);
        const size_t n = (size_t)m.layout->total;
        float *params = malloc(n * sizeof *params), *grads = calloc(n, sizeof *grads);
        for (size_t i = 0; i < n; i++) params[i] = (float)m.params[i];
        for (size_t i = 0; i < n; i++) m.params[i] = (double)params[i];
        TST_OK(gmal_net_create_f32(m.layout, B, T, 1, 2, &net));
        TST_OK(gmal_net_backward_f64(m.net, m.params, m.grads, m.tokens, m.targets, 0.25, m.key, &sum));
        TST_OK(gmal_net_backward_f32(net, params, grads, m.tokens, m.targets, 0.25, m.key, &sum_f));
        TST_CLOSE(sum_f, sum, 2e-5 * sum);
        for (int j = 0; j < m.layout->param_count; j++) {
            const gmal_param *p = &m.layout->params[j];
            double largest = 0, worst = 0;
            for (int64_t i = p->offset; i < p->offset + p->count; i++) {
                largest = fmax(largest, fabs(m.grads[i]));
                const double e = fabs((double)grads[i] - m.grads[i]);
                worst = e > worst || isnan(e) ? e : worst;
            }
            if (!(worst <= 3e-4 * largest))
                tst_fail("%s: grad of %s is off by %g of %g", net_cases[k].name, p->name, worst, largest);
        }
        gmal_net_destroy_f32(net);
        free(params);
        free(grads);
        teardown(&m);
    }
}

/* ---- Each layer alone ----------------------------------------------------------------------------------------- */

/* A layer as a function of up to four arrays; its backward gives the gradients of <out, up>. */
typedef struct probe {
    double *x[4], *g[4]; /* inputs and what the backward said */
    int64_t n[4];
    double *out, *up;
    int64_t out_n;
    void (*forward)(struct probe *p);
    int kind, sign;
} probe;

static double value(probe *p) {
    double s = 0;
    p->forward(p);
    for (int64_t i = 0; i < p->out_n; i++) s += p->out[i] * p->up[i];
    return s;
}

static void check_probe(probe *p, const char *name) {
    for (int a = 0; a < 4; a++)
        for (int64_t i = 0; p->x[a] && i < p->n[a]; i++) {
            const double h = 1e-5, keep = p->x[a][i];
            p->x[a][i] = keep + h;
            const double plus = value(p);
            p->x[a][i] = keep - h;
            const double minus = value(p);
            p->x[a][i] = keep;
            const double want = (plus - minus) / (2 * h);
            if (!(fabs(p->g[a][i] - want) <= 1e-8 + 1e-7 * fabs(want)))
                tst_fail("%s: input %d[%lld]: backward %.12g, difference %.12g", name, a, (long long)i, p->g[a][i],
                         want);
        }
    for (int a = 0; a < 4; a++) {
        free(p->x[a]);
        free(p->g[a]);
    }
    free(p->out);
    free(p->up);
}

static probe new_probe(void (*forward)(probe *), int64_t out_n, int64_t n0, int64_t n1, int64_t n2) {
    probe p;
    memset(&p, 0, sizeof p);
    const int64_t n[3] = {n0, n1, n2};
    for (int a = 0; a < 3; a++) {
        p.n[a] = n[a];
        if (n[a]) p.x[a] = random_array(n[a], 11 + (uint64_t)a);
        if (n[a]) p.g[a] = calloc((size_t)n[a], sizeof(double));
    }
    p.forward = forward;
    p.out_n = out_n;
    p.out = calloc((size_t)out_n, sizeof(double));
    p.up = random_array(out_n, 77);
    return p;
}

enum { R = 5, N = 19, HEADS = 3 };

static void norm_out(probe *p) {
    double mean[R], rstd[R];
    gmal_norm_forward_f64(p->kind, p->x[0], p->x[1], p->x[2], p->out, mean, rstd, R, N, 1e-5, 1);
}

static void test_norms(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        double mean[R], rstd[R], *partial = calloc(GMAL_GROUPS * 2 * N, sizeof(double));
        probe p = new_probe(norm_out, R * N, R * N, N, kind == GMAL_NORM_LAYER ? N : 0);
        p.kind = kind;
        gmal_norm_forward_f64(kind, p.x[0], p.x[1], p.x[2], p.out, mean, rstd, R, N, 1e-5, 1);
        gmal_norm_backward_f64(kind, p.up, p.x[0], p.x[1], mean, rstd, p.g[0], p.g[1], p.g[2], partial, R, N, 2);
        check_probe(&p, kind == GMAL_NORM_RMS ? "rms norm" : "layer norm");
        free(partial);
    }
}

static void mlp_out(probe *p) { gmal_mlp_forward_f64(p->kind, p->x[0], p->out, R, N, 1); }

static void test_mlp(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        probe p = new_probe(mlp_out, R * N, R * N * (kind == GMAL_MLP_SWIGLU ? 2 : 1), 0, 0);
        p.kind = kind;
        gmal_mlp_backward_f64(kind, p.x[0], p.up, p.g[0], R, N, 2);
        check_probe(&p, kind == GMAL_MLP_GELU ? "gelu" : "swiglu");
    }
}

static const int32_t pooled_at[] = {0, 3, 3, 4, R};

static void pool_out(probe *p) { gmal_pool_forward_f64(p->kind, p->x[0], p->out, (gmal_sequences){4, 3, pooled_at}, N, 2); }

static void test_pooling(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) { /* the second of four sequences is empty */
        probe p = new_probe(pool_out, 4 * N, R * N, 0, 0);
        p.kind = kind;
        for (int64_t i = 0; i < R * N; i++) p.g[0][i] = 99;
        gmal_pool_backward_f64(kind, p.up, p.g[0], (gmal_sequences){4, 3, pooled_at}, N, 2);
        check_probe(&p, kind == GMAL_POOL_MEAN ? "mean" : "first row");
    }
    const double x[6] = {1, 2, 3, 4, 5, 12};
    double y[2];
    gmal_pool_forward_f64(GMAL_POOL_MEAN, x, y, (gmal_sequences){2, 3, NULL}, 1, 1);
    TST_CLOSE(y[0], 2, 0);
    TST_CLOSE(y[1], 7, 0);
}

static void gate_out(probe *p) { gmal_gate_forward_f64(p->x[0], p->x[1], N, p->out, R, N, 1); }

static void test_gate(void **state) {
    (void)state;
    probe p = new_probe(gate_out, R * N, R * N, R * N, 0);
    gmal_gate_backward_f64(p.x[0], p.x[1], N, p.up, p.g[0], p.g[1], N, R, N, 2);
    check_probe(&p, "gate");
}

static void conv_out(probe *p) { gmal_conv_forward_f64(p->x[0], N, p->x[1], p->out, N, (gmal_sequences){2, R, NULL}, N, p->kind, 1); }

static void test_convolution(void **state) {
    (void)state;
    for (int taps = 1; taps <= R + 2; taps += 3) { /* 7 taps reach further back than the sequence is long */
        probe p = new_probe(conv_out, 2 * R * N, 2 * R * N, taps * N, 0);
        p.kind = taps;
        gmal_conv_backward_f64(p.up, N, p.x[0], N, p.x[1], p.g[0], N, p.g[1], (gmal_sequences){2, R, NULL}, N, taps, 2);
        check_probe(&p, "convolution");
    }
    /* By hand: w = (2, 3), x = 1, 10, 100 -> 2, 23, 230, in each of two sequences. */
    double x[6] = {1, 10, 100, 5, 0, 1}, w[2] = {2, 3}, y[6];
    gmal_conv_forward_f64(x, 1, w, y, 1, (gmal_sequences){2, 3, NULL}, 1, 2, 1);
    const double want[6] = {2, 23, 230, 10, 15, 2};
    for (int i = 0; i < 6; i++) TST_CLOSE(y[i], want[i], 0);
}

static void rotary_out(probe *p) {
    double cs[R * 4];
    gmal_rotary_table_f64(cs, 3, R, 4, 10000);
    memcpy(p->out, p->x[0], (size_t)p->out_n * sizeof(double));
    gmal_rotary_f64(p->out, 3 * 4, cs, (gmal_sequences){2, R, NULL}, 3, 4, 1, 1);
}

static void test_rotary(void **state) {
    (void)state;
    double cs[R * 4];
    probe p = new_probe(rotary_out, 2 * R * 12, 2 * R * 12, 0, 0);
    gmal_rotary_table_f64(cs, 3, R, 4, 10000);
    memcpy(p.g[0], p.up, (size_t)p.out_n * sizeof(double));
    gmal_rotary_f64(p.g[0], 12, cs, (gmal_sequences){2, R, NULL}, 3, 4, -1, 2);
    check_probe(&p, "rotary");
    /* A quarter turn takes (1, 0) to (0, 1). */
    double quarter[2] = {0, 1}, v[2] = {1, 0};
    gmal_rotary_f64(v, 2, quarter, (gmal_sequences){1, 1, NULL}, 1, 2, 1, 1);
    TST_CLOSE(v[0], 0, 1e-15);
    TST_CLOSE(v[1], 1, 1e-15);
}

static void forget_out(probe *p) { gmal_forget_forward_f64(p->x[0], HEADS, p->x[1], p->out, 2, R, HEADS, 1); }

static void test_forget_gate(void **state) {
    (void)state;
    probe p = new_probe(forget_out, 2 * R * HEADS, 2 * R * HEADS, HEADS, 0);
    forget_out(&p);
    gmal_forget_backward_f64(p.up, p.out, p.g[0], HEADS, p.g[1], 2, R, HEADS, 2);
    check_probe(&p, "forget gate");
    /* Far out it neither overflows nor loses itself: log sigmoid(-800) = -800, log sigmoid(40) = -e^-40. */
    double z[2] = {-800, 40}, b[1] = {0}, ld[2];
    gmal_forget_forward_f64(z, 1, b, ld, 1, 2, 1, 1);
    TST_CLOSE(ld[0], -800, 0);
    TST_CLOSE(ld[1], -exp(-40.0), 1e-30);
}

static void test_embedding(void **state) {
    (void)state;
    const int32_t tokens[4] = {2, 0, 2, 1};
    double dx[8] = {1, 2, 3, 4, 5, 6, 7, 8}, dtable[8] = {0}, dpos[4] = {0};
    gmal_embed_backward_f64(tokens, dx, dtable, dpos, (gmal_sequences){2, 2, NULL}, 2, 2);
    const double want[8] = {3, 4, 7, 8, 6, 8, 0, 0}, want_pos[4] = {6, 8, 10, 12};
    for (int i = 0; i < 8; i++) TST_CLOSE(dtable[i], want[i], 0);
    for (int i = 0; i < 4; i++) TST_CLOSE(dpos[i], want_pos[i], 0);
}

static const int32_t ce_targets[R] = {3, -1, 0, 18, 7};

static void ce_out(probe *p) {
    double *copy = malloc(R * N * sizeof *copy);
    memcpy(copy, p->x[0], R * N * sizeof *copy);
    p->out[0] = gmal_cross_entropy_f64(copy, ce_targets, R, N, 0, 1);
    free(copy);
}

static void test_cross_entropy(void **state) {
    (void)state;
    probe p = new_probe(ce_out, 1, R * N, 0, 0);
    memcpy(p.g[0], p.x[0], R * N * sizeof(double));
    gmal_cross_entropy_f64(p.g[0], ce_targets, R, N, p.up[0], 2);
    check_probe(&p, "cross-entropy");
    /* Equal logits cost log n; a huge offset changes nothing. */
    double flat[4] = {1e6, 1e6, 1e6, 1e6};
    const int32_t t[1] = {2};
    TST_CLOSE(gmal_cross_entropy_f64(flat, t, 1, 4, 0, 1), log(4.0), 1e-9);
}

static void test_dropout(void **state) {
    (void)state;
    enum { COUNT = 40000 };
    const gmal_dropout d = {0.25, 42};
    double *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y), *z = malloc(COUNT * sizeof *z);
    for (int i = 0; i < COUNT; i++) x[i] = 1;
    gmal_dropout_apply_f64(x, y, COUNT, d, 2);
    int zero = 0;
    for (int i = 0; i < COUNT; i++) {
        if (y[i] == 0)
            zero++;
        else
            TST_CLOSE(y[i], 1 / 0.75, 1e-15);
    }
    TST_CLOSE((double)zero / COUNT, 0.25, 0.02);
    /* The residual form drops the same elements: that makes dropout_apply its gradient. */
    gmal_residual_f64(x, x, z, COUNT, d, 3);
    for (int i = 0; i < COUNT; i++) TST_CLOSE(z[i], 1 + y[i], 1e-15);
    free(x);
    free(y);
    free(z);
}

/* ---- What keeps memory low or saves passes over it changes no bit ------------------------------------------------- */

static void test_recomputation(void **state) {
    (void)state;
    for (int i = 0; i < NET_CASES; i++)
        for (int layers = 1; layers <= 3; layers++) {
            gma_lm_config c = net_config(&net_cases[i]);
            gmal_layout *l;
            gmal_net_f32 *net[2];
            double sum[2];
            int32_t tokens[ROWS], targets[ROWS];
            if (*c.pattern && layers == 1) *strchr(c.pattern, *c.pattern == '2' ? 0 : ',') = 0;
            if (*c.pattern && layers == 3) strcat(c.pattern, ",linear");
            c.layers = layers;
            TST_OK(gma_lm_config_resolve(&c));
            TST_OK(gmal_layout_create(&c, &l));
            const size_t n = (size_t)l->total;
            float *params = malloc(n * sizeof *params), *grads[2] = {calloc(n, sizeof(float)), calloc(n, sizeof(float))};
            TST_OK(gmal_layout_init(l, 7, params));
            for (size_t j = 0; j < n; j++) params[j] += (float)(0.3 * noise(99, (int64_t)j));
            for (int j = 0; j < ROWS; j++) {
                tokens[j] = (int32_t)(gmal_random(5, (uint64_t)j) % (uint64_t)c.vocab);
                targets[j] = (int32_t)(gmal_random(6, (uint64_t)j) % (uint64_t)c.vocab);
            }
            for (int k = 0; k < 2; k++) {
                TST_OK(gmal_net_create_f32(l, B, T, k ? GMAL_NET_RECOMPUTE : GMAL_NET_TRAIN, 2, &net[k]));
                for (int pass = 0; pass < 2; pass++) /* the second finds what the first left in memory */
                    TST_OK(gmal_net_backward_f32(net[k], params, grads[k], tokens, targets, 0.25,
                                                 net_cases[i].dropout > 0 ? 5 : 0, &sum[k]));
                gmal_net_destroy_f32(net[k]);
            }
            if (sum[0] != sum[1] || memcmp(grads[0], grads[1], n * sizeof(float)) != 0)
                tst_fail("%s, %d layers: recomputing changes the result", net_cases[i].name, layers);
            free(params);
            free(grads[0]);
            free(grads[1]);
            gmal_layout_destroy(l);
        }
}

static void test_residual_norm(void **state) {
    (void)state;
    enum { MOST = 70 * 1031 };
    static const int64_t shapes[][2] = {{1, 1}, {5, 19}, {70, 1031}, {3, 9000}};
    double *x = random_array(MOST, 1), *y = random_array(MOST, 2), *w = random_array(9000, 3), *b = random_array(9000, 4);
    double *out = malloc(MOST * sizeof(double)), *want = malloc(MOST * sizeof(double)), *normed = malloc(MOST * sizeof(double)),
           *want_normed = malloc(MOST * sizeof(double)), stats[4][70];
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int variant = 0; variant < 4; variant++) {
            const int64_t rows = shapes[s][0], n = shapes[s][1];
            const int kind = variant & 1;
            const gmal_dropout drop = {variant & 2 ? 0.3 : 0, 17};
            const size_t bytes = (size_t)(rows * n) * sizeof(double);
            gmal_residual_f64(x, y, want, rows * n, drop, 1);
            gmal_norm_forward_f64(kind, want, w, b, want_normed, stats[0], stats[1], rows, n, 1e-5, 1);
            memcpy(out, x, bytes); /* in place */
            gmal_residual_norm_f64(kind, out, y, out, drop, w, b, normed, stats[2], stats[3], rows, n, 1e-5, 2);
            assert_memory_equal(out, want, bytes);
            assert_memory_equal(normed, want_normed, bytes);
            assert_memory_equal(stats[3], stats[1], (size_t)rows * sizeof(double));
            if (kind == GMAL_NORM_LAYER) assert_memory_equal(stats[2], stats[0], (size_t)rows * sizeof(double));
        }
    free(x);
    free(y);
    free(w);
    free(b);
    free(out);
    free(want);
    free(normed);
    free(want_normed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),         cmocka_unit_test(test_mlp),
        cmocka_unit_test(test_gate),          cmocka_unit_test(test_pooling),
                 cmocka_unit_test(test_convolution),
        cmocka_unit_test(test_rotary),        cmocka_unit_test(test_forget_gate),
        cmocka_unit_test(test_embedding),     cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_dropout),       cmocka_unit_test(test_network),
        cmocka_unit_test(test_bidirectional), cmocka_unit_test(test_packed),
        cmocka_unit_test(test_shapes_that_cannot_be),
        cmocka_unit_test(test_float_against_double), cmocka_unit_test(test_recomputation),
        cmocka_unit_test(test_residual_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
