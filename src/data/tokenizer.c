/* Tokenizers: making, loading, saving. */
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/file.h"
#include "data/hash.h"
#include "data/token_file.h"
#include "io/replace.h"
#include "models/model.h"

gma_tokenizer *gmal_tokenizer_alloc(gma_tokenizer_kind kind) {
    gma_tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a tokenizer");
        return NULL;
    }
    t->kind = kind;
    t->unk = t->eos = -1;
    return t;
}

void gma_tokenizer_destroy(gma_tokenizer *t) {
    if (!t) return;
    gmal_strings_free(&t->tokens);
    gmal_pairs_free(&t->ranks);
    gmal_pretokenizer_destroy(t->pre);
    free(t->merges);
    free(t);
}

static void hash_number(gmal_hash *h, uint64_t x) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(x >> 8 * i);
    gmal_hash_add(h, bytes, sizeof bytes);
}

void gmal_tokenizer_seal(gma_tokenizer *t) {
    gmal_hash h = {0};
    if (t->kind == GMA_TOKENIZER_WORDS || t->kind == GMA_TOKENIZER_BPE) t->vocab = t->tokens.count;
    if (t->kind == GMA_TOKENIZER_WORDS) {
        t->unk = gmal_strings_find(&t->tokens, "<unk>", 5);
        t->eos = gmal_strings_find(&t->tokens, "<eos>", 5);
    }
    hash_number(&h, (uint64_t)t->kind);
    hash_number(&h, (uint64_t)t->vocab);
    for (int64_t i = 0; i < t->tokens.count; i++) {
        size_t n;
        const char *s = gmal_string(&t->tokens, i, &n);
        hash_number(&h, n);
        gmal_hash_add(&h, s, n);
    }
    for (int64_t i = 0; i < t->merge_count; i++) hash_number(&h, gmal_pair(t->merges[i].left, t->merges[i].right));
    t->hash = gmal_hash_end(&h);
}

gma_status gma_tokenizer_create(gma_tokenizer_kind kind, int64_t vocab, gma_tokenizer **out) {
    if (!out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "tokenizer is NULL");
    *out = NULL;
    if (kind != GMA_TOKENIZER_BYTES && kind != GMA_TOKENIZER_IDS)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "a tokenizer of words or BPE is loaded or learned");
    if (kind == GMA_TOKENIZER_IDS && (vocab < 1 || vocab > INT32_MAX))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "vocab must be 1 or more, not %lld", (long long)vocab);
    *out = gmal_tokenizer_alloc(kind);
    if (!*out) return GMA_ERR_OUT_OF_MEMORY;
    (*out)->vocab = kind == GMA_TOKENIZER_BYTES ? 256 : vocab;
    gmal_tokenizer_seal(*out);
    return GMA_OK;
}

gma_status gma_tokenizer_learn(gma_tokenizer_kind kind, const char *const *files, int count, int64_t vocab,
                               int64_t min_count, gma_tokenizer **out) {
    if (!out || !files || count < 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_tokenizer_learn: no files, or tokenizer is NULL");
    *out = NULL;
    if (kind == GMA_TOKENIZER_WORDS) {
        if (vocab < 0 || vocab == 1 || vocab > INT32_MAX || min_count < 0)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "vocab must be 0 or at least 2, and min_count at least 0");
        return gmal_words_learn(files, count, vocab, min_count, out);
    }
    if (kind != GMA_TOKENIZER_BPE) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "only words and BPE are learned");
    if (vocab < 257 || vocab > 1 << 24)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "vocab of BPE must be from 257 to %d, not %lld", 1 << 24,
                        (long long)vocab);
    return gmal_bpe_learn(files, count, vocab, out);
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

static int is_there(const char *folder, const char *name) {
    struct stat st;
    char *path = gmal_path_join(folder, name);
    const int yes = path && stat(path, &st) == 0;
    free(path);
    return yes;
}

static gma_status read_blob(const char *path, const char *name, gmal_file *file, gmal_blob *blob) {
    const gma_status s = gmal_file_open(path, (size_t)1 << 30, file);
    /* Nothing is written to it; parsers share the type with those who make blobs. */
    if (s == GMA_OK) *blob = (gmal_blob){name, (char *)(uintptr_t)file->bytes, file->size};
    return s;
}

