/* Running the program gma as a user does: exit code, stdout and stderr of one call. */
#ifndef GMA_TESTS_CLI_TESTING_H
#define GMA_TESTS_CLI_TESTING_H

#include "support/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

typedef struct cli_result {
    int code; /* exit code, or 1000 + signal */
    char out[65536], err[65536];
} cli_result;

static cli_result cli; /* of the last call */

static inline void cli_slurp(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(text, 1, size - 1, file);
    text[n] = '\0';
    fclose(file);
    unlink(path);
}

/* Before the program starts, in its process: limits, environment. */
static void (*cli_prepare)(void);

/* gma <words>, in the test folder; words end with NULL. stdout goes to `to` where that is given. */
static inline int cli_run_to(const char *to, const char *const *words) {
    char out[128], err[128];
    snprintf(out, sizeof out, "%s.out", test_folder);
    snprintf(err, sizeof err, "%s.err", test_folder);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *argv[100] = {(char[]){"gma"}};
        for (int i = 0; words[i] != NULL && i < 98; i++) {
            argv[i + 1] = strdup(words[i]);
        }
        int in_fd = open("/dev/null", O_RDONLY);
        int out_fd = open(to != NULL ? to : out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err_fd = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (in_fd < 0 || out_fd < 0 || err_fd < 0 || chdir(test_folder) != 0) {
            _exit(99);
        }
        dup2(in_fd, 0);
        dup2(out_fd, 1);
        dup2(err_fd, 2);
        if (cli_prepare != NULL) {
            cli_prepare();
        }
        execv(GMA_PROGRAM, argv);
        _exit(98);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    cli.out[0] = '\0';
    if (to == NULL) {
        cli_slurp(out, cli.out, sizeof cli.out);
    }
    cli_slurp(err, cli.err, sizeof cli.err);
    cli.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return cli.code;
}

#define CLI(...) cli_run_to(NULL, (const char *const[]){__VA_ARGS__, NULL})

static inline int cli_lines(const char *text) {
    int lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

/* The last call ended with `code`, printed no result, and said why in one line that holds `text`. */
static inline void assert_complaint(int code, const char *text) {
    if (cli.code != code || strstr(cli.err, text) == NULL || cli_lines(cli.err) != 1 || cli.out[0] != '\0') {
        fail_msg("expected exit %d and one line with \"%s\"; got exit %d, stderr \"%s\", stdout \"%s\"", code, text,
                 cli.code, cli.err, cli.out);
    }
}

static inline void assert_success(void) {
    if (cli.code != 0 || cli.err[0] != '\0') {
        fail_msg("expected success; got exit %d, stderr \"%s\"", cli.code, cli.err);
    }
}

static inline void assert_prints(const char *text) {
    if (strstr(cli.out, text) == NULL) {
        fail_msg("expected \"%s\" in \"%s\"", text, cli.out);
    }
}

#endif
