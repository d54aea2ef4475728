/* Where responsibilities change fastest. |gamma(x) - gamma(y)|_1 <= |x - y| times the largest of
 *     f(x, u) = sum_k gamma_k |(h_k - h) . u|,   h_k = -logit_scale (x - mu_k) / s_k,   h = sum_k gamma_k h_k
 * over places x between the two and directions |u| = 1, and close pairs reach it. For fixed x the best u given the signs of
 * the terms is known, which only makes f larger; x climbs by trying steps at random. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"
#include "theory/statements.h"

enum { TRIES = 8, TURNS = 4, TOKENS = 4 * TRIES };

double gmal_normal(uint64_t key, uint64_t index) {
    const double pi = 3.14159265358979323846;
    return sqrt(-2 * log(gmal_uniform(key, 2 * index))) * cos(2 * pi * gmal_uniform(key, 2 * index + 1));
}

static double length(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static double variance(const gmal_case *m, int64_t i) {
    const double w = m->omega[i];
    return (w > 30 ? w : log1p(exp(w))) + m->eps_sigma;
}

gmal_ball gmal_ball_of(const gmal_case *m) {
    gmal_ball b = {0, 0, INFINITY};
    for (int64_t i = 0; i < m->n; i++)
        b.b = fmax(b.b, fmax(length(m->q + i * m->r, m->r), length(m->key + i * m->r, m->r)));
    for (int64_t c = 0; c < m->k; c++) {
        if (m->alpha[c] == -INFINITY)
            continue;
        b.m = fmax(b.m, length(m->mu + c * m->r, m->r));
        for (int64_t i = 0; i < m->r; i++)
            b.s = fmin(b.s, variance(m, c * m->r + i) / m->logit_scale);
    }
    return b;
}

typedef struct climber {
    const gmal_case *m;
    const gmal_engine *e;
    double radius;
    uint64_t key, drawn;
    double *s;     /* (K,R) variances */
    double *gamma; /* (TRIES,K) */
    double *tries; /* (TRIES,R) */
    double *slope; /* (K) h_k . u */
    double *u, *next, *kept; /* (R) */
} climber;

static double draw(climber *c) { return gmal_normal(c->key, c->drawn++); }

static void clip(const climber *c, double *x) {
    const double n = length(x, c->m->r);
    for (int64_t i = 0; i < c->m->r && n > c->radius; i++)
        x[i] *= c->radius / n;
}

/* f at x with these responsibilities; c->u holds the direction before and after. */
static double steepness(climber *c, const double *x, const double *gamma) {
    const gmal_case *m = c->m;
    const int64_t r = m->r;
    double value = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        double mean = 0, signs = 0;
        value = 0;
        for (int64_t k = 0; k < m->k; k++) {
            c->slope[k] = 0;
            for (int64_t i = 0; i < r; i++)
                c->slope[k] -= m->logit_scale * (x[i] - m->mu[k * r + i]) / c->s[k * r + i] * c->u[i];
            mean += gamma[k] * c->slope[k];
        }
        memset(c->next, 0, (size_t)r * sizeof *c->next);
        for (int64_t k = 0; k < m->k; k++) {
            value += gamma[k] * fabs(c->slope[k] - mean);
            signs += gamma[k] * (c->slope[k] > mean ? 1 : -1);
        }
        for (int64_t k = 0; k < m->k; k++) {
            const double weight = gamma[k] * ((c->slope[k] > mean ? 1 : -1) - signs);
            for (int64_t i = 0; i < r && weight != 0; i++)
                c->next[i] -= weight * m->logit_scale * (x[i] - m->mu[k * r + i]) / c->s[k * r + i];
        }
        const double n = length(c->next, r);
        if (!(n > 0))
            return value;
        for (int64_t i = 0; i < r; i++)
            c->u[i] = c->next[i] / n;
    }
    return value;
}

static double log_weight(const climber *c, int64_t k, const double *x) {
    const gmal_case *m = c->m;
    double sum = m->alpha[k];
    for (int64_t i = 0; i < m->r; i++) {
        const double s = c->s[k * m->r + i], t = x[i] - m->mu[k * m->r + i];
        sum -= 0.5 * (log(s) + t * t / s);
    }
    return sum;
}

/* x: between a component and its nearest neighbour, where both weigh the same; u: along the line of their means. */
static void between_means(climber *c, double *x) {
    const gmal_case *m = c->m;
    const int64_t r = m->r, a = (int64_t)(gmal_uniform(c->key, UINT64_C(1) << 60 | c->drawn++) * (double)m->k);
    int64_t b = a;
    double nearest = INFINITY, low = 0, high = 1;
    for (int64_t k = 0; k < m->k; k++) {
        double sum = 0;
        for (int64_t i = 0; i < r; i++)
            sum += (m->mu[k * r + i] - m->mu[a * r + i]) * (m->mu[k * r + i] - m->mu[a * r + i]);
        if (sum > 0 && sum < nearest) {
            nearest = sum;
            b = k;
        }
    }
    for (int turn = 0; turn < 100; turn++) {
        const double middle = (low + high) / 2;
        for (int64_t i = 0; i < r; i++)
            x[i] = m->mu[a * r + i] + middle * (m->mu[b * r + i] - m->mu[a * r + i]);
        if (log_weight(c, a, x) > log_weight(c, b, x))
            low = middle;
        else
            high = middle;
    }
    for (int64_t i = 0; i < r; i++)
        c->u[i] = a == b ? draw(c) : m->mu[b * r + i] - m->mu[a * r + i];
    const double n = length(c->u, r);
    for (int64_t i = 0; i < r; i++)
        c->u[i] /= n;
    clip(c, x);
}

