/* Token files: writing, and what the parts of libgma_lm see of an open one. The format is in docs/formats.md. */
#ifndef GMA_DATA_TOKEN_FILE_H
#define GMA_DATA_TOKEN_FILE_H

#include "data/hash.h"
#include "gma/data.h"
#include "io/replace.h"

typedef struct gmal_token_writer {
    gmal_replace out;
    const char *path;
    const gma_tokenizer *t;
    gma_token_layout layout;
    int32_t width;
    int64_t classes, count;
    gmal_hash hash; /* of what was written after the header */
    int64_t *ends; /* of the sequences */
    int64_t end_count, end_room;
    int32_t *extra; /* labels or targets */
    int64_t extra_count, extra_room;
    int64_t text_bytes, text_words, text_lines; /* set by the caller; 0 = not known */
    char source[256];
} gmal_token_writer;

/* begin, then tokens and ends of sequences, then finish, or abandon after an error. `path` and `t` must stay. */
gma_status gmal_token_writer_begin(gmal_token_writer *w, const char *path, const gma_tokenizer *t, gma_token_layout layout,
                                   int64_t classes, const char *source);
gma_status gmal_token_writer_add(gmal_token_writer *w, const int32_t *ids, int64_t n);
gma_status gmal_token_writer_targets(gmal_token_writer *w, const int32_t *targets, int64_t n); /* TARGETS: as many */
gma_status gmal_token_writer_end(gmal_token_writer *w, int32_t label); /* of a sequence; label for LABELS */
gma_status gmal_token_writer_finish(gmal_token_writer *w); /* abandons by itself when it fails */
void gmal_token_writer_abandon(gmal_token_writer *w);

/* The stored ids: little-endian, `width` bytes each. */
const unsigned char *gmal_token_file_ids(const gma_token_file *file, int *width, int64_t *count);

/* What its header says - layout, tokenizer, vocab, classes - and nothing else is looked at. */
gma_status gmal_token_file_peek(const char *path, gma_token_info *info);

/* The tokenizer of a token file, for the caller to keep. */
gma_status gmal_token_file_take_tokenizer(const char *path, gma_tokenizer **t);

gma_tokenizer *gmal_token_file_release_tokenizer(gma_token_file *file); /* NULL the second time */

/* A folder that may be there already. */
gma_status gmal_make_folder(const char *path);

/* An error when the file is there: a part of a data set that is not made now would be taken for one of it. */
gma_status gmal_no_leftover(const char *path);

enum { GMAL_TOKEN_HEADER = 4096 }; /* bytes before the data */
#define GMAL_TOKEN_MAGIC "{\"__metadata__\":{\"format\":\"gma-tokens\",\"checksum\":\""
enum { GMAL_TOKEN_CHECKSUM_AT = 8 + sizeof GMAL_TOKEN_MAGIC - 1 }; /* 16 hexadecimal digits */

#endif
