/* Cases F: densities beyond the float range, cancellation, denominators near eps, NaN and infinity. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

static void fill(tst_problem *p, int slot, double x) {
    for (int64_t i = 0; i < p->in[slot].n; i++)
        p->in[slot].x[i] = (double)(float)x;
}

/* F1: responsibilities where exp of a density over- or underflows. */
static void densities_out_of_range(void **state) {
    (void)state;
    TST_GMA_ONLY();
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc a = tst_desc(0, 1, 1, 1, 3, 1, 2, 1, 1), b = tst_desc(0, 1, 1, 1, 1, 1, 2, 64, 1);
    tst_problem p = tst_problem_plain(&a, NULL), q = tst_problem_plain(&b, NULL);
    TST_SET(&p, GMA_Q, 1e4, -1e4, 3e30);
    fill(&q, GMA_MU, 0);
    fill(&q, GMA_OMEGA, -30);
    for (int e = 0; e < n; e++) {
        tst_array far = tst_gamma(&p, GMA_Q, &engines[e]), narrow = tst_gamma(&q, GMA_Q, &engines[e]);
        TST_CLOSE(far.x[0], 0, 1e-30);
        TST_CLOSE(far.x[1], 1, 1e-6);
        TST_CLOSE(far.x[2], 1, 1e-6);
        TST_CLOSE(far.x[3], 0, 1e-30);
        TST_CLOSE(far.x[4] + far.x[5], 1, 1e-6); /* both densities are 0 in float */
        TST_CLOSE(narrow.x[0], 0.5, 1e-6);
        TST_CLOSE(narrow.x[1], 0.5, 1e-6);
        tst_array_free(&far);
        tst_array_free(&narrow);
    }
    tst_problem_free(&p);
    tst_problem_free(&q);
}

/* F2: data far from 0 beside their variance; the expanded quadratic form lets the wrong component win. */
static void no_cancellation(void **state) {
    (void)state;
    TST_GMA_ONLY();
    static const struct {
        double omega, x, mu[3];
        int K;
        double gamma[3];
    } rows[] = {{0.5411666523385311, 100 + 1 / 32., {100, 100 + 1 / 8.}, 2, {0.562177, 0.437823}},
                {-30, 3.0003125, {3, 3.00125}, 2, {0.56217, 0.43783}},
                {-30, 3.0003125, {3, 3.00125, -3}, 3, {0.56217, 0.43783, 0}}};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        const int K = rows[row].K;
        const gma_mixer_desc d = tst_desc(0, 1, 1, 1, 1, 1, K, 64, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        fill(&p, GMA_Q, rows[row].x);
        fill(&p, GMA_OMEGA, rows[row].omega);
        for (int i = 0; i < K * 64; i++)
            p.in[GMA_MU].x[i] = (double)(float)rows[row].mu[i / 64];
        for (int e = 0; e < n; e++) {
            tst_array gamma = tst_gamma(&p, GMA_Q, &engines[e]);
            for (int k = 0; k < K; k++) {
                if (!tol_close(gamma.x[k], rows[row].gamma[k], 1e-4))
                    tst_fail("%s, row %zu: gamma_%d = %.9g, not %g", tst_engine_name(&engines[e]), row, k, gamma.x[k],
                             rows[row].gamma[k]);
            }
            tst_array_free(&gamma);
        }
        tst_problem_free(&p);
    }
}

