/* Laying a problem out in memory, running it, reading it back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/guard.h"
#include "support/problem.h"
#include "support/tol.h"

/* ---- one tensor in memory ---------------------------------------------------------------------------- */

typedef struct placed {
    tst_guard guard;
    size_t bytes;          /* of the block */
    unsigned char *before; /* outputs: the block before the call */
    gma_tensor t;
} placed;

static double get(const gma_tensor *t, int64_t at) {
    switch (t->dtype) {
    case GMA_F64:
        return ((const double *)t->data)[at];
    case GMA_F32:
        return (double)((const float *)t->data)[at];
    case GMA_BF16:
        return (double)gma_bf16_to_f32(((const uint16_t *)t->data)[at]);
    default:
        return NAN;
    }
}

static void put(const gma_tensor *t, int64_t at, double x) {
    switch (t->dtype) {
    case GMA_F64:
        ((double *)t->data)[at] = x;
        break;
    case GMA_F32:
        ((float *)t->data)[at] = (float)x;
        break;
    case GMA_BF16:
        ((uint16_t *)t->data)[at] = gma_f32_to_bf16((float)x);
        break;
    case GMA_BOOL:
        ((uint8_t *)t->data)[at] = x != 0;
        break;
    case GMA_U8:
        ((uint8_t *)t->data)[at] = (uint8_t)(x != 0 ? 2 : 0);
        break;
    case GMA_I32:
        ((int32_t *)t->data)[at] = (int32_t)x;
        break;
    default:
        ((int64_t *)t->data)[at] = (int64_t)x;
        break;
    }
}

/* Offset of dense element i in the view. */
static int64_t offset_of(const gma_tensor *t, int64_t i) {
    int64_t at = 0;
    for (int r = t->rank - 1; r >= 0; r--) {
        at += i % t->shape[r] * t->stride[r];
        i /= t->shape[r];
    }
    return at;
}

static int has_width(int slot) {
    static const int wide[] = {GMA_Q, GMA_K, GMA_V, GMA_O, GMA_U, GMA_DELTA, GMA_SSM_B, GMA_SSM_C, GMA_Y};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        if (slot == wide[i])
            return 1;
    }
    return 0;
}

static gma_dtype dtype_of(int slot, const tst_engine *e, unsigned layout) {
    if (slot == GMA_CU_SEQLENS)
        return layout & TST_CU32 ? GMA_I32 : GMA_I64;
    if (slot == GMA_KEY_MASK)
        return layout & TST_MASK_U8 ? GMA_U8 : GMA_BOOL;
    if (has_width(slot))
        return e->io;
    return e->io == GMA_F64 ? GMA_F64 : GMA_F32;
}

static placed place(int slot, const tst_array *a, const tst_engine *e, unsigned layout, int is_output) {
    placed p;
    memset(&p, 0, sizeof p);
    p.t.dtype = (int32_t)dtype_of(slot, e, layout);
    p.t.rank = a->rank;
    memcpy(p.t.shape, a->shape, sizeof a->shape);

    const int last = a->rank - 1;
    int order[GMA_MAX_RANK] = {0, 1, 2, 3}; /* dimensions from the slowest in memory */
    if ((layout & TST_SWAP_HEADS) && a->rank == 4 && has_width(slot)) {
        order[1] = 2;
        order[2] = 1;
    }
    int64_t step = (layout & TST_INNER2) && !has_width(slot) && slot != GMA_CU_SEQLENS ? 2 : 1;
    if ((layout & TST_WIDTH2) && has_width(slot) && !is_output)
        step = 2;
    for (int i = last; i >= 0; i--) {
        p.t.stride[order[i]] = step;
        step *= a->shape[order[i]] > 0 ? a->shape[order[i]] : 1;
        if (i == last && last > 0 && (layout & TST_PAD_ROWS))
            step += 3;
    }
    if ((layout & TST_EXPAND_B) && has_width(slot) && slot != GMA_O && slot != GMA_Y && !is_output)
        p.t.stride[0] = 0;
    if ((layout & TST_EXPAND_UP) && (slot == GMA_O || slot == GMA_Y) && !is_output) {
        for (int i = 0; i < (a->shape[last] == 1 ? last + 1 : last); i++)
            p.t.stride[i] = 0;
    }
    int64_t first = 0, span = a->n > 0 ? 1 : 0; /* elements from the lowest to the highest address of the view */
    for (int i = 0; a->n > 0 && i <= last; i++)
        span += (a->shape[i] - 1) * p.t.stride[i];
    if ((layout & TST_REVERSED) && a->n > 0 && last > 0 && slot != GMA_CU_SEQLENS) {
        first = (a->shape[0] - 1) * p.t.stride[0];
        p.t.stride[0] = -p.t.stride[0];
    }
    const int64_t lead = layout & TST_PAD_ROWS ? 5 : 0;
    const size_t size = gma_dtype_size((gma_dtype)p.t.dtype);
    p.bytes = (size_t)(lead + span) * size;
    p.guard = tst_guard_alloc(p.bytes, size, (layout & TST_GUARD_START) != 0);
    memset(p.guard.data, 0xff, p.bytes);
    p.t.data = (char *)p.guard.data + (size_t)(lead + first) * size;
    if (is_output) {
        p.before = malloc(p.bytes + 1);
        if (!p.before)
            tst_fail("no memory");
        memcpy(p.before, p.guard.data, p.bytes);
    } else {
        for (int64_t i = 0; i < a->n; i++)
            put(&p.t, offset_of(&p.t, i), a->x[i]);
    }
    return p;
}

