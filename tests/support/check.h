/* cmocka, included with what it needs, and a few checks that say what they saw. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gma/base.h"

/* Fail the running test with a formatted line. Does not return. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2), noreturn))
#endif
void tst_fail(const char *format, ...);

/* A call must return GMA_OK. */
#define TST_OK(call) tst_expect_status((call), GMA_OK, NULL, #call, __FILE__, __LINE__)

/* A call must return that status, and its error line must contain `text`. */
#define TST_ERROR(call, status, text) tst_expect_status((call), (status), (text), #call, __FILE__, __LINE__)

void tst_expect_status(gma_status got, gma_status want, const char *text, const char *what, const char *file, int line);

/* |got - want| <= tol, NaN never. */
#define TST_CLOSE(got, want, tol) tst_expect_close((got), (want), (tol), #got, __FILE__, __LINE__)
void tst_expect_close(double got, double want, double tol, const char *what, const char *file, int line);

#endif
