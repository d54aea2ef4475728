#define _POSIX_C_SOURCE 200809L
#include "train/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gma/io.h"
#include "io/replace.h"

static const char trainer_format[] = "gma-trainer";
enum { TRAINER_VERSION = 1 };

/* ---- Paths ---------------------------------------------------------------------------------------------------- */

gma_status gmal_run_open(const char *path, gmal_run_folder *run) {
    memset(run, 0, sizeof *run);
    run->path = gmal_path_join(path, "");
    run->last = gmal_path_join(path, "last");
    run->best = gmal_path_join(path, "best");
    run->config = gmal_path_join(path, "config.json");
    run->metrics_path = gmal_path_join(path, "metrics.jsonl");
    if (run->path && run->last && run->best && run->config && run->metrics_path) return GMA_OK;
    gmal_run_close(run);
    return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for paths");
}

void gmal_run_close(gmal_run_folder *run) {
    if (run->metrics) fclose(run->metrics);
    free(run->path);
    free(run->last);
    free(run->best);
    free(run->config);
    free(run->metrics_path);
    memset(run, 0, sizeof *run);
}

static int there(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

int gmal_run_exists(const gmal_run_folder *run) {
    return there(run->config) || there(run->metrics_path) || there(run->last) || there(run->best);
}

/* Removes a checkpoint folder: plain files only, as we write them. */
static void remove_checkpoint(const char *path) {
    DIR *d = opendir(path);
    if (!d) return;
    const struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        char *file = e->d_name[0] == '.' ? NULL : gmal_path_join(path, e->d_name);
        if (file) unlink(file);
        free(file);
    }
    closedir(d);
    rmdir(path);
}

/* mkdir -p; *made when the last part did not exist. */
static gma_status make_folder(const char *path, int *made) {
    char *copy = gmal_path_join(path, "");
    if (!copy) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
    int error = 0;
    for (char *p = copy + 1; *p && !error; p++) {
        if (*p != '/') continue;
        *p = 0;
        const int bad = mkdir(copy, 0777) != 0;
        *made = !bad;
        struct stat st;
        if (bad && (errno != EEXIST || stat(copy, &st) != 0)) error = errno;
        if (bad && !error && !S_ISDIR(st.st_mode)) error = ENOTDIR;
        *p = '/';
    }
    free(copy);
    return error ? gma_fail(GMA_ERR_IO, "%s: cannot be made: %s", path, strerror(error)) : GMA_OK;
}

/* ---- Start and end -------------------------------------------------------------------------------------------- */

/* Keeps the lines of metrics.jsonl up to a step: those of steps that were not saved would appear twice. */
static gma_status cut_metrics(const char *path, int64_t keep_until) {
    FILE *f = fopen(path, "rb");
    gmal_replace r;
    char *line = NULL;
    size_t room = 0;
    if (!f) return GMA_OK;
    gma_status s = gmal_replace_begin(&r, path);
    while (s == GMA_OK && getline(&line, &room, f) > 0) {
        json_t *json = json_loads(line, 0, NULL);
        const json_t *step = json_object_get(json, "step");
        if (json_is_integer(step) && json_integer_value(step) <= keep_until) fputs(line, r.file);
        json_decref(json);
    }
    free(line);
    fclose(f);
    return s == GMA_OK ? gmal_replace_commit(&r) : s;
}

gma_status gmal_run_start(gmal_run_folder *run, const gma_settings *settings, int force, int64_t keep_until) {
    gma_status s = make_folder(run->path, &run->made);
    if (s != GMA_OK) return s;
    run->saved = keep_until >= 0;
    if (force) {
        remove_checkpoint(run->last);
        remove_checkpoint(run->best);
        unlink(run->metrics_path);
    }
    json_t *json = gmal_settings_to_json(settings);
    s = json ? gmal_json_write(run->config, json) : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %s", run->config);
    json_decref(json);
    if (s == GMA_OK && keep_until >= 0) s = cut_metrics(run->metrics_path, keep_until);
    if (s != GMA_OK) return s;
    run->metrics = fopen(run->metrics_path, keep_until >= 0 ? "ab" : "wb");
    if (!run->metrics) return gma_fail(GMA_ERR_IO, "%s: cannot be written: %s", run->metrics_path, strerror(errno));
    return GMA_OK;
}

