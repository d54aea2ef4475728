/* A stack of blocks on (B, T) sequences: what it remembers and where. Names: R = B T rows, C = width. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/pages.h"
#include "layers/rng.h"

#include "layers/real.h"
#include "layers/try.h"

typedef gmal_real real;

/* What the forward of a mixer leaves for its backward. */
typedef struct sub_act {
    real *mean, *rstd, *n; /* the norm of its input */
    real *p;               /* projections (R, proj); q and k rotated in place when there is no convolution */
    real *c;               /* q, k, v after the convolution (R, qkv); = p without one */
    real *kv;              /* cross-attention: k, v of the other sequence (M, kv) */
    real *decay;           /* log_decay (B,H,T) */
    real *scale;           /* logit_scale (H) */
    real *u, *x, *delta, *negative; /* mamba: see stack_scan_body.h; A */
    real *o, *og;          /* output, and gated; the same without a gate */
    void *saved;           /* of the operator */
} sub_act;

/* Per block. Without training all blocks share one set; with recomputation all but the block's input x, from which the
 * backward makes the rest again. */
typedef struct act {
    real *x; /* block input */
    sub_act mixer;
    real *x1;      /* the stream after the mixer */
    sub_act cross; /* in a decoder */
    real *x2, *mean, *rstd, *n; /* the stream before the MLP (= x1 without cross-attention), and its norm */
    real *h, *a;                /* MLP hidden, before and after the activation */
} act;

/* The operator of a block; blocks that want the same share it. */
typedef struct mixing {
    gma_mixer *mixer;
    gma_mixer_size size;
    struct one_mixing *each; /* linformer on sequences that do not fill its projections: one a sequence, mixer NULL */
} mixing;

typedef struct one_mixing {
    gma_mixer *mixer;
    int64_t row;           /* of its first token */
    size_t at, saved;      /* its part of what is saved */
} one_mixing;

typedef struct stack {
    const gmal_layout *l;
    const gmal_block *blocks;
    int64_t count, B, T, R; /* B T rows; packed: B sequences, T = the longest, R = their sum */
    int32_t *cu;            /* packed: B + 1 row numbers; otherwise NULL */
    int32_t *cu_room;       /* memory for it */
    int train, recompute, threads;
    int64_t end_w, end_b;          /* parameters of the norm at the end */
    mixing *ops, *cross_ops;       /* count */
    int64_t made;                  /* the B they were made for */
    act *acts;                     /* count */
    real *last, *mean, *rstd, *nf; /* the stream at the end, and its norm */
    real *y;                       /* a sublayer's output (R, C) */
    real *cs;                      /* rotary table (cs_steps, routing_dim), memory of its own: it outlives a shape */
    int64_t cs_steps;
    /* What cross-attention reads: (B, S) rows of width C, M = B S of them, and the gradient there, added to. A mask (B,S) or
     * (B,T) of keys: 0 = not there; NULL = all are. */
    int64_t S, M;
    const real *memory;
    real *dmemory;
    const unsigned char *memory_mask, *mask;
    void *scratch;
    size_t scratch_bytes;
    /* backward */
    real *dx, *dn, *dy, *dp, *dc, *ddecay, *d_o, *dog, *dh, *da, *partial, *dparam, *dscale, *dkv;
    real *du, *dxp, *ddelta; /* mamba: at u, at the output of x_proj, at delta */
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

/* All blocks of a decoder have cross-attention, or none. */
static int crosses(const stack *s) { return s->blocks[0].cross.spec.mixer != 0; }

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
    if (m->rank) {
        a->u = take(b, R * m->qkv);
        a->x = take(b, R * (m->rank + 2 * m->spec.states));
        a->delta = take(b, R * m->qkv);
        a->negative = take(b, m->qkv * m->spec.states);
    }
    a->o = take(b, R * m->out);
    a->og = m->gate ? take(b, R * m->out) : a->o;
    a->saved = s->train ? take_bytes(b, s->ops[i].size.saved) : NULL;
}

