/* Byte-pair encoding of one piece: the most urgent merge first, the leftmost of equals. A heap of candidate pairs over a
 * linked list of tokens, so that a piece of any length takes n log n steps.
 *
 * Every merge makes a token that did not exist before it (gmal_bpe_parse sees to that), so a pair that holds the product
 * of a merge is less urgent than the merge itself, and taking one occurrence at a time gives what GPT-2's
 * "all occurrences, then look again" gives. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

typedef struct candidate {
    int32_t rank;
    int64_t at; /* the left token */
    int32_t left, right; /* ids when it was put in: stale when they changed */
} candidate;

struct gmal_bpe_work {
    int32_t *ids; /* of the nodes; -1: merged into the one before */
    int64_t *next, *before;
    int64_t room, next_room, before_room;
    candidate *heap;
    int64_t heap_count, heap_room;
};

void gmal_bpe_work_destroy(gmal_bpe_work *w) {
    if (!w) return;
    free(w->ids);
    free(w->next);
    free(w->before);
    free(w->heap);
    free(w);
}

static int sooner(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static gma_status push(const gma_tokenizer *t, gmal_bpe_work *w, int64_t at, int64_t right) {
    if (at < 0 || right < 0) return GMA_OK;
    const candidate c = {gmal_pairs_find(&t->ranks, gmal_pair(w->ids[at], w->ids[right])), at, w->ids[at], w->ids[right]};
    if (c.rank < 0) return GMA_OK;
    const gma_status s = gmal_grow(&w->heap, &w->heap_room, w->heap_count + 1, sizeof *w->heap);
    if (s != GMA_OK) return s;
    int64_t i = w->heap_count++;
    for (; i > 0 && sooner(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
    return GMA_OK;
}

static candidate pop(gmal_bpe_work *w) {
    const candidate top = w->heap[0], last = w->heap[--w->heap_count];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < w->heap_count; i = child) {
        if (child + 1 < w->heap_count && sooner(&w->heap[child + 1], &w->heap[child])) child++;
        if (!sooner(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static gma_status prepare(const gma_tokenizer *t, gmal_bpe_work *w, const char *text, int64_t n) {
    gma_status s = gmal_grow(&w->ids, &w->room, n, sizeof *w->ids);
    if (s == GMA_OK) s = gmal_grow(&w->next, &w->next_room, n, sizeof *w->next);
    if (s == GMA_OK) s = gmal_grow(&w->before, &w->before_room, n, sizeof *w->before);
    if (s != GMA_OK) return s;
    w->heap_count = 0;
    for (int64_t i = 0; i < n; i++) {
        w->ids[i] = t->byte_id[(unsigned char)text[i]];
        w->next[i] = i + 1 < n ? i + 1 : -1;
        w->before[i] = i - 1;
    }
    for (int64_t i = 0; i + 1 < n && s == GMA_OK; i++) s = push(t, w, i, i + 1);
    return s;
}

gma_status gmal_bpe_piece(const gma_tokenizer *t, gmal_bpe_work **work, const char *text, size_t n, gma_token_list *list) {
    if (n == 0) return GMA_OK;
    if (!*work && !(*work = calloc(1, sizeof **work))) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for merges");
    gmal_bpe_work *w = *work;
    gma_status s = prepare(t, w, text, (int64_t)n);
    while (s == GMA_OK && w->heap_count > 0) {
        const candidate c = pop(w);
        const int64_t right = w->next[c.at];
        if (w->ids[c.at] != c.left || right < 0 || w->ids[right] != c.right) continue;
        w->ids[c.at] = t->merges[c.rank].product;
        w->ids[right] = -1;
        w->next[c.at] = w->next[right];
        if (w->next[right] >= 0) w->before[w->next[right]] = c.at;
        s = push(t, w, w->before[c.at], c.at);
        if (s == GMA_OK) s = push(t, w, c.at, w->next[c.at]);
    }
    for (int64_t i = 0; i >= 0 && s == GMA_OK; i = w->next[i]) s = gmal_token_push(list, w->ids[i]);
    return s;
}
