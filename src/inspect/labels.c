#define _POSIX_C_SOURCE 200809L
#include "inspect/labels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/classes.h"

static gma_status no_memory(void) { return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the labels of the tokens"); }

void gmal_labels_free(gmal_labels *labels) {
    for (int64_t i = 0; labels->names && i < labels->count; i++)
        free(labels->names[i]);
    free(labels->names);
    free(labels->label);
    *labels = (gmal_labels){0};
}

static gma_status begin(const char *what, int64_t tokens, gmal_labels *labels) {
    *labels = (gmal_labels){.what = what};
    labels->label = malloc((size_t)(tokens ? tokens : 1) * sizeof *labels->label);
    return labels->label ? GMA_OK : no_memory();
}

/* The number of a name that is not there yet; -1 when out of memory. */
static int64_t add_name(gmal_labels *labels, const char *name, size_t size) {
    if ((labels->count & (labels->count - 1)) == 0) { /* room for a power of two */
        const size_t room = labels->count ? 2 * (size_t)labels->count : 1;
        char **more = realloc(labels->names, room * sizeof *more);
        if (!more)
            return -1;
        labels->names = more;
    }
    char *copy = malloc(size + 1);
    if (!copy)
        return -1;
    memcpy(copy, name, size);
    copy[size] = 0;
    labels->names[labels->count] = copy;
    return labels->count++;
}

/* ---- By what a token is --------------------------------------------------------------------------------------- */

gma_status gmal_label_surface(const gma_tokenizer *t, const int32_t *ids, int64_t tokens, gmal_labels *labels) {
    const int single = gma_tokenizer_get_kind(t) == GMA_TOKENIZER_BYTES;
    gma_status s = begin("surface class", tokens, labels);
    for (int c = 0; s == GMA_OK && c < GMAL_SURFACE_COUNT; c++)
        if (add_name(labels, gmal_surface_name((gmal_surface)c), strlen(gmal_surface_name((gmal_surface)c))) < 0)
            s = no_memory();
    for (int64_t i = 0; s == GMA_OK && i < tokens; i++) {
        const char *text;
        size_t size;
        labels->label[i] =
            gma_tokenizer_token(t, ids[i], &text, &size) ? (int32_t)gmal_surface_class(text, size, single) : -1;
    }
    if (s != GMA_OK)
        gmal_labels_free(labels);
    return s;
}

gma_status gmal_label_identity(const int32_t *ids, int64_t tokens, int64_t vocab, gmal_labels *labels) {
    const gma_status s = begin("token", tokens, labels);
    if (s != GMA_OK)
        return s;
    memcpy(labels->label, ids, (size_t)tokens * sizeof *ids);
    labels->count = vocab;
    return GMA_OK;
}

/* ---- Articles ------------------------------------------------------------------------------------------------- */

enum { LONGEST_TITLE = 400 };

/* The line being read, as far as it can still be a title, and which token it began with. */
typedef struct line {
    char text[LONGEST_TITLE];
    size_t size;
    int too_long;
    int64_t start;
} line;

/* "= Title =" without white space at its ends, and no second equals sign beside the outer ones. */
static int is_title(const line *l, const char **name, size_t *size) {
    const char *a = l->text, *b = l->text + l->size;
    if (l->too_long)
        return 0;
    while (a < b && (*a == ' ' || *a == '\r'))
        a++;
    while (b > a && (b[-1] == ' ' || b[-1] == '\r'))
        b--;
    if (b - a < 5 || a[0] != '=' || a[1] != ' ' || a[2] == '=' || b[-1] != '=' || b[-2] != ' ' || b[-3] == '=')
        return 0;
    *name = a + 2;
    *size = (size_t)(b - a) - 4;
    return 1;
}

static void add_text(line *l, const char *text, size_t size) {
    if (size > LONGEST_TITLE - l->size) {
        l->too_long = 1;
        return;
    }
    memcpy(l->text + l->size, text, size);
    l->size += size;
}

gma_status gmal_label_articles(const gma_tokenizer *t, const int32_t *ids, int64_t tokens, gmal_labels *labels) {
    line l = {.start = 0};
    int32_t article = -1;
    gma_status s = begin("article", tokens, labels);
    for (int64_t i = 0; s == GMA_OK && i < tokens; i++) {
        const char *text, *name;
        size_t size;
        if (!gma_tokenizer_token(t, ids[i], &text, &size))
            size = 0;
        labels->label[i] = article;
        const char *end = size ? memchr(text, '\n', size) : NULL;
        add_text(&l, text, end ? (size_t)(end - text) : size);
        if (!end)
            continue;
        if (is_title(&l, &name, &size)) {
            article = (int32_t)add_name(labels, name, size);
            if (article < 0)
                s = no_memory();
            for (int64_t j = l.start; j <= i; j++)
                labels->label[j] = article; /* the title belongs to it */
        }
        l = (line){.start = i + 1};
    }
    if (s != GMA_OK)
        gmal_labels_free(labels);
    return s;
}

/* ---- The user's classes --------------------------------------------------------------------------------------- */

typedef struct entry {
    char *token;
    size_t size;
    int32_t class;
    int64_t line;
} entry;

typedef struct table {
    entry *entries;
    size_t count, room;
} table;

static int hex(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* In place; returns the new size, or -1 for an escape that is none. */
static int64_t unescape(char *text, size_t size) {
    size_t to = 0;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '\\') {
            const char next = i + 1 < size ? text[++i] : 0;
            if (next == 't')
                c = '\t';
            else if (next == 'n')
                c = '\n';
            else if (next == '\\')
                c = '\\';
            else if (next == 'x' && i + 2 < size && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
                c = (char)(16 * hex(text[i + 1]) + hex(text[i + 2]));
                i += 2;
            } else
                return -1;
        }
        text[to++] = c;
    }
    return (int64_t)to;
}

