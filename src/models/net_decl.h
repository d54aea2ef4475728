/* Declarations of net.h, once per precision. */
#include "layers/real.h"

typedef struct GMAL_T(gmal_net) GMAL_T(gmal_net);

/* threads >= 1. layout must outlive the net. */
gma_status GMAL_T(gmal_net_create)(const gmal_layout *layout, int64_t batch, int64_t steps, gmal_net_use use, int threads,
                                   GMAL_T(gmal_net) * *net);
/* The shape of the calls that follow: `batch` sequences of `steps` tokens; or packed, one behind the other without padding:
 * `count` sequences, number b the tokens lengths[0] + .. + lengths[b-1] onwards, `lengths` >= 0 and one > 0. tokens, targets
 * and logits then have as many rows as the lengths have together. These two alone take memory after create, when a shape
 * needs more than any before it; they cost little beside a forward. Errors: OUT_OF_MEMORY, after which only another
 * reshape helps; what a mixer cannot be (linformer: other lengths than its own, see gmal_layer_desc); longer than learned
 * positions. */
gma_status GMAL_T(gmal_net_reshape)(GMAL_T(gmal_net) * net, int64_t batch, int64_t steps);
gma_status GMAL_T(gmal_net_pack)(GMAL_T(gmal_net) * net, const int64_t *lengths, int64_t count);
void GMAL_T(gmal_net_destroy)(GMAL_T(gmal_net) * net);

/* loss_sum = sum over targets >= 0 of -log p. Dropout off. Tokens have been checked. A classifier has one target a sequence. */
gma_status GMAL_T(gmal_net_loss)(GMAL_T(gmal_net) * net, const gmal_real *params, const int32_t *tokens,
                                 const int32_t *targets, double *loss_sum);

/* The same, and how many targets were the most likely. */
gma_status GMAL_T(gmal_net_score)(GMAL_T(gmal_net) * net, const gmal_real *params, const int32_t *tokens,
                                  const int32_t *targets, double *loss_sum, int64_t *right);

/* logits (batch * steps, vocab), of a classifier (sequences, classes) */
gma_status GMAL_T(gmal_net_logits)(GMAL_T(gmal_net) * net, const gmal_real *params, const int32_t *tokens,
                                   gmal_real *logits);

/* loss_sum as above, and grads += scale * its gradient. Dropout at the layout's rate with this key. Not with GMAL_NET_EVALUATE. */
gma_status GMAL_T(gmal_net_backward)(GMAL_T(gmal_net) * net, const gmal_real *params, gmal_real *grads,
                                     const int32_t *tokens, const int32_t *targets, double scale,
                                     uint64_t dropout_key, double *loss_sum);

/* What the mixer of a block was given in the forward that just ran; not with GMAL_NET_EVALUATE or _RECOMPUTE, where blocks
 * share their memory. Valid until the next call. */
typedef struct GMAL_T(gmal_routing) {
    const gmal_real *q, *k; /* row (b,t) starts at (b T + t) ld; heads follow each other in it */
    int64_t ld;
    const gmal_real *log_decay, *logit_scale; /* (B,H,T), (H); NULL = absent */
} GMAL_T(gmal_routing);
GMAL_T(gmal_routing) GMAL_T(gmal_net_routing)(const GMAL_T(gmal_net) * net, int64_t block);
