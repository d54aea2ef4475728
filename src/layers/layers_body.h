/* Bodies of layers.h, once per precision: how the rows are split over threads; the arithmetic is in kernels/. */
#include <math.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/layers.h"
#include "layers/matmul.h"
#include "layers/rng.h"

#include "layers/real.h"

#define KERNELS() (GMAL_T(gmal_get_kernels)())

#ifdef _OPENMP
#define PARALLEL_FOR _Pragma("omp parallel for schedule(static) num_threads(threads)")
#else
#define PARALLEL_FOR (void)threads;
#endif

enum { ROWS = 64, CONV_ROWS = 128, COLUMNS = 64, RUN = 16384, FUSED = 8192 };

static int64_t pieces(int64_t n, int64_t of) { return (n + of - 1) / of; }
static int64_t piece(int64_t n, int64_t of, int64_t i) { return n - i * of < of ? n - i * of : of; }

static int64_t seq_begin(gmal_sequences s, int64_t b) { return s.cu ? s.cu[b] : b * s.steps; }
static int64_t seq_length(gmal_sequences s, int64_t b) { return s.cu ? s.cu[b + 1] - s.cu[b] : s.steps; }

/* Runs of rows that share one sequence, at most `most` of them, for the threads: how many, and run i: rows
 * row..row+n-1, at times t.., with `after` more behind them. */
typedef struct seq_run {
    int64_t row, t, n, after;
} seq_run;

static int64_t seq_runs(gmal_sequences s, int64_t most) { return s.count * pieces(s.steps, most); }

static seq_run seq_run_at(gmal_sequences s, int64_t most, int64_t i) {
    const int64_t per = pieces(s.steps, most), b = i / per, t = i % per * most, left = seq_length(s, b) - t;
    const int64_t n = left <= 0 ? 0 : left < most ? left : most;
    return (seq_run){seq_begin(s, b) + t, t, n, left - n};
}

/* ---- Normalisation -------------------------------------------------------------------------------------------- */

void GMAL_T(gmal_norm_forward)(int kind, const gmal_real *x, const gmal_real *w, const gmal_real *b, gmal_real *y,
                               gmal_real *mean, gmal_real *rstd, int64_t rows, int64_t n, double eps, int threads) {
    const int64_t count = pieces(rows, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * ROWS, m = piece(rows, ROWS, i);
        if (kind == GMAL_NORM_RMS)
            KERNELS()->rms_forward(x + r * n, w, y + r * n, rstd + r, m, n, (gmal_real)eps);
        else
            KERNELS()->layer_forward(x + r * n, w, b, y + r * n, mean + r, rstd + r, m, n, (gmal_real)eps);
    }
}

void GMAL_T(gmal_norm_backward)(int kind, const gmal_real *dy, const gmal_real *x, const gmal_real *w,
                                const gmal_real *mean, const gmal_real *rstd, gmal_real *dx, gmal_real *dw,
                                gmal_real *db, gmal_real *partial, int64_t rows, int64_t n, int threads) {
    const int64_t size = pieces(rows, GMAL_GROUPS);
    memset(partial, 0, (size_t)(GMAL_GROUPS * 2 * n) * sizeof *partial);
    PARALLEL_FOR
    for (int64_t g = 0; g < GMAL_GROUPS; g++) {
        const int64_t r = g * size, m = r >= rows ? 0 : piece(rows, size, g);
        gmal_real *pw = partial + g * 2 * n, *pb = pw + n;
        if (m <= 0) continue;
        if (kind == GMAL_NORM_RMS)
            KERNELS()->rms_backward(dy + r * n, x + r * n, w, rstd + r, dx + r * n, pw, m, n);
        else
            KERNELS()->layer_backward(dy + r * n, x + r * n, w, mean + r, rstd + r, dx + r * n, pw, pb, m, n);
    }
    for (int64_t g = 0; g < GMAL_GROUPS; g++) {
        KERNELS()->add(partial + g * 2 * n, dw, n);
        if (kind == GMAL_NORM_LAYER) KERNELS()->add(partial + g * 2 * n + n, db, n);
    }
}

/* ---- MLP and gate --------------------------------------------------------------------------------------------- */

