/* Writing a token file. The tokens go out as they come; what was counted goes into the header, whose room is kept free. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/token_file.h"
#include "data/tokenizer.h"

static gma_status failed(const gmal_token_writer *w) {
    return gma_fail(GMA_ERR_IO, "%s: cannot write: %s", w->path, strerror(errno));
}

gma_status gmal_make_folder(const char *path) {
    struct stat st;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))) return GMA_OK;
    return gma_fail(GMA_ERR_IO, "%s: cannot make this folder: %s", path, strerror(errno));
}

gma_status gmal_no_leftover(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return GMA_OK;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: is of an earlier data set, and this one has no such part: remove it, or name "
                    "another folder", path);
}

static gma_status put(gmal_token_writer *w, const void *data, size_t n) {
    if (n && fwrite(data, 1, n, w->out.file) != n) return failed(w);
    gmal_hash_add(&w->hash, data, n);
    return GMA_OK;
}

gma_status gmal_token_writer_begin(gmal_token_writer *w, const char *path, const gma_tokenizer *t, gma_token_layout layout,
                                   int64_t classes, const char *source) {
    static const char nothing[GMAL_TOKEN_HEADER];
    memset(w, 0, sizeof *w);
    w->path = path;
    w->t = t;
    w->layout = layout;
    w->classes = classes;
    w->width = t->vocab <= 256 ? 1 : t->vocab <= 65536 ? 2 : 4;
    for (size_t i = 0; source[i] && i + 1 < sizeof w->source; i++) /* it stands in JSON as it is */
        w->source[i] = source[i] < 32 || source[i] > 126 || source[i] == '"' || source[i] == '\\' ? '?' : source[i];
    const gma_status s = gmal_replace_begin(&w->out, path);
    if (s != GMA_OK) return s;
    if (fwrite(nothing, 1, sizeof nothing, w->out.file) == sizeof nothing) return GMA_OK;
    const gma_status bad = failed(w);
    gmal_token_writer_abandon(w);
    return bad;
}

void gmal_token_writer_abandon(gmal_token_writer *w) {
    if (w->out.path) gmal_replace_abandon(&w->out);
    free(w->ends);
    free(w->extra);
    memset(w, 0, sizeof *w);
}

gma_status gmal_token_writer_add(gmal_token_writer *w, const int32_t *ids, int64_t n) {
    unsigned char bytes[4096];
    size_t used = 0;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= w->t->vocab)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: token id %d, the vocabulary has %lld", w->path, (int)ids[i],
                            (long long)w->t->vocab);
        for (int b = 0; b < w->width; b++) bytes[used++] = (unsigned char)((uint32_t)ids[i] >> 8 * b);
        if (used + 4 > sizeof bytes) {
            const gma_status s = put(w, bytes, used);
            if (s != GMA_OK) return s;
            used = 0;
        }
    }
    w->count += n;
    return put(w, bytes, used);
}

static gma_status keep(gmal_token_writer *w, int32_t value) {
    const gma_status s = gmal_grow(&w->extra, &w->extra_room, w->extra_count + 1, sizeof *w->extra);
    if (s == GMA_OK) w->extra[w->extra_count++] = value;
    return s;
}

gma_status gmal_token_writer_targets(gmal_token_writer *w, const int32_t *targets, int64_t n) {
    gma_status s = GMA_OK;
    for (int64_t i = 0; i < n && s == GMA_OK; i++) s = keep(w, targets[i]);
    return s;
}

gma_status gmal_token_writer_end(gmal_token_writer *w, int32_t label) {
    gma_status s = gmal_grow(&w->ends, &w->end_room, w->end_count + 1, sizeof *w->ends);
    if (s == GMA_OK) w->ends[w->end_count++] = w->count;
    return s == GMA_OK && w->layout == GMA_TOKEN_LABELS ? keep(w, label) : s;
}

/* ---- The end of the file -------------------------------------------------------------------------------------- */

typedef struct header {
    char text[GMAL_TOKEN_HEADER - 8 + 1];
    size_t used;
    uint64_t at; /* where the next tensor begins */
} header;

