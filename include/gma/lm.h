/* gma/lm.h - causal language models, and seq2seq models: create or load, evaluate, generate. Part of libgma_lm. Since 0.1.
 *
 *   x = embed[token] (+ positions[t])
 *   for each block:   x += out_proj( gate( mixer( norm(x) ) ) )      x += mlp( norm(x) )
 *   logits = norm(x) head^T
 *
 * A seq2seq model (task) has two stacks: an encoder, bidirectional, over the source, and the decoder above, with
 * x += out_proj( gate( cross( norm(x), encoder ) ) ) between mixer and MLP: its queries come from the decoder, its keys and
 * values from the encoder's output. Both share the embedding; learned positions are the default, a table for each.
 *
 * The mixer is the same in every layer (`mixer`) or named layer by layer (`pattern`):
 *
 *   3xgma,softmax:window=128        items MIXER[:OPTION=VALUE...], separated by commas; 3xgma stands for gma,gma,gma
 *
 * Its options, each with a name, all off in the paper's operator. In a pattern an option holds for its layer, in
 * gma_lm_config for every layer whose mixer can honour it; one that no layer can honour is an error:
 *   window        softmax: how many tokens a query sees, itself included; 0 = all before it
 *   states        mamba: numbers of state per channel
 *   expand        mamba: channels / width. Its convolution (4 taps), bias, SiLU and gate belong to it and are no options
 *   components    Gaussians per head (gma), random features (performer)
 *   logit_scale   gma: a learned factor on the log-likelihoods, per key head, kept positive as exp(log_logit_scale)
 *   forget_gate   gma, linear, performer: log_decay = log sigmoid(x W + b), per key head; b starts spread over 3..7
 *   conv          causal depthwise convolution of that many taps on q, k and v; starts as the identity
 *   output_gate   mixer output times silu(x W)
 *   rotary        q and k turned by their position (in gma_lm_config: `positions`)
 *
 * Initialisation: matrices N(0, 1/sqrt(fan_in)), those that write to the residual stream divided by sqrt(2 layers);
 * embeddings N(0, 0.02) (logits of a tied head start near 0); mu N(0,1) and omega 0 (sigma^2 = 0.69), alpha 0, as the
 * paper's code; norms 1; biases 0. The performer's features are orthogonal random vectors, one set a layer: they are
 * saved with the model and not trained. Mamba: A = -(1..states) in every channel, D = 1, and the bias of delta such that
 * softplus(bias) is log-uniform in 1e-3..1e-1.
 *
 * Threads: a gma_lm may be read by several threads at once, each with its own gma_lm_stream; functions that say "writes
 * the model" need it alone. One thread count and CPU tier: the same bits every time. `threads` = 0 stands for
 * gma_max_threads(). All functions return a gma_status and leave a line in gma_last_error(). */
#ifndef GMA_LM_H
#define GMA_LM_H

#include "gma/mixer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configuration -------------------------------------------------------------------------------------------- */

typedef enum gma_lm_norm { GMA_LM_NORM_RMS = 0, GMA_LM_NORM_LAYER = 1 } gma_lm_norm;
typedef enum gma_lm_mlp { GMA_LM_MLP_GELU = 0, GMA_LM_MLP_SWIGLU = 1 } gma_lm_mlp;
typedef enum gma_lm_positions {
    GMA_LM_POSITIONS_AUTO = -1, /* rotary in softmax layers, which know no order of their own, none in the others */
    GMA_LM_POSITIONS_NONE = 0, /* order comes from causality, forget gate and convolution; no length limit */
    GMA_LM_POSITIONS_LEARNED = 1, /* a table of `context` rows: sequences are limited to it */
    GMA_LM_POSITIONS_ROTARY = 2 /* q and k turned by their position before the mixer; routing_dim even */
} gma_lm_positions;

typedef enum gma_lm_tokenizer {
    GMA_LM_TOKENIZER_BYTES = 0, /* token = byte; vocab 256 */
    GMA_LM_TOKENIZER_NONE = 1, /* token ids come from elsewhere */
    GMA_LM_TOKENIZER_WORDS = 2, /* a tokenizer of gma/data.h, whose files lie in the checkpoint: a list of words, */
    GMA_LM_TOKENIZER_BPE = 3 /* or byte-pair encoding */
} gma_lm_tokenizer;

