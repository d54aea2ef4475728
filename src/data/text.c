/* A text file, block by block. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/tokenizer.h"

enum { BLOCK = 1 << 20 };

static gma_status fill(const char *path, int fd, char *buffer, size_t room, size_t *have, int *end) {
    while (*have < room && !*end) {
        const ssize_t n = read(fd, buffer + *have, room - *have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return gma_fail(GMA_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        *end = n == 0;
        *have += (size_t)n;
    }
    return GMA_OK;
}

static gma_status read_all(const char *path, int fd, gmal_take take, void *context) {
    size_t room = BLOCK, have = 0;
    int end = 0, any = 0;
    char *buffer = malloc(room);
    gma_status s = buffer ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory to read it", path);
    while (s == GMA_OK && !(end && have == 0)) {
        size_t used = 0;
        s = fill(path, fd, buffer, room, &have, &end);
        if (s != GMA_OK || (end && have == 0)) break;
        any = 1;
        s = take(context, buffer, have, end, &used);
        if (s != GMA_OK) break;
        memmove(buffer, buffer + used, have - used);
        have -= used;
        if (!end && have > room / 2) { /* one piece fills it: make room, so that it is not searched again and again */
            char *bigger = room > SIZE_MAX / 2 ? NULL : realloc(buffer, 2 * room);
            if (!bigger) {
                s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for a piece of text of %zu bytes", path, have);
                break;
            }
            buffer = bigger;
            room *= 2;
        }
    }
    free(buffer);
    return s == GMA_OK && !any ? gma_fail(GMA_ERR_FORMAT, "%s: is empty", path) : s;
}

gma_status gmal_read_text(const char *path, gmal_take take, void *context) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not be waited for */
    if (fd < 0 || fstat(fd, &st) != 0) {
        const int error = errno;
        if (fd >= 0) close(fd);
        return gma_fail(GMA_ERR_IO, "%s: cannot be opened: %s", path, strerror(error));
    }
    const gma_status s = S_ISREG(st.st_mode) ? read_all(path, fd, take, context)
                                             : gma_fail(GMA_ERR_IO, "%s: is not a regular file", path);
    close(fd);
    return s;
}
