/* Which component of one model does what which component of another does. Heads first: within a layer their order means
 * nothing between two seeds, so heads are matched too, by the mean correlation of their matched components. */
#include "inspect/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/information.h"
#include "inspect/linalg.h"
#include "inspect/route.h"
#include "layers/matmul.h"
#include "layers/rng.h"
#include "layers/threads.h"
#include "layers/try.h"

enum { MOST_TOKENS = 16384 }; /* the products cost 2 heads^2 K^2 a token and layer */

/* Sums over the rows of x (Ka columns) and y (Kb): enough for every correlation. */
typedef struct sums {
    double *x, *xx, *y, *yy, *xy; /* (Ka), (Ka), (Kb), (Kb), (Ka,Kb) */
    double rows;
} sums;

/* What comparing one layer works with: heads of a at first_a .. first_a + count_a - 1, of b likewise. */
typedef struct work {
    const gma_inspection *a, *b;
    gmal_router ra, rb;
    int first_a, first_b, count_a, count_b;
    int64_t ka, kb, windows;
    sums *all; /* (count_a, count_b) */
    double *score, *head_score;
    int *column, *head_column;
    float *product, *rows; /* (Ka,Kb), (context,Kb) */
    int32_t *order;        /* (context) */
} work;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- Correlations --------------------------------------------------------------------------------------------- */

static int make_sums(sums *s, int64_t ka, int64_t kb) {
    s->x = calloc((size_t)(2 * ka + 2 * kb + ka * kb), sizeof(double));
    if (!s->x)
        return 0;
    s->xx = s->x + ka;
    s->y = s->xx + ka;
    s->yy = s->y + kb;
    s->xy = s->yy + kb;
    return 1;
}

static void clear_sums(sums *s, int64_t ka, int64_t kb) {
    memset(s->x, 0, (size_t)(2 * ka + 2 * kb + ka * kb) * sizeof(double));
    s->rows = 0;
}

static void add_columns(const float *x, int64_t rows, int64_t k, double *sum, double *squares) {
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < k; i++) {
            sum[i] += (double)x[t * k + i];
            squares[i] += (double)x[t * k + i] * (double)x[t * k + i];
        }
}

static gma_status add_rows(work *w, sums *s, const float *x, const float *y) {
    const int64_t n = w->a->c.context;
    add_columns(x, n, w->ka, s->x, s->xx);
    add_columns(y, n, w->kb, s->y, s->yy);
    TRY(gmal_matmul_f32(1, 0, w->ka, w->kb, n, 1, x, w->ka, y, w->kb, 0, w->product, w->kb, w->ra.threads));
    for (int64_t i = 0; i < w->ka * w->kb; i++)
        s->xy[i] += (double)w->product[i];
    s->rows += (double)n;
    return GMA_OK;
}

/* Pearson's; NaN for a component that never changes, as the only one of a mixture of one. */
static double correlation(const sums *s, int64_t kb, int64_t i, int64_t j) {
    const double n = s->rows, vx = s->xx[i] - s->x[i] * s->x[i] / n, vy = s->yy[j] - s->y[j] * s->y[j] / n;
    if (!(vx > 1e-12 * n) || !(vy > 1e-12 * n))
        return NAN;
    const double r = (s->xy[i * kb + j] - s->x[i] * s->y[j] / n) / sqrt(vx * vy);
    return r > 1 ? 1 : r < -1 ? -1 : r;
}

/* The best one-to-one matching of the components; returns the mean correlation over those that have a partner, 0 for an
 * undefined one; NaN when it is undefined for all of them. */
static gma_status match(work *w, const sums *s, double *mean) {
    const int64_t n = larger(w->ka, w->kb), real = w->ka < w->kb ? w->ka : w->kb;
    double sum = 0;
    int64_t defined = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double r = i < w->ka && j < w->kb ? correlation(s, w->kb, i, j) : NAN;
            w->score[i * n + j] = isnan(r) ? 0 : r;
            defined += !isnan(r);
        }
    TRY(gmal_best_matching(w->score, (int)n, w->column));
    for (int64_t i = 0; i < n; i++)
        sum += w->score[i * n + w->column[i]];
    *mean = defined ? sum / (double)real : NAN;
    return GMA_OK;
}

