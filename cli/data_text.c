/* gma data learn, encode, decode, info: text and token files. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/data.h"
#include "cli/options.h"
#include "gma/data.h"

enum { BYTES, WORDS, BPE, UNSAID };

/* ---- info ----------------------------------------------------------------------------------------------------- */

static void tell_text(const char *path, const gma_token_info *i) {
    static const char *const layouts[] = {"one text", "sequences with a class each", "sequences with targets"};
    gma_cli_print_plain(stdout, path);
    printf("\nmade from     ");
    gma_cli_print_plain(stdout, i->source);
    printf("\nlayout        %s\ntokens        %lld (ids of %d byte%s)\n", layouts[i->layout], (long long)i->tokens,
           (int)i->width, i->width == 1 ? "" : "s");
    printf("tokenizer     %s, vocabulary %lld, hash %016" PRIx64 "\n",
           gma_tokenizer_kind_name((gma_tokenizer_kind)i->tokenizer), (long long)i->vocab, i->tokenizer_hash);
    if (i->layout != GMA_TOKEN_STREAM) {
        printf("sequences     %lld, the longest %lld tokens\n", (long long)i->sequences, (long long)i->longest);
    }
    if (i->classes > 0) {
        printf("classes       %lld\n", (long long)i->classes);
    }
    if (i->text_bytes > 0) {
        printf("text          %lld bytes, %lld words, %lld lines; %.3f bytes a token\n", (long long)i->text_bytes,
               (long long)i->text_words, (long long)i->text_lines, (double)i->text_bytes / (double)i->tokens);
    }
    printf("checksum      %016" PRIx64 ", right\n", i->checksum);
}

static void tell_json(const char *path, const gma_token_info *i) {
    static const char *const layouts[] = {"stream", "labels", "targets"};
    printf("{\"file\": ");
    gma_cli_json_string(stdout, path);
    printf(", \"source\": ");
    gma_cli_json_string(stdout, i->source);
    printf(", \"layout\": \"%s\", \"tokens\": %lld, \"width\": %d, \"tokenizer\": \"%s\", \"vocab\": %lld, "
           "\"tokenizer_hash\": \"%016" PRIx64 "\", \"sequences\": %lld, \"longest\": %lld, \"classes\": %lld, "
           "\"text_bytes\": %lld, \"text_words\": %lld, \"text_lines\": %lld, \"checksum\": \"%016" PRIx64 "\"}\n",
           layouts[i->layout], (long long)i->tokens, (int)i->width,
           gma_tokenizer_kind_name((gma_tokenizer_kind)i->tokenizer), (long long)i->vocab, i->tokenizer_hash,
           (long long)i->sequences, (long long)i->longest, (long long)i->classes, (long long)i->text_bytes,
           (long long)i->text_words, (long long)i->text_lines, i->checksum);
}

static gma_status tell(const char *path, int json) {
    gma_token_file *f;
    gma_token_info info = {.struct_size = sizeof info};
    gma_status s = gma_token_file_open(path, &f);
    if (s == GMA_OK) {
        s = gma_token_file_info(f, &info);
    }
    if (s == GMA_OK) {
        (json ? tell_json : tell_text)(path, &info);
    }
    gma_token_file_close(f);
    return s;
}

int gma_data_cli_info(int argc, char **argv) {
    int json;
    gma_cli_option options[] = {GMA_CLI_OPTION_JSON(&json)};
    const gma_cli_spec spec = {.verb = "data info",
                               .operands = "FILE",
                               .min_operands = 1,
                               .max_operands = 1,
                               .about = "check a token file (checksum, ids, offsets, labels) and say what it holds",
                               .options = options,
                               .option_count = GMA_CLI_COUNT(options)};
    const char *operands[1];
    int count;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code >= 0) {
        return code;
    }
    return tell(operands[0], json) == GMA_OK ? 0 : gma_cli_fail(&spec);
}

/* ---- learn ---------------------------------------------------------------------------------------------------- */

#define OPTION_VOCAB_SIZE(where)                                                                                   \
    {.name = "vocab-size", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 1 << 24, .value = (where), \
     .help = "ids altogether; needed for bpe, 0 = no limit for words"}
#define OPTION_MIN_COUNT(where)                                                                                    \
    {.name = "min-count", .type = GMA_CLI_INT, .hint = "N", .def = "1", .min = 1, .max = 1e15, .value = (where),     \
     .help = "words: rarer ones become <unk>"}

/* What a vocabulary of that kind has at least. */
static int check_size(const gma_cli_spec *spec, int bpe, int64_t size) {
    if (bpe && size < 257) {
        return gma_cli_misuse(spec, "--vocab-size must be at least 257 for bpe (256 bytes and <|endoftext|>), not %lld",
                              (long long)size);
    }
    if (!bpe && size == 1) {
        return gma_cli_misuse(spec, "--vocab-size must be at least 2 for words (<unk> and <eos>), or 0 for no limit, not 1");
    }
    return -1;
}

