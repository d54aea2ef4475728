/* Models in memory: create, look at, whole-sequence loss and logits. */
#include "models/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gma/data.h"
#include "layers/kernels.h"
#include "layers/pages.h"
#include "layers/threads.h"
#include "models/net.h"

gma_status gmal_model_alloc(const gma_lm_config *config, gma_lm **lm) {
    if (!lm) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "lm is NULL");
    *lm = NULL;
    if (!config) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "config is NULL");
    gma_lm_config c = *config;
    gma_status s = gma_lm_config_resolve(&c);
    if (s == GMA_OK) s = gmal_kernels_init();
    if (s != GMA_OK) return s;
    gma_lm *m = calloc(1, sizeof *m);
    if (!m) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a model");
    s = gmal_layout_create(&c, &m->layout);
    if (s == GMA_OK) {
        const size_t bytes = ((size_t)m->layout->total * sizeof(float) + 63) / 64 * 64;
        m->values = gmal_pages(bytes);
        if (m->values)
            memset(m->values, 0, bytes);
        else
            s = gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld parameters", (long long)m->layout->total);
    }
    if (s != GMA_OK) {
        gma_lm_destroy(m);
        return s;
    }
    *lm = m;
    return GMA_OK;
}

gma_status gma_lm_create(const gma_lm_config *config, uint64_t seed, gma_lm **lm) {
    gma_status s = gmal_model_alloc(config, lm);
    if (s == GMA_OK) s = gmal_layout_init((*lm)->layout, seed, (*lm)->values);
    if (s != GMA_OK && lm) {
        gma_lm_destroy(*lm);
        *lm = NULL;
    }
    return s;
}

void gma_lm_destroy(gma_lm *lm) {
    if (!lm) return;
    gmal_layout_destroy(lm->layout);
    gma_tokenizer_destroy(lm->tokenizer);
    free(lm->values);
    free(lm);
}

gma_status gma_lm_set_tokenizer(gma_lm *lm, gma_tokenizer *t) {
    if (!lm || !t) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_lm_set_tokenizer: %s is NULL", lm ? "tokenizer" : "lm");
    const gma_lm_config *c = &lm->layout->c;
    const int want = c->tokenizer == GMA_LM_TOKENIZER_WORDS ? GMA_TOKENIZER_WORDS
                     : c->tokenizer == GMA_LM_TOKENIZER_BPE ? GMA_TOKENIZER_BPE
                                                            : -1;
    if (want != (int)gma_tokenizer_get_kind(t))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the model's configuration does not go with a tokenizer of kind %s",
                        gma_tokenizer_kind_name(gma_tokenizer_get_kind(t)));
    if (gma_tokenizer_vocab(t) != c->vocab)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the tokenizer has %lld tokens, the model a vocabulary of %lld",
                        (long long)gma_tokenizer_vocab(t), (long long)c->vocab);
    if (t != lm->tokenizer) gma_tokenizer_destroy(lm->tokenizer);
    lm->tokenizer = t;
    return GMA_OK;
}

const gma_tokenizer *gma_lm_tokenizer_of(const gma_lm *lm) { return lm ? lm->tokenizer : NULL; }

gma_status gma_lm_get_config(const gma_lm *lm, gma_lm_config *config) {
    if (!lm || !config) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", lm ? "config" : "lm");
    *config = lm->layout->c;
    return GMA_OK;
}

int64_t gma_lm_parameter_count(const gma_lm *lm) {
    int64_t count = 0;
    for (int i = 0; lm && i < lm->layout->param_count; i++)
        count += lm->layout->params[i].fixed ? 0 : lm->layout->params[i].count;
    return count;
}

gma_status gma_lm_redraw_features(gma_lm *lm, uint64_t seed, int64_t *count) {
    if (!lm) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "lm is NULL");
    return gmal_layout_redraw(lm->layout, seed, lm->values, count);
}

int gma_lm_tensor_count(const gma_lm *lm) { return lm ? lm->layout->param_count : 0; }

gma_status gma_lm_tensor(gma_lm *lm, int i, const char **name, gma_tensor *tensor) {
    if (!lm) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "lm is NULL");
    if (i < 0 || i >= lm->layout->param_count)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "tensor %d: the model has %d", i, lm->layout->param_count);
    const gmal_param *p = &lm->layout->params[i];
    if (name) *name = p->name;
    if (tensor)
        *tensor = gma_tensor_of(lm->values + p->offset, GMA_F32, p->rank, p->shape[0], p->shape[1], p->shape[2], 1);
    return GMA_OK;
}

gma_status gmal_check_tokens(const char *what, const int32_t *tokens, int64_t count, int64_t vocab, int targets) {
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] >= vocab || (tokens[i] < 0 && !targets))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s[%lld] is %d, the vocabulary has %lld", what, (long long)i,
                            (int)tokens[i], (long long)vocab);
    return GMA_OK;
}

const char *gmal_first_bad_tensor(const gmal_layout *layout, const float *values) {
    for (int j = 0; j < layout->param_count; j++) {
        const gmal_param *p = &layout->params[j];
        for (int64_t i = 0; i < p->count; i++)
            if (!isfinite(values[p->offset + i])) return p->name;
    }
    return NULL;
}

