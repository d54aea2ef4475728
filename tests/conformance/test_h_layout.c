/* Cases H: strides, grouped heads, offsets beyond 2^31. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static const int one_two[] = {1, 2};

/* H1: every layout gives the bits of the dense call, forward and backward, and writes nothing between its elements. */
static void layouts_give_the_same_bits(void **state) {
    (void)state;
    static const unsigned layouts[] = {TST_GUARD_START,
                                       TST_SWAP_HEADS,
                                       TST_PAD_ROWS,
                                       TST_INNER2,
                                       TST_REVERSED,
                                       TST_CU32 | TST_MASK_U8,
                                       TST_SWAP_HEADS | TST_PAD_ROWS | TST_INNER2 | TST_REVERSED | TST_GUARD_START};
    static const int64_t cu[] = {0, 33, 33, 34, 70};
    tst_rng rng = tst_rng_start("test_conformance_h_layout");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    for (int variant = 0; variant < 4; variant++) {
        const int causal = variant % 2, packed = variant / 2;
        gma_mixer_desc d = tst_desc(causal, packed ? 1 : 3, 4, 2, 70, 70, 9, 5, 6);
        d.segments = packed ? 4 : -1;
        const unsigned extras = TST_MASK | TST_STATE | TST_SCALE | TST_GRAD_STATE | (causal ? TST_DECAY : 0);
        tst_problem p = tst_problem_random(&d, packed ? cu : NULL, extras, &rng);
        for (int e = 0; e < 2 * n; e++) {
            tst_engine engine = engines[e / 2];
            if (e % 2)
                engine.io = GMA_BF16;
            tst_result dense = tst_must_run(&p, &engine, 0);
            for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
                tst_result r = tst_must_run(&p, &engine, layouts[l]);
                if (!tst_same_bits(&dense, &r))
                    tst_fail("%s, layout %u: other bits than dense", tst_engine_name(&engine), layouts[l]);
                tst_result_free(&r);
            }
            tst_result_free(&dense);
        }
        tst_problem_free(&p);
    }
}

/* H1 (c) expanded over B: stride 0. (b) every other element of a row is refused by name by the kernels. */
static void expanded_and_refused(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_conformance_h_layout");
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, 3, 2, 2, 20, 20, 5, 4, 6);
    tst_problem p = tst_problem_random(&d, NULL, TST_BACKWARD, &rng);
    for (int slot = GMA_Q; slot <= GMA_V; slot++) {
        for (int64_t i = 0; i < p.in[slot].n; i++)
            p.in[slot].x[i] = p.in[slot].x[i % (p.in[slot].n / 3)];
    }
    for (int e = 0; e < n; e++) {
        tst_result dense = tst_must_run(&p, &engines[e], 0), expanded = tst_must_run(&p, &engines[e], TST_EXPAND_B);
        assert_true(tst_same_bits(&dense, &expanded));
        tst_result r;
        const gma_status status = tst_run(&p, &engines[e], TST_WIDTH2, &r);
        if (status == GMA_OK) /* only the naive version may take it, and must then be right */
            assert_true(engines[e].naive && tst_same_bits(&dense, &r));
        else
            TST_ERROR(status, GMA_ERR_SHAPE, "q ");
        tst_result_free(&r);
        tst_result_free(&dense);
        tst_result_free(&expanded);
    }
    tst_problem_free(&p);
}

