/* Kernels in every tier, dense products, the optimizer, against plain double arithmetic. */
#include "support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/matmul.h"
#include "layers/rng.h"
#include "train/optimizer.h"

static float uniform(uint64_t key, int64_t i) { return (float)(2 * gmal_uniform(key, (uint64_t)i) - 1); }

static void fill(float *p, int64_t n, uint64_t key, float scale) {
    for (int64_t i = 0; i < n; i++) p[i] = scale * uniform(key, i);
}

/* ---- Kernels -------------------------------------------------------------------------------------------------- */

enum { ROWS = 3, N = 53, SIZE = ROWS * N, OUT = 10 * SIZE };

/* Every kernel once, results one behind the other. */
static void run_all(const gmal_kernels_f32 *k, float *out) {
    float x[2 * SIZE], g[2 * SIZE], w[4 * N], r[ROWS], m[ROWS];
    int32_t target[ROWS] = {0, 52, 17};
    float *o = out;
    memset(out, 0, OUT * sizeof *out);
    fill(x, 2 * SIZE, 1, 6);
    fill(g, 2 * SIZE, 2, 1);
    fill(w, 4 * N, 3, 1);
    k->rms_forward(x, w, o, r, ROWS, N, 1e-5f);
    k->rms_backward(g, x, w, r, o, o + SIZE, ROWS, N);
    o += SIZE + N;
    k->layer_forward(x, w, w + N, o, m, r, ROWS, N, 1e-5f);
    k->layer_backward(g, x, w, m, r, o, o + SIZE, o + SIZE + N, ROWS, N);
    o += SIZE + 2 * N;
    k->gelu_forward(x, o, SIZE);
    k->gelu_backward(x, g, o + SIZE, SIZE);
    o += 2 * SIZE;
    k->sum(x, g, o, SIZE);
    o += SIZE;
    k->gate_forward(x, g, N, o, ROWS, N);
    k->conv_forward(x, N, w, N, o + SIZE, N, ROWS, 0, N, 3);
    o += 2 * SIZE;
    memcpy(o, x, SIZE * sizeof *o);
    o[SIZE] = (float)k->cross_entropy(o, N, target, ROWS, N, 0.5f);
    k->gemv(x, N, w, o + SIZE + 1, ROWS, N);
    o[SIZE + 4] = (float)k->sum_squares(x, 2 * SIZE);
    fill(m, ROWS, 5, 1);
    fill(r, ROWS, 6, 1);
    for (int i = 0; i < ROWS; i++) r[i] = fabsf(r[i]);
    k->adamw(w, g, m, r, ROWS, 0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, 2, 3, 0.5f);
    memcpy(o + SIZE + 5, w, ROWS * sizeof *o);
    assert_true(o + SIZE + 5 + ROWS <= out + OUT);
}

static void test_tiers_agree(void **state) {
    (void)state;
    static const gma_isa tiers[] = {GMA_ISA_SCALAR, GMA_ISA_NEON, GMA_ISA_AVX2, GMA_ISA_AVX512};
    static float want[OUT], got[OUT];
    int seen = 0, nonzero = 0;
    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++) {
        const gmal_kernels_f32 *k = gmal_kernels_of_tier(tiers[i]);
        if (!k) continue;
        run_all(k, seen ? got : want);
        if (seen++ && memcmp(got, want, sizeof want) != 0)
            for (int j = 0; j < OUT; j++)
                if (memcmp(&got[j], &want[j], sizeof(float)) != 0)
                    tst_fail("%s differs from the first tier at %d: %.9g, %.9g", gma_isa_name(tiers[i]), j,
                             (double)got[j], (double)want[j]);
    }
    assert_true(seen >= 1);
    for (int j = 0; j < OUT; j++) nonzero += want[j] != 0;
    assert_true(nonzero > 6 * SIZE);
}

