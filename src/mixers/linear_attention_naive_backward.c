/* The adjoint of linear_attention_naive.c: the same recurrence, last token first. With U, u = dL/dS_t, dL/dZ_t:
 *
 *   read of query i:  den = g.Z + eps, o = gS / den,   dN = dO / den,  dden = -(dO . o) / den
 *                     dg = S dN + Z dden,              U += g dN^T,    u += g dden
 *   write of key j:   dv = g U,                        dg = U v + u
 *   decay a = e^l:    dl = a (<S_{t-1}, U> + Z_{t-1} . u),   U <- a U,   u <- a u
 *
 * U and u start as the gradient of the outgoing state and end as that of the incoming one. S_t is needed in reverse
 * order: it is kept at the start of every block of about sqrt(N) positions and computed again within a block. */
#include <math.h>
#include <string.h>

#include "mixers/linear_attention_naive.h"
#include "mixers/naive_tensor.h"

typedef struct adjoint {
    gmai_naive_seq s; /* S, Z: S_t while position t is worked on */
    int64_t width;    /* K (D + 1): doubles of one state */
    int64_t block;    /* positions of a block */
    double *starts;   /* (blocks, width): S before each block */
    double *inside;   /* (block + 1, width): S before each position of the current block, and after the last */
    unsigned char *starts_seen, *inside_seen;
    double *U, *u; /* (K,D), (K): one block, u behind U */
    int read;      /* 0 while nothing uses U: no query came yet (or all was forgotten since) and no gradient came in */
    double *dO, *dphi, *dx; /* (D), (K), (R) */
} adjoint;

static void put_row(const gma_tensor *t, int64_t b, int64_t h, int64_t n, int64_t width, const double *row) {
    if (!gmai_present(t))
        return;
    for (int64_t c = 0; c < width; c++)
        gmai_naive_put(t, b, h, n, c, row ? row[c] : 0);
}

static void read_query(adjoint *w, int64_t h, int64_t i) {
    gmai_naive_seq *s = &w->s;
    const gma_tensor *grad_o = &s->a->grad[GMA_O], *grad_q = &s->a->grad[GMA_Q];
    const int64_t K = s->K, D = s->D, n = s->q0 + i;
    if (!s->seen || !gmai_present(grad_o)) { /* output is a constant 0, or nobody looks at it */
        put_row(grad_q, s->batch, h, n, s->R, NULL);
        return;
    }
    gmai_naive_row(&s->a->t[GMA_Q], s->batch, h, n, s->R, s->x);
    gmai_naive_row(grad_o, s->batch, h, n, D, w->dO);
    s->map->phi(s->map->self, s->x, s->phi);

    double den = s->m->d.eps, dO_N = 0;
    for (int64_t k = 0; k < K; k++) {
        den += s->phi[k] * s->Z[k];
        for (int64_t c = 0; c < D; c++)
            dO_N += w->dO[c] * s->phi[k] * s->S[k * D + c];
    }
    const double dden = -dO_N / (den * den);
    for (int64_t k = 0; k < K; k++) {
        w->dphi[k] = s->Z[k] * dden;
        for (int64_t c = 0; c < D; c++) {
            w->dphi[k] += s->S[k * D + c] * w->dO[c] / den;
            w->U[k * D + c] += s->phi[k] * w->dO[c] / den;
        }
        w->u[k] += s->phi[k] * dden;
    }
    w->read = 1;
    s->map->backward(s->map->self, s->x, s->phi, w->dphi, w->dx);
    put_row(grad_q, s->batch, h, n, s->R, w->dx);
}

static void read_queries(adjoint *w, int64_t i) {
    const gmai_naive_seq *s = &w->s;
    for (int64_t h = s->head * s->group; h < (s->head + 1) * s->group; h++)
        read_query(w, h, i);
}

