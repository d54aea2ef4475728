/* Bytes one at a time into whole UTF-8 characters. */
#include <string.h>

#include "gma/lm.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* How many bytes a character that starts with `b` has; 0 = none starts so. */
static int length_of(unsigned char b) {
    return b < 0x80 ? 1 : b < 0xc2 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf5 ? 4 : 0;
}

/* Whether `b` may follow what is held: shortest form only, no surrogates, at most U+10FFFF. */
static int may_follow(const gma_utf8 *f, unsigned char b) {
    if (f->count == 1) {
        const unsigned char lead = f->held[0];
        const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        return b >= low && b <= high;
    }
    return b >= 0x80 && b <= 0xbf;
}

size_t gma_utf8_finish(gma_utf8 *filter, char *out) {
    if (filter->count == 0) return 0;
    filter->count = 0;
    memcpy(out, replacement, 3);
    return 3;
}

size_t gma_utf8_push(gma_utf8 *filter, unsigned char byte, char *out) {
    size_t n = 0;
    if (filter->count > 0) {
        if (may_follow(filter, byte)) {
            filter->held[filter->count++] = byte;
            if (filter->count < length_of(filter->held[0])) return 0;
            memcpy(out, filter->held, (size_t)filter->count);
            n = (size_t)filter->count;
            filter->count = 0;
            return n;
        }
        n = gma_utf8_finish(filter, out);
    }
    const int length = length_of(byte);
    if (length == 1) {
        out[n++] = (char)byte;
    } else if (length == 0) {
        memcpy(out + n, replacement, 3);
        n += 3;
    } else {
        filter->held[0] = byte;
        filter->count = 1;
    }
    return n;
}
