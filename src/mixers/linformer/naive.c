/* Linformer in double, straight from the formulas of README.md. */
#include <math.h>
#include <string.h>

#include "mixers/linformer/linformer.h"
#include "mixers/naive_tensor.h"

/* One key head. */
typedef struct head {
    const gma_mixer *m;
    const gmai_args *a;
    int64_t b, h, P, R, D, Nk;
    double scale;
    double *k, *v, *dk, *dv; /* k' (P,R), v' (P,D) and their gradients */
    double *phi, *dphi;      /* (P) of one query */
} head;

static double projection(const gma_tensor *t, int64_t h, int64_t p, int64_t n) {
    return t->rank == 3 ? gmai_naive_get(t, h, p, n, 0) : gmai_naive_get(t, p, n, 0, 0);
}

/* A masked key is a row of zeros. */
static int is_masked(const head *s, int64_t n) {
    const gma_tensor *mask = &s->a->t[GMA_KEY_MASK];
    return gmai_present(mask) && gmai_naive_get(mask, s->b, n, 0, 0) == 0;
}

static double key(const head *s, int slot, int64_t n, int64_t c) {
    return is_masked(s, n) ? 0 : gmai_naive_get(&s->a->t[slot], s->b, s->h, n, c);
}

/* x' = proj x */
static void project(const head *s, int slot, int proj, int64_t width, double *to) {
    for (int64_t p = 0; p < s->P; p++)
        for (int64_t c = 0; c < width; c++) {
            to[p * width + c] = 0;
            for (int64_t n = 0; n < s->Nk; n++)
                to[p * width + c] += projection(&s->a->t[proj], s->h, p, n) * key(s, slot, n, c);
        }
}

/* phi = softmax_p(scale q . k'_p) */
static void weights(const head *s, int64_t hq, int64_t i) {
    double largest = -INFINITY, sum = 0;
    for (int64_t p = 0; p < s->P; p++) {
        s->phi[p] = 0;
        for (int64_t r = 0; r < s->R; r++)
            s->phi[p] += s->scale * gmai_naive_get(&s->a->t[GMA_Q], s->b, hq, i, r) * s->k[p * s->R + r];
        largest = s->phi[p] > largest ? s->phi[p] : largest;
    }
    for (int64_t p = 0; p < s->P; p++)
        sum += s->phi[p] = exp(s->phi[p] - largest);
    for (int64_t p = 0; p < s->P; p++)
        s->phi[p] /= sum;
}

static void forward_query(head *s, int64_t hq, int64_t i, void *sums) {
    (void)sums;
    weights(s, hq, i);
    for (int64_t c = 0; c < s->D; c++) {
        double o = 0;
        for (int64_t p = 0; p < s->P; p++)
            o += s->phi[p] * s->v[p * s->D + c];
        gmai_naive_put(&s->a->t[GMA_O], s->b, hq, i, c, o);
    }
}

static void backward_query(head *s, int64_t hq, int64_t i, void *sums) {
    (void)sums;
    const gma_tensor *q = &s->a->t[GMA_Q], *dO = &s->a->grad[GMA_O], *dq = &s->a->grad[GMA_Q];
    double mean = 0;
    weights(s, hq, i);
    for (int64_t p = 0; p < s->P; p++) {
        s->dphi[p] = 0;
        for (int64_t c = 0; c < s->D; c++) {
            const double g = gmai_naive_get(dO, s->b, hq, i, c);
            s->dphi[p] += g * s->v[p * s->D + c];
            s->dv[p * s->D + c] += s->phi[p] * g;
        }
        mean += s->phi[p] * s->dphi[p];
    }
    for (int64_t r = 0; r < s->R; r++) {
        double g = 0;
        for (int64_t p = 0; p < s->P; p++) {
            const double dl = s->phi[p] * (s->dphi[p] - mean) * s->scale;
            g += dl * s->k[p * s->R + r];
            s->dk[p * s->R + r] += dl * gmai_naive_get(q, s->b, hq, i, r);
        }
        if (gmai_present(dq))
            gmai_naive_put(dq, s->b, hq, i, r, g);
    }
}

