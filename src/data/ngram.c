/* Bigram and trigram byte tables: what a model has to beat. */
#include <math.h>
#include <stdlib.h>

#include "data/tokens.h"

enum { V = 256 };

gma_status gmal_ngram_loss(const gmal_span *train, const gmal_span *test, int order, double added, double *nats) {
    if (train->tokens->width != 1 || test->tokens->width != 1)
        return gma_fail(GMA_ERR_UNSUPPORTED, "n-gram tables are for bytes");
    if (order < 2 || order > 3)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "n-gram order must be 2 or 3, not %d", order);
    const int64_t past = order - 1;
    if (test->end - test->begin <= past)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the text to evaluate is shorter than %d tokens", order);
    const size_t contexts = order == 2 ? V : (size_t)V * V;
    uint32_t *count = calloc(contexts * V, sizeof *count), *sum = calloc(contexts, sizeof *sum);
    if (!count || !sum) {
        free(count);
        free(sum);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a table of order %d", order);
    }
    const unsigned char *x = train->tokens->bytes, *y = test->tokens->bytes;
    for (int64_t i = train->begin + past; i < train->end; i++) {
        const size_t c = order == 2 ? x[i - 1] : (size_t)x[i - 2] * V + x[i - 1];
        count[c * V + x[i]]++;
        sum[c]++;
    }
    double total = 0;
    for (int64_t i = test->begin + past; i < test->end; i++) {
        const size_t c = order == 2 ? y[i - 1] : (size_t)y[i - 2] * V + y[i - 1];
        total -= log(((double)count[c * V + y[i]] + added) / ((double)sum[c] + added * V));
    }
    *nats = total / (double)(test->end - test->begin - past);
    free(count);
    free(sum);
    return GMA_OK;
}
