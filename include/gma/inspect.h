/* gma/inspect.h - what the Gaussians of a model do with a text. Part of libgma_lm. Since 0.1.
 *
 * For every query head of every GMA layer, over N tokens, with gamma^q and gamma^k (N,K) the responsibilities of its
 * queries (what it reads) and keys (where it writes):
 *
 *   usage_k       = (1/2N) sum_i (gamma^q_ik + gamma^k_ik); a component is used when its usage is above 1/(10 K)
 *   usage entropy = -sum_k usage_k log usage_k / log K                         1 = all used alike
 *   effective components per token = exp( (1/N) sum_i H(gamma_i) )             1 = one component decides
 *   overlap       = (1/N) sum_i sum_k min(gamma^q_ik, gamma^k_ik)              1 = reads where it writes
 *   effective rank of the affinity gamma^q gamma^k^T (unmasked, never made): exp of the entropy of its normalised singular
 *                   values (Roy & Vetterli 2007), over the first 4096 tokens
 *   NMI           = I(a; b) / ((H(a) + H(b))/2) between the hard assignment a (the component with the largest responsibility as
 *                   key) and a labelling b of the tokens. chance: the same with b shuffled; what counts is the difference, for
 *                   in a finite text NMI is never 0
 *   purity        = sum_k max_b n_kb / N; chance likewise. By class: the share of its tokens in components where it is the
 *                   commonest
 *
 * Labellings: surface class (rules in docs/inspect.md), token, WikiText article, and a file of the user's. */
#ifndef GMA_INSPECT_H
#define GMA_INSPECT_H

#include "gma/lm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gma_inspect_options {
    size_t struct_size;  /* set by gma_inspect_options_init */
    int32_t threads;     /* 0 = gma_max_threads() */
    int32_t top_tokens;  /* 10: tokens listed for each component */
    int64_t layer, head; /* -1 = all */
    int64_t context;     /* tokens of a window; 0 = as trained */
    int64_t batch;       /* windows at a time; 0 = 4 */
    int64_t max_tokens;  /* only so many; 0 = all */
    uint64_t seed;       /* 1: of the shuffled labels */
    const char *classes; /* TSV file "token<TAB>class"; NULL = none */
} gma_inspect_options;

GMA_API gma_status gma_inspect_options_init(gma_inspect_options *options);

typedef struct gma_inspection gma_inspection;

/** gma_inspect() - run the model over the text in `data` (as gma_eval takes it) and look at every head asked for.
 *  Memory: 8 bytes a token and head; time: an evaluation, and K a token and head. *inspection is NULL after a failure.
 *  Errors: UNSUPPORTED for a model without GMA layers, which says what it has; INVALID_ARGUMENT; IO; FORMAT. */
GMA_API gma_status gma_inspect(const gma_lm *lm, const char *data, const gma_inspect_options *options,
                               gma_inspection **inspection);
GMA_API void gma_inspection_destroy(gma_inspection *inspection); /* NULL is fine */

/** gma_inspect_head - the numbers above for one head. NaN where there is none (no labels, no forget gate). */
typedef struct gma_inspect_head {
    size_t struct_size; /* set by the caller */
    int64_t layer, head, components, used, used_q, used_k, tokens;
    double usage_entropy, usage_entropy_q, usage_entropy_k;
    double effective_q, effective_k; /* components per token */
    double overlap, agreement; /* agreement: tokens with the same largest component as query and as key, a share */
    double effective_rank;
    double mean_decay; /* mean of exp(log_decay) */
} gma_inspect_head;

/** gma_inspect_label - one labelling against one head. */
typedef struct gma_inspect_label {
    size_t struct_size;        /* set by the caller */
    const char *what;          /* owned by the inspection */
    int64_t classes, labelled; /* tokens that have a label */
    double nmi, nmi_chance, purity, purity_chance;
    double nmi_q; /* with the hard assignment of the queries */
} gma_inspect_label;

