/* What every measurement needs: lists of lengths, the clock, memory, samples. */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const int64_t max_length = (int64_t)1 << 32;

/* ---- Lengths ------------------------------------------------------------------------------------------------ */

static const char *read_number(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || errno != 0 || x < 1 || x > max_length) {
        return NULL;
    }
    *out = x;
    return end;
}

int bench_read_lengths(const char *text, int64_t *out) {
    int count = 0;
    for (;;) {
        int64_t first, last, step = 0;
        text = read_number(text, &first);
        last = text != NULL ? first : 0;
        if (text != NULL && strncmp(text, "..", 2) == 0) {
            text = read_number(text + 2, &last);
            if (text != NULL && *text == '+') {
                text = read_number(text + 1, &step);
            }
        }
        if (text == NULL || last < first || (*text != ',' && *text != '\0')) {
            return -1;
        }
        for (int64_t n = first; n <= last; n = step > 0 ? n + step : 2 * n) {
            if (count == BENCH_MAX_LENGTHS) {
                return -1;
            }
            out[count++] = n;
        }
        if (*text++ == '\0') {
            return count;
        }
    }
}

/* ---- Clock and memory --------------------------------------------------------------------------------------- */

double bench_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

void bench_forget_peak_rss(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file != NULL) {
        fputs("5", file);
        fclose(file);
    }
}

int64_t bench_peak_rss(void) {
    char line[256];
    long long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && kib < 0 && fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "VmHWM: %lld", &kib);
    }
    if (file != NULL) {
        fclose(file);
    }
    struct rusage usage;
    if (kib < 0 && getrusage(RUSAGE_SELF, &usage) == 0) {
        kib = usage.ru_maxrss;
    }
    return kib > 0 ? (int64_t)kib * 1024 : 0;
}

/* ---- Samples ------------------------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *x, int count) {
    double *sorted = malloc((size_t)count * sizeof *sorted);
    if (sorted == NULL) {
        return x[count / 2]; /* out of memory for a few numbers: the next allocation will say so */
    }
    memcpy(sorted, x, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    const double m = count % 2 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
    free(sorted);
    return m;
}

gma_status bench_make_samples(bench_samples *s, int64_t count) {
    void *ms;
    const gma_status status = bench_allocate((size_t)count * sizeof(double), &ms);
    s->ms = ms;
    s->count = status == GMA_OK ? (int)count : 0;
    return status;
}

void bench_summarise(bench_samples *s) {
    s->median = median_of(s->ms, s->count);
    s->min = s->ms[0];
    for (int i = 1; i < s->count; i++) {
        s->min = s->ms[i] < s->min ? s->ms[i] : s->min;
    }
}