/* Read an output back; every byte that is not part of the view must be as before. */
static tst_array read_back(placed *p, const tst_array *shape, const char *name) {
    const tst_array a = tst_array_like(shape);
    const size_t size = gma_dtype_size((gma_dtype)p->t.dtype);
    for (int64_t i = 0; i < a.n; i++) {
        const int64_t at = offset_of(&p->t, i);
        a.x[i] = get(&p->t, at);
        memset((char *)p->t.data + at * (int64_t)size, 0xff, size);
    }
    if (p->bytes && memcmp(p->before, p->guard.data, p->bytes) != 0)
        tst_fail("%s: the call wrote outside the view", name);
    return a;
}

static void unplace(placed *p) {
    tst_guard_free(&p->guard);
    free(p->before);
    p->before = NULL;
}

/* ---- a call ------------------------------------------------------------------------------------------ */

enum { MAX_ARGS = 64 };

typedef struct call {
    placed placed[MAX_ARGS];
    gma_arg args[MAX_ARGS];
    int count;
} call;

static void add(call *c, int32_t slot, const tst_array *a, const tst_engine *e, unsigned layout, int is_output) {
    c->placed[c->count] = place(slot & ~GMA_GRAD_BIT, a, e, layout, is_output);
    c->args[c->count] = (gma_arg){slot, c->placed[c->count].t};
    c->count++;
}

static gma_status run_calls(gma_mixer *m, const tst_problem *p, const tst_engine *e, unsigned layout, call *c) {
    tst_array shape;
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        if (p->in[slot].x)
            add(c, slot, &p->in[slot], e, layout, 0);
    }
    int slots = 0;
    const gma_slot_info *table = gma_mixer_slots((gma_mixer_kind)p->desc.kind, &slots);
    for (int i = 0; i < slots; i++) {
        if (table[i].role != GMA_ROLE_OUTPUT || !(table[i].required || p->out_state))
            continue;
        shape = tst_array_of(&p->desc, table[i].slot);
        add(c, table[i].slot, &shape, e, layout, 1);
        tst_array_free(&shape);
    }

    const int align = 64;
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(m, e->threads, &size));
    tst_guard scratch = tst_guard_alloc(size.forward_scratch, (size_t)align, 0);
    tst_guard saved = tst_guard_alloc(size.saved, (size_t)align, 0);
    tst_guard scratch2 = tst_guard_alloc(size.backward_scratch, (size_t)align, 0);
    gma_exec x = {.struct_size = sizeof x,
                  .threads = e->threads,
                  .scratch = scratch.data,
                  .scratch_bytes = size.forward_scratch,
                  .saved = p->backward ? saved.data : NULL,
                  .saved_bytes = p->backward ? size.saved : 0};
    gma_status status =
        e->naive ? gma_mixer_naive_forward(m, c->args, c->count) : gma_mixer_forward(m, c->args, c->count, &x);
    if (status == GMA_OK && p->backward) {
        call back = {.count = 0}; /* inputs and outputs again, and the gradients */
        memcpy(back.args, c->args, (size_t)c->count * sizeof *c->args);
        back.count = c->count;
        int first = c->count;
        for (int slot = 0; slot < TST_SLOTS; slot++) {
            if (p->up[slot].x)
                add(c, GMA_GRAD(slot), &p->up[slot], e, layout, 0);
        }
        for (int slot = 0; slot < TST_SLOTS; slot++) {
            const gma_slot_info *info = p->in[slot].x ? tst_slot_info(&p->desc, slot) : NULL;
            if (info && info->has_grad)
                add(c, GMA_GRAD(slot), &p->in[slot], e, layout, 1);
        }
        /* outgoing states are no inputs of backward */
        int kept = 0;
        for (int i = 0; i < c->count; i++) {
            const gma_slot_info *info = i < first ? tst_slot_info(&p->desc, c->args[i].slot) : NULL;
            if (info && info->role == GMA_ROLE_OUTPUT && !info->required)
                continue;
            back.args[kept++] = c->args[i];
        }
        x.scratch = scratch2.data;
        x.scratch_bytes = size.backward_scratch;
        status = e->naive ? gma_mixer_naive_backward(m, back.args, kept) : gma_mixer_backward(m, back.args, kept, &x);
    }
    tst_guard_free(&scratch);
    tst_guard_free(&scratch2);
    tst_guard_free(&saved);
    return status;
}

