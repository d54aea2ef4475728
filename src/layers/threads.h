/* The thread count of a call. Our own loops take it as a number; oneDNN asks OpenMP, so an entry point sets OpenMP's
 * count for the calling thread and puts the old one back. */
#ifndef GMA_LAYERS_THREADS_H
#define GMA_LAYERS_THREADS_H

#include "gma/base.h"

#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct gmal_threads {
    int now, before;
} gmal_threads;

static inline gmal_threads gmal_threads_enter(int threads) {
    gmal_threads t = {1, 1};
#ifdef _OPENMP
    t.before = omp_get_max_threads();
    t.now = threads > 0 ? threads : gma_max_threads();
    omp_set_num_threads(t.now);
#else
    (void)threads;
#endif
    return t;
}

static inline void gmal_threads_leave(gmal_threads t) {
#ifdef _OPENMP
    omp_set_num_threads(t.before);
#else
    (void)t;
#endif
}

#endif
