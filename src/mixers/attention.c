/* The one-call functions of gma/attention.h. */
#include "gma/attention.h"

#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "engine/chunk.h"
#include "mixers/args.h"
#include "mixers/gma/mixture.h"
#include "mixers/gma/naive.h"

static void *aligned(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0)); }

gma_status gma_attention(const float *q, const float *k, const float *v, const float *mu, const float *omega,
                         const float *alpha, float *o, int64_t batch, int64_t heads, int64_t q_len, int64_t k_len,
                         int64_t routing_dim, int64_t value_dim, int64_t components, int causal, int threads)
{
    gma_mixer_desc d;
    gma_mixer *m = NULL;
    gma_status s = gma_mixer_desc_init(&d, GMA_MIXER_GMA);
    if (s != GMA_OK) return s;
    d.batch = batch;
    d.heads = heads;
    d.q_len = q_len;
    d.k_len = k_len;
    d.routing_dim = routing_dim;
    d.value_dim = value_dim;
    d.components = components;
    d.causal = causal;
    s = gma_mixer_create(&d, &m);
    if (s != GMA_OK) return s;
    gma_mixer_size size;
    gma_exec x;
    memset(&x, 0, sizeof x);
    x.struct_size = sizeof x;
    x.threads = threads;
    size.struct_size = sizeof size;
    s = gma_mixer_sizes(m, threads, &size);
    if (s == GMA_OK) {
        x.scratch_bytes = size.forward_scratch;
        x.scratch = aligned(size.forward_scratch);
        if (!x.scratch) s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %zu bytes of scratch", size.forward_scratch);
    }
    if (s == GMA_OK) {
        const gma_arg args[] = {
            {GMA_Q, gma_tensor_of(q, GMA_F32, 4, batch, heads, q_len, routing_dim)},
            {GMA_K, gma_tensor_of(k, GMA_F32, 4, batch, heads, k_len, routing_dim)},
            {GMA_V, gma_tensor_of(v, GMA_F32, 4, batch, heads, k_len, value_dim)},
            {GMA_MU, gma_tensor_of(mu, GMA_F32, 3, heads, components, routing_dim, 0)},
            {GMA_OMEGA, gma_tensor_of(omega, GMA_F32, 3, heads, components, routing_dim, 0)},
            {GMA_ALPHA, gma_tensor_of(alpha, GMA_F32, 2, heads, components, 0, 0)},
            {GMA_O, gma_tensor_of(o, GMA_F32, 4, batch, heads, q_len, value_dim)},
        };
        s = gma_mixer_forward(m, args, (int)(sizeof args / sizeof args[0]), &x);
    }
    free(x.scratch);
    gma_mixer_destroy(m);
    return s;
}

/* ---- responsibilities --------------------------------------------------------------------------------- */

static gma_status check(const gma_tensor *x, const gma_tensor *mu, const gma_tensor *omega, const gma_tensor *alpha,
                        const gma_tensor *scale, const gma_tensor *gamma, double eps_sigma, int naive)
{
    if (!x || !mu || !omega || !alpha || !gamma)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL",
                        !x ? "x" : !mu ? "mu" : !omega ? "omega" : !alpha ? "alpha" : "gamma");
    const uint32_t f32 = 1u << GMA_F32, bf16 = 1u << GMA_BF16, f64 = 1u << GMA_F64;
    const int64_t h = mu->rank == 3 ? mu->shape[0] : 0, k = mu->rank == 3 ? mu->shape[1] : 0,
                  r = mu->rank == 3 ? mu->shape[2] : 0;
    if (mu->rank != 3 || k < 1 || r < 1)
        return gma_fail(GMA_ERR_SHAPE, "mu must have shape (H,K,R) with K >= 1 and R >= 1");
    if (x->rank != 4) return gma_fail(GMA_ERR_SHAPE, "x has %d dimensions; it must be (B,Hx,N,R)", (int)x->rank);
    if (h < 0) return gma_fail(GMA_ERR_SHAPE, "mu has a negative extent");
    if (h == 0 ? x->shape[1] != 0 : x->shape[1] < 0 || x->shape[1] % h)
        return gma_fail(GMA_ERR_SHAPE, "x has %lld heads; that is no multiple of mu's %lld", (long long)x->shape[1],
                        (long long)h);
    if (!(eps_sigma >= 1.2e-38 && eps_sigma <= 1e30))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "eps_sigma is %g; it must be > 0 (at least 1.2e-38) and finite",
                        eps_sigma);
    const int64_t xs[4] = {x->shape[0], x->shape[1], x->shape[2], r}, gs[4] = {xs[0], xs[1], xs[2], k},
                  ms[3] = {h, k, r};
    const uint32_t params = f32 | (naive ? f64 : 0);
    gma_status s = gmai_tensor_check(x, "x", xs, 4, f32 | bf16 | (naive ? f64 : 0), !naive, 0);
    if (s == GMA_OK) s = gmai_tensor_check(mu, "mu", ms, 3, params, 0, 0);
    if (s == GMA_OK) s = gmai_tensor_check(omega, "omega", ms, 3, params, 0, 0);
    if (s == GMA_OK) s = gmai_tensor_check(alpha, "alpha", ms, 2, params, 0, 0);
    if (s == GMA_OK && scale) s = gmai_tensor_check(scale, "logit_scale", ms, 1, params, 0, 0);
    if (s == GMA_OK) s = gmai_tensor_check(gamma, "gamma", gs, 4, f32 | (naive ? f64 : 0), !naive, 1);
    if (s == GMA_OK && scale) s = gmai_gma_check_scale(scale, h);
    return s;
}

