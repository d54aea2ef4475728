/* The Gaussian mixture: logits, softmax over components, and their backward. */
#include "kernels/decl.h"

#include "simd/math.h"

#define C GMAI_CHUNK

/* Squares are summed SUM_BLOCK at a time: a logit may be near -100, and adding every small square to that costs digits
 * of gamma (R = 96, K = 129, unit inputs: largest error 2.4e-5 of the largest output in one run of sums). */
enum { SUM_BLOCK = VL == 1 ? 8 : 16 }; /* one lane rounds twice a product */

/* logit_k(token) = konst_k - sum_r t^2, t = x_r w_kr - mw_kr, in registers of tokens:
 *
 *             tokens  | v0 | v1 | v2 | v3 |        NV vectors: one load of x serves MK components
 *   k0   w,mw ------> | l00| l01| l02| l03|        MK rows: two broadcasts serve NV vectors
 *   k1   (broadcast)  | l10| l11| l12| l13|        2 fused multiply-adds a term, no x^2
 *   k2                | ...               |
 *   k3                |                   |        MK NV sums + NV x + w, mw, t <= registers
 */
GMAI_INLINE void logits_block(const gmai_mixture *m, int kb, const float *x, int nv, float *out)
{
    const float *b = m->blocked + (ptrdiff_t)kb * m->r * 2 * GMAI_MK;
    out += (ptrdiff_t)kb * GMAI_MK * C;
    for (int r0 = 0; r0 < m->r; r0 += SUM_BLOCK) {
        const int r1 = m->r < r0 + SUM_BLOCK ? m->r : r0 + SUM_BLOCK;
        vf sum[GMAI_MK][GMAI_NV];
#pragma GCC unroll 8
        for (int i = 0; i < GMAI_MK; i++)
#pragma GCC unroll 8
            for (int v = 0; v < nv; v++) sum[i][v] = v_set1(0.0f);
        for (int r = r0; r < r1; r++, b += (ptrdiff_t)2 * GMAI_MK, x += C) {
            vf xv[GMAI_NV];
#pragma GCC unroll 8
            for (int v = 0; v < nv; v++) xv[v] = v_load(x + v * VL);
#pragma GCC unroll 8
            for (int i = 0; i < GMAI_MK; i++) {
                const vf w = v_set1(b[i]), mw = v_set1(b[GMAI_MK + i]);
#pragma GCC unroll 8
                for (int v = 0; v < nv; v++) {
                    /* mw - x w = -t */
                    const vf t = v_fnma(xv[v], w, mw);
                    sum[i][v] = v_fnma(t, t, sum[i][v]);
                }
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < GMAI_MK; i++)
#pragma GCC unroll 8
            for (int v = 0; v < nv; v++) {
                float *p = out + (ptrdiff_t)i * C + v * VL;
                v_store(p, v_add(r0 ? v_load(p) : v_set1(m->konst[kb * GMAI_MK + i]), sum[i][v]));
            }
    }
}

/* Part kb of `blocks` of what lies ahead: spread over the blocks, the loads hide behind the arithmetic. */
static inline void fetch_ahead(const gmai_ahead *a, int kb, int blocks)
{
    for (int i = kb * a->rows / blocks; i < (kb + 1) * a->rows / blocks; i++)
        for (int j = 0; j < a->bytes; j += 64)
            __builtin_prefetch((const void *)(a->first + (uintptr_t)((int64_t)i * a->stride) + (uintptr_t)j));
}

void GMAI_K(logits)(const gmai_mixture *m, const float *columns, int nvec, float *logits, const gmai_ahead *ahead)
{
    const int blocks = (m->k + GMAI_MK - 1) / GMAI_MK;
    int v = 0;
    for (; v + GMAI_NV <= nvec; v += GMAI_NV)
        for (int kb = 0; kb < blocks; kb++) {
            if (ahead && v == 0) {
                fetch_ahead(&ahead[0], kb, blocks);
                fetch_ahead(&ahead[1], kb, blocks);
            }
            logits_block(m, kb, columns + v * VL, GMAI_NV, logits + v * VL);
        }
    for (; v < nvec; v++)
        for (int kb = 0; kb < blocks; kb++) logits_block(m, kb, columns + v * VL, 1, logits + v * VL);
}

/* nv vectors of tokens at once: their maxima and sums stay in registers. */
GMAI_INLINE int softmax_block(float *l, int k, int nv)
{
    vf top[4], sum[4];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) top[v] = v_load(l + v * VL);
    for (int i = 1; i < k; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) top[v] = v_max(top[v], v_load(l + (ptrdiff_t)i * C + v * VL));
    int bad = 0;
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        bad |= !v_all_finite(top[v]);
        sum[v] = v_set1(0.0f);
    }
    for (int i = 0; i < k; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            float *p = l + (ptrdiff_t)i * C + v * VL;
            const vf e = v_exp_negative(v_sub(v_load(p), top[v]));
            v_store(p, e);
            sum[v] = v_add(sum[v], e);
        }
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) sum[v] = v_div(v_set1(1.0f), sum[v]);
    for (int i = 0; i < k; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            float *p = l + (ptrdiff_t)i * C + v * VL;
            v_store(p, v_mul(v_load(p), sum[v]));
        }
    return bad;
}

