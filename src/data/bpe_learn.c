/* Learning merges. The pieces of the text are counted once; then the most frequent pair is merged in every piece that holds
 * it, and the counts of the pairs around it follow. Counts of a pair only fall once it exists, so a heap whose entries are
 * looked at again when they come up is enough. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

typedef struct pair {
    int32_t left, right;
    int64_t count;
    int32_t *where; /* pieces that hold it, or held it */
    int64_t where_count, where_room;
} pair;

typedef struct entry {
    int64_t count;
    int32_t pair;
} entry;

typedef struct learner {
    gma_tokenizer *t;
    gmal_strings pieces;
    int64_t *times; /* how often each piece is there */
    int64_t times_room;
    int32_t **tokens; /* of each piece */
    int32_t *lengths, *store;
    pair *pairs;
    int64_t pair_count, pair_room;
    gmal_pairs index; /* (left, right) -> number in pairs */
    entry *heap;
    int64_t heap_count, heap_room;
} learner;

/* ---- Counting pieces ------------------------------------------------------------------------------------------ */

static gma_status count_piece(void *context, const char *text, size_t n) {
    learner *l = context;
    int32_t i;
    const int64_t before = l->pieces.count;
    gma_status s = gmal_strings_add(&l->pieces, text, n, &i);
    if (s == GMA_OK) s = gmal_grow(&l->times, &l->times_room, l->pieces.count, sizeof *l->times);
    if (s != GMA_OK) return s;
    if (i == before) l->times[i] = 0;
    l->times[i]++;
    return GMA_OK;
}

static gma_status count_pieces(void *context, const char *text, size_t n, int final, size_t *used) {
    learner *l = context;
    return gmal_pretokenize(l->t->pre, text, n, final, used, count_piece, l);
}

/* ---- Pairs ---------------------------------------------------------------------------------------------------- */

