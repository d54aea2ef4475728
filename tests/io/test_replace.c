/* Case J8: a kill at any moment, a file-size limit or a full disk leaves the old or the new contents, whole. */
#define _GNU_SOURCE

#include "support/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "gma/io.h"
#include "io/replace.h"

enum { VALUES = 1 << 18, KILLS = 20 }; /* 1 MiB a file */

static float values[VALUES];

static gma_status save(const char *path, float value) {
    for (int i = 0; i < VALUES; i++) {
        values[i] = value;
    }
    const gma_named_tensor t = {"x", gma_tensor_of(values, GMA_F32, 1, VALUES, 0, 0, 0)};
    return gma_safetensors_save(path, &t, 1, NULL, 0);
}

/* Loads completely and holds one and the same value throughout; returns that value. */
static float load(const char *path) {
    gma_safetensors *f;
    if (gma_safetensors_open(path, &f) != GMA_OK) {
        fail_msg("%s", gma_last_error());
    }
    const gma_stored_tensor *t = gma_safetensors_find(f, "x");
    assert_non_null(t);
    assert_int_equal(t->count, VALUES);
    assert_int_equal(gma_safetensors_read(f, t, GMA_F32, values), GMA_OK);
    gma_safetensors_close(f);
    for (int i = 1; i < VALUES; i++) {
        assert_true(values[i] == values[0]);
    }
    return values[0];
}

static gma_status save_folder(const char *path, float value) {
    gmal_folder f;
    char file[320];
    gma_status status = gmal_folder_begin(&f, path);
    if (status != GMA_OK) {
        return status;
    }
    for (int i = 0; i < 2 && status == GMA_OK; i++) {
        assert_true(snprintf(file, sizeof file, "%s/%c", f.temp, "ab"[i]) < (int)sizeof file);
        status = save(file, value);
    }
    if (status != GMA_OK) {
        gmal_folder_abandon(&f);
        return status;
    }
    return gmal_folder_commit(&f);
}

static float load_folder(const char *path) {
    char file[320];
    assert_int_equal(gmal_folder_recover(path), GMA_OK);
    assert_true(snprintf(file, sizeof file, "%s/a", path) < (int)sizeof file);
    float a = load(file);
    assert_true(snprintf(file, sizeof file, "%s/b", path) < (int)sizeof file);
    assert_true(load(file) == a); /* both from the same save */
    return a;
}

/* ---- Killed ------------------------------------------------------------------------------------------------- */

static void kill_while(gma_status (*saving)(const char *, float), float (*loading)(const char *), const char *path) {
    unsigned seed = 12345;
    assert_int_equal(saving(path, 0), GMA_OK);
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (float value = 1;; value++) {
                if (saving(path, value) != GMA_OK) {
                    _exit(1);
                }
            }
        }
        seed = seed * 1103515245u + 12345u;
        struct timespec pause = {0, 1000000 + (long)(seed >> 16) % 20000 * 1000};
        nanosleep(&pause, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it had not failed by itself */
        loading(path);
    }
    assert_int_equal(saving(path, -1), GMA_OK);
    assert_true(loading(path) == -1);
}

static void test_killed_while_saving_a_file(void **state) {
    (void)state;
    kill_while(save, load, in_folder("killed"));
}

static void test_killed_while_saving_a_folder(void **state) {
    (void)state;
    char path[256];
    for (gmal_folder_exchange = 0; gmal_folder_exchange < 2; gmal_folder_exchange++) {
        snprintf(path, sizeof path, "%s/folder%d", test_folder, gmal_folder_exchange);
        kill_while(save_folder, load_folder, path);
    }
    gmal_folder_exchange = 1;
}

/* ---- Refused by the system ----------------------------------------------------------------------------------- */

