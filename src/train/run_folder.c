#define _DEFAULT_SOURCE /* flock */
#include "train/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gma/io.h"
#include "io/replace.h"

static const char trainer_format[] = "gma-trainer";
enum { TRAINER_VERSION = 1 };

/* ---- Paths ---------------------------------------------------------------------------------------------------- */

gma_status gmal_run_open(const char *path, gmal_run_folder *run) {
    memset(run, 0, sizeof *run);
    run->lock = -1;
    run->path = gmal_path_join(path, "");
    run->last = gmal_path_join(path, "last");
    run->best = gmal_path_join(path, "best");
    run->config = gmal_path_join(path, "config.json");
    run->metrics_path = gmal_path_join(path, "metrics.jsonl");
    run->events_path = gmal_path_join(path, "events.out.tfevents.gma"); /* TensorBoard looks for "tfevents" */
    run->lock_path = gmal_path_join(path, ".lock");
    if (run->path && run->last && run->best && run->config && run->metrics_path && run->events_path && run->lock_path)
        return GMA_OK;
    gmal_run_close(run);
    return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for paths");
}

/* The name goes while the lock is still held: whoever opened it before finds out that it is not the lock any more. */
static void unlock(gmal_run_folder *run) {
    if (run->lock < 0 || !run->path) return;
    unlink(run->lock_path);
    close(run->lock);
    run->lock = -1;
}

void gmal_run_close(gmal_run_folder *run) {
    if (run->metrics) fclose(run->metrics);
    unlock(run);
    free(run->lock_path);
    free(run->path);
    free(run->last);
    free(run->best);
    free(run->config);
    free(run->metrics_path);
    free(run->events_path);
    memset(run, 0, sizeof *run);
    run->lock = -1;
}

static int there(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

/* last/ and best/, and the forms in which a kill may leave them (io/replace.h). */
static const char *const checkpoint_folders[] = {"last", "best", "last.old", "best.old", "last.tmp", "best.tmp"};
enum { CHECKPOINT_FOLDERS = sizeof checkpoint_folders / sizeof checkpoint_folders[0], WHOLE_FOLDERS = 4 };

int gmal_run_has_checkpoint(const gmal_run_folder *run) {
    for (int i = 0; i < WHOLE_FOLDERS; i++) {
        char *path = gmal_path_join(run->path, checkpoint_folders[i]);
        const int found = path && there(path);
        free(path);
        if (found) return 1;
    }
    return 0;
}

int gmal_run_exists(const gmal_run_folder *run) {
    return there(run->config) || there(run->metrics_path) || gmal_run_has_checkpoint(run);
}

/* ---- What is ours ---------------------------------------------------------------------------------------------- */

/* A file we write into a checkpoint folder, or ".<its name>.tmp-...", which a kill left. */
static int is_checkpoint_file(const char *name) {
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors", "trainer.json",
                                        "vocab.txt",   "vocab.bpe",         "encoder.json"};
    static const char mark[] = ".tmp-";
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const size_t n = strlen(files[i]);
        if (strcmp(name, files[i]) == 0) return 1;
        if (name[0] == '.' && strncmp(name + 1, files[i], n) == 0 && strncmp(name + 1 + n, mark, sizeof mark - 1) == 0)
            return 1;
    }
    return 0;
}

/* Absent, or of the wanted kind itself, not through a link. */
static gma_status check_kind(const char *path, int folder) {
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? GMA_OK : gma_fail(GMA_ERR_IO, "%s: cannot be looked at: %s", path, strerror(errno));
    if (S_ISLNK(st.st_mode))
        return gma_fail(GMA_ERR_IO, "%s: is a symbolic link, so it is neither replaced nor removed", path);
    if (folder ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode)) return GMA_OK;
    return gma_fail(GMA_ERR_IO, "%s: is not a %s, so it is neither replaced nor removed", path,
                    folder ? "folder" : "regular file");
}

