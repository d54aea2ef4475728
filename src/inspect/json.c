/* An inspection as JSON. What each key means is in docs/inspect.md. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/inspection.h"
#include "io/replace.h"

/* JSON has no NaN. */
static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static void set(json_t *object, const char *key, double x) { json_object_set_new(object, key, number(x)); }
static void set_int(json_t *object, const char *key, int64_t x) { json_object_set_new(object, key, json_integer(x)); }

/* Text as JSON text where it is UTF-8, otherwise with every byte that is not printable ASCII as \xNN. */
static json_t *text_of(const char *text, size_t size) {
    json_t *plain = memchr(text, 0, size) ? NULL : json_stringn(text, size);
    if (plain)
        return plain;
    char *escaped = malloc(4 * size + 1);
    size_t to = 0;
    if (!escaped)
        return json_null();
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        to += (size_t)sprintf(escaped + to, c >= ' ' && c < 127 ? "%c" : "\\x%02x", c);
    }
    plain = json_stringn(escaped, to);
    free(escaped);
    return plain;
}

static json_t *token_text(const gma_inspection *n, int32_t id) {
    const char *text;
    size_t size;
    return gma_tokenizer_token(n->tokenizer, id, &text, &size) ? text_of(text, size) : json_null();
}

/* The tokens that weigh most in a component: what part of it they are, and how surely they go there. */
static json_t *top_tokens(const gma_inspection *n, const gmal_head *h, int64_t component) {
    json_t *list = json_array();
    const int64_t vocab = n->c.vocab;
    const double *mass = h->mass + component * vocab, total = h->usage_k[component];
    double last = INFINITY;
    int64_t last_id = -1;
    for (int i = 0; i < n->o.top_tokens; i++) {
        int64_t best = -1;
        for (int64_t id = 0; id < vocab; id++) /* what comes after (last, last_id) in the order of mass, then of id */
            if (mass[id] > 0 && (mass[id] < last || (mass[id] == last && id > last_id)) &&
                (best < 0 || mass[id] > mass[best]))
                best = id;
        if (best < 0)
            break;
        json_t *row = json_object();
        set_int(row, "id", best);
        json_object_set_new(row, "text", token_text(n, (int32_t)best));
        set(row, "share", mass[best] / total);
        set(row, "responsibility", mass[best] / (double)n->c.counts[best]);
        json_array_append_new(list, row);
        last = mass[best];
        last_id = best;
    }
    return list;
}

static double softplus(double x) { return x > 30 ? x : log1p(exp(x)); }

static json_t *component(const gma_inspection *n, const gmal_head *h, const gmal_mixture_view *m, double log_sum,
                         int64_t k) {
    json_t *row = json_object();
    double sum = 0, least = INFINITY, most = 0;
    for (int64_t r = 0; r < m->width; r++) {
        const double s = softplus((double)m->omega[k * m->width + r]) + n->lm->layout->c.eps_sigma;
        sum += s;
        least = s < least ? s : least;
        most = s > most ? s : most;
    }
    set_int(row, "component", k);
    set(row, "usage_q", h->usage_q[k] / (double)h->tokens);
    set(row, "usage_k", h->usage_k[k] / (double)h->tokens);
    set(row, "prior", exp((double)m->alpha[k] - log_sum));
    set(row, "variance_mean", sum / (double)m->width);
    set(row, "variance_min", least);
    set(row, "variance_max", most);
    json_object_set_new(row, "top_tokens", top_tokens(n, h, k));
    return row;
}

static json_t *components(const gma_inspection *n, const gmal_head *h) {
    json_t *list = json_array();
    const gmal_mixture_view m = gmal_head_mixture(n->lm, h);
    double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < m.components; k++)
        top = (double)m.alpha[k] > top ? (double)m.alpha[k] : top;
    for (int64_t k = 0; k < m.components; k++)
        sum += exp((double)m.alpha[k] - top);
    for (int64_t k = 0; k < m.components; k++)
        json_array_append_new(list, component(n, h, &m, top + log(sum), k));
    return list;
}

