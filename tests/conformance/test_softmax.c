/* What only softmax attention has: window, rotary positions, scale, a cache of keys, and the form that stores all scores. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_three[] = {1, 3};

static gma_mixer_desc describe(int causal, int64_t B, int64_t Hq, int64_t H, int64_t Nq, int64_t Nk, int64_t R, int64_t D) {
    tst_mixer = GMA_MIXER_SOFTMAX;
    return tst_desc(causal, B, Hq, H, Nq, Nk, 1, R, D);
}

/* Worked out by hand. */
static void golden_values(void **state) {
    (void)state;
    static const double means[] = {1, 1.5, 2.5, 3.5, 4.5};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_three, 2);
    gma_mixer_desc d = describe(1, 1, 1, 1, 5, 5, 1, 1);
    d.window = 2;
    tst_problem window = tst_problem_plain(&d, NULL);
    TST_SET(&window, GMA_V, 1, 2, 3, 4, 5);
    d = describe(0, 1, 1, 1, 1, 2, 1, 1);
    d.scale = log(3);
    tst_problem scale = tst_problem_plain(&d, NULL); /* weights 1 : 3 */
    TST_SET(&scale, GMA_Q, 1);
    TST_SET(&scale, GMA_K, 0, 1);
    TST_SET(&scale, GMA_V, 0, 1);
    d = describe(1, 1, 1, 1, 1, 3, 4, 1);
    d.rotary_base = 100;
    tst_problem rotary = tst_problem_plain(&d, NULL); /* pairs (0,2) turn by 1 a token, (1,3) by 100^(-1/2) = 0.1 */
    TST_SET(&rotary, GMA_Q, 1, 0, 0, 2);
    TST_SET(&rotary, GMA_K, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0);
    TST_SET(&rotary, GMA_V, 1, 10, 100);
    /* scale 1/2: q at 2, keys at 0, 1, 2: cos 2, 2 sin(-0.1 - ...) = 2 (0, 1) . rot(-0.1)(1, 0) = -2 sin 0.1, 0 */
    const double s[] = {exp(cos(2) / 2), exp(-sin(.1)), 1}, sum = s[0] + s[1] + s[2];
    for (int e = 0; e < n; e++) {
        const double tol = engines[e].naive ? 1e-12 : 1e-5;
        tst_result r = tst_must_run(&window, &engines[e], 0);
        for (int i = 0; i < 5; i++)
            TST_CLOSE(r.out[GMA_O].x[i], means[i], tol);
        tst_result_free(&r);
        r = tst_must_run(&scale, &engines[e], 0);
        TST_CLOSE(r.out[GMA_O].x[0], .75, tol);
        tst_result_free(&r);
        r = tst_must_run(&rotary, &engines[e], 0);
        TST_CLOSE(r.out[GMA_O].x[0], (s[0] + 10 * s[1] + 100 * s[2]) / sum, 10 * tol);
        tst_result_free(&r);
    }
    tst_problem_free(&window);
    tst_problem_free(&scale);
    tst_problem_free(&rotary);
}

static const struct row {
    int causal;
    int64_t B, Hq, H, Nq, Nk, R, D, segments, window;
    double rotary, scale;
    unsigned extras;
} rows[] = {
    {1, 1, 1, 1, 300, 300, 6, 5, -1, 1, 0, 0, 0},
    {1, 1, 2, 1, 300, 300, 6, 5, -1, 3, 0, 0, 0},
    {1, 2, 2, 2, 300, 300, 6, 5, -1, 64, 10000, 0, TST_MASK},
    {1, 1, 4, 2, 250, 300, 18, 5, -1, 100, 100, 0.3, TST_MASK},
    {1, 1, 2, 2, 300, 250, 18, 33, -1, 97, 10000, 0, 0},
    {1, 1, 2, 2, 300, 300, 8, 8, -1, 1000, 10000, 2, 0},
    {1, 1, 4, 2, 557, 557, 34, 7, 7, 40, 10000, 0, TST_MASK},
    {1, 1, 2, 2, 557, 557, 16, 16, 7, 0, 10000, 0, 0},
    {0, 1, 4, 2, 557, 557, 2, 7, 7, 0, 10000, 0, TST_MASK},
    {0, 2, 2, 1, 70, 70, 200, 70, -1, 0, 10000, 0.05, 0},
    {0, 1, 2, 2, 70, 300, 64, 64, -1, 0, 0, 0.5, TST_MASK},
    {1, 1, 1, 1, 193, 193, 64, 64, -1, 0, 10000, 0, 0},
};
static const int64_t cu[] = {0, 0, 15, 16, 17, 300, 300, 557};