static void place_cross(const stack *s, bump *b, int64_t i, sub_act *a) {
    const gmal_sub *m = &s->blocks[i].cross;
    const int64_t R = s->R;
    a->mean = take(b, R);
    a->rstd = take(b, R);
    a->n = take(b, R * s->l->c.width);
    a->p = take(b, R * m->proj);
    a->kv = take(b, s->M * m->kv);
    a->scale = m->spec.logit_scale ? take(b, s->l->c.kv_heads) : NULL;
    a->o = take(b, R * m->out);
    a->og = m->gate ? take(b, R * m->out) : a->o;
    a->saved = s->train ? take_bytes(b, s->cross_ops[i].size.saved) : NULL;
}

static void place_act(const stack *s, bump *b, int64_t i, act *a) {
    const int64_t R = s->R, C = s->l->c.width;
    place_mixer(s, b, i, &a->mixer);
    a->x1 = s->train ? take(b, R * C) : a->x; /* the stream in place */
    a->x2 = a->x1;
    if (crosses(s)) {
        place_cross(s, b, i, &a->cross);
        a->x2 = s->train ? take(b, R * C) : a->x;
    }
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
    int64_t proj = 0, qkv = 0, forget = 0, out = 0, gate = 0, params = 0, scale = 0, u = 0, xp = 0, kv = 0;
    for (int64_t i = 0; i < s->count * (1 + crosses(s)); i++) {
        const gmal_sub *m = i < s->count ? &s->blocks[i].mixer : &s->blocks[i - s->count].cross;
        int64_t trained = 0;
        kv = larger(kv, m->kv);
        u = larger(u, m->rank ? m->qkv : 0);
        xp = larger(xp, m->rank ? m->rank + 2 * m->spec.states : 0);
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
    s->du = take(b, R * u);
    s->dxp = take(b, R * xp);
    s->ddelta = take(b, R * u);
    s->dkv = take(b, s->M * kv);
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
    s->scratch_bytes = 0;
    for (int64_t i = 0; i < s->count * (1 + crosses(s)); i++) {
        const gma_mixer_size *size = i < s->count ? &s->ops[i].size : &s->cross_ops[i - s->count].size;
        if (size->forward_scratch > s->scratch_bytes)
            s->scratch_bytes = size->forward_scratch;
        if (s->train && size->backward_scratch > s->scratch_bytes)
            s->scratch_bytes = size->backward_scratch;
    }
    s->scratch = take_bytes(b, s->scratch_bytes);
    if (s->train)
        place_backward(s, b);
}

/* ---- Shape and operators ---------------------------------------------------------------------------------------- */

static gmal_sequences sequences(const stack *s) { return (gmal_sequences){s->B, s->T, s->cu}; }

/* Linformer's projections belong to places in the sequence. A sequence shorter than them uses their first columns: what
 * padding with masked keys would give, without its work. */
static gma_status make_each(stack *s, int64_t i) {
    mixing *op = &s->ops[i];
    op->each = calloc((size_t)s->B, sizeof *op->each);
    if (!op->each)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the mixers of %lld sequences", (long long)s->B);
    op->size = (gma_mixer_size){.struct_size = sizeof op->size};
    for (int64_t b = 0; b < s->B; b++) {
        one_mixing *one = &op->each[b];
        gma_mixer_desc d;
        gma_mixer_size size = {.struct_size = sizeof size};
        one->row = s->cu ? s->cu[b] : b * s->T;
        const int64_t N = s->cu ? s->cu[b + 1] - one->row : s->T;
        TRY(gmal_layer_desc(&s->l->c, &s->blocks[i].mixer.spec, 1, N, N, -1, &d));
        TRY(gma_mixer_create(&d, &one->mixer));
        if (sizeof(real) == sizeof(double))
            continue;
        TRY(gma_mixer_sizes(one->mixer, s->threads, &size));
        one->at = op->size.saved;
        one->saved = size.saved;
        op->size.saved += (size.saved + 63) / 64 * 64;
        if (size.forward_scratch > op->size.forward_scratch)
            op->size.forward_scratch = size.forward_scratch;
        if (size.backward_scratch > op->size.backward_scratch)
            op->size.backward_scratch = size.backward_scratch;
    }
    return GMA_OK;
}

/* The operator of block i: of its mixer, or of its cross-attention. */
static gma_status make_operator(stack *s, int64_t i, int cross) {
    mixing *ops = cross ? s->cross_ops : s->ops;
    const gmal_layer *spec = cross ? &s->blocks[i].cross.spec : &s->blocks[i].mixer.spec;
    gma_mixer_desc d;
    for (int64_t j = 0; j < i; j++)
        if (memcmp(cross ? &s->blocks[j].cross.spec : &s->blocks[j].mixer.spec, spec, sizeof *spec) == 0) {
            ops[i] = ops[j];
            return GMA_OK;
        }
    if (!cross && spec->mixer == GMA_MIXER_LINFORMER && (s->cu || s->T != s->l->c.context))
        return make_each(s, i);
    const int64_t N = s->cu ? s->R : s->T;
    TRY(gmal_layer_desc(&s->l->c, spec, s->cu ? 1 : s->B, N, cross ? s->S : N, s->cu ? s->B : -1, &d));
    TRY(gma_mixer_create(&d, &ops[i].mixer));
    ops[i].size.struct_size = sizeof ops[i].size;
    if (sizeof(real) == sizeof(double))
        return GMA_OK; /* the naive mixer has memory of its own */
    return gma_mixer_sizes(ops[i].mixer, s->threads, &ops[i].size);
}

static void unmake_operators(mixing *ops, int64_t count, int64_t made) {
    for (int64_t i = 0; ops && i < count; i++) {
        int shared = 0;
        for (int64_t j = 0; j < i; j++)
            shared |= ops[j].mixer == ops[i].mixer && ops[j].each == ops[i].each;
        if (shared)
            continue;
        gma_mixer_destroy(ops[i].mixer);
        for (int64_t b = 0; ops[i].each && b < made; b++)
            gma_mixer_destroy(ops[i].each[b].mixer);
        free(ops[i].each);
    }
    if (ops)
        memset(ops, 0, (size_t)count * sizeof *ops);
}

/* Operators and rotary table for the shape that *s says; place_stack comes after it. */
static gma_status fit_stack(stack *s) {
    unmake_operators(s->ops, s->count, s->made);
    unmake_operators(s->cross_ops, s->count, s->made);
    s->made = s->B;
    for (int64_t i = 0; i < s->count; i++) {
        TRY(make_operator(s, i, 0));
        if (crosses(s))
            TRY(make_operator(s, i, 1));
    }
    if (!turns(s) || s->T <= s->cs_steps)
        return GMA_OK;
    free(s->cs);
    s->cs_steps = 0;
    s->cs = gmal_pages((size_t)(s->T * s->l->c.routing_dim) * sizeof *s->cs);
    if (!s->cs)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for rotary positions of %lld steps", (long long)s->T);
    s->cs_steps = s->T;
    GMAL_T(gmal_rotary_table)(s->cs, 0, s->T, s->l->c.routing_dim, s->l->c.rotary_base);
    return GMA_OK;
}

static gma_status shape_stack(stack *s, int64_t B, int64_t T) {
    s->B = B;
    s->T = T;
    s->R = B * T;
    s->cu = NULL;
    return fit_stack(s);
}

/* The decoder's layers, which are all that a language model has; without memory so far. */
static stack stack_of(const gmal_layout *layout, gmal_net_use use, int threads) {
    return (stack){.l = layout,
                   .blocks = layout->blocks,
                   .count = layout->c.layers,
                   .train = use != GMAL_NET_EVALUATE,
                   .recompute = use == GMAL_NET_RECOMPUTE,
                   .threads = threads,
                   .end_w = layout->norm_w,
                   .end_b = layout->norm_b};
}

/* What *s says already: layout, blocks, count, train, recompute, threads, norm at the end; of a decoder S and M. A shape
 * comes next. */
static gma_status make_stack(stack *s) {
    s->acts = calloc((size_t)s->count, sizeof *s->acts);
    s->ops = calloc((size_t)s->count, sizeof *s->ops);
    s->cross_ops = calloc((size_t)s->count, sizeof *s->cross_ops);
    if (!s->acts || !s->ops || !s->cross_ops)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a network");
    return GMA_OK;
}

static void unmake_stack(stack *s) {
    unmake_operators(s->ops, s->count, s->made);
    unmake_operators(s->cross_ops, s->count, s->made);
    free(s->acts);
    free(s->ops);
    free(s->cross_ops);
    free(s->cs);
    free(s->cu_room);
}
