/* See naive.h. One query after another:
 *
 *   s_j = scale <rot(q_i), rot(k_j)>     p = softmax over the keys j that query i sees     o_i = sum_j p_j v_j
 *
 *   dp_j = <do_i, v_j>     ds_j = p_j (dp_j - sum_l p_l dp_l)
 *   dv_j += p_j do_i     drot(q_i) += scale ds_j rot(k_j)     drot(k_j) += scale ds_j rot(q_i)
 */
#include "mixers/softmax/naive.h"

#include <math.h>

#include "engine/engine.h"
#include "mixers/naive_tensor.h"

typedef struct naive {
    const gma_mixer *m;
    const gmai_args *a;
    int64_t R, D, group;
    gmai_sequence *seq; /* of the call */
    int64_t sequences;
    double *q, *k, *dq, *dk, *dv, *p, *dp; /* rows of one head, rotated; p, dp: of one query */
} naive;

static gma_status start(const gma_mixer *m, const gmai_args *a, naive *n) {
    const gma_mixer_desc *d = &m->d;
    gmai_plan plan;
    gmai_plan_make(d, &plan);
    *n = (naive){.m = m, .a = a, .R = d->routing_dim, .D = d->value_dim, .sequences = plan.sequences};
    n->group = d->kv_heads > 0 ? d->heads / d->kv_heads : 0;
    n->seq = calloc((size_t)plan.sequences + 1, sizeof *n->seq);
    n->q = gmai_naive_alloc(d->q_len, n->R);
    n->dq = gmai_naive_alloc(d->q_len, n->R);
    n->k = gmai_naive_alloc(d->k_len, n->R);
    n->dk = gmai_naive_alloc(d->k_len, n->R);
    n->dv = gmai_naive_alloc(d->k_len, n->D);
    n->p = gmai_naive_alloc(d->k_len, 1);
    n->dp = gmai_naive_alloc(d->k_len, 1);
    if (!n->seq || !n->q || !n->dq || !n->k || !n->dk || !n->dv || !n->p || !n->dp)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the naive version");
    return gmai_plan_sequences(&plan, &a->t[GMA_CU_SEQLENS], n->seq);
}

static void stop(naive *n) {
    free(n->seq);
    free(n->q);
    free(n->dq);
    free(n->k);
    free(n->dk);
    free(n->dv);
    free(n->p);
    free(n->dp);
}

/* Turns each pair (x_r, x_(r + R/2)) by sign position base^(-2r/R). */
static void rotate(const naive *n, double *x, int64_t position, double sign) {
    const int64_t half = n->R / 2;
    if (n->m->d.rotary_base == 0)
        return;
    for (int64_t r = 0; r < half; r++) {
        const double angle = sign * (double)position * pow(n->m->d.rotary_base, -2.0 * (double)r / (double)n->R);
        const double a = x[r], b = x[half + r];
        x[r] = a * cos(angle) - b * sin(angle);
        x[half + r] = b * cos(angle) + a * sin(angle);
    }
}

/* Where query i stands among the keys. */
static int64_t position(const naive *n, const gmai_sequence *s, int64_t i) {
    return n->m->d.causal ? i + s->nk - s->nq : i;
}

static int sees(const naive *n, const gmai_sequence *s, int64_t i, int64_t j) {
    const gma_mixer_desc *d = &n->m->d;
    const gma_tensor *mask = &n->a->t[GMA_KEY_MASK];
    const int64_t at = position(n, s, i);
    if (gmai_present(mask) && gmai_naive_get(mask, s->row, s->k0 + j, 0, 0) == 0)
        return 0;
    return !d->causal || (j <= at && (d->window == 0 || j > at - d->window));
}

static void load_head(const naive *n, const gmai_sequence *s, int64_t hq) {
    const gma_tensor *q = &n->a->t[GMA_Q], *k = &n->a->t[GMA_K];
    for (int64_t i = 0; i < s->nq; i++) {
        for (int64_t r = 0; r < n->R; r++)
            n->q[i * n->R + r] = gmai_naive_get(q, s->row, hq, s->q0 + i, r);
        rotate(n, n->q + i * n->R, position(n, s, i), 1);
    }
    for (int64_t j = 0; j < s->nk; j++) {
        for (int64_t r = 0; r < n->R; r++)
            n->k[j * n->R + r] = gmai_naive_get(k, s->row, hq / n->group, s->k0 + j, r);
        rotate(n, n->k + j * n->R, j, 1);
    }
}

