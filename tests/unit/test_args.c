/* Arguments of a call: what is missing, twice, unknown, of wrong shape, type or stride, or too small is named, and
 * nothing is written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gma/gma.h"
#include "support/check.h"
#include "support/problem.h"

enum { B = 2, HQ = 4, H = 2, N = 5, K = 3, R = 4, D = 6, MAX = 40 };

/* A complete forward and backward call in f32, which each test then spoils in one place. */
typedef struct fixture {
    gma_mixer *m;
    gma_arg forward[MAX], backward[MAX];
    int forward_count, backward_count;
    float memory[MAX][B * HQ * N * D]; /* by argument of backward */
    uint8_t mask[B * N];
    gma_exec exec; /* scratch and saved large enough for both */
    size_t forward_scratch, backward_scratch, saved;
} fixture;

static const int inputs[] = {GMA_Q,        GMA_K,       GMA_V,       GMA_MU,        GMA_OMEGA,      GMA_ALPHA,
                             GMA_KEY_MASK, GMA_STATE_S, GMA_STATE_Z, GMA_LOG_DECAY, GMA_LOGIT_SCALE};
enum { INPUTS = 11 };

static gma_tensor tensor_of(const gma_mixer_desc *d, int slot, void *data) {
    tst_array a = tst_array_of(d, slot);
    const gma_dtype dtype = slot == GMA_KEY_MASK ? GMA_BOOL : GMA_F32;
    const gma_tensor t = gma_tensor_of(data, dtype, a.rank, a.shape[0], a.shape[1], a.shape[2], a.shape[3]);
    tst_array_free(&a);
    return t;
}

static fixture *make(void) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    const gma_mixer_desc d = tst_desc(1, B, HQ, H, N, N, K, R, D);
    TST_OK(gma_mixer_create(&d, &f->m));
    int n = 0;
    memset(f->mask, 1, sizeof f->mask);
    for (int i = 0; i < INPUTS; i++, n++) {
        void *data = inputs[i] == GMA_KEY_MASK ? (void *)f->mask : (void *)f->memory[n];
        f->backward[n] = (gma_arg){inputs[i], tensor_of(&d, inputs[i], data)};
        for (int j = 0; j < B * HQ * N * D; j++)
            f->memory[n][j] = inputs[i] == GMA_LOG_DECAY ? -0.1f : inputs[i] == GMA_LOGIT_SCALE ? 0.5f : (float)(j % 7);
    }
    f->backward[n] = (gma_arg){GMA_O, tensor_of(&d, GMA_O, f->memory[n])};
    n++;
    memcpy(f->forward, f->backward, sizeof f->forward);
    f->forward_count = n;
    for (int i = 0; i < 2; i++, f->forward_count++) {
        const int slot = i ? GMA_OUT_Z : GMA_OUT_S;
        f->forward[f->forward_count] = (gma_arg){slot, tensor_of(&d, slot, f->memory[MAX - 1 - i])};
    }
    f->backward[n] = (gma_arg){GMA_GRAD(GMA_O), tensor_of(&d, GMA_O, f->memory[n])};
    n++;
    for (int i = 0; i < INPUTS; i++) {
        if (inputs[i] == GMA_KEY_MASK)
            continue;
        f->backward[n] = (gma_arg){GMA_GRAD(inputs[i]), tensor_of(&d, inputs[i], f->memory[n])};
        n++;
    }
    f->backward_count = n;
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(f->m, 2, &size));
    f->forward_scratch = size.forward_scratch;
    f->backward_scratch = size.backward_scratch;
    f->saved = size.saved;
    f->exec = (gma_exec){.struct_size = sizeof(gma_exec), .threads = 2};
    f->exec.scratch_bytes =
        (size.forward_scratch > size.backward_scratch ? size.forward_scratch : size.backward_scratch);
    f->exec.saved_bytes = size.saved;
    f->exec.scratch = aligned_alloc(64, (f->exec.scratch_bytes + 127) / 64 * 64);
    f->exec.saved = aligned_alloc(64, (f->exec.saved_bytes + 127) / 64 * 64);
    assert_true(f->exec.scratch && f->exec.saved);
    TST_OK(gma_mixer_forward(f->m, f->forward, f->forward_count, &f->exec));
    TST_OK(gma_mixer_backward(f->m, f->backward, f->backward_count, &f->exec));
    return f;
}

