/* gma eval: loss and accuracy of a model on a file. */
#include <math.h>
#include <stdlib.h>

#include "cli/options.h"
#include "cli/patience.h"
#include "gma/train.h"

typedef struct baselines {
    int wanted;
    double bigram, trigram;
} baselines;

/* What has been asked for beside the loss. */
typedef struct extras {
    baselines tables;
    int64_t stride;
    gma_eval_result sliding; /* with a stride */
} extras;

static void print_row(const char *name, double loss) {
    printf("%-14s %10.4f %10.4f %12.3f\n", name, loss, loss / log(2.0), exp(loss));
}

static void print_text_units(const char *name, const gma_eval_result *r) {
    if (r->text_bytes > 0 && r->text_bytes != r->tokens) {
        printf("%s: %lld bytes, %lld words with line ends: %.4f bits/byte, perplexity %.3f a word\n", name,
               (long long)r->text_bytes, (long long)r->text_words, r->bits_per_byte, r->word_perplexity);
    } else if (r->text_bytes == 0 && r->text_words > 0) { /* a tokenizer that does not keep bytes */
        printf("%s: %lld words with line ends: perplexity %.3f a word\n", name, (long long)r->text_words,
               r->word_perplexity);
    }
}

static void print_table(const gma_eval_result *r, const char *unit, const extras *x) {
    printf("%lld %ss in %lld windows, %.1f s\n", (long long)r->tokens, unit, (long long)r->windows, r->seconds);
    printf("%-14s %10s %10s %12s\n", "", "nats/token", "bits/token", "perplexity");
    print_row("model", r->loss);
    if (x->stride > 0) {
        char name[32];
        snprintf(name, sizeof name, "stride %lld", (long long)x->stride);
        print_row(name, x->sliding.loss);
    }
    if (x->tables.wanted) {
        print_row("bigram table", x->tables.bigram);
        print_row("trigram table", x->tables.trigram);
    }
    print_text_units("model", r);
    if (x->stride > 0) {
        print_text_units("with the stride", &x->sliding);
    }
}

static void print_accuracy(const gma_eval_result *r, const gma_lm_config *c, int64_t context) {
    const int pairs = c->task == GMA_LM_TASK_SEQ2SEQ;
    if (c->task == GMA_LM_TASK_CLASSIFY) {
        printf("%lld sequences of %lld classes, %.1f s\n", (long long)r->sequences, (long long)c->classes, r->seconds);
    } else {
        printf("%lld sequences, %lld %s, %.1f s\n", (long long)r->sequences, (long long)r->tokens,
               pairs ? "symbols" : "targets", r->seconds);
    }
    if (r->cut > 0) {
        printf("note: %lld of them are longer than the context of %lld and are cut\n", (long long)r->cut,
               (long long)(context > 0 ? context : c->context));
    }
    printf("accuracy %.2f %% (95 %% interval %.2f .. %.2f), loss %.4f nats\n", 100 * r->accuracy, 100 * r->accuracy_low,
           100 * r->accuracy_high, r->loss);
    if (pairs) {
        printf("%lld of the sequences without a mistake: %.2f %%\n", (long long)r->sequences_right, 100 * r->sequence_accuracy);
    }
    if (r->state_bytes > 0) {
        printf("%lld bytes of state between tokens\n", (long long)r->state_bytes);
    }
}

static void print_losses(const gma_eval_result *r) {
    gma_cli_json_number("loss", r->loss);
    gma_cli_json_number("bits_per_token", r->bits_per_token);
    gma_cli_json_number("perplexity", r->perplexity);
    gma_cli_json_number("bits_per_byte", r->bits_per_byte);
    gma_cli_json_number("word_perplexity", r->word_perplexity);
}

