/* The naive backward against central differences of the naive forward, in double: every input, parameter, state, decay
 * and scale, under a loss <o, up_o> + <out_S, up_S> + <out_Z, up_Z> with random weights. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static double weighted_sum(const tst_array *a, const tst_array *weight) {
    double sum = 0;
    for (int64_t i = 0; weight->x && i < a->n; i++)
        sum += a->x[i] * weight->x[i];
    return sum;
}

static double loss(tst_problem *p) {
    const int backward = p->backward;
    p->backward = 0;
    tst_result r = tst_must_run(p, &TST_NAIVE, 0);
    p->backward = backward;
    double sum = 0;
    for (int slot = 0; slot < TST_SLOTS; slot++)
        sum += weighted_sum(&r.out[slot], &p->up[slot]);
    tst_result_free(&r);
    return sum;
}

/* Fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h. Its error, h^4 f''''' / 30, and the rounding eps f / h
 * are both near 1e-11 of f at h = 2e-3, far below TOL_FD. */
static double difference(tst_problem *p, double *x) {
    const double at = *x, h = 1e-3 * (1 + fabs(at));
    double f[4];
    static const double steps[4] = {1, -1, 2, -2};
    for (int i = 0; i < 4; i++) {
        *x = at + steps[i] * h;
        f[i] = loss(p);
    }
    *x = at;
    return (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
}

/* 1 when every gradient agrees; `break_slot` disturbs that one by 1e-5 of its largest entry first. */
static int agrees(tst_problem *p, int break_slot, const char *what) {
    tst_result r = tst_must_run(p, &TST_NAIVE, 0);
    int ok = 1, checked = 0;
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        tst_array *grad = &r.grad[slot];
        if (!grad->x)
            continue;
        checked++;
        tst_array numeric = tst_array_like(grad);
        for (int64_t i = 0; i < grad->n; i++)
            numeric.x[i] = difference(p, &p->in[slot].x[i]);
        if (slot == break_slot)
            grad->x[grad->n / 2] += 1e-5 * (1 + fabs(grad->x[grad->n / 2]));
        const double error = tol_error(grad->x, numeric.x, grad->n, TOL_FLOOR_GRAD);
        if (!(error <= TOL_FD)) {
            printf("%s: grad_%s: error %.3g, limit %.3g\n", what, gma_slot_name(slot), error, TOL_FD);
            ok = 0;
        }
        tst_array_free(&numeric);
    }
    tst_result_free(&r);
    return ok && checked >= (tst_mixer == GMA_MIXER_GMA ? 6 : 3);
}

static const struct {
    const char *name;
    int causal;
    int64_t B, Hq, H, Nq, Nk, K, R, D, segments;
    unsigned extras;
} rows[] = {
    {"bidirectional", 0, 2, 2, 2, 5, 5, 3, 2, 2, -1, 0},
    {"causal", 1, 2, 2, 2, 6, 6, 3, 2, 2, -1, 0},
    {"cross", 0, 1, 2, 2, 3, 7, 3, 2, 2, -1, TST_SCALE | TST_GRAD_STATE},
    {"causal, more keys", 1, 1, 1, 1, 3, 7, 3, 2, 2, -1, TST_DECAY | TST_GRAD_STATE},
    {"causal, more queries", 1, 1, 1, 1, 7, 3, 3, 2, 2, -1, TST_STATE | TST_GRAD_STATE},
    {"grouped heads", 1, 1, 6, 2, 4, 4, 3, 2, 2, -1, TST_DECAY | TST_SCALE | TST_GRAD_STATE},
    {"grouped heads, bidirectional", 0, 1, 4, 2, 4, 5, 3, 2, 2, -1, TST_SCALE | TST_STATE | TST_GRAD_STATE},
    {"masked", 1, 2, 2, 2, 6, 6, 3, 2, 2, -1, TST_MASK | TST_DECAY},
    {"masked, bidirectional", 0, 2, 2, 2, 4, 6, 3, 2, 2, -1, TST_MASK | TST_GRAD_STATE},
    {"per head", 0, 2, 4, 2, 4, 6, 3, 2, 2, -1, TST_MASK | TST_PER_HEAD},
    {"state and everything", 1, 2, 4, 2, 4, 6, 3, 2, 3, -1,
     TST_MASK | TST_STATE | TST_DECAY | TST_SCALE | TST_GRAD_STATE},
    {"packed", 0, 1, 2, 2, 7, 7, 3, 2, 2, 4, 0},
    {"packed, causal, everything", 1, 1, 4, 2, 7, 7, 3, 2, 2, 4,
     TST_MASK | TST_STATE | TST_DECAY | TST_SCALE | TST_GRAD_STATE},
    {"one component", 1, 1, 1, 1, 4, 4, 1, 1, 1, -1, TST_SCALE | TST_DECAY | TST_GRAD_STATE},
    {"packed, causal, states", 1, 1, 2, 2, 7, 7, 3, 2, 2, 4, TST_STATE | TST_GRAD_STATE},
    {"long enough for blocks", 1, 1, 1, 1, 21, 21, 2, 1, 1, -1, TST_DECAY | TST_STATE | TST_GRAD_STATE},
};

