/* Run something once per process. C11 <threads.h> is missing on some systems, and pthread_once would add -lpthread
 * before glibc 2.34, so: one atomic word. Losers wait for the winner. */
#ifndef GMA_CORE_ONCE_H
#define GMA_CORE_ONCE_H

#include <stdatomic.h>

typedef atomic_int gmai_once;
#define GMAI_ONCE_INIT 0

static inline void gmai_call_once(gmai_once *once, void (*f)(void))
{
    int expected = 0;
    if (atomic_load_explicit(once, memory_order_acquire) == 2) return;
    if (atomic_compare_exchange_strong(once, &expected, 1)) {
        f();
        atomic_store_explicit(once, 2, memory_order_release);
        return;
    }
    while (atomic_load_explicit(once, memory_order_acquire) != 2) {
    }
}

#endif
