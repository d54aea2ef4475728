/* A mixture is prepared once a call, whatever the length: at a few hundred tokens that is time to save. */
#include "kernels/decl.h"

#include <math.h>

#include "simd/math.h"

enum { GROUP = GMAI_GROUP };

double GMAI_K(prepare_row)(const float *mu, const float *omega, const float *center, float eps_sigma, float scale,
                           int n, int count, float *w, float *mw, float *dsigma)
{
    /* log of a product instead of many logs: mantissas are multiplied, exponents added. */
    enum { RUN = 64 };
    const vf one = v_set1(1.0f), zero = v_set1(0.0f);
    double log_det[4] = {0.0}; /* four sums, which need not wait for each other */
    for (int begin = 0; begin < n; begin += RUN * VL) {
        const int end = n - begin < RUN * VL ? n : begin + RUN * VL;
        vf mantissas = one, exponents = zero;
        for (int j = begin; j < end; j += VL) {
            const int left = count - j;
            const vf o = v_load(omega + j);
            /* e^-|o| serves softplus and its slope. */
            const vf u = v_exp(v_min(v_sub(zero, o), o)), above = v_add(one, u);
            const vf s = v_add(v_add(v_max(zero, o), v_log1p(u)), v_set1(eps_sigma));
            const vf wj = v_sqrt(v_div(v_set1(0.5f * scale), s));
            const vf mwj = v_mul(v_sub(v_load(mu + j), v_load(center + j)), wj);
            vf counted = s;
            if (left >= VL) {
                v_store(w + j, wj);
                v_store(mw + j, mwj);
            } else { /* Padding dimensions weigh nothing. */
                float t[VL];
                v_store(t, one);
                v_storen(t, s, left);
                counted = v_load(t);
                v_store(w + j, zero);
                v_store(mw + j, zero);
                v_storen(w + j, wj, left);
                v_storen(mw + j, mwj, left);
            }
            mantissas = v_mul(mantissas, v_mantissa(counted));
            exponents = v_add(exponents, v_exponent(counted));
            if (dsigma) v_store(dsigma + j, v_div(v_select_ge0(o, one, u), v_mul(above, s)));
        }
        float logs[VL], twos[VL];
        v_store(logs, v_log(mantissas));
        v_store(twos, exponents);
        for (int l = 0; l < VL; l++) log_det[l % 4] += (double)logs[l] + 0.693147180559945309 * (double)twos[l];
    }
    return (log_det[0] + log_det[1]) + (log_det[2] + log_det[3]);
}

int GMAI_K(row_infinite)(const float *x, int n)
{
    vf bad = v_set1(0.0f);
    for (int j = 0; j < n; j += VL) {
        const vf v = v_load(x + j);
        bad = v_add(bad, v_sub(v, v));
    }
    if (v_all_finite(bad)) return 0;
    int infinite = 0; /* or NaN, which is another matter */
    for (int j = 0; j < n; j++) infinite |= fabsf(x[j]) == INFINITY;
    return infinite;
}

void GMAI_K(row_spread)(const float *x, const float *mean, float weight, int n, float *spread, float *furthest)
{
    const vf half = v_set1(0.5f), f = v_set1(weight);
    for (int j = 0; j < n; j += VL) {
        /* Half the distance: it never overflows. */
        const vf h = v_fnma(half, v_load(mean + j), v_mul(half, v_load(x + j)));
        const vf d = v_max(v_sub(v_set1(0.0f), h), h);
        v_store(spread + j, v_fma(f, d, v_load(spread + j)));
        v_store(furthest + j, v_max(d, v_load(furthest + j)));
    }
}

void GMAI_K(interleave)(const float *w, const float *mw, int rp, int r, float *out)
{
#if VL >= 2 * 4
    for (int j = 0; j < r; j += VL) {
        vf t[VL];
        for (int i = 0; i < VL; i++) t[i] = v_set1(0.0f);
        for (int i = 0; i < GROUP; i++) {
            t[i] = v_load(w + (ptrdiff_t)i * rp + j);
            t[GROUP + i] = v_load(mw + (ptrdiff_t)i * rp + j);
        }
        v_transpose(t);
        for (int i = 0; i < VL && j + i < r; i++) {
            float *p = out + (ptrdiff_t)(j + i) * 2 * GROUP;
            if (VL == 2 * GROUP) /* no mask: a masked store is slow on some CPUs */
                v_store(p, t[i]);
            else
                v_storen(p, t[i], 2 * GROUP);
        }
    }
#else
    for (int j = 0; j < r; j++)
        for (int i = 0; i < GROUP; i++) {
            out[(ptrdiff_t)j * 2 * GROUP + i] = w[(ptrdiff_t)i * rp + j];
            out[(ptrdiff_t)j * 2 * GROUP + GROUP + i] = mw[(ptrdiff_t)i * rp + j];
        }
#endif
}
