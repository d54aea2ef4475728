/* gma bench op - how fast one mixer runs here. */
#include "cli/bench.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "gma/bench.h"

enum { WARM_CALLS = 2 };
static const double warm_seconds = 0.05; /* clocks up, threads started, pages there */
static const double step_seconds = 0.002; /* a sample of decoding holds as many steps as take this long */

typedef struct bench_options {
    const char *mixer, *isa, *lengths;
    int pass, causal, bf16, format, decay, scale, cold;
    int64_t batch, heads, kv_heads, packed, routing_dim, dim, components, threads, repeat, scrub_mib;
} bench_options;

/* ---- Samples ------------------------------------------------------------------------------------------------ */

/* What is timed: the call, or (floor) only reading and writing what a decoding step must. */
typedef struct workload {
    bench_case *c;
    float *read, *update, *scrub; /* the last pushes all else out of the caches; NULL: warm */
    size_t reads, updates, scrubs;
    int64_t steps; /* calls in a sample */
    int floor;
} workload;

static gma_status run_once(const workload *w) {
    return w->floor ? gma_memory_pass(w->read, w->reads, w->update, w->updates, w->c->shape.threads)
                    : bench_case_run(w->c);
}

static gma_status sample(const workload *w, bench_samples *s) {
    gma_status status = GMA_OK;
    for (int i = 0; i < s->count && status == GMA_OK; i++) {
        if (w->scrub != NULL) {
            status = gma_memory_pass(NULL, 0, w->scrub, w->scrubs, w->c->shape.threads);
        }
        const double start = bench_now_ms();
        for (int64_t j = 0; j < w->steps && status == GMA_OK; j++) {
            status = run_once(w);
        }
        s->ms[i] = (bench_now_ms() - start) / (double)w->steps;
    }
    if (status == GMA_OK) {
        bench_summarise(s);
    }
    return status;
}

/* At least WARM_CALLS calls and warm_seconds; of decoding, as many steps as make a sample are then counted out. */
static gma_status warm_up(workload *w) {
    gma_status status = GMA_OK;
    const double start = bench_now_ms();
    int64_t calls = 0;
    while (status == GMA_OK && (calls < WARM_CALLS || bench_now_ms() - start < 1e3 * warm_seconds)) {
        status = run_once(w);
        calls++;
    }
    const double each = (bench_now_ms() - start) / (double)calls;
    w->steps = w->c->shape.pass == BENCH_DECODE ? 1 + (int64_t)(1e3 * step_seconds / (each + 1e-6)) : 1;
    return status;
}

/* ---- One length --------------------------------------------------------------------------------------------- */

/* Warm samples, then the peak of memory, then cold ones: what scrubs the caches is no part of that memory. */
static gma_status measure_warm_and_cold(workload *w, const bench_options *o, bench_samples *warm, bench_samples *cold,
                                        int64_t *rss) {
    gma_status status = bench_make_samples(warm, o->repeat);
    if (status == GMA_OK) {
        status = warm_up(w);
    }
    if (status == GMA_OK) {
        status = sample(w, warm);
    }
    if (rss != NULL) {
        *rss = bench_peak_rss();
    }
    if (status != GMA_OK || !o->cold) {
        return status;
    }
    status = bench_make_samples(cold, o->repeat);
    void *scrub = NULL;
    if (status == GMA_OK) {
        status = bench_allocate((size_t)o->scrub_mib << 20, &scrub);
    }
    if (status == GMA_OK) {
        w->scrub = scrub;
        w->scrubs = ((size_t)o->scrub_mib << 20) / sizeof(float);
        w->steps = 1;
        status = sample(w, cold);
        w->scrub = NULL;
    }
    free(scrub);
    return status;
}

/* What a step cannot avoid: reading mu, omega, alpha (and logit_scale) once; and for each sequence and key head, of the
 * stored sums, K (D + 1) values that are read and as many that are read and written. */