/* dx = proj^T dx', dproj += dx' x^T into sums (H or 1, P, Nk) */
static void backward_keys(const head *s, int slot, int proj, int64_t width, const double *d, double *sums) {
    const gma_tensor *to = &s->a->grad[slot];
    const int64_t first = s->a->t[proj].rank == 3 ? s->h * s->P * s->Nk : 0;
    for (int64_t n = 0; n < s->Nk; n++)
        for (int64_t c = 0; c < width; c++) {
            double g = 0;
            for (int64_t p = 0; p < s->P; p++) {
                g += projection(&s->a->t[proj], s->h, p, n) * d[p * width + c];
                sums[first + p * s->Nk + n] += d[p * width + c] * key(s, slot, n, c);
            }
            if (gmai_present(to))
                gmai_naive_put(to, s->b, s->h, n, c, is_masked(s, n) ? 0 : g);
        }
}

typedef struct sums {
    double *k, *v; /* (H or 1, P, Nk) */
} sums;

static gma_status each_head(const gma_mixer *m, const gmai_args *a, void (*query)(head *, int64_t, int64_t, void *),
                            const sums *to) {
    head s = {.m = m, .a = a, .P = m->d.components, .R = m->d.routing_dim, .D = m->d.value_dim, .Nk = m->d.k_len};
    s.scale = m->d.scale > 0 ? m->d.scale : 1 / sqrt((double)s.R);
    double **memory[] = {&s.k, &s.dk, &s.v, &s.dv, &s.phi, &s.dphi};
    gma_status status = GMA_OK;
    for (int i = 0; i < 6; i++) {
        *memory[i] = gmai_naive_alloc(s.P, i < 2 ? s.R : i < 4 ? s.D : 1);
        if (!*memory[i])
            status = gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for projections of P=%lld", (long long)s.P);
    }
    const int64_t group = m->d.kv_heads > 0 ? m->d.heads / m->d.kv_heads : 0;
    for (s.b = 0; s.b < m->d.batch && status == GMA_OK; s.b++)
        for (s.h = 0; s.h < m->d.kv_heads; s.h++) {
            project(&s, GMA_K, GMA_PROJ_K, s.R, s.k);
            project(&s, GMA_V, GMA_PROJ_V, s.D, s.v);
            memset(s.dk, 0, (size_t)(s.P * s.R) * sizeof(double));
            memset(s.dv, 0, (size_t)(s.P * s.D) * sizeof(double));
            for (int64_t hq = s.h * group; hq < (s.h + 1) * group; hq++)
                for (int64_t i = 0; i < m->d.q_len; i++)
                    query(&s, hq, i, NULL);
            if (to) {
                backward_keys(&s, GMA_K, GMA_PROJ_K, s.R, s.dk, to->k);
                backward_keys(&s, GMA_V, GMA_PROJ_V, s.D, s.dv, to->v);
            }
        }
    for (int i = 0; i < 6; i++)
        free(*memory[i]);
    return status;
}

gma_status gmai_linformer_naive_forward(const gma_mixer *m, const gmai_args *a) {
    return each_head(m, a, forward_query, NULL);
}

static void store(const gma_tensor *t, const double *x) {
    const int64_t n2 = t->rank > 2 ? t->shape[2] : 1;
    for (int64_t i = 0; gmai_present(t) && i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            for (int64_t k = 0; k < n2; k++)
                gmai_naive_put(t, i, j, k, 0, x[(i * t->shape[1] + j) * n2 + k]);
}

gma_status gmai_linformer_naive_backward(const gma_mixer *m, const gmai_args *a) {
    const int64_t rows = (m->d.kv_heads > 0 ? m->d.kv_heads : 1) * m->d.components;
    const sums to = {gmai_naive_alloc(rows, m->d.k_len), gmai_naive_alloc(rows, m->d.k_len)};
    gma_status status = GMA_OK;
    if (!to.k || !to.v)
        status = gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for the gradients of the projections");
    if (status == GMA_OK)
        status = each_head(m, a, backward_query, &to);
    if (status == GMA_OK) {
        store(&a->grad[GMA_PROJ_K], to.k);
        store(&a->grad[GMA_PROJ_V], to.v);
    }
    free(to.k);
    free(to.v);
    return status;
}
