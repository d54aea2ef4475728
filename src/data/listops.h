/* ListOps expressions as rows of symbols. */
#ifndef GMA_DATA_LISTOPS_H
#define GMA_DATA_LISTOPS_H

#include "gma/data.h"

/* The vocabulary of Long Range Arena: ids of the token files, and FIRST and LAST, which it does not have. */
enum {
    GMAL_LISTOPS_PAD,
    GMAL_LISTOPS_MIN,
    GMAL_LISTOPS_MAX,
    GMAL_LISTOPS_MED,
    GMAL_LISTOPS_SM,
    GMAL_LISTOPS_CLOSE,
    GMAL_LISTOPS_DIGIT, /* the digit 0; nine more follow */
    GMAL_LISTOPS_VOCAB = GMAL_LISTOPS_DIGIT + 10,
    GMAL_LISTOPS_FIRST = GMAL_LISTOPS_VOCAB,
    GMAL_LISTOPS_LAST
};

enum { GMAL_LISTOPS_LEAST = 500, GMAL_LISTOPS_MOST = 2000 }; /* lengths strictly between are kept */

/* Symbols of a text, parentheses left out, and the value. Errors (FORMAT) say at which character. */
gma_status gmal_listops_parse(const char *text, size_t n, gma_token_list *symbols, int32_t *value);

gma_status gmal_listops_tokenizer(gma_tokenizer **t);

/* The tree of attempt number `attempt`: its symbols and value, or *length = 0 when it grew to 2000 symbols or more.
 * `symbols` has room for 2000. */
void gmal_listops_draw(uint64_t seed, uint64_t attempt, int32_t *symbols, int32_t *length, int32_t *value);

#endif
