/* The mixer of a block, forward and backward: projections, convolution, rotation, gates, the operator, projection out.
 */

/* y (rows, out) = x (rows, in) W^T */
static gma_status linear(const real *x, const real *w, real *y, int64_t rows, int64_t in, int64_t out, int threads) {
    return GMAL_T(gmal_matmul)(0, 1, rows, out, in, 1, x, in, w, in, 0, y, out, threads);
}

/* dW += dy^T x */
static gma_status weight_gradient(const real *x, const real *dy, real *dw, int64_t rows, int64_t in, int64_t out, int threads) {
    return GMAL_T(gmal_matmul)(1, 0, out, in, rows, 1, dy, out, x, in, 1, dw, in, threads);
}

/* dx = dy W, dW += dy^T x */
static gma_status linear_backward(const real *x, const real *w, const real *dy, real *dx, real *dw, int64_t rows,
                                  int64_t in, int64_t out, int threads) {
    TRY(GMAL_T(gmal_matmul)(0, 0, rows, in, out, 1, dy, out, w, in, 0, dx, in, threads));
    return weight_gradient(x, dy, dw, rows, in, out, threads);
}

static const real *at(const real *p, int64_t offset) { return offset < 0 ? NULL : p + offset; }
static real *grad_at(real *p, int64_t offset) { return offset < 0 ? NULL : p + offset; }

#include "models/stack_scan_body.h"

/* Rows of the operator's batch: packed sequences are one. */
static int64_t op_batch(const stack *s) { return s->cu ? 1 : s->B; }

static void io_params(GMAL_T(gmal_mixer_io) * io, const gmal_sub *m, const real *params) {
    io->params = m->slots;
    for (int i = 0; i < m->slots; i++) {
        io->slot[i] = m->slot[i].slot;
        io->param[i] = (real *)(uintptr_t)(params + m->slot[i].offset); /* inputs: only read */
    }
}

static GMAL_T(gmal_mixer_io) mixer_io(const stack *s, const act *a, const gmal_sub *m, const real *params) {
    const sub_act *x = &a->mixer;
    GMAL_T(gmal_mixer_io) io = {0};
    io.ldq = io.ldk = m->spec.conv ? m->qkv : m->proj;
    io.q = x->c;
    io.k = x->c + m->q;
    io.v = x->c + m->q + m->k;
    io.o = x->o;
    io.logit_scale = x->scale;
    io.log_decay = x->decay;
    io.key_mask = s->mask;
    io.cu_seqlens = s->cu;
    io_params(&io, m, params);
    return io;
}

static void grad_params(const stack *s, GMAL_T(gmal_mixer_io) * grad, const gmal_sub *m) {
    real *p = s->dparam;
    grad->o = s->d_o;
    grad->logit_scale = m->spec.logit_scale ? s->dscale : NULL;
    grad->params = m->slots;
    for (int i = 0; i < m->slots; i++) {
        grad->slot[i] = m->slot[i].slot;
        if (m->slot[i].fixed)
            continue;
        grad->param[i] = p;
        p += m->slot[i].count;
    }
}

/* What the operator gave into the parameters' gradients. */
static void add_param_grads(const stack *s, const sub_act *a, const gmal_sub *m, const GMAL_T(gmal_mixer_io) * grad,
                            real *grads) {
    for (int j = 0; j < m->slots; j++)
        for (int64_t k = 0; grad->param[j] && k < m->slot[j].count; k++)
            grads[m->slot[j].offset + k] += grad->param[j][k] * (m->slot[j].log_negative ? a->negative[k] : 1);
    for (int64_t h = 0; a->scale && h < s->l->c.kv_heads; h++)
        grads[m->logit_scale + h] += s->dscale[h] * a->scale[h];
}

static GMAL_T(gmal_mixer_io) mixer_grad(const stack *s, const gmal_sub *m) {
    GMAL_T(gmal_mixer_io) grad = {0};
    grad.ldq = grad.ldk = m->spec.conv ? m->qkv : m->proj;
    grad.q = m->spec.conv ? s->dc : s->dp;
    grad.k = grad.q + m->q;
    grad.v = grad.q + m->q + m->k;
    grad.log_decay = m->forget ? s->ddecay : NULL;
    grad_params(s, &grad, m);
    return grad;
}

