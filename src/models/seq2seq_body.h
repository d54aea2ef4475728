/* The network of task seq2seq, once per precision: two stacks, the second reads the first. */
#include "models/stack_body.h"

#include "models/head_body.h"

struct GMAL_T(gmal_seq2seq) {
    const gmal_layout *l;
    int threads;
    void *arena;
    stack encoder, decoder;
    head_room head;
};

typedef struct GMAL_T(gmal_seq2seq) net;
typedef GMAL_T(gmal_pairs) pairs;

static void place(net *n, bump *b) {
    place_stack(&n->encoder, b);
    place_stack(&n->decoder, b);
    place_head(&n->decoder, &n->head, b);
    n->decoder.memory = n->encoder.nf;
    n->decoder.dmemory = n->encoder.dn; /* where the encoder's backward begins */
}

static gma_status make(net *n, int64_t batch) {
    const gma_lm_config *c = &n->l->c;
    n->decoder.S = c->context;
    n->decoder.M = batch * c->context;
    TRY(make_stack(&n->encoder));
    TRY(make_stack(&n->decoder));
    TRY(shape_stack(&n->encoder, batch, c->context));
    TRY(shape_stack(&n->decoder, batch, gmal_steps(c)));
    bump count = {NULL, 0};
    place(n, &count);
    n->arena = gmal_pages(count.used);
    if (!n->arena)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for activations: %.1f MiB for a batch of %lld x %lld",
                        (double)count.used / 1048576, (long long)batch, (long long)c->context);
    bump real_one = {n->arena, 0};
    place(n, &real_one);
    return GMA_OK;
}

gma_status GMAL_T(gmal_seq2seq_create)(const gmal_layout *layout, int64_t batch, gmal_net_use use, int threads, net **out) {
    *out = NULL;
    net *n = calloc(1, sizeof *n);
    if (!n)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a network");
    n->l = layout;
    n->threads = threads;
    n->decoder = stack_of(layout, use, threads);
    n->encoder = n->decoder;
    n->encoder.blocks = layout->encoder;
    n->encoder.count = layout->c.encoder_layers;
    n->encoder.end_w = layout->encoder_norm_w;
    n->encoder.end_b = layout->encoder_norm_b;
    const gma_status s = make(n, batch);
    if (s != GMA_OK) {
        GMAL_T(gmal_seq2seq_destroy)(n);
        return s;
    }
    *out = n;
    return GMA_OK;
}

void GMAL_T(gmal_seq2seq_destroy)(net *n) {
    if (!n)
        return;
    unmake_stack(&n->encoder);
    unmake_stack(&n->decoder);
    free(n->arena);
    free(n);
}

/* Dropout of the encoder and of the decoder fall independently. */
static uint64_t key_of(uint64_t key, int encoder) { return key && encoder ? gmal_key(key, UINT64_C(1) << 40) | 1 : key; }

/* Tokens -> the norm at the end of the stack. */
static gma_status stack_of_tokens(stack *s, const real *params, const int32_t *tokens, int64_t positions, uint64_t key) {
    const gmal_layout *l = s->l;
    const int64_t C = l->c.width;
    GMAL_T(gmal_embed_forward)
    (tokens, params + l->embed, at(params, positions), s->acts[0].x, sequences(s), C, s->threads);
    const gmal_dropout first = drop_at(s, key, 0);
    if (first.rate > 0)
        GMAL_T(gmal_dropout_apply)(s->acts[0].x, s->acts[0].x, s->R * C, first, s->threads);
    return stack_forward(s, params, key);
}

static gma_status tokens_backward(stack *s, const real *params, real *grads, const int32_t *tokens, int64_t positions,
                                  uint64_t key) {
    const gmal_layout *l = s->l;
    const int64_t C = l->c.width;
    TRY(stack_backward(s, params, grads, key));
    const gmal_dropout first = drop_at(s, key, 0);
    if (first.rate > 0)
        GMAL_T(gmal_dropout_apply)(s->dx, s->dx, s->R * C, first, s->threads);
    GMAL_T(gmal_embed_backward)
    (tokens, s->dx, grads + l->embed, grad_at(grads, positions), sequences(s), C, s->threads);
    return GMA_OK;
}

static gma_status forward(net *n, const real *params, const pairs *p, uint64_t key) {
    n->encoder.mask = n->decoder.memory_mask = p->mask;
    TRY(stack_of_tokens(&n->encoder, params, p->source, n->l->encoder_positions, key_of(key, 1)));
    return stack_of_tokens(&n->decoder, params, p->tokens, n->l->positions, key_of(key, 0));
}

gma_status GMAL_T(gmal_seq2seq_encode)(net *n, const real *params, const int32_t *source, const unsigned char *mask,
                                       const real **memory) {
    n->encoder.mask = mask;
    TRY(stack_of_tokens(&n->encoder, params, source, n->l->encoder_positions, 0));
    *memory = n->encoder.nf;
    return GMA_OK;
}

const real *GMAL_T(gmal_seq2seq_memory)(const net *n) { return n->encoder.nf; }

gma_status GMAL_T(gmal_seq2seq_loss)(net *n, const real *params, const pairs *p, double *loss_sum) {
    TRY(forward(n, params, p, 0));
    return head(&n->decoder, &n->head, params, NULL, p->targets, 0, loss_sum, NULL);
}

gma_status GMAL_T(gmal_seq2seq_logits)(net *n, const real *params, const pairs *p, real *logits) {
    TRY(forward(n, params, p, 0));
    return linear(n->decoder.nf, params + n->l->head, logits, n->decoder.R, n->l->c.width, n->l->c.vocab, n->threads);
}

gma_status GMAL_T(gmal_seq2seq_backward)(net *n, const real *params, real *grads, const pairs *p, double scale,
                                         uint64_t dropout_key, double *loss_sum) {
    const gmal_layout *l = n->l;
    TRY(forward(n, params, p, dropout_key));
    TRY(head(&n->decoder, &n->head, params, grads, p->targets, scale, loss_sum, NULL));
    memset(n->decoder.dmemory, 0, (size_t)(n->decoder.M * l->c.width) * sizeof(real));
    TRY(tokens_backward(&n->decoder, params, grads, p->tokens, l->positions, key_of(dropout_key, 0)));
    return tokens_backward(&n->encoder, params, grads, p->source, l->encoder_positions, key_of(dropout_key, 1));
}
