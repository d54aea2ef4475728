/* last/ and best/ of a run: the model, and beside it in last/ what the trainer needs to go on. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gma/io.h"
#include "io/replace.h"
#include "train/run_folder.h"

static const char trainer_format[] = "gma-trainer";
enum { TRAINER_VERSION = 1 };

/* The first key of a trainer.json whose value is missing or of the wrong type; NULL when all is well. */
static const char *wrong_in_trainer(const json_t *json) {
    static const char *const whole[] = {"step", "train_tokens", "val_step"}, *const real[] = {"loss", "val_loss", "best_val_loss"};
    for (int i = 0; i < 3; i++)
        if (!json_is_integer(json_object_get(json, whole[i]))) return whole[i];
    for (int i = 0; i < 3; i++) {
        const json_t *x = json_object_get(json, real[i]);
        if (!json_is_number(x) && !json_is_null(x)) return real[i];
    }
    const json_t *sum = json_object_get(json, "train_checksum"); /* newer than the rest */
    if (!sum) return NULL;
    const char *text = json_string_value(sum);
    return text && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16 ? NULL : "train_checksum";
}

static double number_of(const json_t *json, const char *key) {
    const json_t *x = json_object_get(json, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

static gma_status write_trainer(const char *folder, const gmal_progress *p) {
    char *path = gmal_path_join(folder, "trainer.json");
    char checksum[24];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, p->train_checksum);
    json_t *json = json_pack("{s:s, s:i, s:I, s:I, s:I, s:s, s:I, s:o, s:o, s:o, s:o}", "format", trainer_format, "version",
                             (int)TRAINER_VERSION, "step", (json_int_t)p->step, "tokens", (json_int_t)p->tokens, "train_tokens",
                             (json_int_t)p->train_tokens, "train_checksum", checksum, "val_step",
                             (json_int_t)p->val_step, "loss", gmal_number(p->loss), "val_loss",
                             gmal_number(p->val_loss), "best_val_loss", gmal_number(p->best_val_loss), "val_accuracy",
                             gmal_number(p->val_accuracy));
    gma_status s = path && json ? gmal_json_write(path, json)
                                : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for trainer.json");
    json_decref(json);
    free(path);
    return s;
}

static gma_status read_trainer(const char *folder, gmal_progress *p) {
    char *path = gmal_path_join(folder, "trainer.json");
    json_t *json = NULL;
    gma_status s = path ? gmal_json_read(path, &json) : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
    if (s == GMA_OK) {
        const char *format = json_string_value(json_object_get(json, "format"));
        if (!format || strcmp(format, trainer_format) != 0 ||
            json_integer_value(json_object_get(json, "version")) != TRAINER_VERSION)
            s = gma_fail(GMA_ERR_FORMAT, "%s: is not the state of a trainer of version %d", path,
                         (int)TRAINER_VERSION);
        const char *bad = s == GMA_OK ? wrong_in_trainer(json) : NULL;
        if (bad) s = gma_fail(GMA_ERR_FORMAT, "%s: %s is missing or of the wrong type", path, bad);
    }
    if (s == GMA_OK) {
        p->step = json_integer_value(json_object_get(json, "step"));
        p->train_tokens = json_integer_value(json_object_get(json, "train_tokens"));
        p->val_step = json_integer_value(json_object_get(json, "val_step"));
        const char *sum = json_string_value(json_object_get(json, "train_checksum"));
        p->train_checksum = sum ? strtoull(sum, NULL, 16) : 0;
        const json_t *tokens = json_object_get(json, "tokens"); /* newer, as val_accuracy is */
        p->tokens = json_is_integer(tokens) ? json_integer_value(tokens) : -1;
        p->val_accuracy = number_of(json, "val_accuracy");
        p->loss = number_of(json, "loss");
        p->val_loss = number_of(json, "val_loss");
        p->best_val_loss = number_of(json, "best_val_loss");
        if (p->step < 0) s = gma_fail(GMA_ERR_FORMAT, "%s: step is negative", path);
    }
    json_decref(json);
    free(path);
    return s;
}

static gma_status write_optimizer(const char *folder, const gmal_adamw *opt) {
    const gmal_layout *l = opt->layout;
    const int n = l->param_count;
    gma_named_tensor *named = malloc(2 * (size_t)n * sizeof *named);
    char(*names)[96] = malloc(2 * (size_t)n * sizeof *names);
    char *path = gmal_path_join(folder, "optimizer.safetensors");
    gma_status s = named && names && path ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a checkpoint");
    int count = 0;
    for (int i = 0; i < 2 * n && s == GMA_OK; i++) {
        const gmal_param *p = &l->params[i % n];
        if (p->fixed) continue;
        snprintf(names[count], sizeof names[count], "%s.%s", i < n ? "m" : "v", p->name);
        named[count].name = names[count];
        named[count++].tensor = gma_tensor_of((i < n ? opt->m : opt->v) + p->offset, GMA_F32, p->rank, p->shape[0],
                                              p->shape[1], p->shape[2], 1);
    }
    if (s == GMA_OK) s = gma_safetensors_save(path, named, count, NULL, 0);
    free(path);
    free(names);
    free(named);
    return s;
}

gma_status gmal_run_save_last(gmal_run_folder *run, const gma_lm *lm, const gmal_adamw *opt, const gmal_progress *p) {
    gmal_folder f;
    gma_status s = gmal_folder_begin(&f, run->last);
    if (s != GMA_OK) return s;
    s = gmal_model_write(lm, f.temp, GMA_F32);
    if (s == GMA_OK) s = write_optimizer(f.temp, opt);
    if (s == GMA_OK) s = write_trainer(f.temp, p);
    if (s != GMA_OK) {
        gmal_folder_abandon(&f);
        return s;
    }
    s = gmal_folder_commit(&f);
    if (s == GMA_OK) run->saved = 1;
    return s;
}

gma_status gmal_run_save_best(gmal_run_folder *run, const gma_lm *lm, gma_dtype dtype) {
    const gma_status s = gma_lm_save(lm, run->best, dtype);
    if (s == GMA_OK) run->saved = 1;
    return s;
}

gma_status gmal_run_load_last(gmal_run_folder *run, const gma_settings *settings, gma_lm **lm, gmal_adamw *opt,
                              gmal_progress *p) {
    *lm = NULL;
    struct stat st;
    gma_status s = gmal_folder_recover(run->last);
    if (s == GMA_OK && lstat(run->last, &st) != 0)
        s = gma_fail(GMA_ERR_IO, "%s: there is no checkpoint to resume from", run->last);
    if (s == GMA_OK) s = gma_lm_load(run->last, lm);
    if (s != GMA_OK) return s;
    const gmal_field *f = gmal_settings_model_difference(&(*lm)->layout->c, &settings->model);
    if (f) {
        char is[sizeof settings->model.pattern], asked[sizeof settings->model.pattern];
        gmal_field_get(f, &(*lm)->layout->c, is, sizeof is);
        gmal_field_get(f, &settings->model, asked, sizeof asked);
        s = gma_fail(GMA_ERR_SHAPE, "%s: %s is %s in the checkpoint and %s in the settings", run->last, f->name, is,
                     asked);
    }
    if (s == GMA_OK) {
        (*lm)->layout->c.dropout = settings->model.dropout; /* not a matter of shape */
        s = gmal_adamw_create((*lm)->layout, opt);
    }
    char *path = gmal_path_join(run->last, "optimizer.safetensors");
    if (s == GMA_OK && !path) s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
    if (s == GMA_OK) s = gmal_values_read((*lm)->layout, path, "m.", 1, opt->m);
    if (s == GMA_OK) s = gmal_values_read((*lm)->layout, path, "v.", 1, opt->v);
    if (s == GMA_OK) s = read_trainer(run->last, p);
    free(path);
    return s;
}