static void drop(fixture *f) {
    free(f->exec.scratch);
    free(f->exec.saved);
    gma_mixer_destroy(f->m);
    free(f);
}

static int is_output(int32_t slot, int backward) {
    if (backward)
        return (slot & GMA_GRAD_BIT) && (slot & ~GMA_GRAD_BIT) < GMA_O;
    return slot >= GMA_O;
}

/* Every one of the four calls must refuse with that status and name; outputs stay as they are. */
static void refused(fixture *f, gma_status status, const char *name, int backward) {
    gma_arg *args = backward ? f->backward : f->forward;
    const int count = backward ? f->backward_count : f->forward_count;
    float *const first = &f->memory[0][0];
    const size_t floats = sizeof f->memory / sizeof(float);
    float *before = malloc(sizeof f->memory);
    assert_non_null(before);
    for (int i = 0; i < count; i++) {
        char *data = args[i].tensor.data; /* may be misaligned on purpose */
        const float mark = -77;
        if (is_output(args[i].slot, backward) && data >= (char *)first && data < (char *)(first + floats))
            memcpy(data, &mark, sizeof mark);
    }
    memcpy(before, f->memory, sizeof f->memory);
    TST_ERROR(backward ? gma_mixer_backward(f->m, args, count, &f->exec)
                       : gma_mixer_forward(f->m, args, count, &f->exec),
              status, name);
    assert_memory_equal(before, f->memory, sizeof f->memory);
    free(before);
}

static void refused_by_naive(fixture *f, gma_status status, const char *name, int backward) {
    if (backward)
        TST_ERROR(gma_mixer_naive_backward(f->m, f->backward, f->backward_count), status, name);
    else
        TST_ERROR(gma_mixer_naive_forward(f->m, f->forward, f->forward_count), status, name);
}

static int required(int32_t slot) {
    return slot == GMA_Q || slot == GMA_K || slot == GMA_V || slot == GMA_MU || slot == GMA_OMEGA ||
           slot == GMA_ALPHA || slot == GMA_O;
}

static void missing(void **state) {
    (void)state;
    fixture *f = make();
    for (int backward = 0; backward < 2; backward++) {
        gma_arg *args = backward ? f->backward : f->forward;
        int *count = backward ? &f->backward_count : &f->forward_count;
        for (int i = 0; i < *count; i++) {
            if (!required(args[i].slot) && args[i].slot != GMA_STATE_S && args[i].slot != GMA_STATE_Z &&
                args[i].slot != GMA_GRAD(GMA_O))
                continue;
            const gma_arg taken = args[i];
            args[i] = args[--*count]; /* the last takes its place */
            refused(f, GMA_ERR_INVALID_ARGUMENT, gma_slot_name(taken.slot), backward);
            if (taken.slot != GMA_O || !backward)
                refused_by_naive(f, GMA_ERR_INVALID_ARGUMENT, gma_slot_name(taken.slot), backward);
            args[(*count)++] = args[i];
            args[i] = taken;
        }
    }
    drop(f);
}

static void twice_or_unknown(void **state) {
    (void)state;
    fixture *f = make();
    for (int backward = 0; backward < 2; backward++) {
        gma_arg *args = backward ? f->backward : f->forward;
        int *count = backward ? &f->backward_count : &f->forward_count;
        const int n = *count;
        for (int i = 0; i < n; i++) {
            args[n] = args[i];
            *count = n + 1;
            refused(f, GMA_ERR_INVALID_ARGUMENT, gma_slot_name(args[i].slot), backward);
            refused_by_naive(f, GMA_ERR_INVALID_ARGUMENT, gma_slot_name(args[i].slot), backward);
            *count = n;
        }
        static const int32_t unknown[] = {0, 20, 31, 63, 64, 100, 0x114, 0x1000, -1, INT32_MAX, INT32_MIN};
        for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
            args[n] = (gma_arg){unknown[i], args[0].tensor};
            *count = n + 1;
            refused(f, GMA_ERR_INVALID_ARGUMENT, "argument", backward);
            *count = n;
        }
    }
    /* known, but out of place: cu_seqlens of a mixer that is not packed; gradients in a forward; grad_key_mask */
    int64_t cu[] = {0, N};
    f->forward[f->forward_count++] = (gma_arg){GMA_CU_SEQLENS, gma_tensor_of(cu, GMA_I64, 1, 2, 0, 0, 0)};
    refused(f, GMA_ERR_INVALID_ARGUMENT, "cu_seqlens", 0);
    f->forward[f->forward_count - 1] = (gma_arg){GMA_GRAD(GMA_Q), f->forward[0].tensor};
    refused(f, GMA_ERR_INVALID_ARGUMENT, "grad_q", 0);
    f->backward[f->backward_count++] = (gma_arg){GMA_GRAD(GMA_KEY_MASK), f->forward[6].tensor};
    refused(f, GMA_ERR_INVALID_ARGUMENT, "grad_key_mask", 1);
    drop(f);
}