enum { EVERYTHING = 10 }; /* the row "state and everything" */

static gma_mixer_desc desc_of(size_t row) {
    gma_mixer_desc d = tst_desc(rows[row].causal, rows[row].B, rows[row].Hq, rows[row].H, rows[row].Nq, rows[row].Nk,
                                rows[row].K, rows[row].R, rows[row].D);
    d.segments = rows[row].segments;
    return d;
}

static tst_problem problem_of(size_t row, tst_rng *rng) {
    static const int64_t cu[] = {0, 3, 3, 6, 7};
    const gma_mixer_desc d = desc_of(row);
    tst_problem p = tst_problem_random(&d, d.segments >= 0 ? cu : NULL, rows[row].extras | TST_BACKWARD, rng);
    /* The slope of elu has a kink at 0, where a difference is not what it should be: stay away from it. */
    for (int slot = GMA_Q; slot <= GMA_K && tst_mixer == GMA_MIXER_LINEAR; slot++) {
        for (int64_t i = 0; i < p.in[slot].n; i++)
            p.in[slot].x[i] += p.in[slot].x[i] < 0 ? -0.03125 : 0.03125;
    }
    return p;
}

static void differences_agree(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_gradient_naive");
    int ok = 1, taken = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const gma_mixer_desc d = desc_of(i);
        if (!tst_fits(&d))
            continue;
        taken++;
        tst_problem p = problem_of(i, &rng);
        ok &= agrees(&p, 0, rows[i].name);
        tst_problem_free(&p);
    }
    assert_true(ok);
    assert_true(taken >= 4);
}

/* A removed component, and a past that is forgotten in the middle: differences of what is left. */
static void removed_and_forgotten(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_gradient_naive");
    tst_problem p = problem_of(EVERYTHING, &rng);
    p.in[GMA_LOG_DECAY].x[2] = -INFINITY;
    if (p.in[GMA_ALPHA].x)
        p.in[GMA_ALPHA].x[1] = -INFINITY;
    tst_result r = tst_must_run(&p, &TST_NAIVE, 0);
    assert_true(r.grad[GMA_LOG_DECAY].x[2] == 0);
    assert_true(!p.in[GMA_ALPHA].x || r.grad[GMA_ALPHA].x[1] == 0);
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        for (int64_t i = 0; r.grad[slot].x && i < r.grad[slot].n; i++) {
            assert_true(isfinite(r.grad[slot].x[i]));
            if (isinf(p.in[slot].x[i]))
                continue;
            const double numeric = difference(&p, &p.in[slot].x[i]);
            TST_CLOSE(r.grad[slot].x[i], numeric, TOL_FD * (1 + fabs(numeric)));
        }
    }
    tst_result_free(&r);
    tst_problem_free(&p);
}

/* The test itself: each gradient, slightly wrong, must be refused. */
static void wrong_gradient_is_refused(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_gradient_naive");
    size_t row = EVERYTHING;
    for (gma_mixer_desc d = desc_of(row); !tst_fits(&d); d = desc_of(row))
        row = (row + 1) % (sizeof rows / sizeof *rows);
    tst_problem p = problem_of(row, &rng);
    printf("the lines about errors that follow are expected:\n");
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const gma_slot_info *info = p.in[slot].x ? tst_slot_info(&p.desc, slot) : NULL;
        if (info && info->has_grad)
            assert_false(agrees(&p, slot, "broken on purpose"));
    }
    tst_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_agree),
        cmocka_unit_test(wrong_gradient_is_refused),
    };
    const struct CMUnitTest linear[] = {cmocka_unit_test(removed_and_forgotten)};
    return tst_for_every_mixer(tests, sizeof tests / sizeof *tests) +
           tst_for_linear_mixers(linear, sizeof linear / sizeof *linear);
}
