/* Presets: what differs from the plain defaults of the table in settings.c. */
#include <string.h>

#include "train/settings.h"

typedef struct pair {
    const char *name, *value;
} pair;

typedef struct preset {
    const char *name, *about;
    const pair *pairs;
    int count;
} preset;

static const pair paper[] = {
    {"logit_scale", "0"}, {"forget_gate", "0"}, {"output_gate", "0"}, {"conv", "0"},
    {"positions", "learned"}, {"norm", "layer"},
};

static const pair demo[] = {
    {"steps", "400"}, {"eval_every", "200"},
};

static const pair tiny[] = {
    {"layers", "2"}, {"width", "64"}, {"heads", "2"}, {"components", "16"}, {"context", "64"},
    {"batch", "8"}, {"steps", "100"}, {"warmup", "10"}, {"lr", "5e-3"}, {"eval_every", "50"}, {"eval_windows", "64"},
};

#define ROW(name, about) {#name, about, name, (int)(sizeof name / sizeof name[0])}

static const preset presets[] = {
    {"default", "every option of the mixer on: what to start from", NULL, 0},
    ROW(paper, "the operator as published: no option, learned positions, layer norm"),
    ROW(demo, "default, short enough for some minutes on two cores"),
    ROW(tiny, "seconds; to try things out"),
};
enum { COUNT = sizeof presets / sizeof presets[0] };

const char *gma_settings_preset(int i, const char **about) {
    if (i < 0 || i >= COUNT) return NULL;
    if (about) *about = presets[i].about;
    return presets[i].name;
}

gma_status gmal_settings_apply_preset(gma_settings *s, const char *name) {
    for (int i = 0; i < COUNT; i++) {
        if (strcmp(presets[i].name, name) != 0) continue;
        for (int j = 0; j < presets[i].count; j++) {
            const gma_status status = gma_settings_set(s, presets[i].pairs[j].name, presets[i].pairs[j].value);
            if (status != GMA_OK) return status;
        }
        s->components_given = 0;
        return GMA_OK;
    }
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "preset must be one of default, paper, demo, tiny, not \"%s\"", name);
}
