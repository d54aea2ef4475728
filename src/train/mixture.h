/* What training may do with the mixtures of gma layers besides learning them freely: give them other first values, hold
 * them still, tie the variances of the components of a head. */
#ifndef GMA_TRAIN_MIXTURE_H
#define GMA_TRAIN_MIXTURE_H

#include "models/model.h"
#include "train/task.h"

/* These settings need a gma layer, and k-means every block's activations. */
gma_status gmal_mixture_check(const gma_settings *s);

/* Before the gradients are used. Frozen: 0, and AdamW leaves alone what has no gradient and no decay. Tied variances: every
 * component of a head and width gets the gradient of the one common omega, divided by sqrt(K): then K copies have the norm of
 * that one, AdamW, which does not mind the factor, moves all alike, and they stay equal as they start. */
void gmal_mixture_gradients(const gma_settings *s, const gmal_layout *layout, float *grads);

/* The first values of all Gaussians, before step 1. mixture_init drawn: the means, which the model has from N(0, 1), are multiplied
 * by mu_std, in every part of the model. kmeans: layer by layer, the queries and keys that the first batches bring to it are put into
 * K clusters a head; mu becomes their means, sigma2 their variances (a small cluster's drawn towards that of all), alpha the logarithms
 * of their sizes. Depends on settings and data only, not on the number of threads. grads: scratch, as large as the parameters.
 * Errors, of kmeans: OUT_OF_MEMORY; UNSUPPORTED for a task that does not show its net; NON_FINITE. */
gma_status gmal_mixture_start(const gma_settings *s, gmal_task *task, const gmal_layout *layout, float *values, float *grads,
                              int threads);

#endif
