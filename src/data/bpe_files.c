/* vocab.bpe and encoder.json. Both spell a byte as one printable character: those of Latin-1 that print stand for
 * themselves, the 68 others are U+0100 onwards, in order. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

static const char end_of_text[] = "<|endoftext|>";

static int prints(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

/* Character of a byte, and GPT-2's order of the bytes: those that print first. */
static void spelling(int character[256], int order[256]) {
    int next = 0, other = 0;
    for (int b = 0; b < 256; b++)
        if (prints(b)) {
            character[b] = b;
            order[next++] = b;
        }
    for (int b = 0; b < 256; b++)
        if (!prints(b)) {
            character[b] = 256 + other++;
            order[next++] = b;
        }
}

gma_status gmal_bpe_bytes(gma_tokenizer *t) {
    int character[256], order[256];
    spelling(character, order);
    gma_status s = GMA_OK;
    for (int i = 0; i < 256 && s == GMA_OK; i++) {
        const char byte = (char)order[i];
        s = gmal_strings_add(&t->tokens, &byte, 1, &t->byte_id[order[i]]);
    }
    return s;
}

gma_status gmal_bpe_merge(gma_tokenizer *t, int32_t left, int32_t right, int32_t product) {
    int32_t rank;
    gma_status s = gmal_grow(&t->merges, &t->merge_room, t->merge_count + 1, sizeof *t->merges);
    if (s == GMA_OK) s = gmal_pairs_add(&t->ranks, gmal_pair(left, right), (int32_t)t->merge_count, &rank);
    if (s == GMA_OK) t->merges[t->merge_count++] = (gmal_merge){left, right, product};
    return s;
}

/* ---- Reading -------------------------------------------------------------------------------------------------- */

/* The bytes that a spelled token stands for, into out (n bytes of room). -1: it has a character that spells no byte. */
static int64_t unspell(const char *text, size_t n, char *out) {
    static const unsigned char others[] = {0, 33, 127, 161, 173}; /* where the others are: 0..32, 127..160, 173 */
    int64_t size = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)text[i];
        if (c >= 0x80) {
            if (i + 1 >= n || (c & 0xe0) != 0xc0 || ((unsigned char)text[i + 1] & 0xc0) != 0x80) return -1;
            c = (c & 0x1f) << 6 | (text[++i] & 0x3f);
        }
        if (c >= 256) {
            const int k = c - 256, first = others[1], second = first + others[3] - others[2];
            if (k > second) return -1;
            c = k < first ? k : k < second ? others[2] + k - first : others[4];
        } else if (!prints(c)) {
            return -1;
        }
        out[size++] = (char)c;
    }
    return size;
}

/* The tokens in the order of their ids. A token that spells no bytes stands for its own text. */
static gma_status parse_encoder(const char *where, const gmal_blob *blob, gma_tokenizer *t) {
    json_error_t error;
    json_t *json = json_loadb(blob->bytes, blob->size, JSON_REJECT_DUPLICATES, &error);
    if (!json) return gma_fail(GMA_ERR_FORMAT, "%s/encoder.json: line %d: %s", where, error.line, error.text);
    const int64_t n = json_is_object(json) ? (int64_t)json_object_size(json) : 0;
    const char **names = n > 0 ? calloc((size_t)n, sizeof *names) : NULL, *key;
    char *bytes = malloc(blob->size + 1);
    json_t *value;
    gma_status s = n == 0           ? gma_fail(GMA_ERR_FORMAT, "%s/encoder.json: is no object of tokens", where)
                   : names && bytes ? GMA_OK
                                    : gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for its tokens", where);
    if (s == GMA_OK) {
        json_object_foreach(json, key, value) {
            const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
            if (id < 0 || id >= n || names[id]) {
                s = gma_fail(GMA_ERR_FORMAT, "%s/encoder.json: the id of \"%s\" is not one of 0..%lld, each once", where,
                             key, (long long)n - 1);
                break;
            }
            names[id] = key;
        }
    }
    for (int64_t i = 0; i < n && s == GMA_OK; i++) {
        const size_t size = strlen(names[i]);
        int64_t plain = unspell(names[i], size, bytes);
        int32_t id;
        if (plain < 0) memcpy(bytes, names[i], (size_t)(plain = (int64_t)size));
        s = gmal_strings_add(&t->tokens, bytes, (size_t)plain, &id);
        if (s == GMA_OK && (id != i || plain == 0))
            s = gma_fail(GMA_ERR_FORMAT, "%s/encoder.json: \"%s\" (id %lld) is empty or the same token as id %d", where,
                         names[i], (long long)i, (int)id);
    }
    for (int b = 0; b < 256 && s == GMA_OK; b++) {
        const char byte = (char)b;
        t->byte_id[b] = gmal_strings_find(&t->tokens, &byte, 1);
        if (t->byte_id[b] < 0) s = gma_fail(GMA_ERR_FORMAT, "%s/encoder.json: has no token for byte %d", where, b);
    }
    free(bytes);
    free(names);
    json_decref(json);
    return s;
}

