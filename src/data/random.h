/* Whole numbers drawn one after the other from a key; integers only, so the same on every machine. */
#ifndef GMA_DATA_RANDOM_H
#define GMA_DATA_RANDOM_H

#include "layers/rng.h"

typedef struct gmal_draws {
    uint64_t key, next;
} gmal_draws;

/* Uniform in 0..n-1, n > 0. What would favour some numbers is drawn again. */
static inline uint64_t gmal_below(gmal_draws *d, uint64_t n) {
    const uint64_t spare = (UINT64_MAX % n + 1) % n; /* 2^64 mod n */
    uint64_t x;
    do x = gmal_random(d->key, d->next++);
    while (x > UINT64_MAX - spare);
    return x % n;
}

#endif
