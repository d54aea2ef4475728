/* The linear mixers in double: S and Z as a recurrence over keys, one output row per query. */
#include <math.h>
#include <string.h>

#include "mixers/linear_attention_naive.h"
#include "mixers/naive_tensor.h"

int64_t gmai_naive_seq_count(const gma_mixer *m) { return m->d.segments >= 0 ? m->d.segments : m->d.batch; }

/* What the slot table cannot say. A NaN in log_decay passes: it is data, and shows in the results. */
static gma_status check_values(const gma_mixer *m, const gmai_args *a) {
    const gma_tensor *cu = &a->t[GMA_CU_SEQLENS], *decay = &a->t[GMA_LOG_DECAY];
    if (m->d.segments >= 0) {
        int64_t last = gmai_naive_get_int(cu, 0);
        if (last != 0)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "cu_seqlens[0] is %lld, not 0", (long long)last);
        for (int64_t g = 1; g <= m->d.segments; g++) {
            const int64_t next = gmai_naive_get_int(cu, g);
            if (next < last)
                return gma_fail(GMA_ERR_INVALID_ARGUMENT, "cu_seqlens[%lld] is %lld, less than the entry before (%lld)",
                                (long long)g, (long long)next, (long long)last);
            last = next;
        }
        if (last != m->d.k_len)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "cu_seqlens ends at %lld, not at the %lld tokens",
                            (long long)last, (long long)m->d.k_len);
    }
    if (gmai_present(decay)) {
        if (!m->d.causal)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "log_decay needs causal = 1");
        if (m->d.q_len > m->d.k_len)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "log_decay needs q_len <= k_len, not %lld > %lld",
                            (long long)m->d.q_len, (long long)m->d.k_len);
        for (int64_t b = 0; b < decay->shape[0]; b++)
            for (int64_t h = 0; h < decay->shape[1]; h++)
                for (int64_t n = 0; n < decay->shape[2]; n++)
                    if (gmai_naive_get(decay, b, h, n, 0) > 0)
                        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "log_decay[%lld][%lld][%lld] is %g, more than 0",
                                        (long long)b, (long long)h, (long long)n, gmai_naive_get(decay, b, h, n, 0));
    }
    return GMA_OK;
}

gma_status gmai_naive_seq_init(gmai_naive_seq *s, const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map) {
    const gma_status status = check_values(m, a);
    if (status)
        return status;
    *s = (gmai_naive_seq){.m = m, .a = a, .map = map};
    s->K = m->d.components;
    s->R = m->d.routing_dim;
    s->D = m->d.value_dim;
    s->group = m->d.kv_heads > 0 ? m->d.heads / m->d.kv_heads : 0;
    s->x = gmai_naive_alloc(s->R, 1);
    s->v = gmai_naive_alloc(s->D, 1);
    s->phi = gmai_naive_alloc(s->K, 1);
    s->S = gmai_naive_alloc(s->K, s->D + 1);
    if (!s->x || !s->v || !s->phi || !s->S) {
        gmai_naive_seq_free(s);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for a state of K=%lld, D=%lld", (long long)s->K,
                        (long long)s->D);
    }
    s->Z = s->S + s->K * s->D;
    return GMA_OK;
}

void gmai_naive_seq_free(gmai_naive_seq *s) {
    free(s->x);
    free(s->v);
    free(s->phi);
    free(s->S);
    *s = (gmai_naive_seq){0};
}

void gmai_naive_seq_select(gmai_naive_seq *s, int64_t head, int64_t sequence) {
    const gma_mixer_desc *d = &s->m->d;
    const gma_tensor *state_S = &s->a->t[GMA_STATE_S], *state_Z = &s->a->t[GMA_STATE_Z];
    s->head = head;
    s->state = sequence;
    if (d->segments >= 0) {
        s->batch = 0;
        s->q0 = s->k0 = gmai_naive_get_int(&s->a->t[GMA_CU_SEQLENS], sequence);
        s->nq = s->nk = gmai_naive_get_int(&s->a->t[GMA_CU_SEQLENS], sequence + 1) - s->k0;
    } else {
        s->batch = sequence;
        s->q0 = s->k0 = 0;
        s->nq = d->q_len;
        s->nk = d->k_len;
    }
    s->offset = s->nk - s->nq;
    s->seen = gmai_present(state_S);
    for (int64_t k = 0; k < s->K; k++) {
        for (int64_t c = 0; c < s->D; c++)
            s->S[k * s->D + c] = s->seen ? gmai_naive_get(state_S, sequence, head, k, c) : 0;
        s->Z[k] = s->seen ? gmai_naive_get(state_Z, sequence, head, k, 0) : 0;
    }
}

