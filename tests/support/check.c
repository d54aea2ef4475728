#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/tol.h"

void tst_fail(const char *format, ...) {
    char text[600];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    fail_msg("%s", text);
    abort(); /* cmocka jumped away; this tells the compiler */
}

void tst_expect_status(gma_status got, gma_status want, const char *text, const char *what, const char *file,
                       int line) {
    if (got != want)
        tst_fail("%s:%d: %s gave \"%s\" (%s), expected \"%s\"", file, line, what, gma_status_string(got),
                 got == GMA_OK ? "" : gma_last_error(), gma_status_string(want));
    if (text && !strstr(gma_last_error(), text))
        tst_fail("%s:%d: %s: the error line \"%s\" does not name \"%s\"", file, line, what, gma_last_error(), text);
}

void tst_expect_close(double got, double want, double tol, const char *what, const char *file, int line) {
    if (!tol_close(got, want, tol))
        tst_fail("%s:%d: %s is %.12g, expected %.12g within %g", file, line, what, got, want, tol);
}
