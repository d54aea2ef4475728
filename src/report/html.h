/* Writing HTML: text that may hold anything, numbers, pictures. Errors of the file show when it is committed. */
#ifndef GMA_REPORT_HTML_H
#define GMA_REPORT_HTML_H

#include <stdint.h>
#include <stdio.h>

/* What text is for: in an element, escapes are set apart by markup; in an attribute they cannot be. */
typedef enum gmal_html_place { GMAL_HTML_ELEMENT, GMAL_HTML_ATTRIBUTE } gmal_html_place;

/* Any bytes so that they are seen and nothing else: markup characters as references, bytes that are not UTF-8 and
 * control characters as \xNN, characters that are invisible or turn the direction of writing as \u{NNNN}. A tab or the
 * end of a line is \t, \n; gmal_html_running keeps ends of lines, with a mark before them. At most `most` bytes of the
 * text, then an ellipsis. */
void gmal_html_text(FILE *f, const char *text, size_t size, size_t most, gmal_html_place place);
void gmal_html_running(FILE *f, const char *text, size_t size, size_t most);
void gmal_html_string(FILE *f, const char *text, gmal_html_place place);

/* A dash where there is no number. */
void gmal_html_number(FILE *f, double x, int decimals);

/* A picture of shade (rows,columns), 0..255, as a data: URI: one colour, more or less opaque, so that it lies on a
 * light and on a dark page alike. */
void gmal_html_shades(FILE *f, const uint8_t *shade, int rows, int columns);

#endif
