#include "support/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

tst_rng tst_rng_start(const char *test) {
    const char *env = getenv("GMA_TEST_SEED");
    const uint64_t seed = env && *env ? strtoull(env, NULL, 0) : 20260618u;
    printf("seed %llu; repeat with: GMA_TEST_SEED=%llu %s\n", (unsigned long long)seed, (unsigned long long)seed, test);
    return (tst_rng){seed};
}

uint64_t tst_rng_next(tst_rng *r) {
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double tst_uniform(tst_rng *r) { return (double)(tst_rng_next(r) >> 11) * 0x1p-53; }

double tst_normal(tst_rng *r) {
    const double u = 1 - tst_uniform(r), v = tst_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

int64_t tst_below(tst_rng *r, int64_t n) { return (int64_t)(tst_uniform(r) * (double)n); }
