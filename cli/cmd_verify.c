/* gma verify: the theory of the operator, measured. */
#include "cli/options.h"
#include "cli/patience.h"
#include "gma/verify.h"

static void print_place(const gma_verify_row *r) {
    if (r->layer >= 0) {
        printf("  layer %lld head %lld", (long long)r->layer, (long long)r->head);
    } else {
        printf("  mixture %lld", (long long)r->head);
    }
}

static const char *verdict(const gma_verify_row *r) { return r->relation == 0 ? "" : r->holds ? "holds" : "VIOLATED"; }

static void print_table(const gma_verification *v) {
    const char *engine = NULL;
    for (int i = 0; i < gma_verification_rows(v); i++) {
        gma_verify_row r = {.struct_size = sizeof r};
        if (gma_verification_row(v, i, &r) != GMA_OK) {
            return;
        }
        if (r.engine != engine) {
            engine = r.engine;
            printf("%s%-5s %-62s %11s    %11s  verdict   closest\n", i > 0 ? "\n" : "", engine, "", "measured", "bound");
        }
        printf("%-5s %-62s %11.4g", r.statement, r.what, r.measured);
        if (r.relation == 0) {
            printf("    %11s  %-8s", "", "");
        } else {
            printf(" %s %11.4g  %-8s", r.relation < 0 ? "<=" : ">=", r.bound, verdict(&r));
        }
        print_place(&r);
        printf("\n");
    }
    printf("\n%d mixtures, %lld violations\n", gma_verification_mixtures(v), (long long)gma_verification_violations(v));
}

static void print_json(const gma_verification *v, const char *model, const gma_verify_options *o) {
    printf("{\"version\": \"%s\", \"model\": ", gma_version());
    if (model != NULL) {
        gma_cli_json_string(stdout, model);
    } else {
        printf("null");
    }
    printf(", \"data\": ");
    if (o->data != NULL) {
        gma_cli_json_string(stdout, o->data);
    } else {
        printf("null");
    }
    printf(", \"seed\": %llu, \"pairs\": %lld, \"bound_scale\": %.17g, \"mixtures\": %d, \"violations\": %lld,\n \"rows\": [",
           (unsigned long long)o->seed, (long long)o->pairs, o->bound_scale, gma_verification_mixtures(v),
           (long long)gma_verification_violations(v));
    for (int i = 0; i < gma_verification_rows(v); i++) {
        gma_verify_row r = {.struct_size = sizeof r};
        if (gma_verification_row(v, i, &r) != GMA_OK) {
            break;
        }
        printf("%s\n  {\"engine\": \"%s\", \"statement\": \"%s\", \"what\": ", i > 0 ? "," : "", r.engine, r.statement);
        gma_cli_json_string(stdout, r.what);
        gma_cli_json_number("measured", r.measured);
        printf(", \"relation\": %s", r.relation < 0 ? "\"<=\"" : r.relation > 0 ? "\">=\"" : "null");
        gma_cli_json_number("bound", r.bound);
        gma_cli_json_number("rounding", r.rounding);
        printf(", \"holds\": %s", r.relation == 0 ? "null" : r.holds ? "true" : "false");
        if (r.layer >= 0) {
            printf(", \"layer\": %lld, \"head\": %lld", (long long)r.layer, (long long)r.head);
        } else {
            printf(", \"mixture\": %lld", (long long)r.head);
        }
        printf(", \"checked\": %lld, \"violations\": %lld}", (long long)r.checked, (long long)r.violations);
    }
    printf("\n]}\n");
}

static int run(const gma_cli_spec *spec, const char *model, const gma_verify_options *o, int json) {
    gma_lm *lm = NULL;
    gma_verification *v = NULL;
    gma_status s = model != NULL ? gma_lm_load(model, &lm) : GMA_OK;
    if (s == GMA_OK) {
        s = gma_verify(lm, o, &v);
    }
    gma_lm_destroy(lm);
    if (s != GMA_OK) {
        return gma_cli_fail(spec);
    }
    const long long violations = (long long)gma_verification_violations(v);
    if (json) {
        print_json(v, model, o);
    } else {
        print_table(v);
    }
    gma_verification_destroy(v);
    if (violations > 0) {
        gma_fail(GMA_ERR_UNSUPPORTED, "%lld check%s violated", violations, violations == 1 ? " is" : "s are");
        return gma_cli_fail(spec);
    }
    return 0;
}