static int make_folder(const gma_cli_spec *spec, const char *path) {
    struct stat st;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))) {
        return -1;
    }
    gma_fail(GMA_ERR_IO, "%s: cannot make this folder: %s", path, strerror(errno));
    return gma_cli_fail(spec);
}

/* A folder holds one vocabulary: which of two is meant nobody could tell. And a text to learn from stays. Asked before
 * anything is learned. */
static int room_for(const gma_cli_spec *spec, const char *folder, int bpe, const char *const *texts, int text_count) {
    static const char *const words[] = {"vocab.txt", NULL}, *const pieces[] = {"vocab.bpe", "encoder.json", NULL};
    char path[4200];
    int code = -1;
    for (const char *const *name = bpe ? words : pieces; *name != NULL; name++) {
        snprintf(path, sizeof path, "%s/%s", folder, *name);
        if (access(path, F_OK) == 0) {
            return gma_cli_misuse(spec, "%s is there, a vocabulary of another kind: remove it, or name another folder", path);
        }
    }
    for (const char *const *name = bpe ? pieces : words; *name != NULL; name++) {
        snprintf(path, sizeof path, "%s/%s", folder, *name);
        for (int i = 0; i < text_count && code < 0; i++) {
            code = gma_cli_apart(spec, path, texts[i]);
        }
    }
    return code;
}

int gma_data_cli_learn(int argc, char **argv) {
    const char *out;
    int kind;
    int64_t vocab, min_count;
    gma_cli_option options[] = {
        {.name = "out", .type = GMA_CLI_STRING, .hint = "DIR", .value = &out, .help = "where the vocabulary goes (required)"},
        {.name = "tokenizer", .type = GMA_CLI_CHOICE, .hint = "words|bpe", .def = "bpe", .value = &kind,
         .help = "words between white space, or byte-pair encoding as GPT-2"},
        OPTION_VOCAB_SIZE(&vocab),
        OPTION_MIN_COUNT(&min_count),
    };
    const gma_cli_spec spec = {
        .verb = "data learn",
        .operands = "TEXT...",
        .min_operands = 1,
        .max_operands = -1,
        .about = "learn a vocabulary from text files\n\n"
                 "  gma data learn wiki.train.tokens --out vocab/bpe2048 --vocab-size 2048",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "bpe writes vocab.bpe and encoder.json, in the form other libraries read; the vocabulary is 256 bytes,\n"
                 "the merges and <|endoftext|>. words writes vocab.txt, one word a line, first <unk> and <eos>.",
    };
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    int count;
    gma_tokenizer *t = NULL;
    int code = operands != NULL ? gma_cli_parse(&spec, argc, argv, operands, &count) : 1;
    if (code < 0 && out == NULL) {
        code = gma_cli_misuse(&spec, "--out DIR is needed");
    }
    if (code < 0 && kind == 1 && options[3].given) {
        code = gma_cli_misuse(&spec, "--min-count is for words: bpe has no rare ones");
    }
    if (code < 0 && kind == 1 && vocab == 0) {
        code = gma_cli_misuse(&spec, "--vocab-size N is needed");
    }
    if (code < 0) {
        code = check_size(&spec, kind == 1, vocab);
    }
    if (code < 0) {
        code = room_for(&spec, out, kind == 1, operands, count);
    }
    if (code < 0 && gma_tokenizer_learn(kind == 1 ? GMA_TOKENIZER_BPE : GMA_TOKENIZER_WORDS, operands, count, vocab,
                                        min_count, &t) != GMA_OK) {
        code = gma_cli_fail(&spec);
    }
    if (code < 0) {
        code = make_folder(&spec, out);
    }
    if (code < 0) {
        code = gma_tokenizer_save(t, out) == GMA_OK ? 0 : gma_cli_fail(&spec);
    }
    if (code == 0 && t != NULL) {
        printf("%s: %s, vocabulary %lld, hash %016" PRIx64 "\n", out, gma_tokenizer_kind_name(gma_tokenizer_get_kind(t)),
               (long long)gma_tokenizer_vocab(t), gma_tokenizer_hash(t));
    }
    gma_tokenizer_destroy(t);
    free(operands);
    return code;
}

/* ---- encode --------------------------------------------------------------------------------------------------- */

