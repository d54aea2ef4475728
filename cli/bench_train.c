/* gma bench train - training steps of a language model: tokens a second, where the time goes, memory. */
#include "cli/bench.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"

typedef struct train_options {
    const char *mixer, *preset, *lengths;
    int format, recompute;
    int64_t tokens, layers, width, heads, components, vocab, threads, repeat;
} train_options;

typedef struct train_row {
    const char *mixer, *preset, *isa, *version;
    int64_t length, batch, layers, width, heads, components, vocab, recompute, threads, repeat, parameters;
    bench_samples step;
    double tokens_per_second, products_ms, mixer_ms, optimizer_ms, rest_ms, loss;
    int64_t peak_rss_bytes;
} train_row;

#define AT(member) offsetof(train_row, member), 0

static const bench_field fields[] = {
    {"mixer", BENCH_TEXT, AT(mixer)},
    {"preset", BENCH_TEXT, AT(preset)},
    {"length", BENCH_WHOLE, AT(length)},
    {"batch", BENCH_WHOLE, AT(batch)},
    {"layers", BENCH_WHOLE, AT(layers)},
    {"width", BENCH_WHOLE, AT(width)},
    {"heads", BENCH_WHOLE, AT(heads)},
    {"components", BENCH_WHOLE, AT(components)},
    {"vocab", BENCH_WHOLE, AT(vocab)},
    {"parameters", BENCH_WHOLE, AT(parameters)},
    {"recompute", BENCH_FLAG, AT(recompute)},
    {"tokens_per_second", BENCH_REAL, AT(tokens_per_second)},
    {"median_ms", BENCH_REAL, AT(step.median)},
    {"min_ms", BENCH_REAL, AT(step.min)},
    {"samples_ms", BENCH_SAMPLES, AT(step)},
    {"products_ms", BENCH_REAL, AT(products_ms)},
    {"mixer_ms", BENCH_REAL, AT(mixer_ms)},
    {"optimizer_ms", BENCH_REAL, AT(optimizer_ms)},
    {"rest_ms", BENCH_REAL, AT(rest_ms)},
    {"loss", BENCH_REAL, AT(loss)},
    {"peak_rss_bytes", BENCH_WHOLE, AT(peak_rss_bytes)},
    {"isa", BENCH_TEXT, AT(isa)},
    {"threads", BENCH_WHOLE, AT(threads)},
    {"repeat", BENCH_WHOLE, AT(repeat)},
    {"version", BENCH_TEXT, AT(version)},
};

static const bench_table table = {fields, sizeof fields / sizeof fields[0], sizeof(train_row), NULL};

static void print_table(FILE *out, const train_row *rows, int count) {
    const train_row *r = &rows[0];
    fprintf(out,
            "training step, mixer %s, preset %s, %" PRId64 " layers, width %" PRId64 ", %" PRId64 " heads, %" PRId64
            " components, vocabulary %" PRId64 "%s\ntier %s, %" PRId64 " threads, version %s; median of %" PRId64
            " steps, parts in ms\n\n%8s  %6s  %10s  %9s  %9s  %9s  %9s  %9s  %9s\n",
            r->mixer, r->preset, r->layers, r->width, r->heads, r->components, r->vocab,
            r->recompute ? ", activations recomputed" : "", r->isa, r->threads, r->version, r->repeat, "length", "batch",
            "tokens/s", "step ms", "products", "mixer", "optimizer", "rest", "peak MiB");
    for (int i = 0; i < count; i++) {
        r = &rows[i];
        fprintf(out, "%8" PRId64 "  %6" PRId64 "  %10.1f  %9.4g  %9.4g  %9.4g  %9.4g  %9.4g  %9.0f\n", r->length, r->batch,
                r->tokens_per_second, r->step.median, r->products_ms, r->mixer_ms, r->optimizer_ms, r->rest_ms,
                (double)r->peak_rss_bytes / 1048576.0);
    }
}

/* ---- One length --------------------------------------------------------------------------------------------- */

static gma_status set_number(gma_settings *s, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return gma_settings_set(s, name, text);
}

static gma_status make_settings(const train_options *o, int64_t length, int64_t batch, gma_settings **settings) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"layers", o->layers},         {"width", o->width},   {"heads", o->heads},     {"components", o->components},
        {"vocab", o->vocab},           {"context", length},   {"batch", batch},        {"threads", o->threads},
        {"recompute", o->recompute},
    };
    gma_status status = gma_settings_create(o->preset, settings);
    if (status == GMA_OK) {
        status = gma_settings_set(*settings, "mixer", o->mixer);
    }
    if (status == GMA_OK) {
        status = gma_settings_set(*settings, "tokens", "u16"); /* any vocabulary */
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == GMA_OK; i++) {
        if (numbers[i].value == 0 && strcmp(numbers[i].name, "components") == 0) {
            continue; /* the mixer has none */
        }
        status = set_number(*settings, numbers[i].name, numbers[i].value);
    }
    return status;
}