void GMAL_T(gmal_mlp_forward)(int kind, const gmal_real *h, gmal_real *a, int64_t rows, int64_t n, int threads) {
    const int64_t count = pieces(rows, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * ROWS, m = piece(rows, ROWS, i);
        if (kind == GMAL_MLP_GELU)
            KERNELS()->gelu_forward(h + r * n, a + r * n, m * n);
        else
            KERNELS()->swiglu_forward(h + r * 2 * n, a + r * n, m, n);
    }
}

void GMAL_T(gmal_mlp_backward)(int kind, const gmal_real *h, const gmal_real *da, gmal_real *dh, int64_t rows,
                               int64_t n, int threads) {
    const int64_t count = pieces(rows, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * ROWS, m = piece(rows, ROWS, i);
        if (kind == GMAL_MLP_GELU)
            KERNELS()->gelu_backward(h + r * n, da + r * n, dh + r * n, m * n);
        else
            KERNELS()->swiglu_backward(h + r * 2 * n, da + r * n, dh + r * 2 * n, m, n);
    }
}

typedef struct GMAL_T(mlp_at) {
    const gmal_real *h;
    gmal_real *to;
    int64_t n;
} GMAL_T(mlp_at);

static void GMAL_T(gelu_part)(const void *context, int64_t i, int64_t m, int64_t j, int64_t n) {
    const GMAL_T(mlp_at) *p = context;
    for (int64_t r = i; r < i + m; r++) KERNELS()->gelu_forward(p->h + r * p->n + j, p->to + r * p->n + j, n);
}

static void GMAL_T(gelu_grad_part)(const void *context, int64_t i, int64_t m, int64_t j, int64_t n) {
    const GMAL_T(mlp_at) *p = context;
    for (int64_t r = i; r < i + m; r++) {
        gmal_real *d = p->to + r * p->n + j;
        KERNELS()->gelu_backward(p->h + r * p->n + j, d, d, n);
    }
}

gma_status GMAL_T(gmal_mlp_up)(int kind, const gmal_real *x, const gmal_real *w, gmal_real *h, gmal_real *a, int64_t rows,
                               int64_t in, int64_t n, int threads) {
    const GMAL_T(mlp_at) p = {h, a, n};
    const gmal_after after = {GMAL_T(gelu_part), &p};
    const int gelu = kind == GMAL_MLP_GELU;
    const int64_t out = gelu ? n : 2 * n;
    const gma_status s = GMAL_T(gmal_matmul_then)(0, 1, rows, out, in, 1, x, in, w, in, 0, h, out, gelu ? &after : NULL, threads);
    if (s == GMA_OK && !gelu) GMAL_T(gmal_mlp_forward)(kind, h, a, rows, n, threads);
    return s;
}

gma_status GMAL_T(gmal_mlp_down_backward)(int kind, const gmal_real *dy, const gmal_real *w, const gmal_real *h,
                                          gmal_real *da, gmal_real *dh, int64_t rows, int64_t n, int64_t out, int threads) {
    const GMAL_T(mlp_at) p = {h, dh, n};
    const gmal_after after = {GMAL_T(gelu_grad_part), &p};
    const int gelu = kind == GMAL_MLP_GELU;
    const gma_status s =
        GMAL_T(gmal_matmul_then)(0, 0, rows, n, out, 1, dy, out, w, n, 0, gelu ? dh : da, n, gelu ? &after : NULL, threads);
    if (s == GMA_OK && !gelu) GMAL_T(gmal_mlp_backward)(kind, h, da, dh, rows, n, threads);
    return s;
}

void GMAL_T(gmal_silu_forward)(const gmal_real *x, const gmal_real *b, gmal_real *y, int64_t rows, int64_t n,
                               int threads) {
    const int64_t count = pieces(rows, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++)
        KERNELS()->silu_forward(x + i * ROWS * n, b, y + i * ROWS * n, piece(rows, ROWS, i), n);
}

void GMAL_T(gmal_silu_backward)(const gmal_real *x, const gmal_real *b, const gmal_real *dy, gmal_real *dx,
                                gmal_real *db, int64_t rows, int64_t n, int threads) {
    const int64_t count = pieces(n, COLUMNS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) { /* by columns: each sums its own db */
        const int64_t c = i * COLUMNS;
        KERNELS()->silu_backward(x + c, b + c, dy + c, dx + c, db + c, n, rows, piece(n, COLUMNS, i));
    }
}

