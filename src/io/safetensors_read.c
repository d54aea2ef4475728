/* Opening a safetensors file: the header, and every check that a file must pass. Values: safetensors_convert.c. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/safetensors.h"

typedef struct type_info {
    const char *name;
    unsigned bits;
    int32_t dtype;
} type_info;

static const type_info types[] = {
#define X(name, bits, dtype) {name, bits, dtype},
    GMAL_SAFETENSORS_TYPES(X)
#undef X
};

static const type_info *find_type(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) == 0) {
            return &types[i];
        }
    }
    return NULL;
}

/* A name from the file for an error line: no control characters, not too long. */
typedef struct printable {
    char text[68];
} printable;

static printable show(const char *name) {
    printable p;
    size_t i = 0;
    for (; name[i] != '\0' && i < sizeof p.text - 4; i++) {
        p.text[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    }
    memcpy(p.text + i, name[i] != '\0' ? "..." : "", name[i] != '\0' ? 4 : 1);
    return p;
}

static gma_status malformed(const gma_safetensors *f, const char *what) {
    return gma_fail(GMA_ERR_FORMAT, "%s: not a safetensors file: %s", f->path, what);
}

static gma_status bad_tensor(const gma_safetensors *f, const char *name, const char *what) {
    return gma_fail(GMA_ERR_FORMAT, "%s: tensor \"%s\": %s", f->path, show(name).text, what);
}

static gma_status no_memory(const char *path) { return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: out of memory", path); }

/* ---- One tensor --------------------------------------------------------------------------------------------- */

static gma_status read_shape(gma_safetensors *f, gma_stored_tensor *t, const json_t *shape, int64_t *room) {
    size_t rank = json_array_size(shape);
    uint64_t count = 1;
    int empty = 0, overflow = 0;
    for (size_t i = 0; i < rank; i++) {
        const json_t *n = json_array_get(shape, i);
        if (!json_is_integer(n) || json_integer_value(n) < 0) {
            return bad_tensor(f, t->name, "shape must hold whole numbers that are not negative");
        }
        room[i] = json_integer_value(n);
        empty = empty || room[i] == 0;
        if (!empty && count > (uint64_t)INT64_MAX / (uint64_t)room[i]) {
            overflow = 1;
        } else if (!empty) {
            count *= (uint64_t)room[i];
        }
    }
    if (overflow) { /* also where a later extent is 0: such a shape is no use to anybody */
        return bad_tensor(f, t->name, "shape has too many elements");
    }
    t->rank = (int32_t)rank;
    t->shape = room;
    t->count = empty ? 0 : (int64_t)count;
    return GMA_OK;
}

static gma_status read_offsets(gma_safetensors *f, gma_stored_tensor *t, const json_t *offsets, uint64_t data_bytes) {
    if (!json_is_array(offsets) || json_array_size(offsets) != 2) {
        return bad_tensor(f, t->name, "data_offsets must be two numbers");
    }
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!json_is_integer(begin) || !json_is_integer(end) || json_integer_value(begin) < 0) {
        return bad_tensor(f, t->name, "data_offsets must be whole numbers that are not negative");
    }
    if (json_integer_value(end) < json_integer_value(begin)) {
        return bad_tensor(f, t->name, "data_offsets end before they begin");
    }
    t->begin = (uint64_t)json_integer_value(begin);
    t->end = (uint64_t)json_integer_value(end);
    if (t->end > data_bytes) {
        return bad_tensor(f, t->name, "data_offsets lie beyond the end of the file");
    }
    return GMA_OK;
}

static gma_status read_tensor(gma_safetensors *f, gma_stored_tensor *t, const json_t *info, uint64_t data_bytes,
                              int64_t *room) {
    if (!json_is_object(info)) {
        return bad_tensor(f, t->name, "must be an object with dtype, shape and data_offsets");
    }
    const json_t *dtype = json_object_get(info, "dtype"), *shape = json_object_get(info, "shape");
    const json_t *offsets = json_object_get(info, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || offsets == NULL) {
        return bad_tensor(f, t->name, "dtype, shape or data_offsets is missing");
    }
    const type_info *type = find_type(json_string_value(dtype));
    if (type == NULL) {
        return bad_tensor(f, t->name, "dtype is not one of the format");
    }
    t->dtype = type->dtype;
    t->dtype_name = type->name;
    gma_status status = read_shape(f, t, shape, room);
    if (status == GMA_OK) {
        status = read_offsets(f, t, offsets, data_bytes);
    }
    if (status != GMA_OK) {
        return status;
    }
    /* count * bits overflows only where the byte range, at most a file's length, is already too short. */
    uint64_t bytes = t->end - t->begin;
    if ((uint64_t)t->count > UINT64_MAX / type->bits || (uint64_t)t->count * type->bits % 8 != 0 ||
        (uint64_t)t->count * type->bits / 8 != bytes) {
        return bad_tensor(f, t->name, "shape and data_offsets disagree on its size");
    }
    return GMA_OK;
}

/* ---- The whole header --------------------------------------------------------------------------------------- */

static gma_status read_metadata(gma_safetensors *f, const json_t *metadata) {
    const char *key;
    json_t *value;
    if (metadata == NULL) {
        return GMA_OK;
    }
    if (!json_is_object(metadata)) {
        return malformed(f, "__metadata__ must be an object of strings");
    }
    f->metadata = calloc(json_object_size(metadata) + 1, sizeof *f->metadata);
    if (f->metadata == NULL) {
        return no_memory(f->path);
    }
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value)) {
            return malformed(f, "__metadata__ must be an object of strings");
        }
        f->metadata[f->metadata_count++] = (gma_metadata_pair){key, json_string_value(value)};
    }
    return GMA_OK;
}

