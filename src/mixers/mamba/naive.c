/* The selective scan in double, one channel at a time, straight from the formulas of README.md. */
#include <math.h>

#include "mixers/mamba/mamba.h"
#include "mixers/naive_tensor.h"

/* One channel of one sequence. */
typedef struct channel {
    const gmai_args *a;
    int64_t row, from, n, sequence, e, S;
    double *h; /* (n + 1, S): the state before the first token, and after each */
} channel;

static double get(const gma_tensor *t, int64_t i, int64_t j, int64_t k) { return gmai_naive_get(t, i, j, k, 0); }

static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double raw_delta(const channel *c, int64_t t) {
    return get(&c->a->t[GMA_DELTA], c->row, c->from + t, c->e) + get(&c->a->t[GMA_DELTA_BIAS], c->e, 0, 0);
}

/* h_t = exp(delta A) h_(t-1) + delta B u */
static void scan(const channel *c) {
    const gma_tensor *in = &c->a->t[GMA_STATE_H];
    for (int64_t s = 0; s < c->S; s++)
        c->h[s] = gmai_present(in) ? get(in, c->sequence, c->e, s) : 0;
    for (int64_t t = 0; t < c->n; t++) {
        const double delta = softplus(raw_delta(c, t)), u = get(&c->a->t[GMA_U], c->row, c->from + t, c->e);
        for (int64_t s = 0; s < c->S; s++)
            c->h[(t + 1) * c->S + s] = exp(delta * get(&c->a->t[GMA_SSM_A], c->e, s, 0)) * c->h[t * c->S + s] +
                                       delta * get(&c->a->t[GMA_SSM_B], c->row, c->from + t, s) * u;
    }
}

static void forward_channel(const channel *c, void *sums) {
    (void)sums;
    scan(c);
    for (int64_t t = 0; t < c->n; t++) {
        double y = get(&c->a->t[GMA_SSM_D], c->e, 0, 0) * get(&c->a->t[GMA_U], c->row, c->from + t, c->e);
        for (int64_t s = 0; s < c->S; s++)
            y += get(&c->a->t[GMA_SSM_C], c->row, c->from + t, s) * c->h[(t + 1) * c->S + s];
        gmai_naive_put(&c->a->t[GMA_Y], c->row, c->from + t, c->e, 0, y);
    }
    for (int64_t s = 0; s < c->S && gmai_present(&c->a->t[GMA_OUT_H]); s++)
        gmai_naive_put(&c->a->t[GMA_OUT_H], c->sequence, c->e, s, 0, c->h[c->n * c->S + s]);
}

/* Sums over channels or tokens. */
typedef struct sums {
    int64_t N, S;
    double *A, *D, *bias; /* (E,S), (E), (E) */
    double *B, *C;        /* (B,N,S) */
} sums;

static void backward_channel(const channel *c, void *self) {
    const sums *to = self;
    const gmai_args *a = c->a;
    const gma_tensor *dy = &a->grad[GMA_Y], *dh_out = &a->grad[GMA_OUT_H];
    double *dh = c->h + (c->n + 1) * c->S;
    scan(c);
    for (int64_t s = 0; s < c->S; s++)
        dh[s] = gmai_present(dh_out) ? get(dh_out, c->sequence, c->e, s) : 0;
    for (int64_t t = c->n - 1; t >= 0; t--) {
        const double raw = raw_delta(c, t), delta = softplus(raw), u = get(&a->t[GMA_U], c->row, c->from + t, c->e);
        const double g = gmai_present(dy) ? get(dy, c->row, c->from + t, c->e) : 0;
        double du = get(&a->t[GMA_SSM_D], c->e, 0, 0) * g, ddelta = 0;
        for (int64_t s = 0; s < c->S; s++) {
            const double A = get(&a->t[GMA_SSM_A], c->e, s, 0), decay = exp(delta * A);
            const double B = get(&a->t[GMA_SSM_B], c->row, c->from + t, s);
            const double before = c->h[t * c->S + s], after = c->h[(t + 1) * c->S + s];
            const int64_t shared = (c->row * to->N + c->from + t) * c->S + s;
            dh[s] += get(&a->t[GMA_SSM_C], c->row, c->from + t, s) * g;
            to->C[shared] += g * after;
            to->B[shared] += dh[s] * delta * u;
            du += dh[s] * delta * B;
            ddelta += dh[s] * (A * decay * before + B * u);
            to->A[c->e * c->S + s] += dh[s] * delta * decay * before;
            dh[s] *= decay;
        }
        to->D[c->e] += g * u;
        to->bias[c->e] += ddelta * sigmoid(raw);
        if (gmai_present(&a->grad[GMA_U]))
            gmai_naive_put(&a->grad[GMA_U], c->row, c->from + t, c->e, 0, du);
        if (gmai_present(&a->grad[GMA_DELTA]))
            gmai_naive_put(&a->grad[GMA_DELTA], c->row, c->from + t, c->e, 0, ddelta * sigmoid(raw));
    }
    for (int64_t s = 0; s < c->S && gmai_present(&a->grad[GMA_STATE_H]); s++)
        gmai_naive_put(&a->grad[GMA_STATE_H], c->sequence, c->e, s, 0, dh[s]);
}

