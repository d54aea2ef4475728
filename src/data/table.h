/* Two hash tables that grow: byte strings numbered from 0 in the order they came, and pairs of ids. */
#ifndef GMA_DATA_TABLE_H
#define GMA_DATA_TABLE_H

#include "gma/base.h"

typedef struct gmal_strings {
    char *bytes; /* all strings, a space before each */
    size_t size, room;
    size_t *start; /* count + 1 of them: string i is bytes[start[i]] .. bytes[start[i + 1] - 2] */
    int64_t count, item_room;
    int32_t *slots; /* number of a string, or -1 */
    size_t slot_count; /* a power of two */
} gmal_strings;

int32_t gmal_strings_find(const gmal_strings *t, const char *text, size_t n); /* -1: not there */
/* The number of a string, new or not. Adding may move bytes and start. */
gma_status gmal_strings_add(gmal_strings *t, const char *text, size_t n, int32_t *number);
void gmal_strings_clear(gmal_strings *t); /* no strings, the memory kept */
void gmal_strings_free(gmal_strings *t);

static inline const char *gmal_string(const gmal_strings *t, int64_t i, size_t *n) {
    *n = t->start[i + 1] - 1 - t->start[i];
    return t->bytes + t->start[i];
}

typedef struct gmal_pairs {
    uint64_t *keys; /* UINT64_MAX: free */
    int32_t *values;
    size_t slot_count, count;
} gmal_pairs;

static inline uint64_t gmal_pair(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }
int32_t gmal_pairs_find(const gmal_pairs *t, uint64_t pair); /* -1: not there */
/* Sets *value to the one that is there, or puts `fresh` in. */
gma_status gmal_pairs_add(gmal_pairs *t, uint64_t pair, int32_t fresh, int32_t *value);
void gmal_pairs_free(gmal_pairs *t);

/* realloc to at least `need` elements, by doubling. */
gma_status gmal_grow(void *array, int64_t *room, int64_t need, size_t element);

#endif
