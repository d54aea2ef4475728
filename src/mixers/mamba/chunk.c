/* See mamba.h. */
#include <string.h>

#include "core/tensor.h"
#include "mixers/mamba/mamba.h"

void gmai_mamba_plan_make(const gma_mixer_desc *d, gmai_mamba_plan *p)
{
    gmai_plan *t = &p->tokens;
    gmai_plan_make(d, t);
    t->segment_len = GMAI_CHUNK;
    t->groups_wanted = 1;
    /* An empty packed sequence has no chunk; every other one may have a ragged one. */
    t->max_segments = t->packed ? t->nq / GMAI_CHUNK + t->sequences
                                : t->rows * ((t->nq + GMAI_CHUNK - 1) / GMAI_CHUNK);
    p->channels = d->heads * d->value_dim;
    p->groups = (p->channels + W - 1) / W;
    p->states = (int)d->components;
    p->ld = (int)gmai_pad(p->states);
    p->state_floats = (size_t)p->states * W;
    /* Backward goes chunk by chunk with all units side by side: enough of them for the threads, and memory for no more. */
    p->band = p->groups > 0 && p->groups < 64 ? 64 / p->groups : 1;
    if (p->band > t->sequences) p->band = t->sequences > 0 ? t->sequences : 1;
}

size_t gmai_mamba_group_floats(const gmai_mamba_plan *p) { return p->state_floats + 2 * W + GMAI_PAD; }

int gmai_mamba_width(const gmai_mamba_plan *p, int64_t g)
{
    const int64_t left = p->channels - g * W;
    return (int)(left < W ? left : W);
}

static float element(const gma_tensor *t, int64_t at) { return ((const float *)t->data)[at]; }

void gmai_mamba_prepare(const gmai_mamba_plan *p, const gmai_args *a, float *groups)
{
    const gma_tensor *A = &a->t[GMA_SSM_A], *D = &a->t[GMA_SSM_D], *bias = &a->t[GMA_DELTA_BIAS];
    memset(groups, 0, (size_t)p->groups * gmai_mamba_group_floats(p) * sizeof(float));
    for (int64_t g = 0; g < p->groups; g++, groups += gmai_mamba_group_floats(p)) {
        float *d = groups + p->state_floats;
        d[2 * W] = 1.0f;
        for (int l = 0; l < gmai_mamba_width(p, g); l++) {
            const int64_t e = g * W + l;
            for (int s = 0; s < p->states; s++) {
                const float x = element(A, e * A->stride[0] + s * A->stride[1]);
                groups[s * W + l] = (float)((double)x * 1.4426950408889634);
                if (!(x <= 0.0f)) d[2 * W] = 0.0f;
            }
            d[l] = element(D, e * D->stride[0]);
            d[W + l] = element(bias, e * bias->stride[0]);
        }
    }
}

void gmai_mamba_chunk_take(const gmai_mamba_plan *p, gmai_bump *bump, gmai_mamba_chunk *c)
{
    float **wide[] = {&c->u, &c->raw, &c->delta, &c->du, &c->y};
    for (int i = 0; i < 5; i++) *wide[i] = gmai_take_floats(bump, (size_t)GMAI_CHUNK * W);
    c->b = gmai_take_floats(bump, (size_t)GMAI_CHUNK * (size_t)p->ld);
    c->c = gmai_take_floats(bump, (size_t)GMAI_CHUNK * (size_t)p->ld);
}

gmai_rows gmai_mamba_rows(const gma_tensor *t, int64_t row, int64_t at, int64_t column)
{
    gmai_rows r = {NULL, 0, t->dtype};
    if (!gmai_present(t)) return r;
    r.stride = t->stride[1];
    r.data = (char *)t->data +
             (row * t->stride[0] + at * t->stride[1] + column) * (int64_t)gma_dtype_size((gma_dtype)t->dtype);
    return r;
}

void gmai_mamba_chunk_load(const gma_mixer *m, const gmai_mamba_plan *p, const gmai_args *a, const float *groups,
                           int64_t row, int64_t g, int64_t at, int n, gmai_mamba_chunk *c)
{
    const gmai_kernels *kern = m->kern;
    const int width = gmai_mamba_width(p, g);
    const gmai_rows u = gmai_mamba_rows(&a->t[GMA_U], row, at, g * W), raw = gmai_mamba_rows(&a->t[GMA_DELTA], row, at, g * W);
    const gmai_rows b = gmai_mamba_rows(&a->t[GMA_SSM_B], row, at, 0), cc = gmai_mamba_rows(&a->t[GMA_SSM_C], row, at, 0);
    (void)kern->pack(&u, n, width, NULL, NULL, c->u, W, NULL);
    (void)kern->pack(&raw, n, width, NULL, NULL, c->raw, W, NULL);
    (void)kern->pack(&b, n, p->states, NULL, NULL, c->b, p->ld, NULL);
    (void)kern->pack(&cc, n, p->states, NULL, NULL, c->c, p->ld, NULL);
    gmai_mamba_chunk_ready(m, p, groups, g, n, c);
}

void gmai_mamba_chunk_ready(const gma_mixer *m, const gmai_mamba_plan *p, const float *groups, int64_t g, int n,
                            gmai_mamba_chunk *c)
{
    const float *prepared = groups + (size_t)g * gmai_mamba_group_floats(p);
    c->scan = (gmai_scan){.n = n,
                          .nvec = (gmai_mamba_width(p, g) + m->kern->lanes - 1) / m->kern->lanes,
                          .states = p->states,
                          .ld = p->ld,
                          .shrinking = prepared[p->state_floats + 2 * W] != 0.0f,
                          .a2 = prepared,
                          .d = prepared + p->state_floats,
                          .bias = prepared + p->state_floats + W,
                          .u = c->u,
                          .raw = c->raw,
                          .delta = c->delta,
                          .du = c->du,
                          .b = c->b,
                          .c = c->c};
    m->kern->scan_prepare(&c->scan);
}

void gmai_mamba_ahead(const gmai_mamba_plan *p, const gma_tensor *t, int64_t row, int64_t g, int64_t at, int n,
                      gmai_mamba_chunk *c)
{
    if (!gmai_present(t)) return;
    const gmai_rows r = gmai_mamba_rows(t, row, at, g * W);
    const int size = (int)gma_dtype_size((gma_dtype)t->dtype);
    c->scan.ahead[c->scan.aheads++] = (gmai_ahead){(uintptr_t)r.data, r.stride * size, gmai_mamba_width(p, g) * size, n};
}

void gmai_mamba_state_import(const gmai_mamba_plan *p, const gma_tensor *t, int64_t sequence, int64_t g, float *h)
{
    memset(h, 0, p->state_floats * sizeof(float));
    if (!gmai_present(t)) return;
    for (int l = 0; l < gmai_mamba_width(p, g); l++)
        for (int s = 0; s < p->states; s++)
            h[s * W + l] = gmai_load_f32(t, sequence * t->stride[0] + (g * W + l) * t->stride[1] + s * t->stride[2]);
}

void gmai_mamba_state_export(const gmai_mamba_plan *p, const float *h, int64_t sequence, int64_t g, const gma_tensor *t)
{
    if (!gmai_present(t)) return;
    for (int l = 0; l < gmai_mamba_width(p, g); l++)
        for (int s = 0; s < p->states; s++)
            gmai_store_f32(t, sequence * t->stride[0] + (g * W + l) * t->stride[1] + s * t->stride[2], h[s * W + l]);
}
