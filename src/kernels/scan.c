/* The selective scan of Mamba, h_t = exp(delta_t A) h_(t-1) + delta_t u_t B_t, y_t = C_t . h_t + D u_t:
 * channels are lanes, and the recurrences of NB states of a vector of channels run through the chunk in registers.
 *
 *   per token:   load delta, delta u, y             per state:   e = 2^(delta A log2 e)       about 12 operations
 *                                                                h = e h + (delta u) B_t       B_t, C_t: broadcasts
 *                                                                y += C_t h
 * The states are independent of each other until y, so four of them hide each other's latency. */
#include "kernels/decl.h"

#include "simd/math.h"

#define W GMAI_SCAN_WIDTH
#define NB GMAI_SCAN_STATES

void GMAI_K(scan_prepare)(const gmai_scan *s)
{
    for (int t = 0; t < s->n; t++)
        for (int v = 0; v < s->nvec; v++) {
            const ptrdiff_t at = (ptrdiff_t)t * W + v * VL;
            const vf delta = v_softplus(v_add(v_load(s->raw + at), v_load(s->bias + v * VL)));
            v_store(s->delta + at, delta);
            v_store(s->du + at, v_mul(delta, v_load(s->u + at)));
        }
}

GMAI_INLINE vf decay(int shrinking, vf x) { return shrinking ? v_exp2(x) : v_exp(v_mul(x, v_set1(0.693147181f))); }

/* The scan goes over the tokens once for each vector of channels and block of states. Each pass fetches one line of every
 * row that lies ahead: spread out like that, the loads hide behind the arithmetic. */
typedef struct fetch {
    uintptr_t at;
    int64_t stride;
    int rows;
} fetch;

static inline fetch fetch_of(const gmai_scan *s, int i0, int v)
{
    int pass = v / VL * ((s->states + NB - 1) / NB) + i0 / NB;
    for (int k = 0; k < s->aheads; k++) {
        const gmai_ahead *a = &s->ahead[k];
        const int lines = (a->bytes + (int)(a->first % 64) + 63) / 64;
        if (pass < lines && i0 % NB == 0) return (fetch){a->first + 64u * (uintptr_t)pass, a->stride, a->rows};
        pass -= lines;
    }
    return (fetch){0, 0, 0};
}

static inline void fetch_row(const fetch *f, int t)
{
    if (t < f->rows) __builtin_prefetch((const void *)(f->at + (uintptr_t)((int64_t)t * f->stride)));
}

/* States i0 .. i0 + nb of the vector of channels at v. */
GMAI_INLINE void forward_block(int nb, int shrinking, const gmai_scan *s, int i0, int v, float *state, float *y)
{
    vf h[NB], a[NB];
    const float *b = s->b + i0, *c = s->c + i0;
    const fetch ahead = fetch_of(s, i0, v);
#pragma GCC unroll 4
    for (int i = 0; i < nb; i++) {
        h[i] = v_load(state + (ptrdiff_t)(i0 + i) * W + v);
        a[i] = v_load(s->a2 + (ptrdiff_t)(i0 + i) * W + v);
    }
    for (int t = 0; t < s->n; t++, b += s->ld, c += s->ld) {
        const ptrdiff_t at = (ptrdiff_t)t * W + v;
        const vf delta = v_load(s->delta + at), du = v_load(s->du + at);
        vf sum = v_load(y + at);
        fetch_row(&ahead, t);
#pragma GCC unroll 4
        for (int i = 0; i < nb; i++) {
            h[i] = v_fma(decay(shrinking, v_mul(delta, a[i])), h[i], v_mul(du, v_set1(b[i])));
            sum = v_fma(h[i], v_set1(c[i]), sum);
        }
        v_store(y + at, sum);
    }
#pragma GCC unroll 4
    for (int i = 0; i < nb; i++) v_store(state + (ptrdiff_t)(i0 + i) * W + v, h[i]);
}

GMAI_INLINE void forward_states(int shrinking, const gmai_scan *s, int v, float *h, float *y)
{
    int i = 0;
    for (; i + NB <= s->states; i += NB) forward_block(NB, shrinking, s, i, v, h, y);
    for (; i < s->states; i++) forward_block(1, shrinking, s, i, v, h, y);
}