/* ---- Passes over the text ------------------------------------------------------------------------------------- */

static gma_status run_window(work *w, int64_t layer, int64_t window) {
    const int64_t n = w->a->c.context;
    TRY(gmal_router_ids(&w->ra, w->a->c.ids + window * n));
    TRY(gmal_router_ids(&w->rb, w->b->c.ids + window * n));
    TRY(gmal_router_layer(&w->ra, layer));
    return gmal_router_layer(&w->rb, layer);
}

static const float *rows_of(const gmal_router *r, const gmal_head *h, int query) {
    return query ? gmal_router_q(r, 0, h->head, h->components) : gmal_router_k(r, 0, h->kv_head, h->components);
}

/* Queries and keys both: a component is what reads and writes. */
static gma_status add_pair(work *w, sums *s, int i, int j) {
    const gmal_head *a = &w->a->c.heads[w->first_a + i], *b = &w->b->c.heads[w->first_b + j];
    for (int query = 0; query < 2; query++)
        TRY(add_rows(w, s, rows_of(&w->ra, a, query), rows_of(&w->rb, b, query)));
    return GMA_OK;
}

/* The same with the tokens of b in another order: what matching finds where there is nothing to find. */
static gma_status add_shuffled(work *w, sums *s, int i, int j, int64_t window) {
    const int64_t n = w->a->c.context;
    const gmal_head *a = &w->a->c.heads[w->first_a + i], *b = &w->b->c.heads[w->first_b + j];
    for (int64_t t = 0; t < n; t++)
        w->order[t] = (int32_t)t;
    gmal_shuffle(w->order, n, gmal_key(w->a->o.seed, (uint64_t)window));
    for (int query = 0; query < 2; query++) {
        const float *y = rows_of(&w->rb, b, query);
        for (int64_t t = 0; t < n; t++)
            memcpy(w->rows + t * w->kb, y + w->order[t] * w->kb, (size_t)w->kb * sizeof *y);
        TRY(add_rows(w, s, rows_of(&w->ra, a, query), w->rows));
    }
    return GMA_OK;
}

/* ---- A pair --------------------------------------------------------------------------------------------------- */

static int by_usage(const void *x, const void *y) {
    const gmal_match *a = x, *b = y;
    const double ua = a->usage_a + a->usage_b, ub = b->usage_a + b->usage_b;
    return ua < ub ? 1 : ua > ub ? -1 : a->a != b->a ? (a->a > b->a) - (a->a < b->a) : (a->b > b->b) - (a->b < b->b);
}

static double usage(const gmal_head *h, int64_t k) { return (h->usage_q[k] + h->usage_k[k]) / (2 * (double)h->tokens); }

/* NMI between the hard assignments of the two heads, and with those of b shuffled. */
static gma_status assignments(const work *w, const gmal_head *a, const gmal_head *b, gma_compare_pair *out) {
    const int64_t n = w->a->c.tokens;
    int64_t *table = malloc((size_t)(a->components * b->components) * sizeof *table);
    int32_t *other = malloc((size_t)n * sizeof *other);
    gma_status s = table && other ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to compare assignments");
    for (int64_t i = 0; s == GMA_OK && i < n; i++)
        other[i] = b->assign_k[i];
    for (int shuffled = 0; s == GMA_OK && shuffled < 2; shuffled++) {
        if (shuffled)
            gmal_shuffle(other, n, w->a->o.seed);
        gmal_contingency(a->assign_k, other, n, a->components, b->components, table);
        *(shuffled ? &out->nmi_chance : &out->nmi) = gmal_nmi(table, a->components, b->components);
    }
    free(table);
    free(other);
    return s;
}

