/* Tier amx (on a CPU without it: emulated, make test-emulated): with q, k, v stored as bf16 it multiplies in bf16, within
 * the errors that gma/base.h and docs/performance.md state; in every other case it gives the bits of avx512. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

#ifdef GMAI_HAVE_amx
void tst_tile_product(float *c, const uint16_t *a, const uint32_t *b);
#endif

static int no_tiles(void) {
    if (gma_isa_supported(GMA_ISA_AMX))
        return 0;
    printf("tier amx is not supported by this CPU, or not in this build\n");
    return 1;
}
#define NEEDS_TILES()   \
    do {                \
        if (no_tiles()) \
            skip();     \
    } while (0)

static const tst_engine amx = {0, GMA_ISA_AMX, 1, GMA_BF16}, avx512 = {0, GMA_ISA_AVX512, 1, GMA_BF16};

static double bf16(double x) { return (double)gma_bf16_to_f32(gma_f32_to_bf16((float)x)); }

static void round_inputs(tst_problem *p) {
    static const int slots[] = {GMA_Q, GMA_K, GMA_V};
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < p->in[slots[i]].n; j++)
            p->in[slots[i]].x[j] = bf16(p->in[slots[i]].x[j]);
    }
    for (int64_t j = 0; p->up[GMA_O].x && j < p->up[GMA_O].n; j++)
        p->up[GMA_O].x[j] = bf16(p->up[GMA_O].x[j]);
}

/* One product of tiles against the same sum in double, and its order: where the even and the odd members are summed apart,
 * 2^24 + 1 - 2^24 is 1 across members and 0 within one. NaN stays where it is. */
static void one_product(void **state) {
    (void)state;
    NEEDS_TILES();
#ifdef GMAI_HAVE_amx
    static uint16_t a[16][32];
    static uint32_t b[16][16];
    static float c[16][16];
    tst_rng rng = tst_rng_start("test_conformance_tiles");
    double A[16][32], B[32][16], start[16][16];
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 32; k++)
            A[m][k] = bf16(2 * tst_uniform(&rng) - 1), a[m][k] = gma_f32_to_bf16((float)A[m][k]);
    for (int k = 0; k < 32; k++)
        for (int n = 0; n < 16; n++) {
            B[k][n] = bf16(2 * tst_uniform(&rng) - 1);
            b[k / 2][n] |= (uint32_t)gma_f32_to_bf16((float)B[k][n]) << (k % 2 ? 16 : 0);
        }
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            c[m][n] = (float)(start[m][n] = (double)(float)tst_uniform(&rng));
    tst_tile_product(&c[0][0], &a[0][0], &b[0][0]);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            double sum = start[m][n];
            for (int k = 0; k < 32; k++)
                sum += A[m][k] * B[k][n];
            TST_CLOSE((double)c[m][n], sum, 4e-6);
        }

    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    memset(c, 0, sizeof c);
    const uint16_t one = gma_f32_to_bf16(1), big = gma_f32_to_bf16(16777216), minus = gma_f32_to_bf16(-16777216);
    a[0][0] = a[0][2] = a[0][4] = one; /* even members: ((2^24 + 1) - 2^24) = 0 */
    b[0][0] = big, b[1][0] = one, b[2][0] = minus;
    a[1][0] = a[1][4] = one; /* 1 in the odd member: (2^24 - 2^24) + 1 = 1 */
    a[1][3] = one;
    b[1][0] |= (uint32_t)one << 16;
    b[3][5] = gma_f32_to_bf16(NAN);
    a[2][6] = one;
    tst_tile_product(&c[0][0], &a[0][0], &b[0][0]);
    assert_true(c[0][0] == 0 && c[1][0] == 1);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            assert_true(isnan(c[m][n]) == (n == 5));
#endif
}

static double error_of(const tst_array *got, const tst_array *want) { return tol_error(got->x, want->x, want->n, 1e-3); }

/* Shapes around the tiles: forward and backward within the stated errors, the largest ones printed; and not the bits of
 * avx512, which would mean that no tile was used. */