/* silu(x) / x = sigmoid(x) shows the exponential: accurate, right at the ends, and NaN stays NaN. */
static void test_exponential(void **state) {
    (void)state;
    const gmal_kernels_f32 *k = gmal_get_kernels_f32();
    for (double x = -80; x <= 80; x += 0.37) {
        float g[16], o[16], y[16];
        for (int i = 0; i < 16; i++) {
            g[i] = (float)x;
            o[i] = 1;
        }
        k->gate_forward(o, g, 16, y, 1, 16);
        const double want = (double)g[0] / (1 + exp(-(double)g[0]));
        for (int i = 0; i < 16; i++) TST_CLOSE((double)y[i], want, 4e-7 * fabs(want) + 1e-37);
    }
    const float edge[4] = {NAN, HUGE_VALF, -200, 200}, one[4] = {1, 1, 1, 1};
    float y[4];
    k->gate_forward(one, edge, 4, y, 1, 4);
    assert_true(isnan(y[0]));
    assert_true(y[1] == HUGE_VALF);
    TST_CLOSE((double)y[2], 0, 1e-35);
    TST_CLOSE((double)y[3], 200, 0);
}

static void test_nan_is_not_hidden(void **state) {
    (void)state;
    const gmal_kernels_f32 *k = gmal_get_kernels_f32();
    for (int at = 0; at < N; at += 13) {
        float x[N];
        int32_t t[1] = {5};
        fill(x, N, 9, 1);
        x[at] = NAN;
        assert_true(isnan(k->cross_entropy(x, N, t, 1, N, 0)));
        assert_true(isnan(k->sum_squares(x, N)));
        t[0] = -1; /* a row without a target has neither loss nor gradient, whatever it holds */
        TST_CLOSE(k->cross_entropy(x, N, t, 1, N, 1), 0, 0);
        for (int i = 0; i < N; i++) TST_CLOSE((double)x[i], 0, 0);
    }
}

/* ---- Products ------------------------------------------------------------------------------------------------- */

typedef gma_status (*product)(int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *,
                              int64_t, float, float *, int64_t, int);

static void check_product(product f, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, float beta) {
    const int64_t lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 1, ldc = n + 2;
    float *a = malloc((size_t)(lda * (ta ? k : m) + 1) * sizeof *a), *b = malloc((size_t)(ldb * (tb ? n : k) + 1) * sizeof *b),
          *c = malloc((size_t)(ldc * m + 1) * sizeof *c), *old = malloc((size_t)(ldc * m + 1) * sizeof *old);
    fill(a, lda * (ta ? k : m), 1, 1);
    fill(b, ldb * (tb ? n : k), 2, 1);
    for (int64_t i = 0; i < ldc * m; i++) old[i] = c[i] = beta == 0 ? NAN : uniform(3, i); /* beta 0 does not read */
    TST_OK(f(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, 2));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            if (j >= n) { /* between the rows nothing changes */
                assert_memory_equal(&c[i * ldc + j], &old[i * ldc + j], sizeof *c);
                continue;
            }
            double sum = 0, size = 0;
            for (int64_t p = 0; p < k; p++) {
                const double t = (double)a[ta ? p * lda + i : i * lda + p] * (double)b[tb ? j * ldb + p : p * ldb + j];
                sum += t;
                size += fabs(t);
            }
            const double before = beta == 0 ? 0 : (double)beta * (double)old[i * ldc + j];
            TST_CLOSE((double)c[i * ldc + j], (double)alpha * sum + before,
                      2 * (double)FLT_EPSILON * ((double)k + 2) * (fabs((double)alpha) * size + fabs(before)));
        }
    free(a);
    free(b);
    free(c);
    free(old);
}

static void test_products(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {64, 64, 128}, {65, 130, 129}, {129, 63, 1}, {5, 17, 300},
                                      {200, 300, 520}, {97, 257, 513}, {500, 30, 3}, {3, 5, 0}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int t = 0; t < 4; t++)
            for (int b = 0; b < 2; b++) {
                const int64_t *z = sizes[s];
                check_product(gmal_matmul_f32, t & 1, t >> 1, z[0], z[1], z[2], 1, (float)b);
                check_product(gmal_matmul_own_f32, t & 1, t >> 1, z[0], z[1], z[2], 0.5f, (float)b);
            }
}

