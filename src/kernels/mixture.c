/* The Gaussian mixture: logits, softmax over components, and their backward. */
#include "kernels/softmax.h"

#define C GMAI_CHUNK

/* Squares are summed SUM_BLOCK at a time: a logit may be near -100, and adding every small square to that costs digits
 * of gamma (R = 96, K = 129, unit inputs: largest error 2.4e-5 of the largest output in one run of sums). */
enum { SUM_BLOCK = VL == 1 ? 8 : VL == 16 ? 32 : 16 }; /* one lane rounds twice a product */

enum { GROUP = GMAI_GROUP };

/* logit_k(token) = konst_k - sum_r t^2, t = x_r w_kr - mw_kr, in registers of tokens:
 *
 *             tokens  | v0 | v1 | v2 | v3 |        nv vectors: one load of x serves mk components
 *   k0   w,mw ------> | l00| l01| l02| l03|        mk rows: two broadcasts serve nv vectors
 *   k1   (broadcast)  | l10| l11| l12| l13|        2 fused multiply-adds a term, no x^2
 *   ..                | ...               |        mk nv sums + nv x + w, mw, t <= registers
 *
 * Wide blocks read w and mw, which are larger than L1, less often. k: the first component. */
GMAI_INLINE void logits_block(const gmai_mixture *m, int k, int mk, const float *x, int nv, float *out)
{
    const float *b = m->blocked + (ptrdiff_t)(k / GROUP) * m->r * 2 * GROUP + k % GROUP;
    out += (ptrdiff_t)k * C;
    for (int r0 = 0; r0 < m->r; r0 += SUM_BLOCK) {
        const int r1 = m->r < r0 + SUM_BLOCK ? m->r : r0 + SUM_BLOCK;
        vf sum[GROUP][4];
        GMAI_UNROLL
        for (int i = 0; i < mk; i++)
            GMAI_UNROLL
            for (int v = 0; v < nv; v++) sum[i][v] = v_set1(0.0f);
        for (int r = r0; r < r1; r++, b += (ptrdiff_t)2 * GROUP, x += C) {
            vf xv[4];
            GMAI_UNROLL
            for (int v = 0; v < nv; v++) xv[v] = v_load(x + v * VL);
            GMAI_UNROLL
            for (int i = 0; i < mk; i++) {
                const vf w = v_set1(b[i]), mw = v_set1(b[GROUP + i]);
                GMAI_UNROLL
                for (int v = 0; v < nv; v++) {
                    /* mw - x w = -t */
                    const vf t = v_fnma(xv[v], w, mw);
                    sum[i][v] = v_fnma(t, t, sum[i][v]);
                }
            }
        }
        GMAI_UNROLL
        for (int i = 0; i < mk; i++)
            GMAI_UNROLL
            for (int v = 0; v < nv; v++) {
                float *p = out + (ptrdiff_t)i * C + v * VL;
                v_store(p, v_add(r0 ? v_load(p) : v_set1(m->konst[k + i]), sum[i][v]));
            }
    }
}

void GMAI_K(logits)(const gmai_mixture *m, float *columns, int nvec, float *logits, const gmai_ahead *ahead)
{
    const int k4 = (m->k + GROUP - 1) / GROUP * GROUP;
    int v = 0;
    for (; v + GMAI_NV <= nvec; v += GMAI_NV)
        for (int k = 0; k < k4; k += GMAI_MK) {
            if (v == 0) gmai_fetch_ahead(ahead, k / GMAI_MK, k4 / GMAI_MK);
            logits_block(m, k, GMAI_MK, columns + v * VL, GMAI_NV, logits + v * VL);
        }
    for (; v + 2 <= nvec; v += 2)
        for (int k = 0; k < k4; k += GROUP) logits_block(m, k, GROUP, columns + v * VL, 2, logits + v * VL);
    for (; v < nvec; v++)
        for (int k = 0; k < k4; k += GROUP) logits_block(m, k, GROUP, columns + v * VL, 1, logits + v * VL);
}

