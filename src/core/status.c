/* Status texts and the per-thread error line. */
#include <stdarg.h>
#include <stdio.h>

#include "gma/base.h"

static _Thread_local char last_error[512];

const char *gma_version(void) { return GMA_VERSION_STRING; }

const char *gma_status_string(gma_status status)
{
    switch (status) {
#define ROW(name, value, text) \
    case name: return text;
        GMA_STATUS_LIST(ROW)
#undef ROW
    }
    return "unknown status";
}

const char *gma_last_error(void) { return last_error; }

gma_status gma_fail(gma_status status, const char *format, ...)
{
    /* Through a second buffer: an argument may be the current error line itself. */
    char text[sizeof last_error];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    (void)snprintf(last_error, sizeof last_error, "%s", text);
    return status;
}
