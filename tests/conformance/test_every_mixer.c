/* What holds for every mixer of the manifest, whatever its tensors are: problems are built from its slot table, and a row
 * is passed over when the mixer refuses its descriptor (which must name the mixer). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_three[] = {1, 3};
static const int64_t cuts[] = {0, 0, 33, 34, 34, 130, 150};

/* Every row with Hq = H and Nq = Nk has a causal and a bidirectional form, so each mixer has several it takes. */
static const struct {
    int causal;
    int64_t B, Hq, H, Nq, Nk, K, R, D, segments;
    unsigned extras;
} rows[] = {
    {1, 2, 2, 2, 70, 70, 9, 5, 6, -1, 0},
    {0, 2, 2, 2, 70, 70, 9, 5, 6, -1, 0},
    {1, 1, 1, 1, 1, 1, 1, 1, 1, -1, TST_STATE},
    {0, 1, 1, 1, 1, 1, 1, 1, 1, -1, 0},
    {1, 1, 4, 2, 40, 100, 7, 5, 6, -1, TST_MASK | TST_DECAY | TST_STATE | TST_GRAD_STATE},
    {0, 2, 4, 2, 100, 40, 7, 5, 6, -1, TST_MASK},
    {0, 1, 2, 2, 200, 333, 33, 17, 19, -1, 0},
    {1, 1, 3, 3, 333, 333, 16, 16, 33, -1, TST_STATE | TST_GRAD_STATE},
    {0, 2, 4, 2, 70, 100, 7, 5, 6, -1, TST_MASK | TST_PER_HEAD},
    {1, 3, 1, 1, 129, 129, 5, 3, 64, -1, TST_MASK | TST_STATE | TST_GRAD_STATE},
    {1, 1, 2, 2, 150, 150, 9, 5, 6, 6, TST_STATE | TST_MASK | TST_GRAD_STATE},
    {0, 1, 2, 2, 150, 150, 9, 5, 6, 6, TST_MASK},
    {1, 40, 2, 2, 17, 17, 17, 8, 8, -1, TST_GRAD_STATE},
    {0, 40, 2, 2, 17, 17, 17, 8, 8, -1, TST_MASK},
};
enum { ROWS = (int)(sizeof rows / sizeof *rows), LEAST = 4 };

/* The problem of a row, 0 when the mixer does not take it. */
static int problem_of(int row, unsigned extras, tst_rng *rng, tst_problem *p) {
    gma_mixer_desc d = tst_desc(rows[row].causal, rows[row].B, rows[row].Hq, rows[row].H, rows[row].Nq, rows[row].Nk,
                                rows[row].K, rows[row].R, rows[row].D);
    d.segments = rows[row].segments;
    if (!tst_fits(&d))
        return 0;
    *p = tst_problem_random(&d, d.segments >= 0 ? cuts : NULL, rows[row].extras | extras, rng);
    return 1;
}

static void round_values(tst_problem *p) {
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const gma_slot_info *info = tst_slot_info(&p->desc, slot);
        for (int side = 0; side < 2 && info && info->dtypes & 1u << GMA_BF16; side++) {
            tst_array *a = side ? &p->up[slot] : &p->in[slot];
            for (int64_t i = 0; a->x && i < a->n; i++)
                a->x[i] = (double)gma_bf16_to_f32(gma_f32_to_bf16((float)a->x[i]));
        }
    }
}

/* Forward and backward of every tier and thread count against the definition, f32 and bf16. Attention's backward reads o
 * as it was stored, so where a query sees one or two keys the rounding to bf16 is most of what is left: causal and
 * packed rows of those mixers (one sequence has one token) have their bf16 test at a shape without them (gradient.tiers). */
