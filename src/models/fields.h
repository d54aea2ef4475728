/* Named fields of a struct as text: one table drives JSON, --config, flags, range checks and help. */
#ifndef GMA_MODELS_FIELDS_H
#define GMA_MODELS_FIELDS_H

#include <jansson.h>

#include "gma/lm.h"

typedef enum gmal_field_type {
    GMAL_FIELD_FLAG, /* int32_t, 0 or 1 */
    GMAL_FIELD_CHOICE, /* int32_t, position in hint = "first|second" */
    GMAL_FIELD_PICK, /* the same, or -1 = "auto" */
    GMAL_FIELD_SWITCH, /* int32_t, 0 or 1, or -1 = "auto" */
    GMAL_FIELD_MIXER, /* int32_t, a gma_mixer_kind by name, or 0 = "auto" */
    GMAL_FIELD_LAYERS, /* gma_lm_config.layers as a number, or .pattern as text; encoder_layers likewise */
    GMAL_FIELD_PATTERN, /* char[256], a pattern of layers, or "" = "auto" */
    GMAL_FIELD_INT, /* int64_t, min..max */
    GMAL_FIELD_COUNT, /* the same, or -1 = "auto" */
    GMAL_FIELD_REAL, /* double, min..max, finite */
    GMAL_FIELD_TEXT /* char *, owned by the struct (malloc) */
} gmal_field_type;

typedef struct gmal_field {
    const char *name; /* with underscores */
    gmal_field_type type;
    size_t offset;
    double min, max;
    const char *hint;
    const char *help;
} gmal_field;

/* The fields of gma_lm_config. */
extern const gmal_field gmal_model_fields[];
extern const int gmal_model_field_count;

/* '-' and '_' are the same in names. NULL when there is none. */
const gmal_field *gmal_field_find(const gmal_field *table, int count, const char *name);

/* Text into the field of `base`. The error says what the value must be: "layers must be a whole number from 1 to ...". */
gma_status gmal_field_set(const gmal_field *field, void *base, const char *text);

/* The value as text that set takes back; at most size - 1 characters. */
void gmal_field_get(const gmal_field *field, const void *base, char *text, size_t size);

/* Range check of the present value. */
gma_status gmal_field_check(const gmal_field *field, const void *base);

/* As a JSON value of its natural type, and back. from: the error names `where` and the field. */
json_t *gmal_field_to_json(const gmal_field *field, const void *base);
gma_status gmal_field_from_json(const gmal_field *field, void *base, const json_t *value, const char *where);

#endif
