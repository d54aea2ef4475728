/* IMDb reviews byte by byte, with a part of the training reviews held out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/random.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

enum { CLASSES = 2 };

gma_status gma_imdb_options_init(gma_imdb_options *o) {
    if (!o) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options is NULL");
    *o = (gma_imdb_options){.struct_size = sizeof *o, .seed = 1, .held_out = 0.1};
    return GMA_OK;
}

typedef struct reader {
    const gma_imdb_options *o;
    const char *path;
    long long line;
    gma_token_list labels; /* first pass: of every line */
    const char *held; /* second pass: which lines are held out; NULL: none */
    gmal_token_writer *train, *val;
    gma_token_list ids;
} reader;

/* label<TAB>name<TAB>text; the text may hold tabs. */
static gma_status split_line(const reader *r, const char *text, size_t n, int32_t *label, const char **review, size_t *size) {
    const char *first = memchr(text, '\t', n);
    const char *second = first ? memchr(first + 1, '\t', n - (size_t)(first + 1 - text)) : NULL;
    if (!second) return gma_fail(GMA_ERR_FORMAT, "%s: line %lld: is not label, name and text with tabs between", r->path, r->line);
    if (first - text != 1 || text[0] < '0' || text[0] >= '0' + CLASSES)
        return gma_fail(GMA_ERR_FORMAT, "%s: line %lld: label \"%.*s\" is not one of 0..%d", r->path, r->line,
                        first - text > 20 ? 20 : (int)(first - text), text, CLASSES - 1);
    *label = text[0] - '0';
    *review = second + 1;
    *size = n - (size_t)(second + 1 - text);
    if (*size == 0) return gma_fail(GMA_ERR_FORMAT, "%s: line %lld: the review is empty", r->path, r->line);
    return GMA_OK;
}

static gma_status take_line(reader *r, const char *text, size_t n) {
    int32_t label = 0;
    const char *review = NULL;
    size_t size = 0;
    r->line++;
    gma_status s = split_line(r, text, n, &label, &review, &size);
    if (s != GMA_OK) return s;
    if (!r->train) return gmal_token_push(&r->labels, label);
    gmal_token_writer *w = r->held && r->held[r->line - 1] ? r->val : r->train;
    if (r->o->max_bytes > 0 && size > (size_t)r->o->max_bytes) size = (size_t)r->o->max_bytes;
    r->ids.count = 0;
    for (size_t i = 0; i < size && s == GMA_OK; i++) s = gmal_token_push(&r->ids, (unsigned char)review[i]);
    if (s == GMA_OK) s = gmal_token_writer_add(w, r->ids.ids, r->ids.count);
    return s == GMA_OK ? gmal_token_writer_end(w, label) : s;
}

static gma_status take_lines(void *context, const char *text, size_t n, int final, size_t *used) {
    *used = 0;
    while (*used < n) {
        const char *begin = text + *used, *end = memchr(begin, '\n', n - *used);
        if (!end && !final) return GMA_OK;
        const size_t size = end ? (size_t)(end - begin) : n - *used;
        const gma_status s = take_line(context, begin, size);
        if (s != GMA_OK) return s;
        *used += size + (end != NULL);
    }
    return GMA_OK;
}

/* A file that ends early lacks the class that comes last, and the accuracy on it would look too good. */
static gma_status check_classes(const reader *r) {
    for (int32_t c = 0; c < CLASSES; c++) {
        int64_t i = 0;
        while (i < r->labels.count && r->labels.ids[i] != c) i++;
        if (i == r->labels.count)
            return gma_fail(GMA_ERR_FORMAT, "%s: of its %lld reviews none has the label %d", r->path, (long long)i, (int)c);
    }
    return GMA_OK;
}

/* ---- What is held out ----------------------------------------------------------------------------------------- */

typedef struct ticket {
    uint64_t order;
    int64_t line;
} ticket;

static int by_order(const void *a, const void *b) {
    const ticket *x = a, *y = b;
    return x->order != y->order ? (x->order > y->order) - (x->order < y->order) : (x->line > y->line) - (x->line < y->line);
}

