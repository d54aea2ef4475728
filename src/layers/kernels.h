/* The elementwise loops of the layers: src/layers/kernels/<name>.c, plain branch-free C that the compiler vectorises.
 * The float kernels are compiled once per CPU tier and picked with gma_isa_default(); the double ones once.
 * A kernel works on a range of rows and knows nothing of threads; the layers split the rows.
 * Every sum has a fixed order (GMAL_LANES partial sums), so all tiers give the same bits; the matrix product alone is
 * written in the vector words of src/simd and its bits belong to the tier.
 *
 * Adding one: a row here, a body in src/layers/kernels/. */
#ifndef GMA_LAYERS_KERNELS_H
#define GMA_LAYERS_KERNELS_H

#include <stdint.h>

#include "gma/base.h"

enum { GMAL_LANES = 16 };

/* X(name, return type, parameters); `real` is float or double. ld = elements from one row to the next. */
#define GMAL_KERNEL_LIST(X, real)                                                                                      \
    /* y = x w rstd, rstd = 1/sqrt(mean(x^2) + eps) */                                                                 \
    X(rms_forward, void, (const real *x, const real *w, real *y, real *rstd, int64_t rows, int64_t n, real eps))       \
    /* dx += ..., dw += ... */                                                                                         \
    X(rms_backward, void,                                                                                              \
      (const real *dy, const real *x, const real *w, const real *rstd, real *dx, real *dw, int64_t rows, int64_t n))   \
    /* y = (x - mean) rstd w + b */                                                                                    \
    X(layer_forward, void,                                                                                             \
      (const real *x, const real *w, const real *b, real *y, real *mean, real *rstd, int64_t rows, int64_t n,          \
       real eps))                                                                                                      \
    X(layer_backward, void,                                                                                            \
      (const real *dy, const real *x, const real *w, const real *mean, const real *rstd, real *dx, real *dw, real *db, \
       int64_t rows, int64_t n))                                                                                       \
    /* a = gelu(h), the tanh form */                                                                                   \
    X(gelu_forward, void, (const real *h, real *a, int64_t n))                                                         \
    X(gelu_backward, void, (const real *h, const real *da, real *dh, int64_t n))                                       \
    /* a = silu(h[0:n]) h[n:2n], a row of h is 2n wide */                                                              \
    X(swiglu_forward, void, (const real *h, real *a, int64_t rows, int64_t n))                                         \
    X(swiglu_backward, void, (const real *h, const real *da, real *dh, int64_t rows, int64_t n))                       \
    /* y = silu(x + b); y may be x */                                                                                  \
    X(silu_forward, void, (const real *x, const real *b, real *y, int64_t rows, int64_t n))                            \
    /* dx = ..., db += ...; dx may be dy */                                                                            \
    X(silu_backward, void,                                                                                             \
      (const real *x, const real *b, const real *dy, real *dx, real *db, int64_t ld, int64_t rows, int64_t n))         \
    /* y = o silu(g); g and dg have their own row stride */                                                            \
    X(gate_forward, void, (const real *o, const real *g, int64_t ldg, real *y, int64_t rows, int64_t n))               \
    X(gate_backward, void,                                                                                             \
      (const real *o, const real *g, int64_t ldg, const real *dy, real *d_o, real *dg, int64_t lddg, int64_t rows,     \
       int64_t n))                                                                                                     \
    /* y_t = sum_j w_j x_{t-j}, per column; w is (taps, n) with tap 0 = now; `before` rows of the sequence lie in front of x,   \
       and what is before them is zero */                                                                              \
    X(conv_forward, void,                                                                                              \
      (const real *x, int64_t ldx, const real *w, int64_t ldw, real *y, int64_t ldy, int64_t rows, int64_t before,     \
       int64_t n, int64_t taps))                                                                                       \
    /* dx = ..., dw += ...; `after` rows of the sequence lie behind those of dy */                                     \
    X(conv_backward, void,                                                                                             \
      (const real *dy, int64_t lddy, const real *x, int64_t ldx, const real *w, int64_t ldw, real *dx, int64_t lddx,   \
       real *dw, int64_t lddw, int64_t rows, int64_t after, int64_t n, int64_t taps))                                  \
    /* in place on heads of width n (even): pairs (i, i + n/2) turned by the angle of cs = (cos, sin) rows; sign -1    \
       turns back, which is the gradient */                                                                            \
    X(rotate, void, (real *x, int64_t ldx, const real *cs, int64_t steps, int64_t heads, int64_t n, real sign))        \
    /* logits -> sum of -log softmax at the targets (returned); with `scale` != 0 logits become scale * gradient.      \
       target < 0: no loss, no gradient */                                                                             \
    X(cross_entropy, double, (real *logits, int64_t ld, const int32_t *target, int64_t rows, int64_t n, real scale))   \
    /* out = x + y; out may be x or y */                                                                               \
    X(sum, void, (const real *x, const real *y, real *out, int64_t n))                                                 \
    /* y += x */                                                                                                       \
    X(add, void, (const real *x, real *y, int64_t n))                                                                  \
    /* y += keep(i) x / (1 - p), or y = the same with add = 0; keep by hash of (key, first + i) >= threshold */        \
    X(dropout, void,                                                                                                   \
      (const real *x, real *y, int64_t n, uint32_t key, uint32_t first, uint32_t threshold, real scale, int add))      \
    X(sum_squares, double, (const real *x, int64_t n))                                                                 \
    /* decoupled weight decay: p -= lr (m^ / (sqrt(v^) + eps) + decay p), with bias corrections c1, c2 */              \
    X(adamw, void,                                                                                                     \
      (real *p, const real *g, real *m, real *v, int64_t n, real lr, real beta1, real beta2, real eps, real decay,     \
       real c1, real c2, real grad_scale))                                                                             \
    /* y_i = <w_i, x>, w (n, k) */                                                                                     \
    X(gemv, void, (const real *w, int64_t ldw, const real *x, real *y, int64_t n, int64_t k))                          \
    /* b (k, n), or its transpose as stored (n, k), in the panels that gemm_block reads; room for k columns rounded up   \
       to GMAL_GEMM_N */                                                                                               \
    X(gemm_pack, void, (int transposed, const real *b, int64_t ldb, int64_t k, int64_t n, real *panels))                \
    /* a (m, k), or its transpose as stored (k, m), as gemm_block reads it; out: GMAL_GEMM_M x GMAL_GEMM_LDA */          \
    X(gemm_rows, void, (int transposed, const real *a, int64_t lda, int64_t m, int64_t k, real *out))                   \
    /* c (m, n) = alpha a b + beta c, a from gemm_rows with the same `transposed`; beta = 0 does not read c */          \
    X(gemm_block, void,                                                                                                \
      (int transposed, const real *a, const real *panels, real alpha, real beta, real *c, int64_t ldc, int64_t m,      \
       int64_t n, int64_t k))

/* Most columns and rows of a packed block of b; most rows of a; the distance of the latter. */
enum { GMAL_GEMM_N = 256, GMAL_GEMM_K = 256, GMAL_GEMM_M = 96, GMAL_GEMM_LDA = GMAL_GEMM_K + 16 };

#define GMAL_FIELD_F32(name, ret, params) ret(*name) params;
typedef struct gmal_kernels_f32 {
    GMAL_KERNEL_LIST(GMAL_FIELD_F32, float)
} gmal_kernels_f32;
typedef struct gmal_kernels_f64 {
    GMAL_KERNEL_LIST(GMAL_FIELD_F32, double)
} gmal_kernels_f64;
#undef GMAL_FIELD_F32

/* The table of the tier in use. gmal_kernels_init() must have succeeded once in this process: it reports an unknown
 * GMA_ISA; every gma_lm and gma_train entry that can create something calls it. */
gma_status gmal_kernels_init(void);
const gmal_kernels_f32 *gmal_get_kernels_f32(void);
const gmal_kernels_f64 *gmal_get_kernels_f64(void);

/* One tier's table by name, NULL when it is not built or this CPU cannot run it: for tests. */
const gmal_kernels_f32 *gmal_kernels_of_tier(gma_isa isa);

#endif
