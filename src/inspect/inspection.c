/* The public calls: options, the text, and getting at the numbers. */
#include "inspect/inspection.h"

#include <stdlib.h>
#include <string.h>

gma_status gma_inspect_options_init(gma_inspect_options *o) {
    if (!o)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options is NULL");
    *o = (gma_inspect_options){.struct_size = sizeof *o, .top_tokens = 10, .layer = -1, .head = -1, .seed = 1};
    return GMA_OK;
}

static gma_status check(const gma_inspect_options *o, const gma_lm_config *c) {
    if (o->struct_size != sizeof *o)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options must come from gma_inspect_options_init");
    if (o->context < 0 || o->context > 1 << 24 || o->batch < 0 || o->batch > 1 << 20 || o->max_tokens < 0 ||
        o->top_tokens < 0 || o->top_tokens > 1000 || o->layer < -1 || o->head < -1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "layer, head, context, batch, max_tokens or top_tokens is out of range");
    if (c->positions == GMA_LM_POSITIONS_LEARNED && o->context > c->context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "context is %lld, but the model has learned positions for %lld",
                        (long long)o->context, (long long)c->context);
    return GMA_OK;
}

static gma_status label(gma_inspection *n) {
    gmal_labels *l = n->labels;
    const gmal_collection *c = &n->c;
    gma_status s = gmal_label_surface(n->tokenizer, c->ids, c->tokens, &l[n->label_count]);
    if (s == GMA_OK)
        s = gmal_label_identity(c->ids, c->tokens, c->vocab, &l[++n->label_count]);
    if (s == GMA_OK)
        s = gmal_label_articles(n->tokenizer, c->ids, c->tokens, &l[++n->label_count]);
    if (s == GMA_OK && l[n->label_count].count > 0)
        n->label_count++;
    else
        gmal_labels_free(&l[n->label_count]); /* a text without articles */
    if (s == GMA_OK && n->o.classes) {
        s = gmal_label_tsv(n->o.classes, n->tokenizer, c->ids, c->tokens, &l[n->label_count]);
        n->label_count += s == GMA_OK;
    }
    return s;
}

static gma_status collect(gma_inspection *n, const char *data) {
    const gma_lm_config *c = &n->lm->layout->c;
    const int64_t context = n->o.context ? n->o.context : c->context;
    gmal_tokens tokens;
    if (c->task != GMA_LM_TASK_LM)
        return gma_fail(GMA_ERR_UNSUPPORTED, "only language models can be inspected, and the task of this model is another");
    gma_status s = gmal_tokens_open_for(data, c->tokenizer == GMA_LM_TOKENIZER_BYTES ? 1 : 2, c->vocab, n->lm->tokenizer, &tokens);
    if (s != GMA_OK)
        return s;
    gmal_span span = {&tokens, 0, tokens.count};
    if (n->o.max_tokens && n->o.max_tokens + 1 < tokens.count)
        span.end = n->o.max_tokens + 1;
    if (n->o.max_tokens && n->o.max_tokens < context && tokens.count > context)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "tokens is %lld, and a window takes %lld: more tokens or a shorter context",
                     (long long)n->o.max_tokens, (long long)context);
    else if (gmal_span_windows(&span, context) < 1)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT,
                     "%s: has %lld tokens to look at and needs at least %lld for a context of %lld", data,
                     (long long)span.end, (long long)context + 1, (long long)context);
    if (s == GMA_OK)
        s = gmal_collect(n->lm, &span, context, n->o.batch ? n->o.batch : 4, n->o.layer, n->o.head, n->o.threads,
                         &n->c);
    gmal_tokens_close(&tokens);
    return s;
}

gma_status gma_inspect(const gma_lm *lm, const char *data, const gma_inspect_options *options, gma_inspection **out) {
    if (!out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspect: inspection is NULL");
    *out = NULL;
    if (!lm || !data)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspect: a pointer is NULL");
    gma_inspection *n = calloc(1, sizeof *n);
    if (!n)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for an inspection");
    const gma_lm_config *c = &lm->layout->c;
    gma_inspect_options_init(&n->o);
    if (options)
        n->o = *options;
    n->lm = lm;
    n->data = malloc(strlen(data) + 1);
    gma_status s = n->data ? check(&n->o, c) : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for an inspection");
    if (n->data)
        strcpy(n->data, data);
    if (s == GMA_OK && !lm->tokenizer)
        s = gma_tokenizer_create(c->tokenizer == GMA_LM_TOKENIZER_BYTES ? GMA_TOKENIZER_BYTES : GMA_TOKENIZER_IDS,
                                 c->vocab, &n->made);
    n->tokenizer = lm->tokenizer ? lm->tokenizer : n->made;
    if (s == GMA_OK)
        s = collect(n, data);
    if (s == GMA_OK)
        s = label(n);
    if (s == GMA_OK)
        s = gmal_measure(n);
    if (s != GMA_OK) {
        gma_inspection_destroy(n);
        return s;
    }
    *out = n;
    return GMA_OK;
}

void gma_inspection_destroy(gma_inspection *n) {
    if (!n)
        return;
    for (int i = 0; n->results && i < n->c.count * n->label_count; i++)
        free(n->results[i].class_purity);
    for (int i = 0; i < GMAL_MOST_LABELS; i++)
        gmal_labels_free(&n->labels[i]);
    gmal_collection_free(&n->c);
    gma_tokenizer_destroy(n->made);
    free(n->results);
    free(n->heads);
    free(n->data);
    free(n);
}

int gma_inspection_heads(const gma_inspection *n) { return n ? n->c.count : 0; }
int gma_inspection_labels(const gma_inspection *n) { return n ? n->label_count : 0; }

gma_status gma_inspection_head(const gma_inspection *n, int head, gma_inspect_head *out) {
    if (!n || !out || head < 0 || head >= n->c.count || out->struct_size != sizeof *out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspection_head: there is no head %d, or struct_size is not set",
                        head);
    *out = n->heads[head];
    return GMA_OK;
}

gma_status gma_inspection_label(const gma_inspection *n, int head, int label, gma_inspect_label *out) {
    if (!n || !out || head < 0 || head >= n->c.count || label < 0 || label >= n->label_count ||
        out->struct_size != sizeof *out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "gma_inspection_label: there is no label %d of head %d, or struct_size is "
                        "not set",
                        label, head);
    *out = n->results[head * n->label_count + label].numbers;
    return GMA_OK;
}
