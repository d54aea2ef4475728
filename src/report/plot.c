/* Loss curves as SVG: no script, no font of its own, one file. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gma/train.h"
#include "io/replace.h"
#include "models/model.h"

enum { WIDTH = 900, HEIGHT = 520, LEFT = 70, RIGHT = 250, TOP = 50, BOTTOM = 60, MOST_RUNS = 10, MOST_POINTS = 600 };

/* Distinguishable for the colour-blind (Okabe and Ito), dark enough on white. */
static const char *const colours[MOST_RUNS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                               "#56b4e9", "#000000", "#999933", "#882255", "#44aa99"};

typedef struct curve {
    double *step, *loss;
    int64_t count, room;
} curve;

typedef struct run {
    char *name;
    curve train, val;
} run;

typedef struct frame {
    double x0, x1, y0, y1;
} frame;

static int push(curve *c, double step, double loss) {
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 256;
        double *s = realloc(c->step, (size_t)c->room * sizeof *s);
        if (s) c->step = s;
        double *l = realloc(c->loss, (size_t)c->room * sizeof *l);
        if (l) c->loss = l;
        if (!s || !l) return -1;
    }
    c->step[c->count] = step;
    c->loss[c->count++] = loss;
    return 0;
}

/* ---- Reading -------------------------------------------------------------------------------------------------- */

/* What can be drawn: far enough from the largest double that sums and differences stay finite. */
static int drawable(const json_t *x) { return json_is_number(x) && fabs(json_number_value(x)) < 1e150; }

/* cut: the line has no end, as when the run was killed while it wrote; then it need not make sense. */
static gma_status read_line(run *r, const char *path, int64_t number, const char *line, int cut) {
    json_t *json = json_loads(line, 0, NULL);
    if (!json && cut) return GMA_OK;
    const json_t *step = json_object_get(json, "step"), *loss = json_object_get(json, "loss"),
                 *val = json_object_get(json, "val_loss");
    gma_status s = GMA_OK;
    if (!json_is_number(step))
        s = gma_fail(GMA_ERR_FORMAT, "%s: line %lld is not a JSON object with a step", path, (long long)number);
    else if (drawable(step) &&
             ((drawable(loss) && push(&r->train, json_number_value(step), json_number_value(loss)) != 0) ||
              (drawable(val) && push(&r->val, json_number_value(step), json_number_value(val)) != 0)))
        s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for its curve", path);
    json_decref(json);
    return s;
}

/* The last part of a path that says something. */
static char *name_of(const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    static const char file[] = "/metrics.jsonl";
    const size_t n = sizeof file - 1;
    if (end > n && memcmp(path + end - n, file, n) == 0) end -= n;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    return strndup(path + begin, end - begin);
}

static gma_status read_run(const char *path, run *r) {
    struct stat st;
    r->name = name_of(path);
    char *file = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? gmal_path_join(path, "metrics.jsonl") : strdup(path);
    if (!file || !r->name) {
        free(file);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a path");
    }
    FILE *f = fopen(file, "rb");
    gma_status s = f ? GMA_OK : gma_fail(GMA_ERR_IO, "%s: cannot be opened: %s", file, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    for (int64_t i = 1; s == GMA_OK; i++) {
        const ssize_t n = getline(&line, &room, f);
        if (n <= 0) break;
        s = read_line(r, file, i, line, line[n - 1] != '\n');
    }
    if (s == GMA_OK && r->train.count + r->val.count == 0)
        s = gma_fail(GMA_ERR_FORMAT, "%s: holds no losses", file);
    free(line);
    if (f) fclose(f);
    free(file);
    return s;
}

/* ---- Shaping -------------------------------------------------------------------------------------------------- */

/* The training loss as means of consecutive pieces: less noise, and a file whose size does not depend on the steps. */
static void thin(curve *c) {
    const int64_t pieces = c->count < 150 ? c->count : c->count < 2 * MOST_POINTS ? 150 : MOST_POINTS;
    int64_t at = 0;
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t end = c->count * (i + 1) / pieces, n = end - at;
        double step = 0, loss = 0;
        for (; at < end; at++) {
            step += c->step[at];
            loss += c->loss[at];
        }
        c->step[i] = step / (double)n;
        c->loss[i] = loss / (double)n;
    }
    c->count = pieces;
}