static void test_file_size_limit(void **state) {
    (void)state;
    char folder[256], path[320];
    snprintf(folder, sizeof folder, "%s/limit", test_folder);
    snprintf(path, sizeof path, "%s/file", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(save(path, 1), GMA_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit half = {sizeof values / 2, sizeof values / 2};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &half);
        _exit(save(path, 2) == GMA_ERR_IO && strstr(gma_last_error(), path) != NULL ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(load(path) == 1);
    assert_int_equal(entries_in(folder), 1);
}

/* In a child: a tmpfs of 5 MiB of our own. 77 where the system does not let us have one. */
static int on_full_disk(void) {
    char path[320];
    if ((geteuid() != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        (geteuid() == 0 && unshare(CLONE_NEWNS) != 0) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", test_folder, "tmpfs", 0, "size=5m") != 0) {
        return 77;
    }
    snprintf(path, sizeof path, "%s/file", test_folder);
    if (save(path, 1) != GMA_OK || load(path) != 1) {
        return 1;
    }
    /* Leave room for half of another file. */
    FILE *filler = fopen(in_folder("filler"), "wb");
    if (filler == NULL) {
        return 2;
    }
    for (int i = 0; i < 7; i++) {
        fwrite(values, 1, sizeof values / 2, filler);
    }
    fclose(filler);
    if (save(path, 2) != GMA_ERR_IO || load(path) != 1 || entries_in(test_folder) != 2) {
        return 3;
    }
    snprintf(path, sizeof path, "%s/folder", test_folder);
    unlink(in_folder("filler"));
    unlink(in_folder("file"));
    if (save_folder(path, 3) != GMA_OK || save_folder(path, 4) != GMA_OK || load_folder(path) != 4) {
        return 4;
    }
    filler = fopen(in_folder("filler"), "wb");
    for (int i = 0; i < 3; i++) {
        fwrite(values, 1, sizeof values / 2, filler);
    }
    fclose(filler);
    if (save_folder(path, 5) != GMA_ERR_IO || load_folder(path) != 4 || entries_in(test_folder) != 2) {
        return 5;
    }
    return 0;
}

static void test_full_disk(void **state) {
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(on_full_disk());
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("no file system of our own could be mounted\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- Folders ------------------------------------------------------------------------------------------------ */

static void test_folder_names(void **state) {
    (void)state;
    static const char *const bad[] = {"", "/", ".", "..", "a/.", "a/.."};
    gmal_folder f;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(gmal_folder_begin(&f, bad[i]), GMA_ERR_IO);
    }
    put_file("plain", "x", 1);
    assert_int_equal(gmal_folder_begin(&f, in_folder("plain")), GMA_ERR_IO);
    assert_int_equal(gmal_folder_begin(&f, in_folder("missing/one")), GMA_ERR_IO);
    assert_int_equal(save_folder(in_folder("slash//"), 2), GMA_OK);
    assert_true(load_folder(in_folder("slash")) == 2);
    assert_int_equal(access(in_folder("slash.tmp"), F_OK), -1);
}

static void test_left_overs(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/kept", test_folder);
    assert_int_equal(save_folder(path, 1), GMA_OK);
    /* a kill while writing: half a folder beside it */
    assert_int_equal(mkdir(in_folder("kept.tmp"), 0700), 0);
    put_file("kept.tmp/a", "half", 4);
    assert_true(load_folder(path) == 1);
    assert_int_equal(save_folder(path, 2), GMA_OK);
    assert_true(load_folder(path) == 2);
    assert_int_equal(access(in_folder("kept.tmp"), F_OK), -1);
    /* a kill between the two moves of a system that cannot exchange */
    assert_int_equal(rename(path, in_folder("kept.old")), 0);
    assert_true(load_folder(path) == 2);
    /* abandoned: as if nothing had been */
    gmal_folder f;
    assert_int_equal(gmal_folder_begin(&f, path), GMA_OK);
    gmal_folder_abandon(&f);
    assert_true(load_folder(path) == 2);
    assert_int_equal(access(in_folder("kept.tmp"), F_OK), -1);
}

static void test_replace_file(void **state) {
    (void)state;
    size_t bytes;
    struct stat st;
    const char *path = in_folder("config.json");
    assert_int_equal(gmal_replace_file(path, "{}", 2), GMA_OK);
    assert_int_equal(gmal_replace_file(path, "", 0), GMA_OK);
    assert_int_equal(gmal_replace_file(path, "{\"a\":1}", 7), GMA_OK);
    char *data = get_file(path, &bytes);
    assert_int_equal(bytes, 7);
    assert_memory_equal(data, "{\"a\":1}", 7);
    free(data);
    /* the mode is the one every new file gets, not that of a secret temporary one */
    mode_t mask = umask(022);
    assert_int_equal(gmal_replace_file(in_folder("mode"), "x", 1), GMA_OK);
    umask(mask);
    assert_int_equal(stat(in_folder("mode"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

/* Killed while it writes, a file without a name is gone; where the system has none, the old way is what is left. */
static void test_a_kill_leaves_nothing(void **state) {
    (void)state;
    assert_int_equal(mkdir(in_folder("empty"), 0700), 0);
    const int probe = open(in_folder("empty"), O_TMPFILE | O_WRONLY, 0600);
    if (probe < 0 || access("/proc/self/fd", X_OK) != 0) {
        print_message("skipped: this file system has no files without a name, or /proc is not there\n");
        skip();
    }
    close(probe);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        gmal_replace r;
        if (gmal_replace_begin(&r, in_folder("empty/new")) == GMA_OK && fputs("half", r.file) >= 0 && fflush(r.file) == 0) {
            raise(SIGKILL);
        }
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(rmdir(in_folder("empty")), 0); /* fails where something is in it */
}

/* The same where files have names from the start. */
static void test_named_from_the_start(void **state) {
    gmal_replace_nameless = 0;
    test_killed_while_saving_a_file(state);
    test_replace_file(state);
    gmal_replace_nameless = 1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_while_saving_a_file), cmocka_unit_test(test_killed_while_saving_a_folder),
        cmocka_unit_test(test_file_size_limit),            cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_folder_names),               cmocka_unit_test(test_left_overs),
        cmocka_unit_test(test_replace_file),               cmocka_unit_test(test_a_kill_leaves_nothing),
        cmocka_unit_test(test_named_from_the_start),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
