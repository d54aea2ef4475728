#define _DEFAULT_SOURCE
#include "layers/pages.h"

#include <stdint.h>
#include <stdlib.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

enum { LINE = 64, LARGE = 2 << 20 };

void *gmal_pages(size_t bytes) {
    const size_t align = bytes >= 2 * (size_t)LARGE ? LARGE : LINE;
    if (bytes > SIZE_MAX - align) return NULL;
    const size_t whole = bytes == 0 ? align : (bytes + align - 1) / align * align;
    void *p = aligned_alloc(align, whole);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (p && align == LARGE) madvise(p, whole, MADV_HUGEPAGE); /* a wish; refusing it is no failure */
#endif
    return p;
}
