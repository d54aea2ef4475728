#include "data/pairs.h"

#include <stdlib.h>
#include <string.h>

#include "data/random.h"

enum { COPY, REVERSE, SORT, KINDS };
static const char *const names[KINDS] = {"copy", "reverse", "sort"};

gma_status gmal_pairs_kind(const char *name, int *kind) {
    for (*kind = 0; *kind < KINDS; (*kind)++)
        if (strcmp(name, names[*kind]) == 0) return GMA_OK;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                    "data: \"%s\" is none of the pairs that task seq2seq generates: copy, reverse, sort", name);
}

static int by_value(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int64_t begin(const gmal_pairs_of *of, int64_t index, gmal_draws *d) {
    *d = (gmal_draws){gmal_key(of->key, (uint64_t)index), 0};
    return of->least + (int64_t)gmal_below(d, (uint64_t)(of->most - of->least + 1));
}

int64_t gmal_pair_length(const gmal_pairs_of *of, int64_t index) {
    gmal_draws d;
    return begin(of, index, &d);
}

int64_t gmal_pair_draw(const gmal_pairs_of *of, int64_t index, int32_t *source, int32_t *target) {
    gmal_draws d;
    const int64_t n = begin(of, index, &d);
    for (int64_t i = 0; i < n; i++) source[i] = (int32_t)gmal_below(&d, (uint64_t)of->symbols);
    for (int64_t i = 0; i < n; i++) target[i] = source[of->kind == REVERSE ? n - 1 - i : i];
    if (of->kind == SORT) qsort(target, (size_t)n, sizeof *target, by_value);
    return n;
}

int64_t gmal_pair_frame(const gmal_pairs_of *of, int64_t index, int64_t room, int32_t *source, unsigned char *mask,
                        int32_t *tokens, int32_t *targets) {
    const int64_t vocab = of->symbols + GMAL_FRAME, n = gmal_pair_draw(of, index, source, targets);
    tokens[0] = gmal_begin_token(vocab);
    for (int64_t i = 0; i < n; i++) tokens[i + 1] = targets[i];
    targets[n] = gmal_end_token(vocab);
    for (int64_t i = 0; i < room; i++) mask[i] = i < n;
    for (int64_t i = n; i < room; i++) {
        source[i] = 0;
        tokens[i + 1] = 0;
        targets[i + 1] = -1;
    }
    return n;
}
