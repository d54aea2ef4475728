/* Data types and strided views. */
#include "core/tensor.h"

#include <string.h>

size_t gma_dtype_size(gma_dtype dtype)
{
    switch (dtype) {
    case GMA_F32:
    case GMA_I32: return 4;
    case GMA_BF16:
    case GMA_U16: return 2;
    case GMA_F64:
    case GMA_I64: return 8;
    case GMA_BOOL:
    case GMA_U8: return 1;
    }
    return 0;
}

const char *gma_dtype_name(gma_dtype dtype)
{
    switch (dtype) {
    case GMA_F32: return "F32";
    case GMA_BF16: return "BF16";
    case GMA_F64: return "F64";
    case GMA_BOOL: return "BOOL";
    case GMA_U8: return "U8";
    case GMA_I32: return "I32";
    case GMA_I64: return "I64";
    case GMA_U16: return "U16";
    }
    return "unknown dtype";
}

uint16_t gma_f32_to_bf16(float x) { return gmai_bf16_from_f32(x); }
float gma_bf16_to_f32(uint16_t x) { return gmai_f32_from_bf16(x); }

gma_tensor gma_tensor_of(const void *data, gma_dtype dtype, int rank, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    gma_tensor t;
    const int64_t n[GMA_MAX_RANK] = {n0, n1, n2, n3};
    memset(&t, 0, sizeof t);
    memcpy(&t.data, &data, sizeof t.data); /* drops const; inputs are only read */
    t.dtype = (int32_t)dtype;
    t.rank = (int32_t)rank;
    int64_t step = 1;
    for (int i = rank < GMA_MAX_RANK ? rank - 1 : GMA_MAX_RANK - 1; i >= 0; i--) {
        t.shape[i] = n[i];
        t.stride[i] = step;
        step *= n[i] > 0 ? n[i] : 1;
    }
    return t;
}

float gmai_load_f32(const gma_tensor *t, int64_t element)
{
    switch (t->dtype) {
    case GMA_BF16: return gmai_f32_from_bf16(((const uint16_t *)t->data)[element]);
    case GMA_F64: return (float)((const double *)t->data)[element];
    default: return ((const float *)t->data)[element];
    }
}

void gmai_store_f32(const gma_tensor *t, int64_t element, float x)
{
    switch (t->dtype) {
    case GMA_BF16: ((uint16_t *)t->data)[element] = gmai_bf16_from_f32(x); return;
    case GMA_F64: ((double *)t->data)[element] = (double)x; return;
    default: ((float *)t->data)[element] = x; return;
    }
}