static gma_status measure_floor(bench_case *c, const bench_options *o, bench_row *row) {
    const bench_shape *s = &c->shape;
    const size_t k = (size_t)s->components, r = (size_t)s->routing_dim, d = (size_t)s->dim, h = (size_t)s->kv_heads;
    const size_t sums = (size_t)s->batch * h * k * (d + 1);
    const size_t cached = s->kind == GMA_MIXER_SOFTMAX ? (size_t)s->length : 0; /* keys and values so far */
    workload w = {.c = c, .floor = 1, .reads = h * k * (2 * r + 1) + sums, .updates = sums};
    if (s->kind == GMA_MIXER_MAMBA) { /* A, D, delta_bias; h in and out */
        w.updates = (size_t)s->batch * (size_t)s->heads * d * k;
        w.reads = (size_t)s->heads * d * (k + 2);
    } else if (cached > 0) {
        w.reads = (size_t)s->batch * h * cached * (r + d);
        w.updates = (size_t)s->batch * h * (r + d);
    }
    void *read = NULL, *update = NULL;
    bench_samples warm = {0}, cold = {0};
    gma_status status = bench_allocate(w.reads * sizeof(float), &read);
    if (status == GMA_OK) {
        status = bench_allocate(w.updates * sizeof(float), &update);
    }
    w.read = read;
    w.update = update;
    if (status == GMA_OK) {
        status = measure_warm_and_cold(&w, o, &warm, &cold, NULL);
    }
    row->floor_ms = warm.median;
    row->cold_floor_ms = cold.median;
    free(warm.ms);
    free(cold.ms);
    free(read);
    free(update);
    return status;
}

static gma_status measure(const bench_options *o, const bench_shape *shape, bench_row *row) {
    bench_case c;
    gma_mixer_desc used;
    bench_forget_peak_rss();
    gma_status status = bench_case_open(&c, shape);
    workload w = {.c = &c};
    if (status == GMA_OK) {
        status = measure_warm_and_cold(&w, o, &row->warm, &row->cold_samples, &row->peak_rss_bytes);
    }
    if (status == GMA_OK) {
        status = gma_mixer_get_desc(c.mixer, &used);
    }
    if (status == GMA_OK) { /* what the mixer made of the options: one without components has none, .. */
        row->causal = used.causal;
        row->kv_heads = used.kv_heads;
        row->routing_dim = used.routing_dim;
        row->components = used.components;
        row->isa = gma_isa_name((gma_isa)used.isa);
        row->gflops = 1e-6 * bench_useful_flops(shape) / row->warm.median;
        row->workspace_bytes = (int64_t)bench_case_workspace(&c);
        row->state_bytes = (int64_t)c.state_bytes;
        if (shape->pass == BENCH_DECODE) {
            status = measure_floor(&c, o, row);
        }
    }
    bench_case_close(&c);
    return status;
}

/* ---- All lengths -------------------------------------------------------------------------------------------- */

static const char *const pass_names[] = {"fwd", "fwdbwd", "decode"};

static void describe(const bench_options *o, const bench_shape *s, int threads, bench_row *row) {
    row->mixer = o->mixer;
    row->pass = pass_names[s->pass];
    row->dtype = s->bf16 ? "bf16" : "f32";
    row->version = gma_version();
    row->decay = s->decay;
    row->scale = s->scale;
    row->threads = threads;
    row->repeat = o->repeat;
    row->cold = o->cold;
    row->scrub_bytes = o->scrub_mib << 20;
    row->batch = s->batch;
    row->heads = s->heads;
    row->length = s->length;
    row->packed = s->packed;
    row->dim = s->dim;
}

/* The peak is measured before, between and after the lengths, and the best of them counts: another program that takes
 * the machine for a moment must not make us look good. */
static gma_status measure_all(const bench_options *o, bench_shape *shape, const int64_t *lengths, int count,
                              bench_row *rows) {
    gma_gemm_speed best = {0}, speed = {.struct_size = sizeof speed};
    gma_status status = bench_check(shape);
    const int threads = shape->threads > 0 ? shape->threads : gma_max_threads();
    for (int i = 0; i <= count && status == GMA_OK; i++) {
        status = gma_gemm_peak(shape->isa, shape->threads, &speed);
        if (status == GMA_OK && speed.gflops > best.gflops) {
            best = speed;
        }
        if (status == GMA_OK && i < count) {
            shape->length = lengths[i];
            describe(o, shape, threads, &rows[i]);
            status = measure(o, shape, &rows[i]);
        }
    }
    for (int i = 0; i < count && status == GMA_OK; i++) {
        rows[i].peak = best;
        rows[i].efficiency = rows[i].gflops / best.gflops;
    }
    return status;
}