/* F4: denominators from 0.2 down to 0 beside eps = 1e-6, in f32 and with bf16 inputs and outputs. */
static void small_denominators(void **state) {
    (void)state;
    TST_GMA_ONLY();
    static const double q[] = {-1, -5, -10, -60}, want[] = {0.999995238, 0.989105759, 0.00410538358, 0};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int causal = 0; causal < 2; causal++) {
        for (int i = 0; i < 4; i++) {
            const gma_mixer_desc d = tst_desc(causal, 1, 1, 1, 1, 1, 2, 1, 1);
            tst_problem p = tst_problem_plain(&d, NULL);
            TST_SET(&p, GMA_Q, q[i]);
            TST_SET(&p, GMA_K, -q[i]);
            TST_SET(&p, GMA_V, 1);
            tst_set_up(&p, GMA_O, 1);
            for (int e = 0; e < 2 * n; e++) {
                tst_engine engine = engines[e / 2];
                if (e % 2)
                    engine.io = GMA_BF16;
                tst_result r = tst_must_run(&p, &engine, 0);
                const double o = r.out[GMA_O].x[0];
                if (q[i] == -60)
                    assert_true(isfinite(o) && fabs(o) < 1e-30);
                else if (!tol_close(o, want[i], want[i] * (e % 2 ? 1 / 256. : engine.naive ? 1e-8 : 2e-5)))
                    tst_fail("%s: q = %g: o = %.9g, not %.9g", tst_engine_name(&engine), q[i], o, want[i]);
                for (int slot = 0; slot < TST_SLOTS; slot++) {
                    for (int64_t c = 0; c < r.grad[slot].n; c++)
                        assert_true(isfinite(r.grad[slot].x[c]));
                }
                tst_result_free(&r);
            }
            tst_problem_free(&p);
        }
    }
}

/* F6 in the kernels: for every width the bf16 outputs are the f32 outputs rounded by gma_f32_to_bf16, in the body of a
 * vector and in its tail, NaN and infinity included. */
static void bf16_storage(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_f_numerics");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_two, 1);
    for (int64_t D = 1; D <= 40; D++) {
        const gma_mixer_desc d = tst_desc(1, 1, 2, 1, 5, 5, 3, 2, D);
        tst_problem p = tst_problem_random(&d, NULL, 0, &rng);
        for (int slot = GMA_Q; slot <= GMA_V; slot++) {
            for (int64_t i = 0; i < p.in[slot].n; i++)
                p.in[slot].x[i] = (double)gma_bf16_to_f32(gma_f32_to_bf16((float)p.in[slot].x[i]));
        }
        p.in[GMA_V].x[4 * D + D - 1] = NAN;
        p.in[GMA_V].x[3 * D + D / 2] = INFINITY;
        for (int e = 0; e < n; e++) {
            tst_engine bf16 = engines[e];
            bf16.io = GMA_BF16;
            if (tst_in_bf16(&bf16))
                continue; /* its products are rounded too: test_tiles.c */
            tst_result a = tst_must_run(&p, &engines[e], 0), b = tst_must_run(&p, &bf16, 0);
            for (int64_t i = 0; i < a.out[GMA_O].n; i++) {
                const uint16_t rounded = gma_f32_to_bf16((float)a.out[GMA_O].x[i]);
                a.out[GMA_O].x[i] = (double)gma_bf16_to_f32(rounded);
            }
            assert_true(tst_same_bits(&a, &b));
            assert_true(isnan(b.out[GMA_O].x[4 * D + D - 1]) || D == 1);
            tst_result_free(&a);
            tst_result_free(&b);
        }
        tst_problem_free(&p);
    }
}

/* ---- F7: what a NaN or an infinity may touch ---------------------------------------------------------- */

enum { N = 150, AT = 69, R = 5, D = 6, H = 2, B = 2 };

/* Every entry of `a` whose token is in [from, to) of head (b, h) is not finite ... */
static int all_bad(const tst_array *a, int64_t b, int64_t h, int64_t from, int64_t to, int64_t width) {
    for (int64_t i = ((b * H + h) * N + from) * width; i < ((b * H + h) * N + to) * width; i++) {
        if (isfinite(a->x[i]))
            return 0;
    }
    return 1;
}

/* Finite exactly where the definition is. */
static int as_finite_as(const tst_array *o, const tst_problem *p) {
    tst_result want = tst_must_run(p, &TST_NAIVE, 0);
    int same = 1, bad = 0;
    for (int64_t i = 0; i < o->n; i++) {
        same &= !isfinite(o->x[i]) == !isfinite(want.out[GMA_O].x[i]);
        bad += !isfinite(o->x[i]);
    }
    tst_result_free(&want);
    return same && bad > 0;
}

