/* ListOps files: the generated set, and TSV files of others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/listops.h"
#include "data/token_file.h"
#include "data/tokenizer.h"
#include "layers/try.h"

enum { SPLITS = 3, CLASSES = 10 };
static const char *const split_names[SPLITS] = {"train", "val", "test"};

/* ---- The official text form ----------------------------------------------------------------------------------- */

/* [MAX 1 7 ] as ( ( ( [MAX 1 ) 7 ) ] ): one parenthesis opens for every argument and for the bracket. */
static int32_t print_tree(FILE *out, const char *const *spelling, const int32_t *x) {
    if (x[0] >= GMAL_LISTOPS_DIGIT) {
        fputs(spelling[x[0]], out);
        return 1;
    }
    int32_t n = 1, args = 0;
    for (int depth = 1; depth > 0; n++) {
        args += depth == 1 && x[n] != GMAL_LISTOPS_CLOSE;
        depth += x[n] == GMAL_LISTOPS_CLOSE ? -1 : x[n] < GMAL_LISTOPS_DIGIT;
    }
    for (int32_t i = 0; i < args + 1; i++) fputs("( ", out);
    fputs(spelling[x[0]], out);
    for (int32_t at = 1; x[at] != GMAL_LISTOPS_CLOSE;) {
        fputc(' ', out);
        at += print_tree(out, spelling, x + at);
        fputs(" )", out);
    }
    fputs(" ] )", out);
    return n;
}

/* ---- Generating ----------------------------------------------------------------------------------------------- */

gma_status gma_listops_options_init(gma_listops_options *o) {
    if (!o) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options is NULL");
    *o = (gma_listops_options){.struct_size = sizeof *o, .seed = 1, .train = 96000, .val = 2000, .test = 2000};
    return GMA_OK;
}

typedef struct maker {
    const gma_listops_options *o;
    const gma_tokenizer *t;
    const char *folder;
    uint64_t attempt; /* the next one */
    gmal_pairs seen; /* hashes of the trees so far */
} maker;

static gma_status next_tree(maker *m, int32_t *symbols, int32_t *length, int32_t *value) {
    for (;;) {
        gmal_listops_draw(m->o->seed, m->attempt++, symbols, length, value);
        if (*length <= GMAL_LISTOPS_LEAST) continue;
        /* The same tree twice: the hash is 64 bits of more than 500 symbols, so equal hashes are taken for equal trees. */
        const uint64_t h = gmal_hash_of(symbols, (size_t)*length * sizeof *symbols) & (UINT64_MAX >> 1);
        const size_t before = m->seen.count;
        int32_t ignored;
        const gma_status s = gmal_pairs_add(&m->seen, h, 0, &ignored);
        if (s != GMA_OK || m->seen.count > before) return s;
    }
}

typedef struct part_names {
    char tokens[4200], tsv[4200];
} part_names;

static part_names names_of(const char *folder, const char *part) {
    part_names n;
    snprintf(n.tokens, sizeof n.tokens, "%s/%s.tokens", folder, part);
    snprintf(n.tsv, sizeof n.tsv, "%s/basic_%s.tsv", folder, part);
    return n;
}

static gma_status make_split(maker *m, const char *name, int64_t count) {
    static const char *const spelling[GMAL_LISTOPS_VOCAB] = {"", "[MIN", "[MAX", "[MED", "[SM", "]", "0", "1", "2", "3", "4",
                                                             "5", "6", "7", "8", "9"};
    int32_t symbols[GMAL_LISTOPS_MOST], length, value;
    const part_names names = names_of(m->folder, name);
    char source[100];
    gmal_token_writer w;
    gmal_replace text = {NULL, NULL, NULL};
    snprintf(source, sizeof source, "ListOps %s, seed %llu", name, (unsigned long long)m->o->seed);
    gma_status s = gmal_token_writer_begin(&w, names.tokens, m->t, GMA_TOKEN_LABELS, CLASSES, source);
    if (s != GMA_OK) return s;
    if (m->o->tsv) s = gmal_replace_begin(&text, names.tsv);
    if (s == GMA_OK && text.file) fputs("Source\tTarget\r\n", text.file);
    for (int64_t i = 0; i < count && s == GMA_OK; i++) {
        s = next_tree(m, symbols, &length, &value);
        if (s == GMA_OK) s = gmal_token_writer_add(&w, symbols, length);
        if (s == GMA_OK) s = gmal_token_writer_end(&w, value);
        if (s != GMA_OK || !text.file) continue;
        print_tree(text.file, spelling, symbols);
        if (fprintf(text.file, "\t%d\r\n", (int)value) < 0) s = gma_fail(GMA_ERR_IO, "%s: cannot write", names.tsv);
    }
    if (text.file && s == GMA_OK) s = gmal_replace_commit(&text);
    else if (text.file) gmal_replace_abandon(&text);
    if (s == GMA_OK) return gmal_token_writer_finish(&w);
    gmal_token_writer_abandon(&w);
    return s;
}

