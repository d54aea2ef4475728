/* The surface class of a token: what can be told from its text alone. The rules, in this order, on the text without
 * white space at its ends:
 *   white space   nothing is left
 *   punctuation   only ASCII punctuation
 *   digits        begins with a digit and holds only digits and . , : % -
 *   function      one of 150 English function words, in any case (the, of, and, would ...); never for models of bytes,
 *                 where a token is a letter
 *   capitalised   begins with a capital letter (A to Z)
 *   other         everything else, and text that is not UTF-8 */
#ifndef GMA_INSPECT_CLASSES_H
#define GMA_INSPECT_CLASSES_H

#include <stddef.h>

typedef enum gmal_surface {
    GMAL_SURFACE_SPACE,
    GMAL_SURFACE_PUNCTUATION,
    GMAL_SURFACE_DIGITS,
    GMAL_SURFACE_FUNCTION,
    GMAL_SURFACE_CAPITALISED,
    GMAL_SURFACE_OTHER,
    GMAL_SURFACE_COUNT
} gmal_surface;

gmal_surface gmal_surface_class(const char *text, size_t length, int single_bytes);
const char *gmal_surface_name(gmal_surface c);

#endif
