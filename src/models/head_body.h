/* The head and the loss at the end of a stack: a row of logits a token, or a row a sequence. */

/* Memory for them. */
typedef struct head_room {
    real *pooled, *dpooled; /* (B, C): classifier */
    real *logits;           /* (block, outputs) */
    int64_t block, *rows;   /* the rows of a block that have a target, */
    real *x, *dx;           /* one behind the other, (block, C), */
    int32_t *targets;       /* and theirs */
} head_room;

static int classifies(const stack *s) { return s->l->c.task == GMA_LM_TASK_CLASSIFY; }

/* Rows of logits at a time: enough for a good product, few enough that a large vocabulary costs little memory. */
static int64_t block_rows(int64_t rows, int64_t vocab) {
    const int64_t fit = (INT64_C(1) << 22) / vocab, most = fit < 64 ? 64 : fit > 1024 ? 1024 : fit;
    return rows < most ? rows : most;
}

static void place_head(const stack *s, head_room *n, bump *b) {
    const int64_t C = s->l->c.width, pooled = classifies(s) ? s->B * C : 0;
    n->block = block_rows(classifies(s) ? s->B : s->R, s->l->outputs);
    n->pooled = take(b, pooled);
    n->dpooled = take(b, pooled);
    n->logits = take(b, n->block * s->l->outputs);
    n->rows = take_bytes(b, (size_t)n->block * sizeof *n->rows);
    n->targets = take_bytes(b, (size_t)n->block * sizeof *n->targets);
    n->x = take(b, n->block * C);
    n->dx = take(b, n->block * C);
}

/* What the head reads and gives its gradient to: a row a token, or a row a sequence. */
typedef struct head_rows {
    int64_t count;
    const real *x;
    real *dx;
} head_rows;

static head_rows rows_of_head(stack *s, const head_room *n) {
    if (!classifies(s))
        return (head_rows){s->R, s->nf, s->dn};
    GMAL_T(gmal_pool_forward)
    (s->l->c.pooling == GMA_LM_POOLING_CLS ? GMAL_POOL_FIRST : GMAL_POOL_MEAN, s->nf, n->pooled, sequences(s), s->l->c.width,
     s->threads);
    return (head_rows){s->B, n->pooled, n->dpooled};
}

/* A block of rows that have a target, from row *from on: where they are (those of the stream itself, or gathered), and how many.
 * Others have no loss and, with grads, a gradient of zero. */
typedef struct head_block {
    int64_t count;
    int gathered;
    const real *x;
    real *dx;
    const int32_t *targets;
} head_block;

static head_block next_block(const head_room *n, int64_t C, const head_rows *h, const int32_t *targets, int grads, int64_t *from) {
    int64_t m = 0, r = *from;
    for (; r < h->count && m < n->block; r++) {
        if (targets[r] >= 0)
            n->rows[m++] = r;
        else if (grads)
            memset(h->dx + r * C, 0, (size_t)C * sizeof(real));
    }
    *from = r;
    if (m == 0 || n->rows[m - 1] - n->rows[0] == m - 1) {
        const int64_t first = m ? n->rows[0] : 0;
        return (head_block){m, 0, h->x + first * C, h->dx + first * C, targets + first};
    }
    for (int64_t i = 0; i < m; i++) {
        memcpy(n->x + i * C, h->x + n->rows[i] * C, (size_t)C * sizeof(real));
        n->targets[i] = targets[n->rows[i]];
    }
    return (head_block){m, 1, n->x, n->dx, n->targets};
}

/* How many rows have their largest logit - the first of equal ones - at the target. */
static int64_t hits(const real *logits, const int32_t *targets, int64_t rows, int64_t count) {
    int64_t right = 0;
    for (int64_t r = 0; r < rows; r++) {
        const real *x = logits + r * count;
        int64_t top = 0;
        for (int64_t i = 1; i < count; i++) top = x[i] > x[top] ? i : top;
        right += top == targets[r];
    }
    return right;
}

/* Loss in blocks of rows; with grads also dn = gradient at nf and the head's gradient. right may be NULL. */
static gma_status head(stack *s, const head_room *n, const real *params, real *grads, const int32_t *targets, double scale, double *sum,
                       int64_t *right) {
    const gmal_layout *l = s->l;
    const int64_t C = l->c.width, V = l->outputs;
    const head_rows h = rows_of_head(s, n);
    *sum = 0;
    if (right)
        *right = 0;
    for (int64_t r = 0; r < h.count;) {
        const head_block k = next_block(n, C, &h, targets, grads != NULL, &r);
        const int64_t m = k.count;
        if (m == 0)
            break;
        TRY(GMAL_T(gmal_matmul)(0, 1, m, V, C, 1, k.x, C, params + l->head, C, 0, n->logits, V, s->threads));
        *sum += GMAL_T(gmal_cross_entropy)(n->logits, k.targets, m, V, grads ? scale : 0, s->threads);
        if (right)
            *right += hits(n->logits, k.targets, m, V);
        if (!grads)
            continue;
        TRY(GMAL_T(gmal_matmul)(0, 0, m, C, V, 1, n->logits, V, params + l->head, C, 0, k.dx, C, s->threads));
        TRY(GMAL_T(gmal_matmul)(1, 0, V, C, m, 1, n->logits, V, k.x, C, 1, grads + l->head, C, s->threads));
        for (int64_t i = 0; k.gathered && i < m; i++)
            memcpy(h.dx + n->rows[i] * C, k.dx + i * C, (size_t)C * sizeof(real));
    }
    if (grads && classifies(s))
        GMAL_T(gmal_pool_backward)
    (l->c.pooling == GMA_LM_POOLING_CLS ? GMAL_POOL_FIRST : GMAL_POOL_MEAN, n->dpooled, s->dn, sequences(s), C,
     s->threads);
    return GMA_OK;
}
