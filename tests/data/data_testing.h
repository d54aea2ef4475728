/* A folder for files, and what stands in one. */
#ifndef GMA_TESTS_DATA_TESTING_H
#define GMA_TESTS_DATA_TESTING_H

#define _POSIX_C_SOURCE 200809L

#include "support/folder.h"

#include "gma/data.h"

static inline char *at(const char *name) { return in_folder(name); }

static inline gma_token_info info_of(const gma_token_file *f) {
    gma_token_info info = {.struct_size = sizeof info};
    TST_OK(gma_token_file_info(f, &info));
    return info;
}

/* The folder of data that may not be part of the sources (GPT-2's vocabulary, ListOps files of others), from the environment
 * variable GMA_DATA. Without it a test that needs one is skipped and says so. */
static inline const char *outside(const char *name) {
    static char path[600];
    const char *data = getenv("GMA_DATA");
    snprintf(path, sizeof path, "%s/%s", data ? data : "", name);
    if (data && access(path, R_OK) == 0) return path;
    print_message("skipped: needs %s of the folder that GMA_DATA names (%s)\n", name, data ? data : "not set");
    skip();
    return NULL;
}

static inline int has_bpe(void) {
    gma_tokenizer *t;
    const char *file = put_text("bpe-probe", "ab");
    const gma_status s = gma_tokenizer_learn(GMA_TOKENIZER_BPE, &file, 1, 257, 1, &t);
    gma_tokenizer_destroy(t);
    if (s != GMA_ERR_UNSUPPORTED) return 1;
    print_message("skipped: %s\n", gma_last_error());
    skip();
    return 0;
}

#endif
