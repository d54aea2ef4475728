#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/information.h"
#include "inspect/inspection.h"
#include "inspect/linalg.h"
#include "layers/try.h"

static gma_status no_memory(void) { return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory to measure the heads"); }

/* ---- One head by itself --------------------------------------------------------------------------------------- */

static int64_t used(const double *usage, int64_t k) {
    double total = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < k; i++)
        total += usage[i];
    for (int64_t i = 0; i < k; i++)
        count += usage[i] > total / (10 * (double)k);
    return count;
}

static gma_status measure_head(const gmal_head *h, gma_inspect_head *out) {
    const int64_t k = h->components;
    const double n = (double)h->tokens;
    double *both = malloc(2 * (size_t)k * sizeof *both), *singular = both + k;
    if (!both)
        return no_memory();
    for (int64_t i = 0; i < k; i++)
        both[i] = h->usage_q[i] + h->usage_k[i];
    *out = (gma_inspect_head){.struct_size = sizeof *out,
                              .layer = h->layer,
                              .head = h->head,
                              .components = k,
                              .tokens = h->tokens,
                              .used = used(both, k),
                              .used_q = used(h->usage_q, k),
                              .used_k = used(h->usage_k, k)};
    out->usage_entropy = gmal_normalised_entropy(both, k);
    out->usage_entropy_q = gmal_normalised_entropy(h->usage_q, k);
    out->usage_entropy_k = gmal_normalised_entropy(h->usage_k, k);
    out->effective_q = exp(h->entropy_q / n);
    out->effective_k = exp(h->entropy_k / n);
    out->overlap = h->overlap / n;
    out->agreement = (double)h->agree / n;
    out->mean_decay = h->forgets ? h->decay / n : NAN;
    const gma_status s = gmal_product_singular_values(h->gram_q, h->gram_k, (int)k, singular);
    if (s == GMA_OK)
        out->effective_rank = gmal_effective_rank(singular, (int)k);
    free(both);
    return s;
}

/* ---- A head against a labelling ------------------------------------------------------------------------------- */

static int64_t labelled(const gmal_labels *l, int64_t tokens) {
    int64_t n = 0;
    for (int64_t i = 0; i < tokens; i++)
        n += l->label[i] >= 0;
    return n;
}

/* The labels that are there, in another order; tokens without one stay without. */
static void shuffle_labels(const int32_t *label, int64_t tokens, uint64_t seed, int32_t *out) {
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < tokens; i++)
        if (label[i] >= 0)
            out[n++] = label[i];
    gmal_shuffle(out, n, seed);
    at = n;
    for (int64_t i = tokens - 1; i >= 0; i--)
        out[i] = label[i] >= 0 ? out[--at] : -1;
}

static gma_status measure_label(const gma_inspection *n, const gmal_head *h, const gmal_labels *l,
                                const int32_t *shuffled, int64_t *table, gmal_label_result *out) {
    const int64_t k = h->components, tokens = n->c.tokens;
    gma_inspect_label *r = &out->numbers;
    *r = (gma_inspect_label){.struct_size = sizeof *r,
                             .what = l->what,
                             .classes = l->count,
                             .labelled = labelled(l, tokens),
                             .nmi = NAN,
                             .nmi_chance = NAN,
                             .purity = NAN,
                             .purity_chance = NAN,
                             .nmi_q = NAN};
    if (r->labelled == 0)
        return GMA_OK;
    if (l->names) {
        out->class_purity = malloc((size_t)l->count * sizeof *out->class_purity);
        if (!out->class_purity)
            return no_memory();
    }
    gmal_contingency(h->assign_q, l->label, tokens, k, l->count, table);
    r->nmi_q = gmal_nmi(table, k, l->count);
    gmal_contingency(h->assign_k, shuffled, tokens, k, l->count, table);
    r->nmi_chance = gmal_nmi(table, k, l->count);
    r->purity_chance = gmal_purity(table, k, l->count);
    gmal_contingency(h->assign_k, l->label, tokens, k, l->count, table);
    r->nmi = gmal_nmi(table, k, l->count);
    r->purity = gmal_purity(table, k, l->count);
    if (out->class_purity)
        gmal_column_purity(table, k, l->count, out->class_purity);
    return GMA_OK;
}

/* One labelling against every head: shuffled once for all. */
static gma_status measure_labelling(gma_inspection *n, int which) {
    const gmal_labels *l = &n->labels[which];
    int64_t most = 1;
    for (int i = 0; i < n->c.count; i++)
        if (n->c.heads[i].components > most)
            most = n->c.heads[i].components;
    int32_t *shuffled = malloc((size_t)n->c.tokens * sizeof *shuffled);
    int64_t *table = malloc((size_t)(most * (l->count ? l->count : 1)) * sizeof *table);
    gma_status s = shuffled && table ? GMA_OK : no_memory();
    if (s == GMA_OK)
        shuffle_labels(l->label, n->c.tokens, n->o.seed, shuffled);
    for (int i = 0; s == GMA_OK && i < n->c.count; i++)
        s = measure_label(n, &n->c.heads[i], l, shuffled, table, &n->results[i * n->label_count + which]);
    free(shuffled);
    free(table);
    return s;
}

gma_status gmal_measure(gma_inspection *n) {
    n->heads = calloc((size_t)n->c.count, sizeof *n->heads);
    n->results = calloc((size_t)(n->c.count * (n->label_count + 1)), sizeof *n->results);
    if (!n->heads || !n->results)
        return no_memory();
    for (int i = 0; i < n->c.count; i++)
        TRY(measure_head(&n->c.heads[i], &n->heads[i]));
    for (int i = 0; i < n->label_count; i++)
        TRY(measure_labelling(n, i));
    return GMA_OK;
}
