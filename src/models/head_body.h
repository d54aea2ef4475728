/* The loss at the end of a stack: logits = nf head^T, block rows at a time. */

/* Rows of logits at a time: enough for a good product, few enough that a large vocabulary costs little memory. */
static int64_t block_rows(int64_t rows, int64_t vocab) {
    const int64_t fit = (INT64_C(1) << 20) / vocab, most = fit < 64 ? 64 : fit > 1024 ? 1024 : fit;
    return rows < most ? rows : most;
}

/* With grads also s->dn = gradient at nf, and the head's gradient. logits: (block, vocab). */
static gma_status head(stack *s, real *logits, int64_t block, const real *params, real *grads, const int32_t *targets,
                       double scale, double *sum) {
    const gmal_layout *l = s->l;
    const int64_t C = l->c.width, V = l->c.vocab, R = s->R;
    *sum = 0;
    for (int64_t r = 0; r < R; r += block) {
        const int64_t m = R - r < block ? R - r : block;
        const real *x = s->nf + r * C;
        TRY(GMAL_T(gmal_matmul)(0, 1, m, V, C, 1, x, C, params + l->head, C, 0, logits, V, s->threads));
        *sum += GMAL_T(gmal_cross_entropy)(logits, targets + r, m, V, grads ? scale : 0, s->threads);
        if (!grads)
            continue;
        TRY(GMAL_T(gmal_matmul)(0, 0, m, C, V, 1, logits, V, params + l->head, C, 0, s->dn + r * C, C, s->threads));
        TRY(GMAL_T(gmal_matmul)(1, 0, V, C, m, 1, logits, V, x, C, 1, grads + l->head, C, s->threads));
    }
    return GMA_OK;
}