/* The inside of our product in every tier: heights and widths that fill no tile, both ways to store a and b. */
static void test_product_kernels(void **state) {
    (void)state;
    static const gma_isa tiers[] = {GMA_ISA_SCALAR, GMA_ISA_NEON, GMA_ISA_AVX2, GMA_ISA_AVX512};
    enum { LD = 300, MOST = 256 };
    static float a[LD * MOST], b[LD * MOST], c[GMAL_GEMM_M * LD], old[GMAL_GEMM_M * LD];
    static _Alignas(64) float panels[GMAL_GEMM_K * GMAL_GEMM_N], rows[GMAL_GEMM_M * GMAL_GEMM_LDA];
    int seen = 0;
    fill(a, LD * MOST, 1, 1);
    fill(b, LD * MOST, 2, 1);
    fill(old, GMAL_GEMM_M * LD, 3, 1);
    for (size_t t = 0; t < sizeof tiers / sizeof tiers[0]; t++) {
        const gmal_kernels_f32 *f = gmal_kernels_of_tier(tiers[t]);
        if (!f) continue;
        seen++;
        for (int form = 0; form < 12; form++)
            for (int64_t m = 1; m <= GMAL_GEMM_M; m = m < 14 ? m + 1 : m + 41) {
                const int ta = form & 1, tb = form >> 1 & 1;
                const float beta = form < 4 ? 0.0f : form < 8 ? 1.0f : 0.5f;
                const int64_t n = (m * 37 + form) % MOST + 1, k = (m * 91 + 5 * form) % MOST + 1;
                memcpy(c, old, sizeof c);
                f->gemm_pack(tb, b, LD, k, n, panels);
                f->gemm_rows(ta, a, LD, m, k, rows);
                f->gemm_block(ta, rows, panels, 0.75f, beta, c, LD, m, n, k);
                for (int64_t i = 0; i < m; i++)
                    for (int64_t j = 0; j < LD; j++) {
                        double sum = 0, size = 0;
                        for (int64_t p = 0; p < k && j < n; p++) {
                            const double x = (double)a[ta ? p * LD + i : i * LD + p] * (double)b[tb ? j * LD + p : p * LD + j];
                            sum += x;
                            size += fabs(x);
                        }
                        const double was = (double)old[i * LD + j], want = j < n ? 0.75 * sum + (double)beta * was : was;
                        TST_CLOSE((double)c[i * LD + j], want, j < n ? 2 * (double)FLT_EPSILON * ((double)k + 2) * (size + 1) : 0);
                    }
                for (int64_t i = m * LD; i < GMAL_GEMM_M * LD; i++) TST_CLOSE((double)c[i], (double)old[i], 0);
            }
    }
    assert_true(seen >= 1);
}

static void test_own_product_is_repeatable(void **state) {
    (void)state;
    enum { M = 500, K = 300, P = 280 };
    static float a[M * K], b[K * P], c[M * P], d[M * P];
    fill(a, M * K, 1, 1);
    fill(b, K * P, 2, 1);
    TST_OK(gmal_matmul_own_f32(0, 0, M, P, K, 1, a, K, b, P, 0, c, P, 1));
    TST_OK(gmal_matmul_own_f32(0, 0, M, P, K, 1, a, K, b, P, 0, d, P, 3));
    assert_memory_equal(c, d, sizeof c);
}

/* ---- Optimizer ------------------------------------------------------------------------------------------------ */