static void widen(frame *f, const curve *c) {
    for (int64_t i = 0; i < c->count; i++) {
        if (!isfinite(c->loss[i])) continue;
        f->x1 = fmax(f->x1, c->step[i]);
        f->y0 = fmin(f->y0, c->loss[i]);
        f->y1 = fmax(f->y1, c->loss[i]);
    }
}

/* A round distance that gives about `count` lines over `range`. */
static double tick(double range, int count) {
    const double raw = range / count, base = pow(10, floor(log10(raw))), m = raw / base;
    return base * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static double px(const frame *f, double x) { return LEFT + (x - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT); }
static double py(const frame *f, double y) { return TOP + (f->y1 - y) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM); }

/* ---- Drawing -------------------------------------------------------------------------------------------------- */

/* Text that may hold anything: markup is escaped, control characters and bytes over 127 that XML might refuse become '?'
 * unless they form UTF-8. */
static void put_text(FILE *out, const char *text, size_t most) {
    gma_utf8 filter = {{0}, 0};
    char piece[GMA_UTF8_MAX];
    for (size_t i = 0; text[i] && i < most; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '&' || c == '<' || c == '>' || c == '"') {
            fwrite(piece, 1, gma_utf8_finish(&filter, piece), out);
            fprintf(out, "&#%d;", (int)c);
        } else {
            fwrite(piece, 1, gma_utf8_push(&filter, c < 0x20 || c == 0x7f ? '?' : c, piece), out);
        }
    }
    fwrite(piece, 1, gma_utf8_finish(&filter, piece), out);
}

/* As many digits as tell two neighbouring lines apart. */
static int digits(double a, double b, double step, int least) {
    const double n = ceil(log10(fmax(fmax(fabs(a), fabs(b)), step) / step)) + 1;
    return n < least ? least : n > 15 ? 15 : (int)n;
}

static void put_axes(FILE *out, const frame *f) {
    const double dx = tick(f->x1 - f->x0, 8), dy = tick(f->y1 - f->y0, 8);
    const double first_x = ceil(f->x0 / dx), first_y = ceil(f->y0 / dy);
    const int y_digits = digits(f->y0, f->y1, dy, 4);
    enum { MOST_LINES = 20 }; /* a bound on what is written, whatever the numbers are */
    for (int i = 0; i < MOST_LINES; i++) {
        const double y = (first_y + i) * dy;
        if (!(y <= f->y1 + dy * 1e-9)) break;
        fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e0e0e0\"/>"
                     "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.*g</text>\n",
                LEFT, WIDTH - RIGHT, py(f, y), py(f, y), LEFT - 8, py(f, y) + 4, y_digits,
                fabs(y) < dy * 1e-6 ? 0 : y);
    }
    for (int i = 0; i < MOST_LINES; i++) {
        const double x = (first_x + i) * dx;
        if (!(x <= f->x1 + dx * 1e-9)) break;
        fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#e0e0e0\"/>"
                     "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g</text>\n",
                px(f, x), px(f, x), TOP, HEIGHT - BOTTOM, px(f, x), HEIGHT - BOTTOM + 18, x);
    }
    fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#606060\"/>\n", LEFT, TOP,
            WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 18);
    fprintf(out, "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">loss (nats per token)</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2);
}

static void put_curve(FILE *out, const frame *f, const curve *c, const char *colour, double width, double opacity,
                      int dots) {
    if (c->count == 0) return;
    fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" stroke-opacity=\"%g\" points=\"", colour,
            width, opacity);
    for (int64_t i = 0; i < c->count; i++)
        if (isfinite(c->loss[i])) fprintf(out, "%.1f,%.1f ", px(f, c->step[i]), py(f, fmin(c->loss[i], f->y1)));
    fprintf(out, "\"/>\n");
    for (int64_t i = 0; dots && i < c->count; i++)
        if (isfinite(c->loss[i]))
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\" fill=\"%s\"/>\n", px(f, c->step[i]),
                    py(f, fmin(c->loss[i], f->y1)), colour);
}

