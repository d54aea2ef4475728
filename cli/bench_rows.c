/* Results as JSON or CSV: one list of fields serves both. */
#include "cli/bench.h"

#include <inttypes.h>
#include <math.h>

#include "cli/options.h"

static void print_real(FILE *out, double x) { fprintf(out, "%.6g", isfinite(x) ? x : 0.0); }

static void print_samples(FILE *out, const bench_samples *s, const char *between) {
    for (int i = 0; i < s->count; i++) {
        fputs(i > 0 ? between : "", out);
        print_real(out, s->ms[i]);
    }
}

static void print_value(FILE *out, const bench_table *t, const bench_field *f, const char *row, int json) {
    const void *at = row + f->offset;
    if (f->when != 0 && !t->is_there(f->when, row)) {
        fputs(json ? "null" : "", out);
        return;
    }
    const char *text = f->type == BENCH_TEXT ? *(const char *const *)at : at;
    switch (f->type) {
    case BENCH_TEXT:
    case BENCH_CHARS:
        if (json) {
            gma_cli_json_string(out, text);
        } else {
            fputs(text, out);
        }
        break;
    case BENCH_WHOLE:
        fprintf(out, "%" PRId64, *(const int64_t *)at);
        break;
    case BENCH_FLAG:
        fputs(json ? (*(const int64_t *)at ? "true" : "false") : (*(const int64_t *)at ? "1" : "0"), out);
        break;
    case BENCH_REAL:
        print_real(out, *(const double *)at);
        break;
    case BENCH_SAMPLES:
        fputs(json ? "[" : "", out);
        print_samples(out, at, json ? ", " : ";");
        fputs(json ? "]" : "", out);
        break;
    }
}

void bench_json(FILE *out, const bench_table *t, const void *rows, int count) {
    fputs("[", out);
    for (int i = 0; i < count; i++) {
        fputs(i > 0 ? ",\n {" : "\n {", out);
        for (int j = 0; j < t->count; j++) {
            fprintf(out, "%s\"%s\": ", j > 0 ? ", " : "", t->fields[j].name);
            print_value(out, t, &t->fields[j], (const char *)rows + (size_t)i * t->row_size, 1);
        }
        fputs("}", out);
    }
    fputs("\n]\n", out);
}

void bench_csv(FILE *out, const bench_table *t, const void *rows, int count) {
    for (int j = 0; j < t->count; j++) {
        fprintf(out, "%s%s", j > 0 ? "," : "", t->fields[j].name);
    }
    fputc('\n', out);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < t->count; j++) {
            fputs(j > 0 ? "," : "", out);
            print_value(out, t, &t->fields[j], (const char *)rows + (size_t)i * t->row_size, 0);
        }
        fputc('\n', out);
    }
}
