/* Case I3: fork() after use. The child has no OpenMP threads; it must not wait for them, and gives the same bits. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gma/gma.h"
#include "support/check.h"

enum { H = 4, N = 300, R = 8, K = 16, D = 8, COUNT = H * N * D };

static float q[H * N * R], k[H * N * R], v[H * N * D], mu[H * K * R], omega[H * K * R], alpha[H * K];

static void fill(float *x, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
}

static gma_status run(float *o) { return gma_attention(q, k, v, mu, omega, alpha, o, 1, H, N, N, R, D, K, 1, 2); }

static void child_gives_the_same_bits(void **state) {
    (void)state;
    static float before[COUNT], after[COUNT];
    fill(q, H * N * R, 1);
    fill(k, H * N * R, 2);
    fill(v, H * N * D, 3);
    fill(mu, H * K * R, 4);
    fill(omega, H * K * R, 5);
    fill(alpha, H * K, 6);
    assert_int_equal(run(before), GMA_OK);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(60); /* ends a child that hangs; a sound one needs milliseconds */
        _exit(run(after) == GMA_OK && memcmp(before, after, sizeof before) == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    /* The parent's own threads are untouched. */
    assert_int_equal(run(after), GMA_OK);
    assert_memory_equal(before, after, sizeof before);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(child_gives_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
