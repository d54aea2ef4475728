/* gma plot: loss curves of runs as one SVG. */
#include <stdlib.h>

#include "cli/options.h"
#include "gma/train.h"

int gma_cmd_plot(int argc, char **argv) {
    const char *out = NULL, *title = NULL;
    int json;
    gma_cli_option options[] = {
        {.name = "out", .type = GMA_CLI_STRING, .hint = "FILE.svg", .value = &out, .help = "the picture (required)"},
        {.name = "title", .type = GMA_CLI_STRING, .hint = "TEXT", .value = &title, .help = "what stands above it"},
        GMA_CLI_OPTION_JSON(&json),
    };
    const gma_cli_spec spec = {.verb = "plot",
                               .operands = "RUN..",
                               .min_operands = 1,
                               .max_operands = -1,
                               .about = "draw the loss curves of training runs into one SVG",
                               .options = options,
                               .option_count = GMA_CLI_COUNT(options),
                               .notes = "RUN is a folder of gma train, or a metrics.jsonl. Thin lines are the training loss\n"
                                        "(smoothed), thick ones with dots the validation loss."};
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    int count = 0;
    int code = operands != NULL ? gma_cli_parse(&spec, argc, argv, operands, &count) : 1;
    if (code < 0 && out == NULL) {
        code = gma_cli_misuse(&spec, "--out FILE.svg is needed");
    }
    for (int i = 0; i < count && code < 0; i++) {
        char metrics[4096];
        snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", operands[i]);
        code = gma_cli_apart(&spec, out, operands[i]);
        code = code < 0 ? gma_cli_apart(&spec, out, metrics) : code;
    }
    code = code < 0 ? gma_cli_replaces(&spec, out, GMA_CLI_SVG) : code;
    if (code < 0) {
        code = gma_plot(operands, count, title, out) == GMA_OK ? 0 : gma_cli_fail(&spec);
        if (code == 0 && json) {
            printf("{\"out\": ");
            gma_cli_json_string(stdout, out);
            printf(", \"runs\": %d}\n", count);
        } else if (code == 0) {
            printf("%s\n", out);
        }
    }
    free(operands);
    return code;
}
