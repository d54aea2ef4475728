#define _POSIX_C_SOURCE 200809L
#include "train/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/crc32.h"

enum { HEADER = 12, MOST_RECORD = 1 << 26 };

/* ---- Bytes ---------------------------------------------------------------------------------------------------- */

static void little(unsigned char *out, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++)
        out[i] = (unsigned char)(x >> 8 * i);
}

static uint64_t read_little(const unsigned char *p, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)p[i] << 8 * i;
    return x;
}

/* Stored turned and shifted, so that the sum of data that hold sums is not predictable (the format's rule). */
static uint32_t masked(const unsigned char *data, size_t size) {
    const uint32_t crc = ~gmal_crc32_more(GMAL_CRC32C, GMAL_CRC32_START, data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static unsigned char *more(gmal_events *e, size_t bytes) {
    if (e->room - e->size < bytes) {
        const size_t room = 2 * e->room + bytes + 256;
        unsigned char *data = realloc(e->data, room);
        if (!data) {
            e->bad = 1;
            return NULL;
        }
        e->data = data;
        e->room = room;
    }
    e->size += bytes;
    return e->data + e->size - bytes;
}

static void put_bytes(gmal_events *e, const void *data, size_t size) {
    unsigned char *p = more(e, size);
    if (p)
        memcpy(p, data, size);
}

static size_t varint(unsigned char out[10], uint64_t x) {
    size_t n = 0;
    for (; x >= 0x80; x >>= 7)
        out[n++] = (unsigned char)(x | 0x80);
    out[n++] = (unsigned char)x;
    return n;
}

static void put_varint(gmal_events *e, uint64_t x) {
    unsigned char out[10];
    put_bytes(e, out, varint(out, x));
}

static void put_fixed(gmal_events *e, int field_and_type, uint64_t bits, int bytes) {
    unsigned char out[9] = {(unsigned char)field_and_type};
    little(out + 1, bits, bytes);
    put_bytes(e, out, 1 + (size_t)bytes);
}

static void put_string(gmal_events *e, int field_and_type, const char *text) {
    put_varint(e, (uint64_t)field_and_type);
    put_varint(e, strlen(text));
    put_bytes(e, text, strlen(text));
}

enum { FIXED64 = 1, VARINT = 0, BYTES = 2, FIXED32 = 5 };
#define FIELD(number, type) ((number) << 3 | (type))

/* ---- Records -------------------------------------------------------------------------------------------------- */

static void begin(gmal_events *e) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const double wall = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    uint64_t bits;
    memcpy(&bits, &wall, sizeof bits);
    e->size = 0;
    put_fixed(e, FIELD(1, FIXED64), bits, 8);
}

static void end(gmal_events *e) {
    unsigned char header[HEADER], footer[4];
    if (e->bad)
        return;
    little(header, e->size, 8);
    little(header + 8, masked(header, 8), 4);
    little(footer, masked(e->data, e->size), 4);
    if (fwrite(header, 1, HEADER, e->file) != HEADER || fwrite(e->data, 1, e->size, e->file) != e->size ||
        fwrite(footer, 1, 4, e->file) != 4)
        e->bad = 2;
}

void gmal_events_scalar(gmal_events *e, int64_t step, const char *tag, double value) {
    const float x = (float)value;
    unsigned char n[10];
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const size_t tag_size = strlen(tag), inner = 1 + varint(n, tag_size) + tag_size + 5,
                 outer = 1 + varint(n, inner) + inner;
    begin(e);
    put_varint(e, FIELD(2, VARINT));
    put_varint(e, (uint64_t)step);
    put_varint(e, FIELD(5, BYTES));
    put_varint(e, outer);
    put_varint(e, FIELD(1, BYTES));
    put_varint(e, inner);
    put_string(e, FIELD(1, BYTES), tag);
    put_fixed(e, FIELD(2, FIXED32), bits, 4);
    end(e);
}

gma_status gmal_events_flush(gmal_events *e) {
    if (e->bad == 1)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for a record", e->path);
    if (e->bad || fflush(e->file) != 0)
        return gma_fail(GMA_ERR_IO, "%s: cannot be written: %s", e->path, strerror(errno));
    return GMA_OK;
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

/* The step of an event, whose first two fields are ours: wall_time, then step or (in the first) a version. */
static int64_t step_of(const unsigned char *data, size_t size) {
    uint64_t step = 0;
    if (size < 11 || data[9] != FIELD(2, VARINT))
        return 0;
    for (size_t i = 10, shift = 0; i < size && shift < 63; i++, shift += 7) {
        step |= (uint64_t)(data[i] & 0x7f) << shift;
        if (!(data[i] & 0x80))
            break;
    }
    return (int64_t)step;
}

/* Where the records up to a step end; -1 when the first is none. */
static long kept(gmal_events *e, int64_t keep_until) {
    long whole = -1;
    unsigned char header[HEADER];
    while (fread(header, 1, HEADER, e->file) == HEADER) {
        const uint64_t size = read_little(header, 8);
        if (read_little(header + 8, 4) != masked(header, 8) || size > MOST_RECORD)
            break;
        e->size = 0;
        unsigned char *data = more(e, (size_t)size + 4);
        if (!data || fread(data, 1, (size_t)size + 4, e->file) != size + 4 ||
            read_little(data + size, 4) != masked(data, (size_t)size) || step_of(data, (size_t)size) > keep_until)
            break;
        whole = ftell(e->file);
    }
    return whole;
}

static gma_status begin_file(gmal_events *e) {
    begin(e);
    put_string(e, FIELD(3, BYTES), "brain.Event:2");
    end(e);
    return gmal_events_flush(e);
}

gma_status gmal_events_open(const char *path, int64_t keep_until, gmal_events *e) {
    *e = (gmal_events){.path = path};
    if (keep_until >= 0)
        e->file = fopen(path, "r+b");
    if (e->file) {
        const long whole = kept(e, keep_until);
        gma_status s = GMA_OK;
        if (whole < 0)
            s = gma_fail(GMA_ERR_FORMAT, "%s: is no event file; move it away", path);
        else if (fflush(e->file) != 0 || ftruncate(fileno(e->file), whole) != 0 || fseek(e->file, whole, SEEK_SET) != 0)
            s = gma_fail(GMA_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
        if (s != GMA_OK)
            gmal_events_close(e);
        return s;
    }
    if (keep_until >= 0 && errno != ENOENT)
        return gma_fail(GMA_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    e->file = fopen(path, "wb");
    if (!e->file)
        return gma_fail(GMA_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    return begin_file(e);
}

void gmal_events_close(gmal_events *e) {
    if (e->file)
        fclose(e->file);
    free(e->data);
    *e = (gmal_events){0};
}
