/* gma bench - finds what is to be measured. */
#include <string.h>

#include "cli/bench.h"
#include "cli/options.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} subjects[] = {
    {"op", "one mixer: forward, forward and backward, or decoding, at several lengths", gma_bench_op},
    {"train", "training steps of a language model: tokens a second, and where the time goes", gma_bench_train},
};

enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

static void print_help(FILE *out) {
    fputs("gma bench - measure speed and memory, beside what this machine can do at best\n\nUsage: gma bench WHAT [options]\n\n",
          out);
    for (int i = 0; i < SUBJECTS; i++) {
        fprintf(out, "  %-10s %s\n", subjects[i].name, subjects[i].summary);
    }
    fputs("\n  gma bench WHAT --help    what it takes\n", out);
}

int gma_cmd_bench(int argc, char **argv) {
    const gma_cli_spec spec = {.verb = "bench"};
    if (argc < 2) {
        return gma_cli_misuse(&spec, "expects what to measure");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return 0;
    }
    for (int i = 0; i < SUBJECTS; i++) {
        if (strcmp(argv[1], subjects[i].name) == 0) {
            return subjects[i].run(argc - 1, argv + 1);
        }
    }
    if (argv[1][0] == '-') {
        return gma_cli_misuse(&spec, "there is no option %s", argv[1]);
    }
    return gma_cli_misuse(&spec, "does not know how to measure \"%s\"", argv[1]);
}