void GMAI_K(scan_forward)(const gmai_scan *s, float *h, float *y)
{
    for (int v = 0; v < s->nvec * VL; v += VL) {
        const vf d = v_load(s->d + v);
        for (int t = 0; t < s->n; t++) v_store(y + (ptrdiff_t)t * W + v, v_mul(d, v_load(s->u + (ptrdiff_t)t * W + v)));
        if (s->shrinking)
            forward_states(1, s, v, h, y);
        else
            forward_states(0, s, v, h, y);
    }
}

/* ---- backward --------------------------------------------------------------------------------------- */

/* What a block of states leaves behind for its way back: h at every token, h[0] at the start; e = exp(delta A); and what
 * the channels have added to the gradients of B and C so far, lane by lane. */
typedef struct scan_work {
    float *h, *e, *b, *c; /* (n + 1 or n, nb, VL) */
} scan_work;

GMAI_INLINE void again_block(int nb, int shrinking, const gmai_scan *s, int i0, int v, const float *state,
                             const scan_work *w)
{
    vf h[NB], a[NB];
    const float *b = s->b + i0;
    float *to = w->h, *e = w->e;
    const fetch ahead = fetch_of(s, i0, v);
#pragma GCC unroll 4
    for (int i = 0; i < nb; i++, to += VL) {
        h[i] = v_load(state + (ptrdiff_t)(i0 + i) * W + v);
        a[i] = v_load(s->a2 + (ptrdiff_t)(i0 + i) * W + v);
        v_store(to, h[i]);
    }
    for (int t = 0; t < s->n; t++, b += s->ld) {
        const ptrdiff_t at = (ptrdiff_t)t * W + v;
        const vf delta = v_load(s->delta + at), du = v_load(s->du + at);
        fetch_row(&ahead, t);
#pragma GCC unroll 4
        for (int i = 0; i < nb; i++, to += VL, e += VL) {
            const vf x = decay(shrinking, v_mul(delta, a[i]));
            h[i] = v_fma(x, h[i], v_mul(du, v_set1(b[i])));
            v_store(e, x);
            v_store(to, h[i]);
        }
    }
}

/* From the last token to the first, with g = dh_t the gradient of h_t:
 *   g += C_t dy_t;   dC_t += dy_t h_t;   dB_t += g delta u;   sum_u += g B_t;   p = g e h_(t-1), the gradient of delta A:
 *   sum_x += p A;    dA += p delta;      g <- g e */
GMAI_INLINE void back_block(int nb, const gmai_scan *s, int i0, int v, const float *dy, float *dh, const scan_work *w,
                            float *sum_u, float *sum_x, float *da)
{
    vf g[NB], a[NB], pa[NB];
#pragma GCC unroll 4
    for (int i = 0; i < nb; i++) {
        g[i] = v_load(dh + (ptrdiff_t)(i0 + i) * W + v);
        a[i] = v_load(s->a2 + (ptrdiff_t)(i0 + i) * W + v);
        pa[i] = v_set1(0.0f);
    }
    for (int t = s->n - 1; t >= 0; t--) {
        const ptrdiff_t at = (ptrdiff_t)t * W + v, k = (ptrdiff_t)t * nb * VL;
        const float *b = s->b + (ptrdiff_t)t * s->ld + i0, *c = s->c + (ptrdiff_t)t * s->ld + i0;
        const vf delta = v_load(s->delta + at), du = v_load(s->du + at), y = v_load(dy + at);
        vf su = v_load(sum_u + at), sx = v_load(sum_x + at);
#pragma GCC unroll 4
        for (int i = 0; i < nb; i++) {
            const ptrdiff_t j = k + i * VL;
            const vf e = v_load(w->e + j);
            g[i] = v_fma(v_set1(c[i]), y, g[i]);
            v_store(w->c + j, v_fma(y, v_load(w->h + j + nb * VL), v_load(w->c + j)));
            v_store(w->b + j, v_fma(g[i], du, v_load(w->b + j)));
            su = v_fma(g[i], v_set1(b[i]), su);
            g[i] = v_mul(g[i], e);
            const vf p = v_mul(g[i], v_load(w->h + j));
            sx = v_fma(p, a[i], sx);
            pa[i] = v_fma(p, delta, pa[i]);
        }
        v_store(sum_u + at, su);
        v_store(sum_x + at, sx);
    }
#pragma GCC unroll 4
    for (int i = 0; i < nb; i++) {
        float *p = da + (ptrdiff_t)(i0 + i) * W + v;
        v_store(p, v_add(v_load(p), pa[i]));
        v_store(dh + (ptrdiff_t)(i0 + i) * W + v, g[i]);
    }
}

