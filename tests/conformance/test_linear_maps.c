/* What is special about the maps of linear and performer: golden values worked out apart from this code (60 digits,
 * gradients by differences), features far from 1, and what one token may do to another. */
#include <math.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

static gma_mixer_desc describe(gma_mixer_kind kind, int causal, int64_t B, int64_t H, int64_t N, int64_t M, int64_t R,
                               int64_t D) {
    tst_mixer = kind;
    const gma_mixer_desc d = tst_desc(causal, B, H, H, N, N, M, R, D);
    tst_mixer = GMA_MIXER_GMA;
    return d;
}

static void expect(const tst_array *a, const double *want, double tol) {
    for (int i = 0; i < 6; i++)
        TST_CLOSE(a->x[i], want[i], tol * fmax(1, fabs(want[i])));
}

/* Causal, R = D = 2, and a dk that lacks its part through Z would be far off. */
static void golden_values(void **state) {
    (void)state;
    static const struct {
        gma_mixer_kind kind;
        double o[6], dq[6], dk[6], dv[6];
    } rows[] = {
        {GMA_MIXER_LINEAR,
         {0.999999604915, 2.999998814746, -0.750032548444, 1.541639132880, 2.094793259058, 0.806237536222},
         {-0.000000243129, -0.000000425476, -0.209972437444, 0.419945387479, 0.386893600151, -0.128964614032},
         {1.265893957001, 1.204382416738, -0.683253392629, 0.335289259999, -0.243613784433, -1.204953684692},
         {0.389905388273, 0.242522808169, 0.065814272636, 1.279617133063, -0.955720007606, 0.477860003803}},
        {GMA_MIXER_PERFORMER,
         {0.999998527507, 2.999995582522, -1.856414527257, 0.619654385866, 1.820259078730, 1.167877143986},
         {0.000000442808, -0.000000480425, -0.022614367096, 0.275021532890, -0.491868094718, -0.304056221488},
         {-0.680357276407, -0.835764697242, -0.388408618381, 1.027150597159, 0.961156101427, 1.015167833314},
         {0.025195927411, -0.404908243885, 0.248857290179, 2.017882189862, -0.774052060159, 0.387026030079}},
    };
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int row = 0; row < 2; row++) {
        const gma_mixer_desc d = describe(rows[row].kind, 1, 1, 1, 3, 3, 2, 2);
        tst_problem p = tst_problem_plain(&d, NULL);
        TST_SET(&p, GMA_Q, .5, -.25, 1, -1, -.5, 2);
        TST_SET(&p, GMA_K, -.25, .75, .5, -1.5, .125, 1);
        TST_SET(&p, GMA_V, 1, 3, -2, .5, 4, -1);
        if (rows[row].kind == GMA_MIXER_PERFORMER)
            TST_SET(&p, GMA_FEATURES, 1, .5, -1.5, .25, .75, -2);
        static const double up[] = {1, -1, .5, 2, -2, 1};
        tst_set_up(&p, GMA_O, 1);
        memcpy(p.up[GMA_O].x, up, sizeof up);
        for (int e = 0; e < n; e++) {
            const double tol = engines[e].naive ? 2e-12 : 2e-6;
            tst_result r = tst_must_run(&p, &engines[e], 0);
            expect(&r.out[GMA_O], rows[row].o, tol);
            expect(&r.grad[GMA_Q], rows[row].dq, tol);
            expect(&r.grad[GMA_K], rows[row].dk, tol);
            expect(&r.grad[GMA_V], rows[row].dv, tol);
            assert_null(r.grad[GMA_FEATURES].x); /* fixed: no gradient */
            tst_result_free(&r);
        }
        tst_problem_free(&p);
    }
}

/* eps is added to the product of the literal features: queries from ones that make it vanish to ones whose features
 * exceed f32 (w = 24, x = 24: e^288), against the naive version and the closed form. */
