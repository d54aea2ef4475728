/* The one-call functions, and one mixer used by many threads at once. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gma/gma.h"
#include "support/check.h"
#include "support/problem.h"
#include "support/tol.h"

static float *floats(const tst_array *a) {
    float *x = malloc((size_t)(a->n + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < a->n; i++)
        x[i] = (float)a->x[i];
    return x;
}

static void one_call_equals_the_mixer(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_unit_attention");
    for (int causal = 0; causal < 2; causal++) {
        const gma_mixer_desc d = tst_desc(causal, 2, 3, 3, 40, 70, 9, 5, 6);
        tst_problem p = tst_problem_random(&d, NULL, 0, &rng);
        tst_result want = tst_must_run(&p, &TST_NAIVE, 0), got;
        memset(&got, 0, sizeof got);
        got.out[GMA_O] = tst_array_like(&want.out[GMA_O]);
        float *x[TST_SLOTS] = {NULL}, *o = floats(&got.out[GMA_O]);
        for (int slot = GMA_Q; slot <= GMA_ALPHA; slot++)
            x[slot] = floats(&p.in[slot]);
        for (int threads = 0; threads < 3; threads++) {
            TST_OK(gma_attention(x[GMA_Q], x[GMA_K], x[GMA_V], x[GMA_MU], x[GMA_OMEGA], x[GMA_ALPHA], o, 2, 3, 40, 70,
                                 5, 6, 9, causal, threads));
            for (int64_t i = 0; i < got.out[GMA_O].n; i++)
                got.out[GMA_O].x[i] = (double)o[i];
            tst_array_free(&want.out[GMA_OUT_S]);
            tst_array_free(&want.out[GMA_OUT_Z]);
            assert_true(tst_compare(&got, &want, TOL_O, 0, "gma_attention"));
        }
        TST_ERROR(gma_attention(NULL, x[GMA_K], x[GMA_V], x[GMA_MU], x[GMA_OMEGA], x[GMA_ALPHA], o, 2, 3, 40, 70, 5, 6,
                                9, causal, 1),
                  GMA_ERR_INVALID_ARGUMENT, "q");
        TST_ERROR(gma_attention(x[GMA_Q], x[GMA_K], x[GMA_V], x[GMA_MU], x[GMA_OMEGA], x[GMA_ALPHA], o, 2, 3, 40, 70, 5,
                                6, 0, causal, 1),
                  GMA_ERR_INVALID_ARGUMENT, "components");
        TST_ERROR(gma_attention(x[GMA_Q], x[GMA_K], x[GMA_V], x[GMA_MU], x[GMA_OMEGA], x[GMA_ALPHA], o, 2, 3, 40, 70, 5,
                                6, 9, 7, 1),
                  GMA_ERR_INVALID_ARGUMENT, "causal");
        for (int slot = GMA_Q; slot <= GMA_ALPHA; slot++)
            free(x[slot]);
        free(o);
        tst_problem_free(&p);
        tst_result_free(&want);
        tst_result_free(&got);
    }
}

static void responsibilities_are_checked(void **state) {
    (void)state;
    float x[4 * 2] = {0}, params[2 * 3 * 2] = {0}, gamma[4 * 3];
    gma_tensor tx = gma_tensor_of(x, GMA_F32, 4, 1, 4, 1, 2), mu = gma_tensor_of(params, GMA_F32, 3, 2, 3, 2, 0);
    gma_tensor alpha = gma_tensor_of(params, GMA_F32, 2, 2, 3, 0, 0),
               out = gma_tensor_of(gamma, GMA_F32, 4, 1, 4, 1, 3);
    gma_tensor scale = gma_tensor_of(params, GMA_F32, 1, 2, 0, 0, 0), bad;
    for (int naive = 0; naive < 2; naive++) {
        TST_OK(gma_responsibilities(&tx, &mu, &mu, &alpha, NULL, &out, 1e-4, GMA_ISA_AUTO, naive, 1));
        for (int i = 0; i < 12; i++)
            TST_CLOSE((double)gamma[i], 1 / 3., 1e-6);
        TST_ERROR(gma_responsibilities(NULL, &mu, &mu, &alpha, NULL, &out, 1e-4, GMA_ISA_AUTO, naive, 1),
                  GMA_ERR_INVALID_ARGUMENT, "x");
        TST_ERROR(gma_responsibilities(&tx, &mu, NULL, &alpha, NULL, &out, 1e-4, GMA_ISA_AUTO, naive, 1),
                  GMA_ERR_INVALID_ARGUMENT, "omega");
        TST_ERROR(gma_responsibilities(&tx, &mu, &mu, &alpha, &scale, &out, 1e-4, GMA_ISA_AUTO, naive, 1),
                  GMA_ERR_INVALID_ARGUMENT, "logit_scale");
        TST_ERROR(gma_responsibilities(&tx, &mu, &mu, &alpha, NULL, &out, 0, GMA_ISA_AUTO, naive, 1),
                  GMA_ERR_INVALID_ARGUMENT, "eps_sigma");
        bad = tx;
        bad.shape[1] = 3;
        TST_ERROR(gma_responsibilities(&bad, &mu, &mu, &alpha, NULL, &out, 1e-4, GMA_ISA_AUTO, naive, 1), GMA_ERR_SHAPE,
                  "heads");
        bad = alpha;
        bad.shape[1] = 4;
        TST_ERROR(gma_responsibilities(&tx, &mu, &mu, &bad, NULL, &out, 1e-4, GMA_ISA_AUTO, naive, 1), GMA_ERR_SHAPE,
                  "alpha");
        bad = out;
        bad.dtype = GMA_BF16;
        TST_ERROR(gma_responsibilities(&tx, &mu, &mu, &alpha, NULL, &bad, 1e-4, GMA_ISA_AUTO, naive, 1), GMA_ERR_DTYPE,
                  "gamma");
    }
}

/* ---- one mixer, many threads ------------------------------------------------------------------------- */

