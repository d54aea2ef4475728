/* Cases D: packed sequences never mix. */
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

/* D1 an empty sequence in the middle; D3 the same with a mask of ones, which must not override the borders. */
static void empty_sequence_and_full_mask(void **state) {
    (void)state;
    static const int64_t cu[] = {0, 2, 2, 5};
    static const double want[2][5] = {{1.5, 1.5, 4, 4, 4}, {1, 1.5, 3, 3.5, 4}};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int variant = 0; variant < 8; variant++) {
        const int causal = variant % 2;
        gma_mixer_desc d = tst_desc(causal, 1, 1, 1, 5, 5, 2, 1, 1);
        d.segments = 3;
        tst_problem p = tst_problem_plain(&d, cu);
        TST_SET(&p, GMA_V, 1, 2, 3, 4, 5);
        if (variant / 2 % 2)
            TST_SET(&p, GMA_KEY_MASK, 1, 1, 1, 1, 1);
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], variant / 4 ? TST_CU32 : 0);
            for (int i = 0; i < 5; i++)
                TST_CLOSE(r.out[GMA_O].x[i], want[causal][i], 5e-6 * want[causal][i]);
            const double *Z = r.out[GMA_OUT_Z].x, *S = r.out[GMA_OUT_S].x; /* (3,1,K), (3,1,K,1) */
            const int64_t k = r.out[GMA_OUT_Z].n / 3;
            const double one = tst_plain_sum();
            if (!p.out_state) {
                tst_result_free(&r);
                continue;
            }
            assert_true(Z[k] == 0 && Z[2 * k - 1] == 0 && S[k] == 0 && S[2 * k - 1] == 0);
            TST_CLOSE(Z[0] * (double)k, 2 * one, 1e-6);
            TST_CLOSE(Z[2 * k] * (double)k, 3 * one, 2e-6);
            TST_CLOSE(S[0] * (double)k, 3 * one, 1e-5);
            TST_CLOSE(S[2 * k] * (double)k, 12 * one, 2e-5);
            tst_result_free(&r);
        }
        tst_problem_free(&p);
    }
}

enum { N = 150, HQ = 4, H = 2, K = 9, R = 5, D = 6, G = 6 };
static const int64_t cuts[G + 1] = {0, 0, 33, 34, 34, 130, 150};

/* Rows first .. first + count of every head of a (1,heads,N,width) tensor. */
static void take_rows(const tst_array *from, tst_array *to, int64_t first, int64_t count, int64_t width) {
    for (int64_t h = 0; h < from->shape[1]; h++)
        memcpy(to->x + h * count * width, from->x + (h * N + first) * width, (size_t)(count * width) * sizeof(double));
}

static int64_t width_of(int slot) {
    return slot == GMA_Q || slot == GMA_K ? R : slot == GMA_V || slot == GMA_O ? D : 1;
}

/* Sequence g of the packed problem as a problem of its own. */
static tst_problem sequence(const tst_problem *packed, int g, tst_rng *rng) {
    const int64_t count = cuts[g + 1] - cuts[g];
    const gma_mixer_desc d = tst_desc(packed->desc.causal, 1, HQ, H, count, count, K, R, D);
    tst_problem p = tst_problem_random(&d, NULL, TST_MASK | TST_STATE | TST_SCALE | TST_GRAD_STATE, rng);
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const tst_array *from = &packed->in[slot];
        if (!from->x || slot == GMA_CU_SEQLENS)
            continue;
        tst_add(&p, slot);
        if (slot == GMA_KEY_MASK)
            memcpy(p.in[slot].x, from->x + cuts[g], (size_t)count * sizeof(double));
        else if (slot == GMA_Q || slot == GMA_K || slot == GMA_V || slot == GMA_LOG_DECAY)
            take_rows(from, &p.in[slot], cuts[g], count, width_of(slot));
        else if (slot == GMA_STATE_S || slot == GMA_STATE_Z)
            memcpy(p.in[slot].x, from->x + g * p.in[slot].n, (size_t)p.in[slot].n * sizeof(double));
        else
            memcpy(p.in[slot].x, from->x, (size_t)from->n * sizeof(double));
    }
    take_rows(&packed->up[GMA_O], &p.up[GMA_O], cuts[g], count, D);
    for (int slot = GMA_OUT_S; slot <= GMA_OUT_Z && p.out_state; slot++)
        memcpy(p.up[slot].x, packed->up[slot].x + g * p.up[slot].n, (size_t)p.up[slot].n * sizeof(double));
    return p;
}

