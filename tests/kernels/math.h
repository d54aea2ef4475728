/* X(word): v_<word> of simd/math.h; tst_<word>__<tier>(x, y, n) is y_i = word(x_i) of that tier. */
#ifndef TEST_KERNELS_MATH_H
#define TEST_KERNELS_MATH_H

#define TST_VECTOR_MATH(X) X(exp) X(exp_negative) X(exp2) X(log) X(softplus) X(sigmoid)

#endif
