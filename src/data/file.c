#define _POSIX_C_SOURCE 200809L
#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static gma_status copy(const char *path, int fd, gmal_file *f) {
    size_t have = 0;
    while (have < f->size) {
        const ssize_t n = read(fd, f->copy + have, f->size - have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return gma_fail(GMA_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (n == 0)
            return gma_fail(GMA_ERR_IO, "%s: became shorter while it was read (%lld of %lld bytes)", path,
                            (long long)have, (long long)f->size);
        have += (size_t)n;
    }
    f->bytes = f->copy;
    return GMA_OK;
}

gma_status gmal_file_open(const char *path, size_t most_copied, gmal_file *f) {
    struct stat st;
    memset(f, 0, sizeof *f);
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
    f->size = (size_t)st.st_size;
    f->copy = f->size <= most_copied ? malloc(f->size) : NULL;
    if (f->copy) {
        const gma_status s = copy(path, fd, f);
        close(fd);
        if (s != GMA_OK) gmal_file_close(f);
        return s;
    }
    void *p = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (p == MAP_FAILED) return gma_fail(GMA_ERR_IO, "%s: cannot be mapped: %s", path, strerror(error));
    f->bytes = p;
    return GMA_OK;
}

void gmal_file_close(gmal_file *f) {
    if (f->bytes && !f->copy) munmap((void *)(uintptr_t)f->bytes, f->size);
    free(f->copy);
    memset(f, 0, sizeof *f);
}