int GMAI_K(softmax)(float *logits, int k, int nvec)
{
    int v = 0, bad = 0;
    for (; v + 4 <= nvec; v += 4) bad |= softmax_block(logits + v * VL, k, 4);
    for (; v < nvec; v++) bad |= softmax_block(logits + v * VL, k, 1);
    return bad;
}

GMAI_INLINE void softmax_backward_block(const float *g, float *d, int k, int nv, float *out)
{
    vf dot[4];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) dot[v] = v_set1(0.0f);
    for (int i = 0; i < k; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            const ptrdiff_t at = (ptrdiff_t)i * C + v * VL;
            dot[v] = v_fma(v_load(g + at), v_load(d + at), dot[v]);
        }
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) v_store(out + v * VL, dot[v]);
    for (int i = 0; i < k; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            const ptrdiff_t at = (ptrdiff_t)i * C + v * VL;
            v_store(d + at, v_mul(v_load(g + at), v_sub(v_load(d + at), dot[v])));
        }
}

void GMAI_K(softmax_backward)(const float *gamma, float *dgamma, int k, int nvec, float *dot)
{
    int v = 0;
    for (; v + 4 <= nvec; v += 4) softmax_backward_block(gamma + v * VL, dgamma + v * VL, k, 4, dot + v * VL);
    for (; v < nvec; v++) softmax_backward_block(gamma + v * VL, dgamma + v * VL, k, 1, dot + v * VL);
}

/* How many components share one pass over the tokens: each holds w, mw and two sums of VL dimensions in registers. */
#define KB GMAI_KB

/* kb components x one vector of dimensions r, all tokens:
 *
 *   registers, per component: w, mw, sum dl t, sum dl t^2          (VL dimensions each)
 *   per token: x (1 load), dx (1 load, 1 store), and for each component
 *       t = x w - mw     a = dl t     sum_t += a     sum_tt += a t     dx -= a w
 */
GMAI_INLINE void mixture_backward_block(const gmai_mixture *m, int k, int kb, int r, const float *x, const float *dl,
                                          int n, float *dx, float *sum_t, float *sum_tt, int first)
{
    vf w[KB], mw[KB], st[KB], stt[KB];
#pragma GCC unroll 8
    for (int i = 0; i < kb; i++) {
        const ptrdiff_t at = (ptrdiff_t)(k + i) * m->rp + r;
        w[i] = v_load(m->w + at);
        mw[i] = v_load(m->mw + at);
        st[i] = v_set1(0.0f);
        stt[i] = v_set1(0.0f);
    }
    for (int j = 0; j < n; j++) {
        const vf xv = v_load(x + (ptrdiff_t)j * m->rp + r);
        float *d = dx + (ptrdiff_t)j * m->rp + r;
        vf dv = first ? v_set1(0.0f) : v_load(d);
#pragma GCC unroll 8
        for (int i = 0; i < kb; i++) {
            const vf t = v_fnma(xv, w[i], mw[i]); /* -t: the signs of the two sums below come out right */
            const vf a = v_mul(v_set1(dl[(ptrdiff_t)(k + i) * C + j]), t);
            st[i] = v_sub(st[i], a);
            stt[i] = v_fma(a, t, stt[i]);
            dv = v_fma(a, w[i], dv);
        }
        v_store(d, dv);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kb; i++) {
        const ptrdiff_t at = (ptrdiff_t)(k + i) * m->rp + r;
        v_store(sum_t + at, v_add(v_load(sum_t + at), st[i]));
        v_store(sum_tt + at, v_add(v_load(sum_tt + at), stt[i]));
    }
}

void GMAI_K(mixture_backward)(const gmai_mixture *m, const float *rows, const float *dlogits, int n, float *dx,
                              float *sum_t, float *sum_tt)
{
    for (int r = 0; r < m->r; r += VL) {
        int k = 0;
        for (; k + KB <= m->k; k += KB)
            mixture_backward_block(m, k, KB, r, rows, dlogits, n, dx, sum_t, sum_tt, k == 0);
        for (; k < m->k; k++) mixture_backward_block(m, k, 1, r, rows, dlogits, n, dx, sum_t, sum_tt, k == 0);
        /* dx = -2 sum dl t w: the block summed -dl t w. */
        for (int j = 0; j < n; j++) {
            float *d = dx + (ptrdiff_t)j * m->rp + r;
            const vf v = v_load(d);
            v_store(d, v_add(v, v));
        }
    }
}

double GMAI_K(prepare_row)(const float *mu, const float *omega, const float *center, float eps_sigma, float scale,
                           int n, int count, float *w, float *mw, float *dsigma)
{
    double log_det = 0.0;
    for (int j = 0; j < n; j += VL) {
        float logs[VL];
        const vf o = v_load(omega + j);
        const vf s = v_add(v_softplus(o), v_set1(eps_sigma));
        const vf wj = v_sqrt(v_div(v_set1(0.5f * scale), s));
        v_store(logs, v_log(s));
        for (int l = 0; l < VL && j + l < count; l++) log_det += (double)logs[l];
        const int left = count - j;
        /* Padding dimensions weigh nothing. */
        v_store(w + j, v_set1(0.0f));
        v_store(mw + j, v_set1(0.0f));
        v_storen(w + j, wj, left);
        v_storen(mw + j, v_mul(v_sub(v_load(mu + j), v_load(center + j)), wj), left);
        if (dsigma) v_store(dsigma + j, v_div(v_sigmoid(o), s));
    }
    return log_det;
}
