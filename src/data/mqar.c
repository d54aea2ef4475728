/* Multi-query associative recall. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/random.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

gma_status gma_mqar_options_init(gma_mqar_options *o) {
    if (!o) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options is NULL");
    *o = (gma_mqar_options){.struct_size = sizeof *o, .seed = 1, .sequences = 1000, .length = 64, .pairs = 8, .vocab = 8192,
                            .power = 0.01};
    return GMA_OK;
}

static gma_status check(const gma_mqar_options *o) {
    if (o->sequences < 1) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "sequences must be at least 1");
    if (o->pairs < 1 || o->length % 2 || o->length > 1 << 20 || o->length < 4 * o->pairs)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "length must be even, at least 4 times the pairs (%lld) and at most %d, not %lld",
                        (long long)o->pairs, 1 << 20, (long long)o->length);
    if (o->vocab % 2 || o->vocab <= o->length || o->vocab > 1 << 24)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "vocab must be even, more than the length (%lld) and at most %d, not %lld",
                        (long long)o->length, 1 << 24, (long long)o->vocab);
    if (!(o->power > 0 && o->power <= 10))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "power must be more than 0 and at most 10, not %g", o->power);
    return GMA_OK;
}

/* x^p for a whole x >= 1 with nothing but + - * /, so that it has the same bits everywhere; good to about 1e-14. */
static double power_of(int64_t x, double p) {
    static const double ln2 = 0.69314718055994530942;
    int halvings = 0, twos = 0;
    double m = (double)x, log = 0, term, sum = 1;
    for (; m > 1.5; halvings++) m *= 0.5;
    const double s = (m - 1) / (m + 1);
    for (int k = 39; k > 0; k -= 2) log = log * (s * s) + 2.0 / k;
    double y = p * (log * s + halvings * ln2);
    for (; y > 0.5; twos++) y -= ln2;
    for (; y < -0.5; twos--) y += ln2;
    term = 1;
    for (int k = 1; k < 24; k++) sum += term = term * y / k;
    for (; twos > 0; twos--) sum *= 2;
    for (; twos < 0; twos++) sum *= 0.5;
    return sum;
}

typedef struct maker {
    const gma_mqar_options *o;
    int64_t space; /* places where a key can be asked for */
    uint64_t *weights, *left; /* of the places; what is left of them in this sequence */
    uint64_t total;
    char *used; /* per token */
    int32_t *keys, *values, *tokens, *targets;
} maker;

static gma_status prepare(maker *m) {
    const gma_mqar_options *o = m->o;
    m->space = (o->length - 2 * o->pairs) / 2;
    m->weights = malloc((size_t)m->space * sizeof *m->weights);
    m->left = malloc((size_t)m->space * sizeof *m->left);
    m->used = calloc((size_t)o->vocab, 1);
    m->keys = malloc((size_t)o->pairs * sizeof *m->keys);
    m->values = malloc((size_t)o->pairs * sizeof *m->values);
    m->tokens = malloc((size_t)o->length * sizeof *m->tokens);
    m->targets = malloc((size_t)o->length * sizeof *m->targets);
    if (!m->weights || !m->left || !m->used || !m->keys || !m->values || !m->tokens || !m->targets)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for sequences of %lld", (long long)o->length);
    /* In units of the largest / 2^40, as whole numbers. */
    const double scale = 0x1p40 / (o->power > 1 ? power_of(m->space, o->power - 1) : 1);
    for (int64_t i = 0; i < m->space; i++) {
        m->weights[i] = (uint64_t)(power_of(i + 1, o->power - 1) * scale + 0.5);
        if (m->weights[i] == 0) m->weights[i] = 1;
        m->total += m->weights[i];
    }
    return GMA_OK;
}

static void release(maker *m) {
    free(m->weights);
    free(m->left);
    free(m->used);
    free(m->keys);
    free(m->values);
    free(m->tokens);
    free(m->targets);
}

/* `n` different tokens of begin..end-1. They are few beside that range, so drawing again costs little. */
static void draw_tokens(maker *m, gmal_draws *d, int64_t begin, int64_t end, int32_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        do out[i] = (int32_t)(begin + (int64_t)gmal_below(d, (uint64_t)(end - begin)));
        while (m->used[out[i]]);
        m->used[out[i]] = 1;
    }
    for (int64_t i = 0; i < n; i++) m->used[out[i]] = 0;
}

/* A place no key has taken yet, by weight. */
static int64_t draw_place(maker *m, gmal_draws *d, uint64_t *total) {
    uint64_t at = gmal_below(d, *total);
    int64_t i = 0;
    while (at >= m->left[i]) at -= m->left[i++];
    *total -= m->left[i];
    m->left[i] = 0;
    return i;
}

static void draw_sequence(maker *m, uint64_t key) {
    const gma_mqar_options *o = m->o;
    gmal_draws d = {key, 0};
    uint64_t total = m->total;
    draw_tokens(m, &d, 1, o->vocab / 2, m->keys, o->pairs);
    draw_tokens(m, &d, o->vocab / 2, o->vocab, m->values, o->pairs);
    memcpy(m->left, m->weights, (size_t)m->space * sizeof *m->left);
    for (int64_t i = 0; i < o->length; i++) {
        m->tokens[i] = -1;
        m->targets[i] = -1;
    }
    for (int64_t i = 0; i < o->pairs; i++) {
        const int64_t place = 2 * o->pairs + 2 * draw_place(m, &d, &total);
        m->tokens[2 * i] = m->keys[i];
        m->tokens[2 * i + 1] = m->values[i];
        m->tokens[place] = m->keys[i];
        m->targets[place] = m->values[i];
    }
    for (int64_t i = 0; i < o->length; i++)
        if (m->tokens[i] < 0) m->tokens[i] = o->zeros ? 0 : (int32_t)gmal_below(&d, (uint64_t)o->vocab);
}

gma_status gma_data_mqar(const gma_mqar_options *o, const char *out) {
    if (!o || o->struct_size != sizeof *o || !out)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_data_mqar: options are not initialised or out is NULL");
    maker m = {.o = o};
    gma_tokenizer *t = NULL;
    gmal_token_writer w;
    char source[200];
    gma_status s = check(o);
    if (s == GMA_OK) s = gma_tokenizer_create(GMA_TOKENIZER_IDS, o->vocab, &t);
    if (s == GMA_OK) s = prepare(&m);
    snprintf(source, sizeof source, "MQAR, %lld pairs in %lld tokens, power %g, %s between, seed %llu", (long long)o->pairs,
             (long long)o->length, o->power, o->zeros ? "zeros" : "random tokens", (unsigned long long)o->seed);
    if (s == GMA_OK) s = gmal_token_writer_begin(&w, out, t, GMA_TOKEN_TARGETS, 0, source);
    if (s == GMA_OK) {
        const uint64_t key = gmal_key(o->seed, UINT64_C(0x6d716172));
        for (int64_t i = 0; i < o->sequences && s == GMA_OK; i++) {
            draw_sequence(&m, gmal_key(key, (uint64_t)i));
            s = gmal_token_writer_add(&w, m.tokens, o->length);
            if (s == GMA_OK) s = gmal_token_writer_targets(&w, m.targets, o->length);
            if (s == GMA_OK) s = gmal_token_writer_end(&w, -1);
        }
        if (s == GMA_OK) s = gmal_token_writer_finish(&w);
        else gmal_token_writer_abandon(&w);
    }
    release(&m);
    gma_tokenizer_destroy(t);
    return s;
}