/* ... and every other entry is that of `clean`: the same bits (tol = 0), or within tol of the largest. */
static int rest_unchanged(const tst_array *a, const tst_array *clean, int64_t b, int64_t h, int64_t from, int64_t to,
                          int64_t width, double tol) {
    double largest = TOL_FLOOR_GRAD;
    for (int64_t i = 0; i < a->n; i++)
        largest = fmax(largest, fabs(clean->x[i]));
    for (int64_t i = 0; i < a->n; i++) {
        const int64_t token = i / width % N, head = i / width / N;
        if (head == b * H + h && token >= from && token < to)
            continue;
        if (tol == 0 ? memcmp(&a->x[i], &clean->x[i], sizeof(double)) != 0
                     : !tol_close(a->x[i], clean->x[i], tol * largest))
            return printf("entry %lld (token %lld): %.9g, not %.9g\n", (long long)i, (long long)token, a->x[i],
                          clean->x[i]),
                   0;
    }
    return 1;
}

static void bad_values_stay_where_they_belong(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_f_numerics");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    static const int slots[] = {GMA_Q, GMA_K, GMA_V};
    for (int causal = 0; causal < 2; causal++) {
        const gma_mixer_desc d = tst_desc(causal, B, H, H, N, N, 7, R, D);
        tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD | (causal ? TST_DECAY : 0), &rng);
        for (int e = 0; e < n; e++) {
            tst_result clean = tst_must_run(&p, &engines[e], 0);
            for (int variant = 0; variant < 6; variant++) {
                const int slot = slots[variant % 3];
                const double bad = variant < 3 ? NAN : INFINITY;
                const int64_t width = slot == GMA_V ? D : R, b = 1, h = 0;
                tst_problem q = tst_problem_copy(&p);
                q.in[slot].x[((b * H + h) * N + AT) * width + 2] = bad;
                tst_result r = tst_must_run(&q, &engines[e], 0);
                char what[100];
                (void)snprintf(what, sizeof what, "%s, %s, %g in %s[%d]", tst_engine_name(&engines[e]),
                               causal ? "causal" : "bidirectional", bad, gma_slot_name(slot), AT);
                /* outputs */
                const int64_t from = slot == GMA_Q || causal ? AT : 0, to = slot == GMA_Q ? AT + 1 : N;
                for (int64_t i = 0; i < r.out[GMA_O].n && slot == GMA_V; i++) { /* one column only */
                    if (i / D / N == b * H + h && i / D % N >= from &&
                        (i % D == 2 ? isfinite(r.out[GMA_O].x[i])
                                    : !tol_close(r.out[GMA_O].x[i], clean.out[GMA_O].x[i], 10 * TOL_O)))
                        tst_fail("%s: o[%lld] is %g", what, (long long)i, r.out[GMA_O].x[i]);
                }
                /* In softmax attention an infinite key gives some queries a logit of -inf: a weight of 0. */
                const int by_sign = !tst_has(GMA_STATE_S) && slot == GMA_K && isinf(bad);
                if (slot != GMA_V && !by_sign && !all_bad(&r.out[GMA_O], b, h, from, to, D))
                    tst_fail("%s: an output it influences is finite", what);
                if (by_sign && !as_finite_as(&r.out[GMA_O], &q))
                    tst_fail("%s: other outputs are finite than by the definition", what);
                if (!rest_unchanged(&r.out[GMA_O], &clean.out[GMA_O], b, h, from, to, D, TOL_O))
                    tst_fail("%s: an output it does not influence changed", what);
                /* gradients: queries that saw it; keys that were read together with it */
                const int64_t last = causal && slot == GMA_Q ? AT + 1 : N;
                if (!rest_unchanged(&r.grad[GMA_Q], &clean.grad[GMA_Q], b, h, from, to, R, TOL_GRAD))
                    tst_fail("%s: a gradient of q it does not influence changed", what);
                if (!rest_unchanged(&r.grad[GMA_K], &clean.grad[GMA_K], b, h, 0, last, R, TOL_GRAD))
                    tst_fail("%s: a gradient of k it does not influence changed", what);
                if (!rest_unchanged(&r.grad[GMA_V], &clean.grad[GMA_V], b, h, 0, last, D, TOL_GRAD))
                    tst_fail("%s: a gradient of v it does not influence changed", what);
                for (int64_t i = 0; i < r.grad[GMA_MU].n; i++) { /* (H,K,R): the other head is clean */
                    if (i / (7 * R) != h && memcmp(&r.grad[GMA_MU].x[i], &clean.grad[GMA_MU].x[i], 8) != 0)
                        tst_fail("%s: the mixture of the other head changed", what);
                }
                if (tst_mixer == GMA_MIXER_GMA && slot != GMA_V && isfinite(r.grad[GMA_MU].x[h * 7 * R]))
                    tst_fail("%s: grad_mu is finite", what);
                tst_result_free(&r);
                tst_problem_free(&q);
            }
            tst_result_free(&clean);
        }
        tst_problem_free(&p);
    }
}

