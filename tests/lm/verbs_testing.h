/* What the tests of gma train, eval and generate share: a text, files, refusals, runs that must be the same. */
#ifndef TEST_LM_VERBS_TESTING_H
#define TEST_LM_VERBS_TESTING_H

#include "cli/cli_testing.h"

/* The settings of nearly every run here: seconds on one core. */
#define SMALL                                                                                                        \
    "--preset", "tiny", "--layers", "1", "--width", "16", "--heads", "2", "--components", "4", "--context", "16",     \
        "--batch", "4", "--threads", "2", "--eval-windows", "8", "--warmup", "3"

/* The first 60,000 bytes of the bundled text. */
static inline int make_text(void **state) {
    static char text[60000];
    if (make_folder(state) != 0) return -1;
    FILE *f = fopen("data/tinyshakespeare/input.txt", "rb");
    if (!f || fread(text, 1, sizeof text, f) != sizeof text) return -1;
    fclose(f);
    put_file("text", text, sizeof text);
    return 0;
}

static inline char *contents(const char *name, size_t *size) { return get_file(in_folder(name), size); }

static inline int exists(const char *name) { return access(in_folder(name), F_OK) == 0; }

/* The call fails with `code`, one line on stderr that holds `text`, and leaves no `folder` behind. */
static inline void expect_refusal(int code, const char *text, const char *folder) {
    if (cli.code != code || cli_lines(cli.err) != 1 || !strstr(cli.err, text))
        fprintf(stderr, "exit %d, wanted %d and \"%s\"; stderr: %s", cli.code, code, text, cli.err);
    assert_int_equal(cli.code, code);
    assert_int_equal(cli_lines(cli.err), 1);
    assert_non_null(strstr(cli.err, text));
    if (folder) assert_false(exists(folder));
}

static inline double json_number_in(const char *text, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    const char *at = strstr(text, quoted);
    assert_non_null(at);
    return strtod(at + strlen(quoted), NULL);
}

/* The values of `key` in metrics.jsonl as text, one a line. */
static inline void values_of(const char *name, const char *key, char *out, size_t room) {
    size_t n, used = 0;
    char *text = contents(name, &n), quoted[64];
    assert_non_null(text);
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    for (const char *at = text; (at = strstr(at, quoted)) != NULL;) {
        at += strlen(quoted);
        const size_t k = strcspn(at, ",}");
        assert_true(used + k + 2 < room);
        memcpy(out + used, at, k);
        used += k;
        out[used++] = '\n';
    }
    out[used] = 0;
    free(text);
}

static inline void assert_same_run(const char *a, const char *b, int losses) {
    static char x[20000], y[20000];
    static const char *const files[] = {"last/model.safetensors", "last/optimizer.safetensors", "last/trainer.json",
                                        "best/model.safetensors"};
    char p[200], q[200];
    snprintf(p, sizeof p, "%s/metrics.jsonl", a);
    snprintf(q, sizeof q, "%s/metrics.jsonl", b);
    static const char *const keys[] = {"loss", "val_loss", "lr", "grad_norm"};
    for (int i = 0; i < 4; i++) {
        values_of(p, keys[i], x, sizeof x);
        values_of(q, keys[i], y, sizeof y);
        assert_string_equal(x, y);
        if (i == 0) assert_int_equal(cli_lines(x), losses);
    }
    for (int i = 0; i < 4; i++) {
        snprintf(p, sizeof p, "%s/%s", a, files[i]);
        snprintf(q, sizeof q, "%s/%s", b, files[i]);
        assert_same_file(p, q);
    }
}

#endif
