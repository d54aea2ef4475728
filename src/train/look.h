/* Looking at the mixtures while a model trains (setting inspect_every): how many components are used and how evenly,
 * for every head, on one batch of the validation text (of the training text where there is none). It changes nothing in
 * the run: a network of its own, no random numbers.
 *
 * Written: a line of metrics.jsonl {"step", "inspect": [{"layer", "head", "used", ...}, ...]}, and the same numbers
 * with the training loss as scalars of the TensorBoard file of the run (train/events.h). */
#ifndef GMA_TRAIN_LOOK_H
#define GMA_TRAIN_LOOK_H

#include "inspect/route.h"
#include "train/events.h"
#include "train/run_folder.h"

typedef struct gmal_look {
    int64_t every;
    gmal_router router;
    gmal_span span;
    double *usage; /* (2 K) */
    int64_t first; /* step the run was at when this process began */
    gmal_events events;
} gmal_look;

/* every = 0: nothing is ever done, and span may be NULL; otherwise the settings were found to name a text and a gma layer.
 * Takes all memory. lm must outlive it. */
gma_status gmal_look_create(const gma_lm *lm, const gmal_span *span, int64_t every, int64_t batch, int64_t first,
                            int threads, gmal_look *look);
void gmal_look_destroy(gmal_look *look);

/* After step p->step, when it is due. */
gma_status gmal_look_at(gmal_look *look, gmal_run_folder *run, const gmal_progress *p);

#endif
