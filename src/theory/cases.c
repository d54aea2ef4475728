#include "theory/cases.h"

#include <math.h>
#include <stdlib.h>

#include "layers/rng.h"
#include "theory/statements.h"

gma_status gmal_case_make(gmal_case *m, int64_t k, int64_t r, int64_t d, int64_t n) {
    *m = (gmal_case){.layer = -1, .head = -1, .k = k, .r = r, .d = d, .n = n, .logit_scale = 1, .eps = 1e-6, .eps_sigma = 1e-4};
    m->memory = calloc((size_t)(k * (2 * r + 1) + n * (2 * r + d)), sizeof *m->memory);
    if (!m->memory)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a mixture and %lld tokens", (long long)n);
    m->mu = m->memory;
    m->omega = m->mu + k * r;
    m->alpha = m->omega + k * r;
    m->q = m->alpha + k;
    m->key = m->q + n * r;
    m->v = m->key + n * r;
    return GMA_OK;
}

void gmal_cases_free(gmal_cases *cases) {
    for (int i = 0; i < cases->count; i++)
        free(cases->item[i].memory);
    free(cases->item);
    *cases = (gmal_cases){0};
}

static double f32(double x) { return (double)(float)x; }

static void fill(double *x, int64_t n, double scale, uint64_t key) {
    for (int64_t i = 0; i < n; i++)
        x[i] = f32(scale * gmal_normal(key, (uint64_t)i));
}

static void near_components(const gmal_case *m, uint64_t key, double *x) {
    for (int64_t i = 0; i < m->n; i++) {
        const int64_t k = (int64_t)(gmal_uniform(key, UINT64_C(1) << 50 | (uint64_t)i) * (double)m->k);
        for (int64_t j = 0; j < m->r; j++) {
            const double w = m->omega[k * m->r + j], s = (w > 30 ? w : log1p(exp(w))) + m->eps_sigma;
            x[i * m->r + j] = f32(m->mu[k * m->r + j] + sqrt(s) * gmal_normal(key, (uint64_t)(i * m->r + j)));
        }
    }
}

void gmal_case_draw_tokens(gmal_case *m, uint64_t key) {
    near_components(m, gmal_key(key, 10), m->q);
    near_components(m, gmal_key(key, 11), m->key);
    fill(m->v, m->n * m->d, 1, gmal_key(key, 12));
}

/* Two components at -1 and 1 of variance 1, values 1 and -1 in turn. Queries at 0 that see keys of one component or the other:
 * sum_k |dO/dlogit^q_k| nears V. Queries of one component and keys just outside it: sum_jk |dO/dlogit^k_jk| nears 2V. */
static gma_status extreme(int keys, gmal_case *m) {
    const gma_status s = gmal_case_make(m, 2, 1, 1, 8);
    if (s != GMA_OK)
        return s;
    m->mu[0] = -1;
    m->mu[1] = 1;
    m->omega[0] = m->omega[1] = f32(log(expm1(1 - m->eps_sigma)));
    for (int i = 0; i < 8; i++) {
        m->q[i] = keys ? -40 : 0;
        m->key[i] = keys ? 3 : i % 2 ? 4 : -4;
        m->v[i] = i % 2 ? 1 : -1;
    }
    return GMA_OK;
}

gma_status gmal_cases_random(const gma_verify_options *o, gmal_cases *cases) {
    const int64_t count = o->mixtures ? o->mixtures : 4, k = o->components, r = o->width;
    *cases = (gmal_cases){calloc((size_t)count + 2, sizeof *cases->item), 0};
    gma_status s = cases->item ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld mixtures", (long long)count);
    for (int64_t i = 0; i < count + 2 && s == GMA_OK; i++) {
        gmal_case *m = &cases->item[cases->count];
        const uint64_t key = gmal_key(o->seed, (uint64_t)i);
        s = i < count ? gmal_case_make(m, k, r, r, 4 * k) : extreme(i == count + 1, m);
        if (s != GMA_OK)
            break;
        m->head = i;
        cases->count++;
        if (i >= count)
            continue;
        fill(m->mu, k * r, 1, gmal_key(key, 1));
        fill(m->omega, k * r, 1, gmal_key(key, 2));
        fill(m->alpha, k, 0.5, gmal_key(key, 3));
        gmal_case_draw_tokens(m, key);
    }
    if (s != GMA_OK)
        gmal_cases_free(cases);
    return s;
}
