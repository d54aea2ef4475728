/* (ii): gradients with respect to logits.
 *
 * Backward gives grad_alpha = logit_scale sum dL/dlogit over all tokens, so tokens are taken apart: keys alone make the
 * state (S, Z); one query reads it, a head for each direction of o, and its backward gives dL/dS and dL/dZ; then every key
 * alone, in a head of its own, with these as gradients of its outgoing state. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "theory/statements.h"

enum { KEYS = 16, WIDTH = 8, WINDOWS = 2 };
static const double stretches[] = {1, 3, 17}; /* keys ever farther out: their responsibilities for a query's component fall */
static const double small_eps = 1e-20;

/* One query and its keys. */
typedef struct instance {
    int64_t n, d;       /* keys, value width */
    double eps;
    double *q, *key, *v; /* (R), (n,R), (n,d) */
    double *S, *Z;       /* (K,d), (K) */
    double *o;           /* (d) */
    double *gq, *gk;     /* (K), (n,K) */
    double *jq;          /* (d,K): do/dlogit of the query */
    double *dS, *dZ;     /* (d,K,d), (d,K): do/dS, do/dZ */
    double *jk;          /* (d,n,K) */
    double *work;        /* copies by head */
} instance;

static gma_status state_of_keys(const gmal_subject *s, const instance *t) {
    gmal_call c;
    double none = 0;
    const int64_t k = s->m->k;
    gmal_call_begin(&c, s->e, s->m, 1, 0, t->n, t->d, 0);
    gmal_call_in(&c, GMA_Q, &none, 4, 1, 0, s->m->r);
    gmal_call_in(&c, GMA_K, t->key, 4, 1, t->n, s->m->r);
    gmal_call_in(&c, GMA_V, t->v, 4, 1, t->n, t->d);
    gmal_call_out(&c, GMA_O, &none, 4, 1, 0, t->d);
    gmal_call_out(&c, GMA_OUT_S, t->S, 4, 1, k, t->d);
    gmal_call_out(&c, GMA_OUT_Z, t->Z, 3, 1, k, 1);
    return gmal_call_run(&c, 0);
}

static void repeat(const double *x, int64_t n, int64_t times, double *to) {
    for (int64_t i = 0; i < times; i++)
        memcpy(to + i * n, x, (size_t)n * sizeof *x);
}

static void unscale(const gmal_subject *s, double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] /= s->m->logit_scale;
}

static gma_status query_reads(const gmal_subject *s, const instance *t) {
    gmal_call c;
    double none = 0;
    const int64_t k = s->m->k, d = t->d, r = s->m->r;
    double *q = t->work, *S = q + d * r, *Z = S + d * k * d, *up = Z + d * k, *o = up + d * d;
    repeat(t->q, r, d, q);
    repeat(t->S, k * d, d, S);
    repeat(t->Z, k, d, Z);
    for (int64_t i = 0; i < d * d; i++)
        up[i] = i / d == i % d;
    gmal_call_begin(&c, s->e, s->m, d, 1, 0, d, 0);
    c.desc.eps = t->eps;
    gmal_call_in(&c, GMA_Q, q, 4, d, 1, r);
    gmal_call_in(&c, GMA_K, &none, 4, d, 0, r);
    gmal_call_in(&c, GMA_V, &none, 4, d, 0, d);
    gmal_call_in(&c, GMA_STATE_S, S, 4, d, k, d);
    gmal_call_in(&c, GMA_STATE_Z, Z, 3, d, k, 1);
    gmal_call_out(&c, GMA_O, o, 4, d, 1, d);
    gmal_call_in(&c, GMA_GRAD(GMA_O), up, 4, d, 1, d);
    gmal_call_out(&c, GMA_GRAD(GMA_ALPHA), t->jq, 2, d, k, 1);
    gmal_call_out(&c, GMA_GRAD(GMA_STATE_S), t->dS, 4, d, k, d);
    gmal_call_out(&c, GMA_GRAD(GMA_STATE_Z), t->dZ, 3, d, k, 1);
    const gma_status status = gmal_call_run(&c, 1);
    memcpy(t->o, o, (size_t)d * sizeof *o);
    unscale(s, t->jq, d * k);
    return status;
}

