/* gma data listops, imdb, mqar: the data sets of the experiments. */
#include "cli/data.h"
#include "cli/options.h"
#include "gma/data.h"

#define OPTION_SEED(where)                                                                                    \
    {.name = "seed", .type = GMA_CLI_INT, .hint = "N", .def = "1", .min = 0, .max = 9e15, .value = (where),     \
     .help = "the same seed gives the same files on every machine"}

/* gma_cli_replaces() for the parts of a data set in a folder; tsv: those of ListOps in the official form too. */
static int replaces_parts(const gma_cli_spec *spec, const char *folder, int tsv) {
    static const char *const parts[] = {"train", "val", "test"};
    int code = -1;
    for (int i = 0; i < 3 && code < 0; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s.tokens", folder, parts[i]);
        code = gma_cli_replaces(spec, path, GMA_CLI_TOKENS);
        snprintf(path, sizeof path, "%s/basic_%s.tsv", folder, parts[i]);
        code = code < 0 && tsv ? gma_cli_replaces(spec, path, GMA_CLI_LISTOPS) : code;
    }
    return code;
}

int gma_data_cli_listops(int argc, char **argv) {
    gma_listops_options o;
    gma_listops_options_init(&o);
    const char *from;
    int tsv;
    int64_t seed;
    gma_cli_option options[] = {
        OPTION_SEED(&seed),
        {.name = "train", .type = GMA_CLI_INT, .hint = "N", .def = "96000", .min = 0, .max = 1e8, .value = &o.train,
         .help = "expressions to train on"},
        {.name = "val", .type = GMA_CLI_INT, .hint = "N", .def = "2000", .min = 0, .max = 1e8, .value = &o.val,
         .help = "expressions to validate on"},
        {.name = "test", .type = GMA_CLI_INT, .hint = "N", .def = "2000", .min = 0, .max = 1e8, .value = &o.test,
         .help = "expressions to test on"},
        {.name = "tsv", .type = GMA_CLI_FLAG, .value = &tsv,
         .help = "also basic_{train,val,test}.tsv in the official form (about 6 KB an expression)"},
        {.name = "from", .type = GMA_CLI_STRING, .hint = "FILE.tsv", .value = &from,
         .help = "generate nothing: check this file and make OUT, one token file, of it"},
    };
    const gma_cli_spec spec = {
        .verb = "data listops",
        .operands = "OUT",
        .min_operands = 1,
        .max_operands = 1,
        .about = "ListOps as the Long Range Arena generates it\n\n"
                 "  gma data listops data/listops\n"
                 "  gma data listops --from basic_test.tsv test.tokens",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "OUT is a folder for train.tokens, val.tokens and test.tokens. The vocabulary has 15 symbols and padding.\n"
                 "Every expression of a file is evaluated and compared with its label. A part that is not made (--val 0) and lies in\n"
                 "OUT from an earlier call is an error.",
    };
    const char *operands[1];
    int count;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code >= 0) {
        return code;
    }
    if (from != NULL && (options[0].given || options[1].given || options[2].given || options[3].given || tsv)) {
        return gma_cli_misuse(&spec, "--from generates nothing, so it excludes --seed, --train, --val, --test and --tsv");
    }
    code = gma_cli_apart(&spec, operands[0], from);
    if (code < 0) {
        code = from != NULL ? gma_cli_replaces(&spec, operands[0], GMA_CLI_TOKENS) : replaces_parts(&spec, operands[0], tsv);
    }
    if (code >= 0) {
        return code;
    }
    o.seed = (uint64_t)seed;
    o.tsv = tsv;
    const gma_status s = from != NULL ? gma_data_listops_read(from, operands[0]) : gma_data_listops(&o, operands[0]);
    return s == GMA_OK ? 0 : gma_cli_fail(&spec);
}

int gma_data_cli_imdb(int argc, char **argv) {
    gma_imdb_options o;
    gma_imdb_options_init(&o);
    int64_t seed;
    gma_cli_option options[] = {
        OPTION_SEED(&seed),
        {.name = "held-out", .type = GMA_CLI_REAL, .hint = "X", .def = "0.1", .min = 0, .max = 0.999, .value = &o.held_out,
         .help = "this part of the training reviews of each class becomes the validation set"},
        {.name = "max-bytes", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 1e15, .value = &o.max_bytes,
         .help = "reviews are cut to so many bytes; 0 = whole"},
    };
    const gma_cli_spec spec = {
        .verb = "data imdb",
        .operands = "DIR OUT",
        .min_operands = 2,
        .max_operands = 2,
        .about = "IMDb reviews byte by byte: train.tsv and test.tsv of DIR into token files in the folder OUT",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "A line is label<TAB>name<TAB>text, label 0 (negative) or 1. OUT gets train.tokens, val.tokens, test.tokens.\n"
                 "Without a validation set (--held-out 0) a val.tokens of an earlier call in OUT is an error.",
    };
    const char *operands[2];
    int count;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code >= 0) {
        return code;
    }
    code = replaces_parts(&spec, operands[1], 0);
    if (code >= 0) {
        return code;
    }
    o.seed = (uint64_t)seed;
    return gma_data_imdb(&o, operands[0], operands[1]) == GMA_OK ? 0 : gma_cli_fail(&spec);
}

int gma_data_cli_mqar(int argc, char **argv) {
    gma_mqar_options o;
    gma_mqar_options_init(&o);
    int zeros;
    int64_t seed;
    gma_cli_option options[] = {
        OPTION_SEED(&seed),
        {.name = "sequences", .type = GMA_CLI_INT, .hint = "N", .def = "1000", .min = 1, .max = 1e12, .value = &o.sequences,
         .help = "how many"},
        {.name = "length", .type = GMA_CLI_INT, .hint = "N", .def = "64", .min = 4, .max = 1 << 20, .value = &o.length,
         .help = "tokens of a sequence; even, at least 4 times the pairs"},
        {.name = "pairs", .type = GMA_CLI_INT, .hint = "N", .def = "8", .min = 1, .max = 1 << 18, .value = &o.pairs,
         .help = "keys, each with its value, to remember"},
        {.name = "vocab-size", .type = GMA_CLI_INT, .hint = "N", .def = "8192", .min = 2, .max = 1 << 24, .value = &o.vocab,
         .help = "half of it keys, half values; even, more than the length"},
        {.name = "power", .type = GMA_CLI_REAL, .hint = "X", .def = "0.01", .min = 1e-9, .max = 10, .value = &o.power,
         .help = "the g-th place after the pairs is asked with weight g^(X-1); 1 = all alike"},
        {.name = "zeros", .type = GMA_CLI_FLAG, .value = &zeros, .help = "token 0 between the queries, not random tokens"},
    };
    const gma_cli_spec spec = {
        .verb = "data mqar",
        .operands = "OUT",
        .min_operands = 1,
        .max_operands = 1,
        .about = "multi-query associative recall (arXiv 2312.04927): sequences with targets in a token file",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "key value key value ... then every key once more; the target there is its value, elsewhere -1.",
    };
    const char *operands[1];
    int count;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code >= 0) {
        return code;
    }
    o.seed = (uint64_t)seed;
    o.zeros = zeros;
    code = gma_cli_replaces(&spec, operands[0], GMA_CLI_TOKENS);
    if (code >= 0) {
        return code;
    }
    switch (gma_data_mqar(&o, operands[0])) {
    case GMA_OK:
        return 0;
    case GMA_ERR_INVALID_ARGUMENT: /* length, pairs and vocabulary that do not go together */
        return gma_cli_misuse(&spec, "%s", gma_last_error());
    default:
        return gma_cli_fail(&spec);
    }
}