static void rotate(const stack *s, const gmal_sub *m, real *qkv, int64_t ld, int sign) {
    const gma_lm_config *c = &s->l->c;
    if (!gmal_layer_turns(&m->spec))
        return;
    GMAL_T(gmal_rotary)(qkv, ld, s->cs, sequences(s), c->heads, c->routing_dim, sign, s->threads);
    GMAL_T(gmal_rotary)(qkv + m->q, ld, s->cs, sequences(s), c->kv_heads, c->routing_dim, sign, s->threads);
}

/* The mixer refuses a scale that is not positive and finite; a diverging run reaches that, and should hear which
 * parameter it was. */
static gma_status logit_scales(const stack *s, const gmal_sub *m, const real *params, real *scale) {
    for (int64_t h = 0; h < s->l->c.kv_heads; h++) {
        const double p = (double)params[m->logit_scale + h];
        scale[h] = (real)exp(p);
        if (!(scale[h] > 0) || !isfinite(scale[h]))
            return gma_fail(GMA_ERR_NON_FINITE, "%s (%g has no finite exponential)", gmal_param_at(s->l, m->logit_scale), p);
    }
    return GMA_OK;
}

/* What mixer number b of an operator that has one a sequence works on. */
static GMAL_T(gmal_mixer_io) shift(const GMAL_T(gmal_mixer_io) * io, const gmal_sub *m, int64_t row) {
    GMAL_T(gmal_mixer_io) one = *io;
    one.q += row * io->ldq;
    one.k += row * io->ldk;
    one.v += row * io->ldk;
    one.o += row * m->out;
    one.cu_seqlens = NULL;
    return one;
}

static gma_exec part(const gma_exec *x, const one_mixing *one) {
    gma_exec y = *x;
    y.saved = x->saved ? (char *)x->saved + one->at : NULL;
    y.saved_bytes = x->saved ? one->saved : 0;
    return y;
}

static gma_status mix_forward(stack *s, int64_t i, const GMAL_T(gmal_mixer_io) * io, const gma_exec *x) {
    const mixing *op = &s->ops[i];
    if (!op->each)
        return GMAL_T(gmal_mixer_forward)(op->mixer, io, x);
    for (int64_t b = 0; b < s->B; b++) {
        GMAL_T(gmal_mixer_io) one = shift(io, &s->blocks[i].mixer, op->each[b].row);
        const gma_exec y = part(x, &op->each[b]);
        one.ldp = s->l->c.context;
        TRY(GMAL_T(gmal_mixer_forward)(op->each[b].mixer, &one, &y));
    }
    return GMA_OK;
}

/* Gradients of parameters are left in grad->param; where there is a mixer a sequence they are added to grads at once. */
static gma_status mix_backward(stack *s, int64_t i, real *grads, const GMAL_T(gmal_mixer_io) * io,
                               GMAL_T(gmal_mixer_io) * grad, const gma_exec *x) {
    const mixing *op = &s->ops[i];
    const gmal_sub *m = &s->blocks[i].mixer;
    const int64_t context = s->l->c.context;
    if (!op->each)
        return GMAL_T(gmal_mixer_backward)(op->mixer, io, grad, x);
    for (int64_t b = 0; b < s->B; b++) {
        const int64_t row = op->each[b].row, N = b + 1 < s->B ? op->each[b + 1].row - row : s->R - row;
        GMAL_T(gmal_mixer_io) one = shift(io, m, row), back = shift(grad, m, row);
        const gma_exec y = part(x, &op->each[b]);
        one.ldp = context;
        TRY(GMAL_T(gmal_mixer_backward)(op->each[b].mixer, &one, &back, &y));
        for (int j = 0; j < m->slots; j++)
            for (int64_t p = 0; back.param[j] && p < m->slot[j].count / context; p++)
                for (int64_t t = 0; t < N; t++)
                    grads[m->slot[j].offset + p * context + t] += back.param[j][p * N + t];
    }
    memset(grad->param, 0, sizeof grad->param);
    return GMA_OK;
}

static gma_exec exec_of(const stack *s, const sub_act *a, const mixing *op) {
    return (gma_exec){sizeof(gma_exec), s->threads, 0, s->scratch, s->scratch_bytes, a->saved,
                      a->saved ? op->size.saved : 0};
}