gma_status tst_run(const tst_problem *p, const tst_engine *e, unsigned layout, tst_result *r) {
    memset(r, 0, sizeof *r);
    gma_mixer_desc desc = p->desc;
    desc.isa = e->naive ? GMA_ISA_AUTO : e->isa;
    gma_mixer *m = NULL;
    gma_status status = gma_mixer_create(&desc, &m);
    if (status)
        return status;
    call *c = calloc(1, sizeof *c);
    if (!c)
        tst_fail("no memory");
    status = run_calls(m, p, e, layout, c);
    for (int i = 0; i < c->count; i++) {
        placed *pl = &c->placed[i];
        if (status == GMA_OK && pl->before) {
            const int32_t slot = c->args[i].slot;
            tst_array shape = {NULL, 1, pl->t.rank, {0}};
            for (int d = 0; d < pl->t.rank; d++)
                shape.n *= shape.shape[d] = pl->t.shape[d];
            tst_array *to = slot & GMA_GRAD_BIT ? &r->grad[slot & ~GMA_GRAD_BIT] : &r->out[slot];
            *to = read_back(pl, &shape, gma_slot_name(slot));
        }
        unplace(pl);
    }
    free(c);
    gma_mixer_destroy(m);
    return status;
}

tst_result tst_must_run(const tst_problem *p, const tst_engine *e, unsigned layout) {
    tst_result r;
    const gma_status status = tst_run(p, e, layout, &r);
    if (status)
        tst_fail("%s: %s: %s", tst_engine_name(e), gma_status_string(status), gma_last_error());
    return r;
}

void tst_result_free(tst_result *r) {
    for (int i = 0; i < TST_SLOTS; i++) {
        tst_array_free(&r->out[i]);
        tst_array_free(&r->grad[i]);
    }
}

/* ---- engines ----------------------------------------------------------------------------------------- */

int tst_engines(tst_engine *list, int with_naive, const int *threads, int n) {
    static const gma_isa tiers[] = {GMA_ISA_SCALAR, GMA_ISA_NEON, GMA_ISA_AVX2, GMA_ISA_AVX512, GMA_ISA_AMX};
    int count = 0;
    if (with_naive)
        list[count++] = TST_NAIVE;
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        for (int t = 0; gma_isa_supported(tiers[i]) && t < n; t++)
            list[count++] = (tst_engine){0, tiers[i], threads[t], GMA_F32};
    }
    return count;
}

const char *tst_engine_name(const tst_engine *e) {
    static _Thread_local char text[64];
    if (e->naive)
        (void)snprintf(text, sizeof text, "naive %s", gma_dtype_name(e->io));
    else
        (void)snprintf(text, sizeof text, "%s x%d %s", gma_isa_name(e->isa), e->threads, gma_dtype_name(e->io));
    return text;
}

/* ---- comparing --------------------------------------------------------------------------------------- */

