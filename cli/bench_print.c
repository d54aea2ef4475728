/* Results as a table, JSON or CSV. One list of fields serves both of the latter. */
#include "cli/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "cli/options.h"

typedef enum field_type { TEXT, CHARS, WHOLE, FLAG, REAL, SAMPLES } field_type;
typedef enum field_when { ALWAYS, WHEN_COLD, WHEN_DECODE, WHEN_COLD_DECODE } field_when;

typedef struct field {
    const char *name;
    field_type type;
    size_t offset;
    field_when when; /* null, or empty, otherwise */
} field;

#define AT(member) offsetof(bench_row, member)

static const field fields[] = {
    {"mixer", TEXT, AT(mixer), ALWAYS},
    {"pass", TEXT, AT(pass), ALWAYS},
    {"causal", FLAG, AT(causal), ALWAYS},
    {"batch", WHOLE, AT(batch), ALWAYS},
    {"heads", WHOLE, AT(heads), ALWAYS},
    {"kv_heads", WHOLE, AT(kv_heads), ALWAYS},
    {"length", WHOLE, AT(length), ALWAYS},
    {"dim", WHOLE, AT(dim), ALWAYS},
    {"components", WHOLE, AT(components), ALWAYS},
    {"dtype", TEXT, AT(dtype), ALWAYS},
    {"decay", FLAG, AT(decay), ALWAYS},
    {"scale", FLAG, AT(scale), ALWAYS},
    {"median_ms", REAL, AT(warm.median), ALWAYS},
    {"min_ms", REAL, AT(warm.min), ALWAYS},
    {"samples_ms", SAMPLES, AT(warm), ALWAYS},
    {"cold_median_ms", REAL, AT(cold_samples.median), WHEN_COLD},
    {"cold_min_ms", REAL, AT(cold_samples.min), WHEN_COLD},
    {"cold_samples_ms", SAMPLES, AT(cold_samples), WHEN_COLD},
    {"scrub_bytes", WHOLE, AT(scrub_bytes), WHEN_COLD},
    {"gflops", REAL, AT(gflops), ALWAYS},
    {"peak_gflops", REAL, AT(peak.gflops), ALWAYS},
    {"efficiency", REAL, AT(efficiency), ALWAYS},
    {"peak_by", CHARS, AT(peak.by), ALWAYS},
    {"peak_isa", CHARS, AT(peak.isa), ALWAYS},
    {"peak_size", WHOLE, AT(peak.size), ALWAYS},
    {"workspace_bytes", WHOLE, AT(workspace_bytes), ALWAYS},
    {"peak_rss_bytes", WHOLE, AT(peak_rss_bytes), ALWAYS},
    {"state_bytes", WHOLE, AT(state_bytes), WHEN_DECODE},
    {"floor_ms", REAL, AT(floor_ms), WHEN_DECODE},
    {"cold_floor_ms", REAL, AT(cold_floor_ms), WHEN_COLD_DECODE},
    {"isa", TEXT, AT(isa), ALWAYS},
    {"threads", WHOLE, AT(threads), ALWAYS},
    {"repeat", WHOLE, AT(repeat), ALWAYS},
    {"version", TEXT, AT(version), ALWAYS},
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

static int is_there(const field *f, const bench_row *row) {
    return f->when == ALWAYS || ((f->when == WHEN_DECODE || row->cold) && (f->when == WHEN_COLD || row->state_bytes > 0));
}

static void print_real(FILE *out, double x) { fprintf(out, "%.6g", isfinite(x) ? x : 0.0); }

static void print_samples(FILE *out, const bench_samples *s, const char *between) {
    for (int i = 0; i < s->count; i++) {
        fputs(i > 0 ? between : "", out);
        print_real(out, s->ms[i]);
    }
}

static void print_value(FILE *out, const field *f, const bench_row *row, int json) {
    const void *at = (const char *)row + f->offset;
    if (!is_there(f, row)) {
        fputs(json ? "null" : "", out);
        return;
    }
    const char *text = f->type == TEXT ? *(const char *const *)at : at;
    switch (f->type) {
    case TEXT:
    case CHARS:
        if (json) {
            gma_cli_json_string(out, text);
        } else {
            fputs(text, out);
        }
        break;
    case WHOLE:
        fprintf(out, "%" PRId64, *(const int64_t *)at);
        break;
    case FLAG:
        fputs(json ? (*(const int64_t *)at ? "true" : "false") : (*(const int64_t *)at ? "1" : "0"), out);
        break;
    case REAL:
        print_real(out, *(const double *)at);
        break;
    case SAMPLES:
        fputs(json ? "[" : "", out);
        print_samples(out, at, json ? ", " : ";");
        fputs(json ? "]" : "", out);
        break;
    }
}

void bench_print_json(FILE *out, const bench_row *rows, int count) {
    fputs("[", out);
    for (int i = 0; i < count; i++) {
        fputs(i > 0 ? ",\n {" : "\n {", out);
        for (int j = 0; j < FIELDS; j++) {
            fprintf(out, "%s\"%s\": ", j > 0 ? ", " : "", fields[j].name);
            print_value(out, &fields[j], &rows[i], 1);
        }
        fputs("}", out);
    }
    fputs("\n]\n", out);
}

void bench_print_csv(FILE *out, const bench_row *rows, int count) {
    for (int j = 0; j < FIELDS; j++) {
        fprintf(out, "%s%s", j > 0 ? "," : "", fields[j].name);
    }
    fputc('\n', out);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < FIELDS; j++) {
            fputs(j > 0 ? "," : "", out);
            print_value(out, &fields[j], &rows[i], 0);
        }
        fputc('\n', out);
    }
}

