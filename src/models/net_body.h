/* The network, once per precision: embedding, a stack of blocks, head and loss. Names: R = batch * steps rows, C =
 * width. */
#include "models/stack_body.h"

struct GMAL_T(gmal_net) {
    const gmal_layout *l;
    int threads;
    void *arena;
    size_t arena_bytes;
    stack s;
    real *pooled, *dpooled; /* (B, C): classifier */
    real *logits;           /* (block, outputs) */
    int64_t block, *rows;   /* the rows of a block that have a target, */
    real *x, *dx;           /* one behind the other, (block, C), */
    int32_t *targets;       /* and theirs */
};

typedef struct GMAL_T(gmal_net) net;

static int classifies(const net *n) { return n->l->c.task == GMA_LM_TASK_CLASSIFY; }

static void place(net *n, bump *b) {
    const int64_t C = n->l->c.width, pooled = classifies(n) ? n->s.B * C : 0;
    place_stack(&n->s, b);
    n->pooled = take(b, pooled);
    n->dpooled = take(b, pooled);
    n->logits = take(b, n->block * n->l->outputs);
    n->rows = take_bytes(b, (size_t)n->block * sizeof *n->rows);
    n->targets = take_bytes(b, (size_t)n->block * sizeof *n->targets);
    n->x = take(b, n->block * C);
    n->dx = take(b, n->block * C);
}

/* Rows of logits at a time: enough for a good product, few enough that a large vocabulary costs little memory. */
static int64_t block_rows(int64_t rows, int64_t vocab) {
    const int64_t fit = (INT64_C(1) << 22) / vocab, most = fit < 64 ? 64 : fit > 1024 ? 1024 : fit;
    return rows < most ? rows : most;
}

/* After the stack has taken a shape. */
static gma_status take_shape(net *n, gma_status s) {
    const gma_lm_config *c = &n->l->c;
    if (s == GMA_OK && n->l->positions >= 0 && n->s.T > c->context)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "a sequence has %lld tokens, but the model has learned positions for %lld",
                     (long long)n->s.T, (long long)c->context);
    if (s != GMA_OK)
        return s;
    n->block = block_rows(classifies(n) ? n->s.B : n->s.R, n->l->outputs);
    bump count = {NULL, 0};
    place(n, &count);
    if (count.used > n->arena_bytes) {
        free(n->arena);
        n->arena_bytes = 0;
        n->arena = gmal_pages(count.used);
        if (!n->arena)
            return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for activations: %.1f MiB for %lld sequences of up to %lld",
                            (double)count.used / 1048576, (long long)n->s.B, (long long)n->s.T);
        n->arena_bytes = count.used;
    }
    bump real_one = {n->arena, 0};
    place(n, &real_one);
    return GMA_OK;
}

gma_status GMAL_T(gmal_net_reshape)(net *n, int64_t batch, int64_t steps) {
    if (!n->s.cu && n->arena && n->s.B == batch && n->s.T == steps)
        return GMA_OK;
    return take_shape(n, shape_stack(&n->s, batch, steps));
}

gma_status GMAL_T(gmal_net_pack)(net *n, const int64_t *lengths, int64_t count) {
    return take_shape(n, pack_stack(&n->s, lengths, count));
}

gma_status GMAL_T(gmal_net_create)(const gmal_layout *layout, int64_t batch, int64_t steps, gmal_net_use use, int threads,
                                   net **out) {
    *out = NULL;
    net *n = calloc(1, sizeof *n);
    if (!n)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a network");
    n->l = layout;
    n->threads = threads;
    n->s = (stack){.l = layout,
                   .blocks = layout->blocks,
                   .count = layout->c.layers,
                   .train = use != GMAL_NET_EVALUATE,
                   .recompute = use == GMAL_NET_RECOMPUTE,
                   .threads = threads,
                   .end_w = layout->norm_w,
                   .end_b = layout->norm_b};
    gma_status s = make_stack(&n->s);
    if (s == GMA_OK)
        s = GMAL_T(gmal_net_reshape)(n, batch, steps);
    if (s != GMA_OK) {
        GMAL_T(gmal_net_destroy)(n);
        return s;
    }
    *out = n;
    return GMA_OK;
}

void GMAL_T(gmal_net_destroy)(net *n) {
    if (!n)
        return;
    unmake_stack(&n->s);
    free(n->arena);
    free(n);
}

/* The stream at the end, normalised, in n->s.nf. key 0: no dropout. */
static gma_status forward(net *n, const real *params, const int32_t *tokens, uint64_t key) {
    const gmal_layout *l = n->l;
    stack *s = &n->s;
    const int64_t C = l->c.width;
    GMAL_T(gmal_embed_forward)
    (tokens, params + l->embed, at(params, l->positions), s->acts[0].x, sequences(s), C, n->threads);
    const gmal_dropout first = drop_at(s, key, 0);
    if (first.rate > 0)
        GMAL_T(gmal_dropout_apply)(s->acts[0].x, s->acts[0].x, s->R * C, first, n->threads);
    return stack_forward(s, params, key);
}

