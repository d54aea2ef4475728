/* ListOps: the evaluator and the official distribution of trees. */
#include "data/listops.h"

#include <stdlib.h>
#include <string.h>

#include "data/random.h"
#include "data/tokenizer.h"

static const char vocab[] = "<pad>\n[MIN\n[MAX\n[MED\n[SM\nX\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n";

gma_status gmal_listops_tokenizer(gma_tokenizer **t) {
    const gmal_blob blob = {"vocab.txt", (char *)(uintptr_t)vocab, sizeof vocab - 1};
    return gmal_words_parse("ListOps", &blob, t);
}

/* The value of an operator; sorts the arguments of MED by counting, for they are digits. */
static int32_t apply(int32_t operator, const int32_t *args, int64_t n) {
    int32_t result = args[0];
    int64_t times[10] = {0}, sum = 0, below = 0;
    switch (operator) {
    case GMAL_LISTOPS_LAST:
        return args[n - 1];
    case GMAL_LISTOPS_MIN:
    case GMAL_LISTOPS_MAX:
        for (int64_t i = 1; i < n; i++)
            if (operator == GMAL_LISTOPS_MIN ? args[i] < result : args[i] > result) result = args[i];
        return result;
    case GMAL_LISTOPS_SM:
        for (int64_t i = 0; i < n; i++) sum += args[i];
        return (int32_t)(sum % 10);
    case GMAL_LISTOPS_MED: {
        int32_t low = -1, high = -1; /* the middle two; the same one when n is odd */
        for (int64_t i = 0; i < n; i++) times[args[i]]++;
        for (int32_t d = 0; d < 10; d++) {
            below += times[d];
            if (low < 0 && below > (n - 1) / 2) low = d;
            if (high < 0 && below > n / 2) high = d;
        }
        return (low + high) / 2;
    }
    default: /* FIRST */
        return result;
    }
}

/* ---- Reading -------------------------------------------------------------------------------------------------- */

static int32_t symbol_of(const char *text, size_t n) {
    static const struct {
        const char *text;
        int32_t id;
    } symbols[] = {{"[MIN", GMAL_LISTOPS_MIN}, {"[MAX", GMAL_LISTOPS_MAX}, {"[MED", GMAL_LISTOPS_MED},
                   {"[SM", GMAL_LISTOPS_SM},   {"]", GMAL_LISTOPS_CLOSE},  {"X", GMAL_LISTOPS_CLOSE},
                   {"[FIRST", GMAL_LISTOPS_FIRST}, {"[LAST", GMAL_LISTOPS_LAST}};
    if (n == 1 && text[0] >= '0' && text[0] <= '9') return GMAL_LISTOPS_DIGIT + text[0] - '0';
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        if (strlen(symbols[i].text) == n && memcmp(symbols[i].text, text, n) == 0) return symbols[i].id;
    return -1;
}

/* What is open: for each operator its symbol and where its arguments begin. */
typedef struct parser {
    gma_token_list args; /* values that wait for their operator */
    gma_token_list open; /* pairs: operator, first argument */
} parser;

static gma_status step(parser *p, int32_t symbol, size_t at) {
    if (p->open.count == 0 && p->args.count == 1)
        return gma_fail(GMA_ERR_FORMAT, "character %zu: there is more after the end of the expression", at);
    if (symbol >= GMAL_LISTOPS_DIGIT && symbol < GMAL_LISTOPS_VOCAB)
        return gmal_token_push(&p->args, symbol - GMAL_LISTOPS_DIGIT);
    if (symbol != GMAL_LISTOPS_CLOSE) {
        if (p->args.count > INT32_MAX) return gma_fail(GMA_ERR_UNSUPPORTED, "more than 2^31 arguments");
        const gma_status s = gmal_token_push(&p->open, symbol);
        return s == GMA_OK ? gmal_token_push(&p->open, (int32_t)p->args.count) : s;
    }
    if (p->open.count == 0) return gma_fail(GMA_ERR_FORMAT, "character %zu: ] closes nothing", at);
    const int32_t first = p->open.ids[p->open.count - 1], operator = p->open.ids[p->open.count - 2];
    if (first == p->args.count) return gma_fail(GMA_ERR_FORMAT, "character %zu: ] closes an operator without arguments", at);
    p->args.ids[first] = apply(operator, p->args.ids + first, p->args.count - first);
    p->args.count = first + 1;
    p->open.count -= 2;
    return GMA_OK;
}

