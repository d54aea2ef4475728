#include "cli/lm_settings.h"

#include <stdlib.h>
#include <string.h>

static void *need(void *p) {
    if (p == NULL) {
        fprintf(stderr, "gma: out of memory\n");
        exit(1);
    }
    return p;
}

void gma_cli_settings_build(gma_cli_settings *s, const gma_cli_option *own, int own_count) {
    const int n = gma_settings_count();
    const char *group = "";
    gma_settings *defaults = NULL;
    memset(s, 0, sizeof *s);
    s->options = need(calloc((size_t)(own_count + 2 * n), sizeof *s->options));
    s->names = need(calloc((size_t)n, sizeof *s->names));
    s->defaults = need(calloc((size_t)n, sizeof *s->defaults));
    s->values = need(calloc((size_t)n, sizeof *s->values));
    s->flags = need(calloc((size_t)n, sizeof *s->flags));
    if (gma_settings_create("default", &defaults) != GMA_OK) {
        need(NULL);
    }
    memcpy(s->options, own, (size_t)own_count * sizeof *own);
    s->count = own_count;
    for (int i = 0; i < n; i++) {
        gma_setting_info info;
        if (gma_settings_info(i, &info) != GMA_OK) {
            continue;
        }
        if (strcmp(group, info.group) != 0) {
            group = info.group;
            s->options[s->count++] = (gma_cli_option)GMA_CLI_GROUP(info.group);
        }
        snprintf(s->names[i], sizeof s->names[i], "%s", info.name);
        for (char *c = s->names[i]; *c != '\0'; c++) {
            *c = *c == '_' ? '-' : *c;
        }
        gma_settings_get(defaults, info.name, s->defaults[i], sizeof s->defaults[i]);
        gma_cli_option *o = &s->options[s->count++];
        o->name = s->names[i];
        o->type = info.is_flag ? GMA_CLI_FLAG : GMA_CLI_STRING;
        o->hint = info.hint;
        const int open = info.is_flag && strcmp(s->defaults[i], "auto") == 0; /* its help says what that means */
        o->def = open ? "1" : s->defaults[i][0] == '\0' ? NULL : s->defaults[i];
        o->help = info.help;
        o->value = info.is_flag ? (void *)&s->flags[i] : (void *)&s->values[i];
    }
    gma_settings_destroy(defaults);
}

void gma_cli_settings_free(gma_cli_settings *s) {
    free(s->options);
    free(s->names);
    free(s->defaults);
    free(s->values);
    free(s->flags);
    memset(s, 0, sizeof *s);
}

int gma_cli_settings_given(const gma_cli_settings *s, const char *name) {
    for (int i = 0; i < s->count; i++) {
        if (s->options[i].type != GMA_CLI_HEADING && strcmp(s->options[i].name, name) == 0) {
            return s->options[i].given;
        }
    }
    return 0;
}

int gma_cli_settings_apply(const gma_cli_settings *s, const gma_cli_spec *spec, gma_settings *settings) {
    const int n = gma_settings_count();
    for (int i = 0; i < n; i++) {
        gma_setting_info info;
        if (gma_settings_info(i, &info) != GMA_OK || !gma_cli_settings_given(s, s->names[i])) {
            continue;
        }
        const char *value = info.is_flag ? (s->flags[i] ? "1" : "0") : s->values[i];
        if (gma_settings_set(settings, info.name, value) != GMA_OK) {
            const char *why = gma_last_error();
            const size_t length = strlen(info.name);
            if (strncmp(why, info.name, length) == 0 && (why[length] == ':' || why[length] == ' ')) { /* once is enough */
                return gma_cli_misuse(spec, "--%s%s", s->names[i], why + length);
            }
            return gma_cli_misuse(spec, "--%s: %s", s->names[i], why);
        }
    }
    return -1;
}