static void eps_is_literal(void **state) {
    (void)state;
    static const struct {
        double w, q, k;
    } rows[] = {{0, 0, 0},   {0, 3, 3},    {0, 5, 2},   {0, 9, 0},       {0, 40, 0},  {2, -3, 1},
                {24, 24, -1}, {24, 24, -12}, {24, 30, -3}, {24, 20, 0.25}, {-24, 8, 0.5}, {8, 0.5, 8}};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const gma_mixer_desc d = describe(GMA_MIXER_PERFORMER, 1, 1, 1, 1, 1, 1, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        TST_SET(&p, GMA_FEATURES, rows[i].w);
        TST_SET(&p, GMA_Q, rows[i].q);
        TST_SET(&p, GMA_K, rows[i].k);
        TST_SET(&p, GMA_V, 1);
        tst_set_up(&p, GMA_O, 1);
        const double w = rows[i].w, q = rows[i].q, k = rows[i].k;
        const double product = exp(w * (q + k) - (q * q + k * k) / 2), want = product / (product + 1e-6);
        const double dk = want * (1 - want) * (w - k); /* do/dproduct * product * (w - k) */
        for (int e = 0; e < n; e++) {
            const double tol = engines[e].naive ? 1e-10 : 1e-4; /* f32: e^a is right to |a| 6e-8 */
            tst_result r = tst_must_run(&p, &engines[e], 0);
            if (!tol_close(r.out[GMA_O].x[0], want, tol * want + 1e-20))
                tst_fail("%s, row %zu: o = %.9g, not %.9g", tst_engine_name(&engines[e]), i, r.out[GMA_O].x[0], want);
            if (!tol_close(r.grad[GMA_K].x[0], dk, tol * fabs(dk) + (engines[e].naive ? 1e-10 : 3e-5) * (1 + fabs(w - k))))
                tst_fail("%s, row %zu: dk = %.9g, not %.9g", tst_engine_name(&engines[e]), i, r.grad[GMA_K].x[0], dk);
            tst_result_free(&r);
            if (engines[e].naive)
                continue;
            tst_result steps = tst_steps(&p, &engines[e]);
            TST_CLOSE(steps.out[GMA_O].x[0], want, tol * want + 1e-20);
            tst_result_free(&steps);
        }
        tst_problem_free(&p);
    }
}

/* What else is in the batch, or comes later, changes no bit of a token's result: other rows and later tokens are made
 * huge, so any maximum taken over them would show. */
static void others_do_not_matter(void **state) {
    (void)state;
    enum { B = 3, H = 2, N = 90, CUT = 40, R = 8, D = 5 };
    tst_rng rng = tst_rng_start("test_conformance_linear_maps");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int kind = GMA_MIXER_LINEAR; kind <= GMA_MIXER_PERFORMER; kind++) {
        const gma_mixer_desc d = describe((gma_mixer_kind)kind, 1, B, H, N, 17, R, D);
        tst_problem p = tst_problem_random(&d, NULL, 0, &rng), q = tst_problem_copy(&p);
        for (int slot = GMA_Q; slot <= GMA_V; slot++) {
            const int64_t width = slot == GMA_V ? D : R;
            for (int64_t i = 0; i < q.in[slot].n; i++) {
                const int64_t token = i / width % N, b = i / width / N / H;
                if (b != 1 || token >= CUT)
                    q.in[slot].x[i] *= 6;
            }
        }
        for (int e = 0; e < n; e++) {
            tst_result a = tst_must_run(&p, &engines[e], 0), b = tst_must_run(&q, &engines[e], 0);
            for (int64_t i = 0; i < a.out[GMA_O].n; i++) {
                if (i / D / N / H == 1 && i / D % N < CUT)
                    assert_true(a.out[GMA_O].x[i] == b.out[GMA_O].x[i]);
            }
            tst_result_free(&a);
            tst_result_free(&b);
        }
        tst_problem_free(&p);
        tst_problem_free(&q);
    }
}

/* A key feature beyond f32 shows in the tokens that see it, and in no other, its own chunk included. */
static void overflow_stays_where_it_belongs(void **state) {
    (void)state;
    enum { N = 150, AT = 69 };
    tst_rng rng = tst_rng_start("test_conformance_linear_maps");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_two, 2);
    const gma_mixer_desc d = describe(GMA_MIXER_PERFORMER, 1, 1, 1, N, 3, 1, 2);
    tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
    TST_SET(&p, GMA_FEATURES, 0.5, 24, -1);
    tst_problem q = tst_problem_copy(&p);
    q.in[GMA_K].x[AT] = 24;
    for (int64_t i = AT; i < N; i++) /* nothing comes back from the rows that see it */
        p.up[GMA_O].x[2 * i] = p.up[GMA_O].x[2 * i + 1] = q.up[GMA_O].x[2 * i] = q.up[GMA_O].x[2 * i + 1] = 0;
    for (int e = 0; e < n; e++) {
        tst_result a = tst_must_run(&p, &engines[e], 0), b = tst_must_run(&q, &engines[e], 0);
        for (int64_t i = 0; i < N; i++) {
            for (int c = 0; c < 2; c++) {
                const double x = a.out[GMA_O].x[2 * i + c], y = b.out[GMA_O].x[2 * i + c];
                if (i < AT ? x != y : isfinite(y))
                    tst_fail("%s: token %d: %g and %g", tst_engine_name(&engines[e]), (int)i, x, y);
            }
            if (i < AT)
                TST_CLOSE(b.grad[GMA_Q].x[i], a.grad[GMA_Q].x[i], TOL_GRAD * fmax(1, fabs(a.grad[GMA_Q].x[i])));
        }
        tst_result_free(&a);
        tst_result_free(&b);
    }
    tst_problem_free(&p);
    tst_problem_free(&q);
}