static gma_status run(const bench_options *o, bench_shape *shape, const int64_t *lengths, int count) {
    static void (*const print[])(FILE *, const bench_row *, int) = {bench_print_table, bench_print_json, bench_print_csv};
    bench_row *rows = calloc((size_t)count, sizeof *rows);
    if (rows == NULL) {
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %d results", count);
    }
    const gma_status status = measure_all(o, shape, lengths, count, rows);
    if (status == GMA_OK) {
        print[o->format](stdout, rows, count);
    }
    for (int i = 0; i < count; i++) {
        free(rows[i].warm.ms);
        free(rows[i].cold_samples.ms);
    }
    free(rows);
    return status;
}

/* Options without meaning for the mixer are accepted, and then neither used nor told. */
static void forget_options(bench_options *o, const bench_shape *shape) {
    const gma_mixer_kind kind = shape->kind;
    o->decay = o->decay && bench_has_slot(kind, GMA_LOG_DECAY);
    o->scale = o->scale && bench_has_slot(kind, GMA_LOGIT_SCALE);
    o->kv_heads = bench_has_slot(kind, GMA_K) && !shape->store_scores ? o->kv_heads : 0; /* mha: no grouped heads */
}

static int check_options(const gma_cli_spec *spec, const bench_options *o, const bench_shape *shape) {
    if (o->heads % (o->kv_heads > 0 ? o->kv_heads : o->heads) != 0) {
        return gma_cli_misuse(spec, "--kv-heads must divide --heads");
    }
    if (o->packed > 0 && (!bench_has_slot(shape->kind, GMA_CU_SEQLENS) || shape->store_scores)) {
        return gma_cli_misuse(spec, "--packed: mixer '%s' cannot mix packed sequences", o->mixer);
    }
    if (o->packed > 0 && (o->batch > 1 || o->pass == BENCH_DECODE)) {
        return gma_cli_misuse(spec, "--packed is for one row of tokens: neither --batch nor --pass decode go with it");
    }
    if (o->decay && o->pass != BENCH_DECODE && !o->causal) {
        return gma_cli_misuse(spec, "--decay needs --causal");
    }
    return -1;
}

