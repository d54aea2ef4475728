#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "support/guard.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

tst_guard tst_guard_alloc(size_t bytes, size_t align, int before) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (bytes + page - 1) / page * page;
    tst_guard g = {NULL, NULL, body + 2 * page};
    g.base = mmap(NULL, g.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.base == MAP_FAILED || (body && mprotect((char *)g.base + page, body, PROT_READ | PROT_WRITE) != 0)) {
        perror("guard pages");
        abort();
    }
    char *first = (char *)g.base + page;
    if (body)
        memset(first, 0xff, body);
    g.data = before ? first : first + body - (bytes + align - 1) / align * align;
    return g;
}

void tst_guard_free(tst_guard *g) {
    if (g->base && g->base != MAP_FAILED)
        munmap(g->base, g->mapped);
    *g = (tst_guard){NULL, NULL, 0};
}