static void wrong_tensors(void **state) {
    (void)state;
    fixture *f = make();
    for (int backward = 0; backward < 2; backward++) {
        gma_arg *args = backward ? f->backward : f->forward;
        const int n = backward ? f->backward_count : f->forward_count;
        for (int i = 0; i < n; i++) {
            const gma_arg kept = args[i];
            const char *name = gma_slot_name(kept.slot);
            gma_tensor *t = &args[i].tensor;
            const int last = t->rank - 1;
            for (int d = 0; d <= last; d++) {
                t->shape[d]++;
                refused(f, GMA_ERR_SHAPE, name, backward);
                refused_by_naive(f, GMA_ERR_SHAPE, name, backward);
                t->shape[d] = kept.tensor.shape[d] - 1;
                refused(f, GMA_ERR_SHAPE, name, backward);
                *t = kept.tensor;
            }
            static const int32_t ranks[] = {0, -1, 5, 1000};
            for (int r = 0; r < 4; r++) {
                t->rank = ranks[r];
                refused(f, GMA_ERR_SHAPE, name, backward);
                refused_by_naive(f, GMA_ERR_SHAPE, name, backward);
                *t = kept.tensor;
            }
            static const int32_t dtypes[] = {0, 99, -1, GMA_I32, GMA_U16, GMA_F64};
            for (int j = 0; j < 6; j++) {
                t->dtype = dtypes[j];
                refused(f, GMA_ERR_DTYPE, name, backward);
                if (dtypes[j] != GMA_F64)
                    refused_by_naive(f, GMA_ERR_DTYPE, name, backward);
                *t = kept.tensor;
            }
            t->data = NULL;
            refused(f, GMA_ERR_INVALID_ARGUMENT, name, backward);
            refused_by_naive(f, GMA_ERR_INVALID_ARGUMENT, name, backward);
            if (kept.tensor.dtype == GMA_F32) {
                t->data = (char *)kept.tensor.data + 2;
                refused(f, GMA_ERR_INVALID_ARGUMENT, name, backward);
            }
            *t = kept.tensor;
            t->stride[0] = INT64_MAX;
            refused(f, GMA_ERR_SHAPE, name, backward);
            *t = kept.tensor;
            if (t->rank == 4 && (kept.slot & ~GMA_GRAD_BIT) != GMA_STATE_S &&
                (kept.slot & ~GMA_GRAD_BIT) != GMA_OUT_S) {
                t->stride[last] = 2; /* a width must be contiguous */
                refused(f, GMA_ERR_SHAPE, name, backward);
                *t = kept.tensor;
            }
            if (is_output(kept.slot, backward)) {
                t->stride[0] = 0; /* two rows written into one */
                refused(f, GMA_ERR_SHAPE, name, backward);
                *t = kept.tensor;
            }
        }
    }
    drop(f);
}

static void wrong_values(void **state) {
    (void)state;
    fixture *f = make();
    float *decay = f->memory[9], *scale = f->memory[10];
    decay[3] = 0.5f;
    for (int backward = 0; backward < 2; backward++) {
        refused(f, GMA_ERR_INVALID_ARGUMENT, "log_decay", backward);
        refused_by_naive(f, GMA_ERR_INVALID_ARGUMENT, "log_decay", backward);
    }
    decay[3] = -0.1f;
    static const float wrong[] = {0, -1, -INFINITY, INFINITY, NAN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scale[1] = wrong[i];
        for (int backward = 0; backward < 2; backward++) {
            refused(f, GMA_ERR_INVALID_ARGUMENT, "logit_scale", backward);
            refused_by_naive(f, GMA_ERR_INVALID_ARGUMENT, "logit_scale", backward);
        }
    }
    drop(f);
}

