/* Values of a stored tensor: read block by block (any alignment in the file) and converted on the way. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "io/safetensors.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian and so must be the machine"
#endif

enum { BLOCK = 8192 }; /* elements; 64 KiB of the widest type */

typedef union block {
    double f64[BLOCK];
    int64_t i64[BLOCK];
    unsigned char bytes[BLOCK * 8];
} block;

static int is_real(int32_t t) { return t == GMA_F64 || t == GMA_F32 || t == GMA_BF16; }
static int is_whole(int32_t t) {
    return t == GMA_I32 || t == GMA_I64 || t == GMA_U16 || t == GMA_U8 || t == GMA_BOOL;
}
static int is_byte(int32_t t) { return t == GMA_U8 || t == GMA_BOOL; }

static int convertible(int32_t from, gma_dtype to) {
    if (from == 0) {
        return 0;
    }
    return from == (int32_t)to || (is_real(from) && is_real(to)) || (is_byte(from) && is_byte(to)) ||
           (is_whole(from) && (to == GMA_I32 || to == GMA_I64));
}

/* memcpy per element keeps this right for any alignment; compilers make it a plain load. */
static double load_real(const unsigned char *p, int32_t type) {
    if (type == GMA_F64) {
        double x;
        memcpy(&x, p, sizeof x);
        return x;
    }
    if (type == GMA_F32) {
        float x;
        memcpy(&x, p, sizeof x);
        return x;
    }
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return gma_bf16_to_f32(x);
}

static void store_real(unsigned char *p, gma_dtype type, double x) {
    if (type == GMA_F64) {
        memcpy(p, &x, sizeof x);
    } else if (type == GMA_F32) {
        float y = (float)x;
        memcpy(p, &y, sizeof y);
    } else {
        uint16_t y = gma_f32_to_bf16((float)x);
        memcpy(p, &y, sizeof y);
    }
}

static int64_t load_whole(const unsigned char *p, int32_t type) {
    if (type == GMA_I64) {
        int64_t x;
        memcpy(&x, p, sizeof x);
        return x;
    }
    if (type == GMA_I32) {
        int32_t x;
        memcpy(&x, p, sizeof x);
        return x;
    }
    if (type == GMA_U16) {
        uint16_t x;
        memcpy(&x, p, sizeof x);
        return x;
    }
    return type == GMA_BOOL ? *p != 0 : *p;
}

/* Returns 0 when the value does not fit. */
static int store_whole(unsigned char *p, gma_dtype type, int64_t x) {
    if (type == GMA_I64) {
        memcpy(p, &x, sizeof x);
    } else if (type == GMA_I32) {
        int32_t y = (int32_t)x;
        memcpy(p, &y, sizeof y);
        return x >= INT32_MIN && x <= INT32_MAX;
    } else {
        *p = (unsigned char)(type == GMA_BOOL ? x != 0 : x);
    }
    return 1;
}

static int convert(const unsigned char *from, int32_t from_type, unsigned char *to, gma_dtype to_type, size_t n) {
    size_t from_size = gma_dtype_size((gma_dtype)from_type), to_size = gma_dtype_size(to_type);
    if (from_type == (int32_t)to_type && from_type != GMA_BOOL) {
        memcpy(to, from, n * to_size);
        return 1;
    }
    int fits = 1;
    for (size_t i = 0; i < n; i++, from += from_size, to += to_size) {
        if (is_real(from_type)) {
            store_real(to, to_type, load_real(from, from_type));
        } else {
            fits &= store_whole(to, to_type, load_whole(from, from_type));
        }
    }
    return fits;
}

gma_status gma_safetensors_read(const gma_safetensors *f, const gma_stored_tensor *t, gma_dtype dtype, void *out) {
    if (!convertible(t->dtype, dtype)) {
        const char *want = gma_dtype_name(dtype);
        return gma_fail(GMA_ERR_DTYPE, "%s: tensor \"%.60s\": %s cannot be read as %s", f->path, t->name,
                        t->dtype_name, want != NULL ? want : "that type");
    }
    size_t from_size = gma_dtype_size((gma_dtype)t->dtype), to_size = gma_dtype_size(dtype);
    uint64_t offset = f->data_start + t->begin;
    unsigned char *to = out;
    block b;
    for (int64_t done = 0; done < t->count;) {
        size_t n = (uint64_t)(t->count - done) < BLOCK ? (size_t)(t->count - done) : BLOCK;
        size_t have = 0;
        while (have < n * from_size) {
            ssize_t got = pread(f->fd, b.bytes + have, n * from_size - have, (off_t)(offset + have));
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got <= 0) {
                return gma_fail(GMA_ERR_IO, "%s: tensor \"%.60s\": cannot read: %s", f->path, t->name,
                                got < 0 ? strerror(errno) : "the file has become shorter");
            }
            have += (size_t)got;
        }
        if (!convert(b.bytes, t->dtype, to, dtype, n)) {
            return gma_fail(GMA_ERR_FORMAT, "%s: tensor \"%.60s\": a value does not fit %s", f->path, t->name,
                            gma_dtype_name(dtype));
        }
        done += (int64_t)n;
        offset += n * from_size;
        to += n * to_size;
    }
    return GMA_OK;
}
