#include "data/table.h"

#include <stdlib.h>
#include <string.h>

#include "data/hash.h"

static gma_status no_memory(void) { return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a table of tokens"); }

gma_status gmal_grow(void *array, int64_t *room, int64_t need, size_t element) {
    void **at = array, *bigger;
    if (need <= *room) return GMA_OK;
    int64_t next = *room < 16 ? 16 : *room;
    while (next < need) next += next / 2;
    if ((uint64_t)next > SIZE_MAX / element || !(bigger = realloc(*at, (size_t)next * element))) return no_memory();
    *at = bigger;
    *room = next;
    return GMA_OK;
}

/* ---- Strings -------------------------------------------------------------------------------------------------- */

static size_t slot_of(const gmal_strings *t, const char *text, size_t n) {
    size_t i = (size_t)gmal_hash_of(text, n) & (t->slot_count - 1);
    for (; t->slots[i] >= 0; i = (i + 1) & (t->slot_count - 1)) {
        size_t size;
        const char *s = gmal_string(t, t->slots[i], &size);
        if (size == n && (n == 0 || memcmp(s, text, n) == 0)) break;
    }
    return i;
}

int32_t gmal_strings_find(const gmal_strings *t, const char *text, size_t n) {
    return t->slot_count ? t->slots[slot_of(t, text, n)] : -1;
}

static gma_status widen(gmal_strings *t) {
    const size_t slots = t->slot_count ? 2 * t->slot_count : 256;
    int32_t *fresh = malloc(slots * sizeof *fresh);
    if (!fresh) return no_memory();
    memset(fresh, 0xff, slots * sizeof *fresh);
    free(t->slots);
    t->slots = fresh;
    t->slot_count = slots;
    for (int64_t i = 0; i < t->count; i++) {
        size_t n;
        const char *s = gmal_string(t, i, &n);
        t->slots[slot_of(t, s, n)] = (int32_t)i;
    }
    return GMA_OK;
}

gma_status gmal_strings_add(gmal_strings *t, const char *text, size_t n, int32_t *number) {
    gma_status s = GMA_OK;
    *number = gmal_strings_find(t, text, n);
    if (*number >= 0) return GMA_OK;
    if (t->count >= INT32_MAX - 1) return gma_fail(GMA_ERR_UNSUPPORTED, "more than 2^31 different tokens");
    if (2 * (size_t)t->count >= t->slot_count) s = widen(t);
    if (s == GMA_OK) s = gmal_grow(&t->start, &t->item_room, t->count + 2, sizeof *t->start);
    int64_t room = (int64_t)t->room;
    if (s == GMA_OK) s = gmal_grow(&t->bytes, &room, (int64_t)(t->size + n + 2), 1);
    if (s != GMA_OK) return s;
    t->room = (size_t)room;
    if (t->count == 0) {
        t->bytes[0] = ' ';
        t->start[0] = t->size = 1;
    }
    if (n) memcpy(t->bytes + t->size, text, n);
    t->size += n;
    t->bytes[t->size++] = ' ';
    const size_t slot = slot_of(t, text, n);
    t->start[++t->count] = t->size;
    *number = t->slots[slot] = (int32_t)t->count - 1;
    return GMA_OK;
}

void gmal_strings_clear(gmal_strings *t) {
    t->count = 0;
    t->size = 0;
    if (t->slots) memset(t->slots, 0xff, t->slot_count * sizeof *t->slots);
}

void gmal_strings_free(gmal_strings *t) {
    free(t->bytes);
    free(t->start);
    free(t->slots);
    memset(t, 0, sizeof *t);
}

/* ---- Pairs ---------------------------------------------------------------------------------------------------- */

static size_t pair_slot(const gmal_pairs *t, uint64_t pair) {
    const uint64_t h = gmal_hash_mix(UINT64_C(0x9e3779b97f4a7c15), pair);
    size_t i = (size_t)(h ^ h >> 32) & (t->slot_count - 1);
    while (t->keys[i] != UINT64_MAX && t->keys[i] != pair) i = (i + 1) & (t->slot_count - 1);
    return i;
}

int32_t gmal_pairs_find(const gmal_pairs *t, uint64_t pair) {
    if (!t->slot_count) return -1;
    const size_t i = pair_slot(t, pair);
    return t->keys[i] == pair ? t->values[i] : -1;
}

static gma_status widen_pairs(gmal_pairs *t) {
    gmal_pairs next = {.slot_count = t->slot_count ? 2 * t->slot_count : 1024, .count = t->count};
    next.keys = malloc(next.slot_count * sizeof *next.keys);
    next.values = malloc(next.slot_count * sizeof *next.values);
    if (!next.keys || !next.values) {
        gmal_pairs_free(&next);
        return no_memory();
    }
    memset(next.keys, 0xff, next.slot_count * sizeof *next.keys);
    for (size_t i = 0; i < t->slot_count; i++) {
        if (t->keys[i] == UINT64_MAX) continue;
        const size_t to = pair_slot(&next, t->keys[i]);
        next.keys[to] = t->keys[i];
        next.values[to] = t->values[i];
    }
    gmal_pairs_free(t);
    *t = next;
    return GMA_OK;
}

gma_status gmal_pairs_add(gmal_pairs *t, uint64_t pair, int32_t fresh, int32_t *value) {
    if (2 * t->count >= t->slot_count) {
        const gma_status s = widen_pairs(t);
        if (s != GMA_OK) return s;
    }
    const size_t i = pair_slot(t, pair);
    if (t->keys[i] != pair) {
        t->keys[i] = pair;
        t->values[i] = fresh;
        t->count++;
    }
    *value = t->values[i];
    return GMA_OK;
}

void gmal_pairs_free(gmal_pairs *t) {
    free(t->keys);
    free(t->values);
    memset(t, 0, sizeof *t);
}