/* What the head reads and gives its gradient to: a row a token, or a row a sequence. */
typedef struct head_rows {
    int64_t count;
    const real *x;
    real *dx;
} head_rows;

static head_rows rows_of_head(net *n) {
    if (!classifies(n))
        return (head_rows){n->s.R, n->s.nf, n->s.dn};
    GMAL_T(gmal_pool_forward)
    (n->l->c.pooling == GMA_LM_POOLING_CLS ? GMAL_POOL_FIRST : GMAL_POOL_MEAN, n->s.nf, n->pooled, sequences(&n->s),
     n->l->c.width, n->threads);
    return (head_rows){n->s.B, n->pooled, n->dpooled};
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

static head_block next_block(net *n, const head_rows *h, const int32_t *targets, int grads, int64_t *from) {
    const int64_t C = n->l->c.width;
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
static gma_status head(net *n, const real *params, real *grads, const int32_t *targets, double scale, double *sum,
                       int64_t *right) {
    const gmal_layout *l = n->l;
    const int64_t C = l->c.width, V = l->outputs;
    const head_rows h = rows_of_head(n);
    *sum = 0;
    if (right)
        *right = 0;
    for (int64_t r = 0; r < h.count;) {
        const head_block k = next_block(n, &h, targets, grads != NULL, &r);
        const int64_t m = k.count;
        if (m == 0)
            break;
        TRY(GMAL_T(gmal_matmul)(0, 1, m, V, C, 1, k.x, C, params + l->head, C, 0, n->logits, V, n->threads));
        *sum += GMAL_T(gmal_cross_entropy)(n->logits, k.targets, m, V, grads ? scale : 0, n->threads);
        if (right)
            *right += hits(n->logits, k.targets, m, V);
        if (!grads)
            continue;
        TRY(GMAL_T(gmal_matmul)(0, 0, m, C, V, 1, n->logits, V, params + l->head, C, 0, k.dx, C, n->threads));
        TRY(GMAL_T(gmal_matmul)(1, 0, V, C, m, 1, n->logits, V, k.x, C, 1, grads + l->head, C, n->threads));
        for (int64_t i = 0; k.gathered && i < m; i++)
            memcpy(h.dx + n->rows[i] * C, k.dx + i * C, (size_t)C * sizeof(real));
    }
    if (grads && classifies(n))
        GMAL_T(gmal_pool_backward)
    (l->c.pooling == GMA_LM_POOLING_CLS ? GMAL_POOL_FIRST : GMAL_POOL_MEAN, n->dpooled, n->s.dn, sequences(&n->s), C,
     n->threads);
    return GMA_OK;
}

gma_status GMAL_T(gmal_net_loss)(net *n, const real *params, const int32_t *tokens, const int32_t *targets,
                                 double *loss_sum) {
    TRY(forward(n, params, tokens, 0));
    return head(n, params, NULL, targets, 0, loss_sum, NULL);
}

gma_status GMAL_T(gmal_net_score)(net *n, const real *params, const int32_t *tokens, const int32_t *targets,
                                  double *loss_sum, int64_t *right) {
    TRY(forward(n, params, tokens, 0));
    return head(n, params, NULL, targets, 0, loss_sum, right);
}

gma_status GMAL_T(gmal_net_logits)(net *n, const real *params, const int32_t *tokens, real *logits) {
    TRY(forward(n, params, tokens, 0));
    const head_rows h = rows_of_head(n);
    return linear(h.x, params + n->l->head, logits, h.count, n->l->c.width, n->l->outputs, n->threads);
}

gma_status GMAL_T(gmal_net_backward)(net *n, const real *params, real *grads, const int32_t *tokens,
                                     const int32_t *targets, double scale, uint64_t dropout_key, double *loss_sum) {
    const gmal_layout *l = n->l;
    stack *s = &n->s;
    const int64_t R = s->R, C = l->c.width;
    TRY(forward(n, params, tokens, dropout_key));
    TRY(head(n, params, grads, targets, scale, loss_sum, NULL));
    TRY(stack_backward(s, params, grads, dropout_key));
    const gmal_dropout first = drop_at(s, dropout_key, 0);
    if (first.rate > 0)
        GMAL_T(gmal_dropout_apply)(s->dx, s->dx, R * C, first, n->threads);
    GMAL_T(gmal_embed_backward)
    (tokens, s->dx, grads + l->embed, grad_at(grads, l->positions), sequences(s), C, n->threads);
    return GMA_OK;
}

GMAL_T(gmal_routing) GMAL_T(gmal_net_routing)(const net *n, int64_t block) {
    const gmal_sub *m = &n->s.blocks[block].mixer;
    const sub_act *a = &n->s.acts[block].mixer;
    return (GMAL_T(gmal_routing)){a->c, a->c + m->q, m->spec.conv ? m->qkv : m->proj, a->decay, a->scale};
}
