/* gma/io.h - tensors in files: the safetensors format, read and written. Part of libgma_lm. Since 0.1.
 *
 * A file is 8 bytes (header length, little-endian), a JSON header {"name": {"dtype", "shape", "data_offsets"}, ...,
 * "__metadata__": {"key": "value"}}, then the data. Nothing in a file is trusted: before anything is allocated for it,
 * the header's length is checked against the file and against 100 MB; every shape against its byte range, without
 * overflow; and the ranges must cover the data exactly, with no gap, no overlap and no name twice.
 *
 * Threads: a gma_safetensors may be read by several threads at once; open and close are not part of that.
 * Errors: GMA_ERR_IO (the system refused), GMA_ERR_FORMAT (the file is malformed); the line names the file. */
#ifndef GMA_IO_H
#define GMA_IO_H

#include "gma/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gma_safetensors gma_safetensors;

/** gma_stored_tensor - a tensor that lies in a file. Owned by the gma_safetensors; any rank.
 *  dtype is 0 for types of the format that this library has no gma_dtype for (F16, I8, F8_E4M3, ...): they can be
 *  listed but not read. */
typedef struct gma_stored_tensor {
    const char *name;
    const char *dtype_name; /* as the file spells it: "F32", "F16", ... */
    int32_t dtype; /* a gma_dtype, or 0 */
    int32_t rank;
    const int64_t *shape;
    int64_t count; /* elements: 1 for rank 0 */
    uint64_t begin, end; /* bytes, from the start of the data */
} gma_stored_tensor;

/** gma_safetensors_open() - read and check the header; the data stays in the file. *file is NULL after a failure. */
GMA_API gma_status gma_safetensors_open(const char *path, gma_safetensors **file);
GMA_API void gma_safetensors_close(gma_safetensors *file); /* NULL is fine */

/** gma_safetensors_count() / _at() / _find() - the tensors in the order of the header; NULL when there is none. */
GMA_API int64_t gma_safetensors_count(const gma_safetensors *file);
GMA_API const gma_stored_tensor *gma_safetensors_at(const gma_safetensors *file, int64_t index);
GMA_API const gma_stored_tensor *gma_safetensors_find(const gma_safetensors *file, const char *name);

/** gma_safetensors_metadata() - the metadata string of that key, NULL when there is none.
 *  gma_safetensors_metadata_at() - the index-th pair; returns 0 past the last one. */
GMA_API const char *gma_safetensors_metadata(const gma_safetensors *file, const char *key);
GMA_API int gma_safetensors_metadata_at(const gma_safetensors *file, int64_t index, const char **key,
                                        const char **value);

/** gma_safetensors_read() - the values, dense row-major, as `dtype`, into `out` (tensor->count elements).
 *  Conversions: F64, F32, BF16 into each other (rounded to nearest, ties to even; BF16 by way of F32);
 *  I32, I64, U16, U8, BOOL into I32 or I64 (GMA_ERR_FORMAT if a value does not fit); BOOL and U8 into each other
 *  (BOOL becomes 0 or 1); every type into itself. Any other pair: GMA_ERR_DTYPE naming tensor and file. */
GMA_API gma_status gma_safetensors_read(const gma_safetensors *file, const gma_stored_tensor *tensor, gma_dtype dtype,
                                        void *out);

/** gma_named_tensor, gma_metadata_pair - what gma_safetensors_save() writes; strided views are written dense. */
typedef struct gma_named_tensor {
    const char *name; /* UTF-8, not "__metadata__", no two alike */
    gma_tensor tensor;
} gma_named_tensor;

typedef struct gma_metadata_pair {
    const char *key;
    const char *value;
} gma_metadata_pair;

/** gma_safetensors_save() - write a file and put it in place in one step: it is written beside `path`, flushed to the
 *  disk and renamed. After an error the old file is as it was and nothing is left beside it.
 *  The data starts 8-aligned and every tensor is aligned to its element size: tensors whose size is a multiple of 8
 *  bytes come first (all of them 8-aligned), then the others by falling element size; within these, by name, so equal
 *  contents give equal files. */
GMA_API gma_status gma_safetensors_save(const char *path, const gma_named_tensor *tensors, int64_t count,
                                        const gma_metadata_pair *metadata, int64_t metadata_count);

#ifdef __cplusplus
}
#endif
#endif
