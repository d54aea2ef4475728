/* A TensorBoard event file of scalars. Format: records of TFRecord files (length, masked CRC-32C of it, data, masked
 * CRC-32C of the data; little-endian), each a protocol buffer tensorflow.Event:
 *
 *   1 wall_time (double)   2 step (varint)   3 file_version (string, first record only)
 *   5 summary { 1 value { 1 tag (string)  2 simple_value (float) } } */
#ifndef GMA_TRAIN_EVENTS_H
#define GMA_TRAIN_EVENTS_H

#include <stdio.h>

#include "gma/base.h"

typedef struct gmal_events {
    FILE *file;
    const char *path;
    unsigned char *data; /* the record being put together */
    size_t size, room;
    int bad; /* 1: out of memory, 2: not written; flush says so */
} gmal_events;

/* keep_until < 0: a new file. Otherwise records up to that step are kept, and what follows them is cut off, as is a
 * record that a kill left half written. `path` must outlive the events. Errors: IO, OUT_OF_MEMORY; FORMAT: it is no
 * event file. */
gma_status gmal_events_open(const char *path, int64_t keep_until, gmal_events *e);
void gmal_events_close(gmal_events *e); /* also when it was never opened, all zero */

/* One record a scalar. They are there for a reader once flush has returned, which also says whether all went well. */
void gmal_events_scalar(gmal_events *e, int64_t step, const char *tag, double value);
gma_status gmal_events_flush(gmal_events *e);

#endif
