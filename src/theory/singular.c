/* Householder reflections from both sides make the matrix bidiagonal (Golub & Kahan 1965); how many singular values lie
 * above a number is then read from the signs of a recurrence (a Sturm count), and bisection finds the wanted ones. */
#include "theory/singular.h"

#include <math.h>
#include <stdlib.h>

/* Four sums side by side: the order is fixed, and the compiler may use vectors. */
static double dot(const double *x, const double *y, int64_t n) {
    double sum[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] += x[i + j] * y[i + j];
    for (; i < n; i++)
        sum[0] += x[i] * y[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* v (n) into the vector of a reflection that maps it to *first e_1: v - first e_1. Returns 2 / |v|^2, 0 for none. */
static double reflect(double *v, int64_t n, double *first) {
    const double norm = sqrt(dot(v, v, n));
    *first = v[0] > 0 ? -norm : norm;
    if (norm == 0)
        return 0;
    v[0] -= *first;
    const double square = dot(v, v, n);
    return square > 0 ? 2 / square : 0;
}

static void from_left(double *a, int64_t n, int64_t j, double *v, double *w, double *diagonal) {
    for (int64_t i = j; i < n; i++)
        v[i - j] = a[i * n + j];
    const double beta = reflect(v, n - j, diagonal);
    for (int64_t c = j + 1; c < n; c++)
        w[c] = 0;
    for (int64_t i = j; i < n; i++)
        for (int64_t c = j + 1; c < n; c++)
            w[c] += v[i - j] * a[i * n + c];
    for (int64_t i = j; i < n; i++)
        for (int64_t c = j + 1; c < n; c++)
            a[i * n + c] -= beta * v[i - j] * w[c];
}

static void from_right(double *a, int64_t n, int64_t j, double *v, double *above) {
    const int64_t m = n - j - 1;
    for (int64_t c = 0; c < m; c++)
        v[c] = a[j * n + j + 1 + c];
    const double beta = reflect(v, m, above);
    for (int64_t i = j + 1; i < n; i++) {
        double *row = a + i * n + j + 1;
        const double x = beta * dot(row, v, m);
        for (int64_t c = 0; c < m; c++)
            row[c] -= x * v[c];
    }
}

/* How many singular values are above t >= 0: of the symmetric matrix with 0 on its diagonal and b beside it, whose
 * eigenvalues are they and their negatives, as many eigenvalues are below -t. */
static int64_t above(const double *b, int64_t n, double t, double least) {
    int64_t count = 0;
    double q = t;
    for (int64_t i = 0;; i++) {
        count += q < 0;
        if (i == 2 * n - 1)
            return count;
        if (fabs(q) < least)
            q = q < 0 ? -least : least;
        q = t - b[i] * b[i] / q;
    }
}

/* The one after the first k. */
static double bisect(const double *b, int64_t n, int64_t k, double high, double least) {
    double low = 0;
    for (int i = 0; i < 200 && high - low > 1e-15 * high; i++) {
        const double middle = (low + high) / 2;
        if (above(b, n, middle, least) > k)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

gma_status gmal_singular_values(double *a, int64_t n, int64_t k, double *largest, double *after) {
    *largest = *after = 0;
    double *work = malloc((size_t)(4 * n + 1) * sizeof *work), *v = work + 2 * n, *w = work + 3 * n;
    if (!work)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the singular values of %lld rows", (long long)n);
    double most = 0;
    for (int64_t j = 0; j < n; j++) {
        from_left(a, n, j, v, w, &work[2 * j]);
        work[2 * j + 1] = 0;
        if (j + 1 < n)
            from_right(a, n, j, v, &work[2 * j + 1]);
    }
    for (int64_t i = 0; i < 2 * n; i++)
        most = isnan(work[i]) || fabs(work[i]) > most ? fabs(work[i]) : most; /* NaN stays */
    if (most > 0 || isnan(most)) {
        const double least = most * 1e-300 > 0 ? most * 1e-150 : 1e-300;
        *largest = isfinite(most) ? bisect(work, n, 0, 2 * most, least) : NAN;
        *after = isfinite(most) ? (k < n ? bisect(work, n, k, 2 * most, least) : 0) : NAN;
    }
    free(work);
    return GMA_OK;
}
