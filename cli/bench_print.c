/* Results of gma bench op. */
#include "cli/bench.h"

#include <inttypes.h>
#include <stddef.h>

typedef enum field_when { ALWAYS, WHEN_COLD, WHEN_DECODE, WHEN_COLD_DECODE, WHEN_COMPONENTS, WHEN_PACKED } field_when;

#define AT(member) offsetof(bench_row, member)

static const bench_field fields[] = {
    {"mixer", BENCH_TEXT, AT(mixer), ALWAYS},
    {"pass", BENCH_TEXT, AT(pass), ALWAYS},
    {"causal", BENCH_FLAG, AT(causal), ALWAYS},
    {"batch", BENCH_WHOLE, AT(batch), ALWAYS},
    {"heads", BENCH_WHOLE, AT(heads), ALWAYS},
    {"kv_heads", BENCH_WHOLE, AT(kv_heads), ALWAYS},
    {"length", BENCH_WHOLE, AT(length), ALWAYS},
    {"packed", BENCH_WHOLE, AT(packed), WHEN_PACKED},
    {"routing_dim", BENCH_WHOLE, AT(routing_dim), ALWAYS},
    {"dim", BENCH_WHOLE, AT(dim), ALWAYS},
    {"components", BENCH_WHOLE, AT(components), WHEN_COMPONENTS},
    {"dtype", BENCH_TEXT, AT(dtype), ALWAYS},
    {"decay", BENCH_FLAG, AT(decay), ALWAYS},
    {"scale", BENCH_FLAG, AT(scale), ALWAYS},
    {"median_ms", BENCH_REAL, AT(warm.median), ALWAYS},
    {"min_ms", BENCH_REAL, AT(warm.min), ALWAYS},
    {"samples_ms", BENCH_SAMPLES, AT(warm), ALWAYS},
    {"cold_median_ms", BENCH_REAL, AT(cold_samples.median), WHEN_COLD},
    {"cold_min_ms", BENCH_REAL, AT(cold_samples.min), WHEN_COLD},
    {"cold_samples_ms", BENCH_SAMPLES, AT(cold_samples), WHEN_COLD},
    {"scrub_bytes", BENCH_WHOLE, AT(scrub_bytes), WHEN_COLD},
    {"gflops", BENCH_REAL, AT(gflops), ALWAYS},
    {"peak_gflops", BENCH_REAL, AT(peak.gflops), ALWAYS},
    {"efficiency", BENCH_REAL, AT(efficiency), ALWAYS},
    {"peak_by", BENCH_CHARS, AT(peak.by), ALWAYS},
    {"peak_isa", BENCH_CHARS, AT(peak.isa), ALWAYS},
    {"peak_size", BENCH_WHOLE, AT(peak.size), ALWAYS},
    {"workspace_bytes", BENCH_WHOLE, AT(workspace_bytes), ALWAYS},
    {"peak_rss_bytes", BENCH_WHOLE, AT(peak_rss_bytes), ALWAYS},
    {"state_bytes", BENCH_WHOLE, AT(state_bytes), WHEN_DECODE},
    {"floor_ms", BENCH_REAL, AT(floor_ms), WHEN_DECODE},
    {"cold_floor_ms", BENCH_REAL, AT(cold_floor_ms), WHEN_COLD_DECODE},
    {"isa", BENCH_TEXT, AT(isa), ALWAYS},
    {"threads", BENCH_WHOLE, AT(threads), ALWAYS},
    {"repeat", BENCH_WHOLE, AT(repeat), ALWAYS},
    {"version", BENCH_TEXT, AT(version), ALWAYS},
};

static int is_there(int when, const void *at) {
    const bench_row *row = at;
    if (when == WHEN_COMPONENTS) {
        return row->components > 0;
    }
    if (when == WHEN_PACKED) {
        return row->packed > 0;
    }
    return (when == WHEN_DECODE || row->cold) && (when == WHEN_COLD || row->state_bytes > 0);
}

static const bench_table table = {fields, sizeof fields / sizeof fields[0], sizeof(bench_row), is_there};

void bench_print_json(FILE *out, const bench_row *rows, int count) { bench_json(out, &table, rows, count); }

void bench_print_csv(FILE *out, const bench_row *rows, int count) { bench_csv(out, &table, rows, count); }

static void print_size(FILE *out, int64_t bytes) {
    fprintf(out, "  %11.2f", (double)bytes / (1024.0 * 1024.0));
}

void bench_print_table(FILE *out, const bench_row *rows, int count) {
    const bench_row *r = &rows[0];
    const int decode = r->state_bytes > 0;
    char components[48] = "", widths[64], packed[48] = "";
    if (r->components > 0) {
        snprintf(components, sizeof components, ", %" PRId64 " components", r->components);
    }
    if (r->packed > 0) {
        snprintf(packed, sizeof packed, ", %" PRId64 " packed sequences", r->packed);
    }
    if (r->routing_dim == r->dim) {
        snprintf(widths, sizeof widths, "width %" PRId64, r->dim);
    } else {
        snprintf(widths, sizeof widths, "width %" PRId64 ", of routing %" PRId64, r->dim, r->routing_dim);
    }
    fprintf(out, "%s %s%s%s%s, %s, batch %" PRId64 "%s, %" PRId64 " heads (%" PRId64 " for keys), %s%s\ntier %s, %" PRId64 " threads, version %s\n",
            r->mixer, r->pass, r->causal ? " causal" : "", r->decay ? " decay" : "", r->scale ? " scale" : "", r->dtype,
            r->batch, packed, r->heads, r->kv_heads, widths, components, r->isa, r->threads, r->version);
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