void gmal_run_clean(gmal_run_folder *run) {
    if (run->metrics) fclose(run->metrics);
    run->metrics = NULL;
    if (run->saved) return;
    unlink(run->metrics_path);
    unlink(run->config);
    if (run->made) rmdir(run->path);
}

gma_status gmal_run_log(gmal_run_folder *run, json_t *line) {
    char *text = line ? json_dumps(line, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(line);
    if (!text) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for a line", run->metrics_path);
    const int bad = fprintf(run->metrics, "%s\n", text) < 0 || fflush(run->metrics) != 0;
    free(text);
    return bad ? gma_fail(GMA_ERR_IO, "%s: cannot be written: %s", run->metrics_path, strerror(errno)) : GMA_OK;
}

/* ---- Checkpoints ---------------------------------------------------------------------------------------------- */

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static double number_of(const json_t *json, const char *key) {
    const json_t *x = json_object_get(json, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

static gma_status write_trainer(const char *folder, const gmal_progress *p) {
    char *path = gmal_path_join(folder, "trainer.json");
    json_t *json = json_pack("{s:s, s:i, s:I, s:I, s:I, s:o, s:o, s:o}", "format", trainer_format, "version",
                             (int)TRAINER_VERSION, "step", (json_int_t)p->step, "train_tokens",
                             (json_int_t)p->train_tokens, "val_step", (json_int_t)p->val_step, "loss",
                             number(p->loss), "val_loss", number(p->val_loss), "best_val_loss",
                             number(p->best_val_loss));
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
            json_integer_value(json_object_get(json, "version")) != TRAINER_VERSION ||
            !json_is_integer(json_object_get(json, "step")))
            s = gma_fail(GMA_ERR_FORMAT, "%s: is not the state of a trainer of version %d", path,
                         (int)TRAINER_VERSION);
    }
    if (s == GMA_OK) {
        p->step = json_integer_value(json_object_get(json, "step"));
        p->train_tokens = json_integer_value(json_object_get(json, "train_tokens"));
        p->val_step = json_integer_value(json_object_get(json, "val_step"));
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
    for (int i = 0; i < 2 * n && s == GMA_OK; i++) {
        const gmal_param *p = &l->params[i % n];
        snprintf(names[i], sizeof names[i], "%s.%s", i < n ? "m" : "v", p->name);
        named[i].name = names[i];
        named[i].tensor = gma_tensor_of((i < n ? opt->m : opt->v) + p->offset, GMA_F32, p->rank, p->shape[0],
                                        p->shape[1], p->shape[2], 1);
    }
    if (s == GMA_OK) s = gma_safetensors_save(path, named, 2 * n, NULL, 0);
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
    gma_status s = gmal_folder_recover(run->last);
    if (s == GMA_OK && !there(run->last))
        s = gma_fail(GMA_ERR_IO, "%s: there is no checkpoint to resume from", run->last);
    if (s == GMA_OK) s = gma_lm_load(run->last, lm);
    if (s != GMA_OK) return s;
    const gmal_field *f = gmal_settings_model_difference(&(*lm)->layout->c, &settings->model);
    if (f) {
        char is[64], asked[64];
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
    if (s == GMA_OK) s = gmal_values_read((*lm)->layout, path, "m.", opt->m);
    if (s == GMA_OK) s = gmal_values_read((*lm)->layout, path, "v.", opt->v);
    if (s == GMA_OK) s = read_trainer(run->last, p);
    free(path);
    return s;
}
