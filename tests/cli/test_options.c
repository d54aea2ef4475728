/* The option table: every type, its bounds, its spelling and its error. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"

typedef struct values {
    int flag, on, choice;
    int64_t whole, free_whole;
    double real;
    const char *text;
    gma_cli_ints list;
} values;

static values v;
static const char *operands[8];
static int count;

static gma_cli_option table[] = {
    GMA_CLI_GROUP("Things"),
    {.name = "flag", .type = GMA_CLI_FLAG, .value = &v.flag, .help = "off unless given"},
    {.name = "on", .type = GMA_CLI_FLAG, .def = "1", .value = &v.on, .help = "on unless negated"},
    {.name = "choice", .type = GMA_CLI_CHOICE, .hint = "a|bc|d", .def = "bc", .value = &v.choice, .help = "one of"},
    {.name = "whole", .type = GMA_CLI_INT, .hint = "N", .def = "7", .min = 1, .max = 9, .value = &v.whole,
     .help = "bounded"},
    {.name = "free", .type = GMA_CLI_INT, .hint = "N", .value = &v.free_whole, .help = "not bounded"},
    {.name = "real", .type = GMA_CLI_REAL, .hint = "X", .def = "0.1", .min = 0, .max = 1, .value = &v.real,
     .help = "a number"},
    {.name = "text", .type = GMA_CLI_STRING, .hint = "T", .value = &v.text, .help = "anything"},
    {.name = "list", .type = GMA_CLI_INTS, .hint = "N[,N..]", .def = "1,2", .min = 1, .max = 1000, .value = &v.list,
     .help = "several"},
};

static const gma_cli_spec spec = {.verb = "test", .operands = "A [B]", .min_operands = 1, .max_operands = 2,
                                  .about = "test", .options = table, .option_count = GMA_CLI_COUNT(table)};

static int parse(const char *const *words) {
    static char copies[16][64];
    char *argv[16];
    int argc = 0;
    static char verb[] = "test";
    argv[argc++] = verb;
    for (; words[argc - 1] != NULL; argc++) {
        argv[argc] = strcpy(copies[argc], words[argc - 1]);
    }
    return gma_cli_parse(&spec, argc, argv, operands, &count);
}

#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

static void test_defaults(void **state) {
    (void)state;
    memset(&v, 0xff, sizeof v);
    assert_int_equal(PARSE("x"), -1);
    assert_int_equal(v.flag, 0);
    assert_int_equal(v.on, 1);
    assert_int_equal(v.choice, 1);
    assert_int_equal(v.whole, 7);
    assert_int_equal(v.free_whole, 0);
    assert_true(v.real == 0.1);
    assert_null(v.text);
    assert_int_equal(v.list.count, 2);
    assert_int_equal(v.list.item[1], 2);
    assert_int_equal(count, 1);
    for (int i = 0; i < spec.option_count; i++) {
        assert_int_equal(table[i].given, 0);
    }
}

static void test_given(void **state) {
    (void)state;
    assert_int_equal(PARSE("--flag", "--no-on", "--choice", "d", "--whole=9", "--free", "-5", "--real", "1e-3", "--text",
                           "-", "x", "--list=5,60,700"),
                     -1);
    assert_int_equal(v.flag, 1);
    assert_int_equal(v.on, 0);
    assert_int_equal(v.choice, 2);
    assert_int_equal(v.whole, 9);
    assert_int_equal(v.free_whole, -5);
    assert_true(v.real == 1e-3);
    assert_string_equal(v.text, "-");
    assert_int_equal(v.list.count, 3);
    assert_int_equal(v.list.item[2], 700);
    for (int i = 1; i < spec.option_count; i++) {
        assert_int_equal(table[i].given, 1);
    }
    assert_int_equal(PARSE("--whole", "2", "--whole", "3", "--flag", "--no-flag", "--on=0", "x"), -1); /* the last wins */
    assert_int_equal(v.whole, 3);
    assert_int_equal(v.flag, 0);
    assert_int_equal(v.on, 0);
    assert_int_equal(PARSE("--text=--flag", "x"), -1);
    assert_string_equal(v.text, "--flag");
    assert_int_equal(PARSE("--text=", "x"), -1);
    assert_string_equal(v.text, "");
    assert_int_equal(PARSE("-", "--", "--flag"), -1);
    assert_int_equal(count, 2);
    assert_string_equal(operands[1], "--flag");
    assert_int_equal(v.flag, 0);
}