/* x: the steepest of some tokens; u: what made it that. */
static gma_status steep_token(climber *c, double *x) {
    const gmal_case *m = c->m;
    const int64_t r = m->r;
    double best = -1;
    for (int64_t i = 0; i < TOKENS; i += TRIES) {
        for (int64_t t = 0; t < TRIES; t++) {
            const int64_t at = (int64_t)(gmal_uniform(c->key, UINT64_C(1) << 60 | c->drawn++) * (double)m->n);
            memcpy(c->tries + t * r, (t % 2 ? m->q : m->key) + at * r, (size_t)r * sizeof *x);
        }
        const gma_status s = gmal_gamma(c->e, m, c->tries, TRIES, c->gamma);
        for (int64_t t = 0; t < TRIES; t++) {
            if (s != GMA_OK)
                return s;
            for (int64_t j = 0; j < r; j++)
                c->u[j] = draw(c);
            const double n = length(c->u, r);
            for (int64_t j = 0; j < r; j++)
                c->u[j] /= n;
            const double f = steepness(c, c->tries + t * r, c->gamma + t * m->k);
            if (!(f > best))
                continue;
            best = f;
            memcpy(x, c->tries + t * r, (size_t)r * sizeof *x);
            memcpy(c->kept, c->u, (size_t)r * sizeof *x);
        }
    }
    if (best >= 0)
        memcpy(c->u, c->kept, (size_t)r * sizeof *x);
    return GMA_OK;
}

static gma_status climb(climber *c, int steps, double reach, int from_token, double *x, double *u) {
    const int64_t r = c->m->r, k = c->m->k;
    double best, step = reach;
    gma_status s = GMA_OK;
    if (from_token)
        s = steep_token(c, x);
    else
        between_means(c, x);
    if (s == GMA_OK)
        s = gmal_gamma(c->e, c->m, x, 1, c->gamma);
    best = steepness(c, x, c->gamma);
    memcpy(u, c->u, (size_t)r * sizeof *u);
    for (int turn = 0; turn < steps && s == GMA_OK; turn++) {
        int better = 0;
        for (int64_t t = 0; t < TRIES; t++) {
            double *y = c->tries + t * r;
            for (int64_t i = 0; i < r; i++)
                y[i] = x[i] + step * draw(c) / sqrt((double)r);
            clip(c, y);
        }
        s = gmal_gamma(c->e, c->m, c->tries, TRIES, c->gamma);
        for (int64_t t = 0; t < TRIES && s == GMA_OK; t++) {
            memcpy(c->u, u, (size_t)r * sizeof *u);
            const double f = steepness(c, c->tries + t * r, c->gamma + t * k);
            if (!(f > best))
                continue;
            best = f;
            better = 1;
            memcpy(x, c->tries + t * r, (size_t)r * sizeof *x);
            memcpy(u, c->u, (size_t)r * sizeof *u);
        }
        step *= better ? 1.3 : 0.6;
    }
    return s;
}

gma_status gmal_climb(const gmal_case *m, uint64_t key, int starts, int steps, gmal_steep *steep) {
    static const gmal_engine exact = {"double", 1, 1, GMA_ISA_AUTO, 0x1p-53};
    const int64_t k = m->k, r = m->r;
    const gmal_ball ball = gmal_ball_of(m);
    *steep = (gmal_steep){.count = starts};
    steep->x = malloc((size_t)(2 * starts * r) * sizeof *steep->x);
    double *memory = malloc((size_t)(k * r + TRIES * (k + r) + k + 3 * r) * sizeof *memory);
    if (!steep->x || !memory) {
        free(memory);
        gmal_steep_free(steep);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for an ascent");
    }
    steep->u = steep->x + starts * r;
    climber c = {.m = m, .e = &exact, .radius = ball.b, .key = key, .s = memory};
    c.gamma = c.s + k * r;
    c.tries = c.gamma + TRIES * k;
    c.slope = c.tries + TRIES * r;
    c.u = c.slope + k;
    c.next = c.u + r;
    c.kept = c.next + r;
    for (int64_t i = 0; i < k * r; i++)
        c.s[i] = variance(m, i);
    gma_status s = GMA_OK;
    for (int i = 0; i < starts && s == GMA_OK; i++)
        s = climb(&c, steps, sqrt(ball.s) + 0.1 * ball.m, i % 2, steep->x + i * r, steep->u + i * r);
    free(memory);
    if (s != GMA_OK)
        gmal_steep_free(steep);
    return s;
}

void gmal_steep_free(gmal_steep *steep) {
    free(steep->x);
    *steep = (gmal_steep){0};
}
