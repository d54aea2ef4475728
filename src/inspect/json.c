/* An inspection as JSON. What each key means is in docs/inspect.md. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/compare.h"
#include "inspect/components.h"
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

static json_t *top_tokens(const gma_inspection *n, int head, int64_t component) {
    json_t *list = json_array();
    gmal_top_token *top = malloc((size_t)(n->o.top_tokens + 1) * sizeof *top);
    const int count = top ? gmal_top_tokens(n, head, component, n->o.top_tokens, top) : 0;
    for (int i = 0; i < count; i++) {
        json_t *row = json_object();
        set_int(row, "id", top[i].id);
        json_object_set_new(row, "text", token_text(n, top[i].id));
        set(row, "share", top[i].share);
        set(row, "responsibility", top[i].responsibility);
        json_array_append_new(list, row);
    }
    free(top);
    return list;
}

static json_t *components(const gma_inspection *n, int head) {
    const int64_t count = n->c.heads[head].components;
    json_t *list = json_array();
    gmal_component *c = malloc((size_t)count * sizeof *c);
    if (!c) {
        json_decref(list);
        return NULL;
    }
    gmal_components(n, head, c);
    for (int64_t k = 0; k < count; k++) {
        json_t *row = json_object();
        set_int(row, "component", k);
        set(row, "usage_q", c[k].usage_q);
        set(row, "usage_k", c[k].usage_k);
        set(row, "prior", c[k].prior);
        set(row, "variance_mean", c[k].variance_mean);
        set(row, "variance_min", c[k].variance_min);
        set(row, "variance_max", c[k].variance_max);
        json_object_set_new(row, "top_tokens", top_tokens(n, head, k));
        json_array_append_new(list, row);
    }
    free(c);
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
    json_object_set_new(row, "mixture", components(n, i));
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

static gma_status put(json_t *root, const char *path) {
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

gma_status gma_inspection_json(const gma_inspection *n, const char *path) {
    if (!n || !path)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspection_json: a pointer is NULL");
    return put(whole(n), path);
}

/* ---- A comparison --------------------------------------------------------------------------------------------- */

enum { TOP_OF_A_PAIR = 5 };

static json_t *texts_of(const gma_inspection *n, int head, int64_t component) {
    gmal_top_token top[TOP_OF_A_PAIR];
    json_t *list = json_array();
    const int count = component < 0 ? 0 : gmal_top_tokens(n, head, component, TOP_OF_A_PAIR, top);
    for (int i = 0; i < count; i++)
        json_array_append_new(list, token_text(n, top[i].id));
    return list;
}

static json_t *index_or_null(int64_t x) { return x < 0 ? json_null() : json_integer(x); }

static json_t *pair_row(const gma_comparison *c, const gmal_pair *p) {
    json_t *row = json_object(), *list = json_array();
    set_int(row, "layer", p->numbers.layer);
    set_int(row, "head_a", p->numbers.head_a);
    set_int(row, "head_b", p->numbers.head_b);
    set_int(row, "matched", p->numbers.matched);
    set_int(row, "above_half", p->numbers.above_half);
    set(row, "correlation", p->numbers.correlation);
    set(row, "chance", p->numbers.chance);
    set(row, "correlation_by_usage", p->numbers.correlation_by_usage);
    set(row, "nmi", p->numbers.nmi);
    set(row, "nmi_chance", p->numbers.nmi_chance);
    for (int64_t i = 0; i < p->count; i++) {
        const gmal_match *m = &p->matches[i];
        json_t *one = json_object();
        json_object_set_new(one, "a", index_or_null(m->a));
        json_object_set_new(one, "b", index_or_null(m->b));
        set(one, "correlation", m->correlation);
        set(one, "usage_a", m->usage_a);
        set(one, "usage_b", m->usage_b);
        json_object_set_new(one, "top_tokens_a", texts_of(c->a, p->a, m->a));
        json_object_set_new(one, "top_tokens_b", texts_of(c->b, p->b, m->b));
        json_array_append_new(list, one);
    }
    json_object_set_new(row, "components", list);
    return row;
}

gma_status gma_comparison_json(const gma_comparison *c, const char *model_a, const char *model_b, const char *path) {
    if (!c || !model_a || !model_b || !path)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_comparison_json: a pointer is NULL");
    json_t *root = json_object(), *pairs = json_array();
    json_object_set_new(root, "a", text_of(model_a, strlen(model_a)));
    json_object_set_new(root, "b", text_of(model_b, strlen(model_b)));
    json_object_set_new(root, "data", text_of(c->a->data, strlen(c->a->data)));
    set_int(root, "tokens", c->tokens);
    set_int(root, "seed", (int64_t)c->a->o.seed);
    for (int i = 0; i < c->count; i++)
        json_array_append_new(pairs, pair_row(c, &c->pairs[i]));
    json_object_set_new(root, "pairs", pairs);
    return put(root, path);
}