static gma_status describe(work *w, const sums *s, int i, int j, gmal_pair *p) {
    const gmal_head *a = &w->a->c.heads[w->first_a + i], *b = &w->b->c.heads[w->first_b + j];
    const int64_t n = larger(w->ka, w->kb);
    double mean, weighted = 0, weight = 0;
    *p = (gmal_pair){.a = w->first_a + i, .b = w->first_b + j, .count = n};
    p->matches = malloc((size_t)n * sizeof *p->matches);
    if (!p->matches)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld matches", (long long)n);
    TRY(match(w, s, &mean));
    p->numbers = (gma_compare_pair){.struct_size = sizeof p->numbers,
                                    .layer = a->layer,
                                    .head_a = a->head,
                                    .head_b = b->head,
                                    .matched = w->ka < w->kb ? w->ka : w->kb,
                                    .correlation = mean};
    for (int64_t x = 0; x < n; x++) {
        gmal_match *m = &p->matches[x];
        const int64_t y = w->column[x];
        const int both = x < w->ka && y < w->kb;
        *m = (gmal_match){x < w->ka ? x : -1, y < w->kb ? y : -1, both ? correlation(s, w->kb, x, y) : NAN,
                          x < w->ka ? usage(a, x) : 0, y < w->kb ? usage(b, y) : 0};
        if (both) {
            weighted += w->score[x * n + y] * (m->usage_a + m->usage_b);
            weight += m->usage_a + m->usage_b;
            p->numbers.above_half += m->correlation > 0.5;
        }
    }
    p->numbers.correlation_by_usage = isnan(mean) ? NAN : weight > 0 ? weighted / weight : 0;
    qsort(p->matches, (size_t)n, sizeof *p->matches, by_usage);
    return assignments(w, a, b, &p->numbers);
}

/* ---- A layer -------------------------------------------------------------------------------------------------- */

static gma_status make_work(work *w, int64_t *most_rows) {
    const int64_t n = larger(w->ka, w->kb), h = larger(w->count_a, w->count_b), context = w->a->c.context;
    int room = 1;
    w->all = calloc((size_t)(w->count_a * w->count_b), sizeof *w->all);
    w->score = malloc((size_t)(n * n) * sizeof *w->score);
    w->column = malloc((size_t)n * sizeof *w->column);
    w->head_score = calloc((size_t)(h * h), sizeof *w->head_score);
    w->head_column = malloc((size_t)h * sizeof *w->head_column);
    w->product = malloc((size_t)(w->ka * w->kb) * sizeof *w->product);
    w->rows = malloc((size_t)(context * w->kb) * sizeof *w->rows);
    w->order = malloc((size_t)context * sizeof *w->order);
    room = w->all && w->score && w->column && w->head_score && w->head_column && w->product && w->rows && w->order;
    for (int i = 0; room && i < w->count_a * w->count_b; i++)
        room = make_sums(&w->all[i], w->ka, w->kb);
    *most_rows = w->windows * context;
    return room ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to compare %d heads", (int)h);
}