void GMAL_T(gmal_gate_forward)(const gmal_real *o, const gmal_real *g, int64_t ldg, gmal_real *y, int64_t rows,
                               int64_t n, int threads) {
    const int64_t count = pieces(rows, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * ROWS;
        KERNELS()->gate_forward(o + r * n, g + r * ldg, ldg, y + r * n, piece(rows, ROWS, i), n);
    }
}

void GMAL_T(gmal_gate_backward)(const gmal_real *o, const gmal_real *g, int64_t ldg, const gmal_real *dy,
                                gmal_real *d_o, gmal_real *dg, int64_t lddg, int64_t rows, int64_t n, int threads) {
    const int64_t count = pieces(rows, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * ROWS;
        KERNELS()->gate_backward(o + r * n, g + r * ldg, ldg, dy + r * n, d_o + r * n, dg + r * lddg, lddg,
                                 piece(rows, ROWS, i), n);
    }
}

/* ---- Convolution and positions -------------------------------------------------------------------------------- */

/* Whole rows: in pieces of columns, memory would not be read ahead (measured: three times as slow). */
void GMAL_T(gmal_conv_forward)(const gmal_real *x, int64_t ldx, const gmal_real *w, gmal_real *y, int64_t ldy,
                               gmal_sequences seqs, int64_t n, int64_t taps, int threads) {
    const int64_t count = seq_runs(seqs, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const seq_run r = seq_run_at(seqs, ROWS, i);
        if (r.n > 0) {
            KERNELS()->conv_forward(x + r.row * ldx, ldx, w, n, y + r.row * ldy, ldy, r.n, r.t, n, taps);
        }
    }
}

/* dw of a run of rows is summed apart, and the runs added in order, whichever thread had them. Wide rows go in bands, so
 * that the former fits on the stack. */
void GMAL_T(gmal_conv_backward)(const gmal_real *dy, int64_t lddy, const gmal_real *x, int64_t ldx,
                                const gmal_real *w, gmal_real *dx, int64_t lddx, gmal_real *dw, gmal_sequences seqs,
                                int64_t n, int64_t taps, int threads) {
    enum { BAND = 8192 };
    const int64_t count = seq_runs(seqs, CONV_ROWS), band = BAND / taps;
    (void)threads;
    for (int64_t c = 0; c < n; c += band) {
        const int64_t m = n - c < band ? n - c : band;
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) ordered num_threads(threads)
#endif
        for (int64_t i = 0; i < count; i++) {
            gmal_real part[BAND];
            const seq_run r = seq_run_at(seqs, CONV_ROWS, i);
            memset(part, 0, (size_t)(taps * m) * sizeof *part);
            if (r.n > 0) {
                KERNELS()->conv_backward(dy + r.row * lddy + c, lddy, x + r.row * ldx + c, ldx, w + c, n,
                                         dx + r.row * lddx + c, lddx, part, m, r.n, r.after, m, taps);
            }
#ifdef _OPENMP
#pragma omp ordered
#endif
            for (int64_t j = 0; r.n > 0 && j < taps; j++) {
                KERNELS()->add(part + j * m, dw + j * n + c, m);
            }
        }
    }
}

void GMAL_T(gmal_rotary_table)(gmal_real *cs, int64_t first, int64_t steps, int64_t n, double base) {
    for (int64_t t = 0; t < steps; t++)
        for (int64_t i = 0; i < n / 2; i++) {
            const double angle = (double)(first + t) * pow(base, -2.0 * (double)i / (double)n);
            cs[t * n + i] = (gmal_real)cos(angle);
            cs[t * n + n / 2 + i] = (gmal_real)sin(angle);
        }
}

void GMAL_T(gmal_rotary)(gmal_real *x, int64_t ldx, const gmal_real *cs, gmal_sequences seqs, int64_t heads, int64_t n,
                         int sign, int threads) {
    const int64_t count = seq_runs(seqs, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const seq_run r = seq_run_at(seqs, ROWS, i);
        KERNELS()->rotate(x + r.row * ldx, ldx, cs + r.t * n, r.n, heads, n, (gmal_real)sign);
    }
}

