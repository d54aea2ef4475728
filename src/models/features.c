#include "models/features.h"

#include <math.h>

#include "layers/rng.h"

/* Box-Muller. */
double gmal_normal(uint64_t key, int64_t i) {
    const double u = gmal_uniform(key, 2 * (uint64_t)i), v = gmal_uniform(key, 2 * (uint64_t)i + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Takes the first `done` rows, which have length 1, out of row x, and makes what is left a unit vector. Twice: once
 * leaves what rounding left. 0 when nothing is left. */
static int orthogonalise(const float *rows, int64_t done, int64_t r, float *x) {
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < done; i++) {
            const double along = dot(rows + i * r, x, r);
            for (int64_t j = 0; j < r; j++)
                x[j] = (float)((double)x[j] - along * (double)rows[i * r + j]);
        }
        const double length = sqrt(dot(x, x, r));
        if (length < 1e-3)
            return 0;
        for (int64_t j = 0; j < r; j++)
            x[j] = (float)((double)x[j] / length);
    }
    return 1;
}

void gmal_orthogonal_features(uint64_t key, int64_t m, int64_t r, float *w) {
    const uint64_t directions = gmal_key(key, 0), lengths = gmal_key(key, 1);
    int64_t draw = 0;
    for (int64_t i = 0; i < m; i++) {
        float *block = w + i / r * r * r, *x = w + i * r;
        do { /* a draw almost inside the span of the others is drawn again */
            for (int64_t j = 0; j < r; j++)
                x[j] = (float)gmal_normal(directions, draw++);
        } while (!orthogonalise(block, i % r, r, x));
    }
    for (int64_t i = 0; i < m; i++) {
        double square = 0;
        for (int64_t j = 0; j < r; j++)
            square += pow(gmal_normal(lengths, i * r + j), 2);
        for (int64_t j = 0; j < r; j++)
            w[i * r + j] = (float)(sqrt(square) * (double)w[i * r + j]);
    }
}
