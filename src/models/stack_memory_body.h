/* A stack of blocks on (B, T) sequences: what it remembers and where. Names: R = B T rows, C = width. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"

#include "layers/real.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const gma_status status_ = (call);                                                                             \
        if (status_ != GMA_OK)                                                                                         \
            return status_;                                                                                            \
    } while (0)

typedef gmal_real real;

/* What the forward of a mixer leaves for its backward. */
typedef struct sub_act {
    real *mean, *rstd, *n; /* the norm of its input */
    real *p;               /* projections (R, proj); q and k rotated in place when there is no convolution */
    real *c;               /* q, k, v after the convolution (R, qkv); = p without one */
    real *decay;           /* log_decay (B,H,T) */
    real *scale;           /* logit_scale (H) */
    real *o, *og;          /* output, and gated; the same without a gate */
    void *saved;           /* of the operator */
} sub_act;

/* Per block. Without training all blocks share one set; with recomputation all but the block's input x, from which the
 * backward makes the rest again. */
typedef struct act {
    real *x; /* block input */
    sub_act mixer;
    real *x1, *mean, *rstd, *n; /* the stream after the mixer, and its norm */
    real *h, *a;                /* MLP hidden, before and after the activation */
} act;

/* The operator of a block; blocks that want the same share it. */
typedef struct mixing {
    gma_mixer *mixer;
    gma_mixer_size size;
} mixing;

typedef struct stack {
    const gmal_layout *l;
    const gmal_block *blocks;
    int64_t count, B, T, R;
    int train, recompute, threads;
    int64_t end_w, end_b;          /* parameters of the norm at the end */
    mixing *ops;                   /* count */
    act *acts;                     /* count */
    real *last, *mean, *rstd, *nf; /* the stream at the end, and its norm */
    real *y;                       /* a sublayer's output (R, C) */
    real *cs;                      /* rotary table (T, routing_dim) */
    void *scratch;
    size_t scratch_bytes;
    /* backward */
    real *dx, *dn, *dy, *dp, *dc, *ddecay, *d_o, *dog, *dh, *da, *partial, *dparam, *dscale;
} stack;

typedef struct bump {
    char *base; /* NULL while only counting */
    size_t used;
} bump;

static void *take_bytes(bump *b, size_t bytes) {
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (bytes + 63) / 64 * 64;
    return p;
}

static real *take(bump *b, int64_t n) { return take_bytes(b, (size_t)n * sizeof(real)); }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void place_mixer(const stack *s, bump *b, int64_t i, sub_act *a) {
    const gmal_sub *m = &s->blocks[i].mixer;
    const int64_t R = s->R, C = s->l->c.width;
    a->mean = take(b, R);
    a->rstd = take(b, R);
    a->n = take(b, R * C);
    a->p = take(b, R * m->proj);
    a->c = m->spec.conv ? take(b, R * m->qkv) : a->p;
    a->decay = m->forget ? take(b, R * m->forget) : NULL;
    a->scale = m->spec.logit_scale ? take(b, s->l->c.kv_heads) : NULL;
    a->o = take(b, R * m->out);
    a->og = m->gate ? take(b, R * m->out) : a->o;
    a->saved = s->train ? take_bytes(b, s->ops[i].size.saved) : NULL;
}

static void place_act(const stack *s, bump *b, int64_t i, act *a) {
    const int64_t R = s->R, C = s->l->c.width;
    place_mixer(s, b, i, &a->mixer);
    a->x1 = s->train ? take(b, R * C) : a->x; /* the stream in place */
    a->mean = take(b, R);
    a->rstd = take(b, R);
    a->n = take(b, R * C);
    a->h = take(b, R * s->l->hidden);
    a->a = take(b, R * s->l->c.mlp_width);
}

/* Training keeps what is inside every block, one behind the other; otherwise all blocks begin at the same place. Without
 * training they also share the stream, in place. */
static void place_acts(stack *s, bump *b) {
    const int64_t RC = s->R * s->l->c.width;
    const int keep = s->train && !s->recompute;
    real *x = NULL;
    for (int64_t i = 0; i < s->count; i++) {
        if (i == 0 || s->train) x = take(b, RC);
        s->acts[i].x = x;
    }
    const size_t start = b->used;
    size_t end = start;
    for (int64_t i = 0; i < s->count; i++) {
        if (!keep) b->used = start;
        place_act(s, b, i, &s->acts[i]);
        end = b->used > end ? b->used : end;
    }
    b->used = end;
    s->last = s->train ? take(b, RC) : x;
    s->mean = take(b, s->R);
    s->rstd = take(b, s->R);
    s->nf = take(b, RC);
}

