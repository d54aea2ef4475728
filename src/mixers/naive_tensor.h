/* Element access for the naive versions: every tensor is read as double and written rounded to its own dtype, any
 * strides. Slow on purpose: one element at a time, by its indices. Also their allocation, checked for overflow. */
#ifndef GMA_MIXERS_NAIVE_TENSOR_H
#define GMA_MIXERS_NAIVE_TENSOR_H

#include <stdint.h>
#include <stdlib.h>

#include "core/tensor.h"

/* Offset in elements of t[a][b][c][d]; indices past the rank play no part. */
static inline int64_t gmai_naive_offset(const gma_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t index[GMA_MAX_RANK] = {a, b, c, d};
    int64_t offset = 0;
    for (int i = 0; i < t->rank; i++)
        offset += index[i] * t->stride[i];
    return offset;
}

static inline double gmai_naive_get(const gma_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t at = gmai_naive_offset(t, a, b, c, d);
    switch (t->dtype) {
    case GMA_F64:
        return ((const double *)t->data)[at];
    case GMA_F32:
        return (double)((const float *)t->data)[at];
    case GMA_BF16:
        return (double)gmai_f32_from_bf16(((const uint16_t *)t->data)[at]);
    case GMA_I32:
        return (double)((const int32_t *)t->data)[at];
    default:
        return (double)((const uint8_t *)t->data)[at]; /* BOOL, U8 */
    }
}

static inline void gmai_naive_put(const gma_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d, double x) {
    const int64_t at = gmai_naive_offset(t, a, b, c, d);
    switch (t->dtype) {
    case GMA_F64:
        ((double *)t->data)[at] = x;
        break;
    case GMA_F32:
        ((float *)t->data)[at] = (float)x;
        break;
    default:
        ((uint16_t *)t->data)[at] = gmai_bf16_from_f32((float)x);
        break;
    }
}

/* cu_seqlens are exact: int64 does not go through double. */
static inline int64_t gmai_naive_get_int(const gma_tensor *t, int64_t a) {
    const int64_t at = gmai_naive_offset(t, a, 0, 0, 0);
    return t->dtype == GMA_I64 ? ((const int64_t *)t->data)[at] : (int64_t)((const int32_t *)t->data)[at];
}

/* A zeroed array of rows x width doubles, at least one; NULL when that does not fit the memory or a size_t. */
static inline double *gmai_naive_alloc(int64_t rows, int64_t width) {
    if (rows < 1)
        rows = 1;
    if (width < 1)
        width = 1;
    if (rows > (INT64_MAX / 8) / width || (uint64_t)rows * (uint64_t)width > SIZE_MAX / sizeof(double))
        return NULL;
    return calloc((size_t)rows * (size_t)width, sizeof(double));
}

#endif