static tst_problem problem_of(const struct row *row, tst_rng *rng) {
    gma_mixer_desc d = describe(row->causal, row->B, row->Hq, row->H, row->Nq, row->Nk, row->R, row->D);
    d.segments = row->segments;
    d.window = row->window;
    d.rotary_base = row->rotary;
    d.scale = row->scale;
    return tst_problem_random(&d, d.segments >= 0 ? cu : NULL, row->extras | TST_BACKWARD, rng);
}

static void options_against_the_definition(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_softmax");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_three, 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tst_problem p = problem_of(&rows[i], &rng);
        static const int rounded[] = {GMA_Q, GMA_K, GMA_V};
        for (int k = 0; k < 3; k++) {
            tst_array *a = &p.in[rounded[k]];
            for (int64_t j = 0; j < a->n; j++)
                a->x[j] = (double)gma_bf16_to_f32(gma_f32_to_bf16((float)a->x[j]));
        }
        for (int64_t j = 0; j < p.up[GMA_O].n; j++)
            p.up[GMA_O].x[j] = (double)gma_bf16_to_f32(gma_f32_to_bf16((float)p.up[GMA_O].x[j]));
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0), first = {0};
        for (int e = 0; e < n; e++) {
            char what[80];
            (void)snprintf(what, sizeof what, "row %zu, %s", i, tst_engine_name(&engines[e]));
            tst_result r = tst_must_run(&p, &engines[e], 0);
            assert_true(tst_compare(&r, &want, TOL_O, TOL_GRAD, what));
            if (engines[e].threads == 1) {
                tst_result_free(&first);
                first = r;
            } else {
                if (!tst_same_bits(&first, &r))
                    tst_fail("%s: other bits than with one thread", what);
                tst_result_free(&r);
            }
            tst_engine bf16 = engines[e];
            bf16.io = GMA_BF16;
            r = tst_must_run(&p, &bf16, 0);
            assert_true(tst_compare(&r, &want, TOL_BF16 + TOL_O, 2 * TOL_BF16_GRAD, what));
            tst_result_free(&r);
        }
        tst_result_free(&first);
        tst_result_free(&want);
        tst_problem_free(&p);
    }
}

/* A row of a result is finite exactly where that of the definition is, and where it is, nearly the same. */
static void same_rows(const tst_array *got, const tst_array *want, double tol, const char *name, const char *what) {
    const int64_t width = got->shape[3];
    double largest = TOL_FLOOR_GRAD;
    for (int64_t i = 0; i < want->n; i++)
        largest = isfinite(want->x[i]) ? fmax(largest, fabs(want->x[i])) : largest;
    for (int64_t row = 0; row < got->n / width; row++) {
        int bad_got = 0, bad_want = 0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            bad_got |= !isfinite(got->x[i]);
            bad_want |= !isfinite(want->x[i]);
        }
        if (bad_got != bad_want)
            tst_fail("%s: %s row %lld is %sfinite", what, name, (long long)row, bad_got ? "not " : "");
        for (int64_t i = row * width; i < (row + 1) * width && !bad_got; i++)
            if (!tol_close(got->x[i], want->x[i], tol * largest))
                tst_fail("%s: %s row %lld: %g, not %g", what, name, (long long)row, got->x[i], want->x[i]);
    }
}

