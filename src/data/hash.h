/* A 64-bit checksum of bytes that come in pieces: tells files apart and finds damage, not an adversary. The same on every
 * machine. Also the hash of the tables here. */
#ifndef GMA_DATA_HASH_H
#define GMA_DATA_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct gmal_hash {
    uint64_t h, word, size;
} gmal_hash;

static inline uint64_t gmal_hash_mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
    return h ^ h >> 29;
}

static inline void gmal_hash_add(gmal_hash *x, const void *data, size_t n) {
    const unsigned char *p = data;
    size_t i = 0;
    for (; i < n && x->size % 8; i++) { /* up to a whole word */
        x->word |= (uint64_t)p[i] << 8 * (x->size % 8);
        if (++x->size % 8 == 0) {
            x->h = gmal_hash_mix(x->h, x->word);
            x->word = 0;
        }
    }
    for (; i + 8 <= n; i += 8, x->size += 8) {
        uint64_t w = 0;
        for (unsigned j = 0; j < 8; j++) w |= (uint64_t)p[i + j] << 8 * j;
        x->h = gmal_hash_mix(x->h, w);
    }
    for (; i < n; i++, x->size++) x->word |= (uint64_t)p[i] << 8 * (x->size % 8);
}

static inline uint64_t gmal_hash_end(const gmal_hash *x) {
    const uint64_t h = gmal_hash_mix(x->size % 8 ? gmal_hash_mix(x->h, x->word) : x->h, x->size);
    return h ^ h >> 32;
}

static inline uint64_t gmal_hash_of(const void *data, size_t n) {
    gmal_hash x = {0x9e3779b97f4a7c15u, 0, 0};
    gmal_hash_add(&x, data, n);
    return gmal_hash_end(&x);
}

#endif
