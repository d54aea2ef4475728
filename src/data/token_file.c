/* Reading a token file: everything is checked when it is opened. */
#define _POSIX_C_SOURCE 200809L
#include "data/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenizer.h"
#include "gma/io.h"

/* Larger files are mapped. */
static const size_t most_copied = (size_t)64 << 20;

struct gma_token_file {
    char *path;
    gmal_file file;
    gma_safetensors *names; /* what is where */
    const unsigned char *data; /* after the header */
    gma_tokenizer *tokenizer;
    gma_token_info info;
    const unsigned char *tokens, *offsets, *extra; /* NULL: there are none */
};

void gma_token_file_close(gma_token_file *f) {
    if (!f) return;
    gma_tokenizer_destroy(f->tokenizer);
    gma_safetensors_close(f->names);
    gmal_file_close(&f->file);
    free(f->path);
    free(f);
}

int gma_token_file_is(const char *path) {
    char begin[GMAL_TOKEN_CHECKSUM_AT];
    struct stat st;
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1; /* a FIFO must not be waited for */
    if (fd < 0) return 0;
    const int yes = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && read(fd, begin, sizeof begin) == (ssize_t)sizeof begin &&
                    memcmp(begin + 8, GMAL_TOKEN_MAGIC, sizeof begin - 8) == 0;
    close(fd);
    return yes;
}

static uint64_t number(const unsigned char *p, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)p[i] << 8 * i;
    return x;
}

static int32_t token(const gma_token_file *f, int64_t i) { return (int32_t)number(f->tokens + i * f->info.width, f->info.width); }
static int64_t offset(const gma_token_file *f, int64_t i) { return (int64_t)number(f->offsets + 8 * i, 8); }
static int32_t extra(const gma_token_file *f, int64_t i) { return (int32_t)number(f->extra + 4 * i, 4); }

/* ---- Metadata ------------------------------------------------------------------------------------------------- */

static gma_status text_of(const gma_token_file *f, const char *key, const char **text) {
    *text = gma_safetensors_metadata(f->names, key);
    return *text ? GMA_OK : gma_fail(GMA_ERR_FORMAT, "%s: its header lacks \"%s\"", f->path, key);
}

static gma_status number_of(const gma_token_file *f, const char *key, int base, uint64_t most, uint64_t *value) {
    const char *text;
    char *end;
    const gma_status s = text_of(f, key, &text);
    if (s != GMA_OK) return s;
    /* One spelling a number: that of the writer. */
    const size_t n = strlen(text);
    const int plain = base == 16 ? n == 16 && strspn(text, "0123456789abcdef") == n
                                 : n > 0 && strspn(text, "0123456789") == n && (*text != '0' || n == 1);
    errno = 0;
    *value = strtoull(text, &end, base);
    if (!plain || *end || errno || *value > most)
        return gma_fail(GMA_ERR_FORMAT, "%s: \"%s\" in its header is \"%.40s\"", f->path, key, text);
    return GMA_OK;
}

static gma_status choice_of(const gma_token_file *f, const char *key, const char *const *names, int count, int32_t *value) {
    const char *text;
    const gma_status s = text_of(f, key, &text);
    if (s != GMA_OK) return s;
    for (*value = 0; *value < count; ++*value)
        if (strcmp(text, names[*value]) == 0) return GMA_OK;
    return gma_fail(GMA_ERR_FORMAT, "%s: \"%s\" in its header is \"%.40s\"", f->path, key, text);
}

