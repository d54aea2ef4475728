/* The program gma: finds the verb. Everything a verb needs to know about options is in cli/options.h. */
#define _XOPEN_SOURCE 700 /* SIGXFSZ */

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/options.h"

typedef struct verb {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} verb;

static const verb verbs[] = {
#define X(name, summary) {#name, summary, gma_cmd_##name},
#include "cli/cmds.inc"
#undef X
};

static void print_help(FILE *out) {
    fputs("gma - Gaussian Mixture Attention: train, evaluate, sample from and look inside sequence models\n\n"
          "Usage: gma VERB [options]\n\n",
          out);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        fprintf(out, "  %-10s %s\n", verbs[i].name, verbs[i].summary);
    }
    fputs("\n  gma VERB --help    what a verb takes\n"
          "  gma --version      the version\n\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage.\n",
          out);
}

static const verb *find(const char *name) {
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            return &verbs[i];
        }
    }
    return NULL;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (strcmp(name, "help") == 0 && argc == 2)) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("gma %s\n", gma_version());
        return 0;
    }
    if (strcmp(name, "help") == 0) {
        const verb *v = find(argv[2]);
        if (v != NULL) {
            char help[] = "--help";
            char *ask[] = {argv[2], help, NULL};
            return v->run(2, ask);
        }
        name = argv[2];
    }
    const verb *v = find(name);
    if (v == NULL) {
        fprintf(stderr, "gma: there is no %s \"%s\" (gma --help lists the verbs)\n", name[0] == '-' ? "option" : "verb",
                name);
        return 2;
    }
    return v->run(argc - 1, argv + 1);
}

int main(int argc, char **argv) {
    /* A file-size limit then ends in an error message and a removed temporary file instead of a dead process. */
    signal(SIGXFSZ, SIG_IGN);
    int code = dispatch(argc, argv);
    /* A full disk or a closed pipe must not look like success. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "gma: the output could not be written\n");
        return code != 0 ? code : 1;
    }
    return code;
}
