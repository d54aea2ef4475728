/* Between the caller's strided rows and the padded buffers of a chunk. */
#include "kernels/decl.h"

#include "gma/base.h"

/* VL values from p, of which only the first n exist. */
static inline vf load_f32(const float *p, int n) { return n >= VL ? v_load(p) : v_loadn(p, n); }

static inline vf load_bf16(const uint16_t *p, int n)
{
    if (n >= VL) return v_load_bf16(p);
    uint16_t t[VL] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return v_load_bf16(t);
}

/* A VL x VL block of rows to columns. */
static inline void transpose_block(const float *src, int lds, float *dst, int ldd)
{
    vf r[VL];
    for (int i = 0; i < VL; i++) r[i] = v_load(src + (ptrdiff_t)i * lds);
    v_transpose(r);
    for (int i = 0; i < VL; i++) v_store(dst + (ptrdiff_t)i * ldd, r[i]);
}

void GMAI_K(transpose)(const float *src, int lds, int rows, int cols, float *dst, int ldd)
{
    for (int i = 0; i < rows; i += VL)
        for (int j = 0; j < cols; j += VL)
            transpose_block(src + (ptrdiff_t)i * lds + j, lds, dst + (ptrdiff_t)j * ldd + i, ldd);
}

/* One vector of a row, and its trace in `bad`: x - x is 0 for a finite x and NaN otherwise. */
GMAI_INLINE vf take(const void *row, int j, int left, int bf16, const float *center, vf *bad)
{
    vf x = bf16 ? load_bf16((const uint16_t *)row + j, left) : load_f32((const float *)row + j, left);
    *bad = v_add(*bad, v_sub(x, x));
    return center ? v_sub(x, v_load(center + j)) : x;
}

/* Rows of one type, centred or not: both known to the compiler. */
GMAI_INLINE int pack_rows(const gmai_rows *src, int bf16, int n, int width, const uint8_t *keep, const float *center,
                          float *rows, int ld)
{
    /* Two sums, so that one need not wait for itself. */
    vf bad0 = v_set1(0.0f), bad1 = v_set1(0.0f);
    const vf zero = v_set1(0.0f);
    for (int i = 0; i < n; i++) {
        const char *row = (const char *)src->data + (int64_t)i * src->stride * (bf16 ? 2 : 4);
        float *d = rows + (ptrdiff_t)i * ld;
        int j = 0;
        if (!keep || keep[i]) {
            for (; j + 2 * VL <= width; j += 2 * VL) {
                v_store(d + j, take(row, j, VL, bf16, center, &bad0));
                v_store(d + j + VL, take(row, j + VL, VL, bf16, center, &bad1));
            }
            for (; j < width; j += VL) {
                const int left = width - j;
                v_store(d + j, take(row, j, left, bf16, center, &bad0));
            }
        }
        for (; j < ld; j += VL) v_store(d + j, zero);
    }
    return v_all_finite(bad0) & v_all_finite(bad1);
}

int GMAI_K(pack)(const gmai_rows *src, int n, int width, const uint8_t *keep,
    const float *center, float *rows, int ld, float *columns)
{
    const int padded = (n + VL - 1) / VL * VL;
    int finite;
    if (src->dtype == GMA_BF16)
        finite = center ? pack_rows(src, 1, n, width, keep, center, rows, ld)
                        : pack_rows(src, 1, n, width, keep, NULL, rows, ld);
    else
        finite = center ? pack_rows(src, 0, n, width, keep, center, rows, ld)
                        : pack_rows(src, 0, n, width, keep, NULL, rows, ld);
    for (int i = n; i < padded; i++)
        for (int j = 0; j < ld; j += VL) v_store(rows + (ptrdiff_t)i * ld + j, v_set1(0.0f));
    if (columns) GMAI_K(transpose)(rows, ld, padded, (width + VL - 1) / VL * VL, columns, GMAI_CHUNK);
    return finite;
}

static void store_bf16(uint16_t *p, vf x, int left)
{
    if (left >= VL) {
        v_store_bf16(p, x);
        return;
    }
    uint16_t t[VL];
    v_store_bf16(t, x);
    for (int l = 0; l < left; l++) p[l] = t[l];
}

GMAI_INLINE void unpack_rows(const float *rows, int ld, int n, int width, const float *scale, const gmai_rows *dst,
                             int bf16)
{
    for (int i = 0; i < n; i++) {
        const float *s = rows + (ptrdiff_t)i * ld;
        const vf f = v_set1(scale ? scale[i] : 1.0f);
        const int64_t at = (int64_t)i * dst->stride;
        for (int j = 0; j < width; j += VL) {
            const int left = width - j;
            const vf x = scale ? v_mul(v_load(s + j), f) : v_load(s + j);
            if (bf16)
                store_bf16((uint16_t *)dst->data + at + j, x, left);
            else if (left >= VL)
                v_store((float *)dst->data + at + j, x);
            else
                v_storen((float *)dst->data + at + j, x, left);
        }
    }
}

void GMAI_K(unpack)(const float *rows, int ld, int n, int width, const float *scale, const gmai_rows *dst)
{
    if (dst->dtype == GMA_BF16)
        unpack_rows(rows, ld, n, width, scale, dst, 1);
    else if (scale)
        unpack_rows(rows, ld, n, width, scale, dst, 0);
    else
        unpack_rows(rows, ld, n, width, NULL, dst, 0);
}