static void errors_are_as_stated(void **state) {
    (void)state;
    NEEDS_TILES();
    static const struct {
        int causal;
        int64_t Hq, H, Nq, Nk, K, R, D;
        unsigned extras;
    } rows[] = {
        {1, 2, 2, 300, 300, 128, 64, 64, 0},       {0, 2, 2, 300, 300, 128, 64, 64, TST_MASK},
        {1, 2, 1, 200, 230, 33, 17, 19, TST_DECAY | TST_STATE | TST_SCALE},
        {1, 1, 1, 65, 65, 15, 31, 80, TST_DECAY},  {1, 1, 1, 1000, 1000, 512, 32, 128, 0},
        {1, 1, 1, 47, 47, 257, 80, 65, TST_MASK}, {0, 2, 1, 17, 90, 16, 1, 1, TST_STATE},
        {1, 1, 1, 100, 100, 20, 16, 0, 0},
    };
    double worst_o = 0, worst_s = 0, worst_grad = 0;
    tst_rng rng = tst_rng_start("test_conformance_tiles");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const gma_mixer_desc d =
            tst_desc(rows[i].causal, 1, rows[i].Hq, rows[i].H, rows[i].Nq, rows[i].Nk, rows[i].K, rows[i].R, rows[i].D);
        tst_problem p = tst_problem_random(&d, NULL, rows[i].extras | TST_BACKWARD, &rng);
        p.out_state = 1;
        round_inputs(&p);
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0), got = tst_must_run(&p, &amx, 0),
                   other = tst_must_run(&p, &avx512, 0);
        worst_o = fmax(worst_o, error_of(&got.out[GMA_O], &want.out[GMA_O]));
        worst_s = fmax(worst_s, error_of(&got.out[GMA_OUT_S], &want.out[GMA_OUT_S]));
        worst_s = fmax(worst_s, error_of(&got.out[GMA_OUT_Z], &want.out[GMA_OUT_Z]));
        for (int slot = 0; slot < TST_SLOTS; slot++) {
            if (want.grad[slot].x && slot != GMA_ALPHA && slot != GMA_LOGIT_SCALE)
                worst_grad = fmax(worst_grad, tol_error(got.grad[slot].x, want.grad[slot].x, want.grad[slot].n, 0.1));
        }
        const int slot_of_state = rows[i].D > 0 ? GMA_OUT_S : GMA_OUT_Z; /* tiles did take part */
        assert_true(memcmp(got.out[slot_of_state].x, other.out[slot_of_state].x,
                           (size_t)got.out[slot_of_state].n * sizeof(double)) != 0);
        tst_result_free(&want);
        tst_result_free(&got);
        tst_result_free(&other);
        tst_problem_free(&p);
    }
    printf("largest errors, relative to the largest entry: o %.2g, states %.2g, gradients %.2g\n", worst_o, worst_s,
           worst_grad);
    assert_true(worst_o <= TOL_TILES_O && worst_s <= TOL_TILES_STATE && worst_grad <= TOL_TILES_GRAD);
}

/* Far from 0 the centre is subtracted, and tokens are two bf16 terms then. Still on tiles: not the bits of avx512. */
static void with_a_centre(void **state) {
    (void)state;
    NEEDS_TILES();
    tst_rng rng = tst_rng_start("test_conformance_tiles");
    const gma_mixer_desc d = tst_desc(1, 1, 2, 1, 150, 150, 40, 35, 20);
    tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
    static const int slots[] = {GMA_Q, GMA_K, GMA_MU};
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < p.in[slots[i]].n; j++)
            p.in[slots[i]].x[j] += 8;
    for (int64_t j = 0; j < p.in[GMA_OMEGA].n; j++) /* narrow, so that the second terms count */
        p.in[GMA_OMEGA].x[j] = -1.5;
    round_inputs(&p);
    tst_result want = tst_must_run(&p, &TST_NAIVE, 0), got = tst_must_run(&p, &amx, 0), other = tst_must_run(&p, &avx512, 0);
    const double o = error_of(&got.out[GMA_O], &want.out[GMA_O]);
    double grad = 0;
    for (int slot = 0; slot < TST_SLOTS; slot++)
        if (want.grad[slot].x && slot != GMA_ALPHA)
            grad = fmax(grad, tol_error(got.grad[slot].x, want.grad[slot].x, want.grad[slot].n, 0.1));
    printf("with a centre: o %.2g, gradients %.2g\n", o, grad);
    assert_true(o <= TOL_TILES_O && grad <= TOL_TILES_GRAD);
    assert_true(memcmp(got.grad[GMA_MU].x, other.grad[GMA_MU].x, (size_t)got.grad[GMA_MU].n * sizeof(double)) != 0);
    tst_result_free(&want);
    tst_result_free(&got);
    tst_result_free(&other);
    tst_problem_free(&p);
}

