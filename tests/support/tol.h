/* Every tolerance of the tests, and what an error is. Tighten, never loosen; a change needs its reason beside it.
 *
 * The error of a tensor is max |got - want| / max(max |want|, floor): relative to the largest entry, because entries
 * far below it carry its rounding. A NaN or an infinity on either side that the other does not have is an infinite
 * error. */
#ifndef TEST_TOL_H
#define TEST_TOL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TOL_NAIVE 1e-9 /* double against the golden files, which are double too */
#define TOL_O 2e-5     /* f32 forward: o, S, Z, gamma */
#define TOL_GRAD 5e-5  /* f32 backward */
#define TOL_FLOOR_O 1e-3
#define TOL_FLOOR_GRAD 0.1
#define TOL_BF16 (1.0 / 256) /* half a unit in the last place of bf16: added where an output is stored as bf16 */
#define TOL_BF16_GRAD                                                                                                  \
    (2.0 / 256)     /* measured 0.0043: backward reads o as it was stored, so delta = dO . o has its rounding */
/* Tier amx with bf16 storage, against the definition on the stored values; measured (test_tiles.c, on a CPU with
 * tiles and emulated): o 0.0059, states 0.0026, gradients 0.0062; 0.0082 in with_a_centre. */
#define TOL_TILES_O 8e-3
#define TOL_TILES_STATE 4e-3
#define TOL_TILES_GRAD 1e-2
#define TOL_FD 1e-7 /* naive backward against central differences in double */

/* Data sets made hard on purpose have their own limit for both directions: X(golden file, limit). */
#define TOL_SPECIAL(X)                                                                                                 \
    X("shifted", 1e-4)                                                                                                 \
    X("twin_components", 1e-4)                                                                                         \
    X("tiny_variance", 1e-4)                                                                                           \
    X("huge_variance", 2e-4)                                                                                           \
    X("far_inputs", 5e-3)

static inline double tol_of_golden(const char *file, int is_grad) {
#define TOL_ROW(name, limit)                                                                                           \
    if (strcmp(file, name) == 0)                                                                                       \
        return limit;
    TOL_SPECIAL(TOL_ROW)
#undef TOL_ROW
    return is_grad ? TOL_GRAD : TOL_O;
}

/* 1 when a and b are numbers no further apart than tol. NaN is close to nothing; infinities only to themselves. */
static inline int tol_close(double a, double b, double tol) {
    if (isinf(a) || isinf(b))
        return a == b;
    return fabs(a - b) <= tol; /* false with a NaN */
}

/* The error of a tensor as defined above; 0 when n = 0. */
static inline double tol_error(const double *got, const double *want, int64_t n, double floor) {
    double largest = floor, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(want[i]) && fabs(want[i]) > largest)
            largest = fabs(want[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i]) && isnan(got[i]))
            continue;
        if (!isfinite(want[i]) || !isfinite(got[i])) {
            if (want[i] == got[i])
                continue;
            return INFINITY;
        }
        if (fabs(got[i] - want[i]) / largest > worst)
            worst = fabs(got[i] - want[i]) / largest;
    }
    return worst;
}

#endif
