/* Singular values of a square matrix in double, with an absolute error of some n 2^-53 of the largest. */
#ifndef GMA_THEORY_SINGULAR_H
#define GMA_THEORY_SINGULAR_H

#include "gma/base.h"

/* The largest singular value of a (n,n), row-major, and the one after the first k: *after, 0 for k >= n. a is overwritten.
 * OUT_OF_MEMORY. */
gma_status gmal_singular_values(double *a, int64_t n, int64_t k, double *largest, double *after);

#endif