/* f32 storage: the bits of avx512, forward, backward and step by step. One of q, k, v in f32 is tested with the rest. */
static void f32_has_the_bits_of_avx512(void **state) {
    (void)state;
    NEEDS_TILES();
    tst_rng rng = tst_rng_start("test_conformance_tiles");
    const gma_mixer_desc d = tst_desc(1, 1, 2, 1, 150, 150, 40, 24, 20);
    tst_problem p = tst_problem_random(&d, NULL, TST_DECAY | TST_SCALE | TST_BACKWARD, &rng);
    tst_engine a = amx, b = avx512;
    a.io = b.io = GMA_F32;
    tst_result x = tst_must_run(&p, &a, 0), y = tst_must_run(&p, &b, 0);
    assert_true(tst_same_bits(&x, &y));
    tst_result_free(&x);
    tst_result_free(&y);
    x = tst_steps(&p, &a);
    y = tst_steps(&p, &b);
    assert_true(tst_same_bits(&x, &y));
    tst_result_free(&x);
    tst_result_free(&y);
    tst_problem_free(&p);
}

/* Where the limit on |x - c|^2 / s is not kept the logits come from the kernel in f32: a far token, a narrow component.
 * Multiplied out in bf16 they would be off by more than 1. Tokens of other chunks do not matter. */
static void beyond_the_limit(void **state) {
    (void)state;
    NEEDS_TILES();
    tst_rng rng = tst_rng_start("test_conformance_tiles");
    for (int kind = 0; kind < 2; kind++) {
        const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 130, 130, 20, 16, 16);
        tst_problem p = tst_problem_random(&d, NULL, 0, &rng);
        if (kind == 0) {
            for (int64_t i = 0; i < 16; i++)
                p.in[GMA_Q].x[70 * 16 + i] = p.in[GMA_K].x[70 * 16 + i] = 300 + (double)i;
        } else {
            for (int64_t i = 0; i < p.in[GMA_OMEGA].n; i++)
                p.in[GMA_OMEGA].x[i] = -9;
        }
        round_inputs(&p);
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0), got = tst_must_run(&p, &amx, 0);
        const double error = error_of(&got.out[GMA_O], &want.out[GMA_O]);
        if (!(error <= TOL_TILES_O))
            tst_fail("kind %d: error %.3g", kind, error);
        tst_result_free(&want);
        tst_result_free(&got);
        tst_problem_free(&p);
    }
}

/* The same bits for every number of threads, also where a sequence is shared out; and NaN shows only where it has
 * influence. */
static void threads_and_nan(void **state) {
    (void)state;
    NEEDS_TILES();
    tst_rng rng = tst_rng_start("test_conformance_tiles");
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1500, 1500, 24, 12, 10);
    tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
    p.in[GMA_V].x[700 * 10 + 3] = NAN;
    p.in[GMA_Q].x[900 * 12] = INFINITY;
    tst_engine three = amx;
    three.threads = 3;
    tst_result x = tst_must_run(&p, &amx, 0), y = tst_must_run(&p, &three, 0);
    assert_true(tst_same_bits(&x, &y));
    for (int64_t t = 0; t < 1500; t++)
        for (int64_t i = 0; i < 10; i++)
            assert_true(isnan(x.out[GMA_O].x[t * 10 + i]) == (t == 900 || (t >= 700 && i == 3)));
    tst_result_free(&x);
    tst_result_free(&y);
    tst_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_product),      cmocka_unit_test(errors_are_as_stated),
        cmocka_unit_test(beyond_the_limit), cmocka_unit_test(f32_has_the_bits_of_avx512),
        cmocka_unit_test(threads_and_nan),  cmocka_unit_test(with_a_centre),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
