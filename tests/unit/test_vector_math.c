/* exp, log, softplus and sigmoid of every tier against the C library's in double, over their whole range. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gma/gma.h"
#include "kernels/math.h"
#include "support/check.h"

typedef void function(const float *x, float *y, int n);
typedef struct tier {
    gma_isa isa;
    function *exp, *exp_negative, *exp2, *log, *softplus, *sigmoid;
} tier;

#define DECLARE_scalar(word) function tst_##word##__scalar;
#define DECLARE_neon(word) function tst_##word##__neon;
#define DECLARE_avx2(word) function tst_##word##__avx2;
#define DECLARE_avx512(word) function tst_##word##__avx512;
#define ENTRY_scalar(word) .word = tst_##word##__scalar,
#define ENTRY_neon(word) .word = tst_##word##__neon,
#define ENTRY_avx2(word) .word = tst_##word##__avx2,
#define ENTRY_avx512(word) .word = tst_##word##__avx512,

TST_VECTOR_MATH(DECLARE_scalar)
#ifdef GMAI_HAVE_neon
TST_VECTOR_MATH(DECLARE_neon)
#endif
#ifdef GMAI_HAVE_avx2
TST_VECTOR_MATH(DECLARE_avx2)
#endif
#ifdef GMAI_HAVE_avx512
TST_VECTOR_MATH(DECLARE_avx512)
#endif

static const tier tiers[] = {
    {GMA_ISA_SCALAR, TST_VECTOR_MATH(ENTRY_scalar)},
#ifdef GMAI_HAVE_neon
    {GMA_ISA_NEON, TST_VECTOR_MATH(ENTRY_neon)},
#endif
#ifdef GMAI_HAVE_avx2
    {GMA_ISA_AVX2, TST_VECTOR_MATH(ENTRY_avx2)},
#endif
#ifdef GMAI_HAVE_avx512
    {GMA_ISA_AVX512, TST_VECTOR_MATH(ENTRY_avx512)},
#endif
};
enum { TIERS = sizeof tiers / sizeof *tiers, BLOCK = 1 << 12 };

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* One unit in the last place of a float of that size; of subnormal ones it stays the same. */
static double ulp(double x) { return ldexp(1, (x < (double)FLT_MIN ? -126 : ilogb(x)) - 23); }

static double softplus(double x) { return log1p(exp(-fabs(x))) + (x > 0 ? x : 0); }
static double sigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }

typedef struct worst {
    double error;
    float at;
} worst;

/* The largest error in units of unit(want), over the floats with bits first, first + step, ... <= last. */
static worst sweep(function *f, double (*exact)(double), double (*unit)(double), uint32_t first, uint32_t last,
                   uint32_t step) {
    static float x[BLOCK], y[BLOCK];
    worst w = {0, 0};
    for (uint64_t u = first; u <= last;) {
        int n = 0;
        for (; n < BLOCK && u <= last; n++, u += step)
            x[n] = from_bits((uint32_t)u);
        f(x, y, n);
        for (int i = 0; i < n; i++) {
            const double want = exact((double)x[i]), error = fabs((double)y[i] - want) / unit(want);
            if ((float)want == INFINITY && y[i] == INFINITY)
                continue;
            if (!(error <= w.error))
                w = (worst){error, x[i]};
        }
    }
    return w;
}

