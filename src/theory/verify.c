/* The public calls, and the list of results. */
#include "gma/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"
#include "theory/cases.h"
#include "theory/statements.h"

struct gma_verification {
    gmal_report report;
    int mixtures;
};

gma_status gma_verify_options_init(gma_verify_options *o) {
    if (!o)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options is NULL");
    *o = (gma_verify_options){
        .struct_size = sizeof *o, .pairs = 1000000, .components = 16, .width = 8, .seed = 1, .bound_scale = 1};
    return GMA_OK;
}

/* ---- Results -------------------------------------------------------------------------------------------------- */

static gma_verify_row *row_of(const gmal_subject *s, const char *statement, const char *what) {
    gmal_report *r = s->report;
    for (int i = 0; i < r->count; i++)
        if (r->rows[i].engine == s->e->name && strcmp(r->rows[i].what, what) == 0)
            return &r->rows[i];
    if (r->count == r->room) {
        const int room = 2 * r->room + 32;
        gma_verify_row *more = realloc(r->rows, (size_t)room * sizeof *more);
        if (!more) {
            r->status = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a list of results");
            return NULL;
        }
        r->rows = more;
        r->room = room;
    }
    gma_verify_row *row = &r->rows[r->count++];
    *row = (gma_verify_row){.struct_size = sizeof *row, .engine = s->e->name, .holds = 1};
    snprintf(row->statement, sizeof row->statement, "%s", statement);
    snprintf(row->what, sizeof row->what, "%s", what);
    return row;
}

/* How far beyond the bound, in parts of it; NaN is beyond any. */
static double beyond(gmal_relation relation, double measured, double bound) {
    if (isnan(measured))
        return INFINITY;
    const double d = (relation == GMAL_AT_LEAST ? bound - measured : measured - bound) / (fabs(bound) + 1e-300);
    return relation == GMAL_TOLD ? -measured : d;
}

void gmal_record(const gmal_subject *s, const char *statement, const char *what, gmal_relation relation, double measured,
                 double bound, int64_t checked) {
    gma_verify_row *row = row_of(s, statement, what);
    if (!row)
        return;
    const double rounding = s->e->naive ? 1e-6 : 2e-3, scale = s->report->bound_scale;
    bound = relation == GMAL_AT_LEAST ? bound / scale : bound * scale;
    int holds = 1;
    if (relation == GMAL_AT_MOST)
        holds = measured <= bound * (1 + rounding);
    else if (relation == GMAL_AT_LEAST)
        holds = measured >= bound * (1 - rounding);
    const int first = row->checked == 0;
    row->checked += checked;
    row->violations += !holds;
    row->holds &= holds;
    if (!first && !(beyond(relation, measured, bound) > beyond((gmal_relation)row->relation, row->measured, row->bound)))
        return;
    row->relation = relation;
    row->measured = measured;
    row->bound = bound;
    row->rounding = relation == GMAL_TOLD ? 0 : rounding;
    row->layer = s->m->layer;
    row->head = s->m->head;
}

/* ---- The run -------------------------------------------------------------------------------------------------- */

static gma_status check(const gma_verify_options *o) {
    if (o->struct_size != sizeof *o)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options must come from gma_verify_options_init");
    if (o->pairs < 1 || o->pairs > INT64_C(1000000000000) || o->mixtures < 0 || o->mixtures > 100000 || o->components < 1 ||
        o->components > 1024 || o->width < 1 || o->width > 4096 || o->context < 0 || o->context > 1 << 24 ||
        !(o->bound_scale > 0 && o->bound_scale < INFINITY) || o->threads < 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "pairs, mixtures, components, width, context, bound_scale or threads is out of range");
    return GMA_OK;
}

static gma_status run_case(const gmal_subject *s, int64_t pairs, const gmal_steep *steep) {
    gma_status status = gmal_check_routing(s);
    if (status == GMA_OK)
        status = gmal_check_gradients(s);
    return status == GMA_OK ? gmal_check_lipschitz(s, pairs, steep) : status;
}

/* Places found by ascent serve all engines. */
static gma_status run(const gma_verify_options *o, const gmal_cases *cases, gmal_report *report) {
    gmal_engine engines[GMAL_MOST_ENGINES];
    const int count = gmal_engines(engines, o->threads);
    gmal_sweep sweep = {0};
    gma_status s = gmal_sweep_make(&cases->item[0], o->seed, &sweep);
    for (int i = 0; i < cases->count && s == GMA_OK; i++) {
        gmal_steep steep = {0};
        const uint64_t key = gmal_key(o->seed, 1000 + (uint64_t)i);
        s = gmal_climb(&cases->item[i], key, 12, 60, &steep);
        for (int e = 0; e < count && s == GMA_OK; e++) {
            const gmal_subject subject = {&engines[e], &cases->item[i], report, key};
            s = run_case(&subject, (o->pairs + cases->count - 1) / cases->count, &steep);
            if (s == GMA_OK && i == 0)
                s = gmal_check_floors(&subject, &sweep);
            if (s == GMA_OK)
                s = report->status;
        }
        gmal_steep_free(&steep);
    }
    gmal_sweep_free(&sweep);
    return s;
}

/* By engine, and for each in the order the statements were checked in. */
static void sort(gmal_report *r) {
    for (int i = 1; i < r->count; i++) {
        const gma_verify_row row = r->rows[i];
        int first = 0, j = i;
        while (r->rows[first].engine != row.engine && first < i)
            first++;
        int last = first;
        while (last < i && r->rows[last].engine == row.engine)
            last++;
        if (first == i)
            continue;
        for (; j > last; j--)
            r->rows[j] = r->rows[j - 1];
        r->rows[last] = row;
    }
}

gma_status gma_verify(const gma_lm *lm, const gma_verify_options *options, gma_verification **out) {
    gma_verify_options o;
    gmal_cases cases = {0};
    if (!out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_verify: verification is NULL");
    *out = NULL;
    gma_verify_options_init(&o);
    if (options)
        o = *options;
    gma_status s = check(&o);
    if (s == GMA_OK && !lm && o.data)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "data: a text needs a model that reads it");
    if (s != GMA_OK)
        return s;
    gma_verification *v = calloc(1, sizeof *v);
    if (!v)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a verification");
    v->report.bound_scale = o.bound_scale;
    s = lm ? gmal_cases_model(lm, &o, &cases) : gmal_cases_random(&o, &cases);
    if (s == GMA_OK)
        s = run(&o, &cases, &v->report);
    v->mixtures = cases.count;
    gmal_cases_free(&cases);
    if (s != GMA_OK) {
        gma_verification_destroy(v);
        return s;
    }
    sort(&v->report);
    *out = v;
    return GMA_OK;
}

void gma_verification_destroy(gma_verification *v) {
    if (!v)
        return;
    free(v->report.rows);
    free(v);
}

int gma_verification_rows(const gma_verification *v) { return v ? v->report.count : 0; }
int gma_verification_mixtures(const gma_verification *v) { return v ? v->mixtures : 0; }

int64_t gma_verification_violations(const gma_verification *v) {
    int64_t count = 0;
    for (int i = 0; v && i < v->report.count; i++)
        count += !v->report.rows[i].holds;
    return count;
}

gma_status gma_verification_row(const gma_verification *v, int row, gma_verify_row *out) {
    if (!v || !out || row < 0 || row >= v->report.count || out->struct_size != sizeof *out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_verification_row: there is no row %d, or struct_size is not set", row);
    *out = v->report.rows[row];
    return GMA_OK;
}
