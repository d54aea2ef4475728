#define _POSIX_C_SOURCE 200809L
#include "data/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Up to here a file is copied into memory, so that whoever cuts it short during a run does no harm (a mapping would end
 * the process); beyond, memory may be too dear and the file is mapped. */
static const int64_t most_copied = INT64_C(1) << 30;

static gma_status copy(const char *path, int fd, gmal_tokens *t) {
    size_t have = 0;
    while (have < t->size) {
        const ssize_t n = read(fd, t->copy + have, t->size - have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return gma_fail(GMA_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (n == 0)
            return gma_fail(GMA_ERR_IO, "%s: became shorter while it was read (%lld of %lld bytes)", path,
                            (long long)have, (long long)t->size);
        have += (size_t)n;
    }
    t->bytes = t->copy;
    return GMA_OK;
}

static gma_status load(const char *path, gmal_tokens *t) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not be waited for */
    if (fd < 0 || fstat(fd, &st) != 0) {
        const int error = errno;
        if (fd >= 0) close(fd);
        return gma_fail(GMA_ERR_IO, "%s: cannot be opened: %s", path, strerror(error));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return gma_fail(GMA_ERR_IO, "%s: is not a regular file", path);
    }
    if (st.st_size == 0) {
        close(fd);
        return gma_fail(GMA_ERR_FORMAT, "%s: is empty", path);
    }
    t->size = (size_t)st.st_size;
    t->copy = st.st_size <= most_copied ? malloc(t->size) : NULL;
    if (t->copy) {
        const gma_status s = copy(path, fd, t);
        close(fd);
        return s;
    }
    void *p = mmap(NULL, t->size, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (p == MAP_FAILED) return gma_fail(GMA_ERR_IO, "%s: cannot be mapped: %s", path, strerror(error));
    t->bytes = p;
    return GMA_OK;
}

static gma_status check(const char *path, const gmal_tokens *t, int64_t vocab) {
    if (t->size % (size_t)t->width)
        return gma_fail(GMA_ERR_FORMAT, "%s: has an odd number of bytes (%lld), token ids take two each", path,
                        (long long)t->size);
    if (t->width == 1 && vocab >= 256) return GMA_OK;
    for (int64_t i = 0; i < t->count; i++)
        if (gmal_token(t, i) >= vocab)
            return gma_fail(GMA_ERR_FORMAT, "%s: token id %d at byte %lld, the vocabulary has %lld", path,
                            (int)gmal_token(t, i), (long long)(i * t->width), (long long)vocab);
    return GMA_OK;
}

gma_status gmal_tokens_open(const char *path, int width, int64_t vocab, gmal_tokens *t) {
    memset(t, 0, sizeof *t);
    t->width = width;
    gma_status s = load(path, t);
    if (s == GMA_OK) {
        t->count = (int64_t)(t->size / (size_t)width);
        s = check(path, t, vocab);
    }
    if (s != GMA_OK) gmal_tokens_close(t);
    return s;
}

void gmal_tokens_close(gmal_tokens *t) {
    if (t->bytes && !t->copy) munmap((void *)(uintptr_t)t->bytes, t->size);
    free(t->copy);
    t->bytes = t->copy = NULL;
}

uint64_t gmal_span_checksum(const gmal_span *span) {
    const gmal_tokens *t = span->tokens;
    const unsigned char *p = t->bytes + span->begin * t->width;
    const uint64_t n = (uint64_t)((span->end - span->begin) * t->width);
    uint64_t h = n ^ UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t at = 0; at < n; at += 8) {
        uint64_t word = 0;
        for (unsigned i = 0; i < 8 && at + i < n; i++) word |= (uint64_t)p[at + i] << 8 * i;
        h = (h ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
        h ^= h >> 29;
    }
    return h;
}

void gmal_tokens_window(const gmal_tokens *t, int64_t at, int64_t n, int32_t *x, int32_t *y) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = gmal_token(t, at + i);
        y[i] = gmal_token(t, at + i + 1);
    }
}
