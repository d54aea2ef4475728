/* gma/data.h - tokenizers, token files, and the data sets of the experiments. Part of libgma_lm. Since 0.1.
 *
 *   text --tokenizer--> ids --> token file --> gma train --data FILE, or gma_token_file_read()
 *
 * The format of token files is in docs/formats.md. Nothing in a file is trusted; what is wrong is named with file and line
 * or offset. Every output file is written beside its place and renamed, so after an error the old one is as it was.
 *
 * Memory: objects are made by _create/_open/_load/_learn functions and freed by _destroy/_close, which take NULL. *object is
 * NULL after a failure. Threads: an object may be read by several threads at once. Random data sets: the same bits from the
 * same seed on every machine (integer generator, no libm).
 * Errors, all functions: INVALID_ARGUMENT, IO (the system refused), FORMAT (a file is malformed), OUT_OF_MEMORY. */
#ifndef GMA_DATA_H
#define GMA_DATA_H

#include "gma/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tokenizers ----------------------------------------------------------------------------------------------- */

typedef enum gma_tokenizer_kind {
    GMA_TOKENIZER_BYTES = 0, /* token = byte, vocabulary 256 */
    GMA_TOKENIZER_WORDS = 1, /* a list of words; what is not in it is <unk>, the end of a line is <eos> */
    GMA_TOKENIZER_BPE = 2, /* byte-level byte-pair encoding, as GPT-2 */
    GMA_TOKENIZER_IDS = 3 /* no text: ids 0..vocab-1 mean what their maker says */
} gma_tokenizer_kind;

typedef struct gma_tokenizer gma_tokenizer;

/** gma_tokenizer_create() - BYTES, or IDS with `vocab` ids (vocab is not read for BYTES). */
GMA_API gma_status gma_tokenizer_create(gma_tokenizer_kind kind, int64_t vocab, gma_tokenizer **tokenizer);

/** gma_tokenizer_load() - from `path`: a folder that holds vocab.bpe and encoder.json (BPE) or vocab.txt (WORDS), or a
 *  token file, whose tokenizer is taken. A folder that holds both kinds is an error (FORMAT).
 *
 *  vocab.bpe: "#version: 0.2", then one merge a line, "left right", the most urgent first. encoder.json: token -> id, the ids
 *  0..n-1. Both in GPT-2's spelling of bytes as printable characters. Every merge must join tokens known before it and make
 *  one not known before. Entries of encoder.json that no merge makes (<|endoftext|>) have an id but no text makes them.
 *  vocab.txt: one word a line, its id the number of the line from 0. Without a line <unk> an unknown word is an error;
 *  without a line <eos> line ends are white space.
 *
 *  BPE needs a build with PCRE2 (UNSUPPORTED otherwise). */
GMA_API gma_status gma_tokenizer_load(const char *path, gma_tokenizer **tokenizer);

/** gma_tokenizer_learn() - from text files (all of one kind of text; order does not matter).
 *  WORDS: <unk>, <eos>, then the words seen at least min_count times, most frequent first, ties by their bytes; at most
 *         `vocab` ids altogether (0 = no limit).
 *  BPE:   256 bytes, vocab - 257 merges, <|endoftext|>. Each merge joins the adjacent pair of tokens that is most frequent
 *         within GPT-2's pieces of text; of equally frequent ones that with the lower left id, then the lower right id.
 *         Error: the text has too few pairs for so large a vocabulary. */
GMA_API gma_status gma_tokenizer_learn(gma_tokenizer_kind kind, const char *const *files, int count, int64_t vocab,
                                       int64_t min_count, gma_tokenizer **tokenizer);

/** gma_tokenizer_save() - its files into an existing folder: none for BYTES and IDS, vocab.txt, or vocab.bpe and
 *  encoder.json, which other libraries read too. */
GMA_API gma_status gma_tokenizer_save(const gma_tokenizer *tokenizer, const char *folder);
GMA_API void gma_tokenizer_destroy(gma_tokenizer *tokenizer);

GMA_API gma_tokenizer_kind gma_tokenizer_get_kind(const gma_tokenizer *tokenizer);
GMA_API const char *gma_tokenizer_kind_name(gma_tokenizer_kind kind); /* "bytes", "words", "bpe", "ids"; else NULL */
GMA_API int64_t gma_tokenizer_vocab(const gma_tokenizer *tokenizer);
/** gma_tokenizer_hash() - of kind, tokens and merges; equal tokenizers have equal hashes. Not against an adversary. */
GMA_API uint64_t gma_tokenizer_hash(const gma_tokenizer *tokenizer);