static void free_work(work *w) {
    for (int i = 0; w->all && i < w->count_a * w->count_b; i++)
        free(w->all[i].x);
    void *all[] = {w->all, w->score, w->column, w->head_score, w->head_column, w->product, w->rows, w->order};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static gma_status compare_layer(work *w, int64_t layer, gma_comparison *c) {
    const int h = (int)larger(w->count_a, w->count_b);
    for (int64_t t = 0; t < w->windows; t++) {
        TRY(run_window(w, layer, t));
        for (int i = 0; i < w->count_a; i++)
            for (int j = 0; j < w->count_b; j++)
                TRY(add_pair(w, &w->all[i * w->count_b + j], i, j));
    }
    /* Any pair of real heads is better than none, whatever the correlation. */
    for (int i = 0; i < w->count_a; i++)
        for (int j = 0; j < w->count_b; j++) {
            double mean;
            TRY(match(w, &w->all[i * w->count_b + j], &mean));
            w->head_score[i * h + j] = 2 + (isnan(mean) ? 0 : mean);
        }
    TRY(gmal_best_matching(w->head_score, h, w->head_column));
    const int first = c->count;
    for (int i = 0; i < w->count_a; i++) {
        const int j = w->head_column[i];
        if (j >= w->count_b)
            continue;
        c->count++; /* now its matches are freed with the comparison */
        TRY(describe(w, &w->all[i * w->count_b + j], i, j, &c->pairs[c->count - 1]));
    }
    /* Their chance level: the sums are used a second time. */
    for (int i = 0; i < w->count_a * w->count_b; i++)
        clear_sums(&w->all[i], w->ka, w->kb);
    for (int64_t t = 0; t < w->windows; t++) {
        TRY(run_window(w, layer, t));
        for (int p = first; p < c->count; p++) {
            const int i = c->pairs[p].a - w->first_a, j = c->pairs[p].b - w->first_b;
            TRY(add_shuffled(w, &w->all[i * w->count_b + j], i, j, t));
        }
    }
    for (int p = first; p < c->count; p++) {
        const int i = c->pairs[p].a - w->first_a, j = c->pairs[p].b - w->first_b;
        TRY(match(w, &w->all[i * w->count_b + j], &c->pairs[p].numbers.chance));
    }
    return GMA_OK;
}

/* How many heads of a layer the inspection holds; *first = where they begin. */
static int heads_of(const gma_inspection *n, int64_t layer, int *first) {
    int count = 0;
    for (int i = 0; i < n->c.count; i++)
        if (n->c.heads[i].layer == layer && count++ == 0)
            *first = i;
    return count;
}

/* ---- Public --------------------------------------------------------------------------------------------------- */

static gma_status check(const gma_inspection *a, const gma_inspection *b) {
    if (a->c.vocab != b->c.vocab || a->c.context != b->c.context || a->c.tokens != b->c.tokens ||
        memcmp(a->c.ids, b->c.ids, (size_t)a->c.tokens * sizeof *a->c.ids) != 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "the two models did not read the same: %lld tokens of a vocabulary of %lld in windows of %lld, "
                        "and %lld of %lld in windows of %lld",
                        (long long)a->c.tokens, (long long)a->c.vocab, (long long)a->c.context, (long long)b->c.tokens,
                        (long long)b->c.vocab, (long long)b->c.context);
    return GMA_OK;
}

gma_status gma_inspect_compare(const gma_inspection *a, const gma_inspection *b, gma_comparison **out) {
    if (!out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspect_compare: comparison is NULL");
    *out = NULL;
    if (!a || !b)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspect_compare: a pointer is NULL");
    TRY(check(a, b));
    const int64_t context = a->c.context;
    work w = {.a = a, .b = b, .windows = larger(1, MOST_TOKENS / context)};
    if (w.windows > a->c.tokens / context)
        w.windows = a->c.tokens / context;
    gma_comparison *c = calloc(1, sizeof *c);
    if (c)
        c->pairs = calloc((size_t)a->c.count, sizeof *c->pairs);
    const gmal_threads t = gmal_threads_enter(a->o.threads);
    gma_status s = c && c->pairs ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a comparison");
    if (s == GMA_OK) {
        *c = (gma_comparison){.a = a, .b = b, .pairs = c->pairs};
        s = gmal_router_create(a->lm, context, 1, t.now, &w.ra);
    }
    if (s == GMA_OK)
        s = gmal_router_create(b->lm, context, 1, t.now, &w.rb);
    for (int64_t layer = 0; s == GMA_OK && layer < a->lm->layout->c.layers; layer++) {
        w.count_a = heads_of(a, layer, &w.first_a);
        w.count_b = heads_of(b, layer, &w.first_b);
        if (w.count_a == 0 || w.count_b == 0)
            continue;
        w.ka = a->c.heads[w.first_a].components;
        w.kb = b->c.heads[w.first_b].components;
        s = make_work(&w, &c->tokens);
        if (s == GMA_OK)
            s = compare_layer(&w, layer, c);
        free_work(&w);
    }
    if (s == GMA_OK && c->count == 0)
        s = gma_fail(GMA_ERR_UNSUPPORTED, "the two models have no layer in which both mix with gma");
    gmal_router_destroy(&w.ra);
    gmal_router_destroy(&w.rb);
    gmal_threads_leave(t);
    if (s != GMA_OK)
        gma_comparison_destroy(c);
    else
        *out = c;
    return s;
}

void gma_comparison_destroy(gma_comparison *c) {
    if (!c)
        return;
    for (int i = 0; i < c->count; i++)
        free(c->pairs[i].matches);
    free(c->pairs);
    free(c);
}

int gma_comparison_pairs(const gma_comparison *c) { return c ? c->count : 0; }

gma_status gma_comparison_pair(const gma_comparison *c, int pair, gma_compare_pair *out) {
    if (!c || !out || pair < 0 || pair >= c->count || out->struct_size != sizeof *out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_comparison_pair: there is no pair %d, or struct_size is not set",
                        pair);
    *out = c->pairs[pair].numbers;
    return GMA_OK;
}