static void tiers_agree_with_the_definition(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_every_mixer");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_three, 2);
    int ok = 1, taken = 0;
    for (int row = 0; row < ROWS; row++) {
        tst_problem p;
        if (!problem_of(row, TST_BACKWARD, &rng, &p))
            continue;
        taken++;
        const int attention = tst_slot_info(&p.desc, GMA_O) != NULL;
        const int few_keys = attention && (p.desc.causal || p.desc.segments >= 0);
        for (int bf16 = 0; bf16 < (few_keys ? 1 : 2); bf16++) {
            if (bf16)
                round_values(&p);
            tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
            for (int e = 0; e < n; e++) {
                tst_engine engine = engines[e];
                engine.io = bf16 ? GMA_BF16 : GMA_F32;
                char what[100];
                (void)snprintf(what, sizeof what, "%s, row %d", tst_engine_name(&engine), row);
                tst_result r = tst_must_run(&p, &engine, 0);
                const int tiles = tst_in_bf16(&engine); /* they multiply in bf16 too */
                ok &= tst_compare_to_naive(&p, &r, &want, tiles ? TOL_TILES_O : TOL_O + (bf16 ? TOL_BF16 : 0),
                                           tiles ? TOL_TILES_GRAD : bf16 ? TOL_BF16_GRAD : TOL_GRAD, what);
                tst_result_free(&r);
            }
            tst_result_free(&want);
        }
        tst_problem_free(&p);
    }
    assert_true(ok);
    assert_true(taken >= LEAST);
}

/* The same bits for every thread count, layout and repetition. */
static void always_the_same_bits(void **state) {
    (void)state;
    static const unsigned layouts[] = {TST_GUARD_START, TST_SWAP_HEADS, TST_PAD_ROWS, TST_INNER2, TST_REVERSED,
                                       TST_CU32 | TST_MASK_U8};
    static const int counts[] = {1, 2, 7};
    tst_rng rng = tst_rng_start("test_conformance_every_mixer");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, counts, 3);
    for (int row = 0; row < ROWS; row++) {
        tst_problem p;
        if (!problem_of(row, TST_BACKWARD, &rng, &p))
            continue;
        tst_result first = {0};
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], 0);
            if (engines[e].threads == 1) {
                tst_result_free(&first);
                first = r;
                for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
                    tst_result other = tst_must_run(&p, &engines[e], layouts[l]);
                    if (!tst_same_bits(&first, &other))
                        tst_fail("%s, row %d, layout %u: other bits", tst_engine_name(&engines[e]), row, layouts[l]);
                    tst_result_free(&other);
                }
                continue;
            }
            if (!tst_same_bits(&first, &r))
                tst_fail("%s, row %d: other bits than with one thread", tst_engine_name(&engines[e]), row);
            tst_result_free(&r);
        }
        tst_result_free(&first);
        tst_problem_free(&p);
    }
}

/* Tokens [first, first + count) of a problem as a problem of their own, without states. */
static tst_problem piece_of(const tst_problem *whole, int64_t first, int64_t count) {
    tst_problem p;
    memset(&p, 0, sizeof p);
    p.desc = whole->desc;
    p.desc.q_len = p.desc.k_len = count;
    p.desc.segments = -1;
    p.out_state = 1;
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const gma_slot_info *info = tst_slot_info(&whole->desc, slot);
        const int is_state = info && strchr(info->dims, 'S') != NULL;
        if (whole->in[slot].x && slot != GMA_CU_SEQLENS && !is_state)
            p.in[slot] = tst_array_tokens(&whole->desc, slot, &whole->in[slot], first, count);
    }
    return p;
}

static const struct {
    int in, out;
} states[] = {{GMA_STATE_S, GMA_OUT_S}, {GMA_STATE_Z, GMA_OUT_Z}, {GMA_STATE_H, GMA_OUT_H}};
enum { STATES = (int)(sizeof states / sizeof *states) };

static double tolerance(const tst_engine *e) { return e->naive ? 1e-12 : TOL_O; }

