#include "train/pairs_eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"
#include "layers/try.h"
#include "train/evaluate.h"

gma_status gmal_pair_batch_create(int64_t room, int64_t context, gmal_pair_batch *b) {
    const size_t n = (size_t)(room * context), m = (size_t)(room * (context + 1));
    *b = (gmal_pair_batch){.room = room, .context = context};
    b->source = malloc(n * sizeof *b->source);
    b->mask = malloc(n);
    b->tokens = malloc(m * sizeof *b->tokens);
    b->targets = malloc(m * sizeof *b->targets);
    b->lengths = malloc((size_t)room * sizeof *b->lengths);
    if (b->source && b->mask && b->tokens && b->targets && b->lengths) return GMA_OK;
    return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a batch");
}

void gmal_pair_batch_destroy(gmal_pair_batch *b) {
    free(b->source);
    free(b->mask);
    free(b->tokens);
    free(b->targets);
    free(b->lengths);
    memset(b, 0, sizeof *b);
}

void gmal_pair_batch_fill(gmal_pair_batch *b, const gmal_pairs_of *of, int64_t first, int64_t count) {
    const int64_t S = b->context, T = S + 1;
    b->whole = of->least == S;
    for (int64_t i = 0; i < b->room; i++) {
        unsigned char *mask = b->mask + i * S;
        int32_t *source = b->source + i * S, *tokens = b->tokens + i * T, *targets = b->targets + i * T;
        b->lengths[i] = gmal_pair_frame(of, first + (i < count ? i : 0), S, source, mask, tokens, targets);
        for (int64_t t = 0; i >= count && t < T; t++) targets[t] = -1;
    }
}

gmal_pairs_f32 gmal_pair_batch_view(const gmal_pair_batch *b) {
    return (gmal_pairs_f32){b->source, b->tokens, b->targets, b->whole ? NULL : b->mask};
}

/* ---- Evaluation ----------------------------------------------------------------------------------------------- */

static gma_status make(gmal_pairs_eval *e, const gmal_layout *layout, int64_t batch, int threads) {
    TRY(gmal_pair_batch_create(batch, layout->c.context, &e->batch));
    TRY(gmal_seq2seq_create_f32(layout, batch, GMAL_NET_EVALUATE, threads, &e->net));
    e->logits = malloc((size_t)layout->c.vocab * sizeof *e->logits);
    float *nothing = calloc((size_t)layout->total, sizeof *nothing); /* a stream starts from some parameters */
    e->shell = (gma_lm){.layout = (gmal_layout *)(uintptr_t)layout, .values = nothing};
    const gma_status s = e->logits && nothing ? gma_lm_stream_create(&e->shell, threads, &e->stream)
                                              : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for an evaluation");
    e->shell.values = NULL;
    free(nothing);
    return s;
}

gma_status gmal_pairs_eval_create(const gmal_layout *layout, const gmal_pairs_of *of, int64_t count, int64_t batch, int threads,
                                  gmal_pairs_eval *e) {
    memset(e, 0, sizeof *e);
    e->of = *of;
    e->count = count;
    const gma_status s = make(e, layout, batch < count ? batch : count, threads);
    if (s != GMA_OK) gmal_pairs_eval_destroy(e);
    return s;
}

void gmal_pairs_eval_destroy(gmal_pairs_eval *e) {
    gma_lm_stream_destroy(e->stream);
    gmal_seq2seq_destroy_f32(e->net);
    gmal_pair_batch_destroy(&e->batch);
    free(e->logits);
    memset(e, 0, sizeof *e);
}