static void place_backward(stack *s, bump *b) {
    const gma_lm_config *c = &s->l->c;
    const int64_t R = s->R, C = c->width;
    int64_t proj = 0, qkv = 0, forget = 0, out = 0, gate = 0, params = 0, scale = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const gmal_sub *m = &s->blocks[i].mixer;
        int64_t trained = 0;
        proj = larger(proj, m->proj);
        qkv = larger(qkv, m->spec.conv ? m->qkv : 0);
        forget = larger(forget, m->forget);
        out = larger(out, m->out);
        gate = larger(gate, m->gate);
        scale = larger(scale, m->spec.logit_scale ? c->kv_heads : 0);
        for (int j = 0; j < m->slots; j++)
            trained += m->slot[j].fixed ? 0 : m->slot[j].count;
        params = larger(params, trained);
    }
    s->dx = take(b, R * C);
    s->dn = take(b, R * C);
    s->dy = c->dropout > 0 ? take(b, R * C) : NULL;
    s->dp = take(b, R * proj);
    s->dc = take(b, R * qkv);
    s->ddecay = take(b, R * forget);
    s->d_o = take(b, R * out);
    s->dog = gate ? take(b, R * out) : s->d_o;
    s->dh = take(b, R * s->l->hidden);
    s->da = take(b, R * c->mlp_width);
    s->partial = take(b, GMAL_GROUPS * 2 * C);
    s->dparam = take(b, params);
    s->dscale = take(b, scale);
}

static int turns(const stack *s) {
    for (int64_t i = 0; i < s->count; i++)
        if (gmal_layer_turns(&s->blocks[i].mixer.spec))
            return 1;
    return 0;
}

static void place_stack(stack *s, bump *b) {
    place_acts(s, b);
    s->y = take(b, s->R * s->l->c.width);
    s->cs = turns(s) ? take(b, s->T * s->l->c.routing_dim) : NULL;
    s->scratch_bytes = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const gma_mixer_size *size = &s->ops[i].size;
        if (size->forward_scratch > s->scratch_bytes)
            s->scratch_bytes = size->forward_scratch;
        if (s->train && size->backward_scratch > s->scratch_bytes)
            s->scratch_bytes = size->backward_scratch;
    }
    s->scratch = take_bytes(b, s->scratch_bytes);
    if (s->train)
        place_backward(s, b);
}

/* ---- Operators ------------------------------------------------------------------------------------------------ */

static gma_status make_operator(stack *s, int64_t i) {
    gma_mixer_desc d;
    mixing *op = & s->ops[i];
    for (int64_t j = 0; j < i; j++)
        if (memcmp(&s->blocks[j].mixer.spec, &s->blocks[i].mixer.spec, sizeof(gmal_layer)) == 0) {
            *op = s->ops[j];
            return GMA_OK;
        }
    TRY(gmal_layer_desc(&s->l->c, &s->blocks[i].mixer.spec, 1, s->B, s->T, s->T, &d));
    TRY(gma_mixer_create(&d, &op->mixer));
    op->size.struct_size = sizeof op->size;
    if (sizeof(real) == sizeof(double))
        return GMA_OK; /* the naive mixer has memory of its own */
    return gma_mixer_sizes(op->mixer, s->threads, &op->size);
}

/* What *s says already: layout, blocks, count, B, T, train, recompute, threads, norm at the end. */
static gma_status make_stack(stack *s) {
    s->R = s->B * s->T;
    s->acts = calloc((size_t)s->count, sizeof *s->acts);
    s->ops = calloc((size_t)s->count, sizeof *s->ops);
    if (!s->acts || !s->ops)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a network");
    for (int64_t i = 0; i < s->count; i++)
        TRY(make_operator(s, i));
    return GMA_OK;
}

static void unmake_stack(stack *s) {
    for (int64_t i = 0; s->ops && i < s->count; i++) {
        int shared = 0;
        for (int64_t j = 0; j < i; j++)
            shared |= s->ops[j].mixer == s->ops[i].mixer;
        if (!shared)
            gma_mixer_destroy(s->ops[i].mixer);
    }
    free(s->acts);
    free(s->ops);
}
