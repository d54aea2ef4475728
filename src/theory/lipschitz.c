/* (iii): how fast responsibilities can change. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"
#include "theory/statements.h"

enum { CHUNK = 2048 };

/* Pairs (x,y), the rows 2 i and 2 i + 1 of x. */
typedef struct pairs {
    double *x, *gamma; /* (2 CHUNK,R), (2 CHUNK,K) */
    double nearest;    /* closer pairs say more about rounding than about gamma */
    double radius;
} pairs;

/* Rounding moves gamma by about unit (B + M)^2 / s, L |x - y| is 2 (B + M) |x - y| / s: a pair this far apart is off by a
 * thousandth at most in f32. */
static double nearest(const gmal_subject *s, gmal_ball b) { return (s->e->naive ? 1e-9 : 1e-4) * (b.b + b.m); }

static gma_status make(const gmal_subject *s, gmal_ball b, pairs *p) {
    *p = (pairs){.nearest = nearest(s, b), .radius = b.b};
    p->x = malloc((size_t)(2 * CHUNK * (s->m->r + s->m->k)) * sizeof *p->x);
    p->gamma = p->x ? p->x + 2 * CHUNK * s->m->r : NULL;
    return p->x ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for pairs of tokens");
}

static double length(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Into the ball, and to numbers the engine has. */
static void settle(const gmal_subject *s, const pairs *p, double *x) {
    const double n = length(x, s->m->r), shrink = n > p->radius ? p->radius / n : 1;
    for (int64_t i = 0; i < s->m->r; i++) {
        x[i] *= shrink;
        if (!s->e->naive)
            x[i] = (double)(float)x[i];
    }
}

/* The largest |gamma(x) - gamma(y)|_1 / |x - y| of `count` pairs that are far enough apart; *checked grows by their number. */
static gma_status steepest(const gmal_subject *s, const pairs *p, int64_t count, double *most, int64_t *checked) {
    const int64_t r = s->m->r, k = s->m->k;
    for (int64_t i = 0; i < 2 * count; i++)
        settle(s, p, p->x + i * r);
    const gma_status status = gmal_gamma(s->e, s->m, p->x, 2 * count, p->gamma);
    for (int64_t i = 0; i < count && status == GMA_OK; i++) {
        const double *x = p->x + 2 * i * r, *y = x + r, *gx = p->gamma + 2 * i * k, *gy = gx + k;
        double apart = 0, change = 0;
        for (int64_t j = 0; j < r; j++)
            apart += (x[j] - y[j]) * (x[j] - y[j]);
        apart = sqrt(apart);
        if (apart < 0.5 * p->nearest || apart == 0)
            continue;
        for (int64_t j = 0; j < k; j++)
            change += fabs(gx[j] - gy[j]);
        *most = change / apart <= *most ? *most : change / apart;
        ++*checked;
    }
    return status;
}

/* ---- Drawn pairs ---------------------------------------------------------------------------------------------- */

/* x: a token, a point of the ball, or one near the line between two means; y: another of them, or x moved by a length
 * between `nearest` and B, in any direction or along the line of two means. */
static void draw_pair(const gmal_subject *s, const pairs *p, uint64_t key, double *x, double *y) {
    const gmal_case *m = s->m;
    const int64_t r = m->r;
    double u[9];
    for (int i = 0; i < 9; i++)
        u[i] = gmal_uniform(key, UINT64_C(1) << 40 | (uint64_t)i);
    const double which = u[0], how = u[1], t = u[2], reach = (p->radius + p->nearest) / p->nearest;
    const double far = p->nearest * pow(reach, u[3]), out = p->radius * pow(u[4], 1 / (double)r);
    const double *a = m->mu + (int64_t)(u[5] * (double)m->k) * r, *b = m->mu + (int64_t)(u[6] * (double)m->k) * r;
    const double *token = (how < 0.5 ? m->q : m->key) + (int64_t)(u[7] * (double)m->n) * r;
    const double *other = m->key + (int64_t)(u[8] * (double)m->n) * r;
    double n = 0;
    for (int64_t i = 0; i < r; i++)
        y[i] = gmal_normal(key, (uint64_t)i);
    n = length(y, r);
    for (int64_t i = 0; i < r; i++) {
        x[i] = which < 1. / 3 ? token[i] : which < 2. / 3 ? y[i] / n * out : a[i] + t * (b[i] - a[i]) + 0.1 * y[i] / n;
        y[i] = gmal_normal(key, (uint64_t)(r + i));
    }
    if (how < 0.25) {
        memcpy(y, other, (size_t)r * sizeof *y);
        return;
    }
    if (how < 0.6 && a != b)
        for (int64_t i = 0; i < r; i++)
            y[i] = b[i] - a[i];
    n = length(y, r);
    for (int64_t i = 0; i < r; i++)
        y[i] = x[i] + (n > 0 ? far * y[i] / n : 0);
}

static gma_status drawn(const gmal_subject *s, const pairs *p, int64_t wanted, double *most, int64_t *checked) {
    gma_status status = GMA_OK;
    uint64_t number = 0;
    const uint64_t key = gmal_key(s->key, 1);
    /* A few fall too close together; where all would, twice as many are enough. */
    for (int64_t left = 2 * (wanted / CHUNK + 1); *checked < wanted && left > 0 && status == GMA_OK; left--) {
        const int64_t count = wanted - *checked < CHUNK ? wanted - *checked : CHUNK;
        for (int64_t i = 0; i < count; i++)
            draw_pair(s, p, gmal_key(key, number++), p->x + 2 * i * s->m->r, p->x + (2 * i + 1) * s->m->r);
        status = steepest(s, p, count, most, checked);
    }
    return status;
}

/* ---- Pairs around steep places -------------------------------------------------------------------------------- */

static gma_status around(const gmal_subject *s, const pairs *p, const gmal_steep *steep, double *most, int64_t *checked) {
    static const double apart[] = {1, 3, 10, 100, 1e3, 1e4, 1e5, 1e6};
    enum { APART = sizeof apart / sizeof apart[0] };
    const int64_t r = s->m->r;
    gma_status status = GMA_OK;
    for (int i = 0; i < steep->count && status == GMA_OK; i++) {
        for (int j = 0; j < APART; j++)
            for (int64_t c = 0; c < r; c++) {
                const double half = 0.5 * p->nearest * apart[j] * steep->u[i * r + c];
                p->x[2 * j * r + c] = steep->x[i * r + c] - half;
                p->x[(2 * j + 1) * r + c] = steep->x[i * r + c] + half;
            }
        status = steepest(s, p, APART, most, checked);
    }
    return status;
}

gma_status gmal_check_lipschitz(const gmal_subject *s, int64_t wanted, const gmal_steep *steep) {
    const gmal_ball b = gmal_ball_of(s->m);
    const double bound = 2 * (b.b + b.m) / b.s, sharp = (b.m + b.b / 2) / b.s;
    pairs p;
    double random = 0, found = 0;
    int64_t drawn_pairs = 0, found_pairs = 0;
    gma_status status = make(s, b, &p);
    if (status == GMA_OK)
        status = drawn(s, &p, wanted, &random, &drawn_pairs);
    if (status == GMA_OK)
        status = around(s, &p, steep, &found, &found_pairs);
    free(p.x);
    if (status != GMA_OK)
        return status;
    const double most = random > found ? random : found;
    gmal_record(s, "iii", "|gamma(x) - gamma(y)|_1 / |x - y|, drawn pairs", GMAL_AT_MOST, random, bound, drawn_pairs);
    gmal_record(s, "iii", "the same, pairs found by ascent", GMAL_AT_MOST, found, bound, found_pairs);
    gmal_record(s, "iii", "the same, all pairs, L = (M + B/2)/s: sharper", GMAL_AT_MOST, most, sharp,
                drawn_pairs + found_pairs);
    return GMA_OK;
}

/* ---- The floor of the variances ------------------------------------------------------------------------------- */

static const double floors[GMAL_FLOORS] = {1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5};

gma_status gmal_sweep_make(const gmal_case *m, uint64_t key, gmal_sweep *sweep) {
    *sweep = (gmal_sweep){0};
    sweep->omega = malloc((size_t)(m->k * m->r) * sizeof *sweep->omega);
    if (!sweep->omega)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a mixture");
    for (int64_t i = 0; i < m->k * m->r; i++)
        sweep->omega[i] = -80; /* softplus of it is 0 beside any floor */
    gma_status status = GMA_OK;
    for (int i = 0; i < GMAL_FLOORS && status == GMA_OK; i++) {
        sweep->m[i] = *m;
        sweep->m[i].omega = sweep->omega;
        sweep->m[i].eps_sigma = floors[i];
        sweep->m[i].memory = NULL;
        status = gmal_climb(&sweep->m[i], gmal_key(key, 2), 8, 40, &sweep->steep[i]);
    }
    if (status != GMA_OK)
        gmal_sweep_free(sweep);
    return status;
}

void gmal_sweep_free(gmal_sweep *sweep) {
    for (int i = 0; i < GMAL_FLOORS; i++)
        gmal_steep_free(&sweep->steep[i]);
    free(sweep->omega);
    *sweep = (gmal_sweep){0};
}

gma_status gmal_check_floors(const gmal_subject *s, const gmal_sweep *sweep) {
    double ratio[GMAL_FLOORS] = {0};
    gma_status status = GMA_OK;
    for (int i = 0; i < GMAL_FLOORS && status == GMA_OK; i++) {
        gmal_subject here = *s;
        here.m = &sweep->m[i];
        const gmal_ball b = gmal_ball_of(here.m);
        pairs p;
        char what[80];
        int64_t checked = 0;
        status = make(&here, b, &p);
        if (status == GMA_OK)
            status = around(&here, &p, &sweep->steep[i], &ratio[i], &checked);
        free(p.x);
        if (status != GMA_OK)
            return status;
        snprintf(what, sizeof what, "the same, every variance at the floor %g", floors[i]);
        gmal_record(&here, "iii", what, GMAL_AT_MOST, ratio[i], 2 * (b.b + b.m) / b.s, checked);
    }
    /* Rounding hides the steepest places from f32: the slope is that of double. Told, not judged: nobody has proved that it is 1,
     * and where every mean is far from the ball, the search ends below. */
    const double growth = ratio[GMAL_FLOORS - 1] / ratio[1];
    if (s->e->naive && s->m->k > 1 && growth > 0 && growth <= DBL_MAX) /* else no pair was told apart, or one overflowed */
        gmal_record(s, "iii", "growth of that ratio with 1/floor, slope in logarithms", GMAL_TOLD,
                    log(growth) / log(floors[1] / floors[GMAL_FLOORS - 1]), NAN, GMAL_FLOORS - 1);
    return status;
}