gma_status gma_data_listops(const gma_listops_options *o, const char *folder) {
    if (!o || o->struct_size != sizeof *o || !folder)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_data_listops: options are not initialised or folder is NULL");
    const int64_t counts[SPLITS] = {o->train, o->val, o->test};
    for (int i = 0; i < SPLITS; i++)
        if (counts[i] < 0 || counts[i] > 100000000)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s must be from 0 to 100000000, not %lld", split_names[i],
                            (long long)counts[i]);
    if (!counts[0] && !counts[1] && !counts[2])
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "train is 0, and so are val and test: there is nothing to make");
    if (strlen(folder) > 4000) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the name of the folder is too long");
    for (int i = 0; i < SPLITS; i++) {
        const part_names names = names_of(folder, split_names[i]);
        if (!counts[i]) TRY(gmal_no_leftover(names.tokens));
        if (!counts[i] || !o->tsv) TRY(gmal_no_leftover(names.tsv)); /* of other expressions than the new tokens */
    }
    gma_tokenizer *t;
    gma_status s = gmal_listops_tokenizer(&t);
    if (s == GMA_OK) s = gmal_make_folder(folder);
    maker m = {.o = o, .t = t, .folder = folder};
    for (int i = 0; i < SPLITS && s == GMA_OK; i++)
        if (counts[i]) s = make_split(&m, split_names[i], counts[i]);
    gmal_pairs_free(&m.seen);
    gma_tokenizer_destroy(t);
    return s;
}

/* ---- Reading TSV ---------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    long long line;
    int expression_first;
    gma_token_list symbols;
    gmal_token_writer w;
} reader;

static gma_status wrong(const reader *r, const char *why) {
    return gma_fail(GMA_ERR_FORMAT, "%s: line %lld: %s", r->path, r->line, why);
}

static gma_status read_line(reader *r, const char *text, size_t n) {
    static const char head[] = "Source\tTarget";
    if (n && text[n - 1] == '\r') n--;
    if (++r->line == 1 && n == sizeof head - 1 && memcmp(text, head, n) == 0) {
        r->expression_first = 1;
        return GMA_OK;
    }
    const char *tab = memchr(text, '\t', n);
    if (!tab) return wrong(r, "is not two fields with a tab between");
    const char *expression = r->expression_first ? text : tab + 1, *label = r->expression_first ? tab + 1 : text;
    const size_t first = (size_t)(tab - text), second = n - first - 1;
    const size_t label_size = r->expression_first ? second : first, size = r->expression_first ? first : second;
    if (label_size != 1 || *label < '0' || *label > '9') return wrong(r, "its label is not a digit from 0 to 9");
    int32_t value;
    char why[400];
    r->symbols.count = 0;
    if (gmal_listops_parse(expression, size, &r->symbols, &value) != GMA_OK) {
        snprintf(why, sizeof why, "%s", gma_last_error());
        return wrong(r, why);
    }
    for (int64_t i = 0; i < r->symbols.count; i++)
        if (r->symbols.ids[i] >= GMAL_LISTOPS_VOCAB) return wrong(r, "FIRST and LAST are not in the vocabulary");
    if (value != *label - '0') {
        snprintf(why, sizeof why, "its label is %c, its value %d", *label, (int)value);
        return wrong(r, why);
    }
    const gma_status s = gmal_token_writer_add(&r->w, r->symbols.ids, r->symbols.count);
    return s == GMA_OK ? gmal_token_writer_end(&r->w, value) : s;
}

static gma_status read_lines(void *context, const char *text, size_t n, int final, size_t *used) {
    *used = 0;
    while (*used < n) {
        const char *begin = text + *used, *end = memchr(begin, '\n', n - *used);
        if (!end && !final) return GMA_OK;
        const size_t size = end ? (size_t)(end - begin) : n - *used;
        const gma_status s = read_line(context, begin, size);
        if (s != GMA_OK) return s;
        *used += size + (end != NULL);
    }
    return GMA_OK;
}

gma_status gma_data_listops_read(const char *tsv, const char *out) {
    gma_tokenizer *t;
    if (!tsv || !out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_data_listops_read: tsv or out is NULL");
    const char *name = strrchr(tsv, '/');
    reader r = {.path = tsv};
    gma_status s = gmal_listops_tokenizer(&t);
    if (s != GMA_OK) return s;
    s = gmal_token_writer_begin(&r.w, out, t, GMA_TOKEN_LABELS, CLASSES, name ? name + 1 : tsv);
    if (s == GMA_OK) {
        s = gmal_read_text(tsv, read_lines, &r);
        if (s == GMA_OK && r.w.count == 0) s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: holds no expressions", tsv);
        if (s == GMA_OK) s = gmal_token_writer_finish(&r.w);
        else gmal_token_writer_abandon(&r.w);
    }
    gma_token_list_free(&r.symbols);
    gma_tokenizer_destroy(t);
    return s;
}
