/* Small dense linear algebra for tests, in double. */
#ifndef TEST_MATRIX_H
#define TEST_MATRIX_H

#include <stdint.h>

/* Singular values of a (rows, cols), rows >= cols, descending, into s (cols). One-sided Jacobi; a is overwritten. */
void tst_singular_values(double *a, int64_t rows, int64_t cols, double *s);

/* How many singular values exceed tol times the largest. The input is left alone. */
int64_t tst_rank(const double *a, int64_t rows, int64_t cols, double tol);

#endif
