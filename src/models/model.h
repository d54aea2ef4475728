/* A model inside the library: its layout and its parameters in one flat F32 array (64-byte aligned). */
#ifndef GMA_MODELS_MODEL_H
#define GMA_MODELS_MODEL_H

#include <jansson.h>

#include "models/layout.h"

struct gma_lm {
    gmal_layout *layout;
    float *values; /* layout->total */
    struct gma_tokenizer *tokenizer; /* WORDS, BPE; owned */
};

/* A model with zero parameters. */
gma_status gmal_model_alloc(const gma_lm_config *config, gma_lm **lm);

/* Every token in 0..vocab-1 (targets: or negative); the error names `what` and the place. */
gma_status gmal_check_tokens(const char *what, const int32_t *tokens, int64_t count, int64_t vocab, int targets);

/* Name of the first parameter tensor that holds a value that is not finite in `values`; NULL when all are. */
const char *gmal_first_bad_tensor(const gmal_layout *layout, const float *values);

/* The files of a model inside an existing folder; used by gma_lm_save and by the trainer's checkpoints. */
gma_status gmal_model_write(const gma_lm *lm, const char *folder, gma_dtype dtype);

/* Tensors of a safetensors file into values laid out by `layout`: names prefix + parameter name, no other tensor with
 * that prefix. trained: without those that are not. Errors name tensor and file. */
gma_status gmal_values_read(const gmal_layout *layout, const char *path, const char *prefix, int trained,
                            float *values);

/* The folder that holds model.safetensors for a path a user may give (checkpoint or run folder). free() it. */
gma_status gmal_checkpoint_find(const char *path, char **folder);

const gma_lm *gmal_stream_model(const gma_lm_stream *stream);

/* gma_lm_stream_source where the encoder has run already: its output (length, width). */
gma_status gmal_stream_memory(gma_lm_stream *stream, const float *memory, int64_t length);

/* Logits after the last token fed; there must have been one. */
void gmal_stream_logits(gma_lm_stream *stream, float *logits);

/* "<a>/<b>"; NULL when out of memory. */
char *gmal_path_join(const char *a, const char *b);

/* JSON file in and out. read: the error names file and line. write: with a final newline; straight into `path`. */
gma_status gmal_json_read(const char *path, json_t **json);
gma_status gmal_json_write(const char *path, const json_t *json);

#endif
