/* cli/options.h - one option table per verb; it drives parsing, --help and error messages.
 *
 *     int threads; const char *out; int causal;   ->   values live in the verb's own variables
 *     gma_cli_option options[] = {
 *         GMA_CLI_GROUP("Model"),
 *         {.name = "layers", .type = GMA_CLI_INT, .hint = "N", .def = "4", .min = 1, .max = 1000, .value = &layers,
 *          .help = "blocks"},
 *         {.name = "causal", .type = GMA_CLI_FLAG, .value = &causal, .help = "see only the past"},
 *     };
 *
 * Syntax: --name VALUE, --name=VALUE; a flag is --name or --no-name (or --name=0|1); -- ends the options; a VALUE that
 * itself starts with "--" is given as --name=VALUE. Of an option given twice the last wins. --help is known to all.
 * Misuse is one line on stderr and exit code 2; help goes to stdout and exit code 0. A failure is exit code 1. */
#ifndef GMA_CLI_OPTIONS_H
#define GMA_CLI_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "gma/base.h"

typedef enum gma_cli_type {
    GMA_CLI_HEADING, /* no option: `name` heads the rows that follow, in --help */
    GMA_CLI_FLAG, /* value: int, 0 or 1 */
    GMA_CLI_INT, /* value: int64_t, min..max */
    GMA_CLI_REAL, /* value: double, min..max, finite */
    GMA_CLI_STRING, /* value: const char *, points into argv, the table or the text given to gma_cli_set */
    GMA_CLI_CHOICE, /* value: int, the position in hint = "first|second|third" */
    GMA_CLI_INTS /* value: gma_cli_ints, a comma list, each min..max */
} gma_cli_type;

enum { GMA_CLI_MAX_INTS = 64 };

typedef struct gma_cli_ints {
    int count;
    int64_t item[GMA_CLI_MAX_INTS];
} gma_cli_ints;

typedef struct gma_cli_option {
    const char *name; /* without the dashes */
    gma_cli_type type;
    const char *hint; /* what VALUE is, in help: "N", "FILE"; for a choice the choices */
    const char *def; /* the default, as text; NULL = 0, 0.0 or NULL, and no default is shown */
    const char *help;
    double min, max; /* INT, REAL, INTS: bounds, both inclusive; min = max = 0: none */
    void *value;
    int given; /* set to 1 when the option was given */
} gma_cli_option;

#define GMA_CLI_GROUP(heading) {.name = (heading), .type = GMA_CLI_HEADING}
/* Rows that several verbs share, so that they read the same everywhere. */
#define GMA_CLI_OPTION_THREADS(where)                                                                   \
    {.name = "threads", .type = GMA_CLI_INT, .hint = "N", .def = "0", .min = 0, .max = 4096, .value = (where), \
     .help = "threads; 0 = every CPU this process may use"}
#define GMA_CLI_OPTION_ISA(where)                                                                \
    {.name = "isa", .type = GMA_CLI_STRING, .hint = "TIER", .value = (where),                    \
     .help = "run exactly this CPU tier: scalar, neon, avx2, avx512, amx (default: the best but amx)"}
#define GMA_CLI_OPTION_JSON(where) \
    {.name = "json", .type = GMA_CLI_FLAG, .value = (where), .help = "print the result as JSON"}

typedef struct gma_cli_spec {
    const char *verb;
    const char *operands; /* how --help writes them: "IN OUT"; "" for none */
    int min_operands, max_operands; /* max -1: any number */
    const char *about; /* what the verb does; lines of at most 100 characters */
    gma_cli_option *options;
    int option_count;
    const char *notes; /* after the options in --help; may be NULL */
} gma_cli_spec;

#define GMA_CLI_COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

/** gma_cli_parse() - set every default, then parse argv[1..argc-1] (argv[0] is the verb). Operands are moved to
 *  operands[0..*count-1] (room for max_operands pointers, or argc where that is -1). Returns -1 to go on, else the exit code the verb must return. */
int gma_cli_parse(const gma_cli_spec *spec, int argc, char **argv, const char **operands, int *count);

/** gma_cli_find() - the option of that name, NULL if there is none. For configuration files. */
gma_cli_option *gma_cli_find(const gma_cli_spec *spec, const char *name);

/** gma_cli_set() - parse `text` into the option's value. On failure returns -1 and leaves in `why` (size bytes) what
 *  the value should have been, without naming the option: "must be a whole number from 1 to 1000, not \"x\"".
 *  Does not touch `given`. */
int gma_cli_set(const gma_cli_option *option, const char *text, char *why, size_t size);

/** gma_cli_format() - the option's present value as text that gma_cli_set takes back. */
void gma_cli_format(const gma_cli_option *option, char *text, size_t size);

/** gma_cli_misuse() - "gma VERB: <message>" and a hint at --help on stderr; returns 2. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int gma_cli_misuse(const gma_cli_spec *spec, const char *format, ...);

/** gma_cli_print_plain() - `text` with control characters written as \xNN. */
void gma_cli_print_plain(FILE *file, const char *text);

/** gma_cli_fail() - "gma VERB: <gma_last_error()>" on stderr; returns 1, or 2 where the line begins with an option's name:
 *  what the library says of a value is misuse that only the model or the data could show. */
int gma_cli_fail(const gma_cli_spec *spec);

/** gma_cli_isa() - what --isa means: NULL = GMA_ISA_AUTO, else exactly that tier. Returns -1, or the exit code after
 *  having said why not. */
int gma_cli_isa(const gma_cli_spec *spec, const char *name, gma_isa *isa);

/** gma_cli_apart() - `out` is about to be replaced; is it the file `in`, which is read? Returns -1 when it is not (or one of
 *  them is NULL or not there), else the exit code after having said so. */
int gma_cli_apart(const gma_cli_spec *spec, const char *out, const char *in);

/** gma_cli_replaces() - `out` is about to be written: is what is there already of the kind that the verb writes, so that only
 *  something like an earlier result is lost? Returns -1 when it is (or out is NULL, absent or empty), else the exit code after
 *  having said so. The kind is told by how the file begins; a file with a name that models and run folders use
 *  (config.json, metrics.jsonl, ..) is of none. */
typedef enum gma_cli_kind {
    GMA_CLI_TOKENS, /* a token file */
    GMA_CLI_TENSORS, /* safetensors, but neither a token file nor a model */
    GMA_CLI_SVG,
    GMA_CLI_HTML,
    GMA_CLI_JSON,
    GMA_CLI_LISTOPS, /* basic_*.tsv of the Long Range Arena */
    GMA_CLI_TEXT /* no zero byte in its first 4096 */
} gma_cli_kind;
int gma_cli_replaces(const gma_cli_spec *spec, const char *out, gma_cli_kind kind);

/** gma_cli_json_string() - `text` as a JSON string; bytes that are no UTF-8 come out as U+FFFD. */
void gma_cli_json_string(FILE *file, const char *text);

/** gma_cli_json_number() - `, "key": x` on stdout; null where JSON has no number (NaN, infinity). */
void gma_cli_json_number(const char *key, double x);

/* One row a verb in cmds.inc: X(verb, "summary"); its file is cmd_<verb>.c. */
#define GMA_CLI_DECLARE(verb, summary) int gma_cmd_##verb(int argc, char **argv);
#define X GMA_CLI_DECLARE
#include "cli/cmds.inc"
#undef X

#endif