/* What loss and logits have in common: checks, and a net for this one call. */
static gma_status whole(const gma_lm *lm, const int32_t *tokens, int64_t batch, int64_t steps, int threads,
                        gmal_net_f32 **net) {
    *net = NULL;
    if (!lm || !tokens) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", lm ? "tokens" : "lm");
    if (batch < 1 || steps < 1 || batch > INT64_C(1) << 40 || steps > (INT64_C(1) << 40) / batch)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "a batch of %lld x %lld tokens is out of range", (long long)batch,
                        (long long)steps);
    const gma_lm_config *c = &lm->layout->c;
    if (c->task == GMA_LM_TASK_SEQ2SEQ)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model reads a source first (task seq2seq): gma_lm_stream_source, gma_eval");
    if (c->task == GMA_LM_TASK_CLASSIFY)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model classifies whole sequences (gma_lm_classify) and predicts no token");
    if (c->positions == GMA_LM_POSITIONS_LEARNED && steps > c->context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "steps is %lld, but the model has learned positions for %lld",
                        (long long)steps, (long long)c->context);
    const gma_status s = gmal_check_tokens("tokens", tokens, batch * steps, c->vocab, 0);
    if (s != GMA_OK) return s;
    return gmal_net_create_f32(lm->layout, batch, steps, GMAL_NET_EVALUATE, threads, net);
}

gma_status gma_lm_loss(const gma_lm *lm, const int32_t *tokens, const int32_t *targets, int64_t batch, int64_t steps,
                       int threads, double *loss_sum, int64_t *count) {
    gmal_net_f32 *net;
    if (!targets || !loss_sum) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "targets or loss_sum is NULL");
    const gmal_threads t = gmal_threads_enter(threads);
    gma_status s = whole(lm, tokens, batch, steps, t.now, &net);
    if (s == GMA_OK) s = gmal_check_tokens("targets", targets, batch * steps, lm->layout->c.vocab, 1);
    if (s == GMA_OK) s = gmal_net_loss_f32(net, lm->values, tokens, targets, loss_sum);
    gmal_net_destroy_f32(net);
    gmal_threads_leave(t);
    if (s != GMA_OK || !count) return s;
    *count = 0;
    for (int64_t i = 0; i < batch * steps; i++) *count += targets[i] >= 0;
    return GMA_OK;
}

gma_status gma_lm_logits(const gma_lm *lm, const int32_t *tokens, int64_t batch, int64_t steps, int threads,
                         float *logits) {
    gmal_net_f32 *net;
    if (!logits) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "logits is NULL");
    const gmal_threads t = gmal_threads_enter(threads);
    gma_status s = whole(lm, tokens, batch, steps, t.now, &net);
    if (s == GMA_OK) s = gmal_net_logits_f32(net, lm->values, tokens, logits);
    gmal_net_destroy_f32(net);
    gmal_threads_leave(t);
    return s;
}

/* The tokens as the network reads them: with pooling cls each sequence begins with a token of its own, number vocab. */
static gma_status begin_sequences(const gma_lm_config *c, const int32_t *tokens, const int64_t *lengths, int64_t count,
                                  int32_t **x, int64_t **n) {
    const int64_t own = c->pooling == GMA_LM_POOLING_CLS;
    int64_t total = 0, at = 0;
    for (int64_t b = 0; b < count; b++) {
        if (lengths[b] < 1 || lengths[b] > c->context - own)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "lengths[%lld] is %lld; a sequence has 1 to %lld tokens", (long long)b,
                            (long long)lengths[b], (long long)(c->context - own));
        total += lengths[b];
    }
    const gma_status s = gmal_check_tokens("tokens", tokens, total, c->vocab, 0);
    if (s != GMA_OK) return s;
    *x = malloc((size_t)(total + count) * sizeof **x);
    *n = malloc((size_t)count * sizeof **n);
    if (!*x || !*n) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a batch");
    for (int64_t b = 0; b < count; b++) {
        (*n)[b] = lengths[b] + own;
        if (own) (*x)[at++] = (int32_t)c->vocab;
        memcpy(*x + at, tokens, (size_t)lengths[b] * sizeof **x);
        at += lengths[b];
        tokens += lengths[b];
    }
    return GMA_OK;
}

gma_status gma_lm_classify(const gma_lm *lm, const int32_t *tokens, const int64_t *lengths, int64_t count, int threads,
                           float *logits) {
    if (!lm || !tokens || !lengths || !logits || count < 1 || count > 1 << 24)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_lm_classify: a pointer is NULL or count is out of range");
    const gma_lm_config *c = &lm->layout->c;
    if (c->task != GMA_LM_TASK_CLASSIFY)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model predicts tokens (gma_lm_logits) and knows no classes");
    int32_t *x = NULL;
    int64_t *n = NULL;
    gmal_net_f32 *net = NULL;
    const gmal_threads t = gmal_threads_enter(threads);
    gma_status s = begin_sequences(c, tokens, lengths, count, &x, &n);
    if (s == GMA_OK) s = gmal_net_create_f32(lm->layout, 1, n[0], GMAL_NET_EVALUATE, t.now, &net);
    if (s == GMA_OK) s = gmal_net_pack_f32(net, n, count);
    if (s == GMA_OK) s = gmal_net_logits_f32(net, lm->values, x, logits);
    gmal_net_destroy_f32(net);
    gmal_threads_leave(t);
    free(x);
    free(n);
    return s;
}