static gma_status each_channel(const gma_mixer *m, const gmai_args *a, void (*f)(const channel *c, void *self), void *self) {
    gmai_plan tokens;
    gmai_mamba_plan p;
    gmai_mamba_plan_make(&m->d, &p);
    tokens = p.tokens;
    gmai_sequence *seq = calloc((size_t)tokens.sequences + 1, sizeof *seq);
    channel c = {.a = a, .S = m->d.components};
    c.h = gmai_naive_alloc(m->d.q_len + 2, c.S);
    gma_status status = !seq || !c.h ? gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for %lld states of %lld",
                                                (long long)m->d.q_len, (long long)c.S)
                                     : gmai_plan_sequences(&tokens, &a->t[GMA_CU_SEQLENS], seq);
    for (c.sequence = 0; c.sequence < tokens.sequences && status == GMA_OK; c.sequence++) {
        c.row = seq[c.sequence].row;
        c.from = seq[c.sequence].k0;
        c.n = seq[c.sequence].nk;
        for (c.e = 0; c.e < p.channels; c.e++)
            f(&c, self);
    }
    free(c.h);
    free(seq);
    return status;
}

gma_status gmai_mamba_naive_forward(const gma_mixer *m, const gmai_args *a) {
    return each_channel(m, a, forward_channel, NULL);
}

static void store(const gma_tensor *t, const double *x) {
    const int64_t n1 = t->rank > 1 ? t->shape[1] : 1, n2 = t->rank > 2 ? t->shape[2] : 1;
    for (int64_t i = 0; gmai_present(t) && i < t->shape[0]; i++)
        for (int64_t j = 0; j < n1; j++)
            for (int64_t k = 0; k < n2; k++)
                gmai_naive_put(t, i, j, k, 0, x[(i * n1 + j) * n2 + k]);
}

gma_status gmai_mamba_naive_backward(const gma_mixer *m, const gmai_args *a) {
    const int64_t E = m->d.heads * m->d.value_dim, S = m->d.components, tokens = m->d.batch * m->d.q_len;
    sums to = {m->d.q_len, S, gmai_naive_alloc(E, S), gmai_naive_alloc(E, 1), gmai_naive_alloc(E, 1),
               gmai_naive_alloc(tokens, S), gmai_naive_alloc(tokens, S)};
    gma_status status = GMA_OK;
    if (!to.A || !to.D || !to.bias || !to.B || !to.C)
        status = gma_fail(GMA_ERR_OUT_OF_MEMORY, "naive: no memory for the gradients of B and C");
    if (status == GMA_OK)
        status = each_channel(m, a, backward_channel, &to);
    if (status == GMA_OK) {
        store(&a->grad[GMA_SSM_A], to.A);
        store(&a->grad[GMA_SSM_D], to.D);
        store(&a->grad[GMA_DELTA_BIAS], to.bias);
        store(&a->grad[GMA_SSM_B], to.B);
        store(&a->grad[GMA_SSM_C], to.C);
    }
    free(to.A);
    free(to.D);
    free(to.bias);
    free(to.B);
    free(to.C);
    return status;
}
