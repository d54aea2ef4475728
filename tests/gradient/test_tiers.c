/* The fast backward (and forward) of every tier against the naive one, on random data in every mode: sizes around the
 * vectors, tiles, chunks and segments, every optional tensor, f32 and bf16 storage. */
#include <math.h>
#include <stdio.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int threads[] = {1, 3};

static void row_name(char *what, size_t size, const tst_engine *e, const gma_mixer_desc *d, unsigned extras) {
    (void)snprintf(what, size, "%s causal=%d B=%d Hq=%d H=%d Nq=%d Nk=%d K=%d R=%d D=%d G=%d extras=%u",
                   tst_engine_name(e), d->causal, (int)d->batch, (int)d->heads, (int)d->kv_heads, (int)d->q_len,
                   (int)d->k_len, (int)d->components, (int)d->routing_dim, (int)d->value_dim, (int)d->segments, extras);
}

static int agrees(const tst_problem *p, unsigned extras) {
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, threads, 2);
    tst_result want = tst_must_run(p, &TST_NAIVE, 0);
    int ok = 1;
    for (int e = 0; e < n; e++) {
        char what[200];
        row_name(what, sizeof what, &engines[e], &p->desc, extras);
        tst_result r = tst_must_run(p, &engines[e], 0);
        ok &= tst_compare_to_naive(p, &r, &want, TOL_O, TOL_GRAD, what);
        tst_result_free(&r);
    }
    tst_result_free(&want);
    return ok;
}

/* Fixed rows: the sizes at which code paths change. */
static void edges(void **state) {
    (void)state;
    static const int64_t cu[] = {0, 0, 15, 16, 17, 300, 300, 557};
    static const struct {
        int causal;
        int64_t B, Hq, H, Nq, Nk, K, R, D, segments;
        unsigned extras;
    } rows[] = {
        {1, 1, 1, 1, 257, 257, 8, 4, 4, -1, 0},
        {1, 1, 1, 1, 513, 513, 8, 4, 4, -1, TST_DECAY | TST_STATE | TST_GRAD_STATE},
        {1, 1, 2, 1, 1100, 1100, 6, 3, 2, -1, TST_DECAY | TST_SCALE | TST_GRAD_STATE},
        {0, 1, 2, 1, 300, 1100, 6, 3, 2, -1, TST_MASK | TST_STATE | TST_GRAD_STATE},
        {1, 1, 2, 2, 1100, 300, 6, 3, 2, -1, TST_STATE | TST_GRAD_STATE},
        {1, 1, 2, 2, 300, 1100, 6, 3, 2, -1, TST_MASK | TST_DECAY | TST_STATE | TST_GRAD_STATE},
        {1, 1, 4, 2, 557, 557, 6, 3, 2, 7, TST_MASK | TST_DECAY | TST_SCALE | TST_STATE | TST_GRAD_STATE},
        {0, 1, 4, 2, 557, 557, 6, 3, 2, 7, TST_MASK | TST_SCALE | TST_STATE | TST_GRAD_STATE},
        {1, 40, 2, 2, 33, 33, 5, 3, 2, -1, TST_MASK | TST_DECAY},
        {1, 2, 6, 2, 65, 65, 129, 17, 33, -1, TST_SCALE},
        {0, 2, 3, 3, 64, 64, 64, 64, 64, -1, 0},
        {1, 1, 2, 2, 128, 128, 128, 64, 64, -1, TST_DECAY},
        {1, 1, 1, 1, 70, 70, 257, 8, 8, -1, TST_DECAY},
        {1, 1, 1, 1, 40, 40, 16, 16, 257, -1, 0},
        {1, 1, 1, 1, 1, 1, 1, 1, 1, -1, TST_STATE | TST_DECAY | TST_GRAD_STATE},
    };
    tst_rng rng = tst_rng_start("test_gradient_tiers");
    int ok = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gma_mixer_desc d = tst_desc(rows[i].causal, rows[i].B, rows[i].Hq, rows[i].H, rows[i].Nq, rows[i].Nk, rows[i].K,
                                    rows[i].R, rows[i].D);
        d.segments = rows[i].segments;
        tst_problem p = tst_problem_random(&d, d.segments >= 0 ? cu : NULL, rows[i].extras | TST_BACKWARD, &rng);
        ok &= agrees(&p, rows[i].extras);
        tst_problem_free(&p);
    }
    assert_true(ok);
}

