/* Generated pairs of sequences, for task seq2seq: a source of symbols drawn uniformly, and what is made of it. Pair i of a
 * key is the same on every machine.
 *
 * Token ids: the symbols 0..symbols-1, then the two that frame a target: begin and end. */
#ifndef GMA_DATA_PAIRS_H
#define GMA_DATA_PAIRS_H

#include "gma/base.h"

typedef struct gmal_pairs_of {
    int kind; /* from gmal_pairs_kind */
    int64_t symbols;
    int64_t least, most; /* symbols of a source: its length is drawn uniformly from these */
    uint64_t key;
} gmal_pairs_of;

enum { GMAL_FRAME = 2 }; /* ids beyond the symbols */

static inline int32_t gmal_begin_token(int64_t vocab) { return (int32_t)(vocab - 2); }
static inline int32_t gmal_end_token(int64_t vocab) { return (int32_t)(vocab - 1); }

/* "copy", "reverse", "sort" -> its number; the error names what there is. */
gma_status gmal_pairs_kind(const char *name, int *kind);

/* Pair `index`: source and target have room for `most` symbols. Returns how many each has. */
int64_t gmal_pair_draw(const gmal_pairs_of *of, int64_t index, int32_t *source, int32_t *target);

/* Its length alone. */
int64_t gmal_pair_length(const gmal_pairs_of *of, int64_t index);

/* The same pair as a network takes it, `room` >= most: source and mask (room) filled up with what is masked; tokens
 * (room + 1): begin, then the target; targets (room + 1): the target, then end; after that -1. Returns the length. */
int64_t gmal_pair_frame(const gmal_pairs_of *of, int64_t index, int64_t room, int32_t *source, unsigned char *mask,
                        int32_t *tokens, int32_t *targets);

#endif
