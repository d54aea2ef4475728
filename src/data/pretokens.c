/* GPT-2 cuts text into pieces before it merges anything; the pattern is the one of its encoder. White space is spelled out,
 * because libraries differ on what \s holds. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

#ifdef GMAL_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define WHITE "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d"
                              "| ?\\p{L}+"
                              "| ?\\p{N}+"
                              "| ?[^" WHITE "\\p{L}\\p{N}]+"
                              "|[" WHITE "]+(?![^" WHITE "])"
                              "|[" WHITE "]+";

struct gmal_pretokenizer {
    pcre2_code *code;
};

gma_status gmal_pretokenizer_create(gmal_pretokenizer **p) {
    int error;
    PCRE2_SIZE at;
    *p = calloc(1, sizeof **p);
    if (!*p) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a tokenizer");
    (*p)->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    if (!(*p)->code) {
        char why[120];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        gmal_pretokenizer_destroy(*p);
        *p = NULL;
        return gma_fail(GMA_ERR_UNSUPPORTED, "this PCRE2 does not take GPT-2's pattern: %s", why);
    }
    pcre2_jit_compile((*p)->code, PCRE2_JIT_COMPLETE); /* without it matching is slower, nothing else */
    return GMA_OK;
}

void gmal_pretokenizer_destroy(gmal_pretokenizer *p) {
    if (p) pcre2_code_free(p->code);
    free(p);
}

/* Bytes of the UTF-8 character at s; 0: none starts there; -1: it may be one that is not all here. */
static int char_length(const unsigned char *s, size_t n) {
    const int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    const unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80; /* shortest form only */
    const unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf; /* no surrogates, at most U+10FFFF */
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n) return -1;
        if (s[i] < (i == 1 ? low : 0x80) || s[i] > (i == 1 ? high : 0xbf)) return 0;
    }
    return length;
}

/* The pieces of text that is valid UTF-8. Unless it is closed, what ends within the last bytes may yet grow. */
static gma_status valid(const gmal_pretokenizer *p, pcre2_match_data *found, const char *text, size_t n, int closed,
                        size_t *used, gmal_piece piece, void *context) {
    enum { MARGIN = 8 }; /* no alternative looks further ahead */
    *used = 0;
    while (*used < n) {
        const int rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, *used, PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, found, NULL);
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(found);
        if (rc < 0 || span[1] <= *used) {
            char why[120] = "nothing";
            if (rc < 0) pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            return gma_fail(GMA_ERR_UNSUPPORTED, "cutting text into pieces: PCRE2 found %s", why);
        }
        if (!closed && span[1] + MARGIN > n) break;
        const gma_status s = piece(context, text + *used, span[1] - *used);
        if (s != GMA_OK) return s;
        *used = span[1];
    }
    return GMA_OK;
}

gma_status gmal_pretokenize(const gmal_pretokenizer *p, const char *text, size_t n, int final, size_t *used,
                            gmal_piece piece, void *context) {
    pcre2_match_data *found = pcre2_match_data_create(1, NULL);
    gma_status s = found ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to match a pattern");
    *used = 0;
    while (s == GMA_OK && *used < n) {
        const size_t begin = *used;
        size_t end = begin, done;
        int length = 1;
        while (end < n && (length = char_length((const unsigned char *)text + end, n - end)) > 0) end += (size_t)length;
        const int partial = end < n && length < 0 && !final; /* the character at `end` may come whole */
        if (end > begin) {
            s = valid(p, found, text + begin, end - begin, end < n ? !partial : final, &done, piece, context);
            *used = begin + done;
            if (begin + done < end) break;
        }
        if (s != GMA_OK || partial) break;
        if (end < n) {
            s = piece(context, text + end, 1);
            *used = end + 1;
        }
    }
    pcre2_match_data_free(found);
    return s;
}

#else

gma_status gmal_pretokenizer_create(gmal_pretokenizer **p) {
    *p = NULL;
    return gma_fail(GMA_ERR_UNSUPPORTED, "byte-pair encoding needs PCRE2, and this build is without it");
}

void gmal_pretokenizer_destroy(gmal_pretokenizer *p) { (void)p; }

gma_status gmal_pretokenize(const gmal_pretokenizer *p, const char *text, size_t n, int final, size_t *used,
                            gmal_piece piece, void *context) {
    (void)p, (void)text, (void)n, (void)final, (void)piece, (void)context;
    *used = 0;
    return gma_fail(GMA_ERR_UNSUPPORTED, "byte-pair encoding needs PCRE2, and this build is without it");
}

#endif