/* ---- Forget gate ---------------------------------------------------------------------------------------------- */

void GMAL_T(gmal_forget_forward)(const gmal_real *z, int64_t ldz, const gmal_real *bias, gmal_real *log_decay,
                                 int64_t batch, int64_t steps, int64_t heads, int threads) {
    PARALLEL_FOR
    for (int64_t i = 0; i < batch * heads; i++) {
        const int64_t b = i / heads, h = i % heads;
        for (int64_t t = 0; t < steps; t++) {
            const double x = (double)z[(b * steps + t) * ldz + h] + (double)bias[h];
            log_decay[i * steps + t] = (gmal_real)(x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x)));
        }
    }
}

void GMAL_T(gmal_forget_backward)(const gmal_real *d_log_decay, const gmal_real *log_decay, gmal_real *dz,
                                  int64_t lddz, gmal_real *dbias, int64_t batch, int64_t steps, int64_t heads,
                                  int threads) {
    PARALLEL_FOR
    for (int64_t h = 0; h < heads; h++) {
        double sum = 0;
        for (int64_t b = 0; b < batch; b++)
            for (int64_t t = 0; t < steps; t++) {
                const int64_t at = (b * heads + h) * steps + t;
                const double d = (double)d_log_decay[at] * -expm1((double)log_decay[at]); /* 1 - sigmoid */
                dz[(b * steps + t) * lddz + h] = (gmal_real)d;
                sum += d;
            }
        dbias[h] += (gmal_real)sum;
    }
}

/* ---- Embedding ------------------------------------------------------------------------------------------------ */

void GMAL_T(gmal_embed_forward)(const int32_t *tokens, const gmal_real *table, const gmal_real *positions,
                                gmal_real *x, gmal_sequences seqs, int64_t n, int threads) {
    const int64_t count = seq_runs(seqs, ROWS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const seq_run r = seq_run_at(seqs, ROWS, i);
        for (int64_t j = 0; j < r.n; j++) {
            gmal_real *row = x + (r.row + j) * n;
            memcpy(row, table + tokens[r.row + j] * n, (size_t)n * sizeof *x);
            if (positions) KERNELS()->add(positions + (r.t + j) * n, row, n);
        }
    }
}

void GMAL_T(gmal_embed_backward)(const int32_t *tokens, const gmal_real *dx, gmal_real *dtable, gmal_real *dpositions,
                                 gmal_sequences seqs, int64_t n, int threads) {
    const int64_t count = pieces(n, COLUMNS);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) { /* by columns: rows of the table collide, columns do not */
        const int64_t c = i * COLUMNS, m = piece(n, COLUMNS, i);
        for (int64_t b = 0; b < seqs.count; b++) {
            const int64_t first = seq_begin(seqs, b), steps = seq_length(seqs, b);
            for (int64_t t = 0; t < steps; t++) {
                KERNELS()->add(dx + (first + t) * n + c, dtable + tokens[first + t] * n + c, m);
                if (dpositions) KERNELS()->add(dx + (first + t) * n + c, dpositions + t * n + c, m);
            }
        }
    }
}

/* ---- Residual, dropout ---------------------------------------------------------------------------------------- */

/* How likely a 32-bit hash is to fall below the threshold is the rate. */
static uint32_t threshold_of(double rate) { return (uint32_t)(rate * 4294967296.0); }

/* out = x + dropout(y); `first` is the place of x[0] in the whole array. */
static void residual_piece(const gmal_real *x, const gmal_real *y, gmal_real *out, int64_t n, int64_t first,
                           gmal_dropout drop) {
    if (!(drop.rate > 0)) {
        KERNELS()->sum(x, y, out, n);
        return;
    }
    if (out != x) memcpy(out, x, (size_t)n * sizeof *out);
    KERNELS()->dropout(y, out, n, (uint32_t)drop.key, (uint32_t)first, threshold_of(drop.rate),
                       (gmal_real)(1 / (1 - drop.rate)), 1);
}