static gma_status read_metadata(gma_token_file *f) {
    static const char *const layouts[] = {"stream", "labels", "targets"}, *const kinds[] = {"bytes", "words", "bpe", "ids"};
    static const char *const keys[] = {"vocab", "classes", "text_bytes", "text_words", "text_lines"};
    gma_token_info *i = &f->info;
    int64_t *const values[] = {&i->vocab, &i->classes, &i->text_bytes, &i->text_words, &i->text_lines};
    uint64_t x;
    gma_status s = number_of(f, "version", 10, 1, &x);
    if (s == GMA_OK && x != 1) s = gma_fail(GMA_ERR_FORMAT, "%s: format version %d; this library reads 1", f->path, (int)x);
    if (s == GMA_OK) s = choice_of(f, "layout", layouts, 3, &i->layout);
    if (s == GMA_OK) s = choice_of(f, "tokenizer", kinds, 4, &i->tokenizer);
    for (int k = 0; k < 5 && s == GMA_OK; k++) {
        s = number_of(f, keys[k], 10, k < 2 ? INT32_MAX : INT64_MAX, &x);
        if (s == GMA_OK) *values[k] = (int64_t)x;
    }
    if (s == GMA_OK && i->layout == GMA_TOKEN_STREAM && i->classes)
        s = gma_fail(GMA_ERR_FORMAT, "%s: \"classes\" in its header is %lld, and a stream has none", f->path,
                     (long long)i->classes);
    if (s == GMA_OK) s = number_of(f, "tokenizer_hash", 16, UINT64_MAX, &i->tokenizer_hash);
    if (s == GMA_OK) s = number_of(f, "checksum", 16, UINT64_MAX, &i->checksum);
    return s == GMA_OK ? text_of(f, "source", &i->source) : s;
}

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

/* A vector of that type; count < 0: of any length. */
static gma_status vector(const gma_token_file *f, const char *name, const char *dtype, int64_t count,
                         const unsigned char **data, int64_t *found) {
    const gma_stored_tensor *t = gma_safetensors_find(f->names, name);
    if (!t || t->rank != 1 || strcmp(t->dtype_name, dtype) != 0 || (count >= 0 && t->count != count))
        return gma_fail(GMA_ERR_FORMAT, "%s: \"%s\" is missing, or not a vector of %s of the right length", f->path, name,
                        dtype);
    *data = f->data + t->begin;
    if (found) *found = t->count;
    return GMA_OK;
}

static gma_status find_tensors(gma_token_file *f) {
    gma_token_info *i = &f->info;
    int64_t n = 0;
    i->width = i->vocab <= 256 ? 1 : i->vocab <= 65536 ? 2 : 4;
    i->sequences = 1;
    gma_status s = vector(f, "tokens", i->width == 1 ? "U8" : i->width == 2 ? "U16" : "I32", -1, &f->tokens, &i->tokens);
    if (s != GMA_OK || i->layout == GMA_TOKEN_STREAM) return s;
    s = vector(f, "offsets", "I64", -1, &f->offsets, &n);
    if (s == GMA_OK && n < 1) s = gma_fail(GMA_ERR_FORMAT, "%s: \"offsets\" is empty", f->path);
    i->sequences = n - 1;
    if (s != GMA_OK) return s;
    return i->layout == GMA_TOKEN_LABELS ? vector(f, "labels", "I32", i->sequences, &f->extra, NULL)
                                         : vector(f, "targets", "I32", i->tokens, &f->extra, NULL);
}

static gma_status check_values(gma_token_file *f) {
    gma_token_info *i = &f->info;
    for (int64_t k = 0; k < i->tokens; k++)
        if (token(f, k) < 0 || token(f, k) >= i->vocab)
            return gma_fail(GMA_ERR_FORMAT, "%s: token id %d at byte %lld (token %lld), the vocabulary has %lld", f->path,
                            (int)token(f, k), (long long)(f->tokens - f->file.bytes + k * i->width), (long long)k,
                            (long long)i->vocab);
    i->longest = i->layout == GMA_TOKEN_STREAM ? i->tokens : 0;
    if (i->layout == GMA_TOKEN_STREAM) return GMA_OK;
    for (int64_t k = 0; k <= i->sequences; k++) {
        const int64_t before = k ? offset(f, k - 1) : 0, at = offset(f, k);
        if (at < before || at > i->tokens || (k == 0 && at != 0) || (k == i->sequences && at != i->tokens))
            return gma_fail(GMA_ERR_FORMAT, "%s: offset %lld of sequence %lld is out of order", f->path, (long long)at,
                            (long long)k);
        if (at - before > i->longest) i->longest = at - before;
    }
    const int64_t n = i->layout == GMA_TOKEN_LABELS ? i->sequences : i->tokens;
    const int64_t least = i->layout == GMA_TOKEN_LABELS ? 0 : -1, end = i->layout == GMA_TOKEN_LABELS ? i->classes : i->vocab;
    for (int64_t k = 0; k < n; k++)
        if (extra(f, k) < least || extra(f, k) >= end)
            return gma_fail(GMA_ERR_FORMAT, "%s: %s %d of %s %lld is outside %lld..%lld", f->path,
                            least ? "target" : "label", (int)extra(f, k), least ? "token" : "sequence", (long long)k,
                            (long long)least, (long long)end - 1);
    return GMA_OK;
}

