/* Declarations of mixer_layer.h, once per precision. */
#include "layers/real.h"

/* What one call works on, or its gradients (then the pointers are where gradients go, and o is the one that comes in).
 * q, k, v: row (b, t) starts at p + (b T + t) ld, heads follow each other in it. o: dense (rows, heads D).
 * log_decay (B,H,T), logit_scale (H): NULL = absent. */
typedef struct GMAL_T(gmal_mixer_io) {
    gmal_real *q, *k, *v, *o;
    int64_t ld;
    gmal_real *mu, *omega, *alpha, *logit_scale, *log_decay;
} GMAL_T(gmal_mixer_io);

gma_status GMAL_T(gmal_mixer_forward)(const gma_mixer *mixer, const GMAL_T(gmal_mixer_io) * io, const gma_exec *exec);
gma_status GMAL_T(gmal_mixer_backward)(const gma_mixer *mixer, const GMAL_T(gmal_mixer_io) * io,
                                       const GMAL_T(gmal_mixer_io) * grad, const gma_exec *exec);