/* One line "left right": both known, the product in the vocabulary and not known before. */
static gma_status parse_merge(const char *where, long long line, const char *text, size_t n, gma_tokenizer *t, char *known,
                              char *bytes) {
    const char *space = memchr(text, ' ', n);
    const size_t left = space ? (size_t)(space - text) : 0;
    if (!space || left == 0 || left + 1 == n || memchr(space + 1, ' ', n - left - 1))
        return gma_fail(GMA_ERR_FORMAT, "%s/vocab.bpe: line %lld: is not two tokens with a space between", where, line);
    const int64_t a = unspell(text, left, bytes), b = a < 0 ? -1 : unspell(space + 1, n - left - 1, bytes + a);
    if (a < 0 || b < 0)
        return gma_fail(GMA_ERR_FORMAT, "%s/vocab.bpe: line %lld: holds a character that spells no byte", where, line);
    const int32_t l = gmal_strings_find(&t->tokens, bytes, (size_t)a);
    const int32_t r = gmal_strings_find(&t->tokens, bytes + a, (size_t)b);
    const int32_t product = gmal_strings_find(&t->tokens, bytes, (size_t)(a + b));
    if (l < 0 || r < 0 || !known[l] || !known[r])
        return gma_fail(GMA_ERR_FORMAT, "%s/vocab.bpe: line %lld: merges a token that no line before it made", where, line);
    if (product < 0)
        return gma_fail(GMA_ERR_FORMAT, "%s/vocab.bpe: line %lld: its token is not in encoder.json", where, line);
    if (known[product])
        return gma_fail(GMA_ERR_FORMAT, "%s/vocab.bpe: line %lld: makes a token that was made before", where, line);
    known[product] = 1;
    return gmal_bpe_merge(t, l, r, product);
}

static gma_status parse_merges(const char *where, const gmal_blob *blob, gma_tokenizer *t) {
    char *known = calloc((size_t)t->tokens.count, 1), *bytes = malloc(blob->size + 1);
    gma_status s = known && bytes ? GMA_OK : gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for its merges", where);
    for (int b = 0; b < 256 && s == GMA_OK; b++) known[t->byte_id[b]] = 1;
    long long line = 0;
    for (size_t i = 0; i < blob->size && s == GMA_OK;) {
        size_t end = i, n;
        while (end < blob->size && blob->bytes[end] != '\n') end++;
        n = end - i;
        if (n && blob->bytes[i + n - 1] == '\r') n--;
        const int comment = line++ == 0 && n >= 9 && memcmp(blob->bytes + i, "#version:", 9) == 0;
        if (!comment && n) s = parse_merge(where, line, blob->bytes + i, n, t, known, bytes);
        i = end + 1;
    }
    free(known);
    free(bytes);
    return s;
}

gma_status gmal_bpe_parse(const char *where, const gmal_blob *merges, const gmal_blob *encoder, gma_tokenizer **out) {
    gma_tokenizer *t = gmal_tokenizer_alloc(GMA_TOKENIZER_BPE);
    gma_status s = t ? gmal_pretokenizer_create(&t->pre) : GMA_ERR_OUT_OF_MEMORY;
    if (s == GMA_OK) s = parse_encoder(where, encoder, t);
    if (s == GMA_OK) s = parse_merges(where, merges, t);
    if (s == GMA_OK) gmal_tokenizer_seal(t);
    if (s != GMA_OK) gma_tokenizer_destroy(t);
    *out = s == GMA_OK ? t : NULL;
    return s;
}

/* ---- Writing -------------------------------------------------------------------------------------------------- */

/* A token as it is spelled: at most two bytes each. */
static size_t spell(const gma_tokenizer *t, const int character[256], int32_t id, char *out) {
    size_t n, size = 0;
    const char *bytes = gmal_string(&t->tokens, id, &n);
    for (size_t i = 0; i < n; i++) {
        const int c = character[(unsigned char)bytes[i]];
        if (c >= 0x80) out[size++] = (char)(0xc0 | c >> 6);
        out[size++] = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    return size;
}

static gma_status merges_blob(const gma_tokenizer *t, const int character[256], gmal_blob *blob) {
    static const char head[] = "#version: 0.2\n";
    size_t room = sizeof head;
    for (int64_t i = 0; i < t->merge_count; i++) {
        size_t n;
        gmal_string(&t->tokens, t->merges[i].product, &n);
        room += 2 * n + 2;
    }
    char *out = malloc(room);
    if (!out) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for vocab.bpe");
    size_t size = sizeof head - 1;
    memcpy(out, head, size);
    for (int64_t i = 0; i < t->merge_count; i++) {
        size += spell(t, character, t->merges[i].left, out + size);
        out[size++] = ' ';
        size += spell(t, character, t->merges[i].right, out + size);
        out[size++] = '\n';
    }
    *blob = (gmal_blob){"vocab.bpe", out, size};
    return GMA_OK;
}

gma_status gmal_bpe_blobs(const gma_tokenizer *t, gmal_blob *merges, gmal_blob *encoder) {
    int character[256], order[256];
    spelling(character, order);
    gma_status s = merges_blob(t, character, merges);
    if (s != GMA_OK) return s;
    char *text = malloc(2 * t->tokens.size + 1);
    json_t *json = json_object();
    int bad = !text || !json;
    for (int32_t i = 0; i < (int32_t)t->vocab && !bad; i++)
        bad = json_object_set_new(json, (text[spell(t, character, i, text)] = 0, text), json_integer(i)) != 0;
    encoder->name = "encoder.json";
    encoder->bytes = bad ? NULL : json_dumps(json, JSON_PRESERVE_ORDER | JSON_ENSURE_ASCII);
    json_decref(json);
    free(text);
    if (encoder->bytes) {
        encoder->size = strlen(encoder->bytes);
        return GMA_OK;
    }
    free(merges->bytes);
    merges->bytes = NULL;
    return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for encoder.json");
}

gma_status gmal_bpe_end_of_text(gma_tokenizer *t) {
    int32_t id;
    return gmal_strings_add(&t->tokens, end_of_text, sizeof end_of_text - 1, &id);
}
