/* JSON, as the verbs print it. */
#include <math.h>

#include "cli/options.h"

/* Length of the UTF-8 sequence at s (shortest form, no surrogates, at most U+10FFFF), or 0. */
static int utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) {
        return 1;
    }
    int n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4) {
        return 0;
    }
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF0 && s[1] < 0x90) ||
        (s[0] == 0xF4 && s[1] > 0x8F)) {
        return 0;
    }
    return n;
}

void gma_cli_json_string(FILE *file, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    fputc('"', file);
    while (*s != '\0') {
        int n = utf8_length(s);
        if (n == 0) {
            fputs("\\ufffd", file);
            n = 1;
        } else if (*s == '"' || *s == '\\') {
            fprintf(file, "\\%c", *s);
        } else if (*s < 0x20) {
            fprintf(file, "\\u%04x", *s);
        } else {
            fwrite(s, 1, (size_t)n, file);
        }
        s += n;
    }
    fputc('"', file);
}

void gma_cli_json_number(const char *key, double x) {
    if (isfinite(x)) {
        printf(", \"%s\": %.17g", key, x);
    } else {
        printf(", \"%s\": null", key);
    }
}
