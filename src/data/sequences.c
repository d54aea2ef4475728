#include "data/sequences.h"

#include <stdlib.h>
#include <string.h>

static const char *const holds[] = {"one text", "sequences with classes", "sequences with targets"};

static gma_status check_kind(const char *path, const gmal_set_want *want, const gma_token_info *info) {
    if (info->layout != (int32_t)want->layout)
        return gma_fail(GMA_ERR_UNSUPPORTED, "%s: holds %s, not %s", path, holds[info->layout], holds[want->layout]);
    if (want->vocab && info->vocab != want->vocab)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: has a vocabulary of %lld, the model one of %lld", path,
                        (long long)info->vocab, (long long)want->vocab);
    if (want->bytes && info->tokenizer != GMA_TOKENIZER_BYTES)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: its tokens are not bytes, and the model reads bytes", path);
    if (want->tokenizer && info->tokenizer_hash != gma_tokenizer_hash(want->tokenizer))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: was made by another tokenizer than the model's", path);
    if (want->classes && info->classes != want->classes)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: has %lld classes, the model %lld", path, (long long)info->classes,
                        (long long)want->classes);
    if (info->sequences < 1) return gma_fail(GMA_ERR_FORMAT, "%s: holds no sequence", path);
    return GMA_OK;
}

static gma_status check_sequence(const char *path, gmal_sequence_set *s, int64_t i) {
    const int64_t n = s->begin[i + 1] - s->begin[i];
    if (n == 0) return gma_fail(GMA_ERR_FORMAT, "%s: sequence %lld is empty", path, (long long)i);
    s->cut += gmal_set_is_cut(s, i);
    if (s->info.layout != GMA_TOKEN_TARGETS) return GMA_OK;
    if (n > s->context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: sequence %lld has %lld tokens with targets, and context is %lld", path,
                        (long long)i, (long long)n, (long long)s->context);
    if (gmal_set_targets(s, i) == 0)
        return gma_fail(GMA_ERR_FORMAT, "%s: sequence %lld has no target", path, (long long)i);
    return GMA_OK;
}

gma_status gmal_set_open(const char *path, const gmal_set_want *want, gmal_sequence_set *s) {
    memset(s, 0, sizeof *s);
    s->info.struct_size = sizeof s->info;
    s->context = want->context;
    gma_status status = gma_token_file_open(path, &s->file);
    if (status == GMA_OK) status = gma_token_file_info(s->file, &s->info);
    if (status == GMA_OK) status = check_kind(path, want, &s->info);
    if (status == GMA_OK) {
        s->begin = malloc(((size_t)s->info.sequences + 1) * sizeof *s->begin);
        if (!s->begin) status = gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for its sequences", path);
    }
    for (int64_t i = 0; status == GMA_OK && i < s->info.sequences; i++)
        status = gma_token_file_sequence(s->file, i, &s->begin[i], &s->begin[i + 1], NULL);
    for (int64_t i = 0; status == GMA_OK && i < s->info.sequences; i++) status = check_sequence(path, s, i);
    if (status != GMA_OK) gmal_set_close(s);
    return status;
}

void gmal_set_close(gmal_sequence_set *s) {
    gma_token_file_close(s->file);
    free(s->begin);
    memset(s, 0, sizeof *s);
}

int64_t gmal_set_length(const gmal_sequence_set *s, int64_t i) {
    const int64_t n = s->begin[i + 1] - s->begin[i];
    return n < s->context ? n : s->context;
}

int gmal_set_is_cut(const gmal_sequence_set *s, int64_t i) { return s->begin[i + 1] - s->begin[i] > s->context; }

void gmal_set_read(const gmal_sequence_set *s, int64_t i, int32_t *tokens, int32_t *targets) {
    const int64_t n = gmal_set_length(s, i);
    int64_t begin, end;
    if (tokens) gma_token_file_read(s->file, s->begin[i], n, tokens);
    if (targets && s->info.layout == GMA_TOKEN_LABELS)
        gma_token_file_sequence(s->file, i, &begin, &end, targets);
    else if (targets)
        gma_token_file_targets(s->file, s->begin[i], n, targets);
}

int64_t gmal_set_targets(const gmal_sequence_set *s, int64_t i) {
    int64_t count = 0;
    int32_t y;
    if (s->info.layout == GMA_TOKEN_LABELS) return 1;
    for (int64_t at = s->begin[i]; at < s->begin[i] + gmal_set_length(s, i); at++) {
        gma_token_file_targets(s->file, at, 1, &y);
        count += y >= 0;
    }
    return count;
}

int64_t gmal_sequence_span_tokens(const gmal_sequence_span *span) {
    int64_t n = 0;
    for (int64_t i = span->begin; i < span->end; i++) n += gmal_set_length(span->set, i);
    return n;
}

uint64_t gmal_sequence_span_checksum(const gmal_sequence_span *span) {
    const uint64_t h = gmal_hash_mix(gmal_hash_mix(span->set->info.checksum, (uint64_t)span->begin), (uint64_t)span->end);
    return gmal_hash_mix(h, (uint64_t)span->set->context);
}
