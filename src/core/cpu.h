/* CPU tiers and threads, inside the library. */
#ifndef GMA_CORE_CPU_H
#define GMA_CORE_CPU_H

#include "gma/base.h"

/* The tier a descriptor's isa stands for: AUTO resolved, an absent one refused by name. */
gma_status gmai_isa_resolve(int32_t wanted, gma_isa *isa);

/* threads as a call gives it -> at least 1. */
int gmai_threads(int threads);

/* The calling thread's number in its team. */
int gmai_thread(void);

#endif
