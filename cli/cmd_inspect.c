/* gma inspect: what the Gaussians of a model do with a text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static void print_pairs(const gma_comparison *c) {
    int undefined = 0;
    printf("%5s %6s %6s %11s %8s %8s %9s %8s %8s\n", "layer", "head a", "head b", "correlation", "chance", "by usage",
           "above 1/2", "NMI", "chance");
    for (int i = 0; i < gma_comparison_pairs(c); i++) {
        gma_compare_pair p = {.struct_size = sizeof p};
        char above[48];
        if (gma_comparison_pair(c, i, &p) != GMA_OK) {
            return;
        }
        snprintf(above, sizeof above, "%lld/%lld", (long long)p.above_half, (long long)p.matched);
        undefined |= isnan(p.correlation);
        printf("%5lld %6lld %6lld   ", (long long)p.layer, (long long)p.head_a, (long long)p.head_b);
        print_share(p.correlation);
        print_share(p.chance);
        print_share(p.correlation_by_usage);
        printf(" %9s %8.3f %8.3f\n", above, p.nmi, p.nmi_chance);
    }
    if (undefined) {
        printf("-: undefined, for responsibilities that never change (a mixture of one component) correlate with nothing\n");
    }
}

/* What the verb was asked for. */
typedef struct request {
    gma_inspect_options o;
    gma_report_options page;
    const char *data, *json, *out;
    int compare;
} request;

static int to_stdout(const char *path) { return path != NULL && path[0] == '-' && path[1] == 0; }

static void print_tables(const request *q, const gma_inspection *n, const gma_comparison *c) {
    if (to_stdout(q->json)) {
        return;
    }
    if (c != NULL) {
        print_pairs(c);
    } else {
        print_heads(n);
        for (int i = 0; i < gma_inspection_labels(n); i++) {
            print_labels(n, i);
        }
    }
    if (q->out != NULL) {
        printf("\nthe report is in ");
        gma_cli_print_plain(stdout, q->out);
        printf("\n");
    }
}

static gma_status put_files(const request *q, const gma_inspection *n, const gma_comparison *c) {
    gma_status s = GMA_OK;
    if (q->json != NULL) {
        s = c != NULL ? gma_comparison_json(c, q->page.model, q->page.other, q->json) : gma_inspection_json(n, q->json);
    }
    return s == GMA_OK && q->out != NULL ? gma_inspection_report(n, c, &q->page, q->out) : s;
}

/* Both models read the same windows: without --context the shorter of what they were trained on. */
static gma_status same_windows(const gma_lm *a, const gma_lm *b, gma_inspect_options *o) {
    gma_lm_config x, y;
    gma_status s = gma_lm_get_config(a, &x);
    s = s == GMA_OK ? gma_lm_get_config(b, &y) : s;
    if (s == GMA_OK && o->context == 0) {
        o->context = x.context < y.context ? x.context : y.context;
    }
    return s;
}

static gma_status inspect(request *q) {
    gma_lm *lm[2] = {NULL, NULL};
    gma_inspection *n[2] = {NULL, NULL};
    gma_comparison *c = NULL;
    gma_status s = gma_lm_load(q->page.model, &lm[0]);
    if (s == GMA_OK && q->compare) {
        s = gma_lm_load(q->page.other, &lm[1]);
    }
    if (s == GMA_OK && q->compare) {
        s = same_windows(lm[0], lm[1], &q->o);
    }
    for (int i = 0; s == GMA_OK && i <= q->compare; i++) {
        s = gma_inspect(lm[i], q->data, &q->o, &n[i]);
    }
    if (s == GMA_OK && q->compare) {
        s = gma_inspect_compare(n[0], n[1], &c);
    }
    if (s == GMA_OK) {
        s = put_files(q, n[0], c);
    }
    if (s == GMA_OK) {
        print_tables(q, n[0], c);
    }
    gma_comparison_destroy(c);
    for (int i = 0; i < 2; i++) {
        gma_inspection_destroy(n[i]);
        gma_lm_destroy(lm[i]);
    }
    return s;
}

/* Nothing that is read is replaced, nor what is no report and no JSON. */
static int files_apart(const gma_cli_spec *spec, const request *q) {
    const char *const outs[] = {q->out, q->json != NULL && strcmp(q->json, "-") == 0 ? NULL : q->json};
    if (outs[0] != NULL && outs[1] != NULL && strcmp(outs[0], outs[1]) == 0) {
        return gma_cli_misuse(spec, "--out and --json are one file, %s", q->out);
    }
    int code = -1;
    for (int i = 0; i < 2 && code < 0; i++) {
        code = gma_cli_apart(spec, outs[i], q->data);
        code = code < 0 ? gma_cli_apart(spec, outs[i], q->o.classes) : code;
        code = code < 0 ? gma_cli_replaces(spec, outs[i], i == 0 ? GMA_CLI_HTML : GMA_CLI_JSON) : code;
    }
    return code;
}

