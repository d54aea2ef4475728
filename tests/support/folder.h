/* A folder of the test's own under /tmp, and files in it. Include after a feature macro that declares mkdtemp. */
#ifndef GMA_TESTS_SUPPORT_FOLDER_H
#define GMA_TESTS_SUPPORT_FOLDER_H

#include "support/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char test_folder[64];

static inline int make_folder(void **state) {
    (void)state;
    snprintf(test_folder, sizeof test_folder, "/tmp/gma-test-XXXXXX");
    return mkdtemp(test_folder) == NULL;
}

static inline int remove_folder(void **state) {
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", test_folder);
    return system(command) != 0;
}

/* The path of `name` in the folder; 64 results live at a time. */
static inline char *in_folder(const char *name) {
    static char paths[64][320];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", test_folder, name);
    return path;
}

static inline char *put_file(const char *name, const void *data, size_t n) {
    char *path = in_folder(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline char *put_text(const char *name, const char *text) { return put_file(name, text, strlen(text)); }

/* How many files and folders are in a folder. */
static inline int entries_in(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return count;
}

/* The whole file, malloc'ed, with a 0 at its end. */
static inline char *get_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) tst_fail("%s cannot be opened", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *n, f), *n);
    data[*n] = 0;
    fclose(f);
    return data;
}

static inline void assert_same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = get_file(in_folder(a), &n), *y = get_file(in_folder(b), &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

#endif