static void print_json(const gma_eval_result *r, const char *model, const char *data, const char *split,
                       const extras *x) {
    printf("{\"model\": ");
    gma_cli_json_string(stdout, model);
    printf(", \"data\": ");
    gma_cli_json_string(stdout, data);
    printf(", \"split\": \"%s\", \"tokens\": %lld, \"windows\": %lld", split, (long long)r->tokens,
           (long long)r->windows);
    print_losses(r);
    printf(", \"text_bytes\": %lld, \"text_words\": %lld", (long long)r->text_bytes, (long long)r->text_words);
    if (r->sequences > 0) {
        printf(", \"sequences\": %lld, \"cut\": %lld, \"right\": %lld", (long long)r->sequences, (long long)r->cut,
               (long long)r->right);
        gma_cli_json_number("accuracy", r->accuracy);
        gma_cli_json_number("accuracy_low", r->accuracy_low);
        gma_cli_json_number("accuracy_high", r->accuracy_high);
        printf(", \"sequences_right\": %lld", (long long)r->sequences_right);
        gma_cli_json_number("sequence_accuracy", r->sequence_accuracy);
    }
    printf(", \"state_bytes\": %lld, \"seconds\": %.3f", (long long)r->state_bytes, r->seconds);
    if (x->stride > 0) {
        printf(", \"sliding\": {\"stride\": %lld, \"windows\": %lld", (long long)x->stride, (long long)x->sliding.windows);
        print_losses(&x->sliding);
        printf(", \"seconds\": %.3f}", x->sliding.seconds);
    }
    if (x->tables.wanted) {
        gma_cli_json_number("bigram_loss", x->tables.bigram);
        gma_cli_json_number("trigram_loss", x->tables.trigram);
    }
    printf("}\n");
}