static void print_size(FILE *out, int64_t bytes) {
    fprintf(out, "  %11.2f", (double)bytes / (1024.0 * 1024.0));
}

void bench_print_table(FILE *out, const bench_row *rows, int count) {
    const bench_row *r = &rows[0];
    const int decode = r->state_bytes > 0;
    fprintf(out, "%s %s%s%s%s, %s, batch %" PRId64 ", %" PRId64 " heads (%" PRId64 " for keys), width %" PRId64 ", %" PRId64
                 " components\ntier %s, %" PRId64 " threads, version %s\n",
            r->mixer, r->pass, r->causal ? " causal" : "", r->decay ? " decay" : "", r->scale ? " scale" : "", r->dtype,
            r->batch, r->heads, r->kv_heads, r->dim, r->components, r->isa, r->threads, r->version);
    fprintf(out, "product of two f32 matrices of %" PRId64 " rows by %s (%s): %.1f GFLOP/s\n", r->peak.size, r->peak.by,
            r->peak.isa, r->peak.gflops);
    fprintf(out, "median of %" PRId64 " calls%s; warm: the same buffers again", r->repeat,
            decode ? " (ms per token of each sequence)" : "");
    if (r->cold) {
        fprintf(out, "; cold: after every thread's share of %" PRId64 " MiB has passed through the caches",
                r->scrub_bytes >> 20);
    }
    fprintf(out, "\n\n%12s  %12s  %12s  %12s  %9s  %7s  %11s  %11s%s\n", decode ? "position" : "length", "warm ms", "min ms",
            "cold ms", "GFLOP/s", "of peak", "work MiB", "peak MiB", decode ? "     floor ms  cold floor" : "");
    for (int i = 0; i < count; i++) {
        r = &rows[i];
        fprintf(out, "%12" PRId64 "  %12.5g  %12.5g  ", r->length, r->warm.median, r->warm.min);
        if (r->cold) {
            fprintf(out, "%12.5g", r->cold_samples.median);
        } else {
            fprintf(out, "%12s", "-");
        }
        fprintf(out, "  %9.1f  %6.1f%%", r->gflops, 100.0 * r->efficiency);
        print_size(out, r->workspace_bytes);
        print_size(out, r->peak_rss_bytes);
        if (decode) {
            fprintf(out, "  %11.5g", r->floor_ms);
            if (r->cold) {
                fprintf(out, "  %10.5g", r->cold_floor_ms);
            }
        }
        fputc('\n', out);
    }
}
