/* The settings of a training run as command-line options, made from the library's own table of them. */
#ifndef GMA_CLI_LM_SETTINGS_H
#define GMA_CLI_LM_SETTINGS_H

#include "cli/options.h"
#include "gma/train.h"

typedef struct gma_cli_settings {
    gma_cli_option *options; /* own rows, then a heading and the rows of each group */
    int count;
    char (*names)[40], (*defaults)[40];
    const char **values;
    int *flags;
} gma_cli_settings;

/* own: rows to put first. Exits with a message when there is no memory. */
void gma_cli_settings_build(gma_cli_settings *s, const gma_cli_option *own, int own_count);
void gma_cli_settings_free(gma_cli_settings *s);

/* Copies a parsed own row's `given` back: the table holds copies. */
int gma_cli_settings_given(const gma_cli_settings *s, const char *name);

/* Every option that was given, into `settings`. Returns -1, or 2 after a message. */
int gma_cli_settings_apply(const gma_cli_settings *s, const gma_cli_spec *spec, gma_settings *settings);

#endif