/* A NaN or infinity shows in what it influences by the definition, forward and backward, whatever hides it from others. */
static void bad_values_stay_in_sight(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_softmax");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_three, 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int slot = GMA_Q; slot <= GMA_V + 1; slot++) {
            tst_problem p = problem_of(&rows[i], &rng);
            tst_array *a = slot <= GMA_V ? &p.in[slot] : &p.up[GMA_O];
            for (int times = 0; times < 2; times++)
                a->x[tst_below(&rng, a->n)] = times ? NAN : slot == GMA_V ? INFINITY : NAN;
            tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
            for (int e = 0; e < n; e++) {
                char what[100];
                (void)snprintf(what, sizeof what, "row %zu, bad %s, %s", i, slot <= GMA_V ? gma_slot_name(slot) : "grad_o",
                               tst_engine_name(&engines[e]));
                tst_result r = tst_must_run(&p, &engines[e], 0);
                same_rows(&r.out[GMA_O], &want.out[GMA_O], 10 * TOL_O, "o", what);
                for (int g = GMA_Q; g <= GMA_V; g++)
                    same_rows(&r.grad[g], &want.grad[g], 2 * TOL_GRAD, gma_slot_name(GMA_GRAD(g)), what);
                tst_result_free(&r);
            }
            tst_result_free(&want);
            tst_problem_free(&p);
        }
    }
}

/* Logits of any size, and a row of -inf only: NaN, as 0 / 0 is. */
static void extreme_logits(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_three, 2);
    const gma_mixer_desc d = describe(0, 1, 1, 1, 4, 3, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    TST_SET(&p, GMA_Q, 1e4, -1e4, 1e30, INFINITY);
    TST_SET(&p, GMA_K, -1, -2, -1.5);
    TST_SET(&p, GMA_V, 5, 7, 9);
    for (int e = 0; e < n; e++) {
        tst_result r = tst_must_run(&p, &engines[e], 0);
        const double *o = r.out[GMA_O].x;
        assert_true(o[0] == 5 && o[1] == 7 && o[2] == 5 && isnan(o[3]));
        tst_result_free(&r);
    }
    tst_problem_free(&p);
}

/* ---- decoding -------------------------------------------------------------------------------------------------- */

static void steps_equal_the_sequence(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_softmax");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_three, 2);
    static const int64_t windows[] = {0, 1, 5, 64, 70, 300};
    for (int variant = 0; variant < 24; variant++) {
        gma_mixer_desc d = describe(1, 2, 4, 2, 200, 200, 18, 7);
        d.window = windows[variant % 6];
        d.rotary_base = variant / 6 % 2 ? 10000 : 0;
        d.scale = variant % 3 ? 0 : 0.4;
        tst_problem p = tst_problem_random(&d, NULL, variant / 12 ? TST_MASK : 0, &rng);
        for (int e = 0; e < n; e++) {
            tst_result whole = tst_must_run(&p, &engines[e], 0), steps = tst_steps(&p, &engines[e]);
            assert_true(tst_compare(&steps, &whole, 1e-5, 0, tst_engine_name(&engines[e])));
            tst_result_free(&whole);
            tst_result_free(&steps);
        }
        tst_problem_free(&p);
    }
}

typedef struct stream {
    gma_mixer *m;
    void *state;
} stream;

static stream open_stream(gma_mixer_desc d) {
    stream s = {NULL, NULL};
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_create(&d, &s.m));
    TST_OK(gma_mixer_sizes(s.m, 1, &size));
    assert_true(size.state > 0);
    s.state = aligned_alloc(64, (size.state + 63) / 64 * 64);
    memset(s.state, 0xff, size.state);
    return s;
}

static void close_stream(stream *s) {
    free(s->state);
    gma_mixer_destroy(s->m);
}

enum { R = 4, D = 3, LONG = 90 };

/* One token of every array (1,1,LONG,width). */
static gma_status step(const stream *s, float *q, float *k, float *v, int t, float *o) {
    const gma_arg args[] = {{GMA_Q, gma_tensor_of(q + t * R, GMA_F32, 4, 1, 1, 1, R)},
                            {GMA_K, gma_tensor_of(k + t * R, GMA_F32, 4, 1, 1, 1, R)},
                            {GMA_V, gma_tensor_of(v + t * D, GMA_F32, 4, 1, 1, 1, D)},
                            {GMA_O, gma_tensor_of(o, GMA_F32, 4, 1, 1, 1, D)}};
    return gma_mixer_step(s->m, args, 4, s->state, 1);
}

