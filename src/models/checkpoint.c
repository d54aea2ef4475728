/* Models in folders: config.json and model.safetensors. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gma/data.h"
#include "gma/io.h"
#include "io/replace.h"
#include "models/fields.h"
#include "models/model.h"

static const char format_name[] = "gma-lm";
enum { FORMAT_VERSION = 1 };

char *gmal_path_join(const char *a, const char *b) {
    const size_t n = strlen(a), slash = n && a[n - 1] != '/';
    char *s = malloc(n + slash + strlen(b) + 1);
    if (s) sprintf(s, "%s%s%s", a, slash ? "/" : "", b);
    return s;
}

static gma_status no_memory(void) { return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path"); }

/* ---- JSON ----------------------------------------------------------------------------------------------------- */

gma_status gmal_json_read(const char *path, json_t **json) {
    json_error_t error;
    struct stat st;
    *json = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not be waited for */
    if (fd < 0) return gma_fail(GMA_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    const int regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *f = regular ? fdopen(fd, "rb") : NULL;
    if (!f) {
        close(fd);
        return regular ? gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory to read it", path)
                       : gma_fail(GMA_ERR_IO, "%s: is not a regular file", path);
    }
    *json = json_loadf(f, JSON_REJECT_DUPLICATES, &error);
    fclose(f);
    if (!*json) return gma_fail(GMA_ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    if (!json_is_object(*json)) {
        json_decref(*json);
        *json = NULL;
        return gma_fail(GMA_ERR_FORMAT, "%s: is not a JSON object", path);
    }
    return GMA_OK;
}

gma_status gmal_json_write(const char *path, const json_t *json) {
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    if (!text) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory to write it", path);
    const size_t n = strlen(text);
    text[n] = '\n'; /* in place of the terminator: written with its length */
    const gma_status s = gmal_replace_file(path, text, n + 1);
    free(text);
    return s;
}

static json_t *config_to_json(const gma_lm_config *c) {
    json_t *model = json_object();
    for (int i = 0; i < gmal_model_field_count; i++)
        json_object_set_new(model, gmal_model_fields[i].name, gmal_field_to_json(&gmal_model_fields[i], c));
    return json_pack("{s:s, s:i, s:s, s:o}", "format", format_name, "version", (int)FORMAT_VERSION, "gma_version",
                     gma_version(), "model", model);
}

/* Settings that models of the first releases do not have; absent = off. */
static int is_newer(const char *name) {
    static const char *const newer[] = {"task", "causal", "pooling", "classes", "window", "states", "expand", "encoder_layers",
                                        "cross_mixer"};
    for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i++)
        if (strcmp(name, newer[i]) == 0) return 1;
    return 0;
}

/* What stands beside the model; the last two are of the Python package, which Hugging Face's tools ask for. */
static int is_head(const char *key) {
    static const char *const keys[] = {"format", "version", "gma_version", "model", "model_type", "architectures"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(key, keys[i]) == 0) return 1;
    return 0;
}

static gma_status config_from_json(const char *path, const json_t *json, gma_lm_config *c) {
    const char *format = json_string_value(json_object_get(json, "format"));
    const json_t *model = json_object_get(json, "model");
    if (!format || strcmp(format, format_name) != 0 || !json_is_object(model))
        return gma_fail(GMA_ERR_FORMAT, "%s: is not the configuration of a model (\"format\": \"%s\")", path,
                        format_name);
    if (json_integer_value(json_object_get(json, "version")) != FORMAT_VERSION)
        return gma_fail(GMA_ERR_FORMAT, "%s: format version %lld; this library reads %d", path,
                        (long long)json_integer_value(json_object_get(json, "version")), (int)FORMAT_VERSION);
    gma_status s = gma_lm_config_init(c);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
        if (!is_head(key)) return gma_fail(GMA_ERR_FORMAT, "%s: a model's configuration has no \"%s\"", path, key);
    json_object_foreach((json_t *)(uintptr_t)model, key, value) {
        const gmal_field *f = gmal_field_find(gmal_model_fields, gmal_model_field_count, key);
        if (!f) return gma_fail(GMA_ERR_FORMAT, "%s: model has no setting \"%s\"", path, key);
        if (s == GMA_OK) s = gmal_field_from_json(f, c, value, path);
    }
    for (int i = 0; i < gmal_model_field_count && s == GMA_OK; i++) /* a shape must not depend on today's defaults */
        if (!json_object_get(model, gmal_model_fields[i].name) && !is_newer(gmal_model_fields[i].name))
            s = gma_fail(GMA_ERR_FORMAT, "%s: model lacks the setting \"%s\"", path, gmal_model_fields[i].name);
    if (s != GMA_OK) return s;
    s = gma_lm_config_resolve(c);
    if (s == GMA_OK) return s;
    char why[400];
    snprintf(why, sizeof why, "%s", gma_last_error());
    return gma_fail(GMA_ERR_FORMAT, "%s: %s", path, why);
}

/* ---- Writing -------------------------------------------------------------------------------------------------- */

gma_status gmal_model_write(const gma_lm *lm, const char *folder, gma_dtype dtype) {
    const gmal_layout *l = lm->layout;
    if (dtype != GMA_F32 && dtype != GMA_BF16)
        return gma_fail(GMA_ERR_DTYPE, "a model is stored as F32 or BF16, not %s", gma_dtype_name(dtype));
    char *config = gmal_path_join(folder, "config.json"), *file = gmal_path_join(folder, "model.safetensors");
    gma_named_tensor *named = malloc((size_t)l->param_count * sizeof *named);
    uint16_t *half = dtype == GMA_BF16 ? malloc((size_t)l->total * sizeof *half) : NULL;
    json_t *json = config_to_json(&l->c);
    gma_status s = config && file && named && json && (half || dtype == GMA_F32) ? GMA_OK : no_memory();
    for (int64_t i = 0; half && s == GMA_OK && i < l->total; i++) half[i] = gma_f32_to_bf16(lm->values[i]);
    for (int i = 0; s == GMA_OK && i < l->param_count; i++) {
        const gmal_param *p = &l->params[i];
        const void *data = half ? (const void *)(half + p->offset) : lm->values + p->offset;
        named[i].name = p->name;
        named[i].tensor = gma_tensor_of(data, dtype, p->rank, p->shape[0], p->shape[1], p->shape[2], 1);
    }
    const gma_metadata_pair meta[] = {{"format", format_name}};
    if (s == GMA_OK) s = gmal_json_write(config, json);
    if (s == GMA_OK) s = gma_safetensors_save(file, named, l->param_count, meta, 1);
    if (s == GMA_OK && lm->tokenizer) s = gma_tokenizer_save(lm->tokenizer, folder);
    json_decref(json);
    free(half);
    free(named);
    free(file);
    free(config);
    return s;
}

gma_status gma_lm_save(const gma_lm *lm, const char *path, gma_dtype dtype) {
    gmal_folder f;
    if (!lm || !path) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", lm ? "path" : "lm");
    gma_status s = gmal_folder_begin(&f, path);
    if (s != GMA_OK) return s;
    s = gmal_model_write(lm, f.temp, dtype);
    if (s == GMA_OK) return gmal_folder_commit(&f);
    gmal_folder_abandon(&f);
    return s;
}

/* ---- Reading -------------------------------------------------------------------------------------------------- */

static int same_shape(const gma_stored_tensor *t, const gmal_param *p) {
    if (t->rank != p->rank) return 0;
    for (int i = 0; i < p->rank; i++)
        if (t->shape[i] != p->shape[i]) return 0;
    return 1;
}

static void shape_text(const int64_t *shape, int rank, char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i < rank && used < size; i++) {
        const int n = snprintf(text + used, size - used, "%s%lld", i ? " x " : "", (long long)shape[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    if (rank == 0) snprintf(text, size, "scalar");
}

static gma_status read_one(const gma_safetensors *file, const char *path, const char *name, const gmal_param *p,
                           float *out) {
    const gma_stored_tensor *t = gma_safetensors_find(file, name);
    if (!t) return gma_fail(GMA_ERR_SHAPE, "%s: tensor %s is missing", path, name);
    if (!same_shape(t, p)) {
        char is[96], must[96];
        shape_text(t->shape, t->rank, is, sizeof is);
        shape_text(p->shape, p->rank, must, sizeof must);
        return gma_fail(GMA_ERR_SHAPE, "%s: tensor %s is %s, the configuration says %s", path, name, is, must);
    }
    if (t->dtype != GMA_F32 && t->dtype != GMA_BF16)
        return gma_fail(GMA_ERR_DTYPE, "%s: tensor %s is %s, not F32 or BF16", path, name, t->dtype_name);
    const gma_status s = gma_safetensors_read(file, t, GMA_F32, out);
    if (s != GMA_OK) return s;
    for (int64_t i = 0; i < p->count; i++)
        if (!isfinite(out[i]))
            return gma_fail(GMA_ERR_NON_FINITE, "%s: tensor %s holds a value that is not finite, at element %lld",
                            path, name, (long long)i);
    return GMA_OK;
}

gma_status gmal_values_read(const gmal_layout *layout, const char *path, const char *prefix, int trained,
                            float *values) {
    gma_safetensors *file;
    gma_status s = gma_safetensors_open(path, &file);
    if (s != GMA_OK) return s;
    int64_t with_prefix = 0, wanted = 0;
    for (int64_t i = 0; i < gma_safetensors_count(file); i++)
        with_prefix += strncmp(gma_safetensors_at(file, i)->name, prefix, strlen(prefix)) == 0;
    for (int j = 0; j < layout->param_count && s == GMA_OK; j++) {
        char name[96];
        if (trained && layout->params[j].fixed) continue;
        wanted++;
        snprintf(name, sizeof name, "%s%s", prefix, layout->params[j].name);
        s = read_one(file, path, name, &layout->params[j], values + layout->params[j].offset);
    }
    if (s == GMA_OK && with_prefix > wanted)
        s = gma_fail(GMA_ERR_SHAPE, "%s: holds %lld tensors, the configuration has %lld", path, (long long)with_prefix,
                     (long long)wanted);
    gma_safetensors_close(file);
    return s;
}

/* 1 when <folder>/<name> is there. */
static int has(const char *folder, const char *name) {
    struct stat st;
    char *path = gmal_path_join(folder, name);
    const int yes = path && stat(path, &st) == 0;
    free(path);
    return yes;
}

gma_status gmal_checkpoint_find(const char *path, char **folder) {
    static const char *const inside[] = {NULL, "best", "last"};
    *folder = NULL;
    if (!path) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "path is NULL");
    for (size_t i = 0; *path && i < sizeof inside / sizeof inside[0]; i++) {
        char *at = inside[i] ? gmal_path_join(path, inside[i]) : gmal_path_join(path, "");
        if (!at) return no_memory();
        const size_t n = strlen(at);
        if (!inside[i] && n > 1 && at[n - 1] == '/') at[n - 1] = 0;
        struct stat st;
        const int there = lstat(at, &st) == 0;
        gma_status s = there ? GMA_OK : gmal_folder_recover(at);
        if (s == GMA_OK && has(at, "model.safetensors")) {
            *folder = at;
            return GMA_OK;
        }
        if (s == GMA_OK && there && inside[i]) /* another one in its place would be a silent surprise */
            s = gma_fail(GMA_ERR_IO, "%s: its model.safetensors is missing or cannot be reached", at);
        free(at);
        if (s != GMA_OK) return s;
    }
    return gma_fail(GMA_ERR_IO, "%s: there is no model here (no model.safetensors, best/ or last/)",
                    *path ? path : "\"\"");
}

/* The tokenizer beside a model that says it has one. */
static gma_status read_tokenizer(const char *folder, gma_lm *lm) {
    const int32_t kind = lm->layout->c.tokenizer;
    gma_tokenizer *t;
    if (kind != GMA_LM_TOKENIZER_WORDS && kind != GMA_LM_TOKENIZER_BPE) return GMA_OK;
    gma_status s = gma_tokenizer_load(folder, &t);
    if (s != GMA_OK) return s;
    s = gma_lm_set_tokenizer(lm, t);
    if (s == GMA_OK) return s;
    gma_tokenizer_destroy(t);
    char why[300];
    snprintf(why, sizeof why, "%s", gma_last_error());
    return gma_fail(GMA_ERR_FORMAT, "%s: %s", folder, why);
}

gma_status gma_lm_load(const char *path, gma_lm **lm) {
    char *folder = NULL, *config = NULL, *file = NULL;
    json_t *json = NULL;
    gma_lm_config c;
    if (!lm) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "lm is NULL");
    *lm = NULL;
    gma_status s = gmal_checkpoint_find(path, &folder);
    if (s == GMA_OK) {
        config = gmal_path_join(folder, "config.json");
        file = gmal_path_join(folder, "model.safetensors");
        s = config && file ? gmal_json_read(config, &json) : no_memory();
    }
    if (s == GMA_OK) s = config_from_json(config, json, &c);
    if (s == GMA_OK) s = gmal_model_alloc(&c, lm);
    if (s == GMA_OK) s = gmal_values_read((*lm)->layout, file, "", 0, (*lm)->values);
    if (s == GMA_OK) s = read_tokenizer(folder, *lm);
    if (s != GMA_OK) {
        gma_lm_destroy(*lm);
        *lm = NULL;
    }
    json_decref(json);
    free(file);
    free(config);
    free(folder);
    return s;
}
