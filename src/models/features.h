/* Random numbers of the normal distribution, and the performer's random features. */
#ifndef GMA_MODELS_FEATURES_H
#define GMA_MODELS_FEATURES_H

#include <stdint.h>

/* N(0, 1); value i depends on (key, i) only. */
double gmal_normal(uint64_t key, int64_t i);

/* w (m, r): blocks of r rows that are orthogonal to each other, the directions uniform, each row as long as a vector of
 * r normal numbers (Choromanski et al. 2021, section 3.2: E[phi(x) . phi(y)] stays that of independent rows, the
 * variance is smaller). Depends on key only; allocates nothing. */
void gmal_orthogonal_features(uint64_t key, int64_t m, int64_t r, float *w);

#endif
