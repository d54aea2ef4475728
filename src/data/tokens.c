#include "data/tokens.h"

#include <string.h>

/* Beyond this much, memory may be too dear and the file is mapped. */
static const size_t most_copied = (size_t)1 << 30;

static gma_status check(const char *path, const gmal_tokens *t, int64_t vocab) {
    if (t->file.size % (size_t)t->width)
        return gma_fail(GMA_ERR_FORMAT, "%s: has an odd number of bytes (%lld), token ids take two each", path,
                        (long long)t->file.size);
    if (t->width == 1 && vocab >= 256) return GMA_OK;
    for (int64_t i = 0; i < t->count; i++)
        if (gmal_token(t, i) >= vocab)
            return gma_fail(GMA_ERR_FORMAT, "%s: token id %d at byte %lld, the vocabulary has %lld", path,
                            (int)gmal_token(t, i), (long long)(i * t->width), (long long)vocab);
    return GMA_OK;
}

gma_status gmal_tokens_open(const char *path, int width, int64_t vocab, gmal_tokens *t) {
    memset(t, 0, sizeof *t);
    t->width = width;
    gma_status s = gmal_file_open(path, most_copied, &t->file);
    if (s == GMA_OK) {
        t->bytes = t->file.bytes;
        t->count = (int64_t)(t->file.size / (size_t)width);
        s = check(path, t, vocab);
    }
    if (s != GMA_OK) gmal_tokens_close(t);
    return s;
}

void gmal_tokens_close(gmal_tokens *t) {
    gmal_file_close(&t->file);
    t->bytes = NULL;
}

uint64_t gmal_span_checksum(const gmal_span *span) {
    const gmal_tokens *t = span->tokens;
    const unsigned char *p = t->bytes + span->begin * t->width;
    const uint64_t n = (uint64_t)((span->end - span->begin) * t->width);
    uint64_t h = n ^ UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t at = 0; at < n; at += 8) {
        uint64_t word = 0;
        for (unsigned i = 0; i < 8 && at + i < n; i++) word |= (uint64_t)p[at + i] << 8 * i;
        h = (h ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
        h ^= h >> 29;
    }
    return h;
}

void gmal_tokens_window(const gmal_tokens *t, int64_t at, int64_t n, int32_t *x, int32_t *y) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = gmal_token(t, at + i);
        y[i] = gmal_token(t, at + i + 1);
    }
}
