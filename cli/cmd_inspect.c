/* gma inspect: what the Gaussians of a model do with a text. */
#include <math.h>
#include <stdlib.h>

#include "cli/options.h"
#include "cli/patience.h"
#include "gma/inspect.h"

static void print_share(double x) {
    if (isnan(x)) {
        printf(" %8s", "-");
    } else {
        printf(" %8.3f", x);
    }
}

static void print_heads(const gma_inspection *n) {
    printf("%5s %4s %4s %5s %8s %8s %8s %8s %8s %8s %8s\n", "layer", "head", "K", "used", "entropy", "eff. q", "eff. k",
           "overlap", "agree", "rank", "keep");
    for (int i = 0; i < gma_inspection_heads(n); i++) {
        gma_inspect_head h = {.struct_size = sizeof h};
        if (gma_inspection_head(n, i, &h) != GMA_OK) {
            return;
        }
        printf("%5lld %4lld %4lld %5lld %8.3f %8.2f %8.2f %8.3f %8.3f %8.1f", (long long)h.layer, (long long)h.head,
               (long long)h.components, (long long)h.used, h.usage_entropy, h.effective_q, h.effective_k, h.overlap,
               h.agreement, h.effective_rank);
        print_share(h.mean_decay);
        printf("\n");
    }
}

static void print_labels(const gma_inspection *n, int label) {
    gma_inspect_label r = {.struct_size = sizeof r};
    if (gma_inspection_label(n, 0, label, &r) != GMA_OK) {
        return;
    }
    printf("\nagainst the %s (%lld kinds, %lld tokens)\n%5s %4s %8s %8s %8s %8s %8s\n", r.what, (long long)r.classes,
           (long long)r.labelled, "layer", "head", "NMI", "chance", "above", "purity", "chance");
    for (int i = 0; i < gma_inspection_heads(n); i++) {
        gma_inspect_head h = {.struct_size = sizeof h};
        if (gma_inspection_head(n, i, &h) != GMA_OK || gma_inspection_label(n, i, label, &r) != GMA_OK) {
            return;
        }
        printf("%5lld %4lld", (long long)h.layer, (long long)h.head);
        print_share(r.nmi);
        print_share(r.nmi_chance);
        print_share(r.nmi - r.nmi_chance);
        print_share(r.purity);
        print_share(r.purity_chance);
        printf("\n");
    }
}

int gma_cmd_inspect(int argc, char **argv) {
    gma_inspect_options o;
    gma_inspect_options_init(&o);
    const char *data = NULL, *json = NULL;
    int64_t threads, top, seed;
    gma_cli_option options[] = {
        {.name = "data",
         .type = GMA_CLI_STRING,
         .hint = "FILE",
         .value = &data,
         .help = "what the model reads (required)"},
        {.name = "json",
         .type = GMA_CLI_STRING,
         .hint = "FILE",
         .value = &json,
         .help = "everything as JSON, components and slot memory included; - = standard output, without the tables"},
        {.name = "layer",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "-1",
         .min = -1,
         .max = 100000,
         .value = &o.layer,
         .help = "only this layer, counted from 0; -1 = all"},
        {.name = "head",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "-1",
         .min = -1,
         .max = 100000,
         .value = &o.head,
         .help = "only this head; -1 = all"},
        {.name = "classes",
         .type = GMA_CLI_STRING,
         .hint = "FILE",
         .value = &o.classes,
         .help = "also against classes of your own: lines \"token<TAB>class\""},
        {.name = "tokens",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "0",
         .min = 0,
         .max = 1e12,
         .value = &o.max_tokens,
         .help = "only the first N tokens; 0 = all"},
        {.name = "context",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "0",
         .min = 0,
         .max = 1 << 24,
         .value = &o.context,
         .help = "tokens of a window, each from an empty state; 0 = as trained"},
        {.name = "batch",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "4",
         .min = 1,
         .max = 1 << 20,
         .value = &o.batch,
         .help = "windows computed together"},
        {.name = "top",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "10",
         .min = 0,
         .max = 1000,
         .value = &top,
         .help = "tokens listed for each component (JSON)"},
        {.name = "seed",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "1",
         .min = 0,
         .max = 1e15,
         .value = &seed,
         .help = "of the shuffled labels that give the chance level"},
        GMA_CLI_OPTION_THREADS(&threads),
    };
    const gma_cli_spec spec = {
        .verb = "inspect",
        .operands = "MODEL",
        .min_operands = 1,
        .max_operands = 1,
        .about =
            "usage, entropy and mutual information of the Gaussians of a model on a text",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "MODEL is a checkpoint folder, or a run folder: then its best/ is used.\n"
                 "used: components with usage above 1/(10 K). entropy: of the usage, 1 = all alike. eff.: components "
                 "that a\n"
                 "token is spread over, as query and as key. overlap, agree: reads where it writes. rank: effective "
                 "rank of\n"
                 "the affinity. keep: mean of the forget gate. NMI counts above its chance level only.\n"
                 "Formulas: include/gma/inspect.h. The JSON: docs/inspect.md."};
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    int count = 0;
    int code = operands != NULL ? gma_cli_parse(&spec, argc, argv, operands, &count) : 1;
    const char *model = code < 0 ? operands[0] : NULL;
    free(operands);
    if (code >= 0) {
        return code;
    }
    if (data == NULL) {
        return gma_cli_misuse(&spec, "--data FILE is needed");
    }
    gma_cli_be_patient(argv);
    o.threads = (int32_t)threads;
    o.top_tokens = (int32_t)top;
    o.seed = (uint64_t)seed;
    gma_lm *lm = NULL;
    gma_inspection *n = NULL;
    gma_status s = gma_lm_load(model, &lm);
    if (s == GMA_OK) {
        s = gma_inspect(lm, data, &o, &n);
    }
    if (s == GMA_OK && json != NULL) {
        s = gma_inspection_json(n, json);
    }
    if (s == GMA_OK && !(json != NULL && json[0] == '-' && json[1] == 0)) {
        print_heads(n);
        for (int i = 0; i < gma_inspection_labels(n); i++) {
            print_labels(n, i);
        }
    }
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
    return s == GMA_OK ? 0 : gma_cli_fail(&spec);
}
