/* The three statements, checked on one mixture with one engine. docs/theory.md derives every bound. */
#ifndef GMA_THEORY_STATEMENTS_H
#define GMA_THEORY_STATEMENTS_H

#include "gma/verify.h"
#include "theory/engine.h"

typedef struct gmal_report {
    gma_verify_row *rows;
    int count, room;
    double bound_scale;
    gma_status status; /* of growing the list */
} gmal_report;

/* What is being looked at, and where results go. */
typedef struct gmal_subject {
    const gmal_engine *e;
    const gmal_case *m;
    gmal_report *report;
    uint64_t key; /* of what is drawn */
} gmal_subject;

typedef enum gmal_relation { GMAL_AT_LEAST = 1, GMAL_AT_MOST = -1, GMAL_TOLD = 0 } gmal_relation;

/* One measurement: into the row of that statement, text and engine, which keeps the worst and counts. */
void gmal_record(const gmal_subject *s, const char *statement, const char *what, gmal_relation relation, double measured,
                 double bound, int64_t checked);

gma_status gmal_check_routing(const gmal_subject *s);   /* (i) */
gma_status gmal_check_gradients(const gmal_subject *s); /* (ii) */

/* (iii). Pairs in the ball of radius B, the largest |q| or |k|: `pairs` drawn ones, and those around `steep`. */
typedef struct gmal_ball {
    double b, m, s; /* B; M = max |mu_k|; the smallest variance / logit_scale */
} gmal_ball;
gmal_ball gmal_ball_of(const gmal_case *m);

/* Places x (count,R) in the ball and directions u (count,R), |u| = 1, where gamma changes fast, found by ascent. */
typedef struct gmal_steep {
    double *x, *u;
    int count;
} gmal_steep;
gma_status gmal_climb(const gmal_case *m, uint64_t key, int starts, int steps, gmal_steep *steep);
void gmal_steep_free(gmal_steep *steep);

gma_status gmal_check_lipschitz(const gmal_subject *s, int64_t pairs, const gmal_steep *steep);

/* The same mixture with every variance at a floor that falls. */
enum { GMAL_FLOORS = 6 };
typedef struct gmal_sweep {
    gmal_case m[GMAL_FLOORS];
    gmal_steep steep[GMAL_FLOORS];
    double *omega;
} gmal_sweep;
gma_status gmal_sweep_make(const gmal_case *m, uint64_t key, gmal_sweep *sweep);
void gmal_sweep_free(gmal_sweep *sweep);
gma_status gmal_check_floors(const gmal_subject *s, const gmal_sweep *sweep);

/* Normal number `index` of a key. */
double gmal_normal(uint64_t key, uint64_t index);

#endif
