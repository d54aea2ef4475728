#define _DEFAULT_SOURCE /* flock */
#include "train/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/replace.h"

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

json_t *gmal_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

gma_status gmal_run_log(gmal_run_folder *run, json_t *line) {
    char *text = line ? json_dumps(line, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(line);
    if (!text) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for a line", run->metrics_path);
    const int bad = fprintf(run->metrics, "%s\n", text) < 0 || fflush(run->metrics) != 0;
    free(text);
    return bad ? gma_fail(GMA_ERR_IO, "%s: cannot be written: %s", run->metrics_path, strerror(errno)) : GMA_OK;
}