/* Of each class, the same part: the lines that drew the lowest numbers. */
static gma_status hold_out(const gma_imdb_options *o, const gma_token_list *labels, char **held) {
    ticket *t = malloc((size_t)(labels->count + 1) * sizeof *t);
    *held = calloc((size_t)labels->count + 1, 1);
    if (!t || !*held) {
        free(t);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the labels of reviews");
    }
    const uint64_t key = gmal_key(o->seed, UINT64_C(0x696d6462));
    for (int32_t c = 0; c < CLASSES; c++) {
        int64_t n = 0;
        for (int64_t i = 0; i < labels->count; i++)
            if (labels->ids[i] == c) t[n++] = (ticket){gmal_random(key, (uint64_t)i), i};
        qsort(t, (size_t)n, sizeof *t, by_order);
        const int64_t out = (int64_t)((double)n * o->held_out + 0.5);
        for (int64_t i = 0; i < out; i++) (*held)[t[i].line] = 1;
    }
    free(t);
    return GMA_OK;
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

typedef struct folder_names {
    char train[4200], val[4200], test[4200];
} folder_names;

static void name_all(folder_names *n, const char *folder, const char *ending) {
    snprintf(n->train, sizeof n->train, "%s/train.%s", folder, ending);
    snprintf(n->val, sizeof n->val, "%s/val.%s", folder, ending);
    snprintf(n->test, sizeof n->test, "%s/test.%s", folder, ending);
}

/* One TSV file into one or two token files. */
static gma_status convert(reader *r, const gma_tokenizer *t, const char *train, const char *val, const char *source) {
    gmal_token_writer first, second;
    gma_status s = gmal_token_writer_begin(&first, train, t, GMA_TOKEN_LABELS, CLASSES, source);
    if (s != GMA_OK) return s;
    s = val ? gmal_token_writer_begin(&second, val, t, GMA_TOKEN_LABELS, CLASSES, source) : GMA_OK;
    if (s != GMA_OK) val = NULL;
    r->train = &first;
    r->val = &second;
    r->line = 0;
    if (s == GMA_OK) s = gmal_read_text(r->path, take_lines, r);
    if (s == GMA_OK && val) {
        s = gmal_token_writer_finish(&second);
        val = NULL;
    }
    if (val) gmal_token_writer_abandon(&second);
    if (s == GMA_OK) return gmal_token_writer_finish(&first);
    gmal_token_writer_abandon(&first);
    return s;
}

gma_status gma_data_imdb(const gma_imdb_options *o, const char *reviews, const char *folder) {
    if (!o || o->struct_size != sizeof *o || !reviews || !folder)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_data_imdb: options are not initialised or a folder is NULL");
    if (!(o->held_out >= 0 && o->held_out < 1) || o->max_bytes < 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "held_out must be in [0, 1) and max_bytes at least 0");
    if (strlen(reviews) > 4000 || strlen(folder) > 4000)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the name of a folder is too long");
    folder_names in, out;
    name_all(&in, reviews, "tsv");
    name_all(&out, folder, "tokens");
    gma_tokenizer *t;
    char *held = NULL;
    reader r = {.o = o, .path = in.test};
    gma_status s = gma_tokenizer_create(GMA_TOKENIZER_BYTES, 0, &t);
    if (s == GMA_OK) s = gmal_read_text(in.test, take_lines, &r); /* both are checked before anything is written */
    if (s == GMA_OK) s = check_classes(&r);
    r.labels.count = 0;
    r.line = 0;
    r.path = in.train;
    if (s == GMA_OK) s = gmal_read_text(in.train, take_lines, &r);
    if (s == GMA_OK) s = check_classes(&r);
    if (s == GMA_OK) s = hold_out(o, &r.labels, &held);
    int64_t out_count = 0;
    for (int64_t i = 0; s == GMA_OK && i < r.labels.count; i++) out_count += held[i];
    r.held = held;
    if (s == GMA_OK && !out_count && o->held_out > 0)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "held_out is %g, which of %lld reviews is none; 0 holds none out", o->held_out,
                     (long long)r.labels.count);
    if (s == GMA_OK && !out_count) s = gmal_no_leftover(out.val);
    if (s == GMA_OK) s = gmal_make_folder(folder);
    if (s == GMA_OK) s = convert(&r, t, out.train, out_count ? out.val : NULL, "IMDb train");
    r.held = NULL;
    r.path = in.test;
    if (s == GMA_OK) s = convert(&r, t, out.test, NULL, "IMDb test");
    free(held);
    gma_token_list_free(&r.labels);
    gma_token_list_free(&r.ids);
    gma_tokenizer_destroy(t);
    return s;
}