void gmai_naive_row(const gma_tensor *t, int64_t b, int64_t h, int64_t n, int64_t width, double *row) {
    for (int64_t c = 0; c < width; c++)
        row[c] = gmai_naive_get(t, b, h, n, c);
}

int gmai_naive_masked(const gmai_naive_seq *s, int64_t j) {
    const gma_tensor *mask = &s->a->t[GMA_KEY_MASK];
    return gmai_present(mask) && gmai_naive_get(mask, s->batch, s->k0 + j, 0, 0) == 0;
}

double gmai_naive_log_decay(const gmai_naive_seq *s, int64_t j) {
    const gma_tensor *decay = &s->a->t[GMA_LOG_DECAY];
    return gmai_present(decay) ? gmai_naive_get(decay, s->batch, s->head, s->k0 + j, 0) : 0;
}

void gmai_naive_step(gmai_naive_seq *s, int64_t j) {
    const double log_decay = gmai_naive_log_decay(s, j);
    if (log_decay == -INFINITY) { /* forget: whatever was in there, NaN too */
        memset(s->S, 0, (size_t)(s->K * (s->D + 1)) * sizeof(double));
        s->seen = 0;
    } else if (log_decay != 0) {
        const double factor = exp(log_decay);
        for (int64_t i = 0; i < s->K * (s->D + 1); i++)
            s->S[i] *= factor;
    }
    if (gmai_naive_masked(s, j))
        return;
    gmai_naive_row(&s->a->t[GMA_K], s->batch, s->head, s->k0 + j, s->R, s->x);
    gmai_naive_row(&s->a->t[GMA_V], s->batch, s->head, s->k0 + j, s->D, s->v);
    s->map->phi(s->map->self, s->x, s->phi);
    for (int64_t k = 0; k < s->K; k++) {
        for (int64_t c = 0; c < s->D; c++)
            s->S[k * s->D + c] += s->phi[k] * s->v[c];
        s->Z[k] += s->phi[k];
    }
    s->seen = 1;
}

/* o_i = phi(q_i) S / (phi(q_i) . Z + eps) for the query heads that share this key head. */
static void read_queries(gmai_naive_seq *s, int64_t i) {
    const gma_tensor *o = &s->a->t[GMA_O];
    for (int64_t h = s->head * s->group; h < (s->head + 1) * s->group; h++) {
        double den = s->m->d.eps;
        if (s->seen) {
            gmai_naive_row(&s->a->t[GMA_Q], s->batch, h, s->q0 + i, s->R, s->x);
            s->map->phi(s->map->self, s->x, s->phi);
            for (int64_t k = 0; k < s->K; k++)
                den += s->phi[k] * s->Z[k];
        }
        for (int64_t c = 0; c < s->D; c++) {
            double sum = 0;
            for (int64_t k = 0; s->seen && k < s->K; k++)
                sum += s->phi[k] * s->S[k * s->D + c];
            gmai_naive_put(o, s->batch, h, s->q0 + i, c, sum / den);
        }
    }
}

static void forward_sequence(gmai_naive_seq *s) {
    if (s->m->d.causal) { /* positions before key 0 belong to queries that see no key */
        for (int64_t j = s->offset < 0 ? s->offset : 0; j < s->nk; j++) {
            if (j >= 0)
                gmai_naive_step(s, j);
            if (j - s->offset >= 0)
                read_queries(s, j - s->offset);
        }
    } else {
        for (int64_t j = 0; j < s->nk; j++)
            gmai_naive_step(s, j);
        for (int64_t i = 0; i < s->nq; i++)
            read_queries(s, i);
    }
    const gma_tensor *out_S = &s->a->t[GMA_OUT_S], *out_Z = &s->a->t[GMA_OUT_Z];
    for (int64_t k = 0; k < s->K; k++) {
        for (int64_t c = 0; gmai_present(out_S) && c < s->D; c++)
            gmai_naive_put(out_S, s->state, s->head, k, c, s->S[k * s->D + c]);
        if (gmai_present(out_Z))
            gmai_naive_put(out_Z, s->state, s->head, k, 0, s->Z[k]);
    }
}

gma_status gmai_la_naive_forward(const gma_mixer *m, const gmai_args *a, const gmai_naive_map *map) {
    gmai_naive_seq s;
    const gma_status status = gmai_naive_seq_init(&s, m, a, map);
    if (status)
        return status;
    for (int64_t h = 0; h < m->d.kv_heads; h++) {
        if (map->load)
            map->load(map->self, m, a, h);
        for (int64_t g = 0; g < gmai_naive_seq_count(m); g++) {
            gmai_naive_seq_select(&s, h, g);
            forward_sequence(&s);
        }
    }
    gmai_naive_seq_free(&s);
    return GMA_OK;
}
