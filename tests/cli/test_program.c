/* The program as such: verbs, help, version, misuse, output that cannot be written. */
#define _GNU_SOURCE

#include "cli/cli_testing.h"

#include "gma/base.h"

static const char *const verbs[] = {
#define X(name, summary) #name,
#include "cli/cmds.inc"
#undef X
};

static void test_no_verb(void **state) {
    (void)state;
    assert_int_equal(cli_run_to(NULL, (const char *const[]){NULL}), 2);
    assert_non_null(strstr(cli.err, "Usage: gma"));
    assert_string_equal(cli.out, "");
}

static void test_help_goes_to_stdout(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        CLI(((const char *const[]){"--help", "-h", "help"})[i]);
        assert_success();
        for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
            assert_prints(verbs[v]);
        }
    }
    for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        char usage[64], by_help[65536];
        snprintf(usage, sizeof usage, "Usage: gma %s", verbs[v]);
        CLI(verbs[v], "--help");
        assert_success();
        assert_prints(usage);
        strcpy(by_help, cli.out);
        CLI("help", verbs[v]);
        assert_success();
        assert_string_equal(cli.out, by_help);
        for (const char *line = by_help; *line != '\0';) {
            size_t n = strcspn(line, "\n");
            if (n > 110) {
                fail_msg("gma %s --help: a line of %zu characters: %.*s", verbs[v], n, (int)n, line);
            }
            line += n + (line[n] == '\n');
        }
    }
}

static void test_version(void **state) {
    (void)state;
    CLI("--version");
    assert_success();
    assert_string_equal(cli.out, "gma " GMA_VERSION_STRING "\n");
    CLI("-V");
    assert_success();
}

static void test_misuse(void **state) {
    (void)state;
    CLI("dance");
    assert_complaint(2, "\"dance\"");
    CLI("--dance");
    assert_complaint(2, "option \"--dance\"");
    CLI("help", "dance");
    assert_complaint(2, "\"dance\"");
    for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        CLI(verbs[v], "--no-such-option");
        assert_complaint(2, "there is no option --no-such-option");
        CLI(verbs[v], "-z");
        assert_complaint(2, "there is no option -z");
    }
    CLI("info", "surplus");
    assert_complaint(2, "\"surplus\"");
    CLI("info", "--json=2");
    assert_complaint(2, "--json must be 0 or 1");
    CLI("op", "one");
    assert_complaint(2, "IN.safetensors OUT.safetensors");
    CLI("op", "--threads", "a", "b");
    assert_complaint(2, "--threads must be a whole number from 0 to 4096, not \"a\"");
    CLI("op", "--threads");
    assert_complaint(2, "--threads needs a value");
    CLI("op", "--dtype=f16", "a", "b");
    assert_complaint(2, "f32|bf16");
    CLI("op", "--isa", "mmx", "a", "b");
    assert_complaint(2, "mmx");
    CLI("op", "--mixer", "soup", "a", "b");
    assert_complaint(2, "soup");
}

static void test_info(void **state) {
    (void)state;
    CLI("info");
    assert_success();
    assert_prints("gma " GMA_VERSION_STRING);
    assert_prints("scalar");
    CLI("info", "--json");
    assert_success();
    assert_prints("\"version\": \"" GMA_VERSION_STRING "\"");
    assert_prints("\"isa_built\": [\"scalar\"");
    assert_prints("\"mixers\": [\"gma\"");
    assert_int_equal(cli_lines(cli.out), 1);
}

static void tier_scalar(void) { setenv("GMA_ISA", "scalar", 1); }
static void tier_unknown(void) { setenv("GMA_ISA", "mmx", 1); }
static void tier_highest(void) { setenv("GMA_ISA", "amx", 1); }
static void three_threads(void) { setenv("OMP_NUM_THREADS", "3", 1); }

static void test_environment(void **state) {
    (void)state;
    cli_prepare = tier_scalar;
    CLI("info", "--json");
    assert_success();
    assert_prints("\"isa\": \"scalar\"");
    cli_prepare = tier_unknown;
    CLI("info");
    assert_complaint(1, "mmx");
    cli_prepare = tier_highest; /* known: falls to what there is */
    CLI("info");
    assert_success();
    cli_prepare = three_threads;
    CLI("info", "--json");
    assert_success();
#ifdef _OPENMP
    assert_prints("\"threads\": 3");
#else
    assert_prints("\"threads\": 1");
#endif
    cli_prepare = NULL;
}

static void test_full_output(void **state) {
    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        skip();
    }
    assert_int_equal(cli_run_to("/dev/full", (const char *const[]){"info", NULL}), 1);
    assert_non_null(strstr(cli.err, "could not be written"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_verb),     cmocka_unit_test(test_help_goes_to_stdout),
        cmocka_unit_test(test_version),     cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_info),        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_full_output),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
