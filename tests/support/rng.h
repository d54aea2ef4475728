/* Seeded random numbers for tests (splitmix64). The seed comes from GMA_TEST_SEED or is fixed, and is printed with the
 * command that repeats a run, so that a failure can be looked at again. */
#ifndef TEST_RNG_H
#define TEST_RNG_H

#include <stdint.h>

typedef struct tst_rng {
    uint64_t state;
} tst_rng;

/* Start a generator and print its seed; `test` is the name of the program for the line that repeats it. */
tst_rng tst_rng_start(const char *test);

uint64_t tst_rng_next(tst_rng *r);
double tst_uniform(tst_rng *r); /* [0, 1) */
double tst_normal(tst_rng *r);
int64_t tst_below(tst_rng *r, int64_t n); /* 0 .. n - 1 */

#endif
