/* What the tests of inspections share: a folder, a text with something of everything, small models. */
#ifndef TEST_INSPECT_TESTING_H
#define TEST_INSPECT_TESTING_H

#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gma/data.h"
#include "gma/inspect.h"
#include "gma/train.h"

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/gma-test-inspect-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static inline int remove_folder(void **state) {
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0;
}

/* The path of a file of that name; eight live at a time. */
static inline const char *in_folder(const char *name) {
    static char path[8][260];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static inline const char *put_bytes(const char *name, const void *bytes, size_t size) {
    const char *p = in_folder(name);
    FILE *f = fopen(p, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
    return p;
}

static inline const char *put(const char *name, const char *text) { return put_bytes(name, text, strlen(text)); }

/* The whole file, with a 0 at its end; free() it. */
static inline char *slurp(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *size, f), *size);
    text[*size] = 0;
    fclose(f);
    return text;
}

/* 900 bytes with two articles and something that is not UTF-8. */
static inline const char *text_file(void) {
    static char text[1000];
    strcpy(text, " = First = \n");
    while (strlen(text) < 400)
        strcat(text, "The 12 cats, and a dog. ");
    strcat(text, "\n = = Part = = \n = Second \xff = \n");
    while (strlen(text) < 900)
        strcat(text, "Other words!\n");
    return put("text", text);
}

/* Two layers, contexts of 50 bytes. */
static inline gma_lm *seeded_model(const char *mixer, int forget, int kv_heads, int components, int seed) {
    gma_lm_config c;
    gma_lm *lm;
    TST_OK(gma_lm_config_init(&c));
    c.layers = 2;
    c.width = 32;
    c.heads = 4;
    c.kv_heads = kv_heads;
    c.context = 50;
    c.forget_gate = forget;
    gma_mixer_kind kind;
    TST_OK(gma_mixer_kind_from_name(mixer, &kind));
    c.mixer = (int32_t)kind;
    if (kind == GMA_MIXER_GMA)
        c.components = components;
    else
        c.logit_scale = 0;
    TST_OK(gma_lm_create(&c, (uint64_t)seed, &lm));
    return lm;
}

static inline gma_lm *model(const char *mixer, int forget) { return seeded_model(mixer, forget, 2, 6, 3); }

static inline gma_inspection *look(const gma_lm *lm, const gma_inspect_options *o) {
    gma_inspection *n;
    TST_OK(gma_inspect(lm, text_file(), o, &n));
    return n;
}

#endif