/* Head (i, j): direction i of o, key j. */
static gma_status keys_write(const gmal_subject *s, const instance *t) {
    gmal_call c;
    double none = 0;
    const int64_t k = s->m->k, d = t->d, r = s->m->r, n = t->n, h = d * n;
    double *key = t->work, *v = key + h * r, *S = v + h * d, *Z = S + h * k * d;
    repeat(t->key, n * r, d, key);
    repeat(t->v, n * d, d, v);
    for (int64_t i = 0; i < d; i++) {
        repeat(t->dS + i * k * d, k * d, n, S + i * n * k * d);
        repeat(t->dZ + i * k, k, n, Z + i * n * k);
    }
    gmal_call_begin(&c, s->e, s->m, h, 0, 1, d, 0);
    c.desc.eps = t->eps;
    gmal_call_in(&c, GMA_Q, &none, 4, h, 0, r);
    gmal_call_in(&c, GMA_K, key, 4, h, 1, r);
    gmal_call_in(&c, GMA_V, v, 4, h, 1, d);
    gmal_call_out(&c, GMA_O, &none, 4, h, 0, d);
    gmal_call_in(&c, GMA_GRAD(GMA_OUT_S), S, 4, h, k, d);
    gmal_call_in(&c, GMA_GRAD(GMA_OUT_Z), Z, 3, h, k, 1);
    gmal_call_out(&c, GMA_GRAD(GMA_ALPHA), t->jk, 2, h, k, 1);
    const gma_status status = gmal_call_run(&c, 1);
    unscale(s, t->jk, h * k);
    return status;
}

/* ---- What is measured ----------------------------------------------------------------------------------------- */

/* |dl_k| against gamma_k (max g - min g), g known only to `noise`. */
static void check_logits(const gmal_subject *s, const double *dl, const double *gamma, const double *g, double noise) {
    const double least = s->e->naive ? 1e-290 : 1e-30; /* below, products are rounded to 0 */
    double low = INFINITY, high = -INFINITY, worst = 0, sharp = 0;
    int64_t checked = 0;
    for (int64_t k = 0; k < s->m->k; k++) {
        low = g[k] >= low ? low : g[k];
        high = g[k] <= high ? high : g[k];
    }
    const double range = high - low;
    for (int64_t k = 0; k < s->m->k; k++) {
        if (gamma[k] < least || (range == 0 && noise == 0))
            continue;
        const double a = fabs(dl[k]) / (gamma[k] * (range + noise)),
                     b = fabs(dl[k]) / (gamma[k] * ((1 - gamma[k]) * range + noise));
        worst = a <= worst ? worst : a;
        sharp = b <= sharp ? sharp : b;
        checked++;
    }
    if (checked == 0)
        return;
    gmal_record(s, "ii", "|dL/dlogit_k| / (gamma_k (max g - min g))", GMAL_AT_MOST, worst, 1, checked);
    gmal_record(s, "ii", "the same with (1 - gamma_k) below: sharper", GMAL_AT_MOST, sharp, 1, checked);
}

/* g = dL/dgamma for L = each entry of o, as the definition has it. */
static void check_each_logit(const gmal_subject *s, const instance *t, double den, double *g) {
    const int64_t k = s->m->k, d = t->d, n = t->n;
    for (int64_t i = 0; i < d; i++) {
        double scale = 0;
        for (int64_t c = 0; c < k; c++) {
            g[c] = (t->S[c * d + i] - t->Z[c] * t->o[i]) / den;
            scale = fmax(scale, (fabs(t->S[c * d + i]) + t->Z[c] * fabs(t->o[i])) / den);
        }
        check_logits(s, t->jq + i * k, t->gq, g, 32 * s->e->unit * scale);
        for (int64_t j = 0; j < n; j++) {
            scale = 0;
            for (int64_t c = 0; c < k; c++) {
                double size = fabs(t->dZ[i * k + c]);
                g[c] = t->dZ[i * k + c];
                for (int64_t e = 0; e < d; e++) {
                    const double x = t->dS[(i * k + c) * d + e] * t->v[j * d + e];
                    g[c] += x;
                    size += fabs(x);
                }
                scale = fmax(scale, size);
            }
            check_logits(s, t->jk + (i * n + j) * k, t->gk + j * k, g, 32 * s->e->unit * scale);
        }
    }
}

static double length(const double *x, int64_t n, int64_t step) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i * step] * x[i * step];
    return sqrt(sum);
}

static void check_sums(const gmal_subject *s, const instance *t) {
    const int64_t k = s->m->k, d = t->d, n = t->n;
    double V = 0, query = 0, keys = 0;
    for (int64_t j = 0; j < n; j++)
        V = fmax(V, length(t->v + j * d, d, 1));
    if (V == 0)
        return;
    for (int64_t c = 0; c < k; c++)
        query += length(t->jq + c, d, k) / V;
    for (int64_t j = 0; j < n * k; j++)
        keys += length(t->jk + j, d, n * k) / V;
    gmal_record(s, "ii", "sum_k |dO/dlogit^q_k| / V", GMAL_AT_MOST, query, 3, k);
    gmal_record(s, "ii", "sum_k |dO/dlogit^q_k| / V: sharp", GMAL_AT_MOST, query, 1, k);
    gmal_record(s, "ii", "sum_jk |dO/dlogit^k_jk| / V", GMAL_AT_MOST, keys, 4, n * k);
    gmal_record(s, "ii", "sum_jk |dO/dlogit^k_jk| / V: sharp", GMAL_AT_MOST, keys, 2, n * k);
}

