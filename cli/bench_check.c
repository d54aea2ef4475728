/* No speed without a correct result: a small case of what is about to be measured, against the definition in double. */
#include "cli/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 70 }; /* one whole chunk and a rest */

static double read_value(const gma_tensor *t, int64_t i) {
    return t->dtype == GMA_F64    ? ((const double *)t->data)[i]
           : t->dtype == GMA_BF16 ? (double)gma_bf16_to_f32(((const uint16_t *)t->data)[i])
                                  : (double)((const float *)t->data)[i];
}

static int64_t count_of(const gma_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) {
        n *= t->shape[i];
    }
    return n;
}

/* The largest difference, relative to the largest value. */
static gma_status compare(int32_t slot, const gma_tensor *got, const gma_tensor *expected, double tolerance) {
    double error = 0.0, size = 1e-3; /* what should be 0 everywhere may be a little off */
    for (int64_t i = 0; i < count_of(expected); i++) {
        const double x = read_value(expected, i), d = fabs(read_value(got, i) - x);
        if (!(d <= error)) {
            error = d; /* a NaN stays */
        }
        size = fmax(size, fabs(x));
    }
    if (!(error <= tolerance * size)) {
        return gma_fail(GMA_ERR_NON_FINITE,
                        "wrong result, not timed: %s differs from the definition by %.3g of its largest value (%.0e allowed)",
                        gma_slot_name(slot), error / size, tolerance);
    }
    return GMA_OK;
}

static const gma_slot_info *info_of(const bench_case *c, int32_t slot) {
    int count;
    const gma_slot_info *info = gma_mixer_slots(c->shape.kind, &count);
    for (int i = 0; i < count; i++) {
        if (info[i].slot == slot) {
            return &info[i];
        }
    }
    return NULL;
}

static int is_output(const bench_case *c, int32_t slot) {
    const gma_slot_info *info = info_of(c, slot);
    return info != NULL && info->role == GMA_ROLE_OUTPUT;
}

/* The dimension that counts tokens, -1 where there is none. */
static int token_dim(const bench_case *c, int32_t slot) {
    const char *dims = info_of(c, slot)->dims, *at = strpbrk(dims, "qk");
    return at != NULL ? (int)(at - dims) : -1;
}

/* The results of the definition for the tensors of `c`, in f64, in the order of c->backward. */
static gma_status define(const bench_case *c, gma_arg *args, int *count) {
    gma_status status = GMA_OK;
    *count = 0;
    for (int i = 0; i < c->backward_count && status == GMA_OK; i++) {
        gma_arg a = c->backward[i];
        const int is_grad = (a.slot & GMA_GRAD_BIT) != 0;
        if (is_output(c, a.slot) || (is_grad && !is_output(c, a.slot & ~GMA_GRAD_BIT))) {
            const gma_tensor *t = &c->backward[i].tensor;
            void *data;
            status = bench_allocate((size_t)count_of(t) * sizeof(double), &data);
            a.tensor = gma_tensor_of(data, GMA_F64, t->rank, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
        }
        args[(*count)++] = a;
    }
    if (status == GMA_OK) {
        status = gma_mixer_naive_forward(c->mixer, args, c->forward_count);
    }
    if (status == GMA_OK && c->shape.pass == BENCH_FORWARD_BACKWARD) {
        status = gma_mixer_naive_backward(c->mixer, args, *count);
    }
    return status;
}

/* The tokens of `c` one after another, from an empty state. */
static gma_status run_steps(bench_case *c) {
    gma_mixer_size size = {.struct_size = sizeof size};
    gma_arg prepare[BENCH_MAX_ARGS], step[BENCH_MAX_ARGS];
    int prepared = 0, stepped = 0;
    void *state;
    gma_status status = gma_mixer_sizes(c->mixer, c->shape.threads, &size);
    if (status != GMA_OK || (status = bench_allocate(size.state, &state)) != GMA_OK) {
        return status;
    }
    for (int i = 0; i < c->forward_count; i++) {
        const int at = token_dim(c, c->forward[i].slot);
        if (at >= 0) {
            step[stepped] = c->forward[i];
            step[stepped++].tensor.shape[at] = 1;
        } else {
            prepare[prepared++] = c->forward[i];
        }
    }
    status = gma_mixer_state_init(c->mixer, prepare, prepared, state);
    for (int t = 0; t < TOKENS && status == GMA_OK; t++) {
        status = gma_mixer_step(c->mixer, step, stepped, state, c->shape.threads);
        for (int i = 0; i < stepped; i++) {
            gma_tensor *x = &step[i].tensor;
            const int64_t stride = x->stride[token_dim(c, step[i].slot)];
            x->data = (char *)x->data + (size_t)stride * gma_dtype_size((gma_dtype)x->dtype);
        }
    }
    free(state);
    return status;
}

gma_status bench_check(const bench_shape *shape) {
    const int64_t group = shape->heads / shape->kv_heads;
    bench_shape s = *shape;
    bench_case c;
    gma_arg args[BENCH_MAX_ARGS];
    int count = 0;
    s.batch = 1;
    s.kv_heads = s.kv_heads < 2 ? s.kv_heads : 2;
    s.heads = s.kv_heads * group;
    s.length = TOKENS;
    s.packed = s.packed < 3 ? s.packed : 3;
    if (shape->pass == BENCH_DECODE) {
        s.pass = BENCH_FORWARD; /* the tensors of a whole sequence */
        s.decoded = 1;
        s.causal = 1;
    }
    gma_status status = bench_case_open(&c, &s);
    if (status == GMA_OK) {
        status = shape->pass == BENCH_DECODE ? run_steps(&c) : bench_case_run(&c);
    }
    if (status == GMA_OK) {
        status = define(&c, args, &count);
    }
    for (int i = 0; i < count && status == GMA_OK; i++) {
        const int is_grad = (args[i].slot & GMA_GRAD_BIT) != 0;
        if (args[i].tensor.dtype == GMA_F64) {
            const double tolerance = s.bf16 ? 2e-2 : is_grad ? 1e-3 : 1e-4;
            status = compare(args[i].slot, &c.backward[i].tensor, &args[i].tensor, tolerance);
        }
    }
    for (int i = 0; i < count; i++) {
        if (args[i].tensor.dtype == GMA_F64) {
            free(args[i].tensor.data);
        }
    }
    bench_case_close(&c);
    return status;
}