/* Decays of every strength: none, weak, strong, -inf in places, and whole chunks of -inf. */
static void decays(void **state) {
    (void)state;
    TST_NEEDS(GMA_LOG_DECAY);
    tst_rng rng = tst_rng_start("test_gradient_tiers");
    int ok = 1;
    for (int kind = 0; kind < 6; kind++) {
        const gma_mixer_desc d = tst_desc(1, 2, 2, 1, 150, 170, 7, 5, 6);
        tst_problem p = tst_problem_random(&d, NULL, TST_DECAY | TST_STATE | TST_MASK | TST_GRAD_STATE, &rng);
        double *decay = p.in[GMA_LOG_DECAY].x;
        for (int64_t i = 0; i < p.in[GMA_LOG_DECAY].n; i++) {
            const int64_t t = i % 170;
            switch (kind) {
            case 0:
                decay[i] = 0;
                break;
            case 1:
                decay[i] *= 0.0009765625;
                break;
            case 2:
                decay[i] *= 64;
                break;
            case 3:
                decay[i] = tst_uniform(&rng) < 0.1 ? -INFINITY : decay[i];
                break;
            case 4:
                decay[i] = t >= 64 && t < 96 ? -INFINITY : decay[i];
                break;
            default:
                decay[i] = t == 169 || t == 0 ? -INFINITY : -2000 * (double)(t % 50 == 7);
                break;
            }
        }
        const int this_ok = agrees(&p, 0);
        if (!this_ok)
            printf("... with decay of kind %d\n", kind);
        ok &= this_ok;
        tst_problem_free(&p);
    }
    assert_true(ok);
}

static int64_t pick(tst_rng *rng, const int64_t *list, int64_t n) { return list[tst_below(rng, n)]; }

/* Not one or two keys: then o hardly depends on the responsibilities, and their gradient is what is left of cancelling
 * terms. `edges` has those lengths. */
static void random_shapes(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 260, 300};
    static const int64_t widths[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 33}, comps[] = {1, 2, 3, 4, 5, 8, 15, 17, 33};
    tst_rng rng = tst_rng_start("test_gradient_tiers");
    int ok = 1;
    for (int round = 0; round < 60; round++) {
        const int causal = (int)tst_below(&rng, 2), packed = tst_below(&rng, 4) == 0;
        const int64_t H = 1 + tst_below(&rng, 2), group = 1 + tst_below(&rng, 3), Nk = pick(&rng, lengths, 13);
        const int64_t Nq = packed || tst_below(&rng, 2) ? Nk : pick(&rng, lengths, 13);
        gma_mixer_desc d = tst_desc(causal, packed ? 1 : 1 + tst_below(&rng, 2), H * group, H, Nq, Nk,
                                    pick(&rng, comps, 9), pick(&rng, widths, 10), pick(&rng, widths, 10));
        int64_t cu[5] = {0};
        if (packed) {
            d.segments = 4;
            for (int g = 1; g < 4; g++)
                cu[g] = cu[g - 1] + tst_below(&rng, Nk - cu[g - 1] + 1);
            cu[4] = Nk;
        }
        unsigned extras = (unsigned)tst_below(&rng, 32);
        if (!causal || Nq > Nk)
            extras &= ~(unsigned)TST_DECAY;
        tst_problem p = tst_problem_random(&d, packed ? cu : NULL, extras | TST_BACKWARD, &rng);
        ok &= agrees(&p, extras);
        tst_problem_free(&p);
    }
    assert_true(ok);
}

/* bf16 storage, against the naive version on the rounded inputs: half a bf16 unit of the largest entry more. Backward
 * reads o as it was stored, so what goes through delta = dO . o carries that rounding too. */
static void bf16(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_gradient_tiers");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, threads, 2);
    int ok = 1;
    for (int causal = 0; causal < 2; causal++) {
        const gma_mixer_desc d = tst_desc(causal, 2, 4, 2, 150, 150, 33, 17, 19);
        tst_problem p =
            tst_problem_random(&d, NULL, TST_MASK | TST_SCALE | (causal ? TST_DECAY : 0) | TST_GRAD_STATE, &rng);
        tst_array *rounded[] = {&p.in[GMA_Q], &p.in[GMA_K], &p.in[GMA_V], &p.up[GMA_O]};
        for (int i = 0; i < 4; i++) {
            for (int64_t j = 0; j < rounded[i]->n; j++)
                rounded[i]->x[j] = (double)gma_bf16_to_f32(gma_f32_to_bf16((float)rounded[i]->x[j]));
        }
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
        for (int e = 0; e < n; e++) {
            tst_engine engine = engines[e];
            engine.io = GMA_BF16;
            tst_result r = tst_must_run(&p, &engine, 0);
            const int tiles = tst_in_bf16(&engine);
            ok &= tst_compare_to_naive(&p, &r, &want, tiles ? TOL_TILES_O : TOL_BF16 + TOL_O,
                                       tiles ? TOL_TILES_GRAD : TOL_BF16_GRAD, tst_engine_name(&engine));
            tst_result_free(&r);
        }
        tst_result_free(&want);
        tst_problem_free(&p);
    }
    assert_true(ok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges),
        cmocka_unit_test(decays),
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(bf16),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
