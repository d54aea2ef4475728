/* Declarations of layers.h, once per precision. */
#include "layers/real.h"

/* b, mean: layer norm only (NULL for RMS). backward: dx += ...; partial: GMAL_GROUPS * 2 * n elements. */
void GMAL_T(gmal_norm_forward)(int kind, const gmal_real *x, const gmal_real *w, const gmal_real *b, gmal_real *y,
                               gmal_real *mean, gmal_real *rstd, int64_t rows, int64_t n, double eps, int threads);
void GMAL_T(gmal_norm_backward)(int kind, const gmal_real *dy, const gmal_real *x, const gmal_real *w,
                                const gmal_real *mean, const gmal_real *rstd, gmal_real *dx, gmal_real *dw,
                                gmal_real *db, gmal_real *partial, int64_t rows, int64_t n, int threads);

/* a (rows, n) from h: (rows, n) for GELU, (rows, 2n) = [gate, value] for SwiGLU. */
void GMAL_T(gmal_mlp_forward)(int kind, const gmal_real *h, gmal_real *a, int64_t rows, int64_t n, int threads);
void GMAL_T(gmal_mlp_backward)(int kind, const gmal_real *h, const gmal_real *da, gmal_real *dh, int64_t rows,
                               int64_t n, int threads);

/* The activation inside the product before it (forward) and behind it (backward), so that GELU costs no pass over memory of
 * its own. w: (n or 2n, in); (out, n). h = x w^T, a from h; dh from dy w. da (rows, n): scratch, for SwiGLU. */
gma_status GMAL_T(gmal_mlp_up)(int kind, const gmal_real *x, const gmal_real *w, gmal_real *h, gmal_real *a, int64_t rows,
                               int64_t in, int64_t n, int threads);
gma_status GMAL_T(gmal_mlp_down_backward)(int kind, const gmal_real *dy, const gmal_real *w, const gmal_real *h,
                                          gmal_real *da, gmal_real *dh, int64_t rows, int64_t n, int64_t out, int threads);

/* y = silu(x + b), b (n); y may be x. backward: db += ...; dx may be dy. */
void GMAL_T(gmal_silu_forward)(const gmal_real *x, const gmal_real *b, gmal_real *y, int64_t rows, int64_t n,
                               int threads);
void GMAL_T(gmal_silu_backward)(const gmal_real *x, const gmal_real *b, const gmal_real *dy, gmal_real *dx,
                                gmal_real *db, int64_t rows, int64_t n, int threads);

/* y = o silu(g) */
void GMAL_T(gmal_gate_forward)(const gmal_real *o, const gmal_real *g, int64_t ldg, gmal_real *y, int64_t rows,
                               int64_t n, int threads);
void GMAL_T(gmal_gate_backward)(const gmal_real *o, const gmal_real *g, int64_t ldg, const gmal_real *dy,
                                gmal_real *d_o, gmal_real *dg, int64_t lddg, int64_t rows, int64_t n, int threads);

/* y[b,t] = sum_j w[j] x[b,t-j], w (taps, n); nothing reaches into another sequence */
void GMAL_T(gmal_conv_forward)(const gmal_real *x, int64_t ldx, const gmal_real *w, gmal_real *y, int64_t ldy,
                               gmal_sequences seqs, int64_t n, int64_t taps, int threads);
void GMAL_T(gmal_conv_backward)(const gmal_real *dy, int64_t lddy, const gmal_real *x, int64_t ldx,
                                const gmal_real *w, gmal_real *dx, int64_t lddx, gmal_real *dw, gmal_sequences seqs,
                                int64_t n, int64_t taps, int threads);

/* Rotary positions in place, from 0 in every sequence; cs (steps, n) from gmal_rotary_table, n even; sign -1 is the gradient. */
void GMAL_T(gmal_rotary_table)(gmal_real *cs, int64_t first, int64_t steps, int64_t n, double base);
void GMAL_T(gmal_rotary)(gmal_real *x, int64_t ldx, const gmal_real *cs, gmal_sequences seqs, int64_t heads, int64_t n,
                         int sign, int threads);

/* log_decay[b,h,t] = log sigmoid(z[b,t,h] + bias[h]) */
void GMAL_T(gmal_forget_forward)(const gmal_real *z, int64_t ldz, const gmal_real *bias, gmal_real *log_decay,
                                 int64_t batch, int64_t steps, int64_t heads, int threads);
void GMAL_T(gmal_forget_backward)(const gmal_real *d_log_decay, const gmal_real *log_decay, gmal_real *dz,
                                  int64_t lddz, gmal_real *dbias, int64_t batch, int64_t steps, int64_t heads,
                                  int threads);

/* x = table[token] (+ positions[t]); positions may be NULL. Tokens have been checked. */
void GMAL_T(gmal_embed_forward)(const int32_t *tokens, const gmal_real *table, const gmal_real *positions,
                                gmal_real *x, gmal_sequences seqs, int64_t n, int threads);
void GMAL_T(gmal_embed_backward)(const int32_t *tokens, const gmal_real *dx, gmal_real *dtable, gmal_real *dpositions,
                                 gmal_sequences seqs, int64_t n, int threads);

/* y (sequences, n) from x (rows, n); backward overwrites dx. An empty sequence gives zeros. */
void GMAL_T(gmal_pool_forward)(int kind, const gmal_real *x, gmal_real *y, gmal_sequences seqs, int64_t n, int threads);
void GMAL_T(gmal_pool_backward)(int kind, const gmal_real *dy, gmal_real *dx, gmal_sequences seqs, int64_t n,
                                int threads);

/* out = x + dropout(y); out may be x. */
void GMAL_T(gmal_residual)(const gmal_real *x, const gmal_real *y, gmal_real *out, int64_t n, gmal_dropout drop,
                           int threads);
/* out = x + dropout(y), normed = norm(out): the two above in one pass over memory; out may be x. */
void GMAL_T(gmal_residual_norm)(int kind, const gmal_real *x, const gmal_real *y, gmal_real *out, gmal_dropout drop,
                                const gmal_real *w, const gmal_real *b, gmal_real *normed, gmal_real *mean,
                                gmal_real *rstd, int64_t rows, int64_t n, double eps, int threads);
/* y = dropout(x): its own gradient too. y may be x. */
void GMAL_T(gmal_dropout_apply)(const gmal_real *x, gmal_real *y, int64_t n, gmal_dropout drop, int threads);

/* Sum of -log softmax(logits)[target] over rows with target >= 0; scale != 0: logits become scale * its gradient. */
double GMAL_T(gmal_cross_entropy)(gmal_real *logits, const int32_t *targets, int64_t rows, int64_t n, double scale,
                                  int threads);

/* c = op(a) op(b) as in matmul.h; here so that typed code has one name for both precisions. */
gma_status GMAL_T(gmal_matmul)(int ta, int tb, int64_t m, int64_t n, int64_t k, gmal_real alpha, const gmal_real *a,
                               int64_t lda, const gmal_real *b, int64_t ldb, gmal_real beta, gmal_real *c,
                               int64_t ldc, int threads);
