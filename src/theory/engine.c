#include "theory/engine.h"

#include <stdlib.h>
#include <string.h>

#include "gma/attention.h"

int gmal_engines(gmal_engine *list, int threads) {
    int count = 0;
    list[count++] = (gmal_engine){"double", 1, threads, GMA_ISA_AUTO, 0x1p-53};
    for (int i = GMA_ISA_SCALAR; gma_isa_name((gma_isa)i) && count < GMAL_MOST_ENGINES; i++)
        if (gma_isa_built((gma_isa)i) && gma_isa_supported((gma_isa)i))
            list[count++] = (gmal_engine){gma_isa_name((gma_isa)i), 0, threads, (gma_isa)i, 0x1p-24};
    return count;
}

static gma_status no_memory(void) { return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to verify a mixture"); }

static int64_t count_of(const gma_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static float *to_float(const double *x, int64_t n) {
    float *y = malloc((size_t)(n > 0 ? n : 1) * sizeof *y);
    for (int64_t i = 0; y && i < n; i++)
        y[i] = (float)x[i];
    return y;
}

static void to_double(const float *x, int64_t n, double *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)x[i];
}

gma_status gmal_gamma(const gmal_engine *e, const gmal_case *m, const double *x, int64_t rows, double *gamma) {
    const gma_dtype type = e->naive ? GMA_F64 : GMA_F32;
    const void *in[5] = {x, m->mu, m->omega, m->alpha, &m->logit_scale};
    const int64_t sizes[5] = {rows * m->r, m->k * m->r, m->k * m->r, m->k, 1};
    float *copies[5] = {0}, *out = NULL;
    gma_status s = GMA_OK;
    for (int i = 0; i < 5 && !e->naive; i++) {
        copies[i] = to_float(in[i], sizes[i]);
        in[i] = copies[i];
        if (!copies[i])
            s = no_memory();
    }
    if (!e->naive && !(out = malloc((size_t)(rows * m->k + 1) * sizeof *out)))
        s = no_memory();
    if (s == GMA_OK) {
        const gma_tensor tx = gma_tensor_of(in[0], type, 4, 1, 1, rows, m->r), tm = gma_tensor_of(in[1], type, 3, 1, m->k, m->r, 0),
                         to = gma_tensor_of(in[2], type, 3, 1, m->k, m->r, 0), ta = gma_tensor_of(in[3], type, 2, 1, m->k, 0, 0),
                         ts = gma_tensor_of(in[4], type, 1, 1, 0, 0, 0),
                         tg = gma_tensor_of(e->naive ? (void *)gamma : (void *)out, type, 4, 1, 1, rows, m->k);
        s = gma_responsibilities(&tx, &tm, &to, &ta, &ts, &tg, m->eps_sigma, e->isa, e->naive, e->threads);
    }
    if (s == GMA_OK && out)
        to_double(out, rows * m->k, gamma);
    for (int i = 0; i < 5; i++)
        free(copies[i]);
    free(out);
    return s;
}

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

static gma_tensor *add(gmal_call *c, int32_t slot, const double *x, double *to, int rank, const int64_t *n) {
    if (c->status != GMA_OK)
        return NULL;
    if (c->count == GMAL_CALL_ARGS) {
        c->status = gma_fail(GMA_ERR_UNSUPPORTED, "more tensors than a call of the verification holds");
        return NULL;
    }
    gma_arg *a = &c->args[c->count];
    const void *data = to ? to : x;
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= n[i];
    if (!c->e->naive) {
        float *copy = to ? calloc((size_t)(count > 0 ? count : 1), sizeof *copy) : to_float(x, count);
        if (!copy) {
            c->status = no_memory();
            return NULL;
        }
        c->held[c->count] = copy;
        data = copy;
    }
    a->slot = slot;
    a->tensor = gma_tensor_of(data, c->e->naive ? GMA_F64 : GMA_F32, rank, n[0], n[1], n[2], n[3]);
    c->to[c->count++] = to;
    return &a->tensor;
}

/* All heads read one mixture: a first dimension of stride 0. */
static void parameter(gmal_call *c, int32_t slot, const double *x, int rank, int64_t n1, int64_t n2) {
    const int64_t n[4] = {1, n1, n2, 1};
    gma_tensor *t = add(c, slot, x, NULL, rank, n);
    if (t) {
        t->shape[0] = c->desc.heads;
        t->stride[0] = 0;
    }
}

void gmal_call_begin(gmal_call *c, const gmal_engine *e, const gmal_case *m, int64_t heads, int64_t q_len, int64_t k_len,
                     int64_t value_dim, int causal) {
    memset(c, 0, sizeof *c);
    c->e = e;
    c->status = gma_mixer_desc_init(&c->desc, GMA_MIXER_GMA);
    gma_mixer_desc *d = &c->desc;
    d->isa = e->isa;
    d->causal = causal;
    d->batch = 1;
    d->heads = d->kv_heads = heads;
    d->q_len = q_len;
    d->k_len = k_len;
    d->routing_dim = m->r;
    d->value_dim = value_dim;
    d->components = m->k;
    d->eps = m->eps;
    d->eps_sigma = m->eps_sigma;
    parameter(c, GMA_MU, m->mu, 3, m->k, m->r);
    parameter(c, GMA_OMEGA, m->omega, 3, m->k, m->r);
    parameter(c, GMA_ALPHA, m->alpha, 2, m->k, 1);
    parameter(c, GMA_LOGIT_SCALE, &m->logit_scale, 1, 1, 1);
}

/* Rank 4 begins with the batch of 1, lower ranks with the heads. */
static void tensor(gmal_call *c, int32_t slot, const double *x, double *to, int rank, int64_t n1, int64_t n2, int64_t n3) {
    const int64_t four[4] = {1, n1, n2, n3}, fewer[4] = {n1, n2, n3, 1};
    add(c, slot, x, to, rank, rank == 4 || slot == GMA_STATE_Z || slot == GMA_OUT_Z || slot == GMA_GRAD(GMA_OUT_Z) ||
                                      slot == GMA_GRAD(GMA_STATE_Z)
                                  ? four
                                  : fewer);
}

void gmal_call_in(gmal_call *c, int32_t slot, const double *x, int rank, int64_t n1, int64_t n2, int64_t n3) {
    tensor(c, slot, x, NULL, rank, n1, n2, n3);
}

void gmal_call_out(gmal_call *c, int32_t slot, double *x, int rank, int64_t n1, int64_t n2, int64_t n3) {
    tensor(c, slot, x, x, rank, n1, n2, n3);
}

/* forward: all but gradients. backward: all but the outgoing state. */
static int pick(const gmal_call *c, int backward, gma_arg *args) {
    int count = 0;
    for (int i = 0; i < c->count; i++) {
        const int32_t slot = c->args[i].slot;
        if (backward ? slot != GMA_OUT_S && slot != GMA_OUT_Z : !(slot & GMA_GRAD_BIT))
            args[count++] = c->args[i];
    }
    return count;
}

static void *aligned(size_t bytes) { return aligned_alloc(64, (bytes + 64) / 64 * 64); }

static gma_status run_fast(const gmal_call *c, const gma_mixer *mixer, int backward) {
    gma_arg args[GMAL_CALL_ARGS];
    gma_mixer_size size = {.struct_size = sizeof size};
    gma_status s = gma_mixer_sizes(mixer, c->e->threads, &size);
    if (s != GMA_OK)
        return s;
    const size_t scratch = size.forward_scratch > size.backward_scratch ? size.forward_scratch : size.backward_scratch;
    gma_exec x = {.struct_size = sizeof x, .threads = c->e->threads, .scratch_bytes = scratch, .saved_bytes = size.saved};
    x.scratch = aligned(scratch);
    x.saved = aligned(size.saved);
    if (!x.scratch || !x.saved)
        s = no_memory();
    if (s == GMA_OK)
        s = gma_mixer_forward(mixer, args, pick(c, 0, args), &x);
    if (s == GMA_OK && backward)
        s = gma_mixer_backward(mixer, args, pick(c, 1, args), &x);
    free(x.scratch);
    free(x.saved);
    return s;
}

static gma_status run_naive(const gmal_call *c, const gma_mixer *mixer, int backward) {
    gma_arg args[GMAL_CALL_ARGS];
    const gma_status s = gma_mixer_naive_forward(mixer, args, pick(c, 0, args));
    return s == GMA_OK && backward ? gma_mixer_naive_backward(mixer, args, pick(c, 1, args)) : s;
}

gma_status gmal_call_run(gmal_call *c, int backward) {
    gma_mixer *mixer = NULL;
    gma_status s = c->status;
    if (s == GMA_OK)
        s = gma_mixer_create(&c->desc, &mixer);
    if (s == GMA_OK)
        s = (c->e->naive ? run_naive : run_fast)(c, mixer, backward);
    gma_mixer_destroy(mixer);
    for (int i = 0; i < c->count; i++) {
        if (s == GMA_OK && c->to[i] && c->held[i])
            to_double(c->held[i], count_of(&c->args[i].tensor), c->to[i]);
        free(c->held[i]);
    }
    c->count = 0;
    return s;
}
