/* Tokens of a file: bytes, or 16-bit little-endian ids. Files up to 1 GiB are read into memory, larger ones mapped. */
#ifndef GMA_DATA_TOKENS_H
#define GMA_DATA_TOKENS_H

#include "data/file.h"

typedef struct gmal_tokens {
    gmal_file file;
    const unsigned char *bytes; /* of the first token */
    int64_t count; /* tokens */
    int width; /* bytes of a token, 1 or 2 */
} gmal_tokens;

/* A range of them: the training or the validation part. */
typedef struct gmal_span {
    const gmal_tokens *tokens;
    int64_t begin, end;
} gmal_span;

/* Opens the file and checks every id against vocab: the first bad one is named with its byte offset. Errors: IO (missing,
 * not a regular file), FORMAT (empty; odd number of bytes for ids of two bytes; id >= vocab). */
gma_status gmal_tokens_open(const char *path, int width, int64_t vocab, gmal_tokens *tokens);
void gmal_tokens_close(gmal_tokens *tokens);

static inline int32_t gmal_token(const gmal_tokens *t, int64_t i) {
    return t->width == 1 ? t->bytes[i] : t->bytes[2 * i] | t->bytes[2 * i + 1] << 8;
}

/* Tells two files of the same length apart (not against an adversary); the same on every machine. */
uint64_t gmal_span_checksum(const gmal_span *span);

/* x = tokens at..at+n-1 of the file, y = the one after each. at + n < count. */
void gmal_tokens_window(const gmal_tokens *t, int64_t at, int64_t n, int32_t *x, int32_t *y);

/* How many whole windows of n inputs and n targets a span holds: (length - 1) / n. */
int64_t gmal_span_windows(const gmal_span *span, int64_t n);

/* Where the `sample`-th window of training starts. Windows do not overlap within an epoch and come in an order drawn from
 * (seed, epoch); each is used once before the next epoch. Later epochs shift all windows by a drawn amount, as far as the
 * tokens left over at the end allow, so that they do not always break at the same places. A pure function: resuming needs
 * nothing but the number of the next sample. There must be at least one window. */
int64_t gmal_order_window(const gmal_span *span, int64_t n, uint64_t seed, int64_t sample);

/* n-gram tables, the baselines: nats per token on `test`, every target token of it with its predecessors inside `test`,
 * counts of `train` with `added` to each. order 2: p(b|a); 3: p(c|a,b). Bytes only. */
gma_status gmal_ngram_loss(const gmal_span *train, const gmal_span *test, int order, double added, double *nats);

#endif