static void wrong_buffers(void **state) {
    (void)state;
    fixture *f = make();
    const gma_exec good = f->exec;
    for (int backward = 0; backward < 2; backward++) {
        f->exec.scratch_bytes = (backward ? f->backward_scratch : f->forward_scratch) - 1;
        refused(f, GMA_ERR_INVALID_ARGUMENT, "scratch", backward);
        f->exec = good;
        f->exec.scratch = NULL;
        refused(f, GMA_ERR_INVALID_ARGUMENT, "scratch", backward);
        f->exec.scratch = (char *)good.scratch + 32;
        refused(f, GMA_ERR_INVALID_ARGUMENT, "scratch", backward);
        f->exec = good;
        f->exec.saved_bytes = f->saved - 1;
        refused(f, GMA_ERR_INVALID_ARGUMENT, "saved", backward);
        f->exec = good;
        f->exec.saved = (char *)good.saved + 4;
        refused(f, GMA_ERR_INVALID_ARGUMENT, "saved", backward);
        f->exec = good;
        f->exec.threads = -1;
        refused(f, GMA_ERR_INVALID_ARGUMENT, "threads", backward);
        f->exec = good;
        f->exec.struct_size = 4;
        refused(f, GMA_ERR_INVALID_ARGUMENT, "struct_size", backward);
        f->exec = good;
    }
    f->exec.saved = NULL;
    refused(f, GMA_ERR_INVALID_ARGUMENT, "saved", 1);
    TST_OK(gma_mixer_forward(f->m, f->forward, f->forward_count, &f->exec)); /* inference: no saved */
    f->exec = good;
    TST_ERROR(gma_mixer_forward(f->m, f->forward, f->forward_count, NULL), GMA_ERR_INVALID_ARGUMENT, "exec");
    TST_ERROR(gma_mixer_forward(NULL, f->forward, f->forward_count, &f->exec), GMA_ERR_INVALID_ARGUMENT, "mixer");
    TST_ERROR(gma_mixer_forward(f->m, NULL, 3, &f->exec), GMA_ERR_INVALID_ARGUMENT, "args");
    TST_ERROR(gma_mixer_forward(f->m, f->forward, -1, &f->exec), GMA_ERR_INVALID_ARGUMENT, "args");
    TST_ERROR(gma_mixer_naive_forward(NULL, f->forward, 1), GMA_ERR_INVALID_ARGUMENT, "mixer");
    drop(f);
}

/* Each gradient may be left out, or be the only one; those asked for do not change. saved serves any number of calls.
 */
static void any_subset_of_gradients(void **state) {
    (void)state;
    fixture *f = make();
    const int first = INPUTS + 2, all = f->backward_count;
    float want[MAX][B * HQ * N * D];
    memcpy(want, f->memory, sizeof want);
    TST_OK(gma_mixer_forward(f->m, f->forward, f->forward_count, &f->exec));
    for (int i = first; i < all; i++) {
        for (int only = 0; only < 2; only++) {
            gma_arg args[MAX];
            int count = 0;
            for (int j = 0; j < all; j++) {
                if (j < first || (only ? j == i : j != i))
                    args[count++] = f->backward[j];
            }
            for (int j = first; j < all; j++)
                memset(f->memory[j], 0xff, sizeof f->memory[j]);
            memset(f->exec.scratch, 0xff, f->exec.scratch_bytes);
            TST_OK(gma_mixer_backward(f->m, args, count, &f->exec));
            for (int j = first; j < all; j++) {
                const gma_tensor *t = &f->backward[j].tensor;
                const size_t bytes = (size_t)(t->shape[0] * t->stride[0]) * sizeof(float);
                if (only ? j == i : j != i)
                    assert_memory_equal(f->memory[j], want[j], bytes);
                else
                    assert_true(isnan(f->memory[j][0]));
            }
        }
    }
    drop(f);
}

