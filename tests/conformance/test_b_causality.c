/* Cases B: what a query may see, and options that must not be ignored. */
#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

/* B1: aligned at the end: query i sees keys j <= i + Nk - Nq. */
static void aligned_at_the_end(void **state) {
    (void)state;
    static const struct {
        int64_t Nq, Nk;
        double want[5];
    } rows[] = {{2, 5, {2.5, 3}}, {1, 5, {3}}, {5, 2, {0, 0, 0, 1, 1.5}}, {5, 5, {1, 1.5, 2, 2.5, 3}}};
    static const double v[] = {1, 2, 3, 4, 5};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        const gma_mixer_desc d = tst_desc(1, 1, 1, 1, rows[row].Nq, rows[row].Nk, 2, 1, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        tst_set(&p, GMA_V, v, rows[row].Nk);
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], 0);
            for (int64_t i = 0; i < rows[row].Nq; i++)
                TST_CLOSE(r.out[GMA_O].x[i], rows[row].want[i], 5e-6 * rows[row].want[i]);
            tst_result_free(&r);
        }
        tst_problem_free(&p);
    }
}

/* ... and so it equals streaming: the first Nk - Nq keys in one call, the rest from its state. */
static void equals_streaming(void **state) {
    (void)state;
    TST_NEEDS(GMA_STATE_S);
    enum { NQ = 40, NK = 100, H = 2, R = 5, D = 6 };
    tst_rng rng = tst_rng_start("test_conformance_b_causality");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc whole = tst_desc(1, 1, H, H, NQ, NK, 7, R, D);
    const gma_mixer_desc first = tst_desc(1, 1, H, H, 0, NK - NQ, 7, R, D),
                         rest = tst_desc(1, 1, H, H, NQ, NQ, 7, R, D);
    tst_problem p = tst_problem_random(&whole, NULL, TST_DECAY, &rng);
    tst_problem a = tst_problem_random(&first, NULL, TST_DECAY, &rng);
    tst_problem b = tst_problem_random(&rest, NULL, TST_DECAY | TST_STATE, &rng);
    static const struct { int slot, width; } split[] = {{GMA_K, R}, {GMA_V, D}, {GMA_LOG_DECAY, 1}};
    for (int h = 0; h < H; h++) {
        for (int s = 0; s < 3; s++) {
            const int w = split[s].width;
            for (int i = 0; i < NK * w; i++) {
                const double x = p.in[split[s].slot].x[h * NK * w + i];
                if (i < (NK - NQ) * w)
                    a.in[split[s].slot].x[h * (NK - NQ) * w + i] = x;
                else
                    b.in[split[s].slot].x[h * NQ * w + i - (NK - NQ) * w] = x;
            }
        }
    }
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const gma_slot_info *info = p.in[slot].x ? tst_slot_info(&p.desc, slot) : NULL;
        if (!info || info->role != GMA_ROLE_PARAM)
            continue;
        tst_set(&a, slot, p.in[slot].x, p.in[slot].n);
        tst_set(&b, slot, p.in[slot].x, p.in[slot].n);
    }
    tst_set(&b, GMA_Q, p.in[GMA_Q].x, p.in[GMA_Q].n);
    for (int e = 0; e < n; e++) {
        tst_result want = tst_must_run(&p, &engines[e], 0), one = tst_must_run(&a, &engines[e], 0);
        tst_set(&b, GMA_STATE_S, one.out[GMA_OUT_S].x, one.out[GMA_OUT_S].n);
        tst_set(&b, GMA_STATE_Z, one.out[GMA_OUT_Z].x, one.out[GMA_OUT_Z].n);
        tst_result two = tst_must_run(&b, &engines[e], 0);
        assert_true(tst_compare(&two, &want, engines[e].naive ? 1e-12 : TOL_O, 0, tst_engine_name(&engines[e])));
        tst_result_free(&want);
        tst_result_free(&one);
        tst_result_free(&two);
    }
    tst_problem_free(&p);
    tst_problem_free(&a);
    tst_problem_free(&b);
}

/* B2: prefix numerator over prefix denominator, in every row (a total denominator is right in the last row only). */
static void prefix_over_prefix(void **state) {
    (void)state;
    TST_GMA_ONLY();
    static const double want[] = {0.999997688880, -0.316119557815, 0.616205664902};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 3, 3, 2, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    TST_SET(&p, GMA_Q, .5, -.25, 1);
    TST_SET(&p, GMA_K, -.3, .8, .1);
    TST_SET(&p, GMA_V, 1, -2, 4);
    for (int e = 0; e < n; e++) {
        tst_result r = tst_must_run(&p, &engines[e], 0);
        for (int i = 0; i < 3; i++)
            TST_CLOSE(r.out[GMA_O].x[i], want[i], TOL_O);
        tst_result_free(&r);
    }
    tst_problem_free(&p);
}

/* B4: what the operator cannot do is an error that names it, never a result. */
static void nothing_is_ignored(void **state) {
    (void)state;
    TST_GMA_ONLY();
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, 3, 3, 2, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&d, &m));
    double q[3] = {0}, mu[2] = {0}, o[3], mask[9] = {0};
    gma_arg args[8] = {
        {GMA_Q, gma_tensor_of(q, GMA_F64, 4, 1, 1, 3, 1)},      {GMA_K, gma_tensor_of(q, GMA_F64, 4, 1, 1, 3, 1)},
        {GMA_V, gma_tensor_of(q, GMA_F64, 4, 1, 1, 3, 1)},      {GMA_MU, gma_tensor_of(mu, GMA_F64, 3, 1, 2, 1, 0)},
        {GMA_OMEGA, gma_tensor_of(mu, GMA_F64, 3, 1, 2, 1, 0)}, {GMA_ALPHA, gma_tensor_of(mu, GMA_F64, 2, 1, 2, 0, 0)},
        {GMA_O, gma_tensor_of(o, GMA_F64, 4, 1, 1, 3, 1)},      {20, gma_tensor_of(mask, GMA_F64, 2, 3, 3, 0, 0)}};
    TST_OK(gma_mixer_naive_forward(m, args, 7));
    TST_ERROR(gma_mixer_naive_forward(m, args, 8), GMA_ERR_INVALID_ARGUMENT, "20");
    args[7].slot = GMA_KEY_MASK; /* an N x N mask where a key mask belongs */
    args[7].tensor = gma_tensor_of(mask, GMA_BOOL, 2, 3, 3, 0, 0);
    TST_ERROR(gma_mixer_naive_forward(m, args, 8), GMA_ERR_SHAPE, "key_mask");
    gma_mixer_destroy(m);

    d.causal = 2;
    TST_ERROR(gma_mixer_create(&d, &m), GMA_ERR_INVALID_ARGUMENT, "causal");
    d.causal = 0; /* a decay has no meaning without an order */
    p.desc.causal = 0;
    TST_SET(&p, GMA_LOG_DECAY, 0, 0, 0);
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 1);
    for (int e = 0; e < n; e++) {
        tst_result r;
        TST_ERROR(tst_run(&p, &engines[e], 0, &r), GMA_ERR_INVALID_ARGUMENT, "log_decay");
    }
    tst_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned_at_the_end),
        cmocka_unit_test(equals_streaming),
        cmocka_unit_test(prefix_over_prefix),
        cmocka_unit_test(nothing_is_ignored),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
