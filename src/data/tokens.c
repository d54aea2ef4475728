#define _POSIX_C_SOURCE 200809L
#include "data/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static gma_status map(const char *path, gmal_tokens *t) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
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
    t->mapped = (size_t)st.st_size;
    void *p = mmap(NULL, t->mapped, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (p == MAP_FAILED) return gma_fail(GMA_ERR_IO, "%s: cannot be mapped: %s", path, strerror(error));
    t->bytes = p;
    return GMA_OK;
}

static gma_status check(const char *path, const gmal_tokens *t, int64_t vocab) {
    if (t->mapped % (size_t)t->width)
        return gma_fail(GMA_ERR_FORMAT, "%s: has an odd number of bytes (%lld), token ids take two each", path,
                        (long long)t->mapped);
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
    gma_status s = map(path, t);
    if (s != GMA_OK) return s;
    t->count = (int64_t)(t->mapped / (size_t)width);
    s = check(path, t, vocab);
    if (s != GMA_OK) gmal_tokens_close(t);
    return s;
}

void gmal_tokens_close(gmal_tokens *t) {
    if (t->bytes) munmap((void *)(uintptr_t)t->bytes, t->mapped);
    t->bytes = NULL;
}

void gmal_tokens_window(const gmal_tokens *t, int64_t at, int64_t n, int32_t *x, int32_t *y) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = gmal_token(t, at + i);
        y[i] = gmal_token(t, at + i + 1);
    }
}
