/* Entropy, mutual information, purity, surface classes, eigenvalues, matching. */
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/classes.h"
#include "inspect/information.h"
#include "inspect/linalg.h"
#include "layers/rng.h"

static void test_entropy(void **state) {
    (void)state;
    const double even[] = {2, 2, 2, 2}, one[] = {0, 7, 0}, none[] = {0, 0}, two[] = {1, 3};
    TST_CLOSE(gmal_entropy(even, 4), log(4), 1e-15);
    TST_CLOSE(gmal_normalised_entropy(even, 4), 1, 1e-15);
    TST_CLOSE(gmal_entropy(one, 3), 0, 0);
    TST_CLOSE(gmal_entropy(none, 2), 0, 0);
    TST_CLOSE(gmal_entropy(two, 2), 2 * log(2) - 0.75 * log(3), 1e-15);
    TST_CLOSE(gmal_normalised_entropy(two, 1), 0, 0);
}

/* sum p_rc log (p_rc / (p_r p_c)), term by term. */
static double information_by_definition(const int64_t *table, int rows, int columns) {
    double n = 0, sum = 0;
    for (int i = 0; i < rows * columns; i++)
        n += (double)table[i];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            double pr = 0, pc = 0;
            const double p = (double)table[r * columns + c] / n;
            for (int j = 0; j < columns; j++)
                pr += (double)table[r * columns + j] / n;
            for (int j = 0; j < rows; j++)
                pc += (double)table[j * columns + c] / n;
            if (p > 0)
                sum += p * log(p / (pr * pc));
        }
    return sum;
}

static void test_information(void **state) {
    (void)state;
    const int64_t table[] = {5, 1, 0, 2, 7, 3}, same[] = {4, 0, 0, 6}, apart[] = {1, 2, 2, 4}, constant[] = {9};
    TST_CLOSE(gmal_mutual_information(table, 2, 3), information_by_definition(table, 2, 3), 1e-14);
    TST_CLOSE(gmal_nmi(same, 2, 2), 1, 1e-14);
    TST_CLOSE(gmal_nmi(apart, 2, 2), 0, 1e-14);
    TST_CLOSE(gmal_nmi(constant, 1, 1), 1, 0);
    /* H(rows) of 6, 12 and H(columns) of 7, 8, 3 out of 18 */
    const double n = 18, rows = log(n) - (6 * log(6) + 12 * log(12)) / n,
                 columns = log(n) - (7 * log(7) + 8 * log(8) + 3 * log(3)) / n;
    TST_CLOSE(gmal_nmi(table, 2, 3), information_by_definition(table, 2, 3) / ((rows + columns) / 2), 1e-14);
}

static void test_purity(void **state) {
    (void)state;
    const int64_t table[] = {5, 1, 0, 2, 7, 3};
    double columns[3];
    TST_CLOSE(gmal_purity(table, 2, 3), 12.0 / 18, 1e-15);
    gmal_column_purity(table, 2, 3, columns);
    TST_CLOSE(columns[0], 5.0 / 7, 1e-15);
    TST_CLOSE(columns[1], 7.0 / 8, 1e-15);
    TST_CLOSE(columns[2], 0, 0);
    const int64_t empty[] = {3, 0};
    gmal_column_purity(empty, 1, 2, columns);
    assert_true(isnan(columns[1]));
}

/* Independent labels have mutual information in any finite sample; shuffling must give that level, and keep the counts.
 */
static void test_shuffle(void **state) {
    (void)state;
    enum { N = 20000, K = 8, C = 5 };
    uint16_t *first = malloc(N * sizeof *first);
    int32_t *second = malloc(N * sizeof *second);
    int64_t table[K * C], counts[C] = {0};
    assert_true(first && second);
    for (int i = 0; i < N; i++) {
        first[i] = (uint16_t)(gmal_random(1, (uint64_t)i) % K);
        second[i] = first[i] % C;
        counts[second[i]]++;
    }
    gmal_contingency(first, second, N, K, C, table);
    assert_true(gmal_nmi(table, K, C) > 0.8);
    gmal_shuffle(second, N, 7);
    gmal_contingency(first, second, N, K, C, table);
    /* 2 N I is chi-squared with (K-1)(C-1) = 28 degrees of freedom: below 70 with probability 1 - 2e-5 */
    assert_true(2 * N * gmal_mutual_information(table, K, C) < 70);
    for (int i = 0; i < N; i++)
        counts[second[i]]--;
    for (int c = 0; c < C; c++)
        assert_int_equal(counts[c], 0);
    free(first);
    free(second);
}

