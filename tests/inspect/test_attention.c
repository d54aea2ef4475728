/* What the report draws: the implied attention against the mixers themselves, and the map of the means. */
#define _POSIX_C_SOURCE 200809L
#include "inspect/inspect_testing.h"

#include <math.h>

#include "inspect/components.h"
#include "inspect/route.h"
#include "inspect/stretch.h"
#include "layers/rng.h"

enum { CONTEXT = 50, SPAN = 20 };

/* ---- Attention ------------------------------------------------------------------------------------------------- */

/* With v the identity the output of a mixer is its attention. q, k, decay of one window and head. */
static void attention_of(const gma_lm *lm, const gmal_router *r, int64_t layer, int64_t head, int64_t kv_head,
                         gma_mixer_kind kind, double *out) {
    static double v[CONTEXT * CONTEXT];
    gma_lm_config c;
    gma_mixer_desc d;
    gma_mixer *m;
    TST_OK(gma_lm_get_config(lm, &c));
    TST_OK(gma_mixer_desc_init(&d, kind));
    const gmal_mixture_view x = gmal_mixture_of(lm, layer, kv_head);
    d.causal = 1;
    d.batch = d.heads = d.kv_heads = 1;
    d.q_len = d.k_len = d.value_dim = CONTEXT;
    d.routing_dim = c.routing_dim;
    d.components = kind == GMA_MIXER_GMA ? x.components : 0;
    if (kind == GMA_MIXER_GMA) {
        d.eps = c.eps;
        d.eps_sigma = c.eps_sigma;
    }
    TST_OK(gma_mixer_create(&d, &m));
    for (int i = 0; i < CONTEXT * CONTEXT; i++)
        v[i] = i % (CONTEXT + 1) == 0;
    gma_tensor q = gma_tensor_of(r->routing.q + head * c.routing_dim, GMA_F32, 4, 1, 1, CONTEXT, c.routing_dim), k = q;
    k.data = (void *)(uintptr_t)(r->routing.k + kv_head * c.routing_dim);
    q.stride[2] = k.stride[2] = r->routing.ld;
    const float scale = (float)x.logit_scale;
    gma_arg args[9] = {{GMA_Q, q},
                       {GMA_K, k},
                       {GMA_V, gma_tensor_of(v, GMA_F64, 4, 1, 1, CONTEXT, CONTEXT)},
                       {GMA_O, gma_tensor_of(out, GMA_F64, 4, 1, 1, CONTEXT, CONTEXT)}};
    int count = 4;
    if (kind == GMA_MIXER_GMA) {
        args[count++] = (gma_arg){GMA_MU, gma_tensor_of(x.mu, GMA_F32, 3, 1, x.components, x.width, 1)};
        args[count++] = (gma_arg){GMA_OMEGA, gma_tensor_of(x.omega, GMA_F32, 3, 1, x.components, x.width, 1)};
        args[count++] = (gma_arg){GMA_ALPHA, gma_tensor_of(x.alpha, GMA_F32, 2, 1, x.components, 1, 1)};
        args[count++] = (gma_arg){GMA_LOGIT_SCALE, gma_tensor_of(&scale, GMA_F32, 1, 1, 1, 1, 1)};
        if (r->routing.log_decay)
            args[count++] =
                (gma_arg){GMA_LOG_DECAY, gma_tensor_of(gmal_router_decay(r, 0, kv_head), GMA_F32, 3, 1, 1, CONTEXT, 1)};
    }
    TST_OK(gma_mixer_naive_forward(m, args, count));
    gma_mixer_destroy(m);
}

static void compare_attention(const double *want, int64_t first, int64_t span, const float *got, const float *before) {
    for (int64_t i = 0; i < span; i++) {
        double early = 0;
        for (int64_t j = 0; j < first; j++)
            early += want[(first + i) * CONTEXT + j];
        TST_CLOSE((double)before[i], early, 2e-6);
        for (int64_t j = 0; j < span; j++)
            TST_CLOSE((double)got[i * span + j], want[(first + i) * CONTEXT + first + j], 2e-6);
    }
}

