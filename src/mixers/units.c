/* See units.h. */
#include "mixers/units.h"

#include "core/cpu.h"
#include "kernels/kernels.h"

void gmai_units(const gma_mixer *m, int threads, int64_t units, void (*f)(void *job, char *work, int64_t unit), void *job,
                char *work, size_t work_size)
{
    if (units <= 0) return;
    const int team = units < threads ? (int)units : threads;
    (void)team;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
    {
        const unsigned before = m->kern->flush_on();
        char *mine = work + (size_t)gmai_thread() * work_size;
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
        for (int64_t i = 0; i < units; i++) f(job, mine, i);
        m->kern->flush_restore(before);
    }
}
