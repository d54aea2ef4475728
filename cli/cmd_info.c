/* gma info - what this build is and what it will use here. */
#include "cli/options.h"
#include "gma/gma.h"

/* Set by the build: the program is built together with the libraries. */
#ifndef GMA_CLI_OPENMP
#define GMA_CLI_OPENMP 0
#endif
#ifndef GMA_CLI_ONEDNN
#define GMA_CLI_ONEDNN 0
#endif
#ifndef GMA_CLI_PCRE2
#define GMA_CLI_PCRE2 0
#endif
#ifndef GMA_CLI_UTF8PROC
#define GMA_CLI_UTF8PROC 0
#endif

enum { LAST_ISA = GMA_ISA_AMX };

static const struct {
    const char *name;
    int have;
} features[] = {{"openmp", GMA_CLI_OPENMP}, {"onednn", GMA_CLI_ONEDNN}, {"pcre2", GMA_CLI_PCRE2},
              {"utf8proc", GMA_CLI_UTF8PROC}};

enum { FEATURES = sizeof features / sizeof features[0] };

static int built(gma_isa isa) { return gma_isa_built(isa); }
static int supported(gma_isa isa) { return gma_isa_built(isa) && gma_isa_supported(isa); }

static void list_tiers(int (*has)(gma_isa), const char *quote, const char *between) {
    int count = 0;
    for (int i = GMA_ISA_SCALAR; i <= LAST_ISA; i++) {
        if (has((gma_isa)i)) {
            printf("%s%s%s%s", count++ > 0 ? between : "", quote, gma_isa_name((gma_isa)i), quote);
        }
    }
}

static void print_text(gma_isa chosen) {
    printf("gma %s\ntiers built      ", gma_version());
    list_tiers(built, "", " ");
    printf("\ntiers supported  ");
    list_tiers(supported, "", " ");
    printf("\ntier chosen      %s\nthreads          %d\nfeatures        ", gma_isa_name(chosen), gma_max_threads());
    for (int i = 0; i < FEATURES; i++) {
        printf(" %s%s", features[i].have ? "" : "no-", features[i].name);
    }
    printf("\nmixers          ");
    for (int i = 1; gma_mixer_kind_name((gma_mixer_kind)i) != NULL; i++) {
        printf(" %s", gma_mixer_kind_name((gma_mixer_kind)i));
    }
    putchar('\n');
}

static void print_json(gma_isa chosen) {
    printf("{\"version\": ");
    gma_cli_json_string(stdout, gma_version());
    printf(", \"isa_built\": [");
    list_tiers(built, "\"", ", ");
    printf("], \"isa_supported\": [");
    list_tiers(supported, "\"", ", ");
    printf("], \"isa\": \"%s\", \"threads\": %d, \"features\": {", gma_isa_name(chosen), gma_max_threads());
    for (int i = 0; i < FEATURES; i++) {
        printf("%s\"%s\": %s", i > 0 ? ", " : "", features[i].name, features[i].have ? "true" : "false");
    }
    printf("}, \"mixers\": [");
    for (int i = 1; gma_mixer_kind_name((gma_mixer_kind)i) != NULL; i++) {
        printf("%s\"%s\"", i > 1 ? ", " : "", gma_mixer_kind_name((gma_mixer_kind)i));
    }
    printf("]}\n");
}

int gma_cmd_info(int argc, char **argv) {
    int json;
    gma_cli_option options[] = {GMA_CLI_OPTION_JSON(&json)};
    const gma_cli_spec spec = {
        .verb = "info",
        .operands = "",
        .about = "version, CPU tiers, threads and features of this build",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "GMA_ISA in the environment is the highest tier that may be chosen; OMP_NUM_THREADS sets the threads.",
    };
    const char *operands[1];
    int count;
    gma_isa chosen;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code >= 0) {
        return code;
    }
    if (gma_isa_default(&chosen) != GMA_OK) {
        return gma_cli_fail(&spec);
    }
    if (json) {
        print_json(chosen);
    } else {
        print_text(chosen);
    }
    return 0;
}