/* p of query i; 0 when it sees no key. */
static int weights(const naive *n, const gmai_sequence *s, int64_t i) {
    double top = -INFINITY, sum = 0;
    int seen = 0;
    for (int64_t j = 0; j < s->nk; j++) {
        n->p[j] = 0;
        if (!sees(n, s, i, j))
            continue;
        for (int64_t r = 0; r < n->R; r++)
            n->p[j] += n->q[i * n->R + r] * n->k[j * n->R + r];
        n->p[j] *= n->m->d.scale;
        seen = 1;
        if (!(n->p[j] <= top)) /* a NaN becomes the top, and stays it */
            top = n->p[j];
    }
    for (int64_t j = 0; j < s->nk; j++) {
        if (sees(n, s, i, j))
            sum += n->p[j] = exp(n->p[j] - top);
    }
    for (int64_t j = 0; j < s->nk; j++) {
        if (sees(n, s, i, j))
            n->p[j] /= sum;
    }
    return seen;
}

static void forward_head(const naive *n, const gmai_sequence *s, int64_t hq) {
    const gma_tensor *v = &n->a->t[GMA_V], *o = &n->a->t[GMA_O];
    load_head(n, s, hq);
    for (int64_t i = 0; i < s->nq; i++) {
        (void)weights(n, s, i);
        for (int64_t d = 0; d < n->D; d++) {
            double sum = 0;
            for (int64_t j = 0; j < s->nk; j++) {
                if (sees(n, s, i, j))
                    sum += n->p[j] * gmai_naive_get(v, s->row, hq / n->group, s->k0 + j, d);
            }
            gmai_naive_put(o, s->row, hq, s->q0 + i, d, sum);
        }
    }
}

gma_status gmai_softmax_naive_forward(const gma_mixer *m, const gmai_args *a) {
    naive n;
    const gma_status status = start(m, a, &n);
    for (int64_t s = 0; s < n.sequences && status == GMA_OK; s++) {
        for (int64_t h = 0; h < m->d.heads; h++)
            forward_head(&n, &n.seq[s], h);
    }
    stop(&n);
    return status;
}

/* Adds to dk and dv, sets dq. */
static void backward_query(const naive *n, const gmai_sequence *s, int64_t hq, int64_t i) {
    const gma_tensor *v = &n->a->t[GMA_V], *grad = &n->a->grad[GMA_O];
    double mean = 0;
    for (int64_t r = 0; r < n->R; r++)
        n->dq[i * n->R + r] = 0;
    if (!weights(n, s, i))
        return;
    for (int64_t j = 0; j < s->nk; j++) {
        n->dp[j] = 0;
        for (int64_t d = 0; d < n->D && sees(n, s, i, j); d++) {
            const double g = gmai_naive_get(grad, s->row, hq, s->q0 + i, d);
            n->dp[j] += g * gmai_naive_get(v, s->row, hq / n->group, s->k0 + j, d);
            n->dv[j * n->D + d] += n->p[j] * g;
        }
        if (sees(n, s, i, j))
            mean += n->p[j] * n->dp[j];
    }
    for (int64_t j = 0; j < s->nk; j++) {
        if (!sees(n, s, i, j))
            continue;
        const double ds = n->m->d.scale * n->p[j] * (n->dp[j] - mean);
        for (int64_t r = 0; r < n->R; r++) {
            n->dq[i * n->R + r] += ds * n->k[j * n->R + r];
            n->dk[j * n->R + r] += ds * n->q[i * n->R + r];
        }
    }
}

static void store_rows(const gma_tensor *t, const gmai_sequence *s, int64_t h, int64_t first, int64_t rows,
                       int64_t width, const double *x) {
    for (int64_t i = 0; i < rows * width && gmai_present(t); i++)
        gmai_naive_put(t, s->row, h, first + i / width, i % width, x[i]);
}

static void backward_key_head(const naive *n, const gmai_sequence *s, int64_t h) {
    for (int64_t i = 0; i < s->nk * n->R; i++)
        n->dk[i] = 0;
    for (int64_t i = 0; i < s->nk * n->D; i++)
        n->dv[i] = 0;
    for (int64_t hq = h * n->group; hq < (h + 1) * n->group; hq++) {
        load_head(n, s, hq);
        for (int64_t i = 0; i < s->nq; i++) {
            backward_query(n, s, hq, i);
            rotate(n, n->dq + i * n->R, position(n, s, i), -1);
        }
        store_rows(&n->a->grad[GMA_Q], s, hq, s->q0, s->nq, n->R, n->dq);
    }
    for (int64_t j = 0; j < s->nk; j++)
        rotate(n, n->dk + j * n->R, j, -1);
    store_rows(&n->a->grad[GMA_K], s, h, s->k0, s->nk, n->R, n->dk);
    store_rows(&n->a->grad[GMA_V], s, h, s->k0, s->nk, n->D, n->dv);
}

gma_status gmai_softmax_naive_backward(const gma_mixer *m, const gmai_args *a) {
    naive n;
    const gma_status status = start(m, a, &n);
    for (int64_t s = 0; s < n.sequences && status == GMA_OK; s++) {
        for (int64_t h = 0; h < m->d.kv_heads; h++)
            backward_key_head(&n, &n.seq[s], h);
    }
    stop(&n);
    return status;
}
