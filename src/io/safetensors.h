/* What the parts of the safetensors reader and writer share. */
#ifndef GMAL_IO_SAFETENSORS_H
#define GMAL_IO_SAFETENSORS_H

#include "gma/io.h"

enum { GMAL_SAFETENSORS_MAX_HEADER = 100 * 1000 * 1000 }; /* the format's own limit */

/* The types of the format: X(name, bits of an element, gma_dtype or 0). */
#define GMAL_SAFETENSORS_TYPES(X) \
    X("F64", 64, GMA_F64)         \
    X("F32", 32, GMA_F32)         \
    X("BF16", 16, GMA_BF16)       \
    X("BOOL", 8, GMA_BOOL)        \
    X("U8", 8, GMA_U8)            \
    X("I32", 32, GMA_I32)         \
    X("I64", 64, GMA_I64)         \
    X("U16", 16, GMA_U16)         \
    X("F16", 16, 0)               \
    X("I8", 8, 0)                 \
    X("I16", 16, 0)               \
    X("U32", 32, 0)               \
    X("U64", 64, 0)               \
    X("C64", 64, 0)               \
    X("F8_E5M2", 8, 0)            \
    X("F8_E4M3", 8, 0)            \
    X("F8_E8M0", 8, 0)            \
    X("F6_E2M3", 6, 0)            \
    X("F6_E3M2", 6, 0)            \
    X("F4", 4, 0)

struct gma_safetensors {
    char *path;
    int fd;
    uint64_t data_start; /* offset of the data in the file */
    int64_t count;
    gma_stored_tensor *tensor;
    int64_t metadata_count;
    gma_metadata_pair *metadata;
    void *json; /* the parsed header, owner of every name and string above */
    int64_t *shapes; /* owner of every shape */
};

#endif