/* The strict form of F7: rows a NaN does not influence keep their bits, in its own chunk too. */
static void rows_it_does_not_influence_keep_their_bits(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_f_numerics");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    static const int slots[] = {GMA_Q, GMA_K, GMA_V};
    for (int variant = 0; variant < 6; variant++) {
        const int slot = slots[variant % 3], decay = variant / 3;
        const int64_t width = slot == GMA_V ? D : R;
        const gma_mixer_desc d = tst_desc(1, B, H, H, N, N, 7, R, D);
        tst_problem p = tst_problem_random(&d, NULL, decay ? TST_DECAY : 0, &rng), q = tst_problem_copy(&p);
        q.in[slot].x[AT * width] = NAN; /* batch 0, head 0 */
        for (int e = 0; e < n; e++) {
            tst_result clean = tst_must_run(&p, &engines[e], 0), r = tst_must_run(&q, &engines[e], 0);
            if (!rest_unchanged(&r.out[GMA_O], &clean.out[GMA_O], 0, 0, AT, slot == GMA_Q ? AT + 1 : N, D, 0))
                tst_fail("%s: NaN in %s[%d]: a row it does not influence changed", tst_engine_name(&engines[e]),
                         gma_slot_name(slot), AT);
            tst_result_free(&r);
            tst_result_free(&clean);
        }
        tst_problem_free(&p);
        tst_problem_free(&q);
    }
}

/* In a masked key or its value it touches nothing. */
static void bad_values_that_do_not_count(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_f_numerics");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, B, H, H, N, N, 7, R, D);
    tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD | TST_DECAY | TST_MASK, &rng);
    for (int b = 0; b < B; b++)
        p.in[GMA_KEY_MASK].x[b * N + AT] = 0;
    tst_problem masked = tst_problem_copy(&p);
    for (int64_t i = 0; i < B * H; i++) {
        for (int r = 0; r < R; r++)
            masked.in[GMA_K].x[(i * N + AT) * R + r] = r % 2 ? NAN : INFINITY;
        for (int c = 0; c < D; c++)
            masked.in[GMA_V].x[(i * N + AT) * D + c] = c % 2 ? NAN : INFINITY;
    }
    for (int e = 0; e < n; e++) {
        tst_result a = tst_must_run(&p, &engines[e], 0), b = tst_must_run(&masked, &engines[e], 0);
        if (!tst_same_bits(&a, &b))
            tst_fail("%s: a masked key shows", tst_engine_name(&engines[e]));
        tst_result_free(&a);
        tst_result_free(&b);
    }
    tst_problem_free(&p);
    tst_problem_free(&masked);
}