/* A state made from keys and values continues as one that took them step by step; a full one says so. */
static void filled_state_and_full_state(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_softmax");
    float q[LONG * R], k[LONG * R], v[LONG * D], a[D], b[D];
    for (int i = 0; i < LONG * R; i++) {
        q[i] = (float)tst_normal(&rng);
        k[i] = (float)tst_normal(&rng);
        v[i * D / R] = (float)tst_normal(&rng);
    }
    for (int variant = 0; variant < 4; variant++) {
        const int filled = variant % 2 ? 80 : 20;
        gma_mixer_desc d = describe(1, 1, 1, 1, 1, filled, R, D);
        d.rotary_base = 10000;
        d.window = variant < 2 ? 33 : 0;
        d.cache_len = variant < 2 ? 0 : LONG;
        stream one = open_stream(d), two = open_stream(d);
        const gma_arg keys[] = {{GMA_K, gma_tensor_of(k, GMA_F32, 4, 1, 1, filled, R)},
                                {GMA_V, gma_tensor_of(v, GMA_F32, 4, 1, 1, filled, D)}};
        TST_OK(gma_mixer_state_init(one.m, keys, 2, one.state));
        TST_OK(gma_mixer_state_init(two.m, NULL, 0, two.state));
        for (int t = 0; t < LONG; t++) {
            TST_OK(step(&two, q, k, v, t, b));
            if (t < filled)
                continue;
            TST_OK(step(&one, q, k, v, t, a));
            assert_memory_equal(a, b, sizeof a);
        }
        if (variant < 2)
            TST_OK(step(&one, q, k, v, 0, a)); /* a ring never fills */
        else
            TST_ERROR(step(&one, q, k, v, 0, a), GMA_ERR_UNSUPPORTED, "cache_len");
        TST_ERROR(gma_mixer_state_init(one.m, keys, 1, one.state), GMA_ERR_INVALID_ARGUMENT, "v is missing");
        TST_ERROR(gma_mixer_state_export(two.m, two.state, NULL, 0), GMA_ERR_UNSUPPORTED, "softmax");
        close_stream(&one);
        close_stream(&two);
    }
    gma_mixer_desc d = describe(1, 1, 1, 1, 1, 20, R, D);
    d.cache_len = 10;
    stream s = open_stream(d);
    const gma_arg keys[] = {{GMA_K, gma_tensor_of(k, GMA_F32, 4, 1, 1, 20, R)},
                            {GMA_V, gma_tensor_of(v, GMA_F32, 4, 1, 1, 20, D)}};
    TST_ERROR(gma_mixer_state_init(s.m, keys, 2, s.state), GMA_ERR_INVALID_ARGUMENT, "cache_len");
    close_stream(&s);
    d.cache_len = 0;
    TST_OK(gma_mixer_create(&d, &s.m));
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(s.m, 1, &size));
    assert_true(size.state == 0);
    static _Alignas(64) char memory[64];
    TST_ERROR(gma_mixer_state_init(s.m, NULL, 0, memory), GMA_ERR_UNSUPPORTED, "cache_len");
    gma_mixer_destroy(s.m);
}

/* ---- the form that stores all scores --------------------------------------------------------------------------- */

static void stored_scores(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_softmax");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_three, 2);
    static const int64_t lengths[][2] = {{1, 1}, {70, 70}, {130, 130}, {40, 200}, {200, 40}, {0, 5}, {5, 0}};
    for (int i = 0; i < 14; i++) {
        gma_mixer_desc d = describe(i % 2, 2, 3, 3, lengths[i / 2][0], lengths[i / 2][1], 17, 9);
        d.store_scores = 1;
        tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
        for (int e = 0; e < n; e++) {
            char what[80];
            (void)snprintf(what, sizeof what, "stored %d, %s", i, tst_engine_name(&engines[e]));
            tst_result r = tst_must_run(&p, &engines[e], 0);
            assert_true(tst_compare(&r, &want, TOL_O, TOL_GRAD, what));
            tst_result_free(&r);
        }
        tst_result_free(&want);
        tst_problem_free(&p);
    }
}