GMA_API int gma_inspection_heads(const gma_inspection *inspection);
GMA_API gma_status gma_inspection_head(const gma_inspection *inspection, int head, gma_inspect_head *out);
GMA_API int gma_inspection_labels(const gma_inspection *inspection);
GMA_API gma_status gma_inspection_label(const gma_inspection *inspection, int head, int label, gma_inspect_label *out);

/** gma_inspection_json() - everything, components and slot memory included, into `path` ("-" = stdout). Documented in
 *  docs/inspect.md. */
GMA_API gma_status gma_inspection_json(const gma_inspection *inspection, const char *path);

/* ---- Two models ----------------------------------------------------------------------------------------------- */

/** gma_inspect_compare() - which component of model a does what which component of model b does, for two checkpoints or
 *  seeds that read the same tokens (same data, context and options). Per layer that both mix with gma:
 *
 *    correlation of components k and l = Pearson's, of gamma^a_k and gamma^b_l over queries and keys of the first tokens
 *  (whole windows, at most 16384 tokens); components are matched one to one so that its sum is largest (the Hungarian method), and so
 *  are the heads of the layer, by their mean matched correlation. chance: the same with the tokens of b shuffled within
 *  each window. Both inspections must outlive the comparison. *comparison is NULL after a failure.
 *  Errors: INVALID_ARGUMENT where they did not read the same; UNSUPPORTED where no layer is gma in both. */
typedef struct gma_comparison gma_comparison;
GMA_API gma_status gma_inspect_compare(const gma_inspection *a, const gma_inspection *b, gma_comparison **comparison);
GMA_API void gma_comparison_destroy(gma_comparison *comparison); /* NULL is fine */

/** gma_compare_pair - two heads that go together. */
typedef struct gma_compare_pair {
    size_t struct_size; /* set by the caller */
    int64_t layer, head_a, head_b;
    int64_t matched;                 /* components that have a partner: the smaller K */
    int64_t above_half;              /* of them with a correlation above 1/2 */
    double correlation, chance;      /* means over the matched; a component that never changes counts as 0, and with
                                        none that changes (K = 1) they are undefined: NaN, as the next */
    double correlation_by_usage;     /* mean weighted by usage in both */
    double nmi, nmi_chance;          /* between the hard assignments of the keys */
} gma_compare_pair;

GMA_API int gma_comparison_pairs(const gma_comparison *comparison);
GMA_API gma_status gma_comparison_pair(const gma_comparison *comparison, int pair, gma_compare_pair *out);

/** gma_comparison_json() - all pairs and their components into `path` ("-" = stdout). model_a, model_b: what to call them. */
GMA_API gma_status gma_comparison_json(const gma_comparison *comparison, const char *model_a, const char *model_b,
                                       const char *path);

/* ---- The report ----------------------------------------------------------------------------------------------- */

typedef struct gma_report_options {
    size_t struct_size;   /* set by gma_report_options_init */
    const char *model;    /* what to call the model; NULL = "the model" */
    const char *other;    /* and the one it is compared with */
    int64_t at;           /* token of the text where the part shown begins; 0 */
    int64_t span;         /* tokens of the implied attention; 64, at most 128 */
} gma_report_options;

GMA_API gma_status gma_report_options_init(gma_report_options *options);

/** gma_inspection_report() - the inspection as one HTML file that needs nothing else: overview, and for each head its numbers,
 *  text coloured by component, the implied attention of `span` tokens (exact) beside softmax's of the same queries and keys, a map
 *  of the means, the slot memory and the components. comparison: one of this inspection with another, or NULL.
 *  The file's size does not grow with the text. Text of the data is inert in it.
 *  Errors: INVALID_ARGUMENT (`at` outside the text), IO, OUT_OF_MEMORY. */
GMA_API gma_status gma_inspection_report(const gma_inspection *inspection, const gma_comparison *comparison,
                                         const gma_report_options *options, const char *path);

#ifdef __cplusplus
}
#endif
#endif