/* Inputs at the ends of f32: elu + 1 of -inf is 0, as if the feature were not there; performer's features of a huge
 * vector are 0, of an infinite one NaN. */
static void ends_of_the_range(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int e = 0; e < n; e++) {
        gma_mixer_desc d = describe(GMA_MIXER_LINEAR, 1, 1, 1, 3, 2, 2, 1);
        tst_problem p = tst_problem_plain(&d, NULL);
        TST_SET(&p, GMA_Q, -INFINITY, 0, 0, -1e30, 1e30, 0);
        TST_SET(&p, GMA_K, 0, 0, 0, -INFINITY, -1e30, 1);
        TST_SET(&p, GMA_V, 1, 2, 4);
        tst_result r = tst_must_run(&p, &engines[e], 0);
        TST_CLOSE(r.out[GMA_O].x[0], 1, 5e-6);
        TST_CLOSE(r.out[GMA_O].x[1], 1.5, 5e-6);
        TST_CLOSE(r.out[GMA_O].x[2], 1.5, 5e-6);
        if (!engines[e].naive) {
            tst_result steps = tst_steps(&p, &engines[e]);
            for (int i = 0; i < 3; i++)
                TST_CLOSE(steps.out[GMA_O].x[i], r.out[GMA_O].x[i], 1e-6);
            tst_result_free(&steps);
        }
        tst_result_free(&r);
        tst_problem_free(&p);

        d = describe(GMA_MIXER_PERFORMER, 1, 1, 1, 4, 2, 2, 1);
        p = tst_problem_plain(&d, NULL);
        TST_SET(&p, GMA_FEATURES, 1, 1, -1, 0);
        TST_SET(&p, GMA_Q, 0, 0, 1e25, 1e25, -1e38, 3e38, INFINITY, 0);
        TST_SET(&p, GMA_K, 0, 0, 1e25, -1e25, 3e38, 3e38, 0, 0);
        TST_SET(&p, GMA_V, 1, 2, 4, 8);
        r = tst_must_run(&p, &engines[e], 0);
        TST_CLOSE(r.out[GMA_O].x[0], 1, 5e-6);
        for (int i = 1; i < 3; i++)
            TST_CLOSE(r.out[GMA_O].x[i], 0, 1e-30);
        assert_false(isfinite(r.out[GMA_O].x[3]));
        TST_CLOSE(r.out[GMA_OUT_Z].x[0], sqrt(2), 1e-6); /* keys 0 and 3 */
        if (!engines[e].naive) {
            tst_result steps = tst_steps(&p, &engines[e]);
            TST_CLOSE(steps.out[GMA_O].x[0], 1, 5e-6);
            TST_CLOSE(steps.out[GMA_O].x[1], 0, 1e-30);
            TST_CLOSE(steps.out[GMA_O].x[2], 0, 1e-30);
            assert_false(isfinite(steps.out[GMA_O].x[3]));
            tst_result_free(&steps);
        }
        tst_result_free(&r);
        tst_problem_free(&p);
    }
}

/* Wide heads, as they are used: R = 64 and 128, M up to 256, Gaussian features, against the naive version. */
static void wide_heads(void **state) {
    (void)state;
    static const struct {
        int64_t M, R;
        double size;
    } rows[] = {{128, 64, 1}, {256, 64, 2}, {64, 128, 1}, {100, 128, 3}};
    tst_rng rng = tst_rng_start("test_conformance_linear_maps");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_two, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const gma_mixer_desc d = describe(GMA_MIXER_PERFORMER, 1, 1, 1, 130, rows[i].M, rows[i].R, 16);
        tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD | TST_DECAY, &rng);
        for (int slot = GMA_Q; slot <= GMA_K; slot++) {
            for (int64_t j = 0; j < p.in[slot].n; j++)
                p.in[slot].x[j] = (double)(float)(rows[i].size * p.in[slot].x[j]);
        }
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], 0);
            assert_true(tst_compare(&r, &want, TOL_O, TOL_GRAD, tst_engine_name(&engines[e])));
            tst_result_free(&r);
        }
        tst_result_free(&want);
        tst_problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_values),
        cmocka_unit_test(eps_is_literal),
        cmocka_unit_test(others_do_not_matter),
        cmocka_unit_test(overflow_stays_where_it_belongs),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(wide_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