static void write_key(adjoint *w, int64_t j) {
    gmai_naive_seq *s = &w->s;
    const gma_tensor *grad_k = &s->a->grad[GMA_K], *grad_v = &s->a->grad[GMA_V];
    const int64_t K = s->K, D = s->D, n = s->k0 + j;
    if (!w->read || gmai_naive_masked(s, j)) {
        put_row(grad_k, s->batch, s->head, n, s->R, NULL);
        put_row(grad_v, s->batch, s->head, n, D, NULL);
        return;
    }
    gmai_naive_row(&s->a->t[GMA_K], s->batch, s->head, n, s->R, s->x);
    gmai_naive_row(&s->a->t[GMA_V], s->batch, s->head, n, D, s->v);
    s->map->phi(s->map->self, s->x, s->phi);
    for (int64_t c = 0; c < D; c++) {
        double dv = 0;
        for (int64_t k = 0; k < K; k++)
            dv += s->phi[k] * w->U[k * D + c];
        if (gmai_present(grad_v))
            gmai_naive_put(grad_v, s->batch, s->head, n, c, dv);
    }
    for (int64_t k = 0; k < K; k++) {
        w->dphi[k] = w->u[k];
        for (int64_t c = 0; c < D; c++)
            w->dphi[k] += w->U[k * D + c] * s->v[c];
    }
    s->map->backward(s->map->self, s->x, s->phi, w->dphi, w->dx);
    put_row(grad_k, s->batch, s->head, n, s->R, w->dx);
}

/* before: S_{t-1}, Z_{t-1}; empty = it holds nothing. */
static void decay(adjoint *w, int64_t j, const double *before, int empty) {
    const gmai_naive_seq *s = &w->s;
    const gma_tensor *grad = &s->a->grad[GMA_LOG_DECAY];
    const double log_decay = gmai_naive_log_decay(s, j);
    const double factor = exp(log_decay);
    double sum = 0;
    if (log_decay == -INFINITY) {
        memset(w->U, 0, (size_t)w->width * sizeof(double));
        w->read = 0;
    }
    for (int64_t i = 0; i < w->width && w->read && log_decay != 0; i++)
        w->U[i] *= factor;
    for (int64_t i = 0; i < w->width && w->read && !empty; i++)
        sum += before[i] * w->U[i];
    if (gmai_present(grad))
        gmai_naive_put(grad, s->batch, s->head, s->k0 + j, 0, sum);
}

static void backward_bidirectional(adjoint *w) {
    for (int64_t j = 0; j < w->s.nk; j++)
        gmai_naive_step(&w->s, j);
    for (int64_t i = 0; i < w->s.nq; i++)
        read_queries(w, i);
    for (int64_t j = 0; j < w->s.nk; j++)
        write_key(w, j);
}

static void save(const adjoint *w, double *state, unsigned char *seen) {
    memcpy(state, w->s.S, (size_t)w->width * sizeof(double));
    *seen = (unsigned char)w->s.seen;
}

static void restore(adjoint *w, const double *state, unsigned char seen) {
    memcpy(w->s.S, state, (size_t)w->width * sizeof(double));
    w->s.seen = seen;
}

static void backward_causal(adjoint *w) {
    gmai_naive_seq *s = &w->s;
    const int64_t first = s->offset < 0 ? s->offset : 0; /* positions < 0: queries that see no key */
    for (int64_t j = first; j < s->nk; j++) {
        const int64_t at = (j - first) / w->block;
        if ((j - first) % w->block == 0)
            save(w, w->starts + at * w->width, w->starts_seen + at);
        if (j >= 0)
            gmai_naive_step(s, j);
    }
    for (int64_t end = s->nk; end > first;) {
        const int64_t at = (end - 1 - first) / w->block, begin = first + at * w->block;
        restore(w, w->starts + at * w->width, w->starts_seen[at]);
        for (int64_t j = begin; j < end; j++) {
            save(w, w->inside + (j - begin) * w->width, w->inside_seen + (j - begin));
            if (j >= 0)
                gmai_naive_step(s, j);
        }
        for (int64_t j = end - 1; j >= begin; j--) { /* here S, Z are those after position j */
            const double *before = w->inside + (j - begin) * w->width;
            if (j - s->offset >= 0)
                read_queries(w, j - s->offset);
            if (j >= 0) {
                write_key(w, j);
                decay(w, j, before, !w->inside_seen[j - begin]);
            }
            restore(w, before, w->inside_seen[j - begin]);
        }
        end = begin;
    }
}