static gma_status check_sum(const gma_token_file *f, uint64_t length) {
    gmal_hash h = {0};
    gmal_hash_add(&h, f->data, f->file.size - 8 - length);
    gmal_hash_add(&h, f->file.bytes, GMAL_TOKEN_CHECKSUM_AT);
    gmal_hash_add(&h, "0000000000000000", 16);
    gmal_hash_add(&h, f->file.bytes + GMAL_TOKEN_CHECKSUM_AT + 16, 8 + length - GMAL_TOKEN_CHECKSUM_AT - 16);
    if (gmal_hash_end(&h) == f->info.checksum) return GMA_OK;
    return gma_fail(GMA_ERR_FORMAT, "%s: its checksum is %016" PRIx64 ", its header says %016" PRIx64 ": it is damaged",
                    f->path, gmal_hash_end(&h), f->info.checksum);
}

static gma_status load_tokenizer(gma_token_file *f) {
    static const char *const names[] = {"vocab.txt", "vocab.bpe", "encoder.json"};
    const int kind = f->info.tokenizer, first = kind == GMA_TOKENIZER_WORDS ? 0 : 1, last = kind == GMA_TOKENIZER_BPE ? 2 : first;
    gmal_blob blobs[3];
    gma_status s = GMA_OK;
    if (kind == GMA_TOKENIZER_BYTES || kind == GMA_TOKENIZER_IDS) {
        s = gma_tokenizer_create((gma_tokenizer_kind)kind, f->info.vocab, &f->tokenizer);
    } else {
        for (int i = first; i <= last && s == GMA_OK; i++) {
            const unsigned char *data = NULL;
            int64_t n = 0;
            s = vector(f, names[i], "U8", -1, &data, &n);
            blobs[i] = (gmal_blob){names[i], (char *)(uintptr_t)data, (size_t)n};
        }
        if (s == GMA_OK)
            s = kind == GMA_TOKENIZER_WORDS ? gmal_words_parse(f->path, &blobs[0], &f->tokenizer)
                                            : gmal_bpe_parse(f->path, &blobs[1], &blobs[2], &f->tokenizer);
    }
    if (s == GMA_OK && (f->tokenizer->vocab != f->info.vocab || f->tokenizer->hash != f->info.tokenizer_hash))
        s = gma_fail(GMA_ERR_FORMAT, "%s: its tokenizer is not the one its header names", f->path);
    return s;
}

static gma_status read_all(gma_token_file *f) {
    gma_status s = gmal_file_open(f->path, most_copied, &f->file);
    if (s != GMA_OK) return s;
    if (f->file.size < GMAL_TOKEN_CHECKSUM_AT + 16 ||
        memcmp(f->file.bytes + 8, GMAL_TOKEN_MAGIC, sizeof GMAL_TOKEN_MAGIC - 1) != 0)
        return gma_fail(GMA_ERR_FORMAT, "%s: is not a token file", f->path);
    s = gma_safetensors_open(f->path, &f->names);
    if (s != GMA_OK) return s;
    const uint64_t length = number(f->file.bytes, 8);
    uint64_t end = 0;
    for (int64_t i = 0; i < gma_safetensors_count(f->names); i++) {
        const gma_stored_tensor *t = gma_safetensors_at(f->names, i);
        if (t->end > end) end = t->end;
    }
    if (length > f->file.size - 8 || end != f->file.size - 8 - length) /* it was another file a moment ago */
        return gma_fail(GMA_ERR_IO, "%s: changed while it was read", f->path);
    f->data = f->file.bytes + 8 + length;
    s = read_metadata(f);
    if (s == GMA_OK) s = check_sum(f, length);
    if (s == GMA_OK) s = find_tensors(f);
    if (s == GMA_OK) s = check_values(f);
    return s == GMA_OK ? load_tokenizer(f) : s;
}

