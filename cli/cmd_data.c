/* gma data - finds what is to be made. */
#include <string.h>

#include "cli/data.h"
#include "cli/options.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} works[] = {
    {"learn", "a vocabulary (words or byte-pair encoding) from text", gma_data_cli_learn},
    {"encode", "a text into a token file", gma_data_cli_encode},
    {"decode", "a token file into text", gma_data_cli_decode},
    {"info", "check a token file and say what it holds", gma_data_cli_info},
    {"listops", "ListOps of the Long Range Arena: the official distribution, or a TSV file", gma_data_cli_listops},
    {"imdb", "IMDb reviews byte by byte, as in the Long Range Arena's Text", gma_data_cli_imdb},
    {"mqar", "multi-query associative recall", gma_data_cli_mqar},
};

enum { WORKS = sizeof works / sizeof works[0] };

static void print_help(FILE *out) {
    fputs("gma data - make, read and describe token files and data sets\n\nUsage: gma data WHAT [options]\n\n", out);
    for (int i = 0; i < WORKS; i++) {
        fprintf(out, "  %-10s %s\n", works[i].name, works[i].summary);
    }
    fputs("\n  gma data WHAT --help    what it takes\n", out);
}

int gma_cmd_data(int argc, char **argv) {
    const gma_cli_spec spec = {.verb = "data"};
    if (argc < 2) {
        return gma_cli_misuse(&spec, "expects what to do");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return 0;
    }
    for (int i = 0; i < WORKS; i++) {
        if (strcmp(argv[1], works[i].name) == 0) {
            return works[i].run(argc - 1, argv + 1);
        }
    }
    if (argv[1][0] == '-') {
        return gma_cli_misuse(&spec, "there is no option %s", argv[1]);
    }
    return gma_cli_misuse(&spec, "does not know what \"%s\" is", argv[1]);
}
