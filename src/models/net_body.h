/* The network, once per precision: embedding, a stack of blocks, head and loss. Names: R = batch * steps rows, C =
 * width. */
#include "models/stack_body.h"

#include "models/head_body.h"
#include "models/stack_pack_body.h"

struct GMAL_T(gmal_net) {
    const gmal_layout *l;
    int threads;
    void *arena;
    size_t arena_bytes;
    stack s;
    head_room head;
};

typedef struct GMAL_T(gmal_net) net;

static void place(net *n, bump *b) {
    place_stack(&n->s, b);
    place_head(&n->s, &n->head, b);
}

/* After the stack has taken a shape. */
static gma_status take_shape(net *n, gma_status s) {
    const gma_lm_config *c = &n->l->c;
    if (s == GMA_OK && n->l->positions >= 0 && n->s.T > c->context)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "a sequence has %lld tokens, but the model has learned positions for %lld",
                     (long long)n->s.T, (long long)c->context);
    if (s != GMA_OK) {
        n->s.T = 0; /* no shape that a later call could find as it wants it */
        return s;
    }
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
    n->s = stack_of(layout, use, threads);
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

gma_status GMAL_T(gmal_net_loss)(net *n, const real *params, const int32_t *tokens, const int32_t *targets,
                                 double *loss_sum) {
    TRY(forward(n, params, tokens, 0));
    return head(&n->s, &n->head, params, NULL, targets, 0, loss_sum, NULL);
}

gma_status GMAL_T(gmal_net_score)(net *n, const real *params, const int32_t *tokens, const int32_t *targets,
                                  double *loss_sum, int64_t *right) {
    TRY(forward(n, params, tokens, 0));
    return head(&n->s, &n->head, params, NULL, targets, 0, loss_sum, right);
}

gma_status GMAL_T(gmal_net_logits)(net *n, const real *params, const int32_t *tokens, real *logits) {
    TRY(forward(n, params, tokens, 0));
    const head_rows h = rows_of_head(&n->s, &n->head);
    return linear(h.x, params + n->l->head, logits, h.count, n->l->c.width, n->l->outputs, n->threads);
}

gma_status GMAL_T(gmal_net_backward)(net *n, const real *params, real *grads, const int32_t *tokens,
                                     const int32_t *targets, double scale, uint64_t dropout_key, double *loss_sum) {
    const gmal_layout *l = n->l;
    stack *s = &n->s;
    const int64_t R = s->R, C = l->c.width;
    TRY(forward(n, params, tokens, dropout_key));
    TRY(head(s, &n->head, params, grads, targets, scale, loss_sum, NULL));
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
