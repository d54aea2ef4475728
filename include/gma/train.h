/* gma/train.h - train and evaluate language models, draw their loss curves. Part of libgma_lm. Since 0.1.
 *
 *   gma_settings *s;
 *   gma_settings_create("default", &s);
 *   gma_settings_set(s, "data", "input.txt");
 *   gma_settings_set(s, "out", "runs/a");
 *   gma_train(s, NULL, NULL, NULL);
 *
 * A run folder holds config.json (the settings, readable with gma_settings_read), metrics.jsonl (one JSON
 * object a line), last/ (the newest checkpoint, with what resuming needs) and best/ (the one with the lowest validation
 * loss).  A resumed run gives the same bits as one that was never interrupted, for the same thread count and CPU tier.
 *
 * Loss is in nats per token: the mean of -log p(token) over the targets. */
#ifndef GMA_TRAIN_H
#define GMA_TRAIN_H

#include "gma/lm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Settings ------------------------------------------------------------------------------------------------- */

/** gma_setting_info - one setting: its name (with underscores; '-' is accepted for '_'), the heading it belongs under,
 *  whether it is a flag (0 or 1), what a value looks like, and what it does. The texts are static memory. */
typedef struct gma_setting_info {
    const char *name;
    const char *group; /* "Data", "Model", "Training", "Run" */
    int32_t is_flag;
    int32_t reserved;
    const char *hint; /* "N", "FILE", "gelu|swiglu"; NULL for a flag */
    const char *help;
} gma_setting_info;

GMA_API int gma_settings_count(void);
GMA_API gma_status gma_settings_info(int i, gma_setting_info *info);

typedef struct gma_settings gma_settings;

/** gma_settings_create() - the values of a preset: "default", "paper", "demo", "tiny". Error: no such preset.
 *  gma_settings_preset() - name of preset i and one line on it; NULL past the end. */
GMA_API gma_status gma_settings_create(const char *preset, gma_settings **settings);
GMA_API void gma_settings_destroy(gma_settings *settings); /* NULL is fine */
GMA_API const char *gma_settings_preset(int i, const char **about);

/** gma_settings_set() - one value from text. Error: no such setting, or what the value must be. */
GMA_API gma_status gma_settings_set(gma_settings *settings, const char *name, const char *value);
/** gma_settings_get() - its value as text (cut at size - 1 characters); "" when not set. */
GMA_API gma_status gma_settings_get(const gma_settings *settings, const char *name, char *text, size_t size);

/** gma_settings_read() - a JSON object of settings over the present ones; "preset" in it replaces them first.
 *  An unknown key or a wrong value is an error naming file and key. */
GMA_API gma_status gma_settings_read(gma_settings *settings, const char *path);

/** gma_settings_resolve() - fill in what is derived (the model's widths) and check the whole. gma_train does it too. */
GMA_API gma_status gma_settings_resolve(gma_settings *settings);

/** gma_settings_layer() - gma_lm_config_layer of the model: the mixer of layer i with all its options.
 *  Error: what does not fit together, or no such layer. */
GMA_API gma_status gma_settings_layer(const gma_settings *settings, int64_t i, char *text, size_t size);

/* ---- Training ------------------------------------------------------------------------------------------------- */

typedef enum gma_train_event {
    GMA_TRAIN_START = 1, /* the data is open, the model made or loaded */
    GMA_TRAIN_STEP = 2, /* after every step */
    GMA_TRAIN_EVAL = 3, /* after a validation */
    GMA_TRAIN_SAVE = 4, /* a checkpoint is in place; `text` = its folder */
    GMA_TRAIN_NOTE = 5 /* something the user should read in `text` */
} gma_train_event;

typedef struct gma_train_progress {
    size_t struct_size;
    int32_t event; /* a gma_train_event */
    int32_t reserved;
    int64_t step; /* finished steps */
    int64_t first_step; /* where this process started: 0, or the step resumed from */
    int64_t last_step; /* where it will stop */
    int64_t parameters;
    int64_t train_tokens, val_tokens; /* in the data */
    int64_t tokens_seen; /* trained on since step 0 */
    double loss; /* of this step's batch */
    double grad_norm; /* before clipping */
    double lr;
    double tokens_per_second; /* over the last steps, evaluation not counted */
    double seconds; /* since this process started training */
    double val_loss; /* newest validation, NaN before the first */
    double best_val_loss; /* NaN before the first */
    double val_sequence_accuracy; /* seq2seq: the part of the sequences without a mistake; else NaN */
    double val_accuracy; /* of the newest validation: the part of the targets that were the most likely; NaN for text */
    const char *text;
} gma_train_progress;

/** gma_observer - called in the thread that trains. Returns 0 to go on; anything else asks to stop: the step in progress
 *  is finished, a checkpoint written, and gma_train returns GMA_ERR_INTERRUPTED. During a validation it is also called (with
 *  GMA_TRAIN_EVAL and `text` "running") so that a stop is noticed soon. */
typedef int (*gma_observer)(void *context, const gma_train_progress *progress);

typedef struct gma_train_result {
    size_t struct_size; /* set by the caller */
    int64_t steps;
    double loss, val_loss, best_val_loss, val_accuracy; /* NaN where there is none */
    double seconds;
} gma_train_result;

