/* A whole file to read from: copied into memory, or mapped. */
#ifndef GMA_DATA_FILE_H
#define GMA_DATA_FILE_H

#include <stddef.h>

#include "gma/base.h"

typedef struct gmal_file {
    const unsigned char *bytes; /* the copy, or a mapping */
    unsigned char *copy; /* NULL when mapped */
    size_t size;
} gmal_file;

/* Up to most_copied bytes are copied, so that whoever cuts the file short later does no harm (a mapping would end the
 * process); larger files are mapped. Errors: IO (missing, not a regular file), FORMAT (empty). */
gma_status gmal_file_open(const char *path, size_t most_copied, gmal_file *file);
void gmal_file_close(gmal_file *file);

#endif
