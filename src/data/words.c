/* Word lists: vocab.txt, and learning one from text. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

static const char unk[] = "<unk>", eos[] = "<eos>";

gma_status gmal_words_parse(const char *where, const gmal_blob *vocab, gma_tokenizer **out) {
    gma_tokenizer *t = gmal_tokenizer_alloc(GMA_TOKENIZER_WORDS);
    gma_status s = t ? GMA_OK : GMA_ERR_OUT_OF_MEMORY;
    long long line = 0;
    for (size_t i = 0; i < vocab->size && s == GMA_OK;) {
        size_t end = i;
        int32_t id;
        line++;
        while (end < vocab->size && vocab->bytes[end] != '\n') end++;
        for (size_t j = i; j < end && s == GMA_OK; j++)
            if (gmal_is_white((unsigned char)vocab->bytes[j]) || vocab->bytes[j] == 0)
                s = gma_fail(GMA_ERR_FORMAT, "%s: line %lld: white space or a zero byte within a word", where, line);
        if (s == GMA_OK && end == i) s = gma_fail(GMA_ERR_FORMAT, "%s: line %lld: is empty", where, line);
        if (s == GMA_OK) s = gmal_strings_add(&t->tokens, vocab->bytes + i, end - i, &id);
        if (s == GMA_OK && id != line - 1)
            s = gma_fail(GMA_ERR_FORMAT, "%s: line %lld: the same word as line %d", where, line, (int)id + 1);
        i = end + 1;
    }
    if (s == GMA_OK && line == 0) s = gma_fail(GMA_ERR_FORMAT, "%s: holds no words", where);
    if (s == GMA_OK) gmal_tokenizer_seal(t);
    if (s != GMA_OK) gma_tokenizer_destroy(t);
    *out = s == GMA_OK ? t : NULL;
    return s;
}

gma_status gmal_words_blob(const gma_tokenizer *t, gmal_blob *vocab) {
    vocab->name = "vocab.txt";
    vocab->size = t->tokens.size - 1; /* a space before each string there, a newline after it here */
    vocab->bytes = malloc(vocab->size);
    if (!vocab->bytes) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for vocab.txt");
    memcpy(vocab->bytes, t->tokens.bytes + 1, vocab->size);
    for (int64_t i = 0; i < t->vocab; i++) vocab->bytes[t->tokens.start[i + 1] - 2] = '\n';
    return GMA_OK;
}

/* ---- Learning ------------------------------------------------------------------------------------------------- */

typedef struct counted {
    gmal_strings words;
    int64_t *count;
    int64_t room;
    const char *path; /* the file being read, and how far */
    int64_t at;
} counted;

static gma_status count_words(void *context, const char *text, size_t n, int final, size_t *used) {
    counted *c = context;
    gma_status s = GMA_OK;
    *used = 0;
    for (size_t i = 0; i < n && s == GMA_OK;) {
        if (gmal_is_white((unsigned char)text[i])) {
            *used = ++i;
            continue;
        }
        const size_t begin = i;
        int32_t id;
        while (i < n && !gmal_is_white((unsigned char)text[i])) i++;
        if (i == n && !final) break;
        if (memchr(text + begin, 0, i - begin))
            return gma_fail(GMA_ERR_FORMAT, "%s: the word at byte %lld holds a zero byte, which a word list cannot",
                            c->path, (long long)(c->at + (int64_t)begin));
        const int64_t before = c->words.count;
        s = gmal_strings_add(&c->words, text + begin, i - begin, &id);
        if (s == GMA_OK) s = gmal_grow(&c->count, &c->room, c->words.count, sizeof *c->count);
        if (s != GMA_OK) break;
        if (id == before) c->count[id] = 0;
        c->count[id]++;
        *used = i;
    }
    c->at += (int64_t)*used;
    return s;
}

typedef struct ranked {
    int64_t count;
    const char *text;
    size_t size;
} ranked;

static int by_frequency(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    const size_t n = x->size < y->size ? x->size : y->size;
    const int order = memcmp(x->text, y->text, n);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

gma_status gmal_words_learn(const char *const *files, int count, int64_t vocab, int64_t min_count, gma_tokenizer **out) {
    counted c = {0};
    gma_status s = GMA_OK;
    int32_t id;
    for (int i = 0; i < count && s == GMA_OK; i++) {
        c.path = files[i];
        c.at = 0;
        s = gmal_read_text(files[i], count_words, &c);
    }
    ranked *order = s == GMA_OK ? malloc((size_t)(c.words.count + 1) * sizeof *order) : NULL;
    gma_tokenizer *t = order ? gmal_tokenizer_alloc(GMA_TOKENIZER_WORDS) : NULL;
    if (s == GMA_OK && !t) s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a word list");
    if (s == GMA_OK) s = gmal_strings_add(&t->tokens, unk, strlen(unk), &id);
    if (s == GMA_OK) s = gmal_strings_add(&t->tokens, eos, strlen(eos), &id);
    if (s == GMA_OK) {
        for (int64_t i = 0; i < c.words.count; i++) {
            order[i].count = c.count[i];
            order[i].text = gmal_string(&c.words, i, &order[i].size);
        }
        qsort(order, (size_t)c.words.count, sizeof *order, by_frequency);
    }
    for (int64_t i = 0; s == GMA_OK && i < c.words.count && order[i].count >= min_count; i++) {
        if (vocab > 0 && t->tokens.count >= vocab) break;
        s = gmal_strings_add(&t->tokens, order[i].text, order[i].size, &id);
    }
    if (s == GMA_OK) gmal_tokenizer_seal(t);
    if (s != GMA_OK) gma_tokenizer_destroy(t);
    *out = s == GMA_OK ? t : NULL;
    free(order);
    free(c.count);
    gmal_strings_free(&c.words);
    return s;
}
