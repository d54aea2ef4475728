/* Labels of tokens, to hold the routing against: by what a token is, and by where it stands. */
#ifndef GMA_INSPECT_LABELS_H
#define GMA_INSPECT_LABELS_H

#include "gma/data.h"

/* One labelling of a text. label[i] is in 0..count-1, or -1 = not labelled. */
typedef struct gmal_labels {
    const char *what; /* "surface class", ... */
    int32_t *label;   /* (tokens) */
    int64_t count;
    char **names; /* (count), or NULL where a number says it all */
} gmal_labels;

void gmal_labels_free(gmal_labels *labels);

/* The surface class of every token (inspect/classes.h). */
gma_status gmal_label_surface(const gma_tokenizer *t, const int32_t *ids, int64_t tokens, gmal_labels *labels);

/* The token's id. */
gma_status gmal_label_identity(const int32_t *ids, int64_t tokens, int64_t vocab, gmal_labels *labels);

/* The article of WikiText that a token stands in: 0, 1, ... in their order; a line " = Title = " (one equals sign)
 * opens one, and names it. What stands before the first is not labelled. count = 0 in a text without such lines. */
gma_status gmal_label_articles(const gma_tokenizer *t, const int32_t *ids, int64_t tokens, gmal_labels *labels);

/* Classes of the user's: lines "token<TAB>class" of a TSV file; \t, \n, \\ and \xNN stand for themselves in the token.
 * A token is compared as the tokenizer gives it, then without white space at its ends. Errors name file and line. */
gma_status gmal_label_tsv(const char *path, const gma_tokenizer *t, const int32_t *ids, int64_t tokens,
                          gmal_labels *labels);

#endif
