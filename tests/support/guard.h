/* Memory that faults: the block ends right before a page without access, or begins right behind one. An access of one
 * byte outside on that side kills the test. The rest of the block's pages is filled with 0xff (NaN in every format). */
#ifndef TEST_GUARD_H
#define TEST_GUARD_H

#include <stddef.h>

typedef struct tst_guard {
    void *data; /* the block */
    void *base; /* the mapping */
    size_t mapped;
} tst_guard;

/* align: the block's address is a multiple of it (a power of two). With before = 0 the block's end, rounded up to
 * align, is the guard page; with before = 1 its start is. Aborts the test when there is no memory. */
tst_guard tst_guard_alloc(size_t bytes, size_t align, int before);
void tst_guard_free(tst_guard *g);

#endif