/* Buffers of one thread: rows and columns of x, phi, phi as rows. */
typedef struct worker {
    float *rows, *columns, *phi, *out;
} worker;

static size_t worker_take(gmai_bump *b, int64_t k, int64_t r, worker *w)
{
    const size_t rp = (size_t)gmai_pad(r), kp = (size_t)gmai_pad(k);
    w->rows = gmai_take_floats(b, C * rp);
    w->columns = gmai_take_floats(b, C * rp);
    w->phi = gmai_take_floats(b, C * kp);
    w->out = gmai_take_floats(b, C * kp);
    return b->used;
}

static void one_chunk(const gmai_kernels *kern, const gmai_gma_head *head, const gma_tensor *x,
                      const gma_tensor *gamma, int64_t b, int64_t h, int64_t at, char *work)
{
    worker w;
    gmai_bump bump = {work, 0};
    (void)worker_take(&bump, head->m.k, head->m.r, &w);
    const int n = (int)(x->shape[2] - at < C ? x->shape[2] - at : C), nvec = (n + kern->lanes - 1) / kern->lanes;
    const int kp = (int)gmai_pad(head->m.k);
    const gmai_rows src = gmai_rows_at(x, b, h, at), dst = gmai_rows_at(gamma, b, h, at);
    (void)kern->pack(&src, n, head->m.r, NULL, head->center, w.rows, head->m.rp, w.columns);
    (void)gmai_gma_map.phi(head, kern, w.columns, nvec, w.phi, NULL);
    kern->transpose(w.phi, C, (head->m.k + kern->lanes - 1) / kern->lanes * kern->lanes, nvec * kern->lanes, w.out, kp);
    kern->unpack(w.out, kp, n, head->m.k, NULL, &dst);
}

gma_status gma_responsibilities(const gma_tensor *x, const gma_tensor *mu, const gma_tensor *omega,
                                const gma_tensor *alpha, const gma_tensor *logit_scale, const gma_tensor *gamma,
                                double eps_sigma, gma_isa isa, int naive, int threads)
{
    const gma_status checked = check(x, mu, omega, alpha, logit_scale, gamma, eps_sigma, naive);
    if (checked != GMA_OK) return checked;
    if (threads < 0) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "threads is %d; it must be >= 0", threads);
    if (naive) return gmai_gma_naive_responsibilities(x, mu, omega, alpha, logit_scale, gamma, eps_sigma);
    gma_isa tier;
    const gma_status s = gmai_isa_resolve((int32_t)isa, &tier);
    if (s != GMA_OK) return s;
    const gmai_kernels *kern = gmai_kernels_of((int)tier);
    const int64_t heads = mu->shape[0], chunks = (x->shape[2] + C - 1) / C, per_head = heads ? x->shape[1] / heads : 0;
    const int64_t units = x->shape[0] * x->shape[1] * chunks;
    if (units == 0) return GMA_OK;
    const int team = gmai_threads(threads) < units ? gmai_threads(threads) : (int)units;
    const size_t head_size = gmai_gma_head_size(mu->shape[1], mu->shape[2]);
    worker w;
    gmai_bump bump = {NULL, 0};
    const size_t work_size = worker_take(&bump, mu->shape[1], mu->shape[2], &w);
    char *memory = aligned((size_t)heads * head_size + (size_t)team * work_size);
    if (!memory) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the prepared mixtures of %lld heads", (long long)heads);
    static const gma_tensor absent;
    for (int64_t h = 0; h < heads; h++)
        gmai_gma_prepare(kern, mu, omega, alpha, logit_scale ? logit_scale : &absent, h, eps_sigma, 0,
                         memory + (size_t)h * head_size);
    char *work = memory + (size_t)heads * head_size;
#ifdef _OPENMP
#pragma omp parallel num_threads(team)
#endif
    {
        const unsigned before = kern->flush_on();
        char *mine = work + (size_t)gmai_thread() * work_size;
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
        for (int64_t i = 0; i < units; i++) {
            const int64_t row = i / chunks, h = row % x->shape[1];
            one_chunk(kern, (const gmai_gma_head *)(const void *)(memory + (size_t)(h / per_head) * head_size), x, gamma,
                      row / x->shape[1], h, i % chunks * C, mine);
        }
        kern->flush_restore(before);
    }
    free(memory);
    return GMA_OK;
}
