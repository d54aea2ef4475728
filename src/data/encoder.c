/* Text to ids, in pieces. BPE remembers the tokens of short pieces it has met: a text says the same words again and again. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

enum { SHORT = 32, REMEMBERED = 1 << 16 };

struct gmal_encoder {
    const gma_tokenizer *t;
    gmal_bpe_work *work;
    gmal_strings seen; /* pieces */
    gma_token_list ids; /* their tokens, one after the other */
    int64_t *begin; /* of piece i in ids; its end is begin[i + 1] */
    gma_token_list *out;
};

gma_status gmal_token_push(gma_token_list *list, int32_t id) {
    const gma_status s = gmal_grow(&list->ids, &list->room, list->count + 1, sizeof *list->ids);
    if (s == GMA_OK) list->ids[list->count++] = id;
    return s;
}

void gma_token_list_free(gma_token_list *list) {
    if (!list) return;
    free(list->ids);
    memset(list, 0, sizeof *list);
}

gma_status gmal_encoder_create(const gma_tokenizer *t, gmal_encoder **e) {
    *e = calloc(1, sizeof **e);
    if (*e && t->kind == GMA_TOKENIZER_BPE) (*e)->begin = calloc(REMEMBERED + 1, sizeof *(*e)->begin);
    if (!*e || (t->kind == GMA_TOKENIZER_BPE && !(*e)->begin)) {
        gmal_encoder_destroy(*e);
        *e = NULL;
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to encode text");
    }
    (*e)->t = t;
    return GMA_OK;
}

void gmal_encoder_destroy(gmal_encoder *e) {
    if (!e) return;
    gmal_bpe_work_destroy(e->work);
    gmal_strings_free(&e->seen);
    gma_token_list_free(&e->ids);
    free(e->begin);
    free(e);
}

static gma_status append(gma_token_list *list, const int32_t *ids, int64_t n) {
    const gma_status s = gmal_grow(&list->ids, &list->room, list->count + n, sizeof *ids);
    if (s != GMA_OK || n == 0) return s;
    memcpy(list->ids + list->count, ids, (size_t)n * sizeof *ids);
    list->count += n;
    return GMA_OK;
}

static gma_status bpe_piece(void *context, const char *text, size_t n) {
    gmal_encoder *e = context;
    if (n > SHORT) return gmal_bpe_piece(e->t, &e->work, text, n, e->out);
    int32_t i = gmal_strings_find(&e->seen, text, n);
    if (i < 0) {
        if (e->seen.count == REMEMBERED) {
            gmal_strings_clear(&e->seen);
            e->ids.count = 0;
        }
        gma_status s = gmal_bpe_piece(e->t, &e->work, text, n, &e->ids);
        if (s == GMA_OK) s = gmal_strings_add(&e->seen, text, n, &i);
        if (s != GMA_OK) return s;
        e->begin[i + 1] = e->ids.count;
    }
    return append(e->out, e->ids.ids + e->begin[i], e->begin[i + 1] - e->begin[i]);
}

static gma_status words(const gma_tokenizer *t, const char *where, int64_t offset, const char *text, size_t n, int final,
                        size_t *used, gma_token_list *list) {
    gma_status s = GMA_OK;
    size_t i = 0;
    *used = 0;
    while (i < n && s == GMA_OK) {
        if (gmal_is_white((unsigned char)text[i])) {
            if (text[i] == '\n' && t->eos >= 0) s = gmal_token_push(list, t->eos);
            *used = ++i;
            continue;
        }
        const size_t begin = i;
        while (i < n && !gmal_is_white((unsigned char)text[i])) i++;
        if (i == n && !final) break;
        int32_t id = gmal_strings_find(&t->tokens, text + begin, i - begin);
        if (id < 0) id = t->unk;
        if (id < 0)
            return gma_fail(GMA_ERR_FORMAT, "%s: \"%.*s\" at byte %lld is not in the vocabulary", where,
                            i - begin > 60 ? 60 : (int)(i - begin), text + begin, (long long)(offset + (int64_t)begin));
        s = gmal_token_push(list, id);
        *used = i;
    }
    return s;
}

gma_status gmal_encode(gmal_encoder *e, const char *where, int64_t offset, const char *text, size_t n, int final,
                       size_t *used, gma_token_list *list) {
    const gma_tokenizer *t = e->t;
    switch (t->kind) {
    case GMA_TOKENIZER_BYTES: {
        const gma_status s = gmal_grow(&list->ids, &list->room, list->count + (int64_t)n, sizeof *list->ids);
        if (s != GMA_OK) return s;
        for (size_t i = 0; i < n; i++) list->ids[list->count++] = (unsigned char)text[i];
        *used = n;
        return GMA_OK;
    }
    case GMA_TOKENIZER_WORDS:
        return words(t, where, offset, text, n, final, used, list);
    case GMA_TOKENIZER_BPE:
        e->out = list;
        return gmal_pretokenize(t->pre, text, n, final, used, bpe_piece, e);
    case GMA_TOKENIZER_IDS:
        break;
    }
    return gma_fail(GMA_ERR_UNSUPPORTED, "these ids stand for no text");
}

gma_status gma_tokenizer_encode(const gma_tokenizer *t, const char *text, size_t size, gma_token_list *list) {
    gmal_encoder *e;
    size_t used;
    if (!t || (!text && size) || !list)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_tokenizer_encode: tokenizer, text or list is NULL");
    gma_status s = gmal_encoder_create(t, &e);
    if (s == GMA_OK) s = gmal_encode(e, "text", 0, text, size, 1, &used, list);
    gmal_encoder_destroy(e);
    return s;
}
