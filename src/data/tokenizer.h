/* Inside a tokenizer. */
#ifndef GMA_DATA_TOKENIZER_H
#define GMA_DATA_TOKENIZER_H

#include "data/table.h"
#include "gma/data.h"

typedef struct gmal_pretokenizer gmal_pretokenizer;

typedef struct gmal_merge {
    int32_t left, right, product;
} gmal_merge;

struct gma_tokenizer {
    gma_tokenizer_kind kind;
    int64_t vocab;
    uint64_t hash;
    gmal_strings tokens; /* WORDS, BPE: the bytes of each id */
    int32_t unk, eos; /* WORDS: their ids, -1 = none */
    int32_t byte_id[256]; /* BPE */
    gmal_merge *merges; /* BPE, the most urgent first */
    int64_t merge_count, merge_room;
    gmal_pairs ranks; /* (left, right) -> which merge */
    gmal_pretokenizer *pre;
};

gma_tokenizer *gmal_tokenizer_alloc(gma_tokenizer_kind kind); /* NULL after gma_fail */
void gmal_tokenizer_seal(gma_tokenizer *t); /* everything is in: unk, eos and hash follow */

/* The files of a tokenizer in memory. The second is NULL for WORDS. */
typedef struct gmal_blob {
    const char *name; /* "vocab.txt", "vocab.bpe", "encoder.json" */
    char *bytes;
    size_t size;
} gmal_blob;
enum { GMAL_TOKENIZER_BLOBS = 2 };
/* `where` is what messages call the file. The blobs that are written are malloc'ed, in blobs[0..*count-1]. */
gma_status gmal_words_parse(const char *where, const gmal_blob *vocab, gma_tokenizer **t);
gma_status gmal_bpe_parse(const char *where, const gmal_blob *merges, const gmal_blob *encoder, gma_tokenizer **t);
gma_status gmal_tokenizer_blobs(const gma_tokenizer *t, gmal_blob blobs[GMAL_TOKENIZER_BLOBS], int *count);
gma_status gmal_words_blob(const gma_tokenizer *t, gmal_blob *vocab);
gma_status gmal_bpe_blobs(const gma_tokenizer *t, gmal_blob *merges, gmal_blob *encoder);

/* ---- GPT-2's pieces of text (PCRE2) ---- */
gma_status gmal_pretokenizer_create(gmal_pretokenizer **p);
void gmal_pretokenizer_destroy(gmal_pretokenizer *p);
/* Calls `piece` for each piece of `text` that cannot change by what follows; with `final` for all. Bytes that are no UTF-8 are
 * pieces of one byte. *used: how much of the text that was. */
typedef gma_status (*gmal_piece)(void *context, const char *text, size_t n);
gma_status gmal_pretokenize(const gmal_pretokenizer *p, const char *text, size_t n, int final, size_t *used,
                            gmal_piece piece, void *context);

/* ---- Encoding in pieces ---- */
typedef struct gmal_encoder gmal_encoder; /* what is worth remembering between calls */
gma_status gmal_encoder_create(const gma_tokenizer *t, gmal_encoder **e);
void gmal_encoder_destroy(gmal_encoder *e);
/* Appends the tokens of as much of `text` as is certain (all of it with `final`). `offset` is where text begins in its file,
 * for messages that start with `where`. */
gma_status gmal_encode(gmal_encoder *e, const char *where, int64_t offset, const char *text, size_t n, int final,
                       size_t *used, gma_token_list *list);

gma_status gmal_token_push(gma_token_list *list, int32_t id);

/* BPE of one piece. */
typedef struct gmal_bpe_work gmal_bpe_work;
void gmal_bpe_work_destroy(gmal_bpe_work *w);
gma_status gmal_bpe_piece(const gma_tokenizer *t, gmal_bpe_work **w, const char *text, size_t n, gma_token_list *list);

gma_status gmal_words_learn(const char *const *files, int count, int64_t vocab, int64_t min_count, gma_tokenizer **t);
gma_status gmal_bpe_learn(const char *const *files, int count, int64_t vocab, gma_tokenizer **t);
gma_status gmal_bpe_bytes(gma_tokenizer *t); /* the 256 single bytes, in GPT-2's order, as ids 0..255 */
gma_status gmal_bpe_merge(gma_tokenizer *t, int32_t left, int32_t right, int32_t product);
gma_status gmal_bpe_end_of_text(gma_tokenizer *t); /* its id after all others */

/* ---- Text files a block at a time ---- */
/* Reads `path` and hands it on until `take` has used all of it; what take did not use comes again with more after it. */
typedef gma_status (*gmal_take)(void *context, const char *text, size_t n, int final, size_t *used);
gma_status gmal_read_text(const char *path, gmal_take take, void *context);

static inline int gmal_is_white(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

#endif
