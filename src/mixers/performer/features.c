/* Orthogonal random features (Choromanski et al. 2021): blocks of at most R rows, orthogonal to each other, each as long as an
 * independent normal vector. Every single row is then distributed as N(0, I), and the estimates of one block err less
 * than independent ones.
 *
 * Nothing here calls libm but sqrt, which IEEE 754 defines to the last bit, so a seed means the same features on every
 * machine. */
#include <math.h>
#include <stdlib.h>

#include "gma/mixer.h"

typedef struct source {
    uint64_t state;
    double spare; /* the polar method gives two */
    int has_spare;
} source;

/* splitmix64 */
static uint64_t next(source *s)
{
    uint64_t z = s->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In (-1, 1), 53 bits. */
static double uniform(source *s) { return ((double)(next(s) >> 11) + 0.5) * 0x1p-52 - 1.0; }

/* log x for 0 < x < 1: x = m 2^e with m in [1/sqrt 2, sqrt 2), log m = 2 atanh((m - 1) / (m + 1)). */
static double logarithm(double x)
{
    int e;
    double m = frexp(x, &e), power, sum = 0.0;
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    const double z = (m - 1.0) / (m + 1.0), zz = z * z;
    power = z;
    for (int k = 1; k < 30; k += 2, power *= zz) sum += power / k;
    return 2.0 * sum + (double)e * 0.69314718055994531;
}

/* Marsaglia's polar method. */
static double normal(source *s)
{
    if (s->has_spare) return s->has_spare = 0, s->spare;
    double x, y, r;
    do {
        x = uniform(s);
        y = uniform(s);
        r = x * x + y * y;
    } while (r >= 1.0 || r == 0.0);
    const double f = sqrt(-2.0 * logarithm(r) / r);
    s->spare = y * f;
    s->has_spare = 1;
    return x * f;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* row <- a unit vector orthogonal to the `before` rows above it. Twice, because once leaves what cancelled. */
static void orthogonal_row(source *s, double *rows, int64_t before, int64_t n)
{
    double *row = rows + before * n, length;
    do {
        for (int64_t i = 0; i < n; i++) row[i] = normal(s);
        const double drawn = sqrt(dot(row, row, n));
        for (int twice = 0; twice < 2; twice++)
            for (int64_t k = 0; k < before; k++) {
                const double *other = rows + k * n, f = dot(row, other, n);
                for (int64_t i = 0; i < n; i++) row[i] -= f * other[i];
            }
        length = sqrt(dot(row, row, n));
        if (length > 1e-6 * drawn) break;
    } while (1); /* drawn again when it lay in their span */
    for (int64_t i = 0; i < n; i++) row[i] /= length;
}

gma_status gma_performer_features(uint64_t seed, int64_t count, int64_t width, float *w)
{
    if (count < 1) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "count is %lld; it must be >= 1", (long long)count);
    if (width < 1) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "width is %lld; it must be >= 1", (long long)width);
    if (!w) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "w is NULL");
    if (width > 1 << 15 || count > ((int64_t)1 << 40) / width)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "width is %lld, count %lld; at most 2^15 and 2^40 numbers", (long long)width,
                        (long long)count);
    const int64_t block = count < width ? count : width;
    double *rows = malloc((size_t)(block * width) * sizeof *rows);
    if (!rows)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a block of %lld features", (long long)block);
    source s = {seed, 0.0, 0};
    for (int64_t m = 0; m < count; m++) {
        const int64_t place = m % block;
        double square = 0.0;
        orthogonal_row(&s, rows, place, width);
        for (int64_t i = 0; i < width; i++) {
            const double x = normal(&s);
            square += x * x;
        }
        const double length = sqrt(square);
        for (int64_t i = 0; i < width; i++) w[m * width + i] = (float)(length * rows[place * width + i]);
    }
    free(rows);
    return GMA_OK;
}
