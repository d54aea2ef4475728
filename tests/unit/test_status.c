/* Status codes, the error line of a thread, versions. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "gma/gma.h"
#include "support/check.h"

static void every_code_has_a_text(void **state) {
    (void)state;
    static const struct {
        gma_status code;
        int value;
        const char *text;
    } rows[] = {
#define ROW(name, value, text) {name, value, text},
        GMA_STATUS_LIST(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal((int)rows[i].code, rows[i].value);
        assert_string_equal(gma_status_string(rows[i].code), rows[i].text);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(rows[i].text, rows[j].text);
    }
    assert_int_equal(GMA_OK, 0);
    assert_string_equal(gma_status_string((gma_status)12345), "unknown status");
    assert_string_equal(gma_status_string((gma_status)-1), "unknown status");
}

static void *other_thread(void *arg) {
    (void)arg;
    const int empty = gma_last_error()[0] == 0;
    (void)gma_fail(GMA_ERR_IO, "theirs");
    return empty && strcmp(gma_last_error(), "theirs") == 0 ? arg : NULL;
}

static void error_line_belongs_to_the_thread(void **state) {
    (void)state;
    assert_string_equal(gma_last_error(), "");
    assert_int_equal(gma_fail(GMA_ERR_SHAPE, "%s has %d", "q", 3), GMA_ERR_SHAPE);
    assert_string_equal(gma_last_error(), "q has 3");
    /* the line itself may be an argument of the next one */
    assert_int_equal(gma_fail(GMA_ERR_IO, "file: %s", gma_last_error()), GMA_ERR_IO);
    assert_string_equal(gma_last_error(), "file: q has 3");
    pthread_t t;
    void *result = NULL;
    int mark = 0;
    assert_int_equal(pthread_create(&t, NULL, other_thread, &mark), 0);
    assert_int_equal(pthread_join(t, &result), 0);
    assert_ptr_equal(result, &mark);
    assert_string_equal(gma_last_error(), "file: q has 3");
    /* a very long line is cut, not overrun */
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)gma_fail(GMA_ERR_IO, "%s", text);
    assert_true(strlen(gma_last_error()) > 100 && strlen(gma_last_error()) < sizeof text - 1);
}

static void version_of_header_and_library(void **state) {
    (void)state;
    char text[64];
    (void)snprintf(text, sizeof text, "%d.%d.%d", GMA_VERSION_MAJOR, GMA_VERSION_MINOR, GMA_VERSION_PATCH);
    assert_string_equal(text, GMA_VERSION_STRING);
    assert_string_equal(gma_version(), GMA_VERSION_STRING);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_line_belongs_to_the_thread), /* first: no call has failed yet */
        cmocka_unit_test(every_code_has_a_text),
        cmocka_unit_test(version_of_header_and_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