/* printf at the end; what does not fit shows as used > room. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void say(header *h, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const size_t left = h->used < sizeof h->text ? sizeof h->text - h->used : 0;
    const int n = vsnprintf(left ? h->text + h->used : NULL, left, format, args);
    va_end(args);
    h->used += n > 0 ? (size_t)n : 0;
}

static void say_tensor(header *h, const char *name, const char *dtype, size_t element, int64_t count) {
    const uint64_t end = h->at + (uint64_t)count * element;
    say(h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", name, dtype,
        count, h->at, end);
    h->at = end;
}

static gma_status put_numbers(gmal_token_writer *w, const void *values, size_t element, int64_t count) {
    gma_status s = GMA_OK;
    for (int64_t i = 0; i < count && s == GMA_OK; i++) {
        const uint64_t x = element == 8 ? (uint64_t)((const int64_t *)values)[i]
                                        : (uint64_t)(uint32_t)((const int32_t *)values)[i];
        unsigned char bytes[8];
        for (size_t b = 0; b < element; b++) bytes[b] = (unsigned char)(x >> 8 * b);
        s = put(w, bytes, element);
    }
    return s;
}

static gma_status put_rest(gmal_token_writer *w, header *h, const gmal_blob *blobs, int blob_count) {
    static const char nothing[8];
    const int64_t pad = (8 - w->count * w->width % 8) % 8, zero = 0;
    gma_status s = GMA_OK;
    say_tensor(h, "tokens", w->width == 1 ? "U8" : w->width == 2 ? "U16" : "I32", (size_t)w->width, w->count);
    if (w->layout != GMA_TOKEN_STREAM) {
        if (pad) say_tensor(h, "padding", "U8", 1, pad);
        if (pad) s = put(w, nothing, (size_t)pad);
        say_tensor(h, "offsets", "I64", 8, w->end_count + 1);
        if (s == GMA_OK) s = put_numbers(w, &zero, 8, 1);
        if (s == GMA_OK) s = put_numbers(w, w->ends, 8, w->end_count);
        say_tensor(h, w->layout == GMA_TOKEN_LABELS ? "labels" : "targets", "I32", 4, w->extra_count);
        if (s == GMA_OK) s = put_numbers(w, w->extra, 4, w->extra_count);
    }
    for (int i = 0; i < blob_count && s == GMA_OK; i++) {
        say_tensor(h, blobs[i].name, "U8", 1, (int64_t)blobs[i].size);
        s = put(w, blobs[i].bytes, blobs[i].size);
    }
    return s;
}

static gma_status put_header(gmal_token_writer *w, header *h) {
    const uint64_t length = GMAL_TOKEN_HEADER - 8;
    unsigned char size[8];
    char digits[17];
    say(h, "}");
    if (h->used > length)
        return gma_fail(GMA_ERR_UNSUPPORTED, "%s: the description of its tensors does not fit into its header", w->path);
    memset(h->text + h->used, ' ', length - h->used);
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)(length >> 8 * i);
    gmal_hash_add(&w->hash, size, 8);
    gmal_hash_add(&w->hash, h->text, length);
    snprintf(digits, sizeof digits, "%016" PRIx64, gmal_hash_end(&w->hash));
    memcpy(h->text + GMAL_TOKEN_CHECKSUM_AT - 8, digits, 16);
    if (fseek(w->out.file, 0, SEEK_SET) != 0 || fwrite(size, 1, 8, w->out.file) != 8 ||
        fwrite(h->text, 1, length, w->out.file) != length)
        return failed(w);
    return GMA_OK;
}

gma_status gmal_token_writer_finish(gmal_token_writer *w) {
    static const char *const layouts[] = {"stream", "labels", "targets"};
    gmal_blob blobs[GMAL_TOKENIZER_BLOBS];
    header h = {.used = 0};
    int blob_count;
    gma_status s = gmal_tokenizer_blobs(w->t, blobs, &blob_count);
    if (s == GMA_OK && w->count == 0) s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: there are no tokens to write", w->path);
    say(&h, GMAL_TOKEN_MAGIC "0000000000000000\",\"version\":\"1\",\"layout\":\"%s\",\"tokenizer\":\"%s\",\"vocab\":\"%" PRId64
        "\",\"tokenizer_hash\":\"%016" PRIx64 "\",\"classes\":\"%" PRId64 "\",\"text_bytes\":\"%" PRId64
        "\",\"text_words\":\"%" PRId64 "\",\"text_lines\":\"%" PRId64 "\",\"source\":\"%s\"}",
        layouts[w->layout], gma_tokenizer_kind_name(w->t->kind), w->t->vocab, w->t->hash, w->classes, w->text_bytes,
        w->text_words, w->text_lines, w->source);
    if (s == GMA_OK) s = put_rest(w, &h, blobs, blob_count);
    for (int i = 0; i < blob_count; i++) free(blobs[i].bytes);
    if (s == GMA_OK) s = put_header(w, &h);
    if (s == GMA_OK) {
        gmal_replace out = w->out;
        memset(&w->out, 0, sizeof w->out);
        s = gmal_replace_commit(&out);
    }
    gmal_token_writer_abandon(w);
    return s;
}