static void test_classes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        gmal_surface want;
    } cases[] = {
        {" ", GMAL_SURFACE_SPACE},
        {"\n\t", GMAL_SURFACE_SPACE},
        {"", GMAL_SURFACE_SPACE},
        {".", GMAL_SURFACE_PUNCTUATION},
        {" --", GMAL_SURFACE_PUNCTUATION},
        {"1,024", GMAL_SURFACE_DIGITS},
        {" 1939", GMAL_SURFACE_DIGITS},
        {"1st", GMAL_SURFACE_OTHER},
        {" the", GMAL_SURFACE_FUNCTION},
        {"The", GMAL_SURFACE_FUNCTION},
        {"Paris", GMAL_SURFACE_CAPITALISED},
        {"walk", GMAL_SURFACE_OTHER},
        {"themselvesandmuchmore", GMAL_SURFACE_OTHER},
        {"\xff", GMAL_SURFACE_OTHER},
        {"\xc3\x89t\xc3\xa9", GMAL_SURFACE_OTHER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const gmal_surface got = gmal_surface_class(cases[i].text, strlen(cases[i].text), 0);
        if (got != cases[i].want)
            tst_fail("\"%s\" is %s", cases[i].text, gmal_surface_name(got));
    }
    assert_int_equal(gmal_surface_class("<unk>", 5, 0), GMAL_SURFACE_OTHER);
    assert_int_equal(gmal_surface_class("a\0b", 3, 0), GMAL_SURFACE_OTHER);
    assert_int_equal(gmal_surface_class("a", 1, 0), GMAL_SURFACE_FUNCTION);
    assert_int_equal(gmal_surface_class("a", 1, 1), GMAL_SURFACE_OTHER);
    assert_int_equal(gmal_surface_class("I", 1, 1), GMAL_SURFACE_CAPITALISED);
    assert_null(gmal_surface_name(GMAL_SURFACE_COUNT));
}

static void random_matrix(double *a, int cells, uint64_t key) {
    for (int i = 0; i < cells; i++)
        a[i] = 2 * gmal_uniform(key, (uint64_t)i) - 1;
}

static void test_eigen(void **state) {
    (void)state;
    enum { N = 23 };
    double a[N * N], copy[N * N], values[N], vectors[N * N];
    random_matrix(a, N * N, 3);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++)
            a[i * N + j] = a[j * N + i];
    memcpy(copy, a, sizeof a);
    TST_OK(gmal_symmetric_eigen(a, N, values, vectors));
    for (int v = 0; v < N; v++) {
        if (v > 0)
            assert_true(values[v] <= values[v - 1]);
        for (int i = 0; i < N; i++) { /* A x = lambda x */
            double sum = 0;
            for (int j = 0; j < N; j++)
                sum += copy[i * N + j] * vectors[v * N + j];
            TST_CLOSE(sum, values[v] * vectors[v * N + i], 1e-12);
        }
        for (int w = 0; w <= v; w++) {
            double dot = 0;
            for (int j = 0; j < N; j++)
                dot += vectors[v * N + j] * vectors[w * N + j];
            TST_CLOSE(dot, v == w, 1e-12);
        }
    }
    double one[] = {3}, value;
    TST_OK(gmal_symmetric_eigen(one, 1, &value, NULL));
    TST_CLOSE(value, 3, 0);
}

/* Against the product itself: its squared singular values are the eigenvalues of M M^T. */
static void test_singular_values(void **state) {
    (void)state;
    enum { N = 12, K = 5 };
    double q[N * K], k[N * K], gq[K * K] = {0}, gk[K * K] = {0}, m[N * N] = {0}, mm[N * N] = {0}, values[K], want[N];
    random_matrix(q, N * K, 5);
    random_matrix(k, N * K, 6);
    for (int n = 0; n < N; n++)
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++) {
                gq[i * K + j] += q[n * K + i] * q[n * K + j];
                gk[i * K + j] += k[n * K + i] * k[n * K + j];
            }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int c = 0; c < K; c++)
                m[i * N + j] += q[i * K + c] * k[j * K + c];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int c = 0; c < N; c++)
                mm[i * N + j] += m[i * N + c] * m[j * N + c];
    TST_OK(gmal_symmetric_eigen(mm, N, want, NULL));
    TST_OK(gmal_product_singular_values(gq, gk, K, values));
    for (int i = 0; i < K; i++)
        TST_CLOSE(values[i], sqrt(want[i]), 1e-10);
    const double equal[] = {2, 2, 2}, single[] = {5, 0}, none[] = {0, 0};
    TST_CLOSE(gmal_effective_rank(equal, 3), 3, 1e-14);
    TST_CLOSE(gmal_effective_rank(single, 2), 1, 1e-14);
    TST_CLOSE(gmal_effective_rank(none, 2), 0, 0);
}

static double best_by_trying(const double *score, int n, int row, int used) {
    double best = row == n ? 0 : -INFINITY;
    for (int c = 0; c < n && row < n; c++)
        if (!(used >> c & 1))
            best = fmax(best, score[row * n + c] + best_by_trying(score, n, row + 1, used | 1 << c));
    return best;
}

static void test_matching(void **state) {
    (void)state;
    for (int n = 1; n <= 7; n++)
        for (uint64_t key = 0; key < 20; key++) {
            double score[49], sum = 0;
            int column[7], used = 0;
            random_matrix(score, n * n, 100 + key);
            if (key % 4 == 0) /* ties */
                for (int i = 0; i < n * n; i++)
                    score[i] = floor(3 * score[i]);
            TST_OK(gmal_best_matching(score, n, column));
            for (int i = 0; i < n; i++) {
                assert_in_range(column[i], 0, n - 1);
                used |= 1 << column[i];
                sum += score[i * n + column[i]];
            }
            assert_int_equal(used, (1 << n) - 1);
            TST_CLOSE(sum, best_by_trying(score, n, 0, 0), 1e-12);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entropy),         cmocka_unit_test(test_information), cmocka_unit_test(test_purity),
        cmocka_unit_test(test_shuffle),         cmocka_unit_test(test_classes),     cmocka_unit_test(test_eigen),
        cmocka_unit_test(test_singular_values), cmocka_unit_test(test_matching),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
