/* Matrix times vector for decoding, and the inside of our own matrix product (layers/matmul_body.h). */
#include "layers/kernels/kernel.h"

/* A tile of C, ROWS x COLS, stays in registers while the sum over k runs. In f32 it is written in the vector words of the
 * tier; in double, which serves tests, in plain C. */
#ifdef GMAL_KERNELS_F64
enum { ROWS = 4, WIDE = 1, COLS = 16 };
typedef double vec;
static inline vec load(const double *p) { return *p; }
static inline vec fma_(vec a, vec b, vec c) { return a * b + c; }
static inline vec set1(double a) { return a; }
static inline void store_some(double *p, vec a, int64_t n) {
    if (n > 0) *p = a;
}
static inline vec load_some(const double *p, int64_t n) { return n > 0 ? *p : 0; }
#else
enum { ROWS = GMAI_GM, WIDE = VL, COLS = GMAI_GN * VL };
typedef vf vec;
static inline vec load(const float *p) { return v_load(p); }
static inline vec fma_(vec a, vec b, vec c) { return v_fma(a, b, c); }
static inline vec set1(float a) { return v_set1(a); }
static inline void store_some(float *p, vec a, int64_t n) {
    if (n >= VL)
        v_store(p, a);
    else if (n > 0)
        v_storen(p, a, (int)n);
}
static inline vec load_some(const float *p, int64_t n) { return n >= VL ? v_load(p) : v_loadn(p, n > 0 ? (int)n : 0); }
#endif
enum { VECS = COLS / WIDE };
_Static_assert(GMAL_GEMM_N % COLS == 0, "a block of columns holds whole panels");

void GMAL_KERNEL(gemv)(const real *w, int64_t ldw, const real *x, real *y, int64_t n, int64_t k) {
    for (int64_t r = 0; r < n; r++) {
        const real *row = w + r * ldw;
        real lane[2 * GMAL_LANES] = {0};
        int64_t i = 0;
        for (; i + 2 * GMAL_LANES <= k; i += 2 * GMAL_LANES)
            for (int l = 0; l < 2 * GMAL_LANES; l++) lane[l] += row[i + l] * x[i + l];
        for (int l = 0; i < k; i++, l++) lane[l] += row[i] * x[i];
        for (int l = 0; l < GMAL_LANES; l++) lane[l] += lane[l + GMAL_LANES];
        y[r] = gmal_fold(lane);
    }
}

/* One panel: (k, COLS), columns from n on are zero. A whole one only from the transpose. */
static void pack_panel(int transposed, const real *b, int64_t ldb, int64_t k, int64_t n, real *panel) {
    int64_t p0 = 0;
    if (n < COLS) {
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < COLS; j++)
                panel[p * COLS + j] = j >= n ? 0 : transposed ? b[j * ldb + p] : b[p * ldb + j];
        return;
    }
#ifndef GMAL_KERNELS_F64
    for (; p0 + VL <= k; p0 += VL)
        for (int v = 0; v < VECS; v++) {
            vf r[VL];
            for (int i = 0; i < VL; i++) r[i] = v_load(b + (v * VL + i) * ldb + p0);
            v_transpose(r);
            for (int i = 0; i < VL; i++) v_store(panel + (p0 + i) * COLS + v * VL, r[i]);
        }
#endif
    for (int64_t j = 0; j < COLS; j++)
        for (int64_t p = p0; p < k; p++) panel[p * COLS + j] = b[j * ldb + p];
}

void GMAL_KERNEL(gemm_pack)(int transposed, const real *b, int64_t ldb, int64_t k, int64_t n, real *panels) {
    const int64_t whole = n / COLS * COLS;
    /* along the rows of b as they are stored: one panel after the other would touch a line of every row at a time */
    for (int64_t p = 0; !transposed && p < k; p++)
        for (int64_t j = 0; j < whole; j += COLS) memcpy(panels + j * k + p * COLS, b + p * ldb + j, COLS * sizeof *b);
    for (int64_t j = transposed ? 0 : whole; j < n; j += COLS)
        pack_panel(transposed, transposed ? b + j * ldb : b + j, ldb, k, n - j < COLS ? n - j : COLS, panels + j * k);
}

/* Rows of a, as they are (GMAL_GEMM_LDA apart: rows whose distance is a power of two would push each other out of the
 * cache), or, where the transpose is stored, in panels (k, ROWS). */