static int32_t likeliest(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Greedy decoding of pair b of the batch: how many symbols are right, and whether all and the end are. */
static gma_status decode(gmal_pairs_eval *e, int64_t b, const float *memory, int64_t *right, int *whole) {
    const gma_lm_config *c = &e->shell.layout->c;
    const int32_t *want = e->batch.targets + b * (c->context + 1), end = gmal_end_token(c->vocab);
    const int64_t n = e->batch.lengths[b];
    int32_t token = gmal_begin_token(c->vocab);
    *right = 0;
    *whole = 1;
    TRY(gmal_stream_memory(e->stream, memory + b * c->context * c->width, n));
    for (int64_t t = 0; t <= n && token != end; t++) { /* what comes after its true length cannot be right any more */
        TRY(gma_lm_stream_feed(e->stream, token, e->logits));
        token = likeliest(e->logits, c->vocab);
        *right += t < n && token == want[t];
        *whole &= token == want[t];
    }
    *whole &= *right == n;
    return GMA_OK;
}

gma_status gmal_pairs_evaluate(gmal_pairs_eval *e, const float *params, gmal_stop stop, gmal_score *score) {
    double total = 0;
    int64_t tokens = 0;
    *score = (gmal_score){.sequences = e->count};
    e->shell.values = (float *)(uintptr_t)params; /* only read */
    for (int64_t at = 0; at < e->count; at += e->batch.room) {
        const int64_t n = e->count - at < e->batch.room ? e->count - at : e->batch.room;
        double sum;
        gmal_pair_batch_fill(&e->batch, &e->of, at, n);
        const gmal_pairs_f32 pairs = gmal_pair_batch_view(&e->batch);
        TRY(gmal_seq2seq_loss_f32(e->net, params, &pairs, &sum));
        const float *memory = gmal_seq2seq_memory_f32(e->net);
        total += sum;
        for (int64_t b = 0; b < n; b++) {
            int64_t right;
            int whole;
            TRY(decode(e, b, memory, &right, &whole));
            score->right += right;
            score->whole += whole;
            score->targets += e->batch.lengths[b];
            tokens += e->batch.lengths[b] + 1;
            if (stop.ask && stop.ask(stop.context)) return gma_fail(GMA_ERR_INTERRUPTED, "interrupted during a validation");
        }
    }
    score->loss = total / (double)tokens;
    return GMA_OK;
}

gma_status gmal_eval_pairs(const gma_lm *lm, const char *data, const gma_eval_options *o, int threads, gma_eval_result *result) {
    const gma_lm_config *c = &lm->layout->c;
    gmal_pairs_of of = {.symbols = c->vocab - GMAL_FRAME,
                        .least = o->min_length,
                        .most = o->context ? o->context : c->context,
                        .key = gmal_key(o->seed, 5)};
    gmal_pairs_eval e;
    gmal_score score;
    TRY(gmal_pairs_kind(data, &of.kind));
    if (o->stride || o->split != GMA_SPLIT_ALL)
        return gma_fail(GMA_ERR_UNSUPPORTED, "%s is for a file, and %s is generated", o->stride ? "stride" : "split", data);
    if (of.most > c->context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "context is %lld, and the model reads sources of up to %lld", (long long)of.most,
                        (long long)c->context);
    if (!of.least) of.least = of.most;
    if (of.least < 1 || of.least > of.most)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "min_length must be from 1 to %lld, not %lld", (long long)of.most,
                        (long long)of.least);
    TRY(gmal_pairs_eval_create(lm->layout, &of, o->max_windows ? o->max_windows : 1000, o->batch ? o->batch : 16, threads, &e));
    const gma_status s = gmal_pairs_evaluate(&e, lm->values, (gmal_stop){NULL, NULL}, &score);
    result->state_bytes = (int64_t)gma_lm_stream_state_bytes(e.stream);
    gmal_pairs_eval_destroy(&e);
    if (s != GMA_OK) return s;
    result->loss = score.loss;
    result->tokens = score.targets;
    result->sequences = result->windows = score.sequences;
    result->right = score.right;
    result->accuracy = (double)score.right / (double)score.targets;
    gmal_wilson(score.right, score.targets, &result->accuracy_low, &result->accuracy_high);
    result->sequences_right = score.whole;
    result->sequence_accuracy = (double)score.whole / (double)score.sequences;
    return GMA_OK;
}
