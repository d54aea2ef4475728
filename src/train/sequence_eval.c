#include "train/sequence_eval.h"

#include <stdlib.h>
#include <string.h>

#include "train/evaluate.h"

gmal_set_want gmal_sequences_for(const gma_lm_config *c, int64_t context) {
    const int classify = c->task == GMA_LM_TASK_CLASSIFY;
    return (gmal_set_want){.layout = classify ? GMA_TOKEN_LABELS : GMA_TOKEN_TARGETS,
                           .context = (context ? context : c->context) - (c->pooling == GMA_LM_POOLING_CLS),
                           .vocab = c->vocab,
                           .classes = c->classes,
                           .bytes = c->tokenizer == GMA_LM_TOKENIZER_BYTES};
}

/* ---- Batches -------------------------------------------------------------------------------------------------- */

gma_status gmal_sequence_batch_create(const gma_lm_config *c, int64_t room, int64_t longest, gmal_sequence_batch *b) {
    const int own = c->pooling == GMA_LM_POOLING_CLS;
    const size_t bytes = (size_t)(room * (longest + own)) * sizeof *b->x;
    *b = (gmal_sequence_batch){.room = room,
                               .lengths = malloc((size_t)room * sizeof *b->lengths),
                               .x = malloc(bytes),
                               .y = malloc(bytes),
                               .own = own ? (int32_t)c->vocab : -1,
                               .classes = c->task == GMA_LM_TASK_CLASSIFY};
    return b->lengths && b->x && b->y ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a batch");
}

void gmal_sequence_batch_destroy(gmal_sequence_batch *b) {
    free(b->lengths);
    free(b->x);
    free(b->y);
    memset(b, 0, sizeof *b);
}

void gmal_sequence_batch_put(gmal_sequence_batch *b, const gmal_sequence_set *set, int64_t index) {
    const int64_t n = gmal_set_length(set, index), own = b->own >= 0;
    if (own) b->x[b->rows] = b->own;
    gmal_set_read(set, index, b->x + b->rows + own, b->y + (b->classes ? b->count : b->rows));
    b->lengths[b->count++] = n + own;
    b->rows += n + own;
}

gma_status gmal_sequence_net_create(const gmal_layout *layout, int64_t batch, int64_t longest, gmal_net_use use, int threads,
                                    gmal_net_f32 **net) {
    return gmal_net_create_f32(layout, batch, longest + (layout->c.pooling == GMA_LM_POOLING_CLS), use, threads, net);
}

int64_t gmal_sequence_span_longest(const gmal_sequence_span *span) {
    int64_t longest = 0;
    for (int64_t i = span->begin; i < span->end; i++) {
        const int64_t n = gmal_set_length(span->set, i);
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* ---- Evaluation ----------------------------------------------------------------------------------------------- */

gma_status gmal_sequence_eval_create(const gmal_layout *layout, const gmal_sequence_span *span, int64_t batch,
                                     int64_t most, int threads, gmal_sequence_eval *e) {
    memset(e, 0, sizeof *e);
    const int64_t all = span->end - span->begin, longest = gmal_sequence_span_longest(span);
    e->span = *span;
    e->count = most && most < all ? most : all;
    batch = batch < e->count ? batch : e->count;
    gma_status s = gmal_sequence_batch_create(&layout->c, batch, longest, &e->batch);
    if (s == GMA_OK) s = gmal_sequence_net_create(layout, batch, longest, GMAL_NET_EVALUATE, threads, &e->net);
    if (s != GMA_OK) gmal_sequence_eval_destroy(e);
    return s;
}

void gmal_sequence_eval_destroy(gmal_sequence_eval *e) {
    gmal_net_destroy_f32(e->net);
    gmal_sequence_batch_destroy(&e->batch);
    memset(e, 0, sizeof *e);
}

gma_status gmal_sequence_evaluate(gmal_sequence_eval *e, const float *params, gmal_stop stop, gmal_score *score) {
    gmal_sequence_batch *b = &e->batch;
    double total = 0;
    *score = (gmal_score){.right = 0};
    for (int64_t at = 0; at < e->count; at += b->room) {
        const int64_t n = e->count - at < b->room ? e->count - at : b->room;
        double sum;
        int64_t right;
        b->count = b->rows = 0;
        for (int64_t i = e->span.begin + at; i < e->span.begin + at + n; i++) {
            gmal_sequence_batch_put(b, e->span.set, i);
            score->targets += gmal_set_targets(e->span.set, i);
        }
        gma_status s = gmal_net_pack_f32(e->net, b->lengths, b->count);
        if (s == GMA_OK) s = gmal_net_score_f32(e->net, params, b->x, b->y, &sum, &right);
        if (s != GMA_OK) return s;
        total += sum;
        score->right += right;
        if (stop.ask && stop.ask(stop.context)) return gma_fail(GMA_ERR_INTERRUPTED, "interrupted during a validation");
    }
    score->loss = total / (double)score->targets;
    return GMA_OK;
}

gma_status gmal_eval_sequences(const gma_lm *lm, const char *data, const gma_eval_options *o, int threads,
                               gma_eval_result *result) {
    const gma_lm_config *c = &lm->layout->c;
    gmal_sequence_set set;
    gmal_sequence_eval e;
    gmal_score score;
    gmal_set_want want = gmal_sequences_for(c, o->context);
    want.tokenizer = lm->tokenizer;
    if (o->stride) return gma_fail(GMA_ERR_UNSUPPORTED, "stride is for one text, and %s is read as sequences", data);
    if (want.context < 1 || (c->task == GMA_LM_TASK_CLASSIFY && o->context > c->context))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "context is %lld, and the model classifies sequences of up to %lld",
                        (long long)o->context, (long long)c->context);
    gma_status s = gmal_set_open(data, &want, &set);
    if (s != GMA_OK) return s;
    const int64_t all = gmal_set_count(&set), cut = gmal_split_at(all, o->val_fraction);
    const gmal_sequence_span span = {&set, o->split == GMA_SPLIT_VAL ? cut : 0, o->split == GMA_SPLIT_TRAIN ? cut : all};
    if (span.begin == span.end) s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: this part of it holds no sequence", data);
    if (s == GMA_OK)
        s = gmal_sequence_eval_create(lm->layout, &span, o->batch ? o->batch : 16, o->max_windows, threads, &e);
    if (s == GMA_OK) {
        s = gmal_sequence_evaluate(&e, lm->values, (gmal_stop){NULL, NULL}, &score);
        result->sequences = result->windows = e.count;
        for (int64_t i = span.begin; i < span.begin + e.count; i++) result->cut += gmal_set_is_cut(&set, i);
        gmal_sequence_eval_destroy(&e);
    }
    gmal_set_close(&set);
    if (s != GMA_OK) return s;
    result->loss = score.loss;
    result->tokens = score.targets;
    result->right = score.right;
    result->accuracy = (double)score.right / (double)score.targets;
    gmal_wilson(score.right, score.targets, &result->accuracy_low, &result->accuracy_high);
    return GMA_OK;
}