typedef struct back_args {
    const float *dy, *h;
    float *dh, *sum_u, *sum_x, *db, *dc, *da;
} back_args;

GMAI_INLINE void backward_states(int nb, int shrinking, const gmai_scan *s, int i0, const back_args *q,
                                 const scan_work *w)
{
    const ptrdiff_t count = (ptrdiff_t)s->n * nb * VL;
    for (ptrdiff_t i = 0; i < count; i += VL) {
        v_store(w->b + i, v_set1(0.0f));
        v_store(w->c + i, v_set1(0.0f));
    }
    for (int v = 0; v < s->nvec * VL; v += VL) {
        again_block(nb, shrinking, s, i0, v, q->h, w);
        back_block(nb, s, i0, v, q->dy, q->dh, w, q->sum_u, q->sum_x, q->da);
    }
    for (int t = 0; t < s->n; t++)
        for (int i = 0; i < nb; i++) {
            const ptrdiff_t j = ((ptrdiff_t)t * nb + i) * VL, to = (ptrdiff_t)t * s->ld + i0 + i;
            q->db[to] = v_sum(v_load(w->b + j));
            q->dc[to] = v_sum(v_load(w->c + j));
        }
}

void GMAI_K(scan_backward)(const gmai_scan *s, const float *dy, const float *h, float *dh, float *work, float *gu,
                           float *graw, float *db, float *dc, float *da, float *dd, float *dbias)
{
    const ptrdiff_t part = (ptrdiff_t)GMAI_CHUNK * NB * VL;
    const scan_work w = {work, work + part + NB * VL, work + 2 * part + NB * VL, work + 3 * part + NB * VL};
    const back_args q = {dy, h, dh, gu, graw, db, dc, da};
    for (int t = 0; t < s->n; t++)
        for (int v = 0; v < s->nvec * VL; v += VL) {
            v_store(gu + (ptrdiff_t)t * W + v, v_set1(0.0f));
            v_store(graw + (ptrdiff_t)t * W + v, v_set1(0.0f));
        }
    int i = 0;
    for (; i + NB <= s->states; i += NB) {
        if (s->shrinking)
            backward_states(NB, 1, s, i, &q, &w);
        else
            backward_states(NB, 0, s, i, &q, &w);
    }
    for (; i < s->states; i++) {
        if (s->shrinking)
            backward_states(1, 1, s, i, &q, &w);
        else
            backward_states(1, 0, s, i, &q, &w);
    }
    /* du = delta sum_u + D dy; ddelta = u sum_u + ln 2 sum_x, through softplus' slope. */
    for (int v = 0; v < s->nvec * VL; v += VL) {
        const vf d = v_load(s->d + v), bias = v_load(s->bias + v);
        vf sum_d = v_load(dd + v), sum_bias = v_load(dbias + v);
        for (int t = 0; t < s->n; t++) {
            const ptrdiff_t at = (ptrdiff_t)t * W + v;
            const vf u = v_load(s->u + at), y = v_load(dy + at), su = v_load(gu + at), sx = v_load(graw + at);
            const vf slope = v_sigmoid(v_add(v_load(s->raw + at), bias));
            const vf g = v_mul(slope, v_fma(u, su, v_mul(v_set1(0.693147181f), sx)));
            v_store(gu + at, v_fma(v_load(s->delta + at), su, v_mul(d, y)));
            v_store(graw + at, g);
            sum_bias = v_add(sum_bias, g);
            sum_d = v_fma(u, y, sum_d);
        }
        v_store(dd + v, sum_d);
        v_store(dbias + v, sum_bias);
    }
}
