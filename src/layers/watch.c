#define _POSIX_C_SOURCE 200809L
#include "layers/watch.h"

#include <stddef.h>
#include <time.h>

static _Thread_local gmal_watch *watching;

gmal_watch *gmal_watch_set(gmal_watch *watch) {
    gmal_watch *before = watching;
    watching = watch;
    return before;
}

double gmal_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double gmal_watch_begin(void) { return watching ? gmal_seconds() : -1; }

void gmal_watch_end_product(double began) {
    if (watching && began >= 0) watching->products += gmal_seconds() - began;
}

void gmal_watch_end_mixer(double began) {
    if (watching && began >= 0) watching->mixer += gmal_seconds() - began;
}