/* Packed sequences are separate calls, each with its own state. */
static void packed_is_separate(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_every_mixer");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_three, 2);
    for (int row = 0; row < ROWS; row++) {
        tst_problem p;
        if (rows[row].segments < 0 || !problem_of(row, 0, &rng, &p))
            continue;
        p.backward = 0;
        for (int e = 0; e < n; e++) {
            tst_result all = tst_must_run(&p, &engines[e], 0);
            for (int g = 0; g < rows[row].segments; g++) {
                const int64_t count = cuts[g + 1] - cuts[g];
                tst_problem one = piece_of(&p, cuts[g], count);
                tst_result part;
                memset(&part, 0, sizeof part);
                for (int s = 0; s < STATES; s++) {
                    if (p.in[states[s].in].x) {
                        double *x = tst_add(&one, states[s].in);
                        const int64_t size = one.in[states[s].in].n;
                        memcpy(x, p.in[states[s].in].x + g * size, (size_t)size * sizeof(double));
                    }
                }
                tst_result alone = tst_must_run(&one, &engines[e], 0);
                for (int slot = 0; slot < TST_SLOTS; slot++) {
                    if (!alone.out[slot].x)
                        continue;
                    if (tst_token_dim(&p.desc, slot) >= 0) {
                        part.out[slot] = tst_array_tokens(&p.desc, slot, &all.out[slot], cuts[g], count);
                    } else {
                        part.out[slot] = tst_array_like(&alone.out[slot]);
                        memcpy(part.out[slot].x, all.out[slot].x + g * part.out[slot].n,
                               (size_t)part.out[slot].n * sizeof(double));
                    }
                }
                assert_true(tst_compare(&part, &alone, tolerance(&engines[e]), 0, tst_engine_name(&engines[e])));
                tst_result_free(&part);
                tst_result_free(&alone);
                tst_problem_free(&one);
            }
            tst_result_free(&all);
        }
        tst_problem_free(&p);
    }
}

/* A state that goes out and comes in again: pieces are the whole. */
static void pieces_are_the_whole(void **state) {
    (void)state;
    const gma_mixer_desc d = tst_desc(1, 2, 2, 2, 150, 150, 9, 5, 6);
    if (!tst_fits(&d))
        skip();
    int has_state = 0;
    for (int s = 0; s < STATES; s++)
        has_state |= tst_slot_info(&d, states[s].out) != NULL;
    if (!has_state)
        skip();
    tst_rng rng = tst_rng_start("test_conformance_every_mixer");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_three, 2);
    tst_problem p = tst_problem_random(&d, NULL, TST_DECAY | TST_MASK, &rng);
    static const int64_t at[] = {0, 1, 64, 100, 150};
    for (int e = 0; e < n; e++) {
        tst_result whole = tst_must_run(&p, &engines[e], 0), before = {0};
        for (int i = 0; i < 4; i++) {
            tst_problem one = piece_of(&p, at[i], at[i + 1] - at[i]);
            for (int s = 0; s < STATES && i > 0; s++) {
                if (before.out[states[s].out].x)
                    one.in[states[s].in] = tst_array_copy(&before.out[states[s].out]);
            }
            tst_result part = tst_must_run(&one, &engines[e], 0), want;
            memset(&want, 0, sizeof want);
            for (int slot = 0; slot < TST_SLOTS; slot++) {
                if (whole.out[slot].x && (tst_token_dim(&d, slot) >= 0 || i == 3))
                    want.out[slot] = tst_array_tokens(&d, slot, &whole.out[slot], at[i], at[i + 1] - at[i]);
            }
            assert_true(tst_compare(&part, &want, tolerance(&engines[e]), 0, tst_engine_name(&engines[e])));
            tst_result_free(&want);
            tst_result_free(&before);
            before = part;
            tst_problem_free(&one);
        }
        tst_result_free(&before);
        tst_result_free(&whole);
    }
    tst_problem_free(&p);
}