/* Everything at once, against separate calls: token rows and states one by one, parameter gradients summed. */
static void equals_separate_calls(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_d_packed");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int causal = 0; causal < 2; causal++) {
        gma_mixer_desc d = tst_desc(causal, 1, HQ, H, N, N, K, R, D);
        d.segments = G;
        const unsigned extras = TST_MASK | TST_STATE | TST_SCALE | TST_GRAD_STATE | (causal ? TST_DECAY : 0);
        tst_problem p = tst_problem_random(&d, cuts, extras, &rng);
        for (int e = 0; e < n; e++) {
            const double tol = engines[e].naive ? 1e-12 : TOL_O, tol_grad = engines[e].naive ? 1e-11 : TOL_GRAD;
            tst_result all = tst_must_run(&p, &engines[e], 0), sum;
            memset(&sum, 0, sizeof sum);
            for (int g = 0; g < G; g++) {
                const int64_t count = cuts[g + 1] - cuts[g];
                tst_problem one = sequence(&p, g, &rng);
                tst_result alone = tst_must_run(&one, &engines[e], 0), part;
                memset(&part, 0, sizeof part);
                for (int slot = 0; slot < TST_SLOTS; slot++) {
                    for (int side = 0; side < 2; side++) {
                        const tst_array *a = side ? &alone.grad[slot] : &alone.out[slot];
                        const tst_array *whole = side ? &all.grad[slot] : &all.out[slot];
                        tst_array *to = side ? &part.grad[slot] : &part.out[slot];
                        if (!a->x)
                            continue;
                        if (tst_slot_info(&p.desc, slot)->role == GMA_ROLE_PARAM) {
                            if (!sum.grad[slot].x)
                                sum.grad[slot] = tst_array_like(a);
                            for (int64_t i = 0; i < a->n; i++)
                                sum.grad[slot].x[i] += a->x[i];
                            *to = tst_array_copy(a); /* compared as a sum, below */
                            continue;
                        }
                        *to = tst_array_like(a);
                        if (slot == GMA_STATE_S || slot == GMA_STATE_Z || slot == GMA_OUT_S || slot == GMA_OUT_Z)
                            memcpy(to->x, whole->x + g * a->n, (size_t)a->n * sizeof(double));
                        else
                            take_rows(whole, to, cuts[g], count, width_of(slot));
                    }
                }
                char what[80];
                (void)snprintf(what, sizeof what, "%s, sequence %d", tst_engine_name(&engines[e]), g);
                assert_true(tst_compare(&part, &alone, tol, tol_grad, what));
                tst_result_free(&part);
                tst_result_free(&alone);
                tst_problem_free(&one);
            }
            assert_true(tst_compare(&all, &sum, tol, tol_grad, tst_engine_name(&engines[e])));
            tst_result_free(&all);
            tst_result_free(&sum);
        }
        tst_problem_free(&p);
    }
}

/* Offsets that do not rise from 0 to N are refused by name. */
static void wrong_offsets(void **state) {
    (void)state;
    static const int64_t bad[][4] = {{1, 2, 3, 5}, {0, 2, 3, 4}, {0, 3, 2, 5}, {0, 2, 6, 5}, {0, -1, 3, 5}};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 1);
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, 5, 5, 2, 1, 1);
    d.segments = 3;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tst_problem p = tst_problem_plain(&d, bad[i]);
        for (int e = 0; e < n; e++) {
            for (unsigned layout = 0; layout <= TST_CU32; layout += TST_CU32) {
                tst_result r;
                TST_ERROR(tst_run(&p, &engines[e], layout, &r), GMA_ERR_INVALID_ARGUMENT, "cu_seqlens");
            }
        }
        tst_problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_sequence_and_full_mask),
        cmocka_unit_test(equals_separate_calls),
        cmocka_unit_test(wrong_offsets),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
