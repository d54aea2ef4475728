/* How much one labelling of tokens says about another: entropies and normalised mutual information in nats, purity.
 * Counts come as a contingency table n (rows, columns), row-major: n[r][c] tokens have label r in the first labelling
 * and label c in the second. Nothing here depends on the order of the tokens. */
#ifndef GMA_INSPECT_INFORMATION_H
#define GMA_INSPECT_INFORMATION_H

#include <stdint.h>

/* -sum p log p of weights >= 0 with p = w / sum w; 0 when they sum to 0. */
double gmal_entropy(const double *weights, int64_t count);

/* The same by log(count): 1 = all used alike. count = 1 gives 0. */
double gmal_normalised_entropy(const double *weights, int64_t count);

/* I(rows; columns) of the table; exact for tables of up to 2^53 tokens. */
double gmal_mutual_information(const int64_t *table, int64_t rows, int64_t columns);

/* I by the arithmetic mean of the two entropies (Strehl & Ghosh 2002; scikit-learn's default). Two constant labellings
 * give 1, as there. */
double gmal_nmi(const int64_t *table, int64_t rows, int64_t columns);

/* sum_r max_c n_rc / n: how often the commonest column of a row is right. 0 for an empty table. */
double gmal_purity(const int64_t *table, int64_t rows, int64_t columns);

/* Per column: the share of its tokens that lie in rows whose commonest column it is (the first of equals). NaN for a
 * column without tokens. */
void gmal_column_purity(const int64_t *table, int64_t rows, int64_t columns, double *purity);

/* table (rows, columns) of two sequences of labels; labels outside their range are left out. Overwrites. */
void gmal_contingency(const uint16_t *first, const int32_t *second, int64_t count, int64_t rows, int64_t columns,
                      int64_t *table);

/* Fisher-Yates with a generator of its own: the same permutation of (seed, count) everywhere. */
void gmal_shuffle(int32_t *labels, int64_t count, uint64_t seed);

#endif
