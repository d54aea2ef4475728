/* Softmax attention in tiles: GMAI_CHUNK queries against GMAI_TILE_KEYS keys at a time. What forward and backward share.
 *
 * Scores lie with keys as rows and queries as columns, so that the softmax is a vertical reduction, and K and V are read
 * where the caller has them, row by row (V^T P^T would read a column of V by single values, at three quarters of the rate):
 *
 *   S^T = K (Q scale)^T      O += P V      dP^T = V dO^T      dV += P^T dO      dK += dS^T Q      dQ += dS K
 *
 * Which tiles there are depends on the shape only, never on the threads. */
#ifndef GMA_MIXERS_SOFTMAX_TILES_H
#define GMA_MIXERS_SOFTMAX_TILES_H

#include "engine/engine.h"
#include "mixers/mixer_impl.h"

enum { GMAI_TILE_KEYS = 96 };

/* A call in flight. */
typedef struct gmai_tiles {
    const gma_mixer_desc *d;
    const gmai_kernels *kern;
    const gmai_args *a;
    int r, rp, v, vp; /* R, D, padded */
    int64_t group; /* query heads a key head */
    float scale;
    int64_t sequences, query_blocks, key_blocks; /* blocks of one head, over all sequences */
    gmai_sequence *seq;
    int64_t *first_query_block, *first_key_block; /* of each sequence; and one behind the last */
    /* Rotary positions: cos and sin of the angles of the first key of every tile, and of the tokens within a tile. */
    float *angles, *offsets;
    double *frequencies;
    int half, half_p;
    float *weights, *weight_gradients; /* stored.c: P and dP of everything */
    float *lse; /* log of the sum of e^score of each query (B, Hq, Nq); or NULL */
    int threads;
    char *work;
    size_t work_size;
} gmai_tiles;

/* Lays out what the threads share and fills it; with b->base NULL only counts. gmai_tiles_start checks cu_seqlens. */
void gmai_tiles_take(const gma_mixer *m, gmai_bump *b, gmai_tiles *c);
gma_status gmai_tiles_start(const gma_mixer *m, const gmai_args *a, int threads, gmai_tiles *c);

/* Number of keys tiles and of query blocks of a sequence. */
static inline int64_t gmai_tiles_of(int64_t n) { return (n + GMAI_TILE_KEYS - 1) / GMAI_TILE_KEYS; }
static inline int64_t gmai_blocks_of(int64_t n) { return (n + GMAI_CHUNK - 1) / GMAI_CHUNK; }

/* The sequence that block number `block` belongs to. */
int64_t gmai_tiles_find(const int64_t *first, int64_t sequences, int64_t block);

/* Rows of which some may be no numbers, for sums in which they must not count everywhere: those rows are zeros in
 * `clean` and stand in `bad`. */
typedef struct gmai_bad_rows {
    int count, row[GMAI_TILE_KEYS];
    float *rows; /* (count, ld) */
    int ld;
} gmai_bad_rows;

/* Queries [i0, i0 + n) of a sequence, one head. */
typedef struct gmai_query_block {
    const gmai_sequence *s;
    int64_t hq, i0, end; /* end: the position of the last query among the keys, plus 1 */
    int n, nvec;
    float *rows, *columns; /* q scale, rotated: (C, rp), (rp, C) */
    float *grad, *grad_columns; /* dO: (C, vp), (vp, C) */
    float *o; /* (C, vp) */
    int finite; /* all of q and dO */
    float *clean, *clean_grad; /* rows and grad without the bad ones */
    gmai_bad_rows bad, bad_grad;
    float lse[GMAI_CHUNK], minus_delta[GMAI_CHUNK];
    uint8_t seen[GMAI_CHUNK]; /* the query sees some key of the tiles so far */
} gmai_query_block;

void gmai_query_block_take(const gmai_tiles *c, gmai_bump *b, int backward, gmai_query_block *q);
/* Which queries block number `block` of head hq holds; load: their rows (backward: dO, o and statistics too). */
void gmai_query_block_at(const gmai_tiles *c, const gmai_sequence *s, int64_t block, int64_t hq, gmai_query_block *q);
void gmai_query_block_load(const gmai_tiles *c, int backward, gmai_query_block *q);
/* The tiles of keys some query of the block may see: [*from, *to). */
void gmai_query_block_tiles(const gmai_tiles *c, const gmai_query_block *q, int64_t *from, int64_t *to);

/* Keys [j0, j0 + m) of the block's sequence, as far as the block sees them. */
typedef struct gmai_key_tile {
    int64_t j0;
    int m, partial; /* some query does not see some key */
    int lo[GMAI_TILE_KEYS], hi[GMAI_TILE_KEYS]; /* the queries that see the key; set when partial */
    uint8_t keep[GMAI_TILE_KEYS];
    int masked;
    const float *k, *v; /* rows, in the caller's memory where that will do */
    ptrdiff_t ks, vs;
    float *k_own, *v_own;
    int finite; /* partial tiles: all of k and v that takes part. v_own and (backward) k_own are clean then. */
    gmai_bad_rows bad_k, bad_v;
} gmai_key_tile;

/* Of a partial tile that is not finite: moves the bad rows of k_own and v_own to bad_k and bad_v. */
void gmai_key_tile_split(gmai_key_tile *t);
void gmai_key_tile_take(const gmai_tiles *c, gmai_bump *b, gmai_key_tile *t);
/* 0: no query of the block sees any key of this tile. Else *t is filled and its rows are loaded. */
int gmai_key_tile_load(const gmai_tiles *c, gmai_query_block *q, int64_t tile, gmai_key_tile *t);
/* S^T of the tile, hidden scores -inf. */
void gmai_key_tile_scores(const gmai_tiles *c, const gmai_query_block *q, const gmai_key_tile *t, float *s);
/* Writes x wherever a query does not see a key. */
void gmai_key_tile_hide(const gmai_key_tile *t, float *s, float x);

/* C(m, n) += sum over k of A(m, k) B(k, n), A(m,k) = a[m am + k ak]. */
void gmai_tiles_product(const gmai_tiles *c, int m, int n, int k, const float *a, ptrdiff_t am, ptrdiff_t ak,
                        const float *b, ptrdiff_t ldb, float *out, ptrdiff_t ldc, int add);

/* Turns rows forwards (sign 1) or back by the angles of the tokens from `base` (gmai_tiles_angles, or a row of c->angles) on. */
void gmai_tiles_rotate(const gmai_tiles *c, float *rows, int n, const float *base, float sign);
void gmai_tiles_angles(const gmai_tiles *c, double position, float *base);
static inline const float *gmai_key_angles(const gmai_tiles *c, int64_t tile) { return c->angles + tile * 2 * c->half_p; }

void gmai_softmax_forward(const gmai_tiles *c);
void gmai_softmax_backward(const gmai_tiles *c);
size_t gmai_softmax_forward_work(const gmai_tiles *c);
size_t gmai_softmax_backward_work(const gmai_tiles *c);

#endif
