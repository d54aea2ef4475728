/* Counter-based random numbers: the value at (key, index) is a pure function of the two, so a resumed run draws what an
 * uninterrupted one would, and threads need no common state. The mix is splitmix64's finaliser, applied twice with the
 * key in between. */
#ifndef GMA_LAYERS_RNG_H
#define GMA_LAYERS_RNG_H

#include <stdint.h>

static inline uint64_t gmal_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t gmal_random(uint64_t key, uint64_t index) { return gmal_mix64(gmal_mix64(key) ^ gmal_mix64(index)); }

/* Uniform in (0, 1), never 0 or 1. */
static inline double gmal_uniform(uint64_t key, uint64_t index)
{
    return ((double)(gmal_random(key, index) >> 11) + 0.5) * 0x1p-53;
}

/* A key for one use out of a parent key: dropout of layer 3 in step 17, say. */
static inline uint64_t gmal_key(uint64_t parent, uint64_t what) { return gmal_random(parent ^ UINT64_C(0x5851f42d4c957f2d), what); }

/* Dropout runs once an element in the hot loop, hence 32 bits and one short mix. */
static inline uint32_t gmal_hash32(uint32_t key, uint32_t index)
{
    uint32_t x = index * UINT32_C(0x9e3779b1) ^ key;
    x = (x ^ (x >> 16)) * UINT32_C(0x7feb352d);
    x = (x ^ (x >> 15)) * UINT32_C(0x846ca68b);
    return x ^ (x >> 16);
}

#endif
