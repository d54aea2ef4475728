#include "models/fields.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/layer_spec.h"

#define AT(type) ((type *)((char *)base + field->offset))
#define CAT(type) ((const type *)((const char *)base + field->offset))

static int same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++)
        if (*a != *b && !((*a == '_' || *a == '-') && (*b == '_' || *b == '-'))) return 0;
    return *a == *b;
}

const gmal_field *gmal_field_find(const gmal_field *table, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (same_name(table[i].name, name)) return &table[i];
    return NULL;
}

static gma_status wrong(const gmal_field *field, const char *what, const char *text) {
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s must be %s from %.15g to %.15g, not \"%s\"", field->name, what,
                    field->min, field->max, text);
}

static int choice_of(const char *choices, const char *text) {
    const size_t length = strlen(text);
    int index = 0;
    for (const char *at = choices; *at; index++) {
        const size_t n = strcspn(at, "|");
        if (n == length && memcmp(at, text, n) == 0) return index;
        at += n + (at[n] == '|');
    }
    return -1;
}

static gma_status set_int(const gmal_field *field, void *base, const char *text) {
    char *end;
    errno = 0;
    const long long x = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)x < field->min || (double)x > field->max)
        return wrong(field, "a whole number", text);
    *AT(int64_t) = x;
    return GMA_OK;
}

/* Where the text of a pattern lies. */
static size_t pattern_offset(const gmal_field *field) {
    if (field->type == GMAL_FIELD_PATTERN) return field->offset;
    return field->offset == offsetof(gma_lm_config, layers) ? offsetof(gma_lm_config, pattern)
                                                            : offsetof(gma_lm_config, encoder_pattern);
}

static const char *pattern_of(const gmal_field *field, const void *base) {
    return (const char *)base + pattern_offset(field);
}

static gma_status set_pattern(const gmal_field *field, void *base, const char *text) {
    char *pattern = (char *)base + pattern_offset(field);
    int64_t count;
    if (field->type == GMAL_FIELD_LAYERS && !text[strspn(text, "+-0123456789")]) {
        const gma_status s = set_int(field, base, text);
        if (s == GMA_OK) memset(pattern, 0, GMAL_PATTERN);
        return s;
    }
    const size_t n = strlen(text);
    if (n >= GMAL_PATTERN)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: the pattern is longer than %d characters", field->name,
                        (int)GMAL_PATTERN - 1);
    const gma_status s = gmal_pattern_parse(text, field->name, GMAL_ROLE_CAUSAL, NULL, &count);
    if (s != GMA_OK) return s;
    memset(pattern, 0, GMAL_PATTERN);
    memcpy(pattern, text, n);
    if (field->type == GMAL_FIELD_LAYERS) *AT(int64_t) = count;
    return GMA_OK;
}

/* "auto" in the fields that know it. */
static int set_auto(const gmal_field *field, void *base) {
    switch (field->type) {
    case GMAL_FIELD_PICK:
    case GMAL_FIELD_SWITCH: *AT(int32_t) = -1; return 1;
    case GMAL_FIELD_MIXER: *AT(int32_t) = 0; return 1;
    case GMAL_FIELD_COUNT: *AT(int64_t) = -1; return 1;
    case GMAL_FIELD_PATTERN: memset((char *)base + field->offset, 0, GMAL_PATTERN); return 1;
    default: return 0;
    }
}

static int is_auto(const gmal_field *field, const void *base) {
    return ((field->type == GMAL_FIELD_SWITCH || field->type == GMAL_FIELD_PICK) && *CAT(int32_t) == -1) ||
           (field->type == GMAL_FIELD_MIXER && *CAT(int32_t) == 0) ||
           (field->type == GMAL_FIELD_COUNT && *CAT(int64_t) == -1) ||
           (field->type == GMAL_FIELD_PATTERN && !*pattern_of(field, base));
}

gma_status gmal_field_set(const gmal_field *field, void *base, const char *text) {
    char *end;
    if (strcmp(text, "auto") == 0 && set_auto(field, base)) return GMA_OK;
    switch (field->type) {
    case GMAL_FIELD_SWITCH:
    case GMAL_FIELD_FLAG:
        if ((text[0] != '0' && text[0] != '1') || text[1])
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s must be 0 or 1, not \"%s\"", field->name, text);
        *AT(int32_t) = text[0] == '1';
        return GMA_OK;
    case GMAL_FIELD_PICK:
    case GMAL_FIELD_CHOICE: {
        const int i = choice_of(field->hint, text);
        if (i < 0)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s must be one of %s, not \"%s\"", field->name, field->hint,
                            text);
        *AT(int32_t) = i;
        return GMA_OK;
    }
    case GMAL_FIELD_MIXER: {
        gma_mixer_kind kind;
        const gma_status s = gma_mixer_kind_from_name(text, &kind);
        if (s == GMA_OK) *AT(int32_t) = (int32_t)kind;
        return s;
    }
    case GMAL_FIELD_PATTERN:
    case GMAL_FIELD_LAYERS: return set_pattern(field, base, text);
    case GMAL_FIELD_COUNT:
    case GMAL_FIELD_INT: return set_int(field, base, text);
    case GMAL_FIELD_REAL: {
        const double x = strtod(text, &end);
        if (end == text || *end || !isfinite(x) || x < field->min || x > field->max)
            return wrong(field, "a number", text);
        *AT(double) = x;
        return GMA_OK;
    }
    case GMAL_FIELD_TEXT: break;
    }
    char *copy = malloc(strlen(text) + 1);
    if (!copy) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory", field->name);
    strcpy(copy, text);
    free(*AT(char *));
    *AT(char *) = copy;
    return GMA_OK;
}