static gma_status load_folder(const char *folder, gma_tokenizer **out) {
    const int bpe = is_there(folder, "vocab.bpe") || is_there(folder, "encoder.json"), words = is_there(folder, "vocab.txt");
    gmal_file files[2] = {{0}, {0}};
    gmal_blob blobs[2];
    if (bpe && words)
        return gma_fail(GMA_ERR_FORMAT, "%s: holds two tokenizers, vocab.txt and vocab.bpe with encoder.json, and only one can be meant",
                        folder);
    if (!bpe && !words)
        return gma_fail(GMA_ERR_IO, "%s: there is no tokenizer here (vocab.bpe and encoder.json, or vocab.txt)", folder);
    char *first = gmal_path_join(folder, bpe ? "vocab.bpe" : "vocab.txt");
    char *second = gmal_path_join(folder, "encoder.json");
    gma_status s = first && second ? read_blob(first, "vocab", &files[0], &blobs[0])
                                   : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
    if (s == GMA_OK && bpe) s = read_blob(second, "encoder.json", &files[1], &blobs[1]);
    if (s == GMA_OK) s = bpe ? gmal_bpe_parse(folder, &blobs[0], &blobs[1], out) : gmal_words_parse(first, &blobs[0], out);
    gmal_file_close(&files[0]);
    gmal_file_close(&files[1]);
    free(first);
    free(second);
    return s;
}

gma_status gma_tokenizer_load(const char *path, gma_tokenizer **out) {
    struct stat st;
    if (!path || !out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_tokenizer_load: path or tokenizer is NULL");
    *out = NULL;
    if (stat(path, &st) != 0) return gma_fail(GMA_ERR_IO, "%s: there is no tokenizer here", path);
    if (S_ISDIR(st.st_mode)) return load_folder(path, out);
    if (!gma_token_file_is(path))
        return gma_fail(GMA_ERR_FORMAT, "%s: is neither a folder with a tokenizer nor a token file", path);
    return gmal_token_file_take_tokenizer(path, out);
}

gma_status gmal_tokenizer_blobs(const gma_tokenizer *t, gmal_blob blobs[GMAL_TOKENIZER_BLOBS], int *count) {
    *count = 0;
    gma_status s = GMA_OK;
    memset(blobs, 0, GMAL_TOKENIZER_BLOBS * sizeof *blobs);
    if (t->kind == GMA_TOKENIZER_WORDS) s = gmal_words_blob(t, &blobs[0]);
    if (t->kind == GMA_TOKENIZER_BPE) s = gmal_bpe_blobs(t, &blobs[0], &blobs[1]);
    if (s == GMA_OK) *count = t->kind == GMA_TOKENIZER_WORDS ? 1 : t->kind == GMA_TOKENIZER_BPE ? 2 : 0;
    return s;
}

gma_status gma_tokenizer_save(const gma_tokenizer *t, const char *folder) {
    gmal_blob blobs[GMAL_TOKENIZER_BLOBS];
    int count;
    if (!t || !folder) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_tokenizer_save: tokenizer or folder is NULL");
    gma_status s = gmal_tokenizer_blobs(t, blobs, &count);
    for (int i = 0; i < count && s == GMA_OK; i++) {
        char *path = gmal_path_join(folder, blobs[i].name);
        s = path ? gmal_replace_file(path, blobs[i].bytes, blobs[i].size)
                 : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
        free(path);
    }
    for (int i = 0; i < count; i++) free(blobs[i].bytes);
    return s;
}

/* ---- Looking at one ------------------------------------------------------------------------------------------- */

gma_tokenizer_kind gma_tokenizer_get_kind(const gma_tokenizer *t) { return t->kind; }
int64_t gma_tokenizer_vocab(const gma_tokenizer *t) { return t->vocab; }
uint64_t gma_tokenizer_hash(const gma_tokenizer *t) { return t->hash; }

const char *gma_tokenizer_kind_name(gma_tokenizer_kind kind) {
    static const char *const names[] = {"bytes", "words", "bpe", "ids"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
}

#define BYTES4(x) (char)(x), (char)((x) + 1), (char)((x) + 2), (char)((x) + 3)
#define BYTES16(x) BYTES4(x), BYTES4((x) + 4), BYTES4((x) + 8), BYTES4((x) + 12)
#define BYTES64(x) BYTES16(x), BYTES16((x) + 16), BYTES16((x) + 32), BYTES16((x) + 48)
static const char every_byte[256] = {BYTES64(0), BYTES64(64), BYTES64(128), BYTES64(192)};

int gma_tokenizer_token(const gma_tokenizer *t, int32_t id, const char **bytes, size_t *size) {
    static const char end_of_line[] = " \n";
    *bytes = NULL;
    *size = 0;
    if (id < 0 || id >= t->vocab || t->kind == GMA_TOKENIZER_IDS) return 0;
    if (t->kind == GMA_TOKENIZER_BYTES) {
        *bytes = &every_byte[id];
        *size = 1;
    } else if (id == t->eos) {
        *bytes = end_of_line;
        *size = 2;
    } else {
        *bytes = gmal_string(&t->tokens, id, size);
        if (t->kind == GMA_TOKENIZER_WORDS) { /* with the space that lies before it */
            --*bytes;
            ++*size;
        }
    }
    return 1;
}
