/* The hot loops: one body each, compiled once per CPU tier (GMAI_ISA), reached through a table of pointers.
 *
 * Everything works on ONE chunk of at most GMAI_CHUNK tokens of one head. Two layouts:
 *   rows    [token][width]        width padded to 16 floats with zeros; leading dimension ld
 *   columns [feature][GMAI_CHUNK] tokens side by side, so that a softmax over K is a vertical reduction
 * `nvec` counts vectors of tokens: ceil(n / VL) of that tier (see `lanes`). Columns from n on are padding: they hold
 * finite values or zeros, and are never stored to the caller.
 * Buffers are internal, 64-byte aligned, padded; only pack, unpack and step touch the caller's memory, with masked tails. */
#ifndef GMA_KERNELS_KERNELS_H
#define GMA_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { GMAI_CHUNK = 64, GMAI_PAD = 16, GMAI_GROUP = 4 /* components side by side in gmai_mixture.blocked */ };

/* For bodies whose blocking must be a constant to the compiler in every copy. */
#define GMAI_INLINE static inline __attribute__((always_inline))

/* Before a loop over a block of registers, its length (at most 8) known to the compiler: unrolled completely, so that an
 * array of sums becomes registers. clang does not do that for GCC's pragma, or only after it has put the sums on the stack. */
#ifdef __clang__
#define GMAI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GMAI_UNROLL _Pragma("GCC unroll 8")
#endif

static inline int64_t gmai_pad(int64_t n) { return (n + GMAI_PAD - 1) / GMAI_PAD * GMAI_PAD; }

/* Token rows in the caller's memory. */
typedef struct gmai_rows {
    void *data; /* first row; NULL = absent */
    int64_t stride; /* elements from row to row */
    int dtype; /* GMA_F32 or GMA_BF16 */
} gmai_rows;

/* Rows that will be wanted in the next chunk. Fetched while this one computes: a prefetch never faults, so they may lie
 * behind the caller's memory, and are kept as integers. rows = 0: none. */
typedef struct gmai_ahead {
    uintptr_t first;
    int64_t stride; /* bytes */
    int bytes, rows;
} gmai_ahead;

/* Part `part` of `parts` of two such lots (NULL: none). Spread out like that, the loads hide behind the arithmetic. Inlined
 * always: gcc takes a function that only prefetches for one without an effect and drops calls of it. */
GMAI_INLINE void gmai_fetch_ahead(const gmai_ahead *ahead, int part, int parts)
{
    for (int l = 0; l < 2 && ahead; l++) {
        const gmai_ahead *a = &ahead[l];
        for (int i = part * a->rows / parts; i < (part + 1) * a->rows / parts; i++)
            for (int j = 0; j < a->bytes; j += 64)
                __builtin_prefetch((const void *)(a->first + (uintptr_t)((int64_t)i * a->stride) + (uintptr_t)j));
    }
}

/* One mixture in the form the kernels want; see src/mixers/gma/mixture.c for how it is made.
 *   t_kr = (x_r - c_r) w_kr - mw_kr,  logit_k = konst_k - sum_r t_kr^2  */
typedef struct gmai_mixture {
    int k, r, rp; /* K, R, R padded */
    const float *center; /* (rp) c; NULL: none */
    const float *w; /* (k4, rp) rows; k4 = K rounded up to 4 */
    const float *mw; /* (k4, rp) */
    const float *blocked; /* (k4 / 4, r, 2, 4): w and mw of four components side by side, for broadcasts */
    const float *konst; /* (k4) */
    /* Tiers with tiles, NULL elsewhere: two bf16 terms of 2 w mw and of -w^2 as tiles; konst - sum mw^2, (kp, 16);
     * the largest 2 w^2 of each dimension, and of |2 mw^2|; exact: no centre. See kernels/tile_mixture_amx.c. */
    const uint16_t *tile_rows;
    const float *tile_bias, *tile_bound, *tile_weights; /* the last: for gradients */
    float tile_mu_bound;
    int tile_exact;
} gmai_mixture;

/* A product term: sum over k of A(m,k) B(k,n), A(m,k) = a[m am + k ak], B(k,n) = b[k ldb + n]. */
typedef struct gmai_term {
    const float *a;
    ptrdiff_t am, ak;
    const float *b;
    ptrdiff_t ldb;
    int k;
} gmai_term;

