/* A folder of the test's own under /tmp, and files in it. Include after a feature macro that declares mkdtemp. */
#ifndef GMA_TESTS_SUPPORT_FOLDER_H
#define GMA_TESTS_SUPPORT_FOLDER_H

#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/gma-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static inline int remove_folder(void **state) {
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0;
}

/* The path of `name` in the folder; 64 results live at a time. */
static inline char *in_folder(const char *name) {
    static char paths[64][320];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
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

#endif