static int same_bits(const tst_array *a, const tst_array *b, const char *name) {
    if (!a->x && !b->x)
        return 1;
    if (!a->x || !b->x || a->n != b->n)
        return printf("%s: one side is missing\n", name), 0;
    for (int64_t i = 0; i < a->n; i++) {
        if (memcmp(&a->x[i], &b->x[i], sizeof(double)) != 0 && !(isnan(a->x[i]) && isnan(b->x[i])))
            return printf("%s[%lld]: %.17g and %.17g\n", name, (long long)i, a->x[i], b->x[i]), 0;
    }
    return 1;
}

int tst_same_bits(const tst_result *a, const tst_result *b) {
    int same = 1;
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        same &= same_bits(&a->out[slot], &b->out[slot], gma_slot_name(slot));
        same &= same_bits(&a->grad[slot], &b->grad[slot], gma_slot_name(GMA_GRAD(slot)));
    }
    return same;
}

static int within(const tst_array *got, const tst_array *want, double tol, double floor, const char *name,
                  const char *what) {
    if (!want->x)
        return 1;
    if (!got->x || got->n != want->n)
        return printf("%s: %s: missing or of another size\n", what, name), 0;
    const double error = tol_error(got->x, want->x, want->n, floor);
    if (error <= tol)
        return 1;
    printf("%s: %s: error %.3g, limit %.3g\n", what, name, error, tol);
    return 0;
}

static int compare(const tst_result *got, const tst_result *want, double tol_o, double tol_grad, double alpha_floor,
                   double scale_floor, const char *what) {
    int ok = 1;
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const double floor = slot == GMA_LOGIT_SCALE ? scale_floor : slot == GMA_ALPHA ? alpha_floor : TOL_FLOOR_GRAD;
        ok &= within(&got->out[slot], &want->out[slot], tol_o, TOL_FLOOR_O, gma_slot_name(slot), what);
        ok &= within(&got->grad[slot], &want->grad[slot], tol_grad, floor, gma_slot_name(GMA_GRAD(slot)), what);
    }
    return ok;
}

int tst_compare(const tst_result *got, const tst_result *want, double tol_o, double tol_grad, const char *what) {
    return compare(got, want, tol_o, tol_grad, TOL_FLOOR_GRAD, TOL_FLOOR_GRAD, what);
}

int tst_compare_to_naive(const tst_problem *p, const tst_result *got, const tst_result *want, double tol_o,
                         double tol_grad, const char *what) {
    double summed = TOL_FLOOR_GRAD;
    for (int64_t i = 0; i < want->grad[GMA_MU].n; i++)
        summed = fmax(summed, fabs(want->grad[GMA_MU].x[i]));
    return compare(got, want, tol_o, tol_grad, summed, summed * (double)p->desc.routing_dim, what);
}

/* ---- responsibilities -------------------------------------------------------------------------------- */

tst_array tst_gamma(const tst_problem *p, int slot, const tst_engine *e) {
    static const int params[] = {GMA_MU, GMA_OMEGA, GMA_ALPHA, GMA_LOGIT_SCALE};
    placed x = place(slot, &p->in[slot], e, 0, 0), out, param[4];
    tst_array shape = p->in[slot];
    shape.shape[3] = p->desc.components;
    shape.n = shape.shape[0] * shape.shape[1] * shape.shape[2] * shape.shape[3];
    tst_engine out_engine = *e;
    if (e->io == GMA_BF16)
        out_engine.io = GMA_F32;
    out = place(GMA_O, &shape, &out_engine, 0, 1);
    const gma_tensor *t[4] = {NULL, NULL, NULL, NULL};
    for (int i = 0; i < 4; i++) {
        memset(&param[i], 0, sizeof param[i]);
        if (!p->in[params[i]].x)
            continue;
        param[i] = place(params[i], &p->in[params[i]], e, 0, 0);
        t[i] = &param[i].t;
    }
    TST_OK(gma_responsibilities(&x.t, t[0], t[1], t[2], t[3], &out.t, p->desc.eps_sigma, e->isa, e->naive, e->threads));
    const tst_array gamma = read_back(&out, &shape, "gamma");
    unplace(&x);
    unplace(&out);
    for (int i = 0; i < 4; i++)
        unplace(&param[i]);
    return gamma;
}