/* Token by token, f32 and bf16, from a state; a mixer that cannot must say so by its name. */
static void steps_are_the_sequence(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_every_mixer");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_three, 2);
    gma_mixer_desc d = tst_desc(1, 2, 2, 2, 70, 70, 9, 5, 38);
    if (!tst_fits(&d)) {
        d.causal = 0;
        gma_mixer *m = NULL;
        TST_OK(gma_mixer_create(&d, &m));
        char memory[64];
        TST_ERROR(gma_mixer_step(m, NULL, 0, memory, 1), GMA_ERR_UNSUPPORTED, gma_mixer_kind_name(tst_mixer));
        gma_mixer_destroy(m);
        return;
    }
    for (int with_state = 0; with_state < 2; with_state++) {
        tst_problem p = tst_problem_random(&d, NULL, with_state ? TST_STATE | TST_MASK : 0, &rng);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            if (bf16)
                round_values(&p);
            for (int e = 0; e < n; e++) {
                tst_engine engine = engines[e];
                engine.io = bf16 ? GMA_BF16 : GMA_F32;
                tst_result whole = tst_must_run(&p, &engine, 0), steps = tst_steps(&p, &engine);
                assert_true(
                    tst_compare(&steps, &whole, TOL_O + (bf16 ? 2 * TOL_BF16 : 0), 0, tst_engine_name(&engine)));
                tst_result_free(&whole);
                tst_result_free(&steps);
            }
        }
        tst_problem_free(&p);
    }
}

/* Nothing to do is no error. */
static void zero_sizes(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_every_mixer");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_three, 2);
    int taken = 0;
    for (int which = 0; which < 8; which++) {
        gma_mixer_desc d = tst_desc(which % 2, 2, 2, 2, 5, 5, 3, 4, 6);
        d.batch = which / 2 == 0 ? 0 : d.batch;
        d.heads = d.kv_heads = which / 2 == 1 ? 0 : d.heads;
        d.q_len = d.k_len = which / 2 == 2 ? 0 : d.q_len;
        d.value_dim = which / 2 == 3 ? 0 : d.value_dim;
        if (!tst_fits(&d))
            continue;
        taken++;
        tst_problem p = tst_problem_random(&d, NULL, TST_STATE | TST_BACKWARD, &rng);
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0);
        for (int e = 0; e < n; e++) {
            tst_result r = tst_must_run(&p, &engines[e], 0);
            assert_true(tst_compare(&r, &want, TOL_O, TOL_GRAD, tst_engine_name(&engines[e])));
            tst_result_free(&r);
        }
        tst_result_free(&want);
        tst_problem_free(&p);
    }
    assert_true(taken >= 4);
}

/* A NaN or an infinity in one token of one input shows in the outputs where the definition has it, and nowhere else. */
static void bad_values_show_where_they_belong(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_every_mixer");
    tst_engine engines[32];
    const int n = tst_engines(engines, 0, one_three, 1);
    for (int causal = 0; causal < 2; causal++) {
        const gma_mixer_desc d = tst_desc(causal, 2, 2, 2, 100, 100, 7, 5, 6);
        if (!tst_fits(&d))
            continue;
        tst_problem p = tst_problem_random(&d, NULL, 0, &rng);
        for (int slot = 0; slot < TST_SLOTS; slot++) {
            const gma_slot_info *info = p.in[slot].x ? tst_slot_info(&d, slot) : NULL;
            if (!info || info->role != GMA_ROLE_INPUT)
                continue;
            tst_problem q = tst_problem_copy(&p);
            q.in[slot].x[q.in[slot].n * 7 / 10] = NAN; /* of the last batch row */
            tst_result want = tst_must_run(&q, &TST_NAIVE, 0);
            for (int e = 0; e < n; e++) {
                tst_result r = tst_must_run(&q, &engines[e], 0);
                char what[100];
                (void)snprintf(what, sizeof what, "%s, NaN in %s", tst_engine_name(&engines[e]), gma_slot_name(slot));
                assert_true(tst_compare(&r, &want, TOL_O, 0, what));
                tst_result_free(&r);
            }
            tst_result_free(&want);
            tst_problem_free(&q);
        }
        tst_problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_agree_with_the_definition),
        cmocka_unit_test(always_the_same_bits),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(pieces_are_the_whole),
        cmocka_unit_test(steps_are_the_sequence),
        cmocka_unit_test(zero_sizes),
        cmocka_unit_test(bad_values_show_where_they_belong),
    };
    return tst_for_every_mixer(tests, sizeof tests / sizeof *tests);
}