/** gma_train() - train as the settings say. observer and result may be NULL.
 *
 *  What is trained follows from "task" and the data:
 *    lm        the next token of a text (loss on every token), or of sequences with targets (a token file of gma data mqar:
 *              loss on the targets only; a sequence longer than "context" is an error)
 *    classify  the class of whole sequences (a token file of gma data listops or imdb); longer ones are cut to "context",
 *              which is told as a note. Batches are packed: no step works on padding.
 *    seq2seq   a sequence from a sequence. "data" is copy, reverse or sort: pairs of `symbols` different symbols, min_length to
 *              context of them, are generated as they are needed, others for validation. Loss with the true symbols before
 *              each (the end among the targets); accuracy is that of greedy decoding from the source alone
 *  Sequences are held out for validation as text is: the last val_fraction of the file, or all of "val_data".
 *
 *  Settings "out" and "data" are required. An existing run is an error unless "resume" or "force" is set; force replaces
 *  it once training can start. After an error before the first step nothing new is left behind.
 *  Errors: what the settings or the data lack; GMA_ERR_NON_FINITE naming step and first bad tensor: the run stops
 *  without touching its checkpoints; GMA_ERR_INTERRUPTED. */
GMA_API gma_status gma_train(const gma_settings *settings, gma_observer observer, void *context,
                             gma_train_result *result);

/* ---- Evaluation ----------------------------------------------------------------------------------------------- */

typedef enum gma_split { GMA_SPLIT_ALL = 0, GMA_SPLIT_TRAIN = 1, GMA_SPLIT_VAL = 2 } gma_split;

typedef struct gma_eval_options {
    size_t struct_size; /* set by gma_eval_options_init */
    int64_t context; /* tokens a window; 0 = the model's */
    int64_t batch; /* windows at a time; 0 = 16 */
    int64_t max_windows; /* the first so many; 0 = all */
    int32_t split; /* a gma_split: which part of the file */
    int32_t threads;
    double val_fraction; /* where the split lies; default 0.1 */
    uint64_t seed; /* seq2seq: of the pairs that are generated; 1. None of them is one of training's */
    int64_t min_length; /* seq2seq: symbols of the shortest source; 0 = all are as long as the context */
    int64_t stride; /* text: 0 = windows follow each other; else a window starts every `stride` tokens (1 .. context) */
} gma_eval_options;

typedef struct gma_eval_result {
    size_t struct_size; /* set by the caller */
    int64_t tokens; /* predicted */
    int64_t windows;
    double loss; /* nats per token */
    double bits_per_token; /* bits per byte for a byte model */
    double perplexity;
    double seconds;
    int64_t text_bytes, text_words; /* that the predicted tokens stand for; a newline counts as a word, which is WikiText's
                                       count with <eos>; 0 where ids stand for no text, and bytes 0 for a tokenizer of
                                       words, which keeps none */
    double bits_per_byte, word_perplexity; /* the same loss per byte and per word; NaN where that is not known */
    /* Of sequences (0 and NaN for text): */
    int64_t sequences;
    int64_t right; /* of the `tokens` targets, those that were the most likely */
    double accuracy; /* right / tokens, */
    double accuracy_low, accuracy_high; /* and its 95 % interval (Wilson) */
    int64_t sequences_right; /* seq2seq: without a mistake; of the `sequences`, */
    double sequence_accuracy; /* this part */
    int64_t state_bytes; /* what the model keeps between tokens (gma_lm_stream_state_bytes); 0 for a classifier */
    int64_t cut; /* of the `sequences`, those longer than the context, which a classifier reads the beginning of */
} gma_eval_result;

GMA_API gma_status gma_eval_options_init(gma_eval_options *options);

/** gma_eval() - the part of the file is cut into consecutive windows of `context` tokens, each predicted from an empty
 *  state; what is left at the end, shorter than a window, is not used. So does gma_train, hence the same figure.
 *  With a stride the same tokens are predicted, each once, but with at least context - stride tokens before it in its
 *  window (those of the first window excepted): a window starts every `stride` tokens and only what no window before it has
 *  predicted counts. It costs context / stride times as much.
 *  A token file of sequences: every target, or the class of every sequence, once; `windows` counts sequences then.
 *  seq2seq: data is copy, reverse or sort, max_windows (0: 1000) pairs of `seed` and min_length are generated and decoded
 *  greedily; accuracy counts symbols in their places, sequence_accuracy whole sequences with their end.
 *  Errors: as gma_train for the file. */
GMA_API gma_status gma_eval(const gma_lm *lm, const char *data, const gma_eval_options *options,
                            gma_eval_result *result);

/** gma_ngram_loss() - nats per byte of a bigram (order 2) or trigram (3) table: counted on the training part of `data`,
 *  0.05 added to each count, evaluated on its validation part. What a model has to beat. */
GMA_API gma_status gma_ngram_loss(const char *data, double val_fraction, int order, double *nats);

/* ---- Reports -------------------------------------------------------------------------------------------------- */

/** gma_plot() - loss curves of runs (folders, or metrics.jsonl files) as one self-contained SVG. title may be NULL.
 *  Errors: a run without metrics, or a malformed line, named. */
GMA_API gma_status gma_plot(const char *const *runs, int count, const char *title, const char *path);

#ifdef __cplusplus
}
#endif
#endif
