/* Text from a stream. */
#include <stdlib.h>

#include "data/tokenizer.h"
#include "gma/lm.h"
#include "models/model.h"

typedef struct output {
    gma_utf8 filter;
    int raw;
    gma_write write;
    void *context;
} output;

static gma_status put_byte(output *o, unsigned char byte) {
    char text[GMA_UTF8_MAX] = {(char)byte};
    const size_t n = o->raw ? 1 : gma_utf8_push(&o->filter, byte, text);
    if (n && o->write(o->context, text, n) != 0) return gma_fail(GMA_ERR_INTERRUPTED, "generation was stopped");
    return GMA_OK;
}

/* The bytes that a token stands for. */
static gma_status put(output *o, const gma_tokenizer *t, int32_t token) {
    gma_status s = GMA_OK;
    const char *bytes;
    size_t n;
    if (!t) return put_byte(o, (unsigned char)token);
    gma_tokenizer_token(t, token, &bytes, &n);
    for (size_t i = 0; i < n && s == GMA_OK; i++) s = put_byte(o, (unsigned char)bytes[i]);
    return s;
}

static gma_status feed_prompt(gma_lm_stream *stream, const gma_tokenizer *t, const char *prompt, size_t size) {
    gma_token_list list = {0};
    gma_status s = GMA_OK;
    if (t) s = gma_tokenizer_encode(t, prompt, size, &list);
    else
        for (size_t i = 0; i < size && s == GMA_OK; i++) s = gmal_token_push(&list, (unsigned char)prompt[i]);
    if (s == GMA_OK && list.count == 0 && gma_lm_stream_position(stream) == 0)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "the prompt makes no token, and there must be one to start from");
    for (int64_t i = 0; i < list.count && s == GMA_OK; i++) s = gma_lm_stream_feed(stream, list.ids[i], NULL);
    gma_token_list_free(&list);
    return s;
}

gma_status gma_generate(gma_lm_stream *stream, const char *prompt, size_t prompt_size, int64_t length,
                        const gma_sampling *sampling, int raw, gma_write write, void *context) {
    if (!stream || !write || !sampling || (!prompt && prompt_size))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_generate: stream, prompt, sampling or write is NULL");
    if (length < 0) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "length must be 0 or more, not %lld", (long long)length);
    gma_lm_config c;
    gma_status s = gma_lm_get_config(gmal_stream_model(stream), &c);
    if (s != GMA_OK) return s;
    if (c.task == GMA_LM_TASK_SEQ2SEQ)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model makes a sequence from a source (task seq2seq) and continues no text; gma_eval runs it");
    const gma_tokenizer *t = gma_lm_tokenizer_of(gmal_stream_model(stream));
    if (c.tokenizer != GMA_LM_TOKENIZER_BYTES && !t)
        return gma_fail(GMA_ERR_UNSUPPORTED, "the model reads token ids, not text: there is no text to generate");
    float *logits = malloc(3 * (size_t)c.vocab * sizeof *logits);
    if (!logits) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for logits");
    float *work = logits + c.vocab;
    output o = {.raw = raw, .write = write, .context = context};
    if (prompt_size == 0 && gma_lm_stream_position(stream) == 0) {
        prompt = "\n";
        prompt_size = 1;
    }
    s = feed_prompt(stream, t, prompt, prompt_size);
    for (int64_t i = 0; i < length && s == GMA_OK; i++) {
        int32_t token = 0;
        gmal_stream_logits(stream, logits);
        s = gma_sample(logits, c.vocab, sampling, (uint64_t)gma_lm_stream_position(stream), work, &token);
        if (s == GMA_OK) s = gma_lm_stream_feed(stream, token, NULL);
        if (s == GMA_OK) s = put(&o, t, token);
    }
    char rest[GMA_UTF8_MAX];
    const size_t n = gma_utf8_finish(&o.filter, rest);
    if (n && s == GMA_OK && write(context, rest, n) != 0)
        s = gma_fail(GMA_ERR_INTERRUPTED, "generation was stopped");
    free(logits);
    return s;
}