gma_status gmal_listops_parse(const char *text, size_t n, gma_token_list *symbols, int32_t *value) {
    parser p = {{0}, {0}};
    gma_status s = GMA_OK;
    int64_t depth = 0; /* of parentheses, which must balance and say nothing else */
    for (size_t i = 0; i < n && s == GMA_OK;) {
        size_t end = i + 1;
        if (gmal_is_white((unsigned char)text[i]) || text[i] == '(' || text[i] == ')') {
            depth += (text[i] == '(') - (text[i] == ')');
            if (depth < 0) s = gma_fail(GMA_ERR_FORMAT, "character %zu: ) closes nothing", i + 1);
            i++;
            continue;
        }
        while (end < n && !gmal_is_white((unsigned char)text[end]) && text[end] != '(' && text[end] != ')') end++;
        const int32_t symbol = symbol_of(text + i, end - i);
        if (symbol < 0)
            s = gma_fail(GMA_ERR_FORMAT, "character %zu: \"%.*s\" is no symbol of ListOps", i + 1,
                         end - i > 20 ? 20 : (int)(end - i), text + i);
        if (s == GMA_OK) s = step(&p, symbol, i + 1);
        if (s == GMA_OK) s = gmal_token_push(symbols, symbol);
        i = end;
    }
    if (s == GMA_OK && p.open.count > 0)
        s = gma_fail(GMA_ERR_FORMAT, "character %zu: the expression ends with %lld operators open", n + 1,
                     (long long)p.open.count / 2);
    if (s == GMA_OK && depth > 0)
        s = gma_fail(GMA_ERR_FORMAT, "character %zu: the expression ends with %lld parentheses open", n + 1, (long long)depth);
    if (s == GMA_OK && p.args.count == 0) s = gma_fail(GMA_ERR_FORMAT, "character %zu: there is no expression", n + 1);
    if (s == GMA_OK) *value = p.args.ids[0];
    gma_token_list_free(&p.args);
    gma_token_list_free(&p.open);
    return s;
}

gma_status gma_listops_evaluate(const char *text, size_t size, int32_t *value, int64_t *tokens) {
    gma_token_list symbols = {0};
    if (!text || !value) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_listops_evaluate: text or value is NULL");
    const gma_status s = gmal_listops_parse(text, size, &symbols, value);
    if (s == GMA_OK && tokens) *tokens = symbols.count;
    gma_token_list_free(&symbols);
    return s;
}

/* ---- Drawing -------------------------------------------------------------------------------------------------- */

typedef struct drawing {
    gmal_draws draws;
    int32_t *symbols;
    int32_t length; /* may pass the limit; then nothing more is drawn */
} drawing;

static void put(drawing *d, int32_t symbol) {
    if (d->length < GMAL_LISTOPS_MOST) d->symbols[d->length] = symbol;
    d->length++;
}

/* The operator is drawn after its arguments, as in the original; its place is kept. */
static int32_t draw_tree(drawing *d, int depth) {
    enum { DEEPEST = 10 };
    int32_t args[10];
    if (depth >= DEEPEST || gmal_below(&d->draws, 4) != 0) {
        const int32_t digit = (int32_t)gmal_below(&d->draws, 10);
        put(d, GMAL_LISTOPS_DIGIT + digit);
        return digit;
    }
    const int32_t n = 2 + (int32_t)gmal_below(&d->draws, 9), place = d->length;
    put(d, GMAL_LISTOPS_PAD);
    for (int32_t i = 0; i < n; i++) {
        if (d->length >= GMAL_LISTOPS_MOST) return 0;
        args[i] = draw_tree(d, depth + 1);
    }
    const int32_t operator = GMAL_LISTOPS_MIN + (int32_t)gmal_below(&d->draws, 4);
    if (place < GMAL_LISTOPS_MOST) d->symbols[place] = operator;
    put(d, GMAL_LISTOPS_CLOSE);
    return apply(operator, args, n);
}

void gmal_listops_draw(uint64_t seed, uint64_t attempt, int32_t *symbols, int32_t *length, int32_t *value) {
    drawing d = {{gmal_key(gmal_key(seed, UINT64_C(0x6c6973746f7073)), attempt), 0}, symbols, 0};
    *value = draw_tree(&d, 1);
    *length = d.length >= GMAL_LISTOPS_MOST ? 0 : d.length;
}