/** gma_tokenizer_token() - the bytes that id stands for (not terminated, owned by the tokenizer); a BPE token may be part
 *  of a character, so text goes through gma_utf8 (gma/lm.h). WORDS: " word", and " \n" for <eos>, which gives WikiText back
 *  byte for byte. Returns 0 and *size = 0 for an id outside the vocabulary, or of IDS; else 1. */
GMA_API int gma_tokenizer_token(const gma_tokenizer *tokenizer, int32_t id, const char **bytes, size_t *size);

/** gma_token_list - ids in memory that grows. Zero-initialise; free with gma_token_list_free(). */
typedef struct gma_token_list {
    int32_t *ids;
    int64_t count, room;
} gma_token_list;
GMA_API void gma_token_list_free(gma_token_list *list);

/** gma_tokenizer_encode() - a whole text, appended to `list`. BPE takes any bytes: those that are no UTF-8 become one token
 *  each, and decoding gives the same bytes back. WORDS splits at ASCII white space. Error: a word that is not in a list without
 *  <unk>, with its byte offset; UNSUPPORTED for IDS. */
GMA_API gma_status gma_tokenizer_encode(const gma_tokenizer *tokenizer, const char *text, size_t size,
                                        gma_token_list *list);

/* ---- Token files ---------------------------------------------------------------------------------------------- */

typedef struct gma_token_file gma_token_file;

typedef enum gma_token_layout {
    GMA_TOKEN_STREAM = 0, /* one text */
    GMA_TOKEN_LABELS = 1, /* sequences, a class each */
    GMA_TOKEN_TARGETS = 2 /* sequences, a target for each token; -1 = not scored */
} gma_token_layout;

typedef struct gma_token_info {
    size_t struct_size; /* set by the caller */
    int32_t layout; /* a gma_token_layout */
    int32_t tokenizer; /* a gma_tokenizer_kind */
    int32_t width; /* bytes of a stored id: 1, 2 or 4 */
    int32_t reserved;
    int64_t vocab;
    int64_t tokens; /* altogether */
    int64_t sequences; /* 1 for a stream */
    int64_t classes; /* 0 without labels */
    int64_t longest; /* tokens of the longest sequence */
    int64_t text_bytes, text_words, text_lines; /* of the text it was made from; 0 = not known. A word is what stands between
                                                   ASCII white space; lines are counted by their newlines. */
    uint64_t tokenizer_hash, checksum;
    const char *source; /* what it was made from, in words; owned by the file object */
} gma_token_info;

/** gma_token_file_open() - check everything (checksum, ids against the vocabulary, offsets, labels, targets) and keep the
 *  tokens in the file: up to 64 MiB are copied, larger files are mapped. */
GMA_API gma_status gma_token_file_open(const char *path, gma_token_file **file);
GMA_API void gma_token_file_close(gma_token_file *file);
/** gma_token_file_is() - 1 when `path` begins as a token file does, whether or not the rest is sound. */
GMA_API int gma_token_file_is(const char *path);

GMA_API gma_status gma_token_file_info(const gma_token_file *file, gma_token_info *info);
GMA_API const gma_tokenizer *gma_token_file_tokenizer(const gma_token_file *file);

/** gma_token_file_read() - ids begin..begin+count-1 into `out`. gma_token_file_targets(): likewise the targets.
 *  gma_token_file_sequence(): where sequence i lies, begin..end-1, and its class (-1 without labels). Error: out of range. */
GMA_API gma_status gma_token_file_read(const gma_token_file *file, int64_t begin, int64_t count, int32_t *out);
GMA_API gma_status gma_token_file_targets(const gma_token_file *file, int64_t begin, int64_t count, int32_t *out);
GMA_API gma_status gma_token_file_sequence(const gma_token_file *file, int64_t i, int64_t *begin, int64_t *end,
                                           int32_t *label);

/** gma_data_encode() - a text file into a token file (a stream), in pieces: memory does not grow with the text. nfc = 1
 *  brings the text to Unicode's composed form first (needs a build with utf8proc, and valid UTF-8). */