static void backward_sequence(adjoint *w) {
    const gmai_naive_seq *s = &w->s;
    const gma_tensor *in_S = &s->a->grad[GMA_OUT_S], *in_Z = &s->a->grad[GMA_OUT_Z];
    const gma_tensor *out_S = &s->a->grad[GMA_STATE_S], *out_Z = &s->a->grad[GMA_STATE_Z];
    w->read = gmai_present(in_S) || gmai_present(in_Z);
    for (int64_t k = 0; k < s->K; k++) {
        for (int64_t c = 0; c < s->D; c++)
            w->U[k * s->D + c] = gmai_present(in_S) ? gmai_naive_get(in_S, s->state, s->head, k, c) : 0;
        w->u[k] = gmai_present(in_Z) ? gmai_naive_get(in_Z, s->state, s->head, k, 0) : 0;
    }
    if (s->m->d.causal)
        backward_causal(w);
    else
        backward_bidirectional(w);
    for (int64_t k = 0; k < s->K; k++) {
        for (int64_t c = 0; gmai_present(out_S) && c < s->D; c++)
            gmai_naive_put(out_S, s->state, s->head, k, c, w->U[k * s->D + c]);
        if (gmai_present(out_Z))
            gmai_naive_put(out_Z, s->state, s->head, k, 0, w->u[k]);
    }
}

static void adjoint_free(adjoint *w) {
    gmai_naive_seq_free(&w->s);
    free(w->starts);
    free(w->inside);
    free(w->starts_seen);
    free(w->inside_seen);
    free(w->U);
    free(w->dO);
    free(w->dphi);
    free(w->dx);
}

static gma_status adjoint_init(adjoint *w, const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map) {
    *w = (adjoint){0};
    const gma_status status = gmai_naive_seq_init(&w->s, m, a, map);
    if (status)
        return status;
    const int64_t positions = m->d.causal ? (m->d.q_len > m->d.k_len ? m->d.q_len : m->d.k_len) : 0;
    w->width = w->s.K * (w->s.D + 1); /* fits: the state was allocated */
    w->block = (int64_t)sqrt((double)positions) + 1;
    const int64_t blocks = positions / w->block + 1;
    w->starts = gmai_naive_alloc(blocks, w->width);
    w->inside = gmai_naive_alloc(w->block, w->width);
    w->starts_seen = calloc((size_t)blocks, 1);
    w->inside_seen = calloc((size_t)w->block, 1);
    w->U = gmai_naive_alloc(w->width, 1);
    w->dO = gmai_naive_alloc(w->s.D, 1);
    w->dphi = gmai_naive_alloc(w->s.K, 1);
    w->dx = gmai_naive_alloc(w->s.R, 1);
    if (!w->starts || !w->inside || !w->starts_seen || !w->inside_seen || !w->U || !w->dO || !w->dphi || !w->dx) {
        adjoint_free(w);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for the states of %lld positions, K=%lld, D=%lld",
                        (long long)positions, (long long)m->d.components, (long long)m->d.value_dim);
    }
    w->u = w->U + w->s.K * w->s.D;
    return GMA_OK;
}

gma_status gmai_la_naive_backward(const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map) {
    adjoint w;
    const gma_status status = adjoint_init(&w, m, a, map);
    if (status)
        return status;
    for (int64_t h = 0; h < m->d.kv_heads; h++) {
        if (map->load)
            map->load(map->self, m, a, h);
        for (int64_t g = 0; g < gmai_naive_seq_count(m); g++) {
            gmai_naive_seq_select(&w.s, h, g);
            backward_sequence(&w);
        }
        if (map->store)
            map->store(map->self, a, h);
    }
    adjoint_free(&w);
    return GMA_OK;
}
