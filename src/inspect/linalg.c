#include "inspect/linalg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/information.h"

/* One rotation in the plane (p,q) that makes a[p][q] zero; v collects the rotations, by rows. */
static void rotate(double *a, double *v, int n, int p, int q) {
    const double apq = a[p * n + q];
    if (apq == 0)
        return;
    const double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
    const double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + hypot(theta, 1)), c = 1 / hypot(t, 1), s = t * c;
    for (int i = 0; i < n; i++) {
        const double x = a[i * n + p], y = a[i * n + q];
        a[i * n + p] = c * x - s * y;
        a[i * n + q] = s * x + c * y;
    }
    for (int i = 0; i < n; i++) {
        const double x = a[p * n + i], y = a[q * n + i];
        a[p * n + i] = c * x - s * y;
        a[q * n + i] = s * x + c * y;
    }
    a[p * n + q] = a[q * n + p] = 0;
    if (!v)
        return;
    for (int i = 0; i < n; i++) {
        const double x = v[p * n + i], y = v[q * n + i];
        v[p * n + i] = c * x - s * y;
        v[q * n + i] = s * x + c * y;
    }
}

static double off_diagonal(const double *a, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            sum += 2 * a[i * n + j] * a[i * n + j];
    return sum;
}

static double squares(const double *a, int n) {
    double sum = 0;
    for (int i = 0; i < n * n; i++)
        sum += a[i] * a[i];
    return sum;
}

static void swap_rows(double *v, int n, int i, int j) {
    for (int k = 0; k < n; k++) {
        const double x = v[i * n + k];
        v[i * n + k] = v[j * n + k];
        v[j * n + k] = x;
    }
}

/* Largest eigenvalue first; the sign of a vector is fixed so that runs can be compared. */
static void order(double *values, double *v, int n) {
    for (int i = 0; i < n; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++)
            if (values[j] > values[best])
                best = j;
        const double x = values[i];
        values[i] = values[best];
        values[best] = x;
        if (!v)
            continue;
        if (best != i)
            swap_rows(v, n, i, best);
        int largest = 0;
        for (int k = 1; k < n; k++)
            if (fabs(v[i * n + k]) > fabs(v[i * n + largest]))
                largest = k;
        if (v[i * n + largest] < 0)
            for (int k = 0; k < n; k++)
                v[i * n + k] = -v[i * n + k];
    }
}

gma_status gmal_symmetric_eigen(double *a, int n, double *values, double *vectors) {
    const double small = 1e-30 * squares(a, n);
    if (vectors) {
        memset(vectors, 0, (size_t)n * (size_t)n * sizeof *vectors);
        for (int i = 0; i < n; i++)
            vectors[i * n + i] = 1;
    }
    /* Converges quadratically; ten sweeps are already rare. NaN ends it too. */
    for (int sweep = 0; sweep < 60 && off_diagonal(a, n) > small; sweep++)
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++)
                rotate(a, vectors, n, p, q);
    for (int i = 0; i < n; i++)
        values[i] = a[i * n + i];
    order(values, vectors, n);
    return GMA_OK;
}

/* c = a b, all (n,n) */
static void multiply(const double *a, const double *b, double *c, int n) {
    memset(c, 0, (size_t)n * (size_t)n * sizeof *c);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            const double x = a[i * n + k];
            for (int j = 0; j < n; j++)
                c[i * n + j] += x * b[k * n + j];
        }
}

/* (G_q G_k^T)(G_q G_k^T)^T has the eigenvalues of gram_q gram_k, and those are the eigenvalues of the symmetric
 * W V gram_k V^T W with gram_q = V^T W^2 V. */
gma_status gmal_product_singular_values(const double *gram_q, const double *gram_k, int n, double *values) {
    const size_t cells = (size_t)n * (size_t)n;
    double *work = malloc(4 * cells * sizeof *work), *a = work, *b = work + cells, *c = work + 2 * cells;
    if (!work)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %d singular values", n);
    double *vectors = work + 3 * cells;
    memcpy(a, gram_q, cells * sizeof *a);
    gma_status s = gmal_symmetric_eigen(a, n, values, vectors);
    for (int i = 0; i < n; i++) {
        const double w = sqrt(values[i] > 0 ? values[i] : 0);
        for (int j = 0; j < n; j++)
            a[i * n + j] = w * vectors[i * n + j];
    }
    multiply(a, gram_k, b, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++)
                sum += b[i * n + k] * a[j * n + k];
            c[i * n + j] = sum;
        }
    if (s == GMA_OK)
        s = gmal_symmetric_eigen(c, n, values, NULL);
    for (int i = 0; i < n; i++)
        values[i] = sqrt(values[i] > 0 ? values[i] : 0);
    free(work);
    return s;
}

double gmal_effective_rank(const double *singular_values, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += singular_values[i];
    return sum > 0 ? exp(gmal_entropy(singular_values, n)) : 0;
}

/* Shortest augmenting paths with potentials u (rows) and v (columns); index 0 is a column that stands for "none". */
gma_status gmal_best_matching(const double *score, int n, int *column) {
    double *u = calloc(3 * ((size_t)n + 1), sizeof *u), *v = u + n + 1, *least = u + 2 * (n + 1);
    int *row = calloc(3 * ((size_t)n + 1), sizeof *row), *way = row + n + 1, *done = row + 2 * (n + 1);
    if (!u || !row) {
        free(u);
        free(row);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to match %d components", n);
    }
    for (int i = 1; i <= n; i++) {
        int at = 0;
        row[0] = i;
        for (int j = 0; j <= n; j++) {
            least[j] = INFINITY;
            done[j] = 0;
        }
        do {
            int next = 0;
            double delta = INFINITY;
            done[at] = 1;
            for (int j = 1; j <= n; j++) {
                if (done[j])
                    continue;
                const double cost = -score[(row[at] - 1) * n + j - 1] - u[row[at]] - v[j];
                if (cost < least[j]) {
                    least[j] = cost;
                    way[j] = at;
                }
                if (least[j] < delta) {
                    delta = least[j];
                    next = j;
                }
            }
            for (int j = 0; j <= n; j++) {
                if (done[j]) {
                    u[row[j]] += delta;
                    v[j] -= delta;
                } else {
                    least[j] -= delta;
                }
            }
            at = next;
        } while (row[at] != 0);
        for (; at != 0; at = way[at])
            row[at] = row[way[at]];
    }
    for (int j = 1; j <= n; j++)
        column[row[j] - 1] = j - 1;
    free(u);
    free(row);
    return GMA_OK;
}
