/* What the data says about the settings: a token file knows its vocabulary, generated pairs have theirs. */
#include "data/pairs.h"
#include "data/token_file.h"
#include "train/settings.h"

/* A token file says itself what its ids are and how many there are. */
static gma_status take_from_token_file(gma_settings *s) {
    static const int32_t kinds[] = {GMA_LM_TOKENIZER_BYTES, GMA_LM_TOKENIZER_WORDS, GMA_LM_TOKENIZER_BPE,
                                    GMA_LM_TOKENIZER_NONE}; /* by gma_tokenizer_kind */
    gma_token_info info;
    const int is = s->data && *s->data && gma_token_file_is(s->data);
    if (s->model.task == GMA_LM_TASK_CLASSIFY && s->data && *s->data && !is) {
        const gma_status status = gmal_token_file_peek(s->data, &info);
        return status == GMA_ERR_IO ? status
                                    : gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: task classify needs a token file of sequences with "
                                               "classes (gma data listops, gma data imdb)", s->data);
    }
    if (!is && s->tokens != GMAL_TOKENS_FILE) return GMA_OK;
    if (!is && !(s->data && *s->data)) return GMA_OK; /* gma_train says what is missing */
    if (s->tokens == GMAL_TOKENS_U16)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: is a token file, so tokens cannot be u16", s->data);
    gma_status status = gmal_token_file_peek(s->data, &info);
    if (status != GMA_OK) return status;
    if (s->model.vocab != 256 && s->model.vocab != info.vocab)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "vocab is %lld, but %s has a vocabulary of %lld",
                        (long long)s->model.vocab, s->data, (long long)info.vocab);
    if (s->model.task == GMA_LM_TASK_CLASSIFY && info.layout != GMA_TOKEN_LABELS)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: holds no classes, and task classify needs sequences that have some", s->data);
    if (s->model.task == GMA_LM_TASK_LM && info.layout == GMA_TOKEN_LABELS)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: holds sequences with classes; task classify is for them", s->data);
    if (s->model.task == GMA_LM_TASK_CLASSIFY) {
        if (s->model.classes && s->model.classes != info.classes)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "classes is %lld, but %s has %lld", (long long)s->model.classes, s->data,
                            (long long)info.classes);
        s->model.classes = info.classes;
    }
    if (s->inspect_every && info.layout != GMA_TOKEN_STREAM)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "inspect_every: looks at language models of one text, and %s holds sequences", s->data);
    s->tokens = GMAL_TOKENS_FILE;
    s->model.vocab = info.vocab;
    s->model.tokenizer = kinds[info.tokenizer];
    return GMA_OK;
}

/* Generated pairs: the vocabulary is the symbols, and begin and end. */
static gma_status take_from_pairs(gma_settings *s) {
    int kind;
    if (s->data && *s->data) {
        const gma_status status = gmal_pairs_kind(s->data, &kind);
        if (status != GMA_OK) return status;
    }
    if (s->val_data && *s->val_data)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "val_data: task seq2seq generates its validation pairs");
    if (s->tokens != GMAL_TOKENS_BYTES)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "tokens: task seq2seq reads no file");
    if (s->symbols < 2)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "symbols must be at least 2: of one symbol there is one sequence of a length");
    if (s->min_length > s->model.context)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "min_length (%lld) is more than the context (%lld), the longest source",
                        (long long)s->min_length, (long long)s->model.context);
    if (s->model.vocab != 256 && s->model.vocab != s->symbols + GMAL_FRAME)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "vocab is %lld, but %lld symbols make a vocabulary of %lld",
                        (long long)s->model.vocab, (long long)s->symbols, (long long)(s->symbols + GMAL_FRAME));
    s->model.vocab = s->symbols + GMAL_FRAME;
    s->model.tokenizer = GMA_LM_TOKENIZER_NONE;
    return GMA_OK;
}

gma_status gmal_settings_take_data(gma_settings *s) {
    if (s->model.task == GMA_LM_TASK_SEQ2SEQ) return take_from_pairs(s);
    if (s->min_length) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "min_length is of task seq2seq");
    if (s->symbols != 64) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "symbols is of task seq2seq");
    if (s->tokens != GMAL_TOKENS_FILE)
        s->model.tokenizer = s->tokens == GMAL_TOKENS_BYTES ? GMA_LM_TOKENIZER_BYTES : GMA_LM_TOKENIZER_NONE;
    return take_from_token_file(s);
}
