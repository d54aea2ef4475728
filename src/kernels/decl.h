/* The kernels of one tier, as functions. Included by the bodies (each checks itself against the contract) and by table.c. */
#ifndef GMA_KERNELS_DECL_H
#define GMA_KERNELS_DECL_H

#include "kernels/kernels.h"

int GMAI_K(pack)(const gmai_rows *src, int n, int width, const uint8_t *keep,
    const float *center, float *rows, int ld, float *columns);
void GMAI_K(unpack)(const float *rows, int ld, int n, int width, const float *scale, const gmai_rows *dst);
void GMAI_K(transpose)(const float *src, int lds, int rows, int cols, float *dst, int ldd);
void GMAI_K(logits)(const gmai_mixture *m, float *columns, int nvec, float *logits, const gmai_ahead *ahead);
int GMAI_K(softmax)(float *logits, int k, int nvec);
void GMAI_K(softmax_backward)(const float *gamma, float *dgamma, int k, int nvec, float *dot);
void GMAI_K(mixture_backward)(const gmai_mixture *m, const float *rows, const float *dlogits, int n, float *dx,
                              float *sum_t, float *sum_tt);
void GMAI_K(elu_features)(const float *columns, int rows, int nvec, float *phi);
void GMAI_K(elu_backward)(const float *phi, float *dphi, int rows, int nvec, float *dot);
void GMAI_K(square_sums)(const float *columns, int rows, int nvec, float factor, float offset, float *y);
int GMAI_K(exp_features)(float *logits, int rows, int nvec, const float *shift);
void GMAI_K(exp_features_scaled)(float *logits, int rows, int nvec, const float *shift, float log_eps, float *eps);
void GMAI_K(exp_backward)(const float *phi, float *dphi, int rows, int nvec, float *dot);
void GMAI_K(product)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                     const gmai_term *t1, int add, gmai_triangle triangle);
void GMAI_K(row_sums)(const float *a, int rows, int nvec, const float *x, float *y, ptrdiff_t y_stride);
void GMAI_K(column_sums)(const float *a, int rows, int nvec, const float *z, ptrdiff_t z_stride, float *y);
void GMAI_K(scale_columns)(float *a, int rows, int nvec, const float *x);
void GMAI_K(output_backward)(const float *grad_o, const float *o, int ld, int n, const float *inverse, float *dn,
                             float *minus_delta);
void GMAI_K(lower_decay)(float *pt, int n, int nvec, const double *cs, const int *first);
void GMAI_K(combine)(const float *base, float factor, const float *local, float *dst, size_t n);
void GMAI_K(accumulate)(float *hi, float *lo, float factor, const float *x, const float *xlo, size_t n);
void GMAI_K(axpy)(float a, const float *x, float *y, size_t n);
double GMAI_K(prepare_row)(const float *mu, const float *omega, const float *center, float eps_sigma, float scale,
                           int n, int count, float *w, float *mw, float *dsigma);
int GMAI_K(row_infinite)(const float *x, int n);
void GMAI_K(row_spread)(const float *x, const float *mean, float weight, int n, float *spread, float *furthest);
void GMAI_K(interleave)(const float *w, const float *mw, int rp, int r, float *out);
void GMAI_K(step_logits)(const float *x, int rp, int n, int r, int kp, const float *weights, const float *konst,
                         float *logits);
void GMAI_K(step_softmax)(float *logits, int n, int kp);
void GMAI_K(step_exp)(float *logits, int kp, float shift);
float GMAI_K(step_sums)(const gmai_step_sums *s, float factor, const float *g, const float *v, const float *q,
                        const float *q_base, float *y);
void GMAI_K(step_fold)(float *hi, float *lo, float factor, float factor_lo, float *block, size_t n);
void GMAI_K(step_read)(const float *s, const float *g, int k, int ld, float *y);
void GMAI_K(scan_prepare)(const gmai_scan *s);
void GMAI_K(scan_forward)(const gmai_scan *s, float *h, float *y);
void GMAI_K(scan_backward)(const gmai_scan *s, const float *dy, const float *h, float *dh, float *work, float *gu,
                           float *graw, float *db, float *dc, float *da, float *dd, float *dbias);
int GMAI_K(tile_softmax)(float *s, int rows, int nvec, float *top, float *sum, float *factor);
void GMAI_K(tile_backward)(float *s, float *dp, int rows, int nvec, const float *lse, const float *minus_delta);
void GMAI_K(rotate)(float *rows, int ld, int n, int half, const float *base, const float *offset, int ldo, float sign);
unsigned GMAI_K(flush_on)(void);
void GMAI_K(flush_restore)(unsigned before);

#ifdef GMAI_TILES
void GMAI_K(tile_logits)(const gmai_mixture *m, float *columns, int nvec, float *logits, const gmai_ahead *ahead);
void GMAI_K(tile_product)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                          const gmai_term *t1, int add, gmai_triangle triangle);
int GMAI_K(tile_pack)(const gmai_rows *src, int n, int width, const uint8_t *keep, const float *center, float *rows, int ld,
                      float *columns);
int GMAI_K(tile_gammas)(float *logits, int k, int nvec);
void GMAI_K(tile_product_two)(int rows, int nvec, float *c, ptrdiff_t ldc, const gmai_term *t0, const float *row_scale,
                              const gmai_term *t1, int add, gmai_triangle triangle);
void GMAI_K(tile_mixture_backward)(const gmai_mixture *m, const float *rows, const float *dlogits, int n, float *dx,
                                   float *sum_t, float *sum_tt);
void GMAI_K(tile_read)(int n, int k, int d, int ld, const float *phi_q, const float *phi_k, const float *v, const float *state,
                       float *o, float *den);
void GMAI_K(tile_write)(int n, int k, int d, int ld, const float *phi, const float *v, float *state);
size_t GMAI_K(tile_floats)(int64_t k, int64_t r);
void GMAI_K(tile_prepare)(gmai_mixture *m, float *memory);
unsigned GMAI_K(tile_on)(void);
void GMAI_K(tile_restore)(unsigned before);
#endif

#endif