/* s->y from a->o: gate, whose rows lie behind q, k and v, and out-projection. */
static gma_status out_forward(stack *s, const gmal_sub *m, const sub_act *a, const real *params) {
    if (m->gate)
        GMAL_T(gmal_gate_forward)(a->o, a->p + m->qkv, m->proj, a->og, s->R, m->out, s->threads);
    return linear(a->og, params + m->w_out, s->y, s->R, m->out, s->l->c.width, s->threads);
}

/* s->d_o, and the gate's part of s->dp, from dy at s->y. */
static gma_status out_backward(stack *s, const gmal_sub *m, const sub_act *a, const real *params, real *grads,
                               const real *dy) {
    real *dog = m->gate ? s->dog : s->d_o;
    TRY(linear_backward(a->og, params + m->w_out, dy, dog, grads + m->w_out, s->R, m->out, s->l->c.width, s->threads));
    if (m->gate)
        GMAL_T(gmal_gate_backward)
    (a->o, a->p + m->qkv, m->proj, dog, s->d_o, s->dp + m->qkv, m->proj, s->R, m->out, s->threads);
    return GMA_OK;
}

/* s->y from the norm of the block's input. */
static gma_status mixer_forward(stack *s, int64_t i, const real *params) {
    const gmal_sub *m = &s->blocks[i].mixer;
    sub_act *a = &s->acts[i].mixer;
    const int64_t ld = m->spec.conv ? m->qkv : m->proj;
    TRY(linear(a->n, params + m->w_proj, a->p, s->R, s->l->c.width, m->proj, s->threads));
    if (m->spec.conv)
        GMAL_T(gmal_conv_forward)
    (a->p, m->proj, params + m->conv, a->c, m->qkv, sequences(s), m->qkv, m->spec.conv, s->threads);
    rotate(s, m, a->c, ld, 1);
    if (m->forget)
        GMAL_T(gmal_forget_forward)
    (a->p + m->qkv + m->gate, m->proj, params + m->forget_b, a->decay, op_batch(s), s->R / op_batch(s), m->forget,
     s->threads);
    if (a->scale)
        TRY(logit_scales(s, m, params, a->scale));
    const GMAL_T(gmal_mixer_io) io = mixer_io(s, &s->acts[i], m, params);
    const gma_exec x = exec_of(s, a, &s->ops[i]);
    TRY(m->rank ? scan_forward(s, i, params, &x) : mix_forward(s, i, &io, &x));
    return out_forward(s, m, a, params);
}

/* s->dn, the gradient at that norm, from dy at s->y. */
static gma_status mixer_backward(stack *s, int64_t i, const real *params, real *grads, const real *dy) {
    const gmal_sub *m = &s->blocks[i].mixer;
    const sub_act *a = &s->acts[i].mixer;
    const int64_t C = s->l->c.width;
    TRY(out_backward(s, m, a, params, grads, dy));
    const GMAL_T(gmal_mixer_io) io = mixer_io(s, &s->acts[i], m, params);
    GMAL_T(gmal_mixer_io) grad = mixer_grad(s, m);
    const gma_exec x = exec_of(s, a, &s->ops[i]);
    TRY(m->rank ? scan_backward(s, i, params, grads, &grad, &x)
                : mix_backward(s, i, grads, &io, &grad, &x));
    add_param_grads(s, a, m, &grad, grads);
    rotate(s, m, grad.q, grad.ldq, -1);
    if (m->spec.conv)
        GMAL_T(gmal_conv_backward)
    (s->dc, m->qkv, a->p, m->proj, params + m->conv, s->dp, m->proj, grads + m->conv, sequences(s), m->qkv,
     m->spec.conv, s->threads);
    if (m->forget)
        GMAL_T(gmal_forget_backward)
    (s->ddecay, a->decay, s->dp + m->qkv + m->gate, m->proj, grads + m->forget_b, op_batch(s),
     s->R / op_batch(s), m->forget, s->threads);
    return linear_backward(a->n, params + m->w_proj, s->dp, s->dn, grads + m->w_proj, s->R, C, m->proj, s->threads);
}