void GMAL_KERNEL(gemm_rows)(int transposed, const real *a, int64_t lda, int64_t m, int64_t k, real *out) {
    if (!transposed) {
        for (int64_t i = 0; i < m; i++) memcpy(out + i * GMAL_GEMM_LDA, a + i * lda, (size_t)k * sizeof *a);
        return;
    }
    const int64_t whole = m / ROWS * ROWS;
    for (int64_t p = 0; p < k; p++, a += lda) {
        for (int64_t i = 0; i < whole; i += ROWS) memcpy(out + i * k + p * ROWS, a + i, ROWS * sizeof *a);
        if (whole < m) memcpy(out + whole * k + p * ROWS, a + whole, (size_t)(m - whole) * sizeof *a);
    }
}

#define GMAL_INLINE static inline __attribute__((always_inline))

/* rows and packed are constants where this is called. n columns of the tile are stored. */
GMAL_INLINE void tile(int rows, int packed, const real *a, const real *b, int64_t k, real alpha, real beta, real *c,
                      int64_t ldc, int64_t n) {
    const ptrdiff_t ars = packed ? 1 : GMAL_GEMM_LDA, acs = packed ? ROWS : 1;
    vec sum[ROWS][VECS];
    GMAL_UNROLL
    for (int i = 0; i < rows; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + COLS - 1, 1);
        GMAL_UNROLL
        for (int v = 0; v < VECS; v++) sum[i][v] = set1(0);
    }
#pragma GCC unroll 4
    for (int64_t p = 0; p < k; p++, a += acs, b += COLS) {
        vec bv[VECS];
        GMAL_UNROLL
        for (int v = 0; v < VECS; v++) bv[v] = load(b + v * WIDE);
        GMAL_UNROLL
        for (int i = 0; i < rows; i++) {
            const vec av = set1(a[i * ars]);
            GMAL_UNROLL
            for (int v = 0; v < VECS; v++) sum[i][v] = fma_(av, bv[v], sum[i][v]);
        }
    }
    const vec al = set1(alpha), be = set1(beta), zero = set1(0);
    if (n >= COLS && (beta == 0 || beta == 1)) { /* the common ones */
        GMAL_UNROLL
        for (int i = 0; i < rows; i++)
            GMAL_UNROLL
            for (int v = 0; v < VECS; v++) {
                real *at = c + i * ldc + v * WIDE;
                store_some(at, fma_(al, sum[i][v], beta == 0 ? zero : load(at)), WIDE);
            }
        return;
    }
    GMAL_UNROLL
    for (int i = 0; i < rows; i++)
        GMAL_UNROLL
        for (int v = 0; v < VECS; v++) {
            real *at = c + i * ldc + v * WIDE;
            const int64_t left = n - v * WIDE;
            if (left <= 0) break;
            store_some(at, fma_(al, sum[i][v], beta == 0 ? zero : fma_(be, load_some(at, left), zero)), left);
        }
}

#define CASE(rows) \
    case rows: tile(rows, packed, ai, b, k, alpha, beta, ci, ldc, n - j); break;

GMAL_INLINE void gemm_block(int packed, const real *a, const real *panels, real alpha, real beta, real *c, int64_t ldc,
                            int64_t m, int64_t n, int64_t k) {
    for (int64_t j = 0; j < n; j += COLS) {
        const real *b = panels + j * k;
        for (int64_t i = 0; i < m; i += ROWS) {
            const real *ai = a + i * (packed ? k : GMAL_GEMM_LDA);
            real *ci = c + i * ldc + j;
            switch (m - i) {
                CASE(1)
                CASE(2)
                CASE(3)
#if !defined(GMAL_KERNELS_F64) && GMAI_GM > 4
                CASE(4)
                CASE(5)
#endif
            default: tile(ROWS, packed, ai, b, k, alpha, beta, ci, ldc, n - j); break;
            }
        }
    }
}

void GMAL_KERNEL(gemm_block)(int transposed, const real *a, const real *panels, real alpha, real beta, real *c, int64_t ldc,
                             int64_t m, int64_t n, int64_t k) {
    if (transposed)
        gemm_block(1, a, panels, alpha, beta, c, ldc, m, n, k);
    else
        gemm_block(0, a, panels, alpha, beta, c, ldc, m, n, k);
}