enum { WORKERS = 4, ROUNDS = 5, N = 300, K = 16, W = 8 };

typedef struct worker {
    const gma_mixer *m;
    const float *x, *params;
    float o[N * W];
    int ok;
} worker;

static void *work(void *arg) {
    worker *w = arg;
    gma_mixer_size size = {.struct_size = sizeof size};
    w->ok = gma_mixer_sizes(w->m, 2, &size) == GMA_OK;
    gma_exec exec = {.struct_size = sizeof exec, .threads = 2, .scratch_bytes = (size.forward_scratch + 63) / 64 * 64};
    exec.scratch = aligned_alloc(64, exec.scratch_bytes);
    const gma_tensor x = gma_tensor_of(w->x, GMA_F32, 4, 1, 1, N, W);
    const gma_arg args[] = {{GMA_Q, x},
                            {GMA_K, x},
                            {GMA_V, x},
                            {GMA_MU, gma_tensor_of(w->params, GMA_F32, 3, 1, K, W, 0)},
                            {GMA_OMEGA, gma_tensor_of(w->params, GMA_F32, 3, 1, K, W, 0)},
                            {GMA_ALPHA, gma_tensor_of(w->params, GMA_F32, 2, 1, K, 0, 0)},
                            {GMA_O, gma_tensor_of(w->o, GMA_F32, 4, 1, 1, N, W)}};
    for (int i = 0; i < ROUNDS && w->ok; i++)
        w->ok = gma_mixer_forward(w->m, args, 7, &exec) == GMA_OK;
    free(exec.scratch);
    return NULL;
}

static void one_mixer_many_threads(void **state) {
    (void)state;
    tst_rng rng = tst_rng_start("test_unit_attention");
    static float x[N * W], params[K * W];
    for (int i = 0; i < N * W; i++)
        x[i] = (float)tst_normal(&rng);
    for (int i = 0; i < K * W; i++)
        params[i] = (float)tst_normal(&rng);
    const gma_mixer_desc d = tst_desc(1, 1, 1, 1, N, N, K, W, W);
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&d, &m));
    static worker alone, workers[WORKERS];
    pthread_t threads[WORKERS];
    alone = (worker){.m = m, .x = x, .params = params};
    (void)work(&alone);
    assert_true(alone.ok);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.m = m, .x = x, .params = params};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(workers[i].ok);
        assert_memory_equal(workers[i].o, alone.o, sizeof alone.o);
    }
    gma_mixer_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_call_equals_the_mixer),
        cmocka_unit_test(responsibilities_are_checked),
        cmocka_unit_test(one_mixer_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