/* Memory: with stored scores it grows with the square of N; tiled, the scratch of a forward does not grow at all. */
static void memory_grows_as_it_should(void **state) {
    (void)state;
    gma_mixer_size size[2][2];
    for (int stored = 0; stored < 2; stored++) {
        for (int i = 0; i < 2; i++) {
            gma_mixer_desc d = describe(1, 1, 8, 8, 2048 << i, 2048 << i, 64, 64);
            gma_mixer *m = NULL;
            d.store_scores = stored;
            TST_OK(gma_mixer_create(&d, &m));
            size[stored][i] = (gma_mixer_size){.struct_size = sizeof(gma_mixer_size)};
            TST_OK(gma_mixer_sizes(m, 2, &size[stored][i]));
            gma_mixer_destroy(m);
        }
    }
    assert_true(size[0][0].forward_scratch == size[0][1].forward_scratch);
    assert_true(size[0][1].saved == 2 * size[0][0].saved && size[0][0].saved == 8 * 2048 * sizeof(float));
    assert_true(size[0][1].backward_scratch <= 2 * size[0][0].backward_scratch);
    assert_true(size[1][1].saved == 4 * size[1][0].saved && size[1][0].saved == 8ul * 2048 * 2048 * sizeof(float));
}

/* ---- wrong use ------------------------------------------------------------------------------------------------- */

static void refused(gma_mixer_desc d, const char *option) {
    gma_mixer *m = NULL;
    TST_ERROR(gma_mixer_create(&d, &m), GMA_ERR_INVALID_ARGUMENT, option);
    TST_ERROR(gma_mixer_create(&d, &m), GMA_ERR_INVALID_ARGUMENT, "softmax");
}

static void wrong_use_is_named(void **state) {
    (void)state;
    const gma_mixer_desc good = describe(1, 1, 4, 2, 8, 8, 4, 4);
    gma_mixer_desc d = good;
    d.causal = 0;
    d.window = 4;
    refused(d, "window");
    d = good;
    d.routing_dim = 5;
    d.rotary_base = 10000;
    refused(d, "rotary_base");
    d.routing_dim = 4;
    d.rotary_base = 1;
    refused(d, "rotary_base");
    d.rotary_base = 10000;
    d.causal = 0;
    d.q_len = 7;
    refused(d, "rotary_base");
    d = good;
    d.window = d.cache_len = 4;
    refused(d, "cache_len");
    d = good;
    d.causal = 0;
    d.cache_len = 4;
    refused(d, "cache_len");
    d = good;
    d.components = 3;
    refused(d, "components");
    d = good;
    d.store_scores = 1;
    refused(d, "store_scores"); /* grouped heads */
    d.kv_heads = 4;
    d.window = 2;
    refused(d, "store_scores");
    d.window = 0;
    d.q_len = d.k_len = (int64_t)1 << 24;
    refused(d, "store_scores"); /* 2^48 scores */

    /* tensors of other mixers */
    float x[4 * 8 * 4] = {0};
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&good, &m));
    static const struct { int slot, rank; const char *name; } foreign[] = {
        {GMA_LOG_DECAY, 3, "log_decay"}, {GMA_LOGIT_SCALE, 1, "logit_scale"}, {GMA_STATE_S, 4, "state_S"}};
    for (int i = 0; i < 3; i++) {
        const gma_arg arg = {foreign[i].slot, gma_tensor_of(x, GMA_F32, foreign[i].rank, 1, 2, 8, 4)};
        TST_ERROR(gma_mixer_naive_forward(m, &arg, 1), GMA_ERR_INVALID_ARGUMENT, foreign[i].name);
        TST_ERROR(gma_mixer_naive_forward(m, &arg, 1), GMA_ERR_INVALID_ARGUMENT, "softmax");
    }
    gma_mixer_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_values),
        cmocka_unit_test(options_against_the_definition),
        cmocka_unit_test(bad_values_stay_in_sight),
        cmocka_unit_test(extreme_logits),
        cmocka_unit_test(steps_equal_the_sequence),
        cmocka_unit_test(filled_state_and_full_state),
        cmocka_unit_test(stored_scores),
        cmocka_unit_test(memory_grows_as_it_should),
        cmocka_unit_test(wrong_use_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