void GMAL_T(gmal_residual)(const gmal_real *x, const gmal_real *y, gmal_real *out, int64_t n, gmal_dropout drop,
                           int threads) {
    const int64_t count = pieces(n, RUN);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = i * RUN;
        residual_piece(x + at, y + at, out + at, piece(n, RUN, i), at, drop);
    }
}

/* In runs of rows that fit a cache, so that the sum is normalised before it leaves it. */
void GMAL_T(gmal_residual_norm)(int kind, const gmal_real *x, const gmal_real *y, gmal_real *out, gmal_dropout drop,
                                const gmal_real *w, const gmal_real *b, gmal_real *normed, gmal_real *mean,
                                gmal_real *rstd, int64_t rows, int64_t n, double eps, int threads) {
    const int64_t run = n < FUSED ? FUSED / n : 1, count = pieces(rows, run);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * run, m = piece(rows, run, i), at = r * n;
        residual_piece(x + at, y + at, out + at, m * n, at, drop);
        if (kind == GMAL_NORM_RMS)
            KERNELS()->rms_forward(out + at, w, normed + at, rstd + r, m, n, (gmal_real)eps);
        else
            KERNELS()->layer_forward(out + at, w, b, normed + at, mean + r, rstd + r, m, n, (gmal_real)eps);
    }
}

void GMAL_T(gmal_dropout_apply)(const gmal_real *x, gmal_real *y, int64_t n, gmal_dropout drop, int threads) {
    const int64_t count = pieces(n, RUN);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = i * RUN;
        KERNELS()->dropout(x + at, y + at, piece(n, RUN, i), (uint32_t)drop.key, (uint32_t)at,
                           threshold_of(drop.rate), (gmal_real)(1 / (1 - drop.rate)), 0);
    }
}

/* ---- Pooling -------------------------------------------------------------------------------------------------- */

void GMAL_T(gmal_pool_forward)(int kind, const gmal_real *x, gmal_real *y, gmal_sequences seqs, int64_t n, int threads) {
    PARALLEL_FOR
    for (int64_t b = 0; b < seqs.count; b++) {
        const int64_t first = seqs.cu ? seqs.cu[b] : b * seqs.steps, end = seqs.cu ? seqs.cu[b + 1] : first + seqs.steps;
        gmal_real *out = y + b * n;
        const int64_t count = kind == GMAL_POOL_FIRST && end > first ? 1 : end - first;
        for (int64_t i = 0; i < n; i++) out[i] = 0;
        for (int64_t r = first; r < first + count; r++)
            for (int64_t i = 0; i < n; i++) out[i] += x[r * n + i];
        for (int64_t i = 0; i < n && count; i++) out[i] /= (gmal_real)count;
    }
}

void GMAL_T(gmal_pool_backward)(int kind, const gmal_real *dy, gmal_real *dx, gmal_sequences seqs, int64_t n,
                                int threads) {
    PARALLEL_FOR
    for (int64_t b = 0; b < seqs.count; b++) {
        const int64_t first = seqs.cu ? seqs.cu[b] : b * seqs.steps, end = seqs.cu ? seqs.cu[b + 1] : first + seqs.steps;
        const gmal_real *in = dy + b * n;
        for (int64_t r = first; r < end; r++)
            for (int64_t i = 0; i < n; i++)
                dx[r * n + i] = kind == GMAL_POOL_MEAN ? in[i] / (gmal_real)(end - first) : r == first ? in[i] : 0;
    }
}

/* ---- Loss ----------------------------------------------------------------------------------------------------- */

double GMAL_T(gmal_cross_entropy)(gmal_real *logits, const int32_t *targets, int64_t rows, int64_t n, double scale,
                                  int threads) {
    enum { MOST = 256 };
    double part[MOST], total = 0;
    const int64_t size = pieces(rows, MOST) > 4 ? pieces(rows, MOST) : 4, count = pieces(rows, size);
    PARALLEL_FOR
    for (int64_t i = 0; i < count; i++)
        part[i] = KERNELS()->cross_entropy(logits + i * size * n, n, targets + i * size, piece(rows, size, i), n,
                                           (gmal_real)scale);
    for (int64_t i = 0; i < count; i++) total += part[i];
    return total;
}