typedef enum gma_lm_task {
    GMA_LM_TASK_LM = 0, /* predict the next token; causal */
    GMA_LM_TASK_CLASSIFY = 1, /* one class a sequence; causal or not, by default not */
    GMA_LM_TASK_SEQ2SEQ = 2 /* a sequence from a sequence */
} gma_lm_task;

typedef enum gma_lm_pooling {
    GMA_LM_POOLING_MEAN = 0, /* the mean over the tokens of a sequence */
    GMA_LM_POOLING_CLS = 1 /* an embedding of its own, put before every sequence; it counts as one of its tokens */
} gma_lm_pooling;

/** gma_lm_config - the shape of a model. Start from gma_lm_config_init(); a 0 marked "0 =" is filled in by
 *  gma_lm_config_resolve(), which every function that takes a configuration calls on its copy. */
typedef struct gma_lm_config {
    size_t struct_size; /* set by gma_lm_config_init */
    int32_t mixer; /* a gma_mixer_kind, of every layer; 0 = as `pattern` says, gma without one */
    int32_t norm; /* a gma_lm_norm */
    int32_t mlp; /* a gma_lm_mlp */
    int32_t positions; /* a gma_lm_positions */
    int32_t tied; /* 1: head = embedding */
    int32_t logit_scale; /* 0, 1, or -1 = 1 where the mixer has it */
    int32_t forget_gate; /* likewise */
    int32_t output_gate; /* likewise */
    int32_t tokenizer; /* a gma_lm_tokenizer */
    int32_t task; /* a gma_lm_task */
    int32_t causal; /* 1: a token sees what is before it; 0: all of its sequence (no window, no forget gate); -1 = as the
                       task wants */
    int32_t pooling; /* a gma_lm_pooling; of task classify */
    int64_t conv; /* taps; 0 = none; -1 = 4 where the mixer has q, k and v */
    int64_t vocab; /* 256 = bytes */
    int64_t classes; /* of task classify, at least 2; 0 for the others */
    int64_t context; /* tokens of a training sequence */
    int64_t layers; /* of a pattern: as many as it names */
    int64_t width;
    int64_t window; /* of softmax; 0 = none */
    int64_t states; /* of mamba, per channel; -1 = 16 where there is mamba */
    int64_t expand; /* of mamba: channels / width; -1 = 2 where there is mamba */
    int64_t heads; /* query heads */
    int64_t kv_heads; /* 0 = heads; divides heads */
    int64_t routing_dim; /* R; 0 = width / heads, which must divide */
    int64_t value_dim; /* D; 0 = width / heads */
    int64_t components; /* K; -1 = 64 where the mixer has components */
    int64_t mlp_width; /* 0 = 4 width for GELU; for SwiGLU 8/3 width, rounded up to a multiple of 32 */
    double logit_scale_init; /* > 0 */
    double dropout; /* 0 <= dropout < 1, in training only: after the embedding, each mixer and each MLP */
    double rotary_base;
    double norm_eps;
    double eps; /* of the mixer */
    double eps_sigma;
    char pattern[256]; /* the mixer of each layer; "" = `mixer` in all `layers` */
    /* Task seq2seq only, where layers, mixer and pattern are the decoder's: */
    char encoder_pattern[256]; /* the mixer of each layer of the encoder; "" = `encoder_layers` of `mixer` */
    char cross_pattern[256]; /* what each decoder layer reads the encoder's output with: one mixer for all, or as many as there
                                are layers; "" = the layer's own */
    int64_t encoder_layers; /* 0 = as the decoder's */
} gma_lm_config;

/** gma_lm_config_init() - every option on, small: 4 layers, width 192, 3 heads, K = 64, context 256, bytes. */
GMA_API gma_status gma_lm_config_init(gma_lm_config *config);

/** gma_lm_config_resolve() - fill in what is left open, write the pattern in its shortest form, check; the error names the
 *  field, and in a pattern the item. Doing it twice changes nothing. */
GMA_API gma_status gma_lm_config_resolve(gma_lm_config *config);

/** gma_lm_config_layer() - the mixer of layer i (0 <= i < layers after resolving) with every option it has, as an item of a
 *  pattern: "gma:components=64:logit_scale=1:...". A seq2seq model's encoder layers ("encoder gma:...") and then what its
 *  decoder layers read the encoder with ("cross gma:...") follow. Cut at size - 1 characters. Error: there are no more. */