static json_t *label_row(const gma_inspection *n, int head, int which) {
    const gmal_label_result *r = &n->results[head * n->label_count + which];
    json_t *row = json_object();
    json_object_set_new(row, "labels", json_string(r->numbers.what));
    set_int(row, "labelled", r->numbers.labelled);
    set(row, "nmi", r->numbers.nmi);
    set(row, "nmi_chance", r->numbers.nmi_chance);
    set(row, "nmi_above_chance", r->numbers.nmi - r->numbers.nmi_chance);
    set(row, "nmi_queries", r->numbers.nmi_q);
    set(row, "purity", r->numbers.purity);
    set(row, "purity_chance", r->numbers.purity_chance);
    if (!r->class_purity)
        return row;
    json_t *classes = json_object();
    for (int64_t i = 0; i < n->labels[which].count; i++) {
        json_t *name = text_of(n->labels[which].names[i], strlen(n->labels[which].names[i]));
        set(classes, json_is_string(name) ? json_string_value(name) : "?", r->class_purity[i]);
        json_decref(name);
    }
    json_object_set_new(row, "purity_by_class", classes);
    return row;
}

static json_t *trace(const gma_inspection *n, const gmal_head *h) {
    json_t *rows = json_array();
    for (int place = 0; place < GMAL_TRACE; place++) {
        json_t *row = json_object(), *z = json_array();
        set_int(row, "position", (place + 1) * n->c.context / GMAL_TRACE);
        for (int64_t k = 0; k < h->components; k++)
            json_array_append_new(z, number(h->trace[place * h->components + k]));
        json_object_set_new(row, "Z", z);
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *head_row(const gma_inspection *n, int i) {
    const gma_inspect_head *h = &n->heads[i];
    json_t *row = json_object(), *labels = json_array();
    set_int(row, "layer", h->layer);
    set_int(row, "head", h->head);
    set_int(row, "components", h->components);
    set_int(row, "used", h->used);
    set_int(row, "used_queries", h->used_q);
    set_int(row, "used_keys", h->used_k);
    set(row, "usage_entropy", h->usage_entropy);
    set(row, "usage_entropy_queries", h->usage_entropy_q);
    set(row, "usage_entropy_keys", h->usage_entropy_k);
    set(row, "effective_components_queries", h->effective_q);
    set(row, "effective_components_keys", h->effective_k);
    set(row, "overlap", h->overlap);
    set(row, "agreement", h->agreement);
    set(row, "effective_rank", h->effective_rank);
    set(row, "mean_decay", h->mean_decay);
    for (int j = 0; j < n->label_count; j++)
        json_array_append_new(labels, label_row(n, i, j));
    json_object_set_new(row, "against", labels);
    json_object_set_new(row, "mixture", components(n, &n->c.heads[i]));
    json_object_set_new(row, "slot_memory", trace(n, &n->c.heads[i]));
    return row;
}

static json_t *whole(const gma_inspection *n) {
    json_t *root = json_object(), *heads = json_array();
    json_object_set_new(root, "data", text_of(n->data, strlen(n->data)));
    set_int(root, "tokens", n->c.tokens);
    set_int(root, "context", n->c.context);
    set_int(root, "seed", (int64_t)n->o.seed);
    set(root, "loss", n->c.loss);
    for (int i = 0; i < n->c.count; i++)
        json_array_append_new(heads, head_row(n, i));
    json_object_set_new(root, "heads", heads);
    return root;
}

gma_status gma_inspection_json(const gma_inspection *n, const char *path) {
    if (!n || !path)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspection_json: a pointer is NULL");
    json_t *root = whole(n);
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!text)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the JSON of an inspection");
    gma_status s = GMA_OK;
    if (strcmp(path, "-") == 0) {
        if (puts(text) < 0 || fflush(stdout) != 0)
            s = gma_fail(GMA_ERR_IO, "the standard output cannot be written");
    } else {
        s = gmal_replace_file(path, text, strlen(text));
    }
    free(text);
    return s;
}
