/* Where the time of a call goes, for `gma bench train`: the dense products and the mixer report here when the calling
 * thread watches. Nobody watching costs a test of a thread-local pointer per product. */
#ifndef GMA_LAYERS_WATCH_H
#define GMA_LAYERS_WATCH_H

typedef struct gmal_watch {
    double products, mixer; /* seconds, added to */
} gmal_watch;

/* watch = NULL ends it. Returns what was there before. */
gmal_watch *gmal_watch_set(gmal_watch *watch);

double gmal_seconds(void); /* a clock that only rises */

/* begin: the time now, or a negative number when nobody watches; end adds what has passed since to one of the two. */
double gmal_watch_begin(void);
void gmal_watch_end_product(double began);
void gmal_watch_end_mixer(double began);

#endif
