/* What the tests of src/io share: a folder of their own, files written byte by byte. */
#ifndef GMA_TESTS_IO_TESTING_H
#define GMA_TESTS_IO_TESTING_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char test_folder[64];

static inline int make_test_folder(void **state) {
    (void)state;
    snprintf(test_folder, sizeof test_folder, "/tmp/gma-test-io-XXXXXX");
    return mkdtemp(test_folder) == NULL;
}

static inline int remove_test_folder(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", test_folder);
    return system(command) != 0;
}

/* The path of `name` in the test folder; four results live at a time. */
static inline const char *in_folder(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", test_folder, name);
    return path;
}

static inline int entries_in(const char *folder) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int count = 0;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(dir);
    return count;
}

static inline void write_bytes(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* A safetensors file with that header and `bytes` bytes of data. */
static inline void write_header(const char *path, const char *header, const void *data, size_t bytes) {
    size_t n = strlen(header);
    char *all = calloc(1, 8 + n + bytes);
    assert_non_null(all);
    for (int i = 0; i < 8; i++) {
        all[i] = (char)(n >> (8 * i));
    }
    memcpy(all + 8, header, n);
    if (bytes > 0) {
        memcpy(all + 8 + n, data, bytes);
    }
    write_bytes(path, all, 8 + n + bytes);
    free(all);
}

static inline char *read_bytes(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

#endif