static int by_time(const void *a, const void *b) {
    const gma_train_times *x = a, *y = b;
    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

/* The parts are those of the step whose time is the median; of an even number, the means of the middle two, as the median is. */
static void set_parts(train_row *row, gma_train_times *times, int count) {
    qsort(times, (size_t)count, sizeof *times, by_time);
    const gma_train_times *low = &times[(count - 1) / 2], *high = &times[count / 2];
    row->products_ms = 500 * (low->products + high->products);
    row->mixer_ms = 500 * (low->mixer + high->mixer);
    row->optimizer_ms = 500 * (low->optimizer + high->optimizer);
    row->rest_ms = row->step.median - row->products_ms - row->mixer_ms - row->optimizer_ms;
}

static gma_status run_steps(gma_train_bench *bench, const int32_t *tokens, int64_t count, train_row *row) {
    gma_train_times *times = calloc((size_t)row->repeat, sizeof *times), warm = {.struct_size = sizeof warm};
    gma_status status = times == NULL ? gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for samples")
                                      : bench_make_samples(&row->step, row->repeat);
    if (status == GMA_OK) {
        status = gma_train_bench_step(bench, tokens, tokens + count, &warm); /* makes pages and code */
    }
    for (int i = 0; i < row->step.count && status == GMA_OK; i++) {
        times[i].struct_size = sizeof times[i];
        status = gma_train_bench_step(bench, tokens, tokens + count, &times[i]);
        row->step.ms[i] = 1e3 * times[i].seconds;
    }
    if (status == GMA_OK) {
        bench_summarise(&row->step);
        row->tokens_per_second = 1e3 * (double)count / row->step.median;
        row->loss = times[row->step.count - 1].loss;
        set_parts(row, times, row->step.count);
    }
    free(times);
    return status;
}

/* The tokens: without pattern, the same on every machine. */
static gma_status make_tokens(int64_t count, int64_t vocab, int32_t **tokens) {
    void *p;
    const gma_status status = bench_allocate((size_t)count * sizeof(int32_t), &p);
    uint64_t seed = 1;
    *tokens = p;
    for (int64_t i = 0; i < count && status == GMA_OK; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        (*tokens)[i] = (int32_t)((seed >> 33) % (uint64_t)vocab);
    }
    return status;
}

/* Gaussians or features: a parameter whose shape names them. */
static int has_components(const char *mixer) {
    gma_mixer_kind kind;
    int count = 0;
    if (gma_mixer_kind_from_name(mixer, &kind) != GMA_OK) {
        return 0; /* making the settings says so */
    }
    const gma_slot_info *slots = gma_mixer_slots(kind, &count);
    for (int i = 0; i < count; i++) {
        if (slots[i].slot == GMA_MU || slots[i].slot == GMA_FEATURES) {
            return 1;
        }
    }
    return 0;
}

static gma_status measure(const train_options *o, int64_t length, train_row *row) {
    const int64_t batch = length < o->tokens ? o->tokens / length : 1, count = batch * length;
    *row = (train_row){.mixer = o->mixer,
                       .preset = o->preset,
                       .version = gma_version(),
                       .length = length,
                       .batch = batch,
                       .layers = o->layers,
                       .width = o->width,
                       .heads = o->heads,
                       .components = o->components,
                       .vocab = o->vocab,
                       .recompute = o->recompute,
                       .threads = o->threads > 0 ? o->threads : gma_max_threads(),
                       .repeat = o->repeat};
    gma_isa isa;
    gma_settings *settings = NULL;
    gma_train_bench *bench = NULL;
    int32_t *tokens = NULL;
    bench_forget_peak_rss();
    gma_status status = gma_isa_default(&isa);
    if (status == GMA_OK) {
        row->isa = gma_isa_name(isa);
        status = make_tokens(2 * count, o->vocab, &tokens);
    }
    if (status == GMA_OK) {
        status = make_settings(o, length, batch, &settings);
    }
    if (status == GMA_OK) {
        status = gma_train_bench_create(settings, &bench);
    }
    if (status == GMA_OK) {
        row->parameters = gma_lm_parameter_count(gma_train_bench_model(bench));
        status = run_steps(bench, tokens, count, row);
    }
    row->peak_rss_bytes = bench_peak_rss();
    gma_train_bench_destroy(bench);
    gma_settings_destroy(settings);
    free(tokens);
    return status;
}

static gma_status run(const train_options *o, const int64_t *lengths, int count) {
    train_row *rows = calloc((size_t)count, sizeof *rows);
    gma_status status = rows == NULL ? gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %d results", count) : GMA_OK;
    for (int i = 0; i < count && status == GMA_OK; i++) {
        status = measure(o, lengths[i], &rows[i]);
    }
    if (status == GMA_OK) {
        if (o->format == 0) {
            print_table(stdout, rows, count);
        } else {
            (o->format == 1 ? bench_json : bench_csv)(stdout, &table, rows, count);
        }
    }
    for (int i = 0; i < count && rows != NULL; i++) {
        free(rows[i].step.ms);
    }
    free(rows);
    return status;
}

int gma_bench_train(int argc, char **argv) {
    train_options o;
    gma_cli_option options[] = {
        GMA_CLI_GROUP("What"),
        {.name = "mixer", .type = GMA_CLI_STRING, .hint = "NAME", .def = "gma", .value = &o.mixer,
         .help = "which sequence mixer"},
        {.name = "preset", .type = GMA_CLI_STRING, .hint = "NAME", .def = "paper", .value = &o.preset,
         .help = "the block: paper (plain, as its PyTorch counterpart), default (every option of the mixer), .."},
        {.name = "recompute", .type = GMA_CLI_FLAG, .value = &o.recompute,
         .help = "keep only the input of each block for backward"},
        GMA_CLI_GROUP("Shape"),
        {.name = "length", .type = GMA_CLI_STRING, .hint = "LIST", .def = "256,1024,4096", .value = &o.lengths,
         .help = "tokens of a sequence: N, FIRST..LAST (doubling), FIRST..LAST+STEP, joined by commas"},
        {.name = "tokens", .type = GMA_CLI_INT, .hint = "N", .def = "4096", .min = 1, .max = 1 << 24, .value = &o.tokens,
         .help = "tokens of a step: as many sequences as fit, at least one"},
        {.name = "layers", .type = GMA_CLI_INT, .hint = "N", .def = "4", .min = 1, .max = 1000, .value = &o.layers,
         .help = "blocks"},
        {.name = "width", .type = GMA_CLI_INT, .hint = "N", .def = "512", .min = 1, .max = 1 << 20, .value = &o.width,
         .help = "width of the residual stream"},
        {.name = "heads", .type = GMA_CLI_INT, .hint = "N", .def = "8", .min = 1, .max = 4096, .value = &o.heads,
         .help = "heads"},
        {.name = "components", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 65536,
         .value = &o.components, .help = "Gaussians or features a head; 0 = 128 where the mixer has such"},
        {.name = "vocab", .type = GMA_CLI_INT, .hint = "N", .def = "256", .min = 2, .max = 65536, .value = &o.vocab,
         .help = "tokens there are"},
        GMA_CLI_GROUP("How"),
        GMA_CLI_OPTION_THREADS(&o.threads),
        {.name = "repeat", .type = GMA_CLI_INT, .hint = "N", .def = "5", .min = 1, .max = 1000000, .value = &o.repeat,
         .help = "steps that are timed, after one that is not"},
        {.name = "format", .type = GMA_CLI_CHOICE, .hint = "table|json|csv", .def = "table", .value = &o.format,
         .help = "how to print the result"},
    };
    const gma_cli_spec spec = {
        .verb = "bench train",
        .operands = "",
        .about = "how fast language models train on this machine",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "A step: gradients to 0, forward, loss, backward, norm and clipping of the gradient, AdamW. tokens_per_second is\n"
                 "by the median. The parts (dense products, mixer, optimizer, the rest) are those of the median step, or the mean\n"
                 "of the two in the middle. bench/compare_train.py\n"
                 "runs the same beside PyTorch. GMA_ISA in the environment sets the CPU tier.",
    };
    const char *operands[1];
    int count;
    int64_t lengths[BENCH_MAX_LENGTHS];
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code < 0 && (count = bench_read_lengths(o.lengths, lengths)) < 0) {
        code = gma_cli_misuse(&spec, "--length must be at most %d whole numbers from 1 to 2^32, joined by commas, not \"%s\"",
                              BENCH_MAX_LENGTHS, o.lengths);
    }
    if (code < 0 && o.components == 0 && has_components(o.mixer)) {
        o.components = 128;
    }
    if (code < 0) {
        code = run(&o, lengths, count) == GMA_OK ? 0 : gma_cli_fail(&spec);
    }
    return code;
}