static int by_token(const void *a, const void *b) {
    const entry *x = a, *y = b;
    const int c = memcmp(x->token, y->token, x->size < y->size ? x->size : y->size);
    return c ? c : (x->size > y->size) - (x->size < y->size);
}

static int by_token_and_line(const void *a, const void *b) {
    const entry *x = a, *y = b;
    const int c = by_token(a, b);
    return c ? c : (x->line > y->line) - (x->line < y->line);
}

static gma_status add_line(const char *path, int64_t number, char *text, size_t size, table *t, gmal_labels *labels) {
    char *tab = memchr(text, '\t', size);
    if (!tab || tab + 1 == text + size)
        return gma_fail(GMA_ERR_FORMAT, "%s:%lld: not \"token<TAB>class\"", path, (long long)number);
    const int64_t length = unescape(text, (size_t)(tab - text));
    if (length < 0)
        return gma_fail(GMA_ERR_FORMAT, "%s:%lld: a backslash must be followed by t, n, \\ or xNN", path,
                        (long long)number);
    if (t->count == t->room) {
        const size_t room = t->room ? 2 * t->room : 256;
        entry *more = realloc(t->entries, room * sizeof *more);
        if (!more)
            return no_memory();
        t->entries = more;
        t->room = room;
    }
    const size_t class_size = size - (size_t)(tab + 1 - text);
    int64_t class = 0;
    while (class < labels->count &&
           (strlen(labels->names[class]) != class_size || memcmp(labels->names[class], tab + 1, class_size) != 0))
        class ++;
    if (class == labels->count && (class > 10000 || (class = add_name(labels, tab + 1, class_size)) < 0))
        return class > 10000 ? gma_fail(GMA_ERR_FORMAT, "%s:%lld: more than 10000 classes", path, (long long)number)
                             : no_memory();
    entry *e = &t->entries[t->count];
    *e = (entry){malloc((size_t)length + 1), (size_t)length, (int32_t) class, number};
    if (!e->token)
        return no_memory();
    memcpy(e->token, text, (size_t)length);
    e->token[length] = 0;
    t->count++;
    return GMA_OK;
}

static gma_status read_table(const char *path, table *t, gmal_labels *labels) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t room = 0;
    ssize_t size;
    int64_t number = 0;
    gma_status s = GMA_OK;
    if (!f)
        return gma_fail(GMA_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    while (s == GMA_OK && (size = getline(&text, &room, f)) > 0) {
        number++;
        while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == '\r'))
            size--;
        if (size > 0)
            s = add_line(path, number, text, (size_t)size, t, labels);
    }
    if (s == GMA_OK && ferror(f))
        s = gma_fail(GMA_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    free(text);
    fclose(f);
    if (s == GMA_OK && t->count == 0)
        s = gma_fail(GMA_ERR_FORMAT, "%s: has no line \"token<TAB>class\"", path);
    if (s == GMA_OK)
        qsort(t->entries, t->count, sizeof *t->entries, by_token_and_line);
    for (size_t i = 1; s == GMA_OK && i < t->count; i++)
        if (by_token(&t->entries[i - 1], &t->entries[i]) == 0)
            s = gma_fail(GMA_ERR_FORMAT, "%s:%lld: the token \"%.40s\" is there twice, first in line %lld", path,
                         (long long)t->entries[i].line, t->entries[i].token, (long long)t->entries[i - 1].line);
    return s;
}

static int32_t look_up(const table *t, const char *text, size_t size) {
    entry key = {(char *)(uintptr_t)text, size, 0, 0};
    const entry *e = bsearch(&key, t->entries, t->count, sizeof *t->entries, by_token);
    if (e)
        return e->class;
    for (; key.size > 0 && strchr(" \t\n\r", key.token[0]) && key.token[0]; key.token++)
        key.size--;
    while (key.size > 0 && strchr(" \t\n\r", key.token[key.size - 1]) && key.token[key.size - 1])
        key.size--;
    if (key.size == size || key.size == 0)
        return -1;
    e = bsearch(&key, t->entries, t->count, sizeof *t->entries, by_token);
    return e ? e->class : -1;
}

gma_status gmal_label_tsv(const char *path, const gma_tokenizer *t, const int32_t *ids, int64_t tokens,
                          gmal_labels *labels) {
    table classes = {0};
    gma_status s = begin("classes of the file", tokens, labels);
    if (s == GMA_OK)
        s = read_table(path, &classes, labels);
    for (int64_t i = 0; s == GMA_OK && i < tokens; i++) {
        const char *text;
        size_t size;
        labels->label[i] = gma_tokenizer_token(t, ids[i], &text, &size) ? look_up(&classes, text, size) : -1;
    }
    for (size_t i = 0; i < classes.count; i++)
        free(classes.entries[i].token);
    free(classes.entries);
    if (s != GMA_OK)
        gmal_labels_free(labels);
    return s;
}