/* The sums of one head while it decodes: base + block. A token changes block only, in plain f32; before that could cost
 * digits, block is folded into base, which is a pair of floats (base is its first). All padded to 16 floats a row. */
typedef struct gmai_step_sums {
    int k, kp, d, ld; /* K, K padded; D, D padded */
    const float *base, *z_base; /* (k, ld); (kp) */
    float *block, *z_block;
} gmai_step_sums;

/* Which part of a product is known to be zero. m: row, n: column, k: contraction index of the LAST term. */
typedef enum gmai_triangle {
    GMAI_FULL = 0,
    GMAI_K_LE_M, /* A(m,k) = 0 for k > m */
    GMAI_K_GE_M, /* A(m,k) = 0 for k < m */
    GMAI_K_LE_N, /* B(k,n) = 0 for k > n */
    GMAI_K_GE_N, /* B(k,n) = 0 for k < n */
    GMAI_N_GE_M /* only columns n >= m are wanted; others may stay unwritten */
} gmai_triangle;

/* The selective scan of Mamba over one chunk and one group of channels, channels as lanes. */
enum {
    GMAI_SCAN_WIDTH = 32, /* channels of a group: the row length of everything a channel has */
    GMAI_SCAN_STATES = 4, /* states whose recurrence runs in registers at a time */
    GMAI_SCAN_WORK = (4 * GMAI_CHUNK + 1) * GMAI_SCAN_STATES * 16 /* floats of work of scan_backward */
};

typedef struct gmai_scan {
    int n, nvec, states, ld; /* tokens, vectors of channels in use, S, row length of b and c */
    int shrinking; /* no A of the group is positive: every exp(delta A) <= 1 */
    const float *a2; /* (S, W) A log2 e */
    const float *d, *bias; /* (W) */
    const float *u, *raw; /* (n, W): inputs as they came */
    float *delta, *du; /* (n, W): softplus(raw + bias), delta u; by scan_prepare */
    const float *b, *c; /* (n, ld) */
    gmai_ahead ahead[3]; /* rows worth fetching meanwhile */
    int aheads;
} gmai_scan;