static int by_offset(const void *a, const void *b) {
    const gma_stored_tensor *x = *(const gma_stored_tensor *const *)a, *y = *(const gma_stored_tensor *const *)b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Every byte of the data belongs to exactly one tensor; empty tensors may share an offset with others' edges. */
static gma_status check_cover(const gma_safetensors *f, uint64_t data_bytes) {
    const gma_stored_tensor **sorted = malloc(((size_t)f->count + 1) * sizeof *sorted);
    uint64_t at = 0;
    gma_status status = GMA_OK;
    if (sorted == NULL) {
        return no_memory(f->path);
    }
    for (int64_t i = 0; i < f->count; i++) {
        sorted[i] = &f->tensor[i];
    }
    qsort(sorted, (size_t)f->count, sizeof *sorted, by_offset);
    for (int64_t i = 0; i < f->count && status == GMA_OK; i++) {
        if (sorted[i]->begin != at) {
            status = bad_tensor(f, sorted[i]->name,
                                sorted[i]->begin < at ? "its bytes overlap those of another tensor"
                                                      : "the bytes before it belong to no tensor");
        }
        at = sorted[i]->end;
    }
    free(sorted);
    if (status == GMA_OK && at != data_bytes) {
        status = malformed(f, "there are bytes at its end that belong to no tensor");
    }
    return status;
}

static gma_status read_tensors(gma_safetensors *f, json_t *root, uint64_t data_bytes) {
    const char *key;
    json_t *value;
    size_t extents = 0;
    json_object_foreach(root, key, value) {
        extents += json_array_size(json_object_get(value, "shape"));
    }
    f->tensor = calloc(json_object_size(root) + 1, sizeof *f->tensor);
    f->shapes = calloc(extents + 1, sizeof *f->shapes);
    if (f->tensor == NULL || f->shapes == NULL) {
        return no_memory(f->path);
    }
    extents = 0;
    json_object_foreach(root, key, value) {
        gma_status status;
        if (strcmp(key, "__metadata__") == 0) {
            status = read_metadata(f, value);
        } else {
            gma_stored_tensor *t = &f->tensor[f->count++];
            t->name = key;
            status = read_tensor(f, t, value, data_bytes, f->shapes + extents);
            extents += (size_t)t->rank;
        }
        if (status != GMA_OK) {
            return status;
        }
    }
    return check_cover(f, data_bytes);
}

static gma_status read_bytes(const gma_safetensors *f, void *out, size_t bytes, uint64_t offset) {
    char *to = out;
    while (bytes > 0) {
        ssize_t n = pread(f->fd, to, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return gma_fail(GMA_ERR_IO, "%s: cannot read: %s", f->path, n < 0 ? strerror(errno) : "unexpected end");
        }
        to += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return GMA_OK;
}

static gma_status read_header(gma_safetensors *f) {
    struct stat st;
    unsigned char prefix[8];
    if (fstat(f->fd, &st) != 0) {
        return gma_fail(GMA_ERR_IO, "%s: cannot read: %s", f->path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return gma_fail(GMA_ERR_IO, "%s: is not a regular file", f->path);
    }
    uint64_t size = (uint64_t)st.st_size, length = 0;
    if (size < sizeof prefix) {
        return malformed(f, size == 0 ? "it is empty" : "it is shorter than 8 bytes");
    }
    gma_status status = read_bytes(f, prefix, sizeof prefix, 0);
    if (status != GMA_OK) {
        return status;
    }
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | prefix[i];
    }
    if (length > GMAL_SAFETENSORS_MAX_HEADER) {
        return malformed(f, "its header would be longer than 100 MB");
    }
    if (length > size - sizeof prefix) {
        return malformed(f, "its header would be longer than the file");
    }
    if (length < 2) {
        return malformed(f, "its header is empty");
    }
    char *text = malloc((size_t)length);
    if (text == NULL) {
        return no_memory(f->path);
    }
    /* One byte first, so that a huge file of something else is not read in just to be refused. */
    status = read_bytes(f, text, 1, sizeof prefix);
    if (status == GMA_OK && text[0] != '{') {
        status = malformed(f, "its header is not a JSON object");
    }
    if (status == GMA_OK) {
        status = read_bytes(f, text, (size_t)length, sizeof prefix);
    }
    if (status == GMA_OK) {
        json_error_t error;
        f->json = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
        if (f->json == NULL) {
            status = gma_fail(GMA_ERR_FORMAT, "%s: not a safetensors file: its header: %s at byte %d", f->path,
                              show(error.text).text, error.position);
        }
    }
    free(text);
    if (status != GMA_OK) {
        return status;
    }
    f->data_start = sizeof prefix + length;
    return read_tensors(f, f->json, size - f->data_start);
}

/* ---- Public ------------------------------------------------------------------------------------------------- */

gma_status gma_safetensors_open(const char *path, gma_safetensors **file) {
    if (file == NULL || path == NULL) {
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_safetensors_open: %s is NULL", file == NULL ? "file" : "path");
    }
    *file = NULL;
    gma_safetensors *f = calloc(1, sizeof *f);
    if (f == NULL || (f->path = strdup(path)) == NULL) {
        free(f);
        return no_memory(path);
    }
    /* Not to wait for a writer, should this be a pipe. */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    gma_status status =
        f->fd < 0 ? gma_fail(GMA_ERR_IO, "%s: cannot open: %s", path, strerror(errno)) : read_header(f);
    if (status != GMA_OK) {
        gma_safetensors_close(f);
        return status;
    }
    *file = f;
    return GMA_OK;
}

void gma_safetensors_close(gma_safetensors *f) {
    if (f == NULL) {
        return;
    }
    if (f->fd >= 0) {
        close(f->fd);
    }
    json_decref(f->json);
    free(f->tensor);
    free(f->shapes);
    free(f->metadata);
    free(f->path);
    free(f);
}

int64_t gma_safetensors_count(const gma_safetensors *f) { return f->count; }

const gma_stored_tensor *gma_safetensors_at(const gma_safetensors *f, int64_t index) {
    return index >= 0 && index < f->count ? &f->tensor[index] : NULL;
}

const gma_stored_tensor *gma_safetensors_find(const gma_safetensors *f, const char *name) {
    for (int64_t i = 0; i < f->count; i++) {
        if (strcmp(f->tensor[i].name, name) == 0) {
            return &f->tensor[i];
        }
    }
    return NULL;
}

const char *gma_safetensors_metadata(const gma_safetensors *f, const char *key) {
    for (int64_t i = 0; i < f->metadata_count; i++) {
        if (strcmp(f->metadata[i].key, key) == 0) {
            return f->metadata[i].value;
        }
    }
    return NULL;
}

int gma_safetensors_metadata_at(const gma_safetensors *f, int64_t index, const char **key, const char **value) {
    if (index < 0 || index >= f->metadata_count) {
        return 0;
    }
    *key = f->metadata[index].key;
    *value = f->metadata[index].value;
    return 1;
}