/* H2: query head h uses key head h / g (repeated, not tiled); dv sums over the group; 3 over 2 heads is an error. */
static void grouped_heads_repeat(void **state) {
    (void)state;
    static const double want[] = {1, 1, 2, 2};
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    gma_mixer_desc d = tst_desc(0, 1, 4, 2, 1, 3, 2, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    TST_SET(&p, GMA_V, 1, 1, 1, 2, 2, 2);
    tst_set_up(&p, GMA_O, 1);
    for (int h = 0; h < 4; h++)
        p.up[GMA_O].x[h] = h + 1;
    for (int e = 0; e < n; e++) {
        tst_result r = tst_must_run(&p, &engines[e], 0);
        for (int h = 0; h < 4; h++)
            TST_CLOSE(r.out[GMA_O].x[h], want[h], 1e-5);
        for (int j = 0; j < 6; j++) /* (1 + 2) / 3 and (3 + 4) / 3: each key has weight 1/3 */
            TST_CLOSE(r.grad[GMA_V].x[j], j < 3 ? 1 : 7 / 3., 1e-5);
        tst_result_free(&r);
    }
    tst_problem_free(&p);
    gma_mixer *m = NULL;
    d.heads = 3;
    TST_ERROR(gma_mixer_create(&d, &m), GMA_ERR_INVALID_ARGUMENT, "heads");
}

/* ---- H3 ---------------------------------------------------------------------------------------------- */

static const int64_t ROW = ((int64_t)1 << 31) + 16;

/* (1,1,2,1) with a row stride beyond 2^31 elements: 8 GiB of addresses, two pages of memory. */
static float *huge(size_t *bytes) {
    *bytes = ((size_t)ROW + 16) * sizeof(float);
    void *p = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

enum { BIG_Q, BIG_K, BIG_V, BIG_O, BIG_DQ, BIG_DK, BIG_DV, BIG_DO, BIG };

static void write_at(void *x, gma_dtype dtype, int64_t at, float value) {
    if (dtype == GMA_BF16)
        ((uint16_t *)x)[at] = gma_f32_to_bf16(value);
    else
        ((float *)x)[at] = value;
}

static double read_at(const void *x, gma_dtype dtype, int64_t at) {
    return dtype == GMA_BF16 ? (double)gma_bf16_to_f32(((const uint16_t *)x)[at]) : (double)((const float *)x)[at];
}

/* Two rows, ROW elements apart in dimension `far` (0 batch, 1 heads, 2 tokens): v = (1, 3), dO = 1. */
static void two_far_rows(float *const x[BIG], const tst_engine *e, int far) {
    static const int32_t slots[BIG] = {GMA_Q,           GMA_K,           GMA_V,           GMA_O,
                                       GMA_GRAD(GMA_Q), GMA_GRAD(GMA_K), GMA_GRAD(GMA_V), GMA_GRAD(GMA_O)};
    const int64_t B = far == 0 ? 2 : 1, H = far == 1 ? 2 : 1, N = far == 2 ? 2 : 1;
    const float zero[2] = {0, 0}, omega[2] = {0.5411666523385311f, 0.5411666523385311f};
    gma_arg args[BIG], call[BIG + 3];
    for (int i = 0; i < BIG; i++) {
        args[i] = (gma_arg){slots[i], gma_tensor_of(x[i], e->io, 4, B, H, N, 1)};
        args[i].tensor.stride[far] = ROW;
        write_at(x[i], e->io, 0, i == BIG_V || i == BIG_DO ? 1 : i < BIG_V ? 0 : -7);
        write_at(x[i], e->io, ROW, i == BIG_V ? 3 : i == BIG_DO ? 1 : i < BIG_V ? 0 : -7);
    }
    const gma_arg params[] = {{GMA_MU, gma_tensor_of(zero, GMA_F32, 3, H, 1, 1, 0)},
                              {GMA_OMEGA, gma_tensor_of(omega, GMA_F32, 3, H, 1, 1, 0)},
                              {GMA_ALPHA, gma_tensor_of(zero, GMA_F32, 2, H, 1, 0, 0)}};
    gma_mixer_desc d = tst_desc(1, B, H, H, N, N, 1, 1, 1);
    d.isa = e->isa;
    gma_mixer *m = NULL;
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_create(&d, &m));
    TST_OK(gma_mixer_sizes(m, 1, &size));
    const size_t scratch = size.forward_scratch > size.backward_scratch ? size.forward_scratch : size.backward_scratch;
    gma_exec exec = {.struct_size = sizeof exec, .threads = 1};
    exec.scratch_bytes = (scratch + 63) / 64 * 64;
    exec.saved_bytes = (size.saved + 63) / 64 * 64;
    exec.scratch = aligned_alloc(64, exec.scratch_bytes);
    exec.saved = aligned_alloc(64, exec.saved_bytes);
    memcpy(call, args, 4 * sizeof *args);
    memcpy(call + 4, params, sizeof params);
    TST_OK(e->naive ? gma_mixer_naive_forward(m, call, 7) : gma_mixer_forward(m, call, 7, &exec));
    TST_CLOSE(read_at(x[BIG_O], e->io, 0), 1, 5e-6);
    TST_CLOSE(read_at(x[BIG_O], e->io, ROW), N == 2 ? 2 : 3, 1.5e-5);
    memcpy(call + 7, args + 4, 4 * sizeof *args);
    TST_OK(e->naive ? gma_mixer_naive_backward(m, call, 11) : gma_mixer_backward(m, call, 11, &exec));
    TST_CLOSE(read_at(x[BIG_DV], e->io, 0), N == 2 ? 1.5 : 1, 1e-5);
    TST_CLOSE(read_at(x[BIG_DV], e->io, ROW), N == 2 ? 0.5 : 1, 1e-5);
    for (int i = BIG_DQ; i <= BIG_DK; i++) { /* written, and K = 1: no gradient */
        TST_CLOSE(read_at(x[i], e->io, 0), 0, 1e-5);
        TST_CLOSE(read_at(x[i], e->io, ROW), 0, 1e-5);
    }
    free(exec.scratch);
    free(exec.saved);
    gma_mixer_destroy(m);
}

static void offsets_beyond_31_bits(void **state) {
    (void)state;
    TST_GMA_ONLY();
    float *x[BIG];
    size_t bytes = 0;
    for (int i = 0; i < BIG; i++) {
        x[i] = huge(&bytes);
        if (!x[i]) {
            printf("no address space for %zu bytes\n", bytes);
            while (i-- > 0)
                munmap(x[i], bytes);
            skip();
        }
    }
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 1);
    for (int e = 0; e < n; e++) {
        for (int far = 0; far < 3; far++) {
            tst_engine engine = engines[e];
            engine.io = GMA_F32;
            two_far_rows(x, &engine, far);
            engine.io = GMA_BF16;
            two_far_rows(x, &engine, far);
        }
    }
    for (int i = 0; i < BIG; i++)
        munmap(x[i], bytes);
}

/* H3: more (batch, head) pairs than 16 bits hold. */
static void many_heads(void **state) {
    (void)state;
    tst_engine engines[32];
    const int n = tst_engines(engines, 1, one_two, 2);
    const gma_mixer_desc d = tst_desc(1, 700, 100, 100, 1, 1, 1, 1, 1);
    tst_problem p = tst_problem_plain(&d, NULL);
    for (int64_t i = 0; i < 70000; i++)
        p.in[GMA_V].x[i] = (double)(i % 1000);
    for (int e = 0; e < n; e++) {
        tst_result r = tst_must_run(&p, &engines[e], 0);
        for (int64_t i = 0; i < 70000; i++)
            TST_CLOSE(r.out[GMA_O].x[i], (double)(i % 1000), 5e-6 * (double)(i % 1000));
        tst_result_free(&r);
    }
    tst_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_give_the_same_bits),
        cmocka_unit_test(expanded_and_refused),
        cmocka_unit_test(grouped_heads_repeat),
        cmocka_unit_test(offsets_beyond_31_bits),
        cmocka_unit_test(many_heads),
    };
    return tst_for_mixers(tests, sizeof tests / sizeof *tests);
}
