/* Memory for large arrays that live long: parameters, gradients, activations. */
#ifndef GMA_LAYERS_PAGES_H
#define GMA_LAYERS_PAGES_H

#include <stddef.h>

/* At least `bytes` (and more than none), 64-byte aligned; NULL when there is no memory; free() it. From some MiB on it asks
 * Linux for large pages, which spare the dense products misses of address translation and the first pass page faults; where
 * they are not to be had, nothing else changes. */
void *gmal_pages(size_t bytes);

#endif
