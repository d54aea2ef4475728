/* Small dense linear algebra in double for reports: sizes are K or R, some hundred at most. */
#ifndef GMA_INSPECT_LINALG_H
#define GMA_INSPECT_LINALG_H

#include "gma/base.h"

/* Eigenvalues (descending) of the symmetric a (n,n), row-major; a is overwritten. vectors (n,n) or NULL: row i is the
 * unit eigenvector of values[i], its largest element positive. Cyclic Jacobi rotations. OUT_OF_MEMORY. */
gma_status gmal_symmetric_eigen(double *a, int n, double *values, double *vectors);

/* Singular values (descending) of G_q G_k^T for G_q, G_k (N,K) given by their Gram matrices gram_q = G_q^T G_q and
 * gram_k: the N x N product is never made. values (n). */
gma_status gmal_product_singular_values(const double *gram_q, const double *gram_k, int n, double *values);

/* exp of the entropy of the normalised singular values (Roy & Vetterli 2007); 0 when all are 0. */
double gmal_effective_rank(const double *singular_values, int n);

/* Pairs rows with columns one to one so that the sum of score (n,n) is largest: column[i] belongs to row i.
 * The Hungarian method, O(n^3). Scores must be finite. OUT_OF_MEMORY. */
gma_status gmal_best_matching(const double *score, int n, int *column);

#endif
