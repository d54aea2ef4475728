/* Building problems. */
#include "support/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"

const gma_slot_info *tst_slot_info(const gma_mixer_desc *desc, int slot) {
    int count = 0;
    const gma_slot_info *table = gma_mixer_slots((gma_mixer_kind)desc->kind, &count);
    for (int i = 0; i < count; i++) {
        if (table[i].slot == slot)
            return &table[i];
    }
    return NULL;
}

static int64_t extent(const gma_mixer_desc *d, char letter) {
    switch (letter) {
    case 'B':
        return d->batch;
    case 'h':
        return d->heads;
    case 'H':
        return d->kv_heads ? d->kv_heads : d->heads;
    case 'q':
        return d->q_len;
    case 'k':
        return d->k_len;
    case 'K':
    case 'M':
    case 'P':
        return d->components;
    case 'R':
        return d->routing_dim;
    case 'D':
        return d->value_dim;
    case 'E':
        return d->heads * d->value_dim;
    case 'S':
        return d->segments >= 0 ? d->segments : d->batch;
    case '+':
        return d->segments + 1;
    default:
        tst_fail("slot table: unknown letter '%c'", letter);
        return 0;
    }
}

static tst_array array_of(const gma_mixer_desc *desc, int slot, int most) {
    const gma_slot_info *info = tst_slot_info(desc, slot);
    tst_array a = {NULL, 1, 0, {0}};
    if (!info)
        tst_fail("this mixer has no slot %d", slot);
    for (const char *c = gma_slot_dims(info, most ? (int)strlen(info->dims) - 1 : -1); *c; c++) {
        a.shape[a.rank] = extent(desc, *c);
        a.n *= a.shape[a.rank++];
    }
    return tst_array_like(&a);
}

tst_array tst_array_of(const gma_mixer_desc *desc, int slot) { return array_of(desc, slot, 0); }

int tst_token_dim(const gma_mixer_desc *desc, int slot) {
    const char *dims = gma_slot_dims(tst_slot_info(desc, slot), -1), *at = strpbrk(dims, "qk");
    return at ? (int)(at - dims) : -1;
}

tst_array tst_array_tokens(const gma_mixer_desc *desc, int slot, const tst_array *a, int64_t first, int64_t count) {
    const int dim = tst_token_dim(desc, slot);
    if (dim < 0)
        return tst_array_copy(a);
    tst_array b = *a;
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < a->rank; i++) {
        outer *= i < dim ? a->shape[i] : 1;
        inner *= i > dim ? a->shape[i] : 1;
    }
    b.shape[dim] = count;
    b.n = outer * count * inner;
    b = tst_array_like(&b);
    for (int64_t i = 0; i < outer; i++)
        memcpy(b.x + i * count * inner, a->x + (i * a->shape[dim] + first) * inner,
               (size_t)(count * inner) * sizeof(double));
    return b;
}

tst_array tst_array_like(const tst_array *a) {
    tst_array b = *a;
    b.x = calloc((size_t)(a->n > 0 ? a->n : 1), sizeof(double));
    if (!b.x)
        tst_fail("no memory for %lld values", (long long)a->n);
    return b;
}

tst_array tst_array_copy(const tst_array *a) {
    if (!a->x)
        return *a;
    const tst_array b = tst_array_like(a);
    memcpy(b.x, a->x, (size_t)a->n * sizeof(double));
    return b;
}

void tst_array_free(tst_array *a) {
    free(a->x);
    *a = (tst_array){NULL, 0, 0, {0}};
}

gma_mixer_kind tst_mixer = GMA_MIXER_GMA;

gma_mixer_desc tst_desc(int causal, int64_t B, int64_t Hq, int64_t H, int64_t Nq, int64_t Nk, int64_t K, int64_t R,
                        int64_t D) {
    gma_mixer_desc d;
    TST_OK(gma_mixer_desc_init(&d, tst_mixer));
    d.causal = causal;
    d.batch = B;
    d.heads = Hq;
    d.kv_heads = H;
    d.q_len = Nq;
    d.k_len = Nk;
    d.components = tst_mixer == GMA_MIXER_LINEAR ? R : K;
    d.routing_dim = tst_mixer == GMA_MIXER_MAMBA ? 0 : R;
    d.value_dim = D;
    return d;
}

int tst_fits(const gma_mixer_desc *desc) {
    gma_mixer *m = NULL;
    const gma_status status = gma_mixer_create(desc, &m);
    gma_mixer_destroy(m);
    if (status != GMA_OK)
        TST_ERROR(status, GMA_ERR_INVALID_ARGUMENT, gma_mixer_kind_name((gma_mixer_kind)desc->kind));
    return status == GMA_OK;
}

double *tst_add(tst_problem *p, int slot) {
    tst_array_free(&p->in[slot]);
    p->in[slot] = tst_array_of(&p->desc, slot);
    return p->in[slot].x;
}

double *tst_add_up(tst_problem *p, int slot) {
    tst_array_free(&p->up[slot]);
    p->up[slot] = tst_array_of(&p->desc, slot);
    return p->up[slot].x;
}

void tst_set(tst_problem *p, int slot, const double *values, int64_t n) {
    if (!p->in[slot].x)
        tst_add(p, slot);
    if (p->in[slot].n != n)
        tst_fail("%s has %lld values, not %lld", gma_slot_name(slot), (long long)p->in[slot].n, (long long)n);
    memcpy(p->in[slot].x, values, (size_t)n * sizeof *values);
}

void tst_set_up(tst_problem *p, int slot, double value) {
    double *x = tst_add_up(p, slot);
    for (int64_t i = 0; i < p->up[slot].n; i++)
        x[i] = value;
    p->backward = 1;
}

