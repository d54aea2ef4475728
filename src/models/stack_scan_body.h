/* Mamba between its convolution and its gate, forward and backward:
 *
 *     u = silu(c + conv_b)     [r | B | C] = u w_x^T     delta = r w_dt^T     y = scan(u, delta, A, B, C, D) */

/* The parameters as the operator takes them: A = -exp(A_log), everything else as it is. */
static const real *slot_value(const sub_act *a, const gmal_slot_param *p, const real *params) {
    return p->log_negative ? a->negative : params + p->offset;
}

static GMAL_T(gmal_mixer_io) scan_io(const stack *s, const sub_act *a, const gmal_sub *m, const real *params) {
    GMAL_T(gmal_mixer_io) io = {0};
    io.u = a->u;
    io.delta = a->delta;
    io.b = a->x + m->rank;
    io.c = a->x + m->rank + m->spec.states;
    io.ldb = m->rank + 2 * m->spec.states;
    io.o = a->o;
    io.cu_seqlens = s->cu;
    io.params = m->slots;
    for (int j = 0; j < m->slots; j++) {
        io.slot[j] = m->slot[j].slot;
        io.param[j] = (real *)(uintptr_t)slot_value(a, &m->slot[j], params); /* inputs: only read */
    }
    return io;
}

static gma_status scan_forward(stack *s, int64_t i, const real *params, const gma_exec *exec) {
    const gmal_sub *m = &s->blocks[i].mixer;
    const sub_act *a = &s->acts[i].mixer;
    const int64_t E = m->qkv, X = m->rank + 2 * m->spec.states;
    for (int j = 0; j < m->slots; j++)
        for (int64_t k = 0; m->slot[j].log_negative && k < m->slot[j].count; k++)
            a->negative[k] = (real)-exp((double)params[m->slot[j].offset + k]);
    GMAL_T(gmal_silu_forward)(a->c, params + m->conv_b, a->u, s->R, E, s->threads);
    TRY(linear(a->u, params + m->w_x, a->x, s->R, E, X, s->threads));
    TRY(GMAL_T(gmal_matmul)(0, 1, s->R, E, m->rank, 1, a->x, X, params + m->w_dt, m->rank, 0, a->delta, E, s->threads));
    const GMAL_T(gmal_mixer_io) io = scan_io(s, a, m, params);
    return GMAL_T(gmal_mixer_forward)(s->ops[i].mixer, &io, exec);
}

/* From d_o to dc, the gradient at c; those of the operator's parameters in grad->param. */
static gma_status scan_backward(stack *s, int64_t i, const real *params, real *grads, GMAL_T(gmal_mixer_io) * grad,
                                const gma_exec *exec) {
    const gmal_sub *m = &s->blocks[i].mixer;
    const sub_act *a = &s->acts[i].mixer;
    const int64_t E = m->qkv, rank = m->rank, X = rank + 2 * m->spec.states, R = s->R;
    const GMAL_T(gmal_mixer_io) io = scan_io(s, a, m, params);
    grad->u = s->du;
    grad->delta = s->ddelta;
    grad->b = s->dxp + rank;
    grad->c = s->dxp + rank + m->spec.states;
    grad->ldb = X;
    TRY(GMAL_T(gmal_mixer_backward)(s->ops[i].mixer, &io, grad, exec));
    TRY(GMAL_T(gmal_matmul)(1, 0, E, rank, R, 1, s->ddelta, E, a->x, X, 1, grads + m->w_dt, rank, s->threads));
    TRY(GMAL_T(gmal_matmul)(0, 0, R, rank, E, 1, s->ddelta, E, params + m->w_dt, rank, 0, s->dxp, X, s->threads));
    TRY(GMAL_T(gmal_matmul)(1, 0, X, E, R, 1, s->dxp, X, a->u, E, 1, grads + m->w_x, E, s->threads));
    TRY(GMAL_T(gmal_matmul)(0, 0, R, E, X, 1, s->dxp, X, params + m->w_x, E, 1, s->du, E, s->threads));
    GMAL_T(gmal_silu_backward)(a->c, params + m->conv_b, s->du, s->dc, grads + m->conv_b, s->R, E, s->threads);
    return GMA_OK;
}
