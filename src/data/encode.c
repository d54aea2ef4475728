/* Text into a token file and back, piece by piece. */
#include <stdlib.h>
#include <string.h>

#ifdef GMAL_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

#include "data/token_file.h"
#include "data/tokenizer.h"

typedef struct job {
    const char *path;
    gmal_encoder *encoder;
    gmal_token_writer writer;
    gma_token_list ids;
    int64_t offset; /* in the file */
    int in_word;
    char *rest; /* composed text that was not certain yet */
    int64_t rest_size, rest_room;
} job;

static void count_text(job *j, const char *text, size_t n) {
    gmal_token_writer *w = &j->writer;
    w->text_bytes += (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        const int white = gmal_is_white((unsigned char)text[i]);
        w->text_lines += text[i] == '\n';
        w->text_words += !white && !j->in_word;
        j->in_word = !white;
    }
}

static gma_status encode_block(void *context, const char *text, size_t n, int final, size_t *used) {
    job *j = context;
    j->ids.count = 0;
    gma_status s = gmal_encode(j->encoder, j->path, j->offset, text, n, final, used, &j->ids);
    if (s == GMA_OK) s = gmal_token_writer_add(&j->writer, j->ids.ids, j->ids.count);
    if (s == GMA_OK) count_text(j, text, *used);
    j->offset += (int64_t)*used;
    return s;
}

#ifdef GMAL_HAVE_UTF8PROC
/* Lines are composed one block at a time: nothing composes across a newline. */
static gma_status compose_block(void *context, const char *text, size_t n, int final, size_t *used) {
    job *j = context;
    size_t whole = n, done;
    while (!final && whole > 0 && text[whole - 1] != '\n') whole--;
    *used = whole;
    if (whole == 0) return GMA_OK;
    utf8proc_uint8_t *composed = NULL;
    const utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)whole, &composed,
                                               UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (size < 0)
        return gma_fail(GMA_ERR_FORMAT, "%s: near byte %lld: %s", j->path, (long long)j->offset, utf8proc_errmsg(size));
    gma_status s = gmal_grow(&j->rest, &j->rest_room, j->rest_size + size, 1);
    if (s == GMA_OK && size) memcpy(j->rest + j->rest_size, composed, (size_t)size);
    free(composed);
    if (s != GMA_OK) return s;
    j->rest_size += size;
    s = encode_block(j, j->rest, (size_t)j->rest_size, final, &done);
    if (s == GMA_OK) memmove(j->rest, j->rest + done, (size_t)j->rest_size - done);
    j->rest_size -= (int64_t)done;
    return s;
}
#endif

gma_status gma_data_encode(const char *text, const gma_tokenizer *t, int nfc, const char *out) {
    if (!text || !t || !out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_data_encode: text, tokenizer or out is NULL");
    gmal_take take = encode_block;
    if (nfc) {
#ifdef GMAL_HAVE_UTF8PROC
        take = compose_block;
#else
        return gma_fail(GMA_ERR_UNSUPPORTED, "composing Unicode needs utf8proc, and this build is without it");
#endif
    }
    const char *name = strrchr(text, '/');
    job j = {.path = text};
    gma_status s = gmal_encoder_create(t, &j.encoder);
    if (s == GMA_OK)
        s = gmal_token_writer_begin(&j.writer, out, t, GMA_TOKEN_STREAM, 0, name ? name + 1 : text);
    if (s == GMA_OK) {
        s = gmal_read_text(text, take, &j);
        if (s == GMA_OK) s = gmal_token_writer_finish(&j.writer);
        else gmal_token_writer_abandon(&j.writer);
    }
    gmal_encoder_destroy(j.encoder);
    gma_token_list_free(&j.ids);
    free(j.rest);
    return s;
}

gma_status gma_data_decode(const char *path, const char *out) {
    gma_token_file *f;
    gmal_replace r;
    gma_token_info info = {.struct_size = sizeof info};
    if (!path || !out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_data_decode: path or out is NULL");
    gma_status s = gma_token_file_open(path, &f);
    if (s == GMA_OK) s = gma_token_file_info(f, &info);
    if (s == GMA_OK && info.tokenizer == GMA_TOKENIZER_IDS)
        s = gma_fail(GMA_ERR_UNSUPPORTED, "%s: its ids stand for no text", path);
    if (s == GMA_OK) s = gmal_replace_begin(&r, out);
    if (s != GMA_OK) {
        gma_token_file_close(f);
        return s;
    }
    const gma_tokenizer *t = gma_token_file_tokenizer(f);
    for (int64_t i = 0; i < info.sequences; i++) {
        int64_t begin, end;
        gma_token_file_sequence(f, i, &begin, &end, NULL);
        for (int64_t k = begin; k < end; k++) {
            int32_t id;
            const char *bytes;
            size_t n;
            gma_token_file_read(f, k, 1, &id);
            if (gma_tokenizer_token(t, id, &bytes, &n)) fwrite(bytes, 1, n, r.file);
        }
        if (info.layout != GMA_TOKEN_STREAM) fputc('\n', r.file);
    }
    gma_token_file_close(f);
    return gmal_replace_commit(&r); /* which also sees errors of the writes above */
}