static void put_legend(FILE *out, const run *r, int i) {
    const int x = WIDTH - RIGHT + 16, y = TOP + 14 + 44 * i;
    const curve *c = r->val.count ? &r->val : &r->train;
    double best = HUGE_VAL;
    for (int64_t j = 0; j < c->count; j++) best = fmin(best, c->loss[j]);
    fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"3\"/><text x=\"%d\" y=\"%d\">",
            x, x + 22, y, y, colours[i], x + 30, y + 4);
    put_text(out, r->name, 26);
    fprintf(out, "</text><text x=\"%d\" y=\"%d\" fill=\"#606060\">best %s ", x + 30, y + 20,
            r->val.count ? "validation" : "training");
    fprintf(out, fabs(best) < 1e9 ? "%.4f</text>\n" : "%.4g</text>\n", best);
}

static void draw(FILE *out, const run *runs, int count, const char *title, const frame *f) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"13\" fill=\"#202020\">\n"
            "<title>",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_text(out, title, 200);
    fprintf(out, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", WIDTH, HEIGHT);
    fprintf(out, "<text x=\"%d\" y=\"28\" font-size=\"17\" font-weight=\"bold\">", LEFT);
    put_text(out, title, 80);
    fprintf(out, "</text>\n");
    put_axes(out, f);
    for (int i = 0; i < count; i++) put_curve(out, f, &runs[i].train, colours[i], 1.2, 0.55, 0);
    for (int i = 0; i < count; i++) put_curve(out, f, &runs[i].val, colours[i], 2.4, 1, 1);
    for (int i = 0; i < count; i++) put_legend(out, &runs[i], i);
    fprintf(out, "<text x=\"%d\" y=\"%d\" fill=\"#606060\">thin: training</text>"
                 "<text x=\"%d\" y=\"%d\" fill=\"#606060\">thick: validation</text>\n</svg>\n",
            WIDTH - RIGHT + 16, HEIGHT - BOTTOM - 20, WIDTH - RIGHT + 16, HEIGHT - BOTTOM - 2);
}

/* What a reader wants to see: all of the curves but for the fall from the very first steps, which would leave the
 * differences between runs a finger's width. */
static frame frame_of(run *runs, int count) {
    frame f = {0, 1, HUGE_VAL, -HUGE_VAL};
    double cap = -HUGE_VAL;
    for (int i = 0; i < count; i++) {
        thin(&runs[i].train);
        widen(&f, &runs[i].train);
        widen(&f, &runs[i].val);
        const curve *c = &runs[i].train;
        if (c->count > 40) cap = fmax(cap, c->loss[c->count / 20]);
        for (int64_t j = 0; j < runs[i].val.count; j++) cap = fmax(cap, runs[i].val.loss[j]);
    }
    if (cap > f.y0 && cap < f.y1) f.y1 = cap;
    if (!isfinite(f.y0)) f = (frame){0, 1, 0, 1};
    /* Losses that differ by rounding only are a flat line; a narrower range could not be divided into ticks. */
    const double size = fmax(fabs(f.y0), fabs(f.y1));
    if (!(f.y1 > f.y0)) {
        f.y0 -= 0.5 * fmax(1, 1e-3 * size);
        f.y1 += 0.5 * fmax(1, 1e-3 * size);
    } else if (f.y1 - f.y0 < 1e-9 * size) {
        f.y0 -= 1e-9 * size;
        f.y1 += 1e-9 * size;
    }
    const double margin = 0.05 * (f.y1 - f.y0);
    f.y0 -= margin;
    f.y1 += margin;
    return f;
}

gma_status gma_plot(const char *const *paths, int count, const char *title, const char *path) {
    if (!paths || !path) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_plot: runs or path is NULL");
    if (count < 1 || count > MOST_RUNS)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "a plot takes 1 to %d runs, not %d", (int)MOST_RUNS, count);
    run runs[MOST_RUNS] = {{0}};
    gmal_replace r;
    gma_status s = GMA_OK;
    for (int i = 0; i < count && s == GMA_OK; i++) s = read_run(paths[i], &runs[i]);
    if (s == GMA_OK) s = gmal_replace_begin(&r, path);
    if (s == GMA_OK) {
        const frame f = frame_of(runs, count);
        draw(r.file, runs, count, title && *title ? title : "Loss while training", &f);
        s = gmal_replace_commit(&r);
    }
    for (int i = 0; i < count; i++) {
        free(runs[i].name);
        free(runs[i].train.step);
        free(runs[i].train.loss);
        free(runs[i].val.step);
        free(runs[i].val.loss);
    }
    return s;
}
