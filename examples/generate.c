/* Load a model folder and continue a text, piece by piece as it comes.
 *   cc generate.c $(pkg-config --cflags --libs gma_lm) -Wl,-rpath,"$(pkg-config --variable=libdir gma_lm)" && ./a.out models/shakespeare-gma "ROMEO:" */
#include <stdio.h>
#include <string.h>

#include <gma/lm.h>

static int print(void *context, const char *text, size_t size) {
    (void)context;
    fwrite(text, 1, size, stdout);
    return fflush(stdout) != 0;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, gma_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: generate MODEL [PROMPT]\n");
        return 2;
    }
    const char *prompt = argc == 3 ? argv[2] : "ROMEO:\n";
    gma_lm *lm = NULL;
    gma_lm_stream *stream = NULL;
    gma_sampling sampling;
    int code = 0;

    if (gma_lm_load(argv[1], &lm) != GMA_OK) {
        return failed("cannot load the model");
    }
    if (gma_lm_stream_create(lm, 0, &stream) != GMA_OK || gma_sampling_init(&sampling) != GMA_OK) {
        code = failed("cannot start");
    } else {
        sampling.temperature = 0.8;
        sampling.seed = 1;
        fputs(prompt, stdout);
        if (gma_generate(stream, prompt, strlen(prompt), 200, &sampling, 0, print, NULL) != GMA_OK) {
            code = failed("cannot generate");
        } else {
            printf("\n[%lld tokens, state of %zu bytes]\n", (long long)gma_lm_stream_position(stream),
                   gma_lm_stream_state_bytes(stream));
        }
    }
    gma_lm_stream_destroy(stream);
    gma_lm_destroy(lm);
    return code;
}
