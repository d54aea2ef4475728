/* Sums, scalings and state updates of a chunk: O(chunk) or O(state) work around the products. */
#include "kernels/decl.h"

#include "kernels/pairs.h"
#include "simd/math.h"

#define C GMAI_CHUNK

void GMAI_K(row_sums)(const float *a, int rows, int nvec, const float *x, float *y, ptrdiff_t y_stride)
{
    for (int i = 0; i < rows; i++) {
        const float *p = a + (ptrdiff_t)i * C;
        vf s = v_set1(0.0f);
        if (x)
            for (int v = 0; v < nvec; v++) s = v_fma(v_load(p + v * VL), v_load(x + v * VL), s);
        else
            for (int v = 0; v < nvec; v++) s = v_add(v_load(p + v * VL), s);
        y[i * y_stride] += v_sum(s);
    }
}

void GMAI_K(column_sums)(const float *a, int rows, int nvec, const float *z, ptrdiff_t z_stride, float *y)
{
    for (int v = 0; v < nvec; v++) {
        const float *p = a + v * VL;
        /* Two chains, joined in a fixed order: one would wait for itself. */
        vf s0 = v_set1(0.0f), s1 = v_set1(0.0f);
        int i = 0;
        for (; i + 2 <= rows; i += 2) {
            const vf a0 = v_load(p + (ptrdiff_t)i * C), a1 = v_load(p + (ptrdiff_t)(i + 1) * C);
            s0 = z ? v_fma(a0, v_set1(z[i * z_stride]), s0) : v_add(a0, s0);
            s1 = z ? v_fma(a1, v_set1(z[(i + 1) * z_stride]), s1) : v_add(a1, s1);
        }
        if (i < rows) {
            const vf a0 = v_load(p + (ptrdiff_t)i * C);
            s0 = z ? v_fma(a0, v_set1(z[i * z_stride]), s0) : v_add(a0, s0);
        }
        v_store(y + v * VL, v_add(v_load(y + v * VL), v_add(s0, s1)));
    }
}

void GMAI_K(scale_columns)(float *a, int rows, int nvec, const float *x)
{
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < nvec; v++) {
            float *p = a + (ptrdiff_t)i * C + v * VL;
            v_store(p, v_mul(v_load(p), v_load(x + v * VL)));
        }
}

void GMAI_K(output_backward)(const float *grad_o, const float *o, int ld, int n, const float *inverse, float *dn,
                             float *minus_delta)
{
    for (int i = 0; i < n; i++) {
        const ptrdiff_t at = (ptrdiff_t)i * ld;
        const vf f = v_set1(inverse[i]);
        vf dot = v_set1(0.0f);
        for (int j = 0; j < ld; j += VL) {
            const vf g = v_mul(v_load(grad_o + at + j), f);
            dot = v_fma(g, v_load(o + at + j), dot);
            v_store(dn + at + j, g);
        }
        minus_delta[i] = -v_sum(dot);
    }
}

void GMAI_K(lower_decay)(float *pt, int n, int nvec, const double *cs, const int *first)
{
    const int width = nvec * VL;
    for (int j = 0; j < n; j++) {
        float *p = pt + (ptrdiff_t)j * C;
        const int from = j / VL * VL;
        if (cs) {
            float d[C];
            /* Differences in double: cs may be large while a difference is small. */
            for (int i = from; i < n; i++) d[i] = (float)(cs[i] - cs[j]);
            for (int i = n; i < width; i++) d[i] = -1e30f;
            for (int i = from; i < width; i += VL) v_store(p + i, v_mul(v_load(p + i), v_exp(v_load(d + i))));
            /* first[] rises with i, so what has forgotten j is a tail. Stored, not multiplied: the product may be NaN. */
            for (int i = n - 1; i > j && first[i] > j; i--) p[i] = 0.0f;
        }
        for (int i = n; i < width; i++) p[i] = 0.0f;
        for (int i = 0; i < j; i++) p[i] = 0.0f;
    }
}

void GMAI_K(combine)(const float *base, float factor, const float *local, float *dst, size_t n)
{
    const vf f = v_set1(factor);
    for (size_t i = 0; i < n; i += VL) {
        vf x = local ? v_load(local + i) : v_set1(0.0f);
        if (factor == 1.0f)
            x = v_add(v_load(base + i), x);
        else if (factor != 0.0f)
            x = v_fma(f, v_load(base + i), x);
        v_store(dst + i, x);
    }
}

/* (h, l) = f (h, l) + x + xl */
static inline void add_pair(float *hi, float *lo, float factor, vf f, vf x, vf xl)
{
    vf h = v_set1(0.0f), l = v_set1(0.0f), e;
    if (factor != 0.0f) {
        h = v_load(hi);
        l = v_load(lo);
        if (factor != 1.0f) {
            const vf p = v_mul(f, h);
            l = v_fma(f, l, finite_or_0(v_fma(f, h, v_sub(v_set1(0.0f), p))));
            h = p;
        }
    }
    const vf s = two_sum(h, x, &e);
    l = v_add(l, v_add(finite_or_0(e), xl));
    h = two_sum(s, l, &e);
    v_store(hi, h);
    v_store(lo, finite_or_0(e));
}

void GMAI_K(accumulate)(float *hi, float *lo, float factor, const float *x, const float *xlo, size_t n)
{
    const vf f = v_set1(factor);
    for (size_t i = 0; i < n; i += VL)
        add_pair(hi + i, lo + i, factor, f, v_load(x + i), xlo ? v_load(xlo + i) : v_set1(0.0f));
}

void GMAI_K(axpy)(float a, const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += VL) v_store(y + i, v_fma(v_set1(a), v_load(x + i), v_load(y + i)));
}

#if defined(__SSE2__)
#include <xmmintrin.h>
unsigned GMAI_K(flush_on)(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u); /* flush results, treat subnormal operands as zero */
    return before;
}
void GMAI_K(flush_restore)(unsigned before) { _mm_setcsr(before); }
#elif defined(__aarch64__)
unsigned GMAI_K(flush_on)(void)
{
    uint64_t f;
    __asm__ volatile("mrs %0, fpcr" : "=r"(f));
    __asm__ volatile("msr fpcr, %0" : : "r"(f | (UINT64_C(1) << 24)));
    return (unsigned)f;
}
void GMAI_K(flush_restore)(unsigned before) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)before)); }
#else
unsigned GMAI_K(flush_on)(void) { return 0; }
void GMAI_K(flush_restore)(unsigned before) { (void)before; }
#endif