int gma_cmd_verify(int argc, char **argv) {
    gma_verify_options o;
    gma_verify_options_init(&o);
    int json, random;
    int64_t threads, seed;
    gma_cli_option options[] = {
        {.name = "random", .type = GMA_CLI_FLAG, .value = &random, .help = "drawn mixtures instead of a model's"},
        {.name = "data", .type = GMA_CLI_STRING, .hint = "FILE", .value = &o.data,
         .help = "a text: the model's own queries, keys and values while it reads it; without it they are drawn"},
        {.name = "context", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 1 << 24, .value = &o.context,
         .help = "tokens of a window of the text; 0 = as trained"},
        {.name = "mixtures", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 100000, .value = &o.mixtures,
         .help = "how many; 0 = every head of the model, or four; drawn ones are joined by two made to reach the bounds"},
        {.name = "components", .type = GMA_CLI_INT, .hint = "K", .def = "16", .min = 1, .max = 1024,
         .value = &o.components, .help = "Gaussians of a drawn mixture"},
        {.name = "width", .type = GMA_CLI_INT, .hint = "R", .def = "8", .min = 1, .max = 4096, .value = &o.width,
         .help = "routing and value width of a drawn mixture"},
        {.name = "pairs", .type = GMA_CLI_INT, .hint = "N", .def = "1000000", .min = 1, .max = 1e12, .value = &o.pairs,
         .help = "pairs of tokens drawn for (iii), over all mixtures, for each engine"},
        {.name = "seed", .type = GMA_CLI_INT, .hint = "N", .def = "1", .min = 0, .max = 9e15, .value = &seed,
         .help = "of everything that is drawn"},
        {.name = "bound-scale", .type = GMA_CLI_REAL, .hint = "X", .def = "1", .min = 1e-9, .max = 1e9,
         .value = &o.bound_scale, .help = "every bound made X times as wide; below 1 to see a violation reported"},
        GMA_CLI_OPTION_THREADS(&threads),
        GMA_CLI_OPTION_JSON(&json),
    };
    const gma_cli_spec spec = {
        .verb = "verify",
        .operands = "[MODEL]",
        .max_operands = 1,
        .about = "measure what is proved of the operator, in double and with every CPU tier\n\n"
                 "  gma verify --random\n"
                 "  gma verify models/shakespeare-gma --data data/tinyshakespeare/input.txt",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "Exit code 1 when a statement is violated. Each line shows the mixture that comes closest to its bound.\n"
                 "(i) responsibilities and affinities, (ii) gradients of logits, (iii) how fast responsibilities can change.\n"
                 "V = max |v_j|, B = max |q|, |k|, M = max |mu_k|, s = the smallest variance / logit_scale. Proofs, and\n"
                 "what a line means: docs/theory.md.",
    };
    const char *operands[1];
    int count;
    const int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code >= 0) {
        return code;
    }
    if ((count == 1) == random) {
        return gma_cli_misuse(&spec, count == 1 ? "MODEL and --random exclude each other" : "give a MODEL, or --random");
    }
    if (random && (o.data != NULL || o.context != 0)) {
        return gma_cli_misuse(&spec, "--data and --context are for a MODEL");
    }
    for (int i = 0; i < GMA_CLI_COUNT(options) && count == 1; i++) {
        if (options[i].given && (options[i].value == &o.components || options[i].value == &o.width)) {
            return gma_cli_misuse(&spec, "--%s is for --random: a model has its own", options[i].name);
        }
    }
    if (count == 1 && o.data == NULL && gma_cli_find(&spec, "context")->given) {
        return gma_cli_misuse(&spec, "--context cuts a text into windows, and there is no --data FILE");
    }
    gma_cli_be_patient(argv);
    o.threads = (int32_t)threads;
    o.seed = (uint64_t)seed;
    return run(&spec, count == 1 ? operands[0] : NULL, &o, json);
}