static int within(const char *name, gma_isa isa, worst w, double limit) {
    if (w.error <= limit)
        return 1;
    printf("%s, %s: off by %.3g at %.9g (bits of the unit), limit %g\n", name, gma_isa_name(isa), w.error, (double)w.at,
           limit);
    return 0;
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Every 509th float from 0 to +-range, and all of [1, 2) and (-2, -1]: each reduced argument in full. */
static int both_signs(const char *name, gma_isa isa, function *f, double (*exact)(double), double (*unit)(double),
                      float low, float high, double limit) {
    const uint32_t minus = 0x80000000u;
    int ok = within(name, isa, sweep(f, exact, unit, minus, minus | bits_of(-low), 509), limit);
    ok &= within(name, isa, sweep(f, exact, unit, 0xbf800000u, 0xbfffffffu, 1), limit);
    if (high > 0) {
        ok &= within(name, isa, sweep(f, exact, unit, 0, bits_of(high), 509), limit);
        ok &= within(name, isa, sweep(f, exact, unit, 0x3f800000u, 0x3fffffffu, 1), limit);
    }
    return ok;
}

static double relative(double x) { return fmax(fabs(x), (double)FLT_MIN); }
static double mixed(double x) { return fmax(fabs(x), 1); }

static void exp_is_within_2_ulp(void **state) {
    (void)state;
    int ok = 1;
    for (int i = 0; i < TIERS; i++) {
        if (!gma_isa_supported(tiers[i].isa))
            continue;
        ok &= both_signs("exp", tiers[i].isa, tiers[i].exp, exp, ulp, -104, 89, 2);
        ok &= both_signs("exp2", tiers[i].isa, tiers[i].exp2, exp2, ulp, -125.9f, 127, 3);
        ok &= both_signs("exp_negative", tiers[i].isa, tiers[i].exp_negative, exp, ulp, -87, 0, 2);
    }
    assert_true(ok);
}

static void exp_at_the_ends(void **state) {
    (void)state;
    const float x[] = {0, -0.0f, INFINITY, 88.73f, FLT_MAX, -INFINITY, -105, -FLT_MAX, NAN, -NAN};
    const float want[] = {1, 1, INFINITY, INFINITY, INFINITY, 0, 0, 0, NAN, NAN};
    enum { N = sizeof x / sizeof *x };
    for (int i = 0; i < TIERS; i++) {
        float y[N];
        if (!gma_isa_supported(tiers[i].isa))
            continue;
        tiers[i].exp(x, y, N);
        for (int j = 0; j < N; j++) {
            if (isnan(want[j]) ? !isnan(y[j]) : y[j] != want[j])
                tst_fail("exp, %s: %g gives %g", gma_isa_name(tiers[i].isa), (double)x[j], (double)y[j]);
        }
        const float low[] = {-87.0001f, -1000, -INFINITY, -FLT_MAX, 0, NAN};
        tiers[i].exp_negative(low, y, 6);
        for (int j = 0; j < 4; j++)
            assert_true(y[j] == 0);
        assert_true(y[4] == 1 && isnan(y[5]));
        /* Of exp2 what lies below the smallest normal number may be kept. */
        const float lower[] = {-150.6f, -1000, -INFINITY, -FLT_MAX, 0, -0.0f, NAN, -NAN, -126.6f};
        tiers[i].exp2(lower, y, 9);
        for (int j = 0; j < 4; j++)
            assert_true(y[j] == 0);
        assert_true(y[4] == 1 && y[5] == 1 && isnan(y[6]) && isnan(y[7]));
        assert_true(y[8] >= 0 && y[8] < FLT_MIN);
    }
}

static void log_softplus_sigmoid(void **state) {
    (void)state;
    int ok = 1;
    for (int i = 0; i < TIERS; i++) {
        const tier *t = &tiers[i];
        if (!gma_isa_supported(t->isa))
            continue;
        ok &= within("log", t->isa, sweep(t->log, log, mixed, bits_of(FLT_MIN), bits_of(FLT_MAX), 509), 1.5e-7);
        ok &= within("log", t->isa, sweep(t->log, log, mixed, 0x3f800000u, 0x3fffffffu, 1), 1.5e-7);
        ok &= both_signs("softplus", t->isa, t->softplus, softplus, relative, -87, 1e30f, 4e-7);
        ok &= both_signs("sigmoid", t->isa, t->sigmoid, sigmoid, relative, -87, 1e30f, 4e-7);
    }
    assert_true(ok);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exp_is_within_2_ulp), cmocka_unit_test(exp_at_the_ends),
                                       cmocka_unit_test(log_softplus_sigmoid)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
