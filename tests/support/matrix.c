#include "support/matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"

/* Rotate columns p and q of a (rows, n) so that they become orthogonal; 1 when they were not. */
static int orthogonalise(double *a, int64_t rows, int64_t n, int64_t p, int64_t q) {
    double pp = 0, qq = 0, pq = 0;
    for (int64_t i = 0; i < rows; i++) {
        pp += a[i * n + p] * a[i * n + p];
        qq += a[i * n + q] * a[i * n + q];
        pq += a[i * n + p] * a[i * n + q];
    }
    if (fabs(pq) <= 1e-15 * sqrt(pp * qq))
        return 0;
    const double zeta = (qq - pp) / (2 * pq);
    const double t = (zeta >= 0 ? 1 : -1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    const double c = 1 / sqrt(1 + t * t), s = c * t;
    for (int64_t i = 0; i < rows; i++) {
        const double x = a[i * n + p], y = a[i * n + q];
        a[i * n + p] = c * x - s * y;
        a[i * n + q] = s * x + c * y;
    }
    return 1;
}

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

void tst_singular_values(double *a, int64_t rows, int64_t cols, double *s) {
    int rotated = 1;
    for (int sweep = 0; rotated && sweep < 60; sweep++) {
        rotated = 0;
        for (int64_t p = 0; p < cols; p++) {
            for (int64_t q = p + 1; q < cols; q++)
                rotated |= orthogonalise(a, rows, cols, p, q);
        }
    }
    for (int64_t c = 0; c < cols; c++) {
        s[c] = 0;
        for (int64_t i = 0; i < rows; i++)
            s[c] += a[i * cols + c] * a[i * cols + c];
        s[c] = sqrt(s[c]);
    }
    qsort(s, (size_t)cols, sizeof *s, descending);
}

int64_t tst_rank(const double *a, int64_t rows, int64_t cols, double tol) {
    const size_t n = (size_t)(rows * cols);
    double *copy = malloc(n * sizeof *copy), *s = malloc((size_t)cols * sizeof *s);
    if (!copy || !s)
        tst_fail("no memory");
    memcpy(copy, a, n * sizeof *copy);
    tst_singular_values(copy, rows, cols, s);
    int64_t rank = 0;
    while (rank < cols && s[rank] > tol * s[0])
        rank++;
    free(copy);
    free(s);
    return rank;
}