int gma_bench_op(int argc, char **argv) {
    bench_options o;
    gma_cli_option options[] = {
        GMA_CLI_GROUP("What"),
        {.name = "mixer", .type = GMA_CLI_STRING, .hint = "NAME", .def = "gma", .value = &o.mixer,
         .help = "which sequence mixer; mha is softmax with all scores stored, quadratic in memory"},
        {.name = "pass", .type = GMA_CLI_CHOICE, .hint = "fwd|fwdbwd|decode", .def = "fwd", .value = &o.pass,
         .help = "forward; a forward that saves, and the backward to every input and parameter; or one token at a time"},
        {.name = "causal", .type = GMA_CLI_FLAG, .value = &o.causal, .help = "see only the past (decode always does)"},
        {.name = "decay", .type = GMA_CLI_FLAG, .value = &o.decay, .help = "with a forget gate (log_decay)"},
        {.name = "scale", .type = GMA_CLI_FLAG, .value = &o.scale, .help = "with a temperature a head (logit_scale)"},
        {.name = "dtype", .type = GMA_CLI_CHOICE, .hint = "f32|bf16", .def = "f32", .value = &o.bf16,
         .help = "how q, k, v, o and their gradients are stored"},
        GMA_CLI_GROUP("Shape"),
        {.name = "length", .type = GMA_CLI_STRING, .hint = "LIST", .def = "4096", .value = &o.lengths,
         .help = "tokens, or the position of decode: N, FIRST..LAST (doubling), FIRST..LAST+STEP, joined by commas"},
        {.name = "batch", .type = GMA_CLI_INT, .hint = "N", .def = "1", .min = 1, .max = 1048576, .value = &o.batch,
         .help = "sequences"},
        {.name = "heads", .type = GMA_CLI_INT, .hint = "N", .def = "8", .min = 1, .max = 65536, .value = &o.heads,
         .help = "query heads"},
        {.name = "kv-heads", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 65536, .value = &o.kv_heads,
         .help = "key and value heads; 0 = as many as query heads"},
        {.name = "packed", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 16777216, .value = &o.packed,
         .help = "so many sequences, as equal as can be, share the tokens (cu_seqlens); 0 = not packed"},
        {.name = "dim", .type = GMA_CLI_INT, .hint = "N", .def = "64", .min = 1, .max = 65536, .value = &o.dim,
         .help = "width D of values, and of routing"},
        {.name = "routing-dim", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 65536,
         .value = &o.routing_dim, .help = "width R of queries and keys; 0 = dim"},
        {.name = "components", .type = GMA_CLI_INT, .hint = "N", .def = "128", .min = 1, .max = 65536,
         .value = &o.components, .help = "Gaussians a head; performer: features; linformer: rows"},
        GMA_CLI_GROUP("How"),
        GMA_CLI_OPTION_ISA(&o.isa),
        GMA_CLI_OPTION_THREADS(&o.threads),
        {.name = "repeat", .type = GMA_CLI_INT, .hint = "N", .def = "9", .min = 1, .max = 1000000, .value = &o.repeat,
         .help = "samples, warm and cold each"},
        {.name = "cold", .type = GMA_CLI_FLAG, .def = "1", .value = &o.cold,
         .help = "also measure with empty caches"},
        {.name = "scrub", .type = GMA_CLI_INT, .hint = "MIB", .def = "256", .min = 1, .max = 65536,
         .value = &o.scrub_mib, .help = "what is read and written before each cold sample"},
        {.name = "format", .type = GMA_CLI_CHOICE, .hint = "table|json|csv", .def = "table", .value = &o.format,
         .help = "how to print the result"},
    };
    const gma_cli_spec spec = {
        .verb = "bench op",
        .operands = "",
        .about = "how fast one mixer runs on this machine",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes =
            "A small case is first compared with the definition in double; if it differs, nothing is timed.\n"
            "median_ms, min_ms and gflops are warm: the same buffers again and again. cold_*: the caches of all threads\n"
            "were filled with other data before each call. GFLOP/s counts useful work a token, K = components:\n"
            "forward 8KR + 4KD, backward 24KR + 10KD more (with grouped heads the keys' part once a key head);\n"
            "softmax and mha: for each query and key it sees, forward 2R + 2D, backward 6R + 4D more.\n"
            "peak_gflops is the best large f32 product by oneDNN in this run, with the same threads and held to the same\n"
            "tier (SSE4.1 for scalar). workspace_bytes: scratch, what is saved for backward, and the state of decode.\n"
            "peak_rss_bytes: of the process, caches still warm. decode: ms a token of each sequence, starting at the\n"
            "position; floor_ms: reading the parameters and the stored state once, and writing what changes of it; softmax:\n"
            "reading the keys and values so far once (the window is the position: every step sees as many). An option that\n"
            "a mixer has no use for is accepted and not recorded: JSON then has null for components, false for decay.",
    };
    const char *operands[1];
    int count;
    bench_shape shape = {0};
    int64_t lengths[BENCH_MAX_LENGTHS];
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    shape.store_scores = code < 0 && strcmp(o.mixer, "mha") == 0;
    if (shape.store_scores) {
        shape.kind = GMA_MIXER_SOFTMAX;
    } else if (code < 0 && gma_mixer_kind_from_name(o.mixer, &shape.kind) != GMA_OK) {
        code = gma_cli_misuse(&spec, "--mixer: %s", gma_last_error());
    }
    if (code < 0 && (count = bench_read_lengths(o.lengths, lengths)) < 0) {
        code = gma_cli_misuse(&spec,
                              "--length must be at most %d whole numbers from 1 to 2^32 as N, FIRST..LAST or "
                              "FIRST..LAST+STEP, joined by commas, not \"%s\"",
                              BENCH_MAX_LENGTHS, o.lengths);
    }
    for (int i = 0; i < count && code < 0; i++) {
        if (o.packed > lengths[i]) {
            code = gma_cli_misuse(&spec, "--packed %" PRId64 " sequences need as many tokens; --length has %" PRId64, o.packed,
                                  lengths[i]);
        }
    }
    if (code < 0) {
        forget_options(&o, &shape);
        code = check_options(&spec, &o, &shape);
    }
    if (code < 0) {
        code = gma_cli_isa(&spec, o.isa, &shape.isa);
    }
    if (code < 0) {
        shape.pass = (bench_pass)o.pass;
        shape.causal = o.causal;
        shape.bf16 = o.bf16;
        shape.decay = o.decay;
        shape.scale = o.scale;
        shape.threads = (int)o.threads;
        shape.batch = o.batch;
        shape.heads = o.heads;
        shape.kv_heads = o.kv_heads > 0 ? o.kv_heads : o.heads;
        shape.dim = o.dim;
        shape.packed = o.packed;
        shape.routing_dim = o.routing_dim > 0 ? o.routing_dim : o.dim;
        shape.components = o.components;
        code = run(&o, &shape, lengths, count) == GMA_OK ? 0 : gma_cli_fail(&spec);
    }
    return code;
}