static const char *nth_choice(const char *choices, int n, int *length) {
    for (; n > 0; n--) choices += strcspn(choices, "|") + 1;
    *length = (int)strcspn(choices, "|");
    return choices;
}

static void format_real(double x, char *text, size_t size) {
    snprintf(text, size, "%.15g", x);
    if (strtod(text, NULL) != x) snprintf(text, size, "%.17g", x);
}

void gmal_field_get(const gmal_field *field, const void *base, char *text, size_t size) {
    if (is_auto(field, base)) {
        snprintf(text, size, "auto");
        return;
    }
    switch (field->type) {
    case GMAL_FIELD_SWITCH:
    case GMAL_FIELD_FLAG: snprintf(text, size, "%d", (int)*CAT(int32_t)); break;
    case GMAL_FIELD_PICK:
    case GMAL_FIELD_CHOICE: {
        int n;
        const char *s = nth_choice(field->hint, (int)*CAT(int32_t), &n);
        snprintf(text, size, "%.*s", n, s);
        break;
    }
    case GMAL_FIELD_MIXER: {
        const char *name = gma_mixer_kind_name((gma_mixer_kind)*CAT(int32_t));
        snprintf(text, size, "%s", name ? name : "?");
        break;
    }
    case GMAL_FIELD_PATTERN:
    case GMAL_FIELD_LAYERS:
        if (*pattern_of(field, base))
            snprintf(text, size, "%s", pattern_of(field, base));
        else
            snprintf(text, size, "%" PRId64, *CAT(int64_t));
        break;
    case GMAL_FIELD_COUNT:
    case GMAL_FIELD_INT: snprintf(text, size, "%" PRId64, *CAT(int64_t)); break;
    case GMAL_FIELD_REAL: format_real(*CAT(double), text, size); break;
    case GMAL_FIELD_TEXT: snprintf(text, size, "%s", *CAT(char *) ? *CAT(char *) : ""); break;
    }
}

gma_status gmal_field_check(const gmal_field *field, const void *base) {
    char text[64];
    int bad = 0;
    if (is_auto(field, base)) return GMA_OK;
    switch (field->type) {
    case GMAL_FIELD_SWITCH:
    case GMAL_FIELD_FLAG: bad = *CAT(int32_t) != 0 && *CAT(int32_t) != 1; break;
    case GMAL_FIELD_PICK:
    case GMAL_FIELD_CHOICE: {
        int count = 1;
        for (const char *s = field->hint; *s; s++) count += *s == '|';
        if (*CAT(int32_t) < 0 || *CAT(int32_t) >= count)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s must be one of %s, not number %d", field->name, field->hint,
                            (int)*CAT(int32_t));
        return GMA_OK;
    }
    case GMAL_FIELD_MIXER:
        if (!gma_mixer_kind_name((gma_mixer_kind)*CAT(int32_t)))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: there is no mixer number %d", field->name,
                            (int)*CAT(int32_t));
        return GMA_OK;
    case GMAL_FIELD_LAYERS:
    case GMAL_FIELD_COUNT:
    case GMAL_FIELD_INT: bad = (double)*CAT(int64_t) < field->min || (double)*CAT(int64_t) > field->max; break;
    case GMAL_FIELD_REAL: bad = !(*CAT(double) >= field->min && *CAT(double) <= field->max); break;
    case GMAL_FIELD_PATTERN:
    case GMAL_FIELD_TEXT: return GMA_OK;
    }
    if (!bad) return GMA_OK;
    gmal_field_get(field, base, text, sizeof text);
    if (field->type == GMAL_FIELD_FLAG || field->type == GMAL_FIELD_SWITCH)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s must be 0 or 1, not %s", field->name, text);
    return wrong(field, field->type == GMAL_FIELD_REAL ? "a number" : "a whole number", text);
}

json_t *gmal_field_to_json(const gmal_field *field, const void *base) {
    char text[GMAL_PATTERN];
    gmal_field_get(field, base, text, sizeof text);
    if (is_auto(field, base)) return json_string(text);
    switch (field->type) {
    case GMAL_FIELD_SWITCH:
    case GMAL_FIELD_FLAG: return json_boolean(*CAT(int32_t));
    case GMAL_FIELD_LAYERS:
        if (*pattern_of(field, base)) break;
        return json_integer(*CAT(int64_t));
    case GMAL_FIELD_COUNT:
    case GMAL_FIELD_INT: return json_integer(*CAT(int64_t));
    case GMAL_FIELD_REAL: return json_real(*CAT(double));
    case GMAL_FIELD_TEXT: return *CAT(char *) ? json_string(*CAT(char *)) : json_null();
    case GMAL_FIELD_PICK:
    case GMAL_FIELD_CHOICE:
    case GMAL_FIELD_PATTERN:
    case GMAL_FIELD_MIXER: break;
    }
    return json_string(text);
}

gma_status gmal_field_from_json(const gmal_field *field, void *base, const json_t *value, const char *where) {
    char text[64];
    const char *s = text;
    if (json_is_string(value))
        s = json_string_value(value);
    else if (json_is_integer(value))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof text, "%.17g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(text, sizeof text, "%d", json_is_true(value));
    else if (json_is_null(value) && field->type == GMAL_FIELD_TEXT)
        return GMA_OK; /* absent */
    else
        return gma_fail(GMA_ERR_FORMAT, "%s: %s must be a plain value", where, field->name);
    const gma_status status = gmal_field_set(field, base, s);
    if (status != GMA_OK) {
        char why[400];
        snprintf(why, sizeof why, "%s", gma_last_error());
        return gma_fail(status, "%s: %s", where, why);
    }
    return GMA_OK;
}
