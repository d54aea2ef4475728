/* The sequences of a token file, with a class each or a target for each token. */
#ifndef GMA_DATA_SEQUENCES_H
#define GMA_DATA_SEQUENCES_H

#include "data/token_file.h"

typedef struct gmal_sequence_set {
    gma_token_file *file;
    gma_token_info info;
    int64_t context; /* what is longer is cut to it (classes), or an error (targets) */
    int64_t cut; /* how many sequences were */
    int64_t *begin; /* count + 1: where each lies in the file */
} gmal_sequence_set;

/* What is asked of a file; 0 and NULL: anything. */
typedef struct gmal_set_want {
    gma_token_layout layout; /* LABELS or TARGETS */
    int64_t context, vocab, classes;
    int bytes; /* tokens must be bytes */
    const gma_tokenizer *tokenizer;
} gmal_set_want;

/* Errors name the file and the sequence, counted from 0: another layout, vocabulary, tokenizer or number of classes; no
 * sequences; an empty one; targets beyond the context, or a sequence without a target. */
gma_status gmal_set_open(const char *path, const gmal_set_want *want, gmal_sequence_set *s);
void gmal_set_close(gmal_sequence_set *s);

static inline int64_t gmal_set_count(const gmal_sequence_set *s) { return s->info.sequences; }

/* Tokens of sequence i that are used, and whether it has more. */
int64_t gmal_set_length(const gmal_sequence_set *s, int64_t i);
int gmal_set_is_cut(const gmal_sequence_set *s, int64_t i);

/* They, and the class (LABELS: one) or the targets (as many). Either may be NULL. */
void gmal_set_read(const gmal_sequence_set *s, int64_t i, int32_t *tokens, int32_t *targets);

/* How many targets sequence i has: 1 for a class. */
int64_t gmal_set_targets(const gmal_sequence_set *s, int64_t i);

/* A range of them: the training or the validation part. */
typedef struct gmal_sequence_span {
    const gmal_sequence_set *set;
    int64_t begin, end;
} gmal_sequence_span;

int64_t gmal_sequence_span_tokens(const gmal_sequence_span *span);

/* Tells two spans apart; not against an adversary. */
uint64_t gmal_sequence_span_checksum(const gmal_sequence_span *span);

/* Which sequence the `sample`-th of training is: each once in every epoch, in an order drawn from (seed, epoch). */
int64_t gmal_order_sequence(const gmal_sequence_span *span, uint64_t seed, int64_t sample);

#endif
