/* Drawing tokens, and text from them. */
#include <math.h>
#include <stdlib.h>

#include "gma/lm.h"
#include "layers/rng.h"

gma_status gma_sampling_init(gma_sampling *s) {
    if (!s) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "sampling is NULL");
    *s = (gma_sampling){.struct_size = sizeof *s, .temperature = 1, .top_p = 1};
    return GMA_OK;
}

static gma_status check(const gma_sampling *s) {
    if (!s || s->struct_size != sizeof *s)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "sampling must come from gma_sampling_init");
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "temperature must be 0 or more, not %g", s->temperature);
    if (s->top_k < 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "top_k must be 0 or more, not %lld", (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "top_p must be over 0 and at most 1, not %g", s->top_p);
    return GMA_OK;
}

/* The likelier of two tokens; the lower id wins a tie, so that the order is total. */
static int before(const float *p, int32_t a, int32_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); }

static void sift(const float *p, int32_t *heap, int64_t n, int64_t i) {
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= n) return;
        if (child + 1 < n && before(p, heap[child + 1], heap[child])) child++;
        if (!before(p, heap[child], heap[i])) return;
        const int32_t t = heap[i];
        heap[i] = heap[child];
        heap[child] = t;
        i = child;
    }
}

/* Pops the most likely tokens off a heap until k are out or they reach the mass; they end up at the end of `heap`,
 * likeliest last. A heap, not a sort: a few of many are wanted. */
static int64_t pop_top(const float *p, int32_t *heap, int64_t n, int64_t k, double mass) {
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(p, heap, n, i);
    while (count < k && n > 0 && (count == 0 || sum < mass)) {
        const int32_t top = heap[0];
        heap[0] = heap[--n];
        heap[n] = top;
        sift(p, heap, n, 0);
        sum += (double)p[top];
        count++;
    }
    return count;
}

static int32_t draw(const float *p, const int32_t *ids, int64_t n, double u) {
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) total += (double)p[ids ? ids[i] : i];
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = ids ? ids[i] : (int32_t)i;
        sum += (double)p[id];
        if (u * total < sum) return id;
    }
    for (int64_t i = n - 1; i > 0; i--) /* rounding left u at the very end */
        if (p[ids ? ids[i] : i] > 0) return ids ? ids[i] : (int32_t)i;
    return ids ? ids[0] : 0;
}

gma_status gma_sample(const float *logits, int64_t vocab, const gma_sampling *s, uint64_t index, float *work,
                      int32_t *token) {
    if (!logits || !work || !token || vocab < 1 || vocab > INT32_MAX)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_sample: a pointer is NULL or vocab is out of range");
    const gma_status status = check(s);
    if (status != GMA_OK) return status;
    int64_t best = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || logits[i] == HUGE_VALF)
            return gma_fail(GMA_ERR_NON_FINITE, "the logit of token %lld is not finite", (long long)i);
        if (logits[i] > logits[best]) best = i;
    }
    if (logits[best] == -HUGE_VALF) return gma_fail(GMA_ERR_NON_FINITE, "every logit is minus infinity");
    *token = (int32_t)best;
    if (s->temperature == 0) return GMA_OK;
    float *p = work;
    double total = 0;
    for (int64_t i = 0; i < vocab; i++) {
        p[i] = (float)exp(((double)logits[i] - (double)logits[best]) / s->temperature);
        total += (double)p[i];
    }
    const double u = gmal_uniform(s->seed, index);
    const int64_t k = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    if (k == vocab && s->top_p >= 1) {
        *token = draw(p, NULL, vocab, u);
        return GMA_OK;
    }
    int32_t *ids = (int32_t *)(void *)(work + vocab);
    for (int64_t i = 0; i < vocab; i++) ids[i] = (int32_t)i;
    int64_t n = pop_top(p, ids, vocab, k, k < vocab ? HUGE_VAL : s->top_p * total);
    const int32_t *top = ids + vocab - n;
    if (k < vocab && s->top_p < 1) { /* p of what top_k left, likeliest first */
        double kept = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) kept += (double)p[top[i]];
        int64_t m = 0;
        while (m < n && (m == 0 || sum < s->top_p * kept)) sum += (double)p[top[n - 1 - m++]];
        top += n - m;
        n = m;
    }
    *token = draw(p, top, n, u);
    return GMA_OK;
}