int GMAI_K(softmax)(float *logits, int k, int nvec) { return softmax_columns(logits, k, nvec, v_exp2); }

GMAI_INLINE void softmax_backward_block(const float *g, float *d, int k, int nv, float *out)
{
    vf dot[4];
    GMAI_UNROLL
    for (int v = 0; v < nv; v++) dot[v] = v_set1(0.0f);
    for (int i = 0; i < k; i++)
        GMAI_UNROLL
        for (int v = 0; v < nv; v++) {
            const ptrdiff_t at = (ptrdiff_t)i * C + v * VL;
            dot[v] = v_fma(v_load(g + at), v_load(d + at), dot[v]);
        }
    GMAI_UNROLL
    for (int v = 0; v < nv; v++) v_store(out + v * VL, dot[v]);
    for (int i = 0; i < k; i++)
        GMAI_UNROLL
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
 *
 * x and dx are panels of VL dimensions, (n, VL): as columns of wider rows they would fall on few sets of the L1 cache. */
GMAI_INLINE void mixture_backward_block(int kb, const float *w_k, const float *mw_k, ptrdiff_t rp, const float *x,
                                        const float *dl, int n, float *dx, float *sum_t, float *sum_tt)
{
    vf w[KB], mw[KB], st[KB], stt[KB];
    GMAI_UNROLL
    for (int i = 0; i < kb; i++) {
        w[i] = v_load(w_k + i * rp);
        mw[i] = v_load(mw_k + i * rp);
        st[i] = v_set1(0.0f);
        stt[i] = v_set1(0.0f);
    }
    for (int j = 0; j < n; j++) {
        const vf xv = v_load(x + j * VL);
        vf dv = v_load(dx + j * VL);
        GMAI_UNROLL
        for (int i = 0; i < kb; i++) {
            const vf t = v_fnma(xv, w[i], mw[i]); /* -t: the signs of the two sums below come out right */
            const vf a = v_mul(v_set1(dl[i * C + j]), t);
            st[i] = v_sub(st[i], a);
            stt[i] = v_fma(a, t, stt[i]);
            dv = v_fma(a, w[i], dv);
        }
        v_store(dx + j * VL, dv);
    }
    GMAI_UNROLL
    for (int i = 0; i < kb; i++) {
        v_store(sum_t + i * rp, v_add(v_load(sum_t + i * rp), st[i]));
        v_store(sum_tt + i * rp, v_add(v_load(sum_tt + i * rp), stt[i]));
    }
}

void GMAI_K(mixture_backward)(const gmai_mixture *m, const float *rows, const float *dlogits, int n, float *dx,
                              float *sum_t, float *sum_tt)
{
    const ptrdiff_t rp = m->rp;
    _Alignas(64) float x_panel[C * VL], dx_panel[C * VL];
    for (int r = 0; r < m->r; r += VL) {
        for (int j = 0; j < n; j++) {
            v_store(x_panel + j * VL, v_load(rows + j * rp + r));
            v_store(dx_panel + j * VL, v_set1(0.0f));
        }
        int k = 0;
        for (; k + KB <= m->k; k += KB)
            mixture_backward_block(KB, m->w + k * rp + r, m->mw + k * rp + r, rp, x_panel, dlogits + (ptrdiff_t)k * C, n,
                                   dx_panel, sum_t + k * rp + r, sum_tt + k * rp + r);
        for (; k < m->k; k++)
            mixture_backward_block(1, m->w + k * rp + r, m->mw + k * rp + r, rp, x_panel, dlogits + (ptrdiff_t)k * C, n,
                                   dx_panel, sum_t + k * rp + r, sum_tt + k * rp + r);
        /* dx = -2 sum dl t w: the block summed -dl t w. */
        for (int j = 0; j < n; j++) {
            const vf v = v_load(dx_panel + j * VL);
            v_store(dx + j * rp + r, v_add(v, v));
        }
    }
}