/* Packed, and decoding: their own slots. */
static void packed_and_steps(void **state) {
    (void)state;
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, 4, 4, 1, 1, 1);
    d.segments = 2;
    gma_mixer *packed = NULL, *bidirectional = NULL, *causal = NULL;
    TST_OK(gma_mixer_create(&d, &packed));
    d.segments = -1;
    TST_OK(gma_mixer_create(&d, &causal));
    d.causal = 0;
    TST_OK(gma_mixer_create(&d, &bidirectional));
    float x[4] = {0}, o[4];
    int64_t cu[] = {0, 2, 4};
    const gma_tensor rows = gma_tensor_of(x, GMA_F32, 4, 1, 1, 4, 1), one = gma_tensor_of(x, GMA_F32, 4, 1, 1, 1, 1);
    gma_arg args[] = {{GMA_Q, rows},
                      {GMA_K, rows},
                      {GMA_V, rows},
                      {GMA_MU, gma_tensor_of(x, GMA_F32, 3, 1, 1, 1, 0)},
                      {GMA_OMEGA, gma_tensor_of(x, GMA_F32, 3, 1, 1, 1, 0)},
                      {GMA_ALPHA, gma_tensor_of(x, GMA_F32, 2, 1, 1, 0, 0)},
                      {GMA_O, gma_tensor_of(o, GMA_F32, 4, 1, 1, 4, 1)},
                      {GMA_CU_SEQLENS, gma_tensor_of(cu, GMA_I64, 1, 3, 0, 0, 0)}};
    TST_OK(gma_mixer_naive_forward(packed, args, 8));
    TST_ERROR(gma_mixer_naive_forward(packed, args, 7), GMA_ERR_INVALID_ARGUMENT, "cu_seqlens");

    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(causal, 1, &size));
    void *buffer = aligned_alloc(64, (size.state + 127) / 64 * 64);
    TST_ERROR(gma_mixer_state_init(bidirectional, args + 3, 3, buffer), GMA_ERR_UNSUPPORTED, "bidirectional");
    TST_ERROR(gma_mixer_state_init(packed, args + 3, 3, buffer), GMA_ERR_UNSUPPORTED, "packed");
    TST_ERROR(gma_mixer_state_init(causal, args + 3, 2, buffer), GMA_ERR_INVALID_ARGUMENT, "alpha");
    TST_ERROR(gma_mixer_state_init(causal, args + 3, 3, NULL), GMA_ERR_INVALID_ARGUMENT, "state");
    TST_ERROR(gma_mixer_state_init(causal, args + 3, 3, (char *)buffer + 8), GMA_ERR_INVALID_ARGUMENT, "state");
    TST_ERROR(gma_mixer_state_init(causal, args, 6, buffer), GMA_ERR_INVALID_ARGUMENT, "q ");
    TST_OK(gma_mixer_state_init(causal, args + 3, 3, buffer));
    gma_arg step[] = {{GMA_Q, one}, {GMA_K, one}, {GMA_V, one}, {GMA_O, gma_tensor_of(o, GMA_F32, 4, 1, 1, 1, 1)}};
    TST_OK(gma_mixer_step(causal, step, 4, buffer, 1));
    TST_ERROR(gma_mixer_step(causal, step, 3, buffer, 1), GMA_ERR_INVALID_ARGUMENT, "o ");
    TST_ERROR(gma_mixer_step(causal, step, 4, buffer, -1), GMA_ERR_INVALID_ARGUMENT, "threads");
    TST_ERROR(gma_mixer_step(causal, args, 3, buffer, 1), GMA_ERR_SHAPE, "q");
    float decay = 1;
    gma_arg more[5];
    memcpy(more, step, sizeof step);
    more[4] = (gma_arg){GMA_LOG_DECAY, gma_tensor_of(&decay, GMA_F32, 3, 1, 1, 1, 0)};
    TST_ERROR(gma_mixer_step(causal, more, 5, buffer, 1), GMA_ERR_INVALID_ARGUMENT, "log_decay");
    TST_ERROR(gma_mixer_state_export(causal, buffer, step, 1), GMA_ERR_INVALID_ARGUMENT, "q ");
    free(buffer);
    gma_mixer_destroy(packed);
    gma_mixer_destroy(causal);
    gma_mixer_destroy(bidirectional);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing),          cmocka_unit_test(twice_or_unknown),
        cmocka_unit_test(wrong_tensors),    cmocka_unit_test(wrong_values),
        cmocka_unit_test(wrong_buffers),    cmocka_unit_test(any_subset_of_gradients),
        cmocka_unit_test(packed_and_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