typedef struct gmai_kernels {
    int lanes; /* VL of this tier */

    /* Caller's rows -> rows (and columns, if wanted), minus `center` (or NULL). Rows with keep[i] = 0 (keep NULL: none)
     * are not read and become 0, as do those from n up to a whole vector. Returns 1 when all that was read is finite. */
    int (*pack)(const gmai_rows *src, int n, int width, const uint8_t *keep,
    const float *center, float *rows, int ld, float *columns);
    /* Rows -> the caller's, times scale[token] (or NULL). */
    void (*unpack)(const float *rows, int ld, int n, int width, const float *scale, const gmai_rows *dst);
    /* dst[c][r] = src[r][c]; rows, cols and leading dimensions are multiples of the lanes, or padded to them. */
    void (*transpose)(const float *src, int lds, int rows, int cols, float *dst, int ldd);

    /* columns of centred x, as pack gives them -> logits (k4 rows). ahead[2]: what to prefetch meanwhile, or NULL. Where the
     * tables of tiles have had no centre to subtract their columns are pairs of bf16, which become floats when those are
     * wanted after all: see kernels/tile_mixture_amx.c. */
    void (*logits)(const gmai_mixture *m, float *columns, int nvec, float *logits, const gmai_ahead *ahead);
    /* In place over K rows. Returns 1 when some column's largest logit is not finite (such a column is NaN). */
    int (*softmax)(float *logits, int k, int nvec);
    /* dgamma -> dlogits, in place: gamma o (dgamma - dot), dot(token) = <gamma, dgamma>, which is also given. */
    void (*softmax_backward)(const float *gamma, float *dgamma, int k, int nvec, float *dot);
    /* From dlogits (columns) and centred x (rows): dx rows (overwritten), and += on sums (K, rp) of dl t and dl t^2. */
    void (*mixture_backward)(const gmai_mixture *m, const float *rows, const float *dlogits, int n, float *dx,
                             float *sum_t, float *sum_tt);

    /* phi = x + 1 where x > 0, e^x elsewhere, over rows of columns. */
    void (*elu_features)(const float *columns, int rows, int nvec, float *phi);
    /* dphi -> dx in place, dot(token) = <phi, dphi>. */
    void (*elu_backward)(const float *phi, float *dphi, int rows, int nvec, float *dot);
    /* y(token) = factor sum over rows of x^2 + offset; NaN where an x is not finite. */
    void (*square_sums)(const float *columns, int rows, int nvec, float factor, float offset, float *y);
    /* In place: e^(logit - shift(token)). Returns 1 when all is finite. */
    int (*exp_features)(float *logits, int rows, int nvec, const float *shift);
    /* In place: e^(logit - top), top the token's largest, and eps(token) = e^(log_eps + shift - top), kept between
     * 1.2e-38 and 1e37: numerator and denominator of a query divided by the same number. NaN in shift gives NaN. */
    void (*exp_features_scaled)(float *logits, int rows, int nvec, const float *shift, float log_eps, float *eps);
    /* dphi -> dlogits = phi o dphi in place, dot(token) = their sum. */
    void (*exp_backward)(const float *phi, float *dphi, int rows, int nvec, float *dot);

    /* C(m,n) (+)= row_scale(m) * T0 + T1 over n = nvec vectors of columns; t1 and row_scale may be NULL.
     * add: 1 adds to C, 0 overwrites it (C may then hold NaN). */
    void (*product)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                    const gmai_term *t1, int add, gmai_triangle triangle);
    /* NULL, or a whole chunk of n queries and keys without decay, all finite: o (rows) = phi_q^T state + P v and
     * den(i) += sum_j P_ij with P = tril(phi_q^T phi_k); state (k, ld) NULL: 0. phi as columns, v (n, ld). */
    void (*read_chunk)(int n, int k, int d, int ld, const float *phi_q, const float *phi_k, const float *v, const float *state,
                       float *o, float *den);
    /* NULL, or a whole chunk of n keys without decay: state (k, ld) += phi v, and its column d += phi 1. */
    void (*write_chunk)(int n, int k, int d, int ld, const float *phi, const float *v, float *state);
    /* y(m) += sum over tokens of A(m, token) x(token). x NULL: ones. */
    void (*row_sums)(const float *a, int rows, int nvec, const float *x, float *y, ptrdiff_t y_stride);
    /* y(token) += sum over rows of z(m) A(m, token). z NULL: ones. */
    void (*column_sums)(const float *a, int rows, int nvec, const float *z, ptrdiff_t z_stride, float *y);
    /* a *= x(token), columns. */
    void (*scale_columns)(float *a, int rows, int nvec, const float *x);
    /* dn = grad_o / den row by row, minus_delta = -<grad_o, o> / den. inverse = 1 / den. */
    void (*output_backward)(const float *grad_o, const float *o, int ld, int n, const float *inverse, float *dn,
                            float *minus_delta);
    /* PT(j,i) *= e^(cs_i - cs_j) for j <= i, 0 elsewhere (also where first[i] > j: forgotten). cs NULL: no decay. */
    void (*lower_decay)(float *pt, int n, int nvec, const double *cs, const int *first);

    /* dst = factor * base + local (local NULL: 0), n floats. factor 0 gives local alone, whatever base holds. */
    void (*combine)(const float *base, float factor, const float *local, float *dst, size_t n);
    /* (hi, lo) = factor (hi, lo) + x + xlo, error-free; factor 0 discards what was there. xlo NULL: 0. */
    void (*accumulate)(float *hi, float *lo, float factor, const float *x, const float *xlo, size_t n);
    /* y = a x + y */
    void (*axpy)(float a, const float *x, float *y, size_t n);

    /* softplus(omega) + eps_sigma = s; w = sqrt(scale / 2s); mw = (mu - c) w; dsigma = sigmoid(omega) / s. n floats
     * (a multiple of 16). Returns the sum of log s over the first `count`, in double. */
    double (*prepare_row)(const float *mu, const float *omega, const float *center, float eps_sigma, float scale, int n,
                          int count, float *w, float *mw, float *dsigma);
    /* 1 when one of n floats (a multiple of 16) is infinite; NaN is not. */
    int (*row_infinite)(const float *x, int n);
    /* With d = |x - mean| / 2: spread += weight d, furthest = max(furthest, d). n floats, a multiple of 16. */
    void (*row_spread)(const float *x, const float *mean, float weight, int n, float *spread, float *furthest);
    /* GMAI_GROUP rows of w and of mw -> their part of gmai_mixture.blocked, (r, 2, GMAI_GROUP). */
    void (*interleave)(const float *w, const float *mw, int rp, int r, float *out);

    /* Single tokens, x rows (n, rp) centred -> rows (n, kp): logits(k) = konst_k - sum_r (x_r w_kr - mw_kr)^2, components
     * as lanes. weights: (kp / 16, r, 2, 16), of 16 components at a time w and mw. */
    void (*step_logits)(const float *x, int rp, int n, int r, int kp, const float *weights, const float *konst,
                        float *logits);
    /* In place softmax over kp padded entries (padding holds -inf) of each of n rows. */
    void (*step_softmax)(float *logits, int n, int kp);
    /* In place: e^(logit - shift) over kp padded entries. */
    void (*step_exp)(float *logits, int kp, float shift);
    /* block = factor block + g v^T, z_block likewise with 1 for v (g NULL: both stay as they are), and what a query then
     * reads: y(d) = sum_k q_k block_kd + q_base_k base_kd. Returns the same sum of z. See gmai_step_sums. */
    float (*step_sums)(const gmai_step_sums *s, float factor, const float *g, const float *v, const float *q,
                       const float *q_base, float *y);
    /* (hi, lo) = (factor + factor_lo) (hi, lo) + block, error-free but for products with the small terms; block = 0. */
    void (*step_fold)(float *hi, float *lo, float factor, float factor_lo, float *block, size_t n);
    /* y(d) = sum_k g_k S(k,d) over ld floats. */
    void (*step_read)(const float *s, const float *g, int k, int ld, float *y);

    void (*scan_prepare)(const gmai_scan *s);
    /* h (S, W): at the chunk's start -> at its end. y (n, W) = C . h + D u. */
    void (*scan_forward)(const gmai_scan *s, float *h, float *y);
    /* h (S, W) at the chunk's start; dh (S, W): gradient of the state at the chunk's end -> at its start. work:
     * GMAI_SCAN_WORK floats. gu, graw (n, W) and db, dc (n, ld: sums over the channels) are overwritten; da (S, W), dd,
     * dbias (W) added to. */
    void (*scan_backward)(const gmai_scan *s, const float *dy, const float *h, float *dh, float *work, float *gu,
                          float *graw, float *db, float *dc, float *da, float *dd, float *dbias);
    /* Softmax over the rows of a column, tile by tile: s (rows, GMAI_CHUNK) becomes e^(s - top), top the column's
     * reference, which rises when a score exceeds it by far; sum = factor sum + column sums, factor = e^(old top - top).
     * Returns 1 when some factor is not 1. Start with top = -FLT_MAX, sum = 0; a hidden score is -inf. */
    int (*tile_softmax)(float *s, int rows, int nvec, float *top, float *sum, float *factor);
    /* In place: s -> p = e^(s - lse), dp -> p (dp + minus_delta). */
    void (*tile_backward)(float *s, float *dp, int rows, int nvec, const float *lse, const float *minus_delta);
    /* Turns n rows in place: each pair (x_r, x_(half+r)) by base_r + offset_r(row), forwards for sign = 1, back for -1.
     * base: cos (ldo) and sin (ldo); offset: cos (ldo) and sin (ldo) a row. ldo: half padded. */
    void (*rotate)(float *rows, int ld, int n, int half, const float *base, const float *offset, int ldo, float sign);

    /* Subnormals slow a CPU down a hundredfold and carry nothing here: treat them as 0 in this thread until restored. */
    unsigned (*flush_on)(void);
    void (*flush_restore)(unsigned before);

    /* Tiers with tiles: the table for q, k, v stored as bf16, forward (products in bf16) and backward (the same logits, for the
     * same phi, and the same states; products in two bf16 terms of each factor). NULL: this one. */
    const struct gmai_kernels *bf16_forward, *bf16_backward;
    /* Floats that they want of a mixture beside what it has, and their preparation. */
    size_t (*tile_floats)(int64_t k, int64_t r);
    void (*tile_prepare)(gmai_mixture *m, float *memory);
} gmai_kernels;

#define GMAI_CAT_(a, b) a##__##b
#define GMAI_CAT(a, b) GMAI_CAT_(a, b)
/* gmai_pack -> gmai_pack__avx2: the name of a kernel in this tier. */
#define GMAI_K(name) GMAI_CAT(gmai_##name, GMAI_ISA)

/* The table of a tier that gma_isa_supported() has confirmed. */
const gmai_kernels *gmai_kernels_of(int isa);

#endif