/* A row that a decay of -inf forgets: row AT - 2 is NaN, row AT forgets. */
static void a_forgotten_value_does_not_count(void **state) {
    (void)state;
    TST_NEEDS(GMA_LOG_DECAY);
    tst_rng rng = tst_rng_start("test_conformance_f_numerics");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, B, H, H, N, N, 7, R, D);
    tst_problem forgets = tst_problem_random(&d, NULL, TST_BACKWARD | TST_DECAY | TST_MASK, &rng), forgotten;
    for (int b = 0; b < B; b++)
        forgets.in[GMA_KEY_MASK].x[b * N + AT] = 0;
    for (int64_t i = 0; i < B * H; i++)
        forgets.in[GMA_LOG_DECAY].x[i * N + AT] = -INFINITY;
    forgets.in[GMA_KEY_MASK].x[AT - 2] = forgets.in[GMA_KEY_MASK].x[N + AT - 2] = 1;
    forgotten = tst_problem_copy(&forgets);
    for (int64_t i = 0; i < B * H; i++)
        forgotten.in[GMA_V].x[(i * N + AT - 2) * D] = NAN;
    for (int e = 0; e < n; e++) {
        tst_result a = tst_must_run(&forgets, &engines[e], 0), b = tst_must_run(&forgotten, &engines[e], 0);
        for (int64_t i = 0; i < a.out[GMA_O].n; i++) {
            const int64_t token = i / D % N;
            const double x = a.out[GMA_O].x[i], y = b.out[GMA_O].x[i];
            if (token >= AT - 2 && token < AT && i % D == 0)
                assert_true(isnan(y));
            else if (!tol_close(x, y, 10 * TOL_O))
                tst_fail("%s: a forgotten value shows at token %lld: %g, not %g", tst_engine_name(&engines[e]),
                         (long long)token, y, x);
        }
        for (int64_t i = 0; i < a.out[GMA_OUT_S].n; i++) {
            if (!tol_close(a.out[GMA_OUT_S].x[i], b.out[GMA_OUT_S].x[i], 100 * TOL_O))
                tst_fail("%s: a forgotten value shows in the state", tst_engine_name(&engines[e]));
        }
        for (int64_t i = 0; i < a.grad[GMA_V].n; i++) {
            const double x = a.grad[GMA_V].x[i], y = b.grad[GMA_V].x[i];
            if (i / D % N >= AT && !tol_close(x, y, TOL_GRAD * (1 + fabs(x))))
                tst_fail("%s: a forgotten value shows in grad_v of token %lld", tst_engine_name(&engines[e]),
                         (long long)(i / D % N));
        }
        tst_result_free(&a);
        tst_result_free(&b);
    }
    tst_problem_free(&forgets);
    tst_problem_free(&forgotten);
}

/* A removed component (alpha = -inf) is as if it were not there, whatever its mean and width are. */
static void removed_component(void **state) {
    (void)state;
    TST_GMA_ONLY();
    tst_rng rng = tst_rng_start("test_conformance_f_numerics");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc three = tst_desc(1, 1, 1, 1, 40, 40, 3, R, D), two = tst_desc(1, 1, 1, 1, 40, 40, 2, R, D);
    tst_problem p = tst_problem_random(&three, NULL, TST_BACKWARD, &rng);
    p.in[GMA_ALPHA].x[2] = -INFINITY;
    tst_problem q = tst_problem_copy(&p);
    q.desc = two;
    static const int params[] = {GMA_MU, GMA_OMEGA, GMA_ALPHA};
    for (int i = 0; i < 3; i++) {
        tst_add(&q, params[i]);
        memcpy(q.in[params[i]].x, p.in[params[i]].x, (size_t)q.in[params[i]].n * sizeof(double));
    }
    for (int e = 0; e < n; e++) {
        const double tol = engines[e].naive ? 1e-12 : TOL_O, tol_grad = engines[e].naive ? 1e-12 : TOL_GRAD;
        tst_result a = tst_must_run(&p, &engines[e], 0), b = tst_must_run(&q, &engines[e], 0);
        for (int slot = 0; slot < TST_SLOTS; slot++) {
            if (slot == GMA_OUT_S || slot == GMA_OUT_Z || slot == GMA_MU || slot == GMA_OMEGA || slot == GMA_ALPHA) {
                const tst_array *x = slot < GMA_O ? &a.grad[slot] : &a.out[slot]; /* the third row is 0 */
                for (int64_t i = x->n / 3 * 2; i < x->n; i++) {
                    if (x->x[i] != 0)
                        tst_fail("%s: %s of the removed component is %g", tst_engine_name(&engines[e]),
                                 gma_slot_name(slot), x->x[i]);
                }
                tst_array_free(slot < GMA_O ? &b.grad[slot] : &b.out[slot]);
            }
        }
        assert_true(tst_compare(&a, &b, tol, tol_grad, tst_engine_name(&engines[e])));
        tst_result_free(&a);
        tst_result_free(&b);
    }
    tst_problem_free(&p);
    tst_problem_free(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(densities_out_of_range),
        cmocka_unit_test(no_cancellation),
        cmocka_unit_test(small_denominators),
        cmocka_unit_test(bf16_storage),
        cmocka_unit_test(bad_values_stay_where_they_belong),
        cmocka_unit_test(rows_it_does_not_influence_keep_their_bits),
        cmocka_unit_test(bad_values_that_do_not_count),
        cmocka_unit_test(a_forgotten_value_does_not_count),
        cmocka_unit_test(removed_component),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
