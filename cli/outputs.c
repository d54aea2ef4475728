/* What a verb may write over. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/options.h"
#include "gma/data.h"
#include "gma/io.h"

int gma_cli_apart(const gma_cli_spec *spec, const char *out, const char *in) {
    struct stat a, b;
    if (out == NULL || in == NULL || stat(out, &a) != 0 || stat(in, &b) != 0 || a.st_dev != b.st_dev ||
        a.st_ino != b.st_ino) {
        return -1;
    }
    return gma_cli_misuse(spec, "%s is read, so it cannot be replaced: name another file to write", in);
}

/* A safetensors file that is neither data nor a model. */
static int is_tensors(const char *path) {
    gma_safetensors *f;
    if (gma_token_file_is(path) || gma_safetensors_open(path, &f) != GMA_OK) {
        return 0;
    }
    const char *format = gma_safetensors_metadata(f, "format");
    const int yes = format == NULL || strcmp(format, "gma-lm") != 0;
    gma_safetensors_close(f);
    return yes;
}

static int is_kind(const char *path, gma_cli_kind kind) {
    char text[4096];
    FILE *f = kind == GMA_CLI_TOKENS || kind == GMA_CLI_TENSORS ? NULL : fopen(path, "rb");
    const size_t n = f != NULL ? fread(text, 1, sizeof text, f) : 0;
    if (f != NULL) {
        fclose(f);
    }
    switch (kind) {
    case GMA_CLI_TOKENS:
        return gma_token_file_is(path);
    case GMA_CLI_TENSORS:
        return is_tensors(path);
    case GMA_CLI_SVG:
        return n >= 4 && memcmp(text, "<svg", 4) == 0;
    case GMA_CLI_HTML:
        return n >= 14 && strncasecmp(text, "<!doctype html", 14) == 0;
    case GMA_CLI_JSON:
        return n > 0 && text[0] == '{';
    case GMA_CLI_LISTOPS:
        return n >= 13 && memcmp(text, "Source\tTarget", 13) == 0;
    case GMA_CLI_TEXT:
        break;
    }
    return f != NULL && memchr(text, 0, n) == NULL;
}

/* Whether a run folder or a model has a file of that name: of the right kind or not, no verb but train writes those. */
static int is_of_a_model(const char *path) {
    static const char *const files[] = {"config.json",  "metrics.jsonl", "model.safetensors", "optimizer.safetensors",
                                        "trainer.json", "vocab.txt",     "vocab.bpe",         "encoder.json"};
    const char *name = strrchr(path, '/');
    name = name != NULL ? name + 1 : path;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (strcmp(name, files[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

int gma_cli_replaces(const gma_cli_spec *spec, const char *out, gma_cli_kind kind) {
    static const char *const names[] = {"a token file", "a file of tensors", "an SVG",
                                        "an HTML file", "a JSON file",       "an official ListOps file", "a text"};
    struct stat st;
    /* What is no regular file is refused where it is written. */
    if (out == NULL || stat(out, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
        return -1;
    }
    if (is_of_a_model(out)) {
        return gma_cli_misuse(spec, "%s is there and has the name of a model's file, so it is not replaced: name another file",
                              out);
    }
    if (is_kind(out, kind)) {
        return -1;
    }
    return gma_cli_misuse(spec, "%s is there and is not %s, so it is not replaced: remove it, or name another file", out,
                          names[kind]);
}