int gma_cmd_eval(int argc, char **argv) {
    static const char *const splits[] = {"all", "train", "val"};
    gma_eval_options o;
    gma_eval_options_init(&o);
    const char *data = NULL;
    int split, json, beat;
    int64_t threads, seed;
    extras x = {0};
    baselines *const b = &x.tables;
    gma_cli_option options[] = {
        {.name = "data", .type = GMA_CLI_STRING, .hint = "FILE", .value = &data, .help = "what to evaluate on (required); of a seq2seq model copy, reverse or sort"},
        {.name = "split", .type = GMA_CLI_CHOICE, .hint = "all|train|val", .def = "all", .value = &split,
         .help = "which part of the file; train and val are cut as gma train cuts them"},
        {.name = "val-fraction", .type = GMA_CLI_REAL, .hint = "X", .def = "0.1", .min = 0, .max = 0.999,
         .value = &o.val_fraction, .help = "part of the file, at its end, that is for validation"},
        {.name = "context", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 1 << 24, .value = &o.context,
         .help = "tokens predicted in one go, from an empty state; 0 = as trained"},
        {.name = "batch", .type = GMA_CLI_INT, .hint = "N", .def = "16", .min = 1, .max = 1 << 20, .value = &o.batch,
         .help = "windows computed together"},
        {.name = "windows", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 1e12,
         .value = &o.max_windows, .help = "only the first N windows; 0 = all (seq2seq: 1000 pairs)"},
        {.name = "min-length", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 1 << 24, .value = &o.min_length,
         .help = "seq2seq: symbols of the shortest source; 0 = all are as long as the context"},
        {.name = "seed", .type = GMA_CLI_INT, .hint = "N", .def = "1", .min = 0, .max = 9e15, .value = &seed,
         .help = "seq2seq: of the pairs, which are none of training's"},
        {.name = "stride", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 1 << 24, .value = &x.stride,
         .help = "also from windows that start every N tokens and predict what is new in them; 0 = no"},
        {.name = "baselines", .type = GMA_CLI_FLAG, .value = &b->wanted,
         .help = "also a bigram and a trigram table of the training part, on the validation part (--split val)"},
        {.name = "beat-baselines", .type = GMA_CLI_FLAG, .value = &beat,
         .help = "the same, and exit with 1 unless the model beats both"},
        GMA_CLI_OPTION_THREADS(&threads),
        GMA_CLI_OPTION_JSON(&json),
    };
    const gma_cli_spec spec = {.verb = "eval",
                               .operands = "MODEL",
                               .min_operands = 1,
                               .max_operands = 1,
                               .about = "loss, bits per token and perplexity of a model on a file, accuracy on sequences",
                               .options = options,
                               .option_count = GMA_CLI_COUNT(options),
                               .notes = "MODEL is a checkpoint folder, or a run folder: its best/, or last/ where there is none.\n"
                                        "For a byte model a token is a byte. The file is cut into windows that do not\n"
                                        "overlap; a rest shorter than a window is not used. With --stride the same tokens are\n"
                                        "predicted once more, each with at least context - N before it.\n"
                                        "On a token file of sequences (gma data mqar, listops, imdb): accuracy with its 95 %\n"
                                        "interval (Wilson), and the bytes that a language model keeps between tokens."};
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    int count = 0;
    int code = operands != NULL ? gma_cli_parse(&spec, argc, argv, operands, &count) : 1;
    const char *model = code < 0 ? operands[0] : NULL;
    free(operands);
    if (code >= 0) {
        return code;
    }
    b->wanted |= beat;
    if (data == NULL) {
        return gma_cli_misuse(&spec, "--data FILE is needed");
    }
    if (b->wanted && split != GMA_SPLIT_VAL) {
        return gma_cli_misuse(&spec, "--baselines needs --split val");
    }
    if (split == GMA_SPLIT_ALL && gma_cli_find(&spec, "val-fraction")->given) {
        return gma_cli_misuse(&spec, "--val-fraction says where the file is cut, and --split all takes it whole");
    }
    gma_cli_be_patient(argv);
    o.split = split;
    o.threads = (int32_t)threads;
    o.seed = (uint64_t)seed;
    gma_lm *lm = NULL;
    gma_lm_config c;
    gma_eval_result r = {.struct_size = sizeof r};
    gma_status s = gma_lm_load(model, &lm);
    if (s == GMA_OK) {
        s = gma_lm_get_config(lm, &c);
    }
    if (s == GMA_OK && c.task != GMA_LM_TASK_SEQ2SEQ && gma_cli_find(&spec, "seed")->given) {
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "seed is of generated pairs, and this model's task is not seq2seq");
    }
    if (s == GMA_OK && b->wanted && c.tokenizer != GMA_LM_TOKENIZER_BYTES) {
        s = gma_fail(GMA_ERR_UNSUPPORTED, "%s: --baselines are tables of bytes, and this model's tokens are ids", model);
    }
    if (s == GMA_OK) {
        s = gma_eval(lm, data, &o, &r);
    }
    if (s == GMA_OK && x.stride > 0) {
        o.stride = x.stride;
        x.sliding.struct_size = sizeof x.sliding;
        s = gma_eval(lm, data, &o, &x.sliding);
    }
    gma_lm_destroy(lm);
    if (s == GMA_OK && b->wanted) {
        s = gma_ngram_loss(data, o.val_fraction, 2, &b->bigram);
        s = s == GMA_OK ? gma_ngram_loss(data, o.val_fraction, 3, &b->trigram) : s;
    }
    if (s != GMA_OK) {
        return gma_cli_fail(&spec);
    }
    if (json) {
        print_json(&r, model, data, splits[split], &x);
    } else if (r.sequences > 0) {
        print_accuracy(&r, &c, o.context);
    } else {
        print_table(&r, c.tokenizer == GMA_LM_TOKENIZER_BYTES ? "byte" : "token", &x);
    }
    if (beat && !(r.loss < b->bigram && r.loss < b->trigram)) {
        fflush(stdout);
        fprintf(stderr, "gma eval: the model does not beat both tables\n");
        return 1;
    }
    return 0;
}