static double as_f32(double x) { return (double)(float)x; }

/* Means closer together the wider they are, so that responsibilities stay away from 0 and 1. */
static double draw(int slot, double width, tst_rng *rng) {
    switch (slot) {
    case GMA_MU:
        return fmin(0.8, 1.5 / sqrt(width)) * tst_normal(rng);
    case GMA_OMEGA:
    case GMA_ALPHA:
        return 0.5 * tst_normal(rng);
    case GMA_STATE_Z:
        return 0.1 + 2 * tst_uniform(rng);
    case GMA_LOG_DECAY:
        return -0.05 - 0.3 * fabs(tst_normal(rng));
    case GMA_LOGIT_SCALE:
        return 0.3 + 0.9 * tst_uniform(rng);
    case GMA_KEY_MASK:
        return tst_uniform(rng) < 0.7;
    case GMA_SSM_A: /* decays of every strength */
        return -0.05 - 2 * fabs(tst_normal(rng));
    case GMA_PROJ_K:
    case GMA_PROJ_V:
        return 0.2 * tst_normal(rng);
    case GMA_DELTA:
        return -1 + tst_normal(rng);
    default:
        return tst_normal(rng);
    }
}

static void add_random(tst_array *a, int slot, double width, tst_rng *rng) {
    for (int64_t i = 0; i < a->n; i++)
        a->x[i] = as_f32(draw(slot, width, rng));
}

static void add_required(tst_problem *p, const int64_t *cu) {
    int count = 0;
    const gma_slot_info *table = gma_mixer_slots((gma_mixer_kind)p->desc.kind, &count);
    for (int i = 0; i < count; i++) {
        if (table[i].required && table[i].role != GMA_ROLE_OUTPUT)
            tst_add(p, table[i].slot);
    }
    if (!cu)
        return;
    double *x = tst_add(p, GMA_CU_SEQLENS);
    for (int64_t g = 0; g <= p->desc.segments; g++)
        x[g] = (double)cu[g];
}

static void add_if_known(tst_problem *p, int slot) {
    if (tst_slot_info(&p->desc, slot))
        tst_add(p, slot);
}

/* Upstream gradients of the outputs that every call has, or of the states. */
static void add_upstream(tst_problem *p, int required, tst_rng *rng) {
    int count = 0;
    const gma_slot_info *table = gma_mixer_slots((gma_mixer_kind)p->desc.kind, &count);
    for (int i = 0; i < count; i++) {
        if (table[i].role != GMA_ROLE_OUTPUT || !table[i].has_grad || table[i].required != required)
            continue;
        tst_add_up(p, table[i].slot);
        add_random(&p->up[table[i].slot], GMA_O, 1, rng);
    }
}

tst_problem tst_problem_random(const gma_mixer_desc *desc, const int64_t *cu, unsigned extras, tst_rng *rng) {
    tst_problem p;
    memset(&p, 0, sizeof p);
    p.desc = *desc;
    p.out_state = 1;
    add_required(&p, cu);
    static const struct {
        unsigned extra;
        int slot;
    } optional[] = {{TST_MASK, GMA_KEY_MASK},  {TST_STATE, GMA_STATE_S},   {TST_STATE, GMA_STATE_Z},
                    {TST_STATE, GMA_STATE_H}, {TST_DECAY, GMA_LOG_DECAY}, {TST_SCALE, GMA_LOGIT_SCALE}};
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        if (extras & optional[i].extra)
            add_if_known(&p, optional[i].slot);
    }
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        if ((extras & TST_PER_HEAD) && p.in[slot].x && tst_slot_info(desc, slot)->dims[0] == '?') {
            tst_array_free(&p.in[slot]);
            p.in[slot] = array_of(desc, slot, 1);
        }
        if (p.in[slot].x && slot != GMA_CU_SEQLENS)
            add_random(&p.in[slot], slot, (double)desc->routing_dim, rng);
    }
    p.backward = (extras & (TST_BACKWARD | TST_GRAD_STATE)) != 0;
    if (p.backward)
        add_upstream(&p, 1, rng);
    if (extras & TST_GRAD_STATE)
        add_upstream(&p, 0, rng);
    return p;
}

tst_problem tst_problem_plain(const gma_mixer_desc *desc, const int64_t *cu) {
    tst_problem p;
    memset(&p, 0, sizeof p);
    p.desc = *desc;
    p.out_state = 1;
    add_required(&p, cu);
    const int64_t K = desc->components, R = desc->routing_dim;
    for (int64_t i = 0; i < p.in[GMA_MU].n; i++) {
        p.in[GMA_MU].x[i] = K != 2 ? 0 : (i / R) % K ? 1 : -1;
        p.in[GMA_OMEGA].x[i] = 0.5411666523385311; /* softplus + 1e-4 = 1 */
    }
    return p;
}

double tst_plain_sum(void) { return tst_mixer == GMA_MIXER_PERFORMER ? sqrt(2) : 1; } /* 1 / sqrt(2) each */

tst_problem tst_problem_copy(const tst_problem *p) {
    tst_problem c = *p;
    for (int i = 0; i < TST_SLOTS; i++) {
        c.in[i] = tst_array_copy(&p->in[i]);
        c.up[i] = tst_array_copy(&p->up[i]);
    }
    return c;
}

void tst_problem_free(tst_problem *p) {
    for (int i = 0; i < TST_SLOTS; i++) {
        tst_array_free(&p->in[i]);
        tst_array_free(&p->up[i]);
    }
}
