/* Write beside, flush, rename. See replace.h. */
#define _GNU_SOURCE /* renameat2 */

#include "io/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "<a><b>", or NULL. */
static char *join(const char *a, size_t a_length, const char *b) {
    size_t n = strlen(b);
    char *s = malloc(a_length + n + 1);
    if (s != NULL) {
        memcpy(s, a, a_length);
        memcpy(s + a_length, b, n + 1);
    }
    return s;
}

static gma_status no_memory(const char *path) { return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: out of memory", path); }

static gma_status failed(const char *path, const char *what) {
    return gma_fail(GMA_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* Bytes of `path` up to and with the last slash. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : (size_t)(slash - path) + 1;
}

/* The folder that holds `path`, or NULL; the caller frees it. */
static char *folder_of(const char *path) {
    const size_t n = folder_length(path);
    return n == 0 ? join(".", 1, "") : join(path, n, "");
}

/* Make a rename in the folder that holds `path` survive a power cut. File systems that cannot (EINVAL) are let be. */
static int flush_folder_of(const char *path) {
    char *folder = folder_of(path);
    if (folder == NULL) {
        errno = ENOMEM;
        return -1;
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    if (fd < 0) {
        return -1;
    }
    int bad = fsync(fd) != 0 && errno != EINVAL;
    close(fd);
    return bad ? -1 : 0;
}

/* ---- Files -------------------------------------------------------------------------------------------------- */

/* Where a file of that name really goes: a link keeps pointing at the new contents, and only a regular file may be
 * replaced (renaming over a device would destroy it). */
static gma_status target_of(const char *path, char **target) {
    struct stat st;
    *target = NULL;
    if (path[0] == '\0') {
        return gma_fail(GMA_ERR_IO, "the name of the file to write is empty");
    }
    if (stat(path, &st) == 0) {
        if (!S_ISREG(st.st_mode)) {
            return gma_fail(GMA_ERR_IO, "%s: is not a regular file, so it is not replaced", path);
        }
        *target = realpath(path, NULL);
    } else if (errno == ENOENT) {
        *target = join(path, strlen(path), "");
    } else {
        return failed(path, "write");
    }
    return *target == NULL ? no_memory(path) : GMA_OK;
}

int gmal_replace_nameless = 1;

/* Names for the temporary file, one after the other, until `make` can use one. Returns what it returned, -1 with errno. */
static int with_temp_name(gmal_replace *r, int (*make)(const gmal_replace *r)) {
    static const char pattern[] = ".tmp-";
    const size_t folder = folder_length(r->path), size = strlen(r->path) + sizeof pattern + 32;
    r->temp = malloc(size);
    if (r->temp == NULL) {
        errno = ENOMEM;
        return -1;
    }
    int got = -1;
    for (unsigned attempt = 0; attempt < 1000; attempt++) {
        snprintf(r->temp, size, "%.*s.%s%s%ld.%u", (int)folder, r->path, r->path + folder, pattern, (long)getpid(), attempt);
        got = make(r);
        if (got >= 0 || errno != EEXIST) {
            break;
        }
    }
    if (got < 0) {
        const int why = errno;
        free(r->temp);
        r->temp = NULL;
        errno = why;
    }
    return got;
}

static int open_named(const gmal_replace *r) { return open(r->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }

#ifdef O_TMPFILE
/* A file without a name, which a kill takes with it. -1 where the file system has none, or nothing could name it later. */
static int open_nameless(const gmal_replace *r) {
    char *folder = folder_of(r->path);
    const int fd = folder != NULL && access("/proc/self/fd", X_OK) == 0 ? open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(folder);
    return fd;
}

static int name_it(const gmal_replace *r) {
    char place[40];
    snprintf(place, sizeof place, "/proc/self/fd/%d", fileno(r->file));
    return linkat(AT_FDCWD, place, AT_FDCWD, r->temp, AT_SYMLINK_FOLLOW);
}
#else
static int open_nameless(const gmal_replace *r) {
    (void)r;
    return -1;
}

static int name_it(const gmal_replace *r) {
    (void)r;
    return -1;
}
#endif

static void unlink_temp(const gmal_replace *r) {
    if (r->temp != NULL) {
        unlink(r->temp);
    }
}

static void release(gmal_replace *r) {
    free(r->path);
    free(r->temp);
    *r = (gmal_replace){NULL, NULL, NULL};
}

gma_status gmal_replace_begin(gmal_replace *r, const char *path) {
    *r = (gmal_replace){NULL, NULL, NULL};
    gma_status status = target_of(path, &r->path);
    if (status != GMA_OK) {
        return status;
    }
    int fd = gmal_replace_nameless ? open_nameless(r) : -1;
    if (fd < 0) {
        fd = with_temp_name(r, open_named);
    }
    if (fd < 0) {
        status = failed(path, "write");
        release(r);
        return status;
    }
    r->file = fdopen(fd, "wb");
    if (r->file == NULL) {
        status = failed(path, "write");
        close(fd);
        unlink_temp(r);
        release(r);
    }
    return status;
}

void gmal_replace_abandon(gmal_replace *r) {
    if (r->file != NULL) {
        fclose(r->file);
        unlink_temp(r);
    }
    release(r);
}

gma_status gmal_replace_commit(gmal_replace *r) {
    int bad = fflush(r->file) != 0 || ferror(r->file) || fsync(fileno(r->file)) != 0 ||
              (r->temp == NULL && with_temp_name(r, name_it) != 0);
    if (bad) {
        gma_status status = failed(r->path, "write");
        gmal_replace_abandon(r);
        return status;
    }
    bad = fclose(r->file) != 0;
    r->file = NULL;
    gma_status status = GMA_OK;
    if (bad || rename(r->temp, r->path) != 0) {
        status = failed(r->path, "write");
        unlink_temp(r);
    } else if (flush_folder_of(r->path) != 0) {
        status = failed(r->path, "flush the folder of this file");
    }
    release(r);
    return status;
}

gma_status gmal_replace_file(const char *path, const void *data, size_t bytes) {
    gmal_replace r;
    gma_status status = gmal_replace_begin(&r, path);
    if (status != GMA_OK) {
        return status;
    }
    if (bytes > 0 && fwrite(data, 1, bytes, r.file) != bytes) {
        status = failed(path, "write");
        gmal_replace_abandon(&r);
        return status;
    }
    return gmal_replace_commit(&r);
}

/* ---- Folders ------------------------------------------------------------------------------------------------ */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

static int remove_tree(const char *path) {
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? 0 : -1;
    }
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int flush_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
    (void)where;
    if (kind == FTW_SL || !(S_ISREG(st->st_mode) || S_ISDIR(st->st_mode))) {
        return 0;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    int bad = fsync(fd) != 0 && errno != EINVAL;
    close(fd);
    return bad ? -1 : 0;
}

static void release_folder(gmal_folder *f) {
    free(f->path);
    free(f->temp);
    free(f->old);
    *f = (gmal_folder){NULL, NULL, NULL};
}

static gma_status name_folder(gmal_folder *f, const char *path) {
    size_t n = strlen(path);
    *f = (gmal_folder){NULL, NULL, NULL};
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    if (n == 0 || path[n - 1] == '/' || (path[n - 1] == '.' && (n == 1 || path[n - 2] == '/' || path[n - 2] == '.'))) {
        return gma_fail(GMA_ERR_IO, "\"%s\": a folder that is to be replaced needs a name of its own", path);
    }
    f->path = join(path, n, "");
    f->temp = join(path, n, ".tmp");
    f->old = join(path, n, ".old");
    if (f->path == NULL || f->temp == NULL || f->old == NULL) {
        release_folder(f);
        return no_memory(path);
    }
    return GMA_OK;
}

static gma_status recover(const gmal_folder *f) {
    struct stat st;
    if (lstat(f->path, &st) == 0 || errno != ENOENT || lstat(f->old, &st) != 0) {
        return GMA_OK;
    }
    return rename(f->old, f->path) == 0 ? GMA_OK : failed(f->path, "recover the folder from its .old form");
}

gma_status gmal_folder_recover(const char *path) {
    gmal_folder f;
    gma_status status = name_folder(&f, path);
    if (status == GMA_OK) {
        status = recover(&f);
        release_folder(&f);
    }
    return status;
}

gma_status gmal_folder_begin(gmal_folder *f, const char *path) {
    struct stat st;
    gma_status status = name_folder(f, path);
    if (status != GMA_OK) {
        return status;
    }
    status = recover(f);
    if (status == GMA_OK && stat(f->path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        status = gma_fail(GMA_ERR_IO, "%s: is not a folder", f->path);
    }
    if (status == GMA_OK && remove_tree(f->temp) != 0) {
        status = failed(f->temp, "remove what an earlier run left");
    }
    if (status == GMA_OK && mkdir(f->temp, 0777) != 0) {
        status = failed(f->temp, "create the folder");
    }
    if (status != GMA_OK) {
        release_folder(f);
    }
    return status;
}

void gmal_folder_abandon(gmal_folder *f) {
    if (f->temp != NULL) {
        remove_tree(f->temp);
    }
    release_folder(f);
}

int gmal_folder_exchange = 1;

/* 0: temp now holds the old folder; 1: the system cannot do it. */
static int exchange(const gmal_folder *f) {
#ifdef RENAME_EXCHANGE
    if (gmal_folder_exchange && renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_EXCHANGE) == 0) {
        return 0;
    }
#else
    (void)f;
#endif
    return 1;
}

static int put_in_place(const gmal_folder *f) {
    struct stat st;
    if (lstat(f->path, &st) != 0) {
        return rename(f->temp, f->path);
    }
    if (exchange(f) == 0) {
        return remove_tree(f->temp);
    }
    if (remove_tree(f->old) != 0 || rename(f->path, f->old) != 0) {
        return -1;
    }
    if (rename(f->temp, f->path) != 0) {
        int why = errno;
        if (rename(f->old, f->path) != 0) {
            return -1; /* the .old form stays, for gmal_folder_recover */
        }
        errno = why;
        return -1;
    }
    return remove_tree(f->old);
}

gma_status gmal_folder_commit(gmal_folder *f) {
    gma_status status = GMA_OK;
    if (nftw(f->temp, flush_one, 16, FTW_PHYS) != 0 || put_in_place(f) != 0) {
        status = failed(f->path, "replace the folder");
        gmal_folder_abandon(f);
        return status;
    }
    if (flush_folder_of(f->path) != 0) {
        status = failed(f->path, "flush the folder above");
    }
    release_folder(f);
    return status;
}
