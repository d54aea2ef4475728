#include "inspect/classes.h"

#include <stdlib.h>
#include <string.h>

/* Sorted: found by bisection. Articles, pronouns, prepositions, conjunctions, auxiliaries and a few adverbs of degree.
 */
static const char *const function_words[] = {
    "a",      "about",   "above",   "across",  "after",      "against",  "all",    "along",      "although", "am",
    "among",  "an",      "and",     "another", "any",        "anything", "are",    "around",     "as",       "at",
    "be",     "because", "been",    "before",  "behind",     "being",    "below",  "beneath",    "beside",   "between",
    "beyond", "both",    "but",     "by",      "can",        "cannot",   "could",  "despite",    "did",      "do",
    "does",   "doing",   "down",    "during",  "each",       "either",   "every",  "everything", "except",   "few",
    "for",    "from",    "had",     "has",     "have",       "having",   "he",     "her",        "hers",     "herself",
    "him",    "himself", "his",     "how",     "however",    "i",        "if",     "in",         "inside",   "into",
    "is",     "it",      "its",     "itself",  "like",       "may",      "me",     "might",      "mine",     "more",
    "most",   "must",    "my",      "myself",  "near",       "neither",  "no",     "nor",        "not",      "of",
    "off",    "on",      "one",     "onto",    "or",         "other",    "our",    "ours",       "out",      "over",
    "per",    "shall",   "she",     "should",  "since",      "so",       "some",   "such",       "than",     "that",
    "the",    "their",   "theirs",  "them",    "themselves", "then",     "there",  "these",      "they",     "this",
    "those",  "though",  "through", "to",      "toward",     "under",    "unless", "until",      "up",       "upon",
    "us",     "very",    "was",     "we",      "were",       "what",     "when",   "where",      "whether",  "which",
    "while",  "who",     "whom",    "whose",   "why",        "will",     "with",   "within",     "without",  "would",
    "yet",    "you",     "your",    "yours",
};

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static int is_upper(char c) { return c >= 'A' && c <= 'Z'; }
static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_letter(char c) { return is_upper(c) || (c >= 'a' && c <= 'z'); }
static int is_punctuation(char c) { return c > ' ' && c < 127 && !is_digit(c) && !is_letter(c); }

static int compare(const void *key, const void *item) { return strcmp(key, *(const char *const *)item); }

static int is_function_word(const char *text, size_t length) {
    char word[16];
    if (length >= sizeof word)
        return 0;
    for (size_t i = 0; i < length; i++)
        word[i] = (char)(is_upper(text[i]) ? text[i] - 'A' + 'a' : text[i]);
    word[length] = 0;
    return bsearch(word, function_words, sizeof function_words / sizeof function_words[0], sizeof function_words[0],
                   compare) != NULL;
}

static int all_punctuation(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!is_punctuation(text[i]))
            return 0;
    return 1;
}

static int a_number(const char *text, size_t length) {
    if (!is_digit(text[0]))
        return 0;
    for (size_t i = 1; i < length; i++)
        if (!is_digit(text[i]) && !strchr(".,:%-", text[i]))
            return 0;
    return 1;
}

gmal_surface gmal_surface_class(const char *text, size_t length, int single_bytes) {
    for (; length > 0 && is_space(text[0]); text++)
        length--;
    while (length > 0 && is_space(text[length - 1]))
        length--;
    if (length == 0)
        return GMAL_SURFACE_SPACE;
    if (memchr(text, 0, length))
        return GMAL_SURFACE_OTHER;
    if (all_punctuation(text, length))
        return GMAL_SURFACE_PUNCTUATION;
    if (a_number(text, length))
        return GMAL_SURFACE_DIGITS;
    if (!single_bytes && is_function_word(text, length))
        return GMAL_SURFACE_FUNCTION;
    return is_upper(text[0]) ? GMAL_SURFACE_CAPITALISED : GMAL_SURFACE_OTHER;
}

const char *gmal_surface_name(gmal_surface c) {
    static const char *const names[GMAL_SURFACE_COUNT] = {"white space",    "punctuation", "digits",
                                                          "function words", "capitalised", "other"};
    return c < GMAL_SURFACE_COUNT ? names[c] : NULL;
}
