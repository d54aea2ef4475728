/* Cross-attention, forward and backward: queries from the stream, keys and values from another sequence, the memory. */

static GMAL_T(gmal_mixer_io) cross_io(const stack *s, const sub_act *a, const gmal_sub *m, const real *params) {
    GMAL_T(gmal_mixer_io) io = {0};
    io.q = a->p;
    io.ldq = m->proj;
    io.k = a->kv;
    io.v = a->kv + m->k;
    io.ldk = m->kv;
    io.o = a->o;
    io.logit_scale = a->scale;
    io.key_mask = s->memory_mask;
    io_params(&io, m, params);
    return io;
}

/* s->y from the norm of the stream. */
static gma_status cross_forward(stack *s, int64_t i, const real *params) {
    const gmal_sub *m = &s->blocks[i].cross;
    sub_act *a = &s->acts[i].cross;
    const int64_t C = s->l->c.width;
    TRY(linear(a->n, params + m->w_proj, a->p, s->R, C, m->proj, s->threads));
    TRY(linear(s->memory, params + m->w_kv, a->kv, s->M, C, m->kv, s->threads));
    if (a->scale)
        TRY(logit_scales(s, m, params, a->scale));
    const GMAL_T(gmal_mixer_io) io = cross_io(s, a, m, params);
    const gma_exec x = exec_of(s, a, &s->cross_ops[i]);
    TRY(GMAL_T(gmal_mixer_forward)(s->cross_ops[i].mixer, &io, &x));
    return out_forward(s, m, a, params);
}

/* s->dn, the gradient at that norm, from dy at s->y; s->dmemory += the one at the memory. */
static gma_status cross_backward(stack *s, int64_t i, const real *params, real *grads, const real *dy) {
    const gmal_sub *m = &s->blocks[i].cross;
    const sub_act *a = &s->acts[i].cross;
    const int64_t C = s->l->c.width;
    TRY(out_backward(s, m, a, params, grads, dy));
    const GMAL_T(gmal_mixer_io) io = cross_io(s, a, m, params);
    GMAL_T(gmal_mixer_io) grad = {0};
    grad.q = s->dp;
    grad.ldq = m->proj;
    grad.k = s->dkv;
    grad.v = s->dkv + m->k;
    grad.ldk = m->kv;
    grad_params(s, &grad, m);
    const gma_exec x = exec_of(s, a, &s->cross_ops[i]);
    TRY(GMAL_T(gmal_mixer_backward)(s->cross_ops[i].mixer, &io, &grad, &x));
    add_param_grads(s, a, m, &grad, grads);
    TRY(GMAL_T(gmal_matmul)(0, 0, s->M, C, m->kv, 1, s->dkv, m->kv, params + m->w_kv, C, 1, s->dmemory, C, s->threads));
    TRY(GMAL_T(gmal_matmul)(1, 0, m->kv, C, s->M, 1, s->dkv, m->kv, s->memory, C, 1, grads + m->w_kv, C, s->threads));
    return linear_backward(a->n, params + m->w_proj, s->dp, s->dn, grads + m->w_proj, s->R, C, m->proj, s->threads);
}
