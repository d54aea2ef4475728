/* A comparison of two inspections; what the numbers mean is in gma/inspect.h. */
#ifndef GMA_INSPECT_COMPARE_H
#define GMA_INSPECT_COMPARE_H

#include "inspect/inspection.h"

/* Component a of one head beside component b of another; -1 where the other head has fewer. */
typedef struct gmal_match {
    int64_t a, b;
    double correlation; /* NaN without a partner, or where one of the two never changes */
    double usage_a, usage_b;
} gmal_match;

/* Two heads that go together: positions in the inspections, and all their components, the most used first. */
typedef struct gmal_pair {
    int a, b;
    gma_compare_pair numbers;
    gmal_match *matches;
    int64_t count;
} gmal_pair;

struct gma_comparison {
    const gma_inspection *a, *b;
    gmal_pair *pairs;
    int count;
    int64_t tokens; /* that the correlations are taken over */
};

#endif
