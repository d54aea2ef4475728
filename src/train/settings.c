/* Settings by name. */
#include "train/settings.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "models/layer_spec.h"
#include "models/model.h"
#include "train/mixture.h"

typedef struct row {
    const char *group;
    gmal_field field;
    const char *def;
    int once; /* belongs to one call, not to the run: not in config.json */
} row;

#define F(group, type, name, def, min, max, hint, help, once) \
    {group, {#name, GMAL_FIELD_##type, offsetof(gma_settings, name), min, max, hint, help}, def, once}

static const row rows[] = {
    F("Data", TEXT, data, "", 0, 0, "FILE", "what to train on: any text or binary file, or a token file of gma data; task seq2seq: copy, reverse or sort", 0),
    F("Data", TEXT, val_data, "", 0, 0, "FILE", "validate on this file instead of the end of the data", 0),
    F("Data", CHOICE, tokens, "bytes", 0, 0, "bytes|u16|file", "what the files hold: bytes, 16-bit little-endian ids, or (a token file) what it says itself", 0),
    F("Data", REAL, val_fraction, "0.1", 0, 0.9, "X", "part of the data, at its end, kept for validation", 0),
    F("Data", INT, symbols, "64", 1, 1 << 20, "N", "seq2seq: different symbols in the generated pairs", 0),
    F("Data", INT, min_length, "0", 0, 1 << 24, "N", "seq2seq: symbols of the shortest source; the longest has as many as the context; 0 = all have", 0),
    F("Training", INT, steps, "2000", 1, 1e12, "N", "optimizer steps; the learning rate falls over them", 0),
    F("Training", INT, batch, "12", 1, 1 << 20, "N", "sequences in one pass", 0),
    F("Training", INT, accumulate, "1", 1, 1 << 20, "N", "passes whose gradients make one step", 0),
    F("Training", REAL, lr, "2e-3", 0, 1e30, "X", "peak learning rate", 0),
    F("Training", CHOICE, schedule, "cosine", 0, 0, "cosine|linear|constant", "how the learning rate falls after its peak", 0),
    F("Training", REAL, min_lr_ratio, "0.1", 0, 1, "X", "learning rate at the end, as a part of the peak", 0),
    F("Training", INT, warmup, "40", 0, 1e12, "N", "steps over which the learning rate rises", 0),
    F("Training", REAL, weight_decay, "0.1", 0, 1e6, "X", "decoupled; on matrices and embeddings only", 0),
    F("Training", REAL, beta1, "0.9", 0, 0.999999, "X", "AdamW: how long the mean of gradients remembers", 0),
    F("Training", REAL, beta2, "0.99", 0, 0.999999, "X", "AdamW: the same for their squares", 0),
    F("Training", REAL, adam_eps, "1e-8", 1e-30, 1, "X", "AdamW: added to the root of the squares", 0),
    F("Training", REAL, clip, "1", 0, 1e30, "X", "largest norm of the gradient; 0 = do not clip", 0),
    F("Training", INT, redraw_every, "0", 0, 1e12, "N", "steps between new random features (performer); 0 = never", 0),
    F("Training", CHOICE, mixture_init, "drawn", 0, 0, "drawn|kmeans", "first Gaussians (gma): drawn, or k-means of what the first batches bring to each layer", 0),
    F("Training", REAL, mu_std, "1", 1e-6, 1e3, "X", "drawn Gaussians (gma): standard deviation of their first means; small ones begin by sharing every token", 0),
    F("Training", FLAG, freeze_mixture, "0", 0, 1, NULL, "do not train the Gaussians (gma)", 0),
    F("Training", FLAG, tied_variances, "0", 0, 1, NULL, "one variance a head and width, common to its Gaussians (gma)", 0),
    F("Training", INT, seed, "1", 0, 9e15, "N", "of the first values, the order of the data and dropout", 0),
    F("Run", TEXT, out, "", 0, 0, "DIR", "the run's folder", 1),
    F("Run", FLAG, resume, "0", 0, 1, NULL, "go on from DIR/last, with the settings saved in DIR", 1),
    F("Run", FLAG, force, "0", 0, 1, NULL, "replace the run that is in DIR", 1),
    F("Run", INT, stop_at, "0", 0, 1e12, "N", "stop after step N and save, with the schedule of all steps; 0 = at the end", 1),
    F("Run", INT, eval_every, "250", 0, 1e12, "N", "steps between validations; 0 = only at the end", 0),
    F("Run", INT, eval_windows, "0", 0, 1e12, "N", "sequences a validation reads; 0 = all", 0),
    F("Run", INT, save_every, "0", 0, 1e12, "N", "steps between checkpoints in DIR/last; 0 = at each validation", 0),
    F("Run", INT, log_every, "10", 1, 1e12, "N", "steps between lines where there is no terminal", 0),
    F("Run", INT, inspect_every, "0", 0, 1e12, "N", "steps between looks at the components of every gma head (usage, entropy), into metrics.jsonl and a TensorBoard file; 0 = never", 0),
    F("Run", CHOICE, store, "f32", 0, 0, "f32|bf16", "how DIR/best is stored", 0),
    F("Run", FLAG, recompute, "0", 0, 1, NULL, "keep only the input of each block for backward: less memory, more work, the same bits", 1),
    F("Run", INT, threads, "0", 0, 4096, "N", "threads; 0 = every CPU this process may use", 1),
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* tokens decides it. */
static int is_hidden(const gmal_field *f) { return strcmp(f->name, "tokenizer") == 0; }

/* The i-th setting in the order of help: Data, Model, Training, Run. base: where its struct starts in the settings. */
static const gmal_field *nth(int i, const char **group, size_t *base, int *once) {
    static const char *const order[] = {"Data", "Model", "Training", "Run"};
    for (size_t g = 0; g < 4; g++) {
        if (strcmp(order[g], "Model") == 0) {
            for (int j = 0; j < gmal_model_field_count; j++) {
                if (is_hidden(&gmal_model_fields[j]) || i-- != 0) continue;
                *group = order[g];
                *base = offsetof(gma_settings, model);
                *once = 0;
                return &gmal_model_fields[j];
            }
            continue;
        }
        for (int j = 0; j < ROWS; j++) {
            if (strcmp(rows[j].group, order[g]) != 0 || i-- != 0) continue;
            *group = order[g];
            *base = 0;
            *once = rows[j].once;
            return &rows[j].field;
        }
    }
    return NULL;
}

int gma_settings_count(void) {
    int hidden = 0;
    for (int j = 0; j < gmal_model_field_count; j++) hidden += is_hidden(&gmal_model_fields[j]);
    return (int)ROWS + gmal_model_field_count - hidden;
}

gma_status gma_settings_info(int i, gma_setting_info *info) {
    const char *group;
    size_t base;
    int once;
    const gmal_field *f = i < 0 ? NULL : nth(i, &group, &base, &once);
    if (!f || !info) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "there is no setting number %d", i);
    *info = (gma_setting_info){.name = f->name,
                               .group = group,
                               .is_flag = f->type == GMAL_FIELD_FLAG || f->type == GMAL_FIELD_SWITCH,
                               .hint = f->hint,
                               .help = f->help};
    return GMA_OK;
}

static const gmal_field *find(const char *name, size_t *base) {
    const gmal_field *f = gmal_field_find(gmal_model_fields, gmal_model_field_count, name);
    *base = offsetof(gma_settings, model);
    if (f && !is_hidden(f)) return f;
    *base = 0;
    for (int j = 0; j < ROWS; j++)
        if (gmal_field_find(&rows[j].field, 1, name)) return &rows[j].field;
    return NULL;
}

/* A preset's number of components is for mixers that have some; a user who gives one means it. */
static void note(gma_settings *s, const gmal_field *f) {
    if (strcmp(f->name, "components") == 0) s->components_given = s->model.components >= 0;
}

gma_status gma_settings_set(gma_settings *s, const char *name, const char *value) {
    size_t base;
    if (!s || !name || !value) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_settings_set: a pointer is NULL");
    const gmal_field *f = find(name, &base);
    if (!f) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "there is no setting \"%s\"", name);
    const gma_status status = gmal_field_set(f, (char *)s + base, value);
    if (status == GMA_OK) note(s, f);
    return status;
}

gma_status gma_settings_get(const gma_settings *s, const char *name, char *text, size_t size) {
    size_t base;
    if (!s || !name || !text || !size) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_settings_get: a pointer is NULL");
    const gmal_field *f = find(name, &base);
    if (!f) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "there is no setting \"%s\"", name);
    gmal_field_get(f, (const char *)s + base, text, size);
    return GMA_OK;
}

