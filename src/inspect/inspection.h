/* An inspection: what was collected, the labellings, and what follows from both. */
#ifndef GMA_INSPECT_INSPECTION_H
#define GMA_INSPECT_INSPECTION_H

#include "gma/inspect.h"
#include "inspect/collect.h"
#include "inspect/labels.h"

enum { GMAL_MOST_LABELS = 4 };

/* A labelling against a head: numbers, and purity by class (NULL for the labelling by token). */
typedef struct gmal_label_result {
    gma_inspect_label numbers;
    double *class_purity; /* (classes) */
} gmal_label_result;

struct gma_inspection {
    const gma_lm *lm;
    gma_inspect_options o;
    char *data; /* the file's name */
    gmal_collection c;
    const gma_tokenizer *tokenizer; /* the model's, or `made` */
    gma_tokenizer *made;
    gmal_labels labels[GMAL_MOST_LABELS];
    int label_count;
    gma_inspect_head *heads;    /* (c.count) */
    gmal_label_result *results; /* (c.count, label_count) */
};

/* heads and results from the rest. */
gma_status gmal_measure(gma_inspection *n);

#endif