GMA_API gma_status gma_lm_config_layer(const gma_lm_config *config, int64_t i, char *text, size_t size);

/* ---- Models --------------------------------------------------------------------------------------------------- */

typedef struct gma_lm gma_lm;

/** gma_lm_create() - a model with fresh parameters. *lm is NULL after a failure. */
GMA_API gma_status gma_lm_create(const gma_lm_config *config, uint64_t seed, gma_lm **lm);
GMA_API void gma_lm_destroy(gma_lm *lm); /* NULL is fine */

/** gma_lm_load() - a checkpoint folder (config.json, model.safetensors), or a run folder of `gma train` (its best/
 *  checkpoint, or last/ when there is none). F32 and BF16 tensors; a missing, additional or wrongly shaped tensor, or a
 *  value that is not finite, is an error naming it. */
GMA_API gma_status gma_lm_load(const char *path, gma_lm **lm);

/** gma_lm_set_tokenizer() - give a model of tokenizer WORDS or BPE the one it was made for; gma_lm_save stores its files,
 *  gma_lm_load brings it back. Writes the model; after success the model owns the tokenizer. Errors: another kind, or
 *  another vocabulary, than the configuration's.
 *  gma_lm_tokenizer_of() - it; NULL for BYTES and NONE, or where none was given. */
struct gma_tokenizer;
GMA_API gma_status gma_lm_set_tokenizer(gma_lm *lm, struct gma_tokenizer *tokenizer);
GMA_API const struct gma_tokenizer *gma_lm_tokenizer_of(const gma_lm *lm);

/** gma_lm_save() - write the folder `path` beside and swap it in: a reader sees the old or the new one. dtype: GMA_F32 or
 *  GMA_BF16 (rounded; half the size). */
GMA_API gma_status gma_lm_save(const gma_lm *lm, const char *path, gma_dtype dtype);

GMA_API gma_status gma_lm_get_config(const gma_lm *lm, gma_lm_config *config);
GMA_API int64_t gma_lm_parameter_count(const gma_lm *lm); /* values that are trained */

/** gma_lm_redraw_features() - new random features in every performer layer, from `seed`. Writes the model. *count (may be
 *  NULL): how many layers that was. */
GMA_API gma_status gma_lm_redraw_features(gma_lm *lm, uint64_t seed, int64_t *count);

/**  gma_lm_tensor() - parameter i, 0 <= i < gma_lm_tensor_count(): its name and a view of the model's own F32 memory.
 *  Writing through it writes the model. */
GMA_API int gma_lm_tensor_count(const gma_lm *lm);
GMA_API gma_status gma_lm_tensor(gma_lm *lm, int i, const char **name, gma_tensor *tensor);

/** gma_lm_loss() - sum over all targets >= 0 of -log p(target), in nats, and how many there are. tokens, targets
 *  (batch, steps) int32, row-major; a target < 0 is ignored. Dropout is off. Allocates its workspace.
 *  Errors: a token or target >= vocab is named with its place; steps > context with learned positions. */
GMA_API gma_status gma_lm_loss(const gma_lm *lm, const int32_t *tokens, const int32_t *targets, int64_t batch,
                               int64_t steps, int threads, double *loss_sum, int64_t *count);

/** gma_lm_classify() - logits (count, classes) of whole sequences, packed one behind the other: sequence i has lengths[i]
 *  tokens (1 .. context, with pooling cls one less). For models of task classify; those that take one are refused by
 *  gma_lm_loss, gma_lm_logits and gma_lm_stream_create (UNSUPPORTED), as the others are here. */
GMA_API gma_status gma_lm_classify(const gma_lm *lm, const int32_t *tokens, const int64_t *lengths, int64_t count,
                                   int threads, float *logits);

/** gma_lm_logits() - logits (batch, steps, vocab) of whole sequences. */
GMA_API gma_status gma_lm_logits(const gma_lm *lm, const int32_t *tokens, int64_t batch, int64_t steps, int threads,
                                 float *logits);

/* ---- Streaming ------------------------------------------------------------------------------------------------ */

/** gma_lm_stream - one sequence in progress. What it keeps does not grow with the sequence: per layer the mixer's state
 *  ((S, Z); for softmax the last `window` keys and values, without a window the last `context`: further back than it was
 *  trained for it does not see), the last inputs of the convolution, and the position. The model must outlive it and not change. */