static gma_status look(const gmal_subject *s, const instance *t) {
    gma_status status = state_of_keys(s, t);
    if (status == GMA_OK)
        status = query_reads(s, t);
    if (status == GMA_OK)
        status = keys_write(s, t);
    if (status != GMA_OK)
        return status;
    double den = t->eps;
    for (int64_t c = 0; c < s->m->k; c++)
        den += t->gq[c] * t->Z[c];
    gmal_record(s, "ii", "smallest denominator gamma(q).Z + eps met", GMAL_TOLD, den, NAN, 1);
    check_each_logit(s, t, den, t->work);
    check_sums(s, t);
    return GMA_OK;
}

/* ---- Which queries and keys ----------------------------------------------------------------------------------- */

/* The query (row of m->q) that sees least, or most, of these keys; it becomes that of the instance. */
static void choose(const gmal_subject *s, const double *all, int most, instance *t) {
    const gmal_case *m = s->m;
    double best = most ? -1 : INFINITY;
    int64_t chosen = 0;
    for (int64_t i = 0; i < m->n; i++) {
        double z = 0;
        for (int64_t j = 0; j < t->n * m->k; j++)
            z += all[i * m->k + j % m->k] * t->gk[j];
        if (most ? z > best : z < best) {
            best = z;
            chosen = i;
        }
    }
    memcpy(t->q, m->q + chosen * m->r, (size_t)m->r * sizeof *t->q);
    memcpy(t->gq, all + chosen * m->k, (size_t)m->k * sizeof *t->gq);
}

static void take_keys(const gmal_case *m, int64_t from, double stretch, const instance *t) {
    for (int64_t j = 0; j < t->n; j++)
        for (int64_t i = 0; i < m->d && i < t->d; i++)
            t->v[j * t->d + i] = m->v[(from + j) * m->d + i];
    for (int64_t i = 0; i < m->r; i++) {
        double centre = 0;
        for (int64_t c = 0; c < m->k; c++)
            centre += m->mu[c * m->r + i] / (double)m->k;
        for (int64_t j = 0; j < t->n; j++)
            t->key[j * m->r + i] = (double)(float)(centre + stretch * (m->key[(from + j) * m->r + i] - centre));
    }
}

static gma_status windows(const gmal_subject *s, const double *all, instance *t) {
    gma_status status = GMA_OK;
    for (int w = 0; w < WINDOWS; w++)
        for (size_t i = 0; i < sizeof stretches / sizeof stretches[0] && status == GMA_OK; i++) {
            take_keys(s->m, w * (s->m->n - t->n) / (WINDOWS - 1), stretches[i], t);
            status = gmal_gamma(s->e, s->m, t->key, t->n, t->gk);
            for (int turn = 0; turn < 3 && status == GMA_OK; turn++) {
                t->eps = turn == 2 ? small_eps : s->m->eps;
                choose(s, all, turn == 1, t);
                status = look(s, t);
            }
        }
    return status;
}

gma_status gmal_check_gradients(const gmal_subject *s) {
    const gmal_case *m = s->m;
    const int64_t k = m->k, r = m->r, n = m->n < KEYS ? m->n : KEYS, d = m->d < WIDTH ? m->d : WIDTH;
    const int64_t work = d * n * (r + d + k * d + k) + d * (r + 2 * d + k) + k;
    const int64_t sizes[] = {r, n * r, n * d, k * d, k, d, k, n * k, d * k, d * k * d, d * k, d * n * k, work, m->n * k};
    enum { PARTS = sizeof sizes / sizeof sizes[0] };
    int64_t total = 0, at = 0;
    double *part[PARTS];
    for (int i = 0; i < PARTS; i++)
        total += sizes[i];
    double *memory = malloc((size_t)total * sizeof *memory);
    if (!memory)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for gradients by head");
    for (int i = 0; i < PARTS; at += sizes[i++])
        part[i] = memory + at;
    instance t = {n,       d,       m->eps,  part[0], part[1], part[2],  part[3],  part[4],
                  part[5], part[6], part[7], part[8], part[9], part[10], part[11], part[12]};
    gma_status status = gmal_gamma(s->e, m, m->q, m->n, part[13]);
    if (status == GMA_OK)
        status = windows(s, part[13], &t);
    free(memory);
    return status;
}
