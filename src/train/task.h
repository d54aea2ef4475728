/* What is trained: where batches come from, the network and its loss, how a model is judged. The trainer knows a task
 * through this table only; everything about steps, optimizer, checkpoints and metrics is the trainer's.
 *
 * Samples are numbered from 0 over the whole run; which data a sample is follows from its number and the settings alone, so
 * resuming needs nothing else. */
#ifndef GMA_TRAIN_TASK_H
#define GMA_TRAIN_TASK_H

#include "gma/data.h"
#include "data/tokens.h"
#include "models/net.h"
#include "train/settings.h"

/* How well a model does on some targets. */
typedef struct gmal_score {
    double loss; /* nats per target */
    int64_t targets; /* that were scored */
    int64_t right; /* of them, those that the model thought most likely; -1 = not counted */
    int64_t sequences, whole; /* seq2seq: how many, and of them those without a mistake */
} gmal_score;

/* Asked now and then in a long evaluation; nonzero ends it with GMA_ERR_INTERRUPTED. ask may be NULL. */
typedef struct gmal_stop {
    int (*ask)(void *context);
    void *context;
} gmal_stop;

typedef struct gmal_amount {
    int64_t targets, tokens;
} gmal_amount;

typedef struct gmal_task gmal_task;

typedef struct gmal_task_ops {
    size_t state_size;
    /* Opens the data and checks it against task->s, fills in what gmal_task says below; touches nothing else. */
    gma_status (*open)(gmal_task *task);
    /* Networks and buffers; what follows allocates nothing. */
    gma_status (*start)(gmal_task *task, const gmal_layout *layout, int threads);
    /* What samples first .. first + count - 1 hold: passes of a step weigh by their targets. */
    gmal_amount (*amount)(gmal_task *task, int64_t first, int64_t count);
    /* Samples first .. first + s->batch - 1: *loss_sum = sum over their targets, grads += scale * its gradient. key: of
     * dropout, not 0. */
    gma_status (*pass)(gmal_task *task, int64_t first, const float *params, float *grads, double scale, uint64_t key,
                       double *loss_sum);
    /* The validation part; only where val_tokens > 0. */
    gma_status (*evaluate)(gmal_task *task, const float *params, gmal_stop stop, gmal_score *score);
    void (*close)(gmal_task *task); /* after a failed open or start too */
} gmal_task_ops;

struct gmal_task {
    const gmal_task_ops *ops;
    const gma_settings *s; /* resolved; not owned */
    void *state; /* ops->state_size bytes, zero before open */
    /* Set by open: */
    gma_token_file *token_file; /* whose tokenizer goes into the checkpoints; NULL = none */
    int64_t train_tokens, val_tokens; /* val_tokens 0: nothing to validate on */
    uint64_t train_checksum;
    const gmal_net_f32 *net; /* set by start: what pass runs on, to look at afterwards; NULL = not shown */
    const gmal_span *text; /* set by open: what inspect_every looks at; NULL = the task has no text */
    char note[200]; /* what the user should know; "" = nothing */
};

/* The task of the settings, opened. close takes one that was never opened (all zero). */
gma_status gmal_task_open(const gma_settings *s, gmal_task *task);
void gmal_task_close(gmal_task *task);

extern const gmal_task_ops gmal_task_stream; /* the next token of one text (task_stream.c) */
extern const gmal_task_ops gmal_task_pairs; /* generated pairs of sequences (task_pairs.c) */
extern const gmal_task_ops gmal_task_sequences; /* sequences with targets or classes (task_sequences.c) */

#endif