gma_status gma_token_file_open(const char *path, gma_token_file **out) {
    if (!path || !out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_token_file_open: path or file is NULL");
    *out = NULL;
    gma_token_file *f = calloc(1, sizeof *f);
    if (f) f->path = malloc(strlen(path) + 1);
    if (!f || !f->path) {
        free(f);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory to open it", path);
    }
    strcpy(f->path, path);
    const gma_status s = read_all(f);
    if (s != GMA_OK) gma_token_file_close(f);
    else *out = f;
    return s;
}

/* ---- An open file --------------------------------------------------------------------------------------------- */

gma_status gma_token_file_info(const gma_token_file *f, gma_token_info *info) {
    if (!f || !info || info->struct_size != sizeof *info)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_token_file_info: file is NULL or info->struct_size is not set");
    *info = f->info;
    info->struct_size = sizeof *info;
    return GMA_OK;
}

const gma_tokenizer *gma_token_file_tokenizer(const gma_token_file *f) { return f->tokenizer; }

const unsigned char *gmal_token_file_ids(const gma_token_file *f, int *width, int64_t *count) {
    *width = f->info.width;
    *count = f->info.tokens;
    return f->tokens;
}

static gma_status in_range(const gma_token_file *f, int64_t begin, int64_t count, const void *out) {
    if (!f || (!out && count)) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "reading tokens: file or out is NULL");
    if (begin < 0 || count < 0 || begin > f->info.tokens || count > f->info.tokens - begin)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: tokens %lld..%lld of %lld", f->path, (long long)begin,
                        (long long)(begin + count - 1), (long long)f->info.tokens);
    return GMA_OK;
}

gma_status gma_token_file_read(const gma_token_file *f, int64_t begin, int64_t count, int32_t *out) {
    const gma_status s = in_range(f, begin, count, out);
    for (int64_t i = 0; i < count && s == GMA_OK; i++) out[i] = token(f, begin + i);
    return s;
}

gma_status gma_token_file_targets(const gma_token_file *f, int64_t begin, int64_t count, int32_t *out) {
    const gma_status s = in_range(f, begin, count, out);
    if (s == GMA_OK && f->info.layout != GMA_TOKEN_TARGETS)
        return gma_fail(GMA_ERR_UNSUPPORTED, "%s: has no targets", f->path);
    for (int64_t i = 0; i < count && s == GMA_OK; i++) out[i] = extra(f, begin + i);
    return s;
}

gma_status gma_token_file_sequence(const gma_token_file *f, int64_t i, int64_t *begin, int64_t *end, int32_t *label) {
    if (!f || i < 0 || i >= f->info.sequences)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "sequence %lld of %lld", (long long)i,
                        f ? (long long)f->info.sequences : 0);
    const int stream = f->info.layout == GMA_TOKEN_STREAM;
    *begin = stream ? 0 : offset(f, i);
    *end = stream ? f->info.tokens : offset(f, i + 1);
    if (label) *label = f->info.layout == GMA_TOKEN_LABELS ? extra(f, i) : -1;
    return GMA_OK;
}

gma_status gmal_token_file_peek(const char *path, gma_token_info *info) {
    gma_token_file f = {.path = (char *)(uintptr_t)path};
    gma_status s = GMA_OK;
    if (!gma_token_file_is(path)) {
        gmal_file file;
        s = gmal_file_open(path, 0, &file); /* says so when it cannot be read at all */
        if (s != GMA_OK) return s;
        gmal_file_close(&file);
        return gma_fail(GMA_ERR_FORMAT, "%s: is not a token file", path);
    }
    s = gma_safetensors_open(path, &f.names);
    if (s == GMA_OK) s = read_metadata(&f);
    *info = f.info;
    info->source = NULL;
    gma_safetensors_close(f.names);
    return s;
}

gma_tokenizer *gmal_token_file_release_tokenizer(gma_token_file *f) {
    gma_tokenizer *t = f->tokenizer;
    f->tokenizer = NULL;
    return t;
}

gma_status gmal_token_file_take_tokenizer(const char *path, gma_tokenizer **t) {
    gma_token_file *f;
    const gma_status s = gma_token_file_open(path, &f);
    *t = NULL;
    if (s != GMA_OK) return s;
    *t = gmal_token_file_release_tokenizer(f);
    gma_token_file_close(f);
    return GMA_OK;
}