/* More frequent first; of equals the lower ids. */
static int better(const learner *l, const entry *a, const entry *b) {
    const pair *x = &l->pairs[a->pair], *y = &l->pairs[b->pair];
    if (a->count != b->count) return a->count > b->count;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static gma_status push(learner *l, int32_t which) {
    const entry e = {l->pairs[which].count, which};
    const gma_status s = gmal_grow(&l->heap, &l->heap_room, l->heap_count + 1, sizeof *l->heap);
    if (s != GMA_OK) return s;
    int64_t i = l->heap_count++;
    for (; i > 0 && better(l, &e, &l->heap[(i - 1) / 2]); i = (i - 1) / 2) l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = e;
    return GMA_OK;
}

static entry pop(learner *l) {
    const entry top = l->heap[0], last = l->heap[--l->heap_count];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < l->heap_count; i = child) {
        if (child + 1 < l->heap_count && better(l, &l->heap[child + 1], &l->heap[child])) child++;
        if (!better(l, &l->heap[child], &last)) break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = last;
    return top;
}

/* The pair (left, right) is there `by` times more in piece i (or less). listed: i is among the pieces of the pair already. */
static gma_status change(learner *l, int32_t left, int32_t right, int64_t by, int32_t i, int listed) {
    int32_t k;
    gma_status s = gmal_pairs_add(&l->index, gmal_pair(left, right), (int32_t)l->pair_count, &k);
    if (s == GMA_OK && k == l->pair_count) {
        s = gmal_grow(&l->pairs, &l->pair_room, l->pair_count + 1, sizeof *l->pairs);
        if (s == GMA_OK) l->pairs[l->pair_count++] = (pair){.left = left, .right = right};
    }
    if (s != GMA_OK) return s;
    pair *p = &l->pairs[k];
    p->count += by;
    if (listed || (p->where_count && p->where[p->where_count - 1] == i)) return GMA_OK;
    s = gmal_grow(&p->where, &p->where_room, p->where_count + 1, sizeof *p->where);
    if (s == GMA_OK) p->where[p->where_count++] = i;
    return s;
}

/* All pairs of piece i, once more (+1) or less (-1). Only those with `fresh` in them (-1: all) need listing. */
static gma_status change_all(learner *l, int32_t i, int64_t sign, int32_t fresh) {
    gma_status s = GMA_OK;
    for (int32_t j = 0; j + 1 < l->lengths[i] && s == GMA_OK; j++) {
        const int32_t a = l->tokens[i][j], b = l->tokens[i][j + 1];
        s = change(l, a, b, sign * l->times[i], i, sign < 0 || (fresh >= 0 && a != fresh && b != fresh));
    }
    return s;
}

static gma_status prepare(learner *l) {
    const int64_t n = l->pieces.count;
    l->tokens = malloc((size_t)(n + 1) * sizeof *l->tokens);
    l->lengths = malloc((size_t)(n + 1) * sizeof *l->lengths);
    l->store = malloc((l->pieces.size + 1) * sizeof *l->store);
    if (!l->tokens || !l->lengths || !l->store) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to learn merges");
    gma_status s = GMA_OK;
    for (int64_t i = 0; i < n && s == GMA_OK; i++) {
        size_t size;
        const char *text = gmal_string(&l->pieces, i, &size);
        if (size > INT32_MAX) return gma_fail(GMA_ERR_UNSUPPORTED, "a piece of text longer than 2^31 bytes");
        l->tokens[i] = l->store + l->pieces.start[i];
        l->lengths[i] = (int32_t)size;
        for (size_t j = 0; j < size; j++) l->tokens[i][j] = l->t->byte_id[(unsigned char)text[j]];
        s = change_all(l, (int32_t)i, 1, -1);
    }
    for (int64_t k = 0; k < l->pair_count && s == GMA_OK; k++) s = push(l, (int32_t)k);
    return s;
}

/* ---- Merging -------------------------------------------------------------------------------------------------- */

static gma_status merge_in(learner *l, int32_t i, int32_t left, int32_t right, int32_t product) {
    int32_t *x = l->tokens[i], n = l->lengths[i], to = 0, found = 0;
    for (int32_t j = 0; j + 1 < n; j++) found |= x[j] == left && x[j + 1] == right;
    if (!found) return GMA_OK;
    gma_status s = change_all(l, i, -1, -1);
    for (int32_t j = 0; j < n; j++) {
        const int both = j + 1 < n && x[j] == left && x[j + 1] == right;
        x[to++] = both ? product : x[j];
        j += both;
    }
    l->lengths[i] = to;
    return s == GMA_OK ? change_all(l, i, 1, product) : s;
}

/* The next merge, or none left (*product stays -1). A pair whose token exists already, made of other parts, is passed over:
 * gmal_bpe_parse would refuse it. */
static gma_status next_merge(learner *l, int32_t *product) {
    while (l->heap_count > 0) {
        const entry e = pop(l);
        pair *p = &l->pairs[e.pair];
        if (p->count <= 0) continue;
        if (e.count != p->count) {
            const gma_status s = push(l, e.pair);
            if (s != GMA_OK) return s;
            continue;
        }
        size_t a, b;
        const char *left = gmal_string(&l->t->tokens, p->left, &a), *right = gmal_string(&l->t->tokens, p->right, &b);
        char *text = malloc(a + b);
        if (!text) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a token");
        memcpy(text, left, a);
        memcpy(text + a, right, b);
        const int64_t before = l->t->tokens.count;
        int32_t id;
        gma_status s = gmal_strings_add(&l->t->tokens, text, a + b, &id);
        free(text);
        if (s != GMA_OK) return s;
        if (id < before) continue;
        const pair now = *p; /* l->pairs may move */
        const int64_t first_new = l->pair_count;
        p->where = NULL;
        p->where_count = p->where_room = 0;
        s = gmal_bpe_merge(l->t, now.left, now.right, id);
        for (int64_t i = 0; i < now.where_count && s == GMA_OK; i++) s = merge_in(l, now.where[i], now.left, now.right, id);
        free(now.where);
        for (int64_t k = first_new; k < l->pair_count && s == GMA_OK; k++) s = push(l, (int32_t)k);
        *product = id;
        return s;
    }
    return GMA_OK;
}

static void clear(learner *l) {
    for (int64_t k = 0; k < l->pair_count; k++) free(l->pairs[k].where);
    free(l->pairs);
    free(l->heap);
    free(l->times);
    free(l->tokens);
    free(l->lengths);
    free(l->store);
    gmal_pairs_free(&l->index);
    gmal_strings_free(&l->pieces);
}

gma_status gmal_bpe_learn(const char *const *files, int count, int64_t vocab, gma_tokenizer **out) {
    learner l = {.t = gmal_tokenizer_alloc(GMA_TOKENIZER_BPE)};
    gma_status s = l.t ? gmal_pretokenizer_create(&l.t->pre) : GMA_ERR_OUT_OF_MEMORY;
    if (s == GMA_OK) s = gmal_bpe_bytes(l.t);
    for (int i = 0; i < count && s == GMA_OK; i++) s = gmal_read_text(files[i], count_pieces, &l);
    if (s == GMA_OK) s = prepare(&l);
    while (s == GMA_OK && l.t->tokens.count < vocab - 1) {
        int32_t product = -1;
        s = next_merge(&l, &product);
        if (s == GMA_OK && product < 0)
            s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: the text has pairs for a vocabulary of %lld, not of %lld", files[0],
                         (long long)l.t->tokens.count + 1, (long long)vocab);
    }
    if (s == GMA_OK) s = gmal_bpe_end_of_text(l.t);
    if (s == GMA_OK) gmal_tokenizer_seal(l.t);
    clear(&l);
    if (s != GMA_OK) gma_tokenizer_destroy(l.t);
    *out = s == GMA_OK ? l.t : NULL;
    return s;
}