static void check_attention(int forget, int64_t begin) {
    static double want[CONTEXT * CONTEXT];
    gma_lm *lm = model("gma", forget);
    gma_inspection *n = look(lm, NULL);
    gmal_stretch s;
    gmal_router r;
    TST_OK(gmal_stretch_create(n, begin, 2 * CONTEXT, SPAN, n->c.count, &s));
    assert_int_equal(s.before, begin % CONTEXT);
    assert_int_equal(s.span, SPAN < CONTEXT - s.before ? SPAN : CONTEXT - s.before);
    TST_OK(gmal_router_create(lm, CONTEXT, 1, 1, &r));
    TST_OK(gmal_router_ids(&r, n->c.ids + begin / CONTEXT * CONTEXT));
    for (int i = 0; i < n->c.count; i++) {
        const gmal_head *h = &n->c.heads[i];
        TST_OK(gmal_router_layer(&r, h->layer));
        attention_of(lm, &r, h->layer, h->head, h->kv_head, GMA_MIXER_GMA, want);
        compare_attention(want, s.before, s.span, s.heads[i].gma, s.heads[i].gma_before);
        attention_of(lm, &r, h->layer, h->head, h->kv_head, GMA_MIXER_SOFTMAX, want);
        compare_attention(want, s.before, s.span, s.heads[i].softmax, s.heads[i].softmax_before);
        /* What is shown of a token is what was counted: also in the second window of the stretch. */
        for (int64_t t = 0; t < s.tokens; t++) {
            const float *g = s.heads[i].gamma_k + t * h->components;
            const int64_t a = h->assign_k[begin + t];
            for (int64_t k = 0; k < h->components; k++)
                assert_true(g[k] <= g[a] + 1e-6f);
        }
    }
    gmal_router_destroy(&r);
    gmal_stretch_free(&s);
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
}

static void test_attention(void **state) {
    (void)state;
    check_attention(1, 0);
    check_attention(1, CONTEXT + 13);
    check_attention(0, 2 * CONTEXT + 40); /* the window ends before the span does */
}

/* Keys in several blocks: a row's weights against the sum written out. */
static void test_blocks(void **state) {
    (void)state;
    enum { N = 150, K = 3, FIRST = 140 };
    static float q[N * K], k[N * K], decay[N], out[(N - FIRST) * (N - FIRST)], before[N - FIRST];
    for (int i = 0; i < N * K; i++) {
        q[i] = (float)gmal_uniform(1, (uint64_t)i);
        k[i] = (float)gmal_uniform(2, (uint64_t)i);
    }
    for (int i = 0; i < N; i++)
        decay[i] = (float)(-0.1 * gmal_uniform(3, (uint64_t)i));
    gmal_implied_attention(q, k, decay, K, 1e-6, FIRST, N - FIRST, out, before);
    for (int i = FIRST; i < N; i++) {
        double w[N], all = 1e-6, early = 0;
        for (int j = 0; j <= i; j++) {
            double past = 0, dot = 0;
            for (int t = j + 1; t <= i; t++)
                past += (double)decay[t];
            for (int c = 0; c < K; c++)
                dot += (double)q[i * K + c] * (double)k[j * K + c];
            all += w[j] = exp(past) * dot;
            early += j < FIRST ? w[j] : 0;
        }
        TST_CLOSE((double)before[i - FIRST], early / all, 1e-6);
        for (int j = FIRST; j <= i; j++)
            TST_CLOSE((double)out[(i - FIRST) * (N - FIRST) + j - FIRST], w[j] / all, 1e-6);
    }
}

/* ---- Map ------------------------------------------------------------------------------------------------------- */

/* Points on a plane in a wider space keep their distances, in both forms of the computation. */
static void test_map(void **state) {
    (void)state;
    for (int width = 4; width <= 40; width += 36) {
        float mu[12 * 40];
        double xy[24], explained[2];
        for (int i = 0; i < 12; i++)
            for (int r = 0; r < width; r++)
                mu[i * width + r] = (float)(gmal_uniform(5, (uint64_t)i) * (r % 2 ? 1 : 3) +
                                            gmal_uniform(6, (uint64_t)i) * (r % 3 - 1) + 7);
        TST_OK(gmal_principal_plane(mu, 12, width, xy, explained));
        TST_CLOSE(explained[0] + explained[1], 1, 1e-6);
        assert_true(explained[0] >= explained[1]);
        for (int i = 0; i < 12; i++)
            for (int j = 0; j < i; j++) {
                double d = 0;
                for (int r = 0; r < width; r++)
                    d += pow((double)mu[i * width + r] - (double)mu[j * width + r], 2);
                TST_CLOSE(hypot(xy[2 * i] - xy[2 * j], xy[2 * i + 1] - xy[2 * j + 1]), sqrt(d), 1e-4);
            }
    }
    const float one[] = {1, 2, 3};
    double xy[2], explained[2];
    TST_OK(gmal_principal_plane(one, 1, 3, xy, explained)); /* K = 1, R = 1: a dot in the middle */
    TST_CLOSE(xy[0], 0, 0);
    TST_OK(gmal_principal_plane(one, 3, 1, (double[6]){0}, explained));
    TST_CLOSE(explained[1], 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention), cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_map)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
