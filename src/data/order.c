/* In which order windows and sequences are trained on. */
#include "data/sequences.h"
#include "data/tokens.h"
#include "layers/rng.h"

int64_t gmal_span_windows(const gmal_span *span, int64_t n) {
    const int64_t length = span->end - span->begin;
    return length < 1 ? 0 : (length - 1) / n;
}

/* A permutation of 0..count-1 without a table: four Feistel rounds on the next even number of bits, walked until the
 * result falls inside (fewer than four rounds of that on average). */
static uint64_t permute(uint64_t i, uint64_t count, uint64_t key) {
    unsigned half = 1;
    while (half < 32 && (UINT64_C(1) << (2 * half)) < count) half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 4; round++) {
            const uint64_t next = left ^ (gmal_random(gmal_key(key, round), right) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= count);
    return i;
}

int64_t gmal_order_window(const gmal_span *span, int64_t n, uint64_t seed, int64_t sample) {
    const int64_t count = gmal_span_windows(span, n), epoch = sample / count;
    const int64_t spare = span->end - span->begin - 1 - count * n; /* tokens no window reaches */
    const uint64_t key = gmal_key(seed, (uint64_t)epoch);
    const int64_t shift = epoch ? (int64_t)(gmal_random(key, UINT64_C(1) << 63) % (uint64_t)(spare + 1)) : 0;
    return span->begin + shift + n * (int64_t)permute((uint64_t)(sample % count), (uint64_t)count, key);
}

int64_t gmal_order_sequence(const gmal_sequence_span *span, uint64_t seed, int64_t sample) {
    const int64_t count = span->end - span->begin;
    return span->begin + (int64_t)permute((uint64_t)(sample % count), (uint64_t)count, gmal_key(seed, (uint64_t)(sample / count)));
}