int gma_cmd_inspect(int argc, char **argv) {
    request q = {.data = NULL};
    gma_inspect_options_init(&q.o);
    gma_report_options_init(&q.page);
    int64_t threads, top, seed;
    gma_cli_option options[] = {
        {.name = "data",
         .type = GMA_CLI_STRING,
         .hint = "FILE",
         .value = &q.data,
         .help = "what the model reads (required)"},
        {.name = "json",
         .type = GMA_CLI_STRING,
         .hint = "FILE",
         .value = &q.json,
         .help = "everything as JSON, components and slot memory included; - = standard output, without the tables"},
        {.name = "out",
         .type = GMA_CLI_STRING,
         .hint = "FILE.html",
         .value = &q.out,
         .help = "a report to look at: one HTML file that needs nothing else"},
        {.name = "at",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "0",
         .min = 0,
         .max = 1e12,
         .value = &q.page.at,
         .help = "token where the text and the attention of the report begin"},
        {.name = "span",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "64",
         .min = 1,
         .max = 128,
         .value = &q.page.span,
         .help = "tokens of the implied attention in the report"},
        {.name = "compare",
         .type = GMA_CLI_FLAG,
         .value = &q.compare,
         .help = "two models: which component of A does what which of B does"},
        {.name = "layer",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "-1",
         .min = -1,
         .max = 100000,
         .value = &q.o.layer,
         .help = "only this layer, counted from 0; -1 = all"},
        {.name = "head",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "-1",
         .min = -1,
         .max = 100000,
         .value = &q.o.head,
         .help = "only this head; -1 = all"},
        {.name = "classes",
         .type = GMA_CLI_STRING,
         .hint = "FILE",
         .value = &q.o.classes,
         .help = "also against classes of your own: lines \"token<TAB>class\""},
        {.name = "tokens",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "0",
         .min = 0,
         .max = 1e12,
         .value = &q.o.max_tokens,
         .help = "only the first N tokens; 0 = all"},
        {.name = "context",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "0",
         .min = 0,
         .max = 1 << 24,
         .value = &q.o.context,
         .help = "tokens of a window, each from an empty state; 0 = as trained"},
        {.name = "batch",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "4",
         .min = 1,
         .max = 1 << 20,
         .value = &q.o.batch,
         .help = "windows computed together"},
        {.name = "top",
         .type = GMA_CLI_INT,
         .hint = "N",
         .def = "10",
         .min = 0,
         .max = 1000,
         .value = &top,
         .help = "tokens listed for each component, in the report at most 10"},
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
        .operands = "MODEL | --compare A B",
        .min_operands = 1,
        .max_operands = 2,
        .about = "usage, entropy and mutual information of the Gaussians of a model on a text\n\n"
                 "  gma inspect runs/a --data input.txt --out report.html\n"
                 "  gma inspect --compare runs/a runs/b --data input.txt --json compare.json",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "MODEL is a checkpoint folder, or a run folder: its best/, or last/ where there is none.\n"
                 "used: components with usage above 1/(10 K). entropy: of the usage, 1 = all alike. eff.: components "
                 "that a\n"
                 "token is spread over, as query and as key. overlap, agree: reads where it writes. rank: effective "
                 "rank of\n"
                 "the affinity. keep: mean of the forget gate. NMI counts above its chance level only.\n"
                 "Formulas: include/gma/inspect.h. The JSON: docs/inspect.md."};
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    int count = 0;
    int code = operands != NULL ? gma_cli_parse(&spec, argc, argv, operands, &count) : 1;
    q.page.model = count > 0 ? operands[0] : NULL;
    q.page.other = count > 1 ? operands[1] : NULL;
    free(operands);
    if (code >= 0) {
        return code;
    }
    if (q.data == NULL) {
        return gma_cli_misuse(&spec, "--data FILE is needed");
    }
    if (count != 1 + q.compare) {
        return gma_cli_misuse(&spec, q.compare ? "--compare takes two models" : "takes one model; two with --compare");
    }
    if (q.out == NULL && (gma_cli_find(&spec, "at")->given || gma_cli_find(&spec, "span")->given)) {
        return gma_cli_misuse(&spec, "--at and --span say what the report shows; --out FILE.html is missing");
    }
    if (q.compare && q.out == NULL && q.o.classes != NULL) {
        return gma_cli_misuse(&spec, "--classes is for the report and one model's numbers; --compare without --out has neither");
    }
    if (q.out != NULL && strcmp(q.out, "-") == 0) {
        return gma_cli_misuse(&spec, "--out is the name of a file; \"-\" is for --json");
    }
    if (gma_cli_find(&spec, "top")->given && q.out == NULL && (q.json == NULL || q.compare)) {
        return gma_cli_misuse(&spec, "--top is for the report and the JSON of one model; %s",
                              q.compare ? "the JSON of --compare lists five tokens" : "--out and --json are missing");
    }
    code = files_apart(&spec, &q);
    if (code >= 0) {
        return code;
    }
    gma_cli_be_patient(argv);
    q.o.threads = (int32_t)threads;
    q.o.top_tokens = (int32_t)top;
    q.o.seed = (uint64_t)seed;
    return inspect(&q) == GMA_OK ? 0 : gma_cli_fail(&spec);
}