GMA_API gma_status gma_data_encode(const char *text, const gma_tokenizer *tokenizer, int nfc, const char *out);

/** gma_data_decode() - the text of a token file into `out`; a sequence ends with a newline. */
GMA_API gma_status gma_data_decode(const char *path, const char *out);

/* ---- ListOps (Long Range Arena) ------------------------------------------------------------------------------- */

/** gma_listops_evaluate() - the value of an expression: [MIN [MAX [MED [SM [FIRST [LAST, ] or X, digits; parentheses must
 *  balance, and say nothing else. MED is the median, truncated (of two middle values (a+b) div 2); SM the sum mod 10; FIRST and
 *  LAST an argument.
 *  tokens (may be NULL): how many symbols, parentheses not counted. Error (FORMAT): what does not parse, and at which
 *  character, counted from 1. */
GMA_API gma_status gma_listops_evaluate(const char *text, size_t size, int32_t *value, int64_t *tokens);

typedef struct gma_listops_options {
    size_t struct_size; /* set by gma_listops_options_init */
    uint64_t seed; /* 1 */
    int64_t train, val, test; /* 96000, 2000, 2000 */
    int32_t tsv; /* 1: also basic_{train,val,test}.tsv in the official form (about 6 KB an expression) */
    int32_t reserved;
} gma_listops_options;
GMA_API gma_status gma_listops_options_init(gma_listops_options *options);

/** gma_data_listops() - draw trees from the official distribution (depth at most 10, an operator with probability 1/4,
 *  2..10 arguments, kept when 500 < length < 2000, no tree twice) and write {train,val,test}.tokens into `folder`, which is
 *  made if need be. Vocabulary: <pad> [MIN [MAX [MED [SM X 0 .. 9; ten classes. Error: a part that is not made now (of 0
 *  expressions) lies there from an earlier call. */
GMA_API gma_status gma_data_listops(const gma_listops_options *options, const char *folder);

/** gma_data_listops_read() - a TSV file into a token file of the same vocabulary. With the header Source<TAB>Target the
 *  expression comes first, without one the label. Error: file and line of what does not parse, has another value than its
 *  label, or has symbols that are not among those of the vocabulary. */
GMA_API gma_status gma_data_listops_read(const char *tsv, const char *out);

/* ---- IMDb reviews, byte by byte ------------------------------------------------------------------------------- */

typedef struct gma_imdb_options {
    size_t struct_size; /* set by gma_imdb_options_init */
    uint64_t seed; /* 1 */
    double held_out; /* 0.1: this part of each class of train.tsv becomes the validation set */
    int64_t max_bytes; /* a review is cut to so many; 0 = whole */
} gma_imdb_options;
GMA_API gma_status gma_imdb_options_init(gma_imdb_options *options);

/** gma_data_imdb() - train.tsv and test.tsv of `reviews` (label<TAB>name<TAB>text, label 0 or 1) into
 *  {train,val,test}.tokens of `folder`. Errors: a file without reviews of one of the classes; nothing is held out, and
 *  a val.tokens lies there. */
GMA_API gma_status gma_data_imdb(const gma_imdb_options *options, const char *reviews, const char *folder);

/* ---- Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927) ------------------------------------- */

typedef struct gma_mqar_options {
    size_t struct_size; /* set by gma_mqar_options_init */
    uint64_t seed; /* 1 */
    int64_t sequences; /* 1000 */
    int64_t length; /* 64; even, at least 4 pairs */
    int64_t pairs; /* 8 */
    int64_t vocab; /* 8192; even, more than length: keys 1..vocab/2-1, values vocab/2..vocab-1 */
    double power; /* 0.01: the g-th place after the pairs is asked with weight g^(power-1) */
    int32_t zeros; /* 1: what is no pair and no query is token 0; 0: a random token */
    int32_t reserved;
} gma_mqar_options;
GMA_API gma_status gma_mqar_options_init(gma_mqar_options *options);

/** gma_data_mqar() - each sequence: `pairs` different keys, each followed by its value; then every key once more, at an even
 *  distance after the pairs; the target there is the key's value, everywhere else -1. */
GMA_API gma_status gma_data_mqar(const gma_mqar_options *options, const char *out);

#ifdef __cplusplus
}
#endif
#endif
