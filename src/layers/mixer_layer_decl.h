/* Declarations of mixer_layer.h, once per precision. */
#include "layers/real.h"

/* What one call works on, or its gradients (then the pointers are where gradients go, and o is the one that comes in).
 * q: row (b, t) starts at q + (b Nq + t) ldq, heads follow each other in it; k and v likewise with ldk and Nk.
 * o: dense (rows, heads D). log_decay (B,H,Nk), logit_scale (H), key_mask (B,Nk), cu_seqlens (segments + 1): NULL = absent.
 * A mixer without q takes u, delta (rows, E) dense, b and c with rows ldb apart, and o is its y.
 * param[i]: the tensor of slot[i], dense; NULL = no gradient wanted. Rows of one whose last extent is the tokens (linformer's
 * projections) are ldp apart; 0 = dense. */
typedef struct GMAL_T(gmal_mixer_io) {
    gmal_real *q, *k, *v, *o;
    int64_t ldq, ldk;
    gmal_real *u, *delta, *b, *c;
    int64_t ldb;
    gmal_real *logit_scale, *log_decay;
    const unsigned char *key_mask;
    const int32_t *cu_seqlens; /* of a mixer made for packed sequences */
    int64_t ldp;
    int params;
    int32_t slot[GMAL_MIXER_PARAMS];
    gmal_real *param[GMAL_MIXER_PARAMS];
} GMAL_T(gmal_mixer_io);

gma_status GMAL_T(gmal_mixer_forward)(const gma_mixer *mixer, const GMAL_T(gmal_mixer_io) * io, const gma_exec *exec);
gma_status GMAL_T(gmal_mixer_backward)(const gma_mixer *mixer, const GMAL_T(gmal_mixer_io) * io,
                                       const GMAL_T(gmal_mixer_io) * grad, const gma_exec *exec);