static gma_status get_tokenizer(int kind, const char *vocab, const char *text, int64_t size, int64_t min_count,
                                gma_tokenizer **t) {
    static const gma_tokenizer_kind kinds[] = {GMA_TOKENIZER_BYTES, GMA_TOKENIZER_WORDS, GMA_TOKENIZER_BPE};
    *t = NULL;
    if (vocab == NULL) {
        return kind == BYTES ? gma_tokenizer_create(GMA_TOKENIZER_BYTES, 0, t)
                             : gma_tokenizer_learn(kinds[kind], &text, 1, size, min_count, t);
    }
    const gma_status s = gma_tokenizer_load(vocab, t);
    if (s != GMA_OK || kind == UNSAID || gma_tokenizer_get_kind(*t) == kinds[kind]) {
        return s;
    }
    const char *is = gma_tokenizer_kind_name(gma_tokenizer_get_kind(*t));
    gma_tokenizer_destroy(*t);
    *t = NULL;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: holds a tokenizer of kind %s, not %s", vocab, is,
                    gma_tokenizer_kind_name(kinds[kind]));
}

int gma_data_cli_encode(int argc, char **argv) {
    const char *vocab;
    int kind, nfc, json;
    int64_t size, min_count;
    gma_cli_option options[] = {
        {.name = "tokenizer", .type = GMA_CLI_CHOICE, .hint = "bytes|words|bpe", .def = "bytes", .value = &kind,
         .help = "how the text is cut"},
        {.name = "vocab", .type = GMA_CLI_STRING, .hint = "DIR|FILE", .value = &vocab,
         .help = "a vocabulary: a folder with vocab.txt, or vocab.bpe and encoder.json; or a token file, whose own is used"},
        OPTION_VOCAB_SIZE(&size),
        OPTION_MIN_COUNT(&min_count),
        {.name = "nfc", .type = GMA_CLI_FLAG, .value = &nfc, .help = "bring the text to Unicode's composed form first"},
        GMA_CLI_OPTION_JSON(&json),
    };
    const gma_cli_spec spec = {
        .verb = "data encode",
        .operands = "TEXT OUT",
        .min_operands = 2,
        .max_operands = 2,
        .about = "a text into a token file, which gma train --data reads\n\n"
                 "  gma data encode wiki.train.tokens train.tokens --vocab vocab/bpe2048\n"
                 "  gma data encode wiki.valid.tokens valid.tokens --vocab train.tokens",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "words and bpe without --vocab learn the vocabulary from TEXT (--vocab-size, --min-count).\n"
                 "The vocabulary is stored in OUT. Memory does not grow with the text.",
    };
    const char *operands[2];
    int count;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code >= 0) {
        return code;
    }
    if (!options[0].given && vocab != NULL) {
        kind = UNSAID;
    }
    if (vocab != NULL && (options[2].given || options[3].given)) {
        return gma_cli_misuse(&spec, "--vocab-size and --min-count are for learning, --vocab is learned already");
    }
    if (vocab == NULL && kind == BYTES && (options[2].given || options[3].given)) {
        return gma_cli_misuse(&spec, "--vocab-size and --min-count are for learning words or bpe; bytes are 256");
    }
    if (vocab == NULL && kind == BPE && options[3].given) {
        return gma_cli_misuse(&spec, "--min-count is for words: bpe has no rare ones");
    }
    if (vocab == NULL && kind == BPE && size == 0) {
        return gma_cli_misuse(&spec, "bpe needs --vocab DIR, or --vocab-size N to learn one");
    }
    code = vocab == NULL && kind != BYTES ? check_size(&spec, kind == BPE, size) : -1;
    code = code < 0 ? gma_cli_apart(&spec, operands[1], operands[0]) : code;
    code = code < 0 ? gma_cli_apart(&spec, operands[1], vocab) : code;
    code = code < 0 ? gma_cli_replaces(&spec, operands[1], GMA_CLI_TOKENS) : code;
    if (code >= 0) {
        return code;
    }
    gma_tokenizer *t;
    gma_status s = get_tokenizer(kind, vocab, operands[0], size, min_count, &t);
    if (s == GMA_OK) {
        s = gma_data_encode(operands[0], t, nfc, operands[1]);
    }
    gma_tokenizer_destroy(t);
    if (s == GMA_OK) {
        s = tell(operands[1], json);
    }
    return s == GMA_OK ? 0 : gma_cli_fail(&spec);
}

/* ---- decode --------------------------------------------------------------------------------------------------- */

int gma_data_cli_decode(int argc, char **argv) {
    const gma_cli_spec spec = {.verb = "data decode",
                               .operands = "FILE OUT",
                               .min_operands = 2,
                               .max_operands = 2,
                               .about = "a token file into text",
                               .notes = "bytes and bpe give back the text byte for byte; words with one space before each word\n"
                                        "and before the end of a line, which is WikiText's own form. Sequences end with a\n"
                                        "newline."};
    const char *operands[2];
    int count;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    code = code < 0 ? gma_cli_apart(&spec, operands[1], operands[0]) : code;
    code = code < 0 ? gma_cli_replaces(&spec, operands[1], GMA_CLI_TEXT) : code;
    if (code >= 0) {
        return code;
    }
    return gma_data_decode(operands[0], operands[1]) == GMA_OK ? 0 : gma_cli_fail(&spec);
}