static gma_status set_defaults(gma_settings *s) {
    gma_status status = gma_lm_config_init(&s->model);
    for (int j = 0; j < ROWS && status == GMA_OK; j++) status = gmal_field_set(&rows[j].field, s, rows[j].def);
    return status;
}

gma_status gma_settings_create(const char *preset, gma_settings **settings) {
    if (!preset || !settings) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_settings_create: a pointer is NULL");
    *settings = NULL;
    gma_settings *s = calloc(1, sizeof *s);
    if (!s) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for settings");
    gma_status status = set_defaults(s);
    if (status == GMA_OK) status = gmal_settings_apply_preset(s, preset);
    if (status != GMA_OK) {
        gma_settings_destroy(s);
        return status;
    }
    *settings = s;
    return GMA_OK;
}

void gma_settings_destroy(gma_settings *s) {
    if (!s) return;
    for (int j = 0; j < ROWS; j++)
        if (rows[j].field.type == GMAL_FIELD_TEXT) free(*(char **)(void *)((char *)s + rows[j].field.offset));
    free(s);
}

gma_status gmal_settings_copy(const gma_settings *from, gma_settings **to) {
    gma_status status = gma_settings_create("default", to);
    if (status != GMA_OK) return status;
    for (int j = 0; j < ROWS && status == GMA_OK; j++) {
        const gmal_field *f = &rows[j].field;
        char text[64];
        const char *value = text;
        if (f->type == GMAL_FIELD_TEXT)
            value = *(char *const *)(const void *)((const char *)from + f->offset);
        else
            gmal_field_get(f, from, text, sizeof text);
        status = gmal_field_set(f, *to, value ? value : "");
    }
    (*to)->model = from->model;
    (*to)->components_given = from->components_given;
    return status;
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

/* What follows from other settings is saved as 0, "derived": with --config and another width it must follow that. */
static gma_lm_config underive(const gma_lm_config *c) {
    gma_lm_config derived = *c, out = *c;
    derived.kv_heads = derived.routing_dim = derived.value_dim = derived.mlp_width = 0;
    derived.causal = derived.logit_scale = derived.forget_gate = derived.output_gate = -1;
    derived.conv = derived.components = derived.states = derived.expand = derived.positions = -1;
    derived.encoder_layers = 0;
    memset(derived.encoder_pattern, 0, sizeof derived.encoder_pattern);
    memset(derived.cross_pattern, 0, sizeof derived.cross_pattern);
    if (gma_lm_config_resolve(&derived) != GMA_OK) return out; /* heads do not divide width: all was given */
    if (c->kv_heads == derived.kv_heads) out.kv_heads = 0;
    if (c->routing_dim == derived.routing_dim) out.routing_dim = 0;
    if (c->value_dim == derived.value_dim) out.value_dim = 0;
    if (c->mlp_width == derived.mlp_width) out.mlp_width = 0;
    if (c->logit_scale == derived.logit_scale) out.logit_scale = -1;
    if (c->forget_gate == derived.forget_gate) out.forget_gate = -1;
    if (c->output_gate == derived.output_gate) out.output_gate = -1;
    if (c->conv == derived.conv) out.conv = -1;
    if (c->causal == derived.causal) out.causal = -1;
    if (c->positions == derived.positions) out.positions = -1;
    if (c->components == derived.components) out.components = -1;
    if (c->states == derived.states) out.states = -1;
    if (c->expand == derived.expand) out.expand = -1;
    if (!*c->pattern && c->mixer == GMA_MIXER_GMA) out.mixer = 0;
    if (c->encoder_layers == derived.encoder_layers && strcmp(c->encoder_pattern, derived.encoder_pattern) == 0) {
        out.encoder_layers = 0;
        memset(out.encoder_pattern, 0, sizeof out.encoder_pattern);
    }
    return out;
}

json_t *gmal_settings_to_json(const gma_settings *settings) {
    gma_settings plain = *settings; /* its texts are borrowed */
    const gma_settings *s = &plain;
    plain.model = underive(&settings->model);
    json_t *json = json_object();
    const char *group;
    size_t base;
    int once;
    for (int i = 0;; i++) {
        const gmal_field *f = nth(i, &group, &base, &once);
        if (!f) return json;
        if (once) continue;
        if (f->type == GMAL_FIELD_TEXT && !*(*(char *const *)(const void *)((const char *)s + f->offset))) continue;
        json_object_set_new(json, f->name, gmal_field_to_json(f, (const char *)s + base));
    }
}

static gma_status read_object(gma_settings *s, const char *path, const json_t *json) {
    const char *key;
    json_t *value;
    const json_t *preset = json_object_get(json, "preset");
    if (preset) {
        if (!json_is_string(preset)) return gma_fail(GMA_ERR_FORMAT, "%s: preset must be a name", path);
        const gma_status status = gmal_settings_apply_preset(s, json_string_value(preset));
        if (status != GMA_OK) {
            char why[300];
            strncpy(why, gma_last_error(), sizeof why - 1);
            why[sizeof why - 1] = 0;
            return gma_fail(status, "%s: %s", path, why);
        }
    }
    json_object_foreach((json_t *)(uintptr_t)json, key, value) {
        size_t base;
        if (strcmp(key, "preset") == 0) continue;
        const gmal_field *f = find(key, &base);
        if (!f) return gma_fail(GMA_ERR_FORMAT, "%s: there is no setting \"%s\"", path, key);
        const gma_status status = gmal_field_from_json(f, (char *)s + base, value, path);
        if (status != GMA_OK) return status;
        note(s, f);
    }
    return GMA_OK;
}

gma_status gma_settings_read(gma_settings *s, const char *path) {
    json_t *json;
    if (!s || !path) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_settings_read: a pointer is NULL");
    gma_status status = gmal_json_read(path, &json);
    if (status != GMA_OK) return status;
    status = read_object(s, path, json);
    json_decref(json);
    return status;
}

/* ---- Checks --------------------------------------------------------------------------------------------------- */

gma_status gma_settings_layer(const gma_settings *s, int64_t i, char *text, size_t size) {
    if (!s) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "settings is NULL");
    return gma_lm_config_layer(&s->model, i, text, size);
}

