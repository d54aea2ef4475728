/* Declarations of seq2seq.h, once per precision. */
#include "layers/real.h"

typedef struct GMAL_T(gmal_seq2seq) GMAL_T(gmal_seq2seq);

/* One batch. source (batch, context); mask of the same shape, 0 = no token there, NULL = all are; the decoder's tokens and
 * targets (batch, context + 1), a target < 0 is none. Tokens have been checked, those without a source too. */
typedef struct GMAL_T(gmal_pairs) {
    const int32_t *source, *tokens, *targets;
    const unsigned char *mask;
} GMAL_T(gmal_pairs);

gma_status GMAL_T(gmal_seq2seq_create)(const gmal_layout *layout, int64_t batch, gmal_net_use use, int threads,
                                       GMAL_T(gmal_seq2seq) * *net);
void GMAL_T(gmal_seq2seq_destroy)(GMAL_T(gmal_seq2seq) * net);

/* loss_sum = sum over targets >= 0 of -log p. Dropout off. */
gma_status GMAL_T(gmal_seq2seq_loss)(GMAL_T(gmal_seq2seq) * net, const gmal_real *params,
                                     const GMAL_T(gmal_pairs) * pairs, double *loss_sum);

/* The same, and grads += scale * its gradient. Dropout at the layout's rate with this key. Not with GMAL_NET_EVALUATE. */
gma_status GMAL_T(gmal_seq2seq_backward)(GMAL_T(gmal_seq2seq) * net, const gmal_real *params, gmal_real *grads,
                                         const GMAL_T(gmal_pairs) * pairs, double scale, uint64_t dropout_key,
                                         double *loss_sum);

/* The encoder alone: *memory (batch, context, width), valid until the next call. */
gma_status GMAL_T(gmal_seq2seq_encode)(GMAL_T(gmal_seq2seq) * net, const gmal_real *params, const int32_t *source,
                                       const unsigned char *mask, const gmal_real **memory);

/* What the encoder gave in the last call; valid until the next. */
const gmal_real *GMAL_T(gmal_seq2seq_memory)(const GMAL_T(gmal_seq2seq) * net);

/* logits (batch * (context + 1), vocab) */
gma_status GMAL_T(gmal_seq2seq_logits)(GMAL_T(gmal_seq2seq) * net, const gmal_real *params,
                                       const GMAL_T(gmal_pairs) * pairs, gmal_real *logits);