static void test_adamw(void **state) {
    (void)state;
    gma_lm_config c;
    gmal_layout *l;
    gmal_adamw opt;
    TST_OK(gma_lm_config_init(&c));
    c.layers = 1;
    c.width = 12;
    TST_OK(gma_lm_config_resolve(&c));
    TST_OK(gmal_layout_create(&c, &l));
    TST_OK(gmal_adamw_create(l, &opt));
    const size_t n = (size_t)l->total;
    float *p = calloc(n, sizeof *p), *g = calloc(n, sizeof *g);
    double *want = calloc(n, sizeof *want), *m = calloc(n, sizeof *m), *v = calloc(n, sizeof *v);
    fill(p, (int64_t)n, 1, 1);
    for (size_t i = 0; i < n; i++) want[i] = (double)p[i];
    double norm = 0;
    for (int64_t step = 1; step <= 3; step++) {
        for (int j = 0; j < l->param_count; j++)
            fill(g + l->params[j].offset, l->params[j].count, (uint64_t)(100 * step + j), 1);
        norm = 0;
        for (size_t i = 0; i < n; i++) norm += (double)g[i] * (double)g[i];
        TST_CLOSE(gmal_grad_norm(&opt, g, 2), sqrt(norm), 1e-5 * sqrt(norm));
        const gmal_adamw_step s = {step, 0.01, 0.9, 0.99, 1e-8, 0.1, 0.5};
        gmal_adamw_apply(&opt, p, g, &s, 2);
        for (int j = 0; j < l->param_count; j++)
            for (int64_t i = l->params[j].offset; i < l->params[j].offset + l->params[j].count; i++) {
                const double gi = 0.5 * (double)g[i];
                m[i] = 0.9 * m[i] + 0.1 * gi;
                v[i] = 0.99 * v[i] + 0.01 * gi * gi;
                const double decay = l->params[j].decay ? 0.1 : 0;
                want[i] -= 0.01 * (m[i] / (1 - pow(0.9, (double)step)) / (sqrt(v[i] / (1 - pow(0.99, (double)step))) + 1e-8) +
                                   decay * want[i]);
            }
    }
    int decaying = 0;
    for (int j = 0; j < l->param_count; j++) {
        const gmal_param *q = &l->params[j];
        decaying += q->decay;
        for (int64_t i = q->offset; i < q->offset + q->count; i++) TST_CLOSE((double)p[i], want[i], 2e-6);
        /* The paper's parameters, norms, biases and scales are not drawn to zero. */
        static const char *const never[] = {"norm", "bias", ".mu", ".omega", ".alpha", "logit_scale"};
        for (size_t k = 0; k < sizeof never / sizeof never[0]; k++)
            if (strstr(q->name, never[k])) assert_false(q->decay);
    }
    assert_true(decaying >= 8);
    free(p);
    free(g);
    free(want);
    free(m);
    free(v);
    gmal_adamw_destroy(&opt);
    gmal_layout_destroy(l);
}

static double rate(double lr, double ratio, int64_t warmup, int64_t steps, int64_t done) {
    const gma_settings s = {.lr = lr, .min_lr_ratio = ratio, .warmup = warmup, .steps = steps};
    return gmal_learning_rate(&s, done);
}

static void test_learning_rate(void **state) {
    (void)state;
    gma_settings s = {.lr = 2, .min_lr_ratio = 0.1, .warmup = 4, .steps = 104, .schedule = GMAL_SCHEDULE_LINEAR};
    TST_CLOSE(gmal_learning_rate(&s, 0), 0.5, 1e-15);
    TST_CLOSE(gmal_learning_rate(&s, 4), 2, 1e-15);
    TST_CLOSE(gmal_learning_rate(&s, 29), 1.55, 1e-12); /* a quarter of the way from 2 to 0.2 */
    TST_CLOSE(gmal_learning_rate(&s, 104), 0.2, 1e-12);
    s.schedule = GMAL_SCHEDULE_CONSTANT;
    TST_CLOSE(gmal_learning_rate(&s, 1), 1, 1e-15);
    TST_CLOSE(gmal_learning_rate(&s, 104), 2, 0);
    TST_CLOSE(rate(2, 0.1, 4, 104, 0), 0.5, 1e-15);
    TST_CLOSE(rate(2, 0.1, 4, 104, 3), 2, 1e-15);
    TST_CLOSE(rate(2, 0.1, 4, 104, 4), 2, 1e-15);
    TST_CLOSE(rate(2, 0.1, 4, 104, 54), 1.1, 1e-12); /* half way: the mean of 2 and 0.2 */
    TST_CLOSE(rate(2, 0.1, 4, 104, 104), 0.2, 1e-12);
    TST_CLOSE(rate(2, 0.1, 4, 104, 500), 0.2, 1e-12);
    TST_CLOSE(rate(2, 0.5, 0, 1, 0), 2, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers_agree),     cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_nan_is_not_hidden), cmocka_unit_test(test_products),
        cmocka_unit_test(test_product_kernels),
        cmocka_unit_test(test_own_product_is_repeatable), cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_learning_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
