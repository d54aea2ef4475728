/* What the tests of inspections share: a folder, a text with something of everything, small models. */
#ifndef TEST_INSPECT_TESTING_H
#define TEST_INSPECT_TESTING_H

#include "support/folder.h"

#include "gma/data.h"
#include "gma/inspect.h"
#include "gma/train.h"

/* 900 bytes with two articles and something that is not UTF-8. */
static inline const char *text_file(void) {
    static char text[1000];
    strcpy(text, " = First = \n");
    while (strlen(text) < 400)
        strcat(text, "The 12 cats, and a dog. ");
    strcat(text, "\n = = Part = = \n = Second \xff = \n");
    while (strlen(text) < 900)
        strcat(text, "Other words!\n");
    return put_text("text", text);
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
