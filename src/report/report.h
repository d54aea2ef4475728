/* The HTML report of an inspection: what its parts share. The page around them is template.html.
 *
 * The file's size is bounded by the limits below, whatever text and model are. */
#ifndef GMA_REPORT_REPORT_H
#define GMA_REPORT_REPORT_H

#include <stdio.h>

#include "inspect/compare.h"
#include "inspect/components.h"
#include "inspect/route.h"
#include "inspect/stretch.h"

enum {
    GMAL_REPORT_HEADS = 64,        /* with a part of their own */
    GMAL_REPORT_COMPONENTS = 4096, /* shown over all heads, */
    GMAL_REPORT_OF_A_HEAD = 128,   /* and of one */
    GMAL_REPORT_TOKENS = 12288,    /* of coloured text over all heads, */
    GMAL_REPORT_TEXT = 768,        /* and of one */
    GMAL_REPORT_SPAN = 128,        /* of the attention, at most */
    GMAL_REPORT_TOP = 10,          /* tokens of a component */
    GMAL_REPORT_TOKEN_BYTES = 48,  /* of one token's text */
    GMAL_REPORT_CLASSES = 12,      /* rows of a table of classes */
    GMAL_REPORT_COLOURS = 16
};

typedef struct gmal_report {
    FILE *f;
    const gma_inspection *n;
    const gma_comparison *comparison; /* or NULL */
    gma_report_options o;
    gmal_stretch stretch;
    int heads;          /* that have a part of their own */
    int64_t components; /* shown of one head */
} gmal_report;

/* A head's components in the order in which they are shown, and their colours. */
typedef struct gmal_ranked {
    int64_t count;
    gmal_component *all; /* (count) by number */
    int32_t *order;      /* (count) most used first, by usage as key */
    int8_t *colour;      /* (count) by number; GMAL_REPORT_COLOURS = the colour of all others */
} gmal_ranked;

gma_status gmal_ranked_create(const gma_inspection *n, int head, gmal_ranked *r);
void gmal_ranked_free(gmal_ranked *r);
/* "0" .. "15" or "x", as the classes of template.html end. */
const char *gmal_colour_name(int colour);

/* A token as people see it, in a box of its own. */
void gmal_report_token(const gmal_report *r, int32_t id);

gma_status gmal_report_head(const gmal_report *r, int head);
gma_status gmal_report_map(const gmal_report *r, int head, const gmal_ranked *ranked);
void gmal_report_memory(const gmal_report *r, int head, const gmal_ranked *ranked);
gma_status gmal_report_attention(const gmal_report *r, int head);
void gmal_report_comparison(const gmal_report *r);

#endif