static void test_misuse(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"--whole", "0"},     {"--whole", "10"},   {"--whole", "1x"},      {"--whole", ""},
        {"--whole", "1.5"},   {"--free", "99999999999999999999"},          {"--real", "nan"},
        {"--real", "inf"},    {"--real", "1.01"},  {"--real", "0.1.2"},    {"--choice", "b"},
        {"--choice", ""},     {"--list", "1,,2"},  {"--list", "1,2,"},     {"--list", "1,1001"},
        {"--list", ""},       {"--text", "--flag"}, {"--flag=yes", "x"},   {"--no-flag=1", "x"},
        {"--no-whole", "1"},  {"--nothing", "x"},  {"--", "--help=1"},     {"-f", "x"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int code = PARSE(wrong[i][0], wrong[i][1], "x", "y", "z");
        if (code != 2) {
            fail_msg("%s %s: exit %d", wrong[i][0], wrong[i][1], code);
        }
    }
    assert_int_equal(PARSE("--flag"), 2); /* an operand is missing */
    assert_int_equal(PARSE("x", "y", "z"), 2);
    assert_int_equal(PARSE("--text"), 2);
}

/* Whatever a value is, its text gives it back: the form in which settings are saved. */
static void test_format(void **state) {
    (void)state;
    char text[256], why[256];
    assert_int_equal(PARSE("--flag", "--choice=a", "--real=0.30000000000000004", "--text=a b", "--list=3,2,1", "x"), -1);
    values before = v;
    for (int i = 1; i < spec.option_count; i++) {
        if (table[i].type != GMA_CLI_STRING) {
            gma_cli_format(&table[i], text, sizeof text);
            assert_int_equal(gma_cli_set(&table[i], text, why, sizeof why), 0);
        }
    }
    assert_memory_equal(&v, &before, sizeof v);
    gma_cli_format(gma_cli_find(&spec, "text"), text, sizeof text);
    assert_string_equal(text, "a b");
    gma_cli_format(gma_cli_find(&spec, "list"), text, sizeof text);
    assert_string_equal(text, "3,2,1");
    gma_cli_format(gma_cli_find(&spec, "real"), text, sizeof text);
    assert_string_equal(text, "0.30000000000000004");
    assert_null(gma_cli_find(&spec, "Things"));
    assert_null(gma_cli_find(&spec, "fla"));
    assert_int_equal(gma_cli_set(gma_cli_find(&spec, "whole"), "12", why, sizeof why), -1);
    assert_string_equal(why, "must be a whole number from 1 to 9, not \"12\"");
}

/* What the library says of an option is misuse; of a file it is not, whatever its name. */
static void test_fail(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int code;
    } cases[] = {{"size must be at most 4, not 5", 2}, {"long_size is 5, and the model has 4", 2}, {"size (5) must divide 4", 2},
                 {"size: cannot be opened", 1}, {"size of mine: cannot be opened", 1}, {"sizes must be equal", 1},
                 {"Group is wrong", 1}, {"size", 1}, {"", 1}};
    int64_t number;
    gma_cli_option rows[] = {GMA_CLI_GROUP("Group"), {.name = "size", .type = GMA_CLI_INT, .value = &number},
                                {.name = "long-size", .type = GMA_CLI_INT, .value = &number}};
    const gma_cli_spec of = {.verb = "test", .options = rows, .option_count = GMA_CLI_COUNT(rows)};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s", cases[i].line);
        assert_int_equal(gma_cli_fail(&of), cases[i].code);
    }
}

static void test_json_string(void **state) {
    (void)state;
    char text[256] = "";
    FILE *file = tmpfile();
    assert_non_null(file);
    gma_cli_json_string(file, "a\"\\\n\x01\xc3\xa9\xf0\x9f\x98\x80\xff\xed\xa0\x80\xc0\x80");
    rewind(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_string_equal(text, "\"a\\\"\\\\\\u000a\\u0001\xc3\xa9\xf0\x9f\x98\x80"
                              "\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_given),       cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_format),   cmocka_unit_test(test_json_string), cmocka_unit_test(test_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
