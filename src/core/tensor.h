/* Inside of tensors: scalar access by element offset. Hot loops have their own loads. */
#ifndef GMA_CORE_TENSOR_H
#define GMA_CORE_TENSOR_H

#include <string.h>

#include "gma/base.h"

static inline uint16_t gmai_bf16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); /* NaN: keep it one */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float gmai_f32_from_bf16(uint16_t x)
{
    const uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Element `element` (an offset in elements from data) of an F32, BF16 or F64 tensor. */
float gmai_load_f32(const gma_tensor *t, int64_t element);
void gmai_store_f32(const gma_tensor *t, int64_t element, float x);

static inline int64_t gmai_tensor_count(const gma_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

#endif
