/* Our product where it is cut into pieces and tasks, what runs behind it, and the MLP that does so. */
#include "support/check.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/matmul.h"
#include "layers/rng.h"

static float *values(int64_t n, uint64_t key) {
    float *p = malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(2 * gmal_uniform(key, (uint64_t)i) - 1);
    return p;
}

/* Several pieces in both directions, more threads than rows of tasks: right, and the same bits for any number of threads. */
static void test_pieces(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{40, 1100, 700}, {600, 70, 1030}, {101, 513, 1025}, {7, 2049, 257}};
    static const int threads[] = {1, 2, 3, 8, 21};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int form = 0; form < 4; form++) {
            const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            const int ta = form & 1, tb = form >> 1;
            float *a = values(m * k, 1), *b = values(k * n, 2), *old = values(m * n, 3), *first = values(m * n, 4), *c = values(m * n, 5);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                float *to = t == 0 ? first : c;
                memcpy(to, old, (size_t)(m * n) * sizeof *to);
                TST_OK(gmal_matmul_own_f32(ta, tb, m, n, k, 1, a, ta ? m : k, b, tb ? k : n, 1, to, n, threads[t]));
                if (t > 0) assert_memory_equal(first, c, (size_t)(m * n) * sizeof *c);
            }
            for (int64_t at = 0; at < 997; at++) { /* entries all over C */
                const int64_t i = at * 7919 % m, j = at * 104729 % n;
                double sum = (double)old[i * n + j], size = 1;
                for (int64_t p = 0; p < k; p++) {
                    const double x = (double)a[ta ? p * m + i : i * k + p] * (double)b[tb ? j * k + p : p * n + j];
                    sum += x;
                    size += fabs(x);
                }
                TST_CLOSE((double)first[i * n + j], sum, 2 * (double)FLT_EPSILON * ((double)k + 2) * size);
            }
            free(a);
            free(b);
            free(old);
            free(first);
            free(c);
        }
}

typedef struct counted {
    const float *c;
    float *to;
    int64_t ld;
} counted;

static void add_part(const void *context, int64_t i, int64_t m, int64_t j, int64_t n) {
    const counted *p = context;
    for (int64_t r = i; r < i + m; r++)
        for (int64_t q = j; q < j + n; q++) p->to[r * p->ld + q] += p->c[r * p->ld + q];
}

/* Every entry once, and when it is final. */
static void test_after(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{40, 1100, 700}, {600, 70, 1030}, {101, 513, 0}, {1, 1, 1}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int threads = 1; threads <= 9; threads += 4) {
            const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            float *a = values(m * k + 1, 1), *b = values(k * n + 1, 2), *c = values(m * n, 3), *to = calloc((size_t)(m * n), sizeof *to);
            const counted p = {c, to, n};
            const gmal_after after = {add_part, &p};
            assert_non_null(to);
            TST_OK(gmal_matmul_then_f32(0, 0, m, n, k, 1, a, k, b, n, 0, c, n, &after, threads));
            assert_memory_equal(c, to, (size_t)(m * n) * sizeof *c);
            free(a);
            free(b);
            free(c);
            free(to);
        }
}

/* The MLP's halves are the product and the activation, bit for bit. */
static void test_mlp(void **state) {
    (void)state;
    enum { R = 130, C = 70, N = 600 };
    for (int kind = GMAL_MLP_GELU; kind <= GMAL_MLP_SWIGLU; kind++) {
        const int64_t H = kind == GMAL_MLP_GELU ? N : 2 * N;
        float *x = values(R * C, 1), *up = values(H * C, 2), *h = values(R * H, 3), *h2 = values(R * H, 4), *a = values(R * N, 5);
        float *a2 = values(R * N, 6), *down = values(C * N, 7), *dy = values(R * C, 8), *da = values(R * N, 9);
        float *dh = values(R * H, 10), *dh2 = values(R * H, 11);
        TST_OK(gmal_matmul_f32(0, 1, R, H, C, 1, x, C, up, C, 0, h, H, 2));
        gmal_mlp_forward_f32(kind, h, a, R, N, 2);
        TST_OK(gmal_mlp_up_f32(kind, x, up, h2, a2, R, C, N, 2));
        assert_memory_equal(h, h2, (size_t)(R * H) * sizeof *h);
        assert_memory_equal(a, a2, (size_t)(R * N) * sizeof *a);
        TST_OK(gmal_matmul_f32(0, 0, R, N, C, 1, dy, C, down, N, 0, da, N, 2));
        gmal_mlp_backward_f32(kind, h, da, dh, R, N, 2);
        TST_OK(gmal_mlp_down_backward_f32(kind, dy, down, h, a, dh2, R, N, C, 2));
        assert_memory_equal(dh, dh2, (size_t)(R * H) * sizeof *dh);
        float *all[] = {x, up, h, h2, a, a2, down, dy, da, dh, dh2};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_after), cmocka_unit_test(test_mlp)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