/* Goes through a checkpoint folder: checks it, or with `erase` removes it. */
static gma_status visit_checkpoint(const char *path, int erase) {
    gma_status s = check_kind(path, 1);
    if (s != GMA_OK || !there(path)) return s;
    DIR *d = opendir(path);
    if (!d) return gma_fail(GMA_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    const struct dirent *e;
    while (s == GMA_OK && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *file = gmal_path_join(path, e->d_name);
        if (!file)
            s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
        else if (!is_checkpoint_file(e->d_name))
            s = gma_fail(GMA_ERR_IO, "%s: is not of a run, and would be lost with the checkpoint; move it away", file);
        else
            s = check_kind(file, 0);
        if (s == GMA_OK && erase && unlink(file) != 0)
            s = gma_fail(GMA_ERR_IO, "%s: cannot be removed: %s", file, strerror(errno));
        free(file);
    }
    closedir(d);
    if (s == GMA_OK && erase && rmdir(path) != 0)
        s = gma_fail(GMA_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
    return s;
}

static gma_status visit_checkpoints(const gmal_run_folder *run, int erase) {
    gma_status s = GMA_OK;
    for (int i = 0; i < CHECKPOINT_FOLDERS && s == GMA_OK; i++) {
        char *path = gmal_path_join(run->path, checkpoint_folders[i]);
        s = path ? visit_checkpoint(path, erase) : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
        free(path);
    }
    return s;
}

gma_status gmal_run_check(const gmal_run_folder *run) {
    char *model = gmal_path_join(run->path, "model.safetensors");
    gma_status s = model ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
    if (s == GMA_OK && there(model))
        s = gma_fail(GMA_ERR_IO, "%s: this folder is a model, not a run; give a run a folder of its own", model);
    free(model);
    if (s == GMA_OK) s = check_kind(run->config, 0);
    if (s == GMA_OK) s = check_kind(run->metrics_path, 0);
    if (s == GMA_OK) s = check_kind(run->events_path, 0);
    return s == GMA_OK ? visit_checkpoints(run, 0) : s;
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

/* 1: locked; 0: try again, its name went meanwhile; -1: an error was set. */
static int try_lock(gmal_run_folder *run) {
    struct stat ours, named;
    const int fd = open(run->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) {
        if (errno == ENOENT) return 0;
        gma_fail(GMA_ERR_IO, "%s: cannot be written: %s", run->lock_path, strerror(errno));
        return -1;
    }
    int locked = flock(fd, LOCK_EX | LOCK_NB);
    /* A file system that knows no locks leaves it to the user not to start two runs in one folder. */
    if (locked != 0 && errno != EWOULDBLOCK && errno != EINTR) locked = 0;
    if (locked != 0) {
        close(fd);
        gma_fail(GMA_ERR_IO, "%s: another process is training in this folder", run->path);
        return -1;
    }
    if (fstat(fd, &ours) != 0 || lstat(run->lock_path, &named) != 0 || ours.st_ino != named.st_ino ||
        ours.st_dev != named.st_dev) {
        close(fd);
        return 0;
    }
    run->lock = fd;
    return 1;
}

gma_status gmal_run_lock(gmal_run_folder *run, int make) {
    for (int i = 0; i < 100; i++) {
        if (make) {
            int made = 0;
            const gma_status s = make_folder(run->path, &made);
            run->made |= made;
            if (s != GMA_OK) return s;
        }
        const int r = try_lock(run);
        if (r != 0) return r > 0 ? GMA_OK : GMA_ERR_IO;
        if (!make && !there(run->path)) break;
    }
    return gma_fail(GMA_ERR_IO, "%s: is not there", run->path);
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
    gma_status s = GMA_OK;
    run->saved = keep_until >= 0;
    run->started = 1;
    if (force) {
        s = visit_checkpoints(run, 1);
        if (s != GMA_OK) return s;
        unlink(run->metrics_path);
        unlink(run->events_path);
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
    if (run->saved || run->lock < 0) return;
    if (run->started) {
        unlink(run->metrics_path);
        unlink(run->events_path);
        unlink(run->config);
    }
    unlock(run);
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

json_t *gmal_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

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
    gma_status s = gmal_folder_recover(run->last);
    if (s == GMA_OK && !there(run->last))
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
