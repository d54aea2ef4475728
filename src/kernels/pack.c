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

int GMAI_K(pack)(const gmai_rows *src, int n, int width, const uint8_t *keep,
    const float *center, float *rows, int ld, float *columns)
{
    const int padded = (n + VL - 1) / VL * VL;
    int finite = 1;
    for (int i = 0; i < n; i++) {
        float *d = rows + (ptrdiff_t)i * ld;
        /* x - x is 0 for a finite x and NaN otherwise: one sum tells for the whole row. */
        vf bad = v_set1(0.0f);
        for (int j = 0; j < ld; j += VL) {
            const int left = keep && !keep[i] ? 0 : width - j;
            vf x = v_set1(0.0f);
            if (left > 0) {
                if (src->dtype == GMA_BF16)
                    x = load_bf16((const uint16_t *)src->data + (int64_t)i * src->stride + j, left);
                else
                    x = load_f32((const float *)src->data + (int64_t)i * src->stride + j, left);
                bad = v_add(bad, v_sub(x, x));
                if (center) x = v_sub(x, v_load(center + j));
            }
            v_store(d + j, x);
        }
        finite &= v_all_finite(bad);
    }
    for (int i = n; i < padded; i++)
        for (int j = 0; j < ld; j += VL) v_store(rows + (ptrdiff_t)i * ld + j, v_set1(0.0f));
    if (columns) GMAI_K(transpose)(rows, ld, padded, (width + VL - 1) / VL * VL, columns, GMAI_CHUNK);
    return finite;
}

void GMAI_K(unpack)(const float *rows, int ld, int n, int width, const float *scale, const gmai_rows *dst)
{
    for (int i = 0; i < n; i++) {
        const float *s = rows + (ptrdiff_t)i * ld;
        const vf f = v_set1(scale ? scale[i] : 1.0f);
        for (int j = 0; j < width; j += VL) {
            const int left = width - j;
            const vf x = scale ? v_mul(v_load(s + j), f) : v_load(s + j);
            if (dst->dtype == GMA_BF16) {
                uint16_t *p = (uint16_t *)dst->data + (int64_t)i * dst->stride + j;
                if (left >= VL) {
                    v_store_bf16(p, x);
                } else {
                    uint16_t t[VL];
                    v_store_bf16(t, x);
                    for (int l = 0; l < left; l++) p[l] = t[l];
                }
            } else {
                float *p = (float *)dst->data + (int64_t)i * dst->stride + j;
                if (left >= VL)
                    v_store(p, x);
                else
                    v_storen(p, x, left);
            }
        }
    }
}
