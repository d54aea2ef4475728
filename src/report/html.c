#include "report/html.h"

#include <math.h>
#include <string.h>

#include "io/crc32.h"

/* ---- Text ----------------------------------------------------------------------------------------------------- */

/* The character at `text`: its length and *code; 0 = these bytes are no UTF-8 (shortest form only, no surrogates). */
static size_t decode(const unsigned char *text, size_t size, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char c = text[0];
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    if (n == 0 || n > size)
        return 0;
    *code = n == 1 ? c : c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (text[i] & 0x3f);
    }
    return *code < least[n] || (*code >= 0xd800 && *code < 0xe000) || *code > 0x10ffff ? 0 : n;
}

/* What shows nothing of itself or changes how its neighbours are shown. */
static int is_invisible(uint32_t c) {
    static const uint32_t ranges[][2] = {
        {0x80, 0x9f},     {0xad, 0xad},     {0x34f, 0x34f},   {0x61c, 0x61c},     {0x115f, 0x1160},  {0x17b4, 0x17b5},
        {0x180b, 0x180f}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},   {0x3164, 0x3164},  {0xfe00, 0xfe0f},
        {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return 1;
    return (c & 0xfffe) == 0xfffe; /* no characters */
}

static void escape(FILE *f, gmal_html_place place, const char *format, unsigned code) {
    fputs(place == GMAL_HTML_ELEMENT ? "<b class=\"esc\">" : "", f);
    fprintf(f, format, code);
    fputs(place == GMAL_HTML_ELEMENT ? "</b>" : "", f);
}

static void put(FILE *f, const char *text, size_t size, size_t most, gmal_html_place place, int running) {
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < size;) {
        uint32_t code = 0;
        const size_t n = decode(p + i, size - i, &code);
        if (i + (n ? n : 1) > most) {
            fputs("\xe2\x80\xa6", f);
            return;
        }
        if (n == 0)
            escape(f, place, "\\x%02x", p[i]);
        else if (code == '\n' && running)
            fputs("<b class=\"esc\">\xe2\x86\xb5</b>\n", f);
        else if (code == '\n' || code == '\t')
            escape(f, place, code == '\n' ? "\\n" : "\\t", 0);
        else if (code < 0x20 || code == 0x7f)
            escape(f, place, "\\x%02x", code);
        else if (is_invisible(code))
            escape(f, place, "\\u{%04x}", code);
        else if (code == '&' || code == '<' || code == '>' || code == '"' || code == '\'' || code == '`' || code == '=')
            fprintf(f, "&#%u;", (unsigned)code);
        else
            fwrite(p + i, 1, n, f);
        i += n ? n : 1;
    }
}

void gmal_html_text(FILE *f, const char *text, size_t size, size_t most, gmal_html_place place) {
    put(f, text, size, most, place, 0);
}

void gmal_html_running(FILE *f, const char *text, size_t size, size_t most) {
    put(f, text, size, most, GMAL_HTML_ELEMENT, 1);
}

void gmal_html_string(FILE *f, const char *text, gmal_html_place place) { put(f, text, strlen(text), 200, place, 0); }

void gmal_html_number(FILE *f, double x, int decimals) {
    if (isfinite(x))
        fprintf(f, "%.*f", decimals, x);
    else
        fputs("\xe2\x80\x93", f);
}

/* ---- Pictures ------------------------------------------------------------------------------------------------- */

/* Bytes that become base64 as they come; chunk: CRC of the PNG chunk in progress. */
typedef struct stream {
    FILE *f;
    unsigned char held[3];
    int count;
    uint32_t chunk;
} stream;

static void put_group(stream *s) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint32_t x = (uint32_t)s->held[0] << 16 | (uint32_t)s->held[1] << 8 | s->held[2];
    const char out[4] = {digits[x >> 18], digits[x >> 12 & 63], s->count > 1 ? digits[x >> 6 & 63] : '=',
                         s->count > 2 ? digits[x & 63] : '='};
    fwrite(out, 1, 4, s->f);
    memset(s->held, 0, sizeof s->held);
    s->count = 0;
}

static void put_byte(stream *s, unsigned char byte) {
    s->chunk = gmal_crc32_more(GMAL_CRC32, s->chunk, &byte, 1);
    s->held[s->count++] = byte;
    if (s->count == 3)
        put_group(s);
}

static void put_big(stream *s, uint32_t x) {
    for (int shift = 24; shift >= 0; shift -= 8)
        put_byte(s, (unsigned char)(x >> shift));
}

static void begin_chunk(stream *s, uint32_t size, const char *type) {
    put_big(s, size);
    s->chunk = GMAL_CRC32_START;
    for (int i = 0; i < 4; i++)
        put_byte(s, (unsigned char)type[i]);
}

static void end_chunk(stream *s) { put_big(s, ~s->chunk); }

static uint32_t adler(uint32_t sum, unsigned char byte) {
    const uint32_t a = ((sum & 0xffff) + byte) % 65521, b = ((sum >> 16) + a) % 65521;
    return b << 16 | a;
}

/* One stored block a row: these pictures are small, and noise does not compress. */
static void put_rows(stream *s, const uint8_t *shade, int rows, int columns) {
    const uint32_t length = (uint32_t)columns + 1;
    uint32_t sum = 1;
    begin_chunk(s, 2 + (uint32_t)rows * (5 + length) + 4, "IDAT");
    put_byte(s, 0x78);
    put_byte(s, 0x01);
    for (int i = 0; i < rows; i++) {
        put_byte(s, i == rows - 1);
        put_byte(s, (unsigned char)length);
        put_byte(s, (unsigned char)(length >> 8));
        put_byte(s, (unsigned char)~length);
        put_byte(s, (unsigned char)(~length >> 8));
        for (int j = -1; j < columns; j++) {
            const uint8_t byte = j < 0 ? 0 : shade[i * columns + j]; /* first the filter of the row: none */
            put_byte(s, byte);
            sum = adler(sum, byte);
        }
    }
    put_big(s, sum);
    end_chunk(s);
}

void gmal_html_shades(FILE *f, const uint8_t *shade, int rows, int columns) {
    static const unsigned char mark[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    static const unsigned char colour[] = {0x2e, 0x86, 0xd1}; /* is seen on white and on black */
    stream s = {.f = f};
    fputs("data:image/png;base64,", f);
    for (size_t i = 0; i < sizeof mark; i++)
        put_byte(&s, mark[i]);
    begin_chunk(&s, 13, "IHDR");
    put_big(&s, (uint32_t)columns);
    put_big(&s, (uint32_t)rows);
    put_byte(&s, 8); /* bits */
    put_byte(&s, 3); /* palette */
    for (int i = 0; i < 3; i++)
        put_byte(&s, 0);
    end_chunk(&s);
    begin_chunk(&s, 3 * 256, "PLTE");
    for (int i = 0; i < 3 * 256; i++)
        put_byte(&s, colour[i % 3]);
    end_chunk(&s);
    begin_chunk(&s, 256, "tRNS");
    for (int i = 0; i < 256; i++)
        put_byte(&s, (unsigned char)i);
    end_chunk(&s);
    put_rows(&s, shade, rows, columns);
    begin_chunk(&s, 0, "IEND");
    end_chunk(&s);
    if (s.count)
        put_group(&s);
}