static gma_status check_redraw(const gma_settings *s) {
    char layer[200];
    if (!s->redraw_every) return GMA_OK;
    for (int64_t i = 0; gma_lm_config_layer(&s->model, i, layer, sizeof layer) == GMA_OK; i++)
        if (strstr(layer, "performer:")) return GMA_OK;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "redraw_every: no layer has random features to draw (mixer performer)");
}

/* What --inspect-every looks at; gmal_settings_take_data has asked the data. */
static gma_status check_inspect(const gma_settings *s) {
    if (!s->inspect_every) return GMA_OK;
    if (s->model.task != GMA_LM_TASK_LM)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "inspect_every: looks at language models of one text, not at other tasks");
    if (!gmal_config_has(&s->model, GMA_MIXER_GMA))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "inspect_every: no layer has components to look at (mixer gma)");
    return GMA_OK;
}

gma_status gma_settings_resolve(gma_settings *s) {
    if (!s) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "settings is NULL");
    const gma_status taken = gmal_settings_take_data(s);
    if (taken != GMA_OK) return taken;
    if (s->resume && s->force) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "resume and force exclude each other");
    if (s->tokens == GMAL_TOKENS_U16 && s->model.vocab > 65536)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "vocab must be at most 65536 for 16-bit ids, not %lld",
                        (long long)s->model.vocab);
    gma_lm_config c = s->model;
    gma_status status = gma_lm_config_resolve(&c);
    if (status != GMA_OK && !s->components_given && s->model.components > 0) {
        c = s->model;
        c.components = -1;
        status = gma_lm_config_resolve(&c);
    }
    if (status == GMA_OK) status = gmal_layers_check_shared(&c);
    if (status != GMA_OK) return status;
    s->model = c;
    status = gmal_mixture_check(s);
    if (status == GMA_OK) status = check_redraw(s);
    return status == GMA_OK ? check_inspect(s) : status;
}

const gmal_field *gmal_settings_model_difference(const gma_lm_config *a, const gma_lm_config *b) {
    for (int i = 0; i < gmal_model_field_count; i++) {
        char x[sizeof a->pattern], y[sizeof a->pattern];
        if (strcmp(gmal_model_fields[i].name, "dropout") == 0) continue;
        gmal_field_get(&gmal_model_fields[i], a, x, sizeof x);
        gmal_field_get(&gmal_model_fields[i], b, y, sizeof y);
        if (strcmp(x, y) != 0) return &gmal_model_fields[i];
    }
    return NULL;
}
