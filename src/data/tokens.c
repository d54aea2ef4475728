#include "data/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "data/token_file.h"
#include "data/tokenizer.h"

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

/* ---- Token files and text -------------------------------------------------------------------------------------- */

static gma_status open_token_file(const char *path, int width, int64_t vocab, const gma_tokenizer *tokenizer, gmal_tokens *t) {
    gma_token_info info = {.struct_size = sizeof info};
    gma_status s = gma_token_file_open(path, &t->token_file);
    if (s == GMA_OK) s = gma_token_file_info(t->token_file, &info);
    if (s != GMA_OK) return s;
    if (info.layout != GMA_TOKEN_STREAM)
        return gma_fail(GMA_ERR_UNSUPPORTED, "%s: holds sequences with %s, not one text", path,
                        info.layout == GMA_TOKEN_LABELS ? "classes" : "targets");
    if (info.vocab != vocab)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: has a vocabulary of %lld, the model one of %lld", path,
                        (long long)info.vocab, (long long)vocab);
    if (!tokenizer && width == 1 && info.tokenizer != GMA_TOKENIZER_BYTES)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: its tokens are not bytes, and the model reads bytes", path);
    if (tokenizer && info.tokenizer_hash != gma_tokenizer_hash(tokenizer))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: was made by another tokenizer than the model's", path);
    t->bytes = gmal_token_file_ids(t->token_file, &t->width, &t->count);
    return GMA_OK;
}

typedef struct encoding {
    const char *path;
    gmal_encoder *encoder;
    gma_token_list *list;
    int64_t offset;
} encoding;

static gma_status encode_block(void *context, const char *text, size_t n, int final, size_t *used) {
    encoding *e = context;
    const gma_status s = gmal_encode(e->encoder, e->path, e->offset, text, n, final, used, e->list);
    e->offset += (int64_t)*used;
    return s;
}

static gma_status open_text(const char *path, const gma_tokenizer *tokenizer, gmal_tokens *t) {
    encoding e = {.path = path, .list = &t->encoded};
    gma_status s = gmal_encoder_create(tokenizer, &e.encoder);
    if (s == GMA_OK) s = gmal_read_text(path, encode_block, &e);
    gmal_encoder_destroy(e.encoder);
    if (s == GMA_OK && t->encoded.count == 0) s = gma_fail(GMA_ERR_FORMAT, "%s: holds no tokens", path);
    if (s != GMA_OK) return s;
    /* The way gmal_token reads them, whatever this machine's own order of bytes. */
    unsigned char *bytes = (unsigned char *)t->encoded.ids;
    for (int64_t i = 0; i < t->encoded.count; i++) {
        const uint32_t id = (uint32_t)t->encoded.ids[i];
        for (int b = 0; b < 4; b++) bytes[4 * i + b] = (unsigned char)(id >> 8 * b);
    }
    t->bytes = bytes;
    t->width = 4;
    t->count = t->encoded.count;
    return GMA_OK;
}

gma_status gmal_tokens_open_for(const char *path, int width, int64_t vocab, const gma_tokenizer *tokenizer, gmal_tokens *t) {
    if (!gma_token_file_is(path) && !tokenizer) return gmal_tokens_open(path, width, vocab, t);
    memset(t, 0, sizeof *t);
    const gma_status s = gma_token_file_is(path) ? open_token_file(path, width, vocab, tokenizer, t) : open_text(path, tokenizer, t);
    if (s != GMA_OK) gmal_tokens_close(t);
    return s;
}

void gmal_count_text(const gmal_tokens *tokens, const gma_tokenizer *t, int64_t begin, int64_t end, int64_t *bytes,
                     int64_t *words) {
    int in_word = 0;
    *bytes = *words = 0;
    if (!t && tokens->width > 1) return;
    for (int64_t i = begin; i < end; i++) {
        const int32_t id = gmal_token(tokens, i);
        const char byte = (char)id, *text = &byte;
        size_t n = 1;
        if (t && !gma_tokenizer_token(t, id, &text, &n)) continue;
        *bytes += (int64_t)n;
        for (size_t k = 0; k < n; k++) {
            const int white = gmal_is_white((unsigned char)text[k]);
            *words += text[k] == '\n' || (!white && !in_word);
            in_word = !white;
        }
    }
}

void gmal_tokens_close(gmal_tokens *t) {
    gmal_file_close(&t->file);
    gma_token_file_close(t->token_file);
    gma_token_list_free(&t->encoded);
    t->token_file = NULL;
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