typedef struct gma_lm_stream gma_lm_stream;

GMA_API gma_status gma_lm_stream_create(const gma_lm *lm, int threads, gma_lm_stream **stream);
GMA_API void gma_lm_stream_destroy(gma_lm_stream *stream); /* NULL is fine */
GMA_API gma_status gma_lm_stream_reset(gma_lm_stream *stream); /* back to an empty sequence */
GMA_API size_t gma_lm_stream_state_bytes(const gma_lm_stream *stream);
GMA_API int64_t gma_lm_stream_position(const gma_lm_stream *stream); /* tokens fed so far */

/** gma_lm_stream_feed() - one token in, the logits (vocab) of the next one out; logits may be NULL. No allocation.
 *  Errors: token outside 0..vocab-1; more than `context` tokens with learned positions. */
GMA_API gma_status gma_lm_stream_feed(gma_lm_stream *stream, int32_t token, float *logits);

/** gma_lm_stream_source() - seq2seq: the sequence that the decoder reads, 1 to `context` tokens; empties the stream. Then
 *  token vocab - 2 (begin) is fed, after it what the decoder said, until that is vocab - 1 (end). Keys and values of the
 *  source are part of the state. Runs the encoder; allocates nothing. Errors: UNSUPPORTED for another task; a token outside
 *  the vocabulary, or too many; feed without a source. */
GMA_API gma_status gma_lm_stream_source(gma_lm_stream *stream, const int32_t *tokens, int64_t count);

/* ---- Sampling and text ---------------------------------------------------------------------------------------- */

/** gma_sampling - how a token is drawn. The draw number `index` of a seed depends on nothing else. */
typedef struct gma_sampling {
    size_t struct_size; /* set by gma_sampling_init */
    double temperature; /* > 0; 0 = always the most likely token */
    int64_t top_k; /* only the k most likely; 0 = all */
    double top_p; /* the most likely ones that together reach p; 1 = all */
    uint64_t seed;
} gma_sampling;

GMA_API gma_status gma_sampling_init(gma_sampling *sampling); /* 1, 0, 1, 0 */

/** gma_sample() - a token from logits (vocab). work: 2 * vocab floats of scratch.
 *  A loop that draws what gma_generate draws:
 *      index = (uint64_t)gma_lm_stream_position(stream);
 *      gma_sample(logits, vocab, &sampling, index, work, &token);
 *      gma_lm_stream_feed(stream, token, logits);
 *  Errors: a field out of range; logits that hold NaN or +Inf (NON_FINITE). */
GMA_API gma_status gma_sample(const float *logits, int64_t vocab, const gma_sampling *sampling, uint64_t index,
                              float *work, int32_t *token);

/** gma_generate() - feed `prompt` (text; when it is empty a fresh stream starts from a newline), then draw `length`
 *  tokens. Text comes out through `write` as soon as it is whole: bytes of an unfinished UTF-8 character are held back, and
 *  what can no longer become one is written as U+FFFD; raw = 1 writes every byte as it is drawn. The prompt itself is not
 *  written. `write` returns 0 to go on, anything else ends the generation with GMA_ERR_INTERRUPTED.
 *  The stream continues where it was. Errors: UNSUPPORTED for a model that reads ids, not text. */
typedef int (*gma_write)(void *context, const char *text, size_t size);
GMA_API gma_status gma_generate(gma_lm_stream *stream, const char *prompt, size_t prompt_size, int64_t length,
                                const gma_sampling *sampling, int raw, gma_write write, void *context);

/** gma_utf8 - the filter gma_generate uses, for those who drive the stream themselves. Zero-initialise it.
 *  push: one byte in, up to GMA_UTF8_MAX bytes of whole characters out; finish: what is held back, as U+FFFD once. Both return
 *  how many bytes they wrote. */
typedef struct gma_utf8 {
    unsigned char held[4];
    int count;
} gma_utf8;
enum { GMA_UTF8_MAX = 8 };
GMA_API size_t gma_utf8_push(gma_utf8 *filter, unsigned char byte, char *out);
GMA_API size_t gma_utf8_finish(gma_utf8 *filter, char *out);

#ifdef __cplusplus
}
#endif
#endif
