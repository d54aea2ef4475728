/* gma generate: text from a model, as it is drawn. */
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/patience.h"
#include "gma/lm.h"

/* With --json the text is collected; otherwise it goes out piece by piece. */
typedef struct sink {
    int collect;
    char *text;
    size_t size, room;
} sink;

static int put(void *context, const char *text, size_t size) {
    sink *s = context;
    if (!s->collect) {
        return fwrite(text, 1, size, stdout) != size || fflush(stdout) != 0;
    }
    if (s->size + size + 1 > s->room) {
        s->room = 2 * (s->size + size + 1);
        char *bigger = realloc(s->text, s->room);
        if (bigger == NULL) {
            return 1;
        }
        s->text = bigger;
    }
    memcpy(s->text + s->size, text, size);
    s->size += size;
    s->text[s->size] = '\0';
    return 0;
}

/* The filter let only whole characters through, but a NUL may be among them, so the length counts. */
static void print_text(const sink *s) {
    putchar('"');
    for (size_t i = 0; i < s->size; i++) {
        const unsigned char c = (unsigned char)s->text[i];
        if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else if (c < 0x20) {
            printf("\\u%04x", c);
        } else {
            putchar(c);
        }
    }
    putchar('"');
}

static void print_json(const char *prompt, const sink *s, const gma_lm_stream *stream, uint64_t seed) {
    printf("{\"prompt\": ");
    gma_cli_json_string(stdout, prompt);
    printf(", \"text\": ");
    print_text(s);
    printf(", \"seed\": %llu, \"tokens\": %lld, \"state_bytes\": %zu}\n", (unsigned long long)seed,
           (long long)gma_lm_stream_position(stream), gma_lm_stream_state_bytes(stream));
}

int gma_cmd_generate(int argc, char **argv) {
    const char *prompt;
    int64_t length, seed, threads;
    int json, raw, echo;
    gma_sampling sampling;
    gma_sampling_init(&sampling);
    gma_cli_option options[] = {
        {.name = "prompt", .type = GMA_CLI_STRING, .hint = "TEXT", .def = "", .value = &prompt,
         .help = "what the text starts with; without one it starts a new line"},
        {.name = "length", .type = GMA_CLI_INT, .hint = "N", .def = "500", .min = 0, .max = 1e15, .value = &length,
         .help = "tokens (bytes) to draw"},
        {.name = "temperature", .type = GMA_CLI_REAL, .hint = "X", .def = "0.8", .min = 0, .max = 1e6,
         .value = &sampling.temperature, .help = "below 1 sharper, above 1 flatter; 0 = always the most likely"},
        {.name = "top-k", .type = GMA_CLI_INT, .hint = "K", .def = "0", .min = 0, .max = 1e9, .value = &sampling.top_k,
         .help = "only the K most likely tokens; 0 = all"},
        {.name = "top-p", .type = GMA_CLI_REAL, .hint = "P", .def = "1", .min = 1e-9, .max = 1,
         .value = &sampling.top_p, .help = "only the most likely tokens that together reach P"},
        {.name = "seed", .type = GMA_CLI_INT, .hint = "N", .def = "1", .min = 0, .max = 9e15, .value = &seed,
         .help = "the same seed gives the same text"},
        {.name = "raw", .type = GMA_CLI_FLAG, .value = &raw,
         .help = "write every byte as drawn, also those that are no UTF-8"},
        {.name = "echo", .type = GMA_CLI_FLAG, .def = "1", .value = &echo, .help = "write the prompt first"},
        GMA_CLI_OPTION_THREADS(&threads),
        GMA_CLI_OPTION_JSON(&json),
    };
    const gma_cli_spec spec = {.verb = "generate",
                               .operands = "MODEL",
                               .min_operands = 1,
                               .max_operands = 1,
                               .about = "continue a text\n\n"
                                        "  gma generate models/shakespeare-gma --prompt \"ROMEO:\" --length 300",
                               .options = options,
                               .option_count = GMA_CLI_COUNT(options),
                               .notes = "MODEL is a checkpoint folder, or a run folder: its best/, or last/ where there is none.\n"
                                        "What is kept between tokens does not grow with the length. A softmax layer without a window\n"
                                        "sees as many tokens back as the context it was trained with."};
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    int count = 0;
    int code = operands != NULL ? gma_cli_parse(&spec, argc, argv, operands, &count) : 1;
    const char *model = code < 0 ? operands[0] : NULL;
    free(operands);
    if (code >= 0) {
        return code;
    }
    if (json && raw) {
        return gma_cli_misuse(&spec, "--json holds text, so it excludes --raw");
    }
    gma_cli_be_patient(argv);
    sampling.seed = (uint64_t)seed;
    sink s = {json, NULL, 0, 0};
    gma_lm *lm = NULL;
    gma_lm_stream *stream = NULL;
    gma_status status = gma_lm_load(model, &lm);
    if (status == GMA_OK) {
        status = gma_lm_stream_create(lm, (int)threads, &stream);
    }
    gma_lm_config c = {0};
    if (status == GMA_OK) {
        status = gma_lm_get_config(lm, &c);
    }
    /* gma_generate refuses a model of ids; then nothing is to be seen of the prompt. */
    const int reads_text = c.tokenizer == GMA_LM_TOKENIZER_BYTES || (lm != NULL && gma_lm_tokenizer_of(lm) != NULL);
    if (status == GMA_OK && echo && !json && reads_text) {
        fputs(prompt, stdout);
        fflush(stdout); /* a full disk shows before anything is drawn */
    }
    if (status == GMA_OK) {
        status = gma_generate(stream, prompt, strlen(prompt), length, &sampling, raw, put, &s);
    }
    if (status == GMA_OK && json) {
        print_json(prompt, &s, stream, sampling.seed);
    } else if (status == GMA_OK && !raw) {
        putchar('\n');
    }
    free(s.text);
    gma_lm_stream_destroy(stream);
    gma_lm_destroy(lm);
    if (ferror(stdout)) {
        return 1; /* main says so */
    }
    return status == GMA_OK ? 0 : gma_cli_fail(&spec);
}
