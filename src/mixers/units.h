/* Independent pieces of work over threads, for the mixers that do not run on the engine. */
#ifndef GMA_MIXERS_UNITS_H
#define GMA_MIXERS_UNITS_H

#include "mixers/mixer_impl.h"

/* f(job, work, unit) for every unit in [0, units), each call with its thread's own `work_size` bytes of `work`. A job
 * writes nothing that another unit reads: then the bits do not depend on the number of threads. */
void gmai_units(const gma_mixer *m, int threads, int64_t units, void (*f)(void *job, char *work, int64_t unit), void *job,
                char *work, size_t work_size);

#endif
