#include "inspect/information.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"

static double plogp(double p) { return p > 0 ? p * log(p) : 0; }

double gmal_entropy(const double *weights, int64_t count) {
    double total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++)
        total += weights[i];
    if (!(total > 0))
        return 0;
    for (int64_t i = 0; i < count; i++)
        sum -= plogp(weights[i] / total);
    return sum < 0 ? 0 : sum;
}

double gmal_normalised_entropy(const double *weights, int64_t count) {
    return count > 1 ? gmal_entropy(weights, count) / log((double)count) : 0;
}

static int64_t row_sum(const int64_t *table, int64_t row, int64_t columns) {
    int64_t sum = 0;
    for (int64_t c = 0; c < columns; c++)
        sum += table[row * columns + c];
    return sum;
}

static int64_t column_sum(const int64_t *table, int64_t rows, int64_t columns, int64_t column) {
    int64_t sum = 0;
    for (int64_t r = 0; r < rows; r++)
        sum += table[r * columns + column];
    return sum;
}

static int64_t table_sum(const int64_t *table, int64_t rows, int64_t columns) {
    return row_sum(table, 0, rows * columns);
}

/* H = log n - (1/n) sum c log c: no division before the logarithm, so equal tables give equal bits. */
static double entropy_of_rows(const int64_t *table, int64_t rows, int64_t columns, double n) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++)
        sum += plogp((double)row_sum(table, r, columns));
    return log(n) - sum / n;
}

static double entropy_of_columns(const int64_t *table, int64_t rows, int64_t columns, double n) {
    double sum = 0;
    for (int64_t c = 0; c < columns; c++)
        sum += plogp((double)column_sum(table, rows, columns, c));
    return log(n) - sum / n;
}

static double joint_entropy(const int64_t *table, int64_t cells, double n) {
    double sum = 0;
    for (int64_t i = 0; i < cells; i++)
        sum += plogp((double)table[i]);
    return log(n) - sum / n;
}

double gmal_mutual_information(const int64_t *table, int64_t rows, int64_t columns) {
    const double n = (double)table_sum(table, rows, columns);
    if (!(n > 0))
        return 0;
    const double i = entropy_of_rows(table, rows, columns, n) + entropy_of_columns(table, rows, columns, n) -
                     joint_entropy(table, rows * columns, n);
    return i > 0 ? i : 0; /* rounding */
}

double gmal_nmi(const int64_t *table, int64_t rows, int64_t columns) {
    const double n = (double)table_sum(table, rows, columns);
    if (!(n > 0))
        return 1;
    const double a = entropy_of_rows(table, rows, columns, n), b = entropy_of_columns(table, rows, columns, n);
    if (!(a > 1e-14) && !(b > 1e-14))
        return 1;
    return gmal_mutual_information(table, rows, columns) / ((a + b) / 2);
}

static int64_t commonest(const int64_t *table, int64_t row, int64_t columns) {
    int64_t best = 0;
    for (int64_t c = 1; c < columns; c++)
        if (table[row * columns + c] > table[row * columns + best])
            best = c;
    return best;
}

double gmal_purity(const int64_t *table, int64_t rows, int64_t columns) {
    const int64_t n = table_sum(table, rows, columns);
    int64_t right = 0;
    if (n == 0)
        return 0;
    for (int64_t r = 0; r < rows; r++)
        right += table[r * columns + commonest(table, r, columns)];
    return (double)right / (double)n;
}

void gmal_column_purity(const int64_t *table, int64_t rows, int64_t columns, double *purity) {
    for (int64_t c = 0; c < columns; c++)
        purity[c] = 0;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t c = commonest(table, r, columns);
        purity[c] += (double)table[r * columns + c];
    }
    for (int64_t c = 0; c < columns; c++) {
        const int64_t n = column_sum(table, rows, columns, c);
        purity[c] = n > 0 ? purity[c] / (double)n : NAN;
    }
}

void gmal_contingency(const uint16_t *first, const int32_t *second, int64_t count, int64_t rows, int64_t columns,
                      int64_t *table) {
    memset(table, 0, (size_t)(rows * columns) * sizeof *table);
    for (int64_t i = 0; i < count; i++)
        if (first[i] < rows && second[i] >= 0 && second[i] < columns)
            table[first[i] * columns + second[i]]++;
}

void gmal_shuffle(int32_t *labels, int64_t count, uint64_t seed) {
    const uint64_t key = gmal_key(seed, 0x73687566u);
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = (int64_t)(gmal_uniform(key, (uint64_t)i) * (double)(i + 1));
        const int64_t other = j > i ? i : j;
        const int32_t swap = labels[i];
        labels[i] = labels[other];
        labels[other] = swap;
    }
}
