/* The functions of simd/math.h over arrays, once per tier: for tests/unit/test_vector_math.c. */
#include "kernels/kernels.h"

#include "kernels/math.h"
#include "simd/math.h"

static void each(const float *x, float *y, int n, vf (*f)(vf))
{
    int i = 0;
    for (; i + VL <= n; i += VL) v_store(y + i, f(v_load(x + i)));
    if (i < n) v_storen(y + i, f(v_loadn(x + i, n - i)), n - i);
}

#define TST_K(name) GMAI_CAT(tst_##name, GMAI_ISA)
#define X(name) \
    void TST_K(name)(const float *x, float *y, int n); \
    void TST_K(name)(const float *x, float *y, int n) { each(x, y, n, v_##name); }
TST_VECTOR_MATH(X)
