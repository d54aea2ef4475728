/* Writing a safetensors file: order and alignment of the tensors, header, data, all put in place in one step. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "io/replace.h"
#include "io/safetensors.h"

typedef struct item {
    const gma_named_tensor *named;
    uint64_t bytes;
    size_t size; /* of an element */
} item;

/* Elements of a view, or -1 when it is no tensor that can be written. */
static int64_t count_of(const gma_tensor *t) {
    int64_t count = 1;
    if (gma_dtype_size((gma_dtype)t->dtype) == 0 || t->rank < 0 || t->rank > GMA_MAX_RANK) {
        return -1;
    }
    for (int32_t i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0 || (t->shape[i] > 0 && count > INT64_MAX / 8 / t->shape[i])) {
            return -1;
        }
        count *= t->shape[i];
    }
    return count > 0 && t->data == NULL ? -1 : count;
}

static int in_file_order(const void *a, const void *b) {
    const item *x = a, *y = b;
    int x_odd = x->bytes % 8 != 0, y_odd = y->bytes % 8 != 0;
    if (x_odd != y_odd) {
        return x_odd - y_odd;
    }
    if (x->size != y->size) {
        return x->size > y->size ? -1 : 1;
    }
    return strcmp(x->named->name, y->named->name);
}

static gma_status collect(const char *path, const gma_named_tensor *tensors, int64_t count, item *items) {
    for (int64_t i = 0; i < count; i++) {
        int64_t n = tensors[i].name == NULL ? -1 : count_of(&tensors[i].tensor);
        if (n < 0) {
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: tensor \"%.60s\" cannot be written: it is not a valid view",
                            path, tensors[i].name == NULL ? "" : tensors[i].name);
        }
        size_t size = gma_dtype_size((gma_dtype)tensors[i].tensor.dtype);
        items[i] = (item){&tensors[i], (uint64_t)n * size, size};
    }
    qsort(items, (size_t)count, sizeof *items, in_file_order);
    return GMA_OK;
}

/* Puts `value` (whose reference it takes) under a new key. */
static gma_status put(const char *path, json_t *object, const char *key, json_t *value) {
    if (json_object_get(object, key) != NULL) {
        json_decref(value);
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: \"%.60s\" is to be written twice", path, key);
    }
    if (value == NULL || json_object_set_new(object, key, value) != 0) {
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: \"%.60s\" is not UTF-8, or memory ran out", path, key);
    }
    return GMA_OK;
}

static gma_status describe(const char *path, json_t *root, const item *it, uint64_t begin) {
    const gma_tensor *t = &it->named->tensor;
    json_t *shape = json_array();
    for (int32_t i = 0; i < t->rank; i++) {
        json_array_append_new(shape, json_integer(t->shape[i]));
    }
    json_t *info = json_pack("{s:s, s:o, s:[I, I]}", "dtype", gma_dtype_name((gma_dtype)t->dtype), "shape", shape,
                             "data_offsets", (json_int_t)begin, (json_int_t)(begin + it->bytes));
    return put(path, root, it->named->name, info);
}

/* The header as text, padded with spaces so that the data starts 8-aligned. */
static gma_status make_header(const char *path, const item *items, int64_t count, const gma_metadata_pair *metadata,
                              int64_t metadata_count, char **header, size_t *length) {
    json_t *root = json_object();
    json_t *strings = json_object();
    gma_status status = GMA_OK;
    for (int64_t i = 0; i < metadata_count && status == GMA_OK; i++) {
        status = put(path, strings, metadata[i].key, json_string(metadata[i].value));
    }
    /* Always put, even when empty and dropped below: it makes a tensor of this name a duplicate. */
    json_object_set_new(root, "__metadata__", strings);
    uint64_t at = 0;
    for (int64_t i = 0; i < count && status == GMA_OK; i++) {
        status = describe(path, root, &items[i], at);
        at += items[i].bytes;
    }
    if (metadata_count == 0) {
        json_object_del(root, "__metadata__");
    }
    char *text = status == GMA_OK ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (status != GMA_OK) {
        return status;
    }
    size_t n = text == NULL ? 0 : strlen(text);
    size_t padded = (n + 7) / 8 * 8;
    if (padded > GMAL_SAFETENSORS_MAX_HEADER) {
        free(text);
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: the header would be longer than 100 MB", path);
    }
    char *longer = text == NULL ? NULL : realloc(text, padded + 1);
    if (longer == NULL) {
        free(text);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    memset(longer + n, ' ', padded - n);
    *header = longer;
    *length = padded;
    return GMA_OK;
}

/* Writes the view dense; recursion over its dimensions, the last one in one piece where it is contiguous. */
static int write_view(FILE *file, const gma_tensor *t, int32_t dim, const char *at, size_t size) {
    if (dim >= t->rank || dim >= GMA_MAX_RANK) { /* the second is implied; it tells the compiler so */
        return fwrite(at, size, 1, file) == 1;
    }
    if (dim == t->rank - 1 && t->stride[dim] == 1) {
        size_t n = (size_t)t->shape[dim];
        return n == 0 || fwrite(at, size, n, file) == n;
    }
    for (int64_t i = 0; i < t->shape[dim]; i++) {
        if (!write_view(file, t, dim + 1, at + i * t->stride[dim] * (int64_t)size, size)) {
            return 0;
        }
    }
    return 1;
}

static gma_status write_all(const char *path, const item *items, int64_t count, const char *header, size_t length) {
    gmal_replace r;
    gma_status status = gmal_replace_begin(&r, path);
    if (status != GMA_OK) {
        return status;
    }
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
    }
    int good = fwrite(prefix, 1, sizeof prefix, r.file) == sizeof prefix &&
               fwrite(header, 1, length, r.file) == length;
    for (int64_t i = 0; i < count && good; i++) {
        good = items[i].bytes == 0 ||
               write_view(r.file, &items[i].named->tensor, 0, items[i].named->tensor.data, items[i].size);
    }
    if (!good) {
        status = gma_fail(GMA_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
        gmal_replace_abandon(&r);
        return status;
    }
    return gmal_replace_commit(&r);
}

gma_status gma_safetensors_save(const char *path, const gma_named_tensor *tensors, int64_t count,
                                const gma_metadata_pair *metadata, int64_t metadata_count) {
    if (path == NULL || count < 0 || (count > 0 && tensors == NULL) || metadata_count < 0 ||
        (metadata_count > 0 && metadata == NULL)) {
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_safetensors_save: path, tensors or metadata is NULL");
    }
    item *items = malloc(((size_t)count + 1) * sizeof *items);
    char *header = NULL;
    size_t length = 0;
    if (items == NULL) {
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    gma_status status = collect(path, tensors, count, items);
    if (status == GMA_OK) {
        status = make_header(path, items, count, metadata, metadata_count, &header, &length);
    }
    if (status == GMA_OK) {
        status = write_all(path, items, count, header, length);
    }
    free(header);
    free(items);
    return status;
}
