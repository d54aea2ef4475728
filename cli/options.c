#define _POSIX_C_SOURCE 200809L
#include "cli/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- Values ------------------------------------------------------------------------------------------------- */

static int has_bounds(const gma_cli_option *o) { return o->min < o->max || o->min != 0.0; }

static int wrong(const gma_cli_option *o, const char *kind, const char *text, char *why, size_t size) {
    if (has_bounds(o)) {
        snprintf(why, size, "must be %s from %.15g to %.15g, not \"%s\"", kind, o->min, o->max, text);
    } else {
        snprintf(why, size, "must be %s, not \"%s\"", kind, text);
    }
    return -1;
}

static int in_bounds(const gma_cli_option *o, double x) { return !has_bounds(o) || (x >= o->min && x <= o->max); }

static int parse_int(const gma_cli_option *o, const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || !in_bounds(o, (double)x)) {
        return -1;
    }
    *out = x;
    return 0;
}

static int set_ints(const gma_cli_option *o, const char *text, char *why, size_t size) {
    gma_cli_ints list = {0, {0}};
    const char *at = text;
    for (;;) {
        size_t length = strcspn(at, ",");
        char item[32];
        if (list.count == GMA_CLI_MAX_INTS || length >= sizeof item) {
            return wrong(o, "a comma list of whole numbers", text, why, size);
        }
        memcpy(item, at, length);
        item[length] = '\0';
        if (parse_int(o, item, &list.item[list.count]) != 0) {
            return wrong(o, "a comma list of whole numbers", text, why, size);
        }
        list.count++;
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    *(gma_cli_ints *)o->value = list;
    return 0;
}

static int set_choice(const gma_cli_option *o, const char *text, char *why, size_t size) {
    size_t length = strlen(text);
    int index = 0;
    for (const char *at = o->hint; *at != '\0'; index++) {
        size_t n = strcspn(at, "|");
        if (n == length && memcmp(at, text, n) == 0) {
            *(int *)o->value = index;
            return 0;
        }
        at += n + (at[n] == '|');
    }
    snprintf(why, size, "must be one of %s, not \"%s\"", o->hint, text);
    return -1;
}

int gma_cli_set(const gma_cli_option *o, const char *text, char *why, size_t size) {
    switch (o->type) {
    case GMA_CLI_FLAG:
        if ((text[0] != '0' && text[0] != '1') || text[1] != '\0') {
            snprintf(why, size, "must be 0 or 1, not \"%s\"", text);
            return -1;
        }
        *(int *)o->value = text[0] == '1';
        return 0;
    case GMA_CLI_INT:
        return parse_int(o, text, o->value) == 0 ? 0 : wrong(o, "a whole number", text, why, size);
    case GMA_CLI_REAL: {
        char *end;
        double x = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(x) || !in_bounds(o, x)) {
            return wrong(o, "a number", text, why, size);
        }
        *(double *)o->value = x;
        return 0;
    }
    case GMA_CLI_STRING:
        *(const char **)o->value = text;
        return 0;
    case GMA_CLI_CHOICE:
        return set_choice(o, text, why, size);
    case GMA_CLI_INTS:
        return set_ints(o, text, why, size);
    case GMA_CLI_HEADING:
        break;
    }
    snprintf(why, size, "is not an option");
    return -1;
}

void gma_cli_format(const gma_cli_option *o, char *text, size_t size) {
    text[0] = '\0';
    switch (o->type) {
    case GMA_CLI_FLAG:
        snprintf(text, size, "%d", *(const int *)o->value);
        break;
    case GMA_CLI_INT:
        snprintf(text, size, "%" PRId64, *(const int64_t *)o->value);
        break;
    case GMA_CLI_REAL: {
        double x = *(const double *)o->value;
        snprintf(text, size, "%.15g", x);
        if (strtod(text, NULL) != x) {
            snprintf(text, size, "%.17g", x);
        }
        break;
    }
    case GMA_CLI_STRING:
        if (*(const char *const *)o->value != NULL) {
            snprintf(text, size, "%s", *(const char *const *)o->value);
        }
        break;
    case GMA_CLI_CHOICE: {
        const char *at = o->hint;
        for (int i = 0; i < *(const int *)o->value; i++) {
            at += strcspn(at, "|") + 1;
        }
        snprintf(text, size, "%.*s", (int)strcspn(at, "|"), at);
        break;
    }
    case GMA_CLI_INTS: {
        const gma_cli_ints *list = o->value;
        size_t used = 0;
        for (int i = 0; i < list->count && used < size; i++) {
            int n = snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? "," : "", list->item[i]);
            used += n > 0 ? (size_t)n : 0;
        }
        break;
    }
    case GMA_CLI_HEADING:
        break;
    }
}

static void set_default(gma_cli_option *o) {
    static const gma_cli_ints no_ints = {0, {0}};
    char why[128];
    o->given = 0;
    if (o->def != NULL) {
        if (gma_cli_set(o, o->def, why, sizeof why) != 0) {
            fprintf(stderr, "gma: the default of --%s %s\n", o->name, why);
            abort(); /* a mistake in the table, not of the user */
        }
        return;
    }
    switch (o->type) {
    case GMA_CLI_FLAG:
    case GMA_CLI_CHOICE:
        *(int *)o->value = 0;
        break;
    case GMA_CLI_INT:
        *(int64_t *)o->value = 0;
        break;
    case GMA_CLI_REAL:
        *(double *)o->value = 0.0;
        break;
    case GMA_CLI_STRING:
        *(const char **)o->value = NULL;
        break;
    case GMA_CLI_INTS:
        *(gma_cli_ints *)o->value = no_ints;
        break;
    case GMA_CLI_HEADING:
        break;
    }
}

/* ---- Help and errors ------------------------------------------------------------------------------------------ */

/* The help text of one option, wrapped to 100 columns behind column 28. */
static void print_option(FILE *out, const gma_cli_option *o) {
    enum { COLUMN = 28, WIDTH = 100 };
    char text[1024];
    int shown = o->def != NULL && o->def[0] != '\0' && !(o->type == GMA_CLI_FLAG && o->def[0] == '0');
    if (shown) {
        const char *def = o->type == GMA_CLI_FLAG ? "on" : o->def;
        snprintf(text, sizeof text, "%s [default: %s]", o->help, def);
    } else {
        snprintf(text, sizeof text, "%s", o->help);
    }
    int column = fprintf(out, "  --%s%s%s%s", o->type == GMA_CLI_FLAG && shown ? "[no-]" : "", o->name,
                         o->type == GMA_CLI_FLAG ? "" : " ", o->type == GMA_CLI_FLAG || o->hint == NULL ? "" : o->hint);
    if (column >= COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", COLUMN - column, "");
    column = COLUMN;
    for (const char *at = text; *at != '\0';) {
        int n = (int)strcspn(at, " ");
        if (column + 1 + n > WIDTH) {
            fprintf(out, "\n%*s", COLUMN, "");
            column = COLUMN;
        } else if (column > COLUMN) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, at);
        column += n;
        at += n + (at[n] == ' ');
    }
    fputc('\n', out);
}

static void print_help(const gma_cli_spec *spec, FILE *out) {
    fprintf(out, "gma %s - %s\n\nUsage: gma %s%s%s%s\n", spec->verb, spec->about, spec->verb,
            spec->operands[0] != '\0' ? " " : "", spec->operands, spec->option_count > 0 ? " [options]" : "");
    if (spec->option_count > 0 && spec->options[0].type != GMA_CLI_HEADING) {
        fputs("\nOptions\n", out);
    }
    for (int i = 0; i < spec->option_count; i++) {
        if (spec->options[i].type == GMA_CLI_HEADING) {
            fprintf(out, "\n%s\n", spec->options[i].name);
        } else {
            print_option(out, &spec->options[i]);
        }
    }
    if (spec->notes != NULL) {
        fprintf(out, "\n%s\n", spec->notes);
    }
}

/* Names of files and what stands in them may hold anything: a terminal must not obey it, and an error is one line. */
void gma_cli_print_plain(FILE *file, const char *text) {
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) {
            fprintf(file, "\\x%02x", c);
        } else {
            fputc(c, file);
        }
    }
}

int gma_cli_misuse(const gma_cli_spec *spec, const char *format, ...) {
    va_list args;
    char text[8192];
    fflush(stdout);
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "gma %s: ", spec->verb);
    gma_cli_print_plain(stderr, text);
    fprintf(stderr, " (gma %s --help)\n", spec->verb);
    return 2;
}

/* "stride must be ..": an error line that begins with an option's name, underscores for dashes, and says what it is. Lines
 * about files have a colon after the name. */
static int blames_an_option(const gma_cli_spec *spec, const char *line) {
    static const char *const verbs[] = {" is ", " must ", " mixes ", " (", " '"};
    const size_t length = strcspn(line, " ");
    int says = 0;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        says |= strncmp(line + length, verbs[i], strlen(verbs[i])) == 0;
    }
    for (int i = 0; i < spec->option_count && says; i++) {
        const gma_cli_option *o = &spec->options[i];
        size_t same = 0;
        while (same < length && (o->name[same] == line[same] || (o->name[same] == '-' && line[same] == '_'))) {
            same++;
        }
        if (o->type != GMA_CLI_HEADING && same == length && o->name[same] == '\0') {
            return 1;
        }
    }
    return 0;
}

int gma_cli_fail(const gma_cli_spec *spec) {
    if (blames_an_option(spec, gma_last_error())) {
        return gma_cli_misuse(spec, "%s", gma_last_error());
    }
    fflush(stdout);
    fprintf(stderr, "gma %s: ", spec->verb);
    gma_cli_print_plain(stderr, gma_last_error());
    fputc('\n', stderr);
    return 1;
}

/* ---- Parsing -------------------------------------------------------------------------------------------------- */

static gma_cli_option *find(const gma_cli_spec *spec, const char *name, size_t length) {
    for (int i = 0; i < spec->option_count; i++) {
        gma_cli_option *o = &spec->options[i];
        if (o->type != GMA_CLI_HEADING && strlen(o->name) == length && memcmp(o->name, name, length) == 0) {
            return o;
        }
    }
    return NULL;
}

gma_cli_option *gma_cli_find(const gma_cli_spec *spec, const char *name) { return find(spec, name, strlen(name)); }

/* argv[*i] starts with "-". Returns -1 or an exit code; moves *i past a value that was taken. */
static int parse_option(const gma_cli_spec *spec, int argc, char **argv, int *i) {
    const char *arg = argv[*i];
    if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
        print_help(spec, stdout);
        return 0;
    }
    if (arg[1] != '-') {
        return gma_cli_misuse(spec, "there is no option %s", arg);
    }
    const char *name = arg + 2;
    size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    int negated = 0;
    gma_cli_option *o = find(spec, name, length);
    if (o == NULL && length > 3 && strncmp(name, "no-", 3) == 0) {
        o = find(spec, name + 3, length - 3);
        negated = 1;
        if (o != NULL && o->type != GMA_CLI_FLAG) {
            o = NULL;
        }
    }
    if (o == NULL) {
        return gma_cli_misuse(spec, "there is no option --%.*s", (int)length, name);
    }
    if (o->type == GMA_CLI_FLAG) {
        if (negated && value != NULL) {
            return gma_cli_misuse(spec, "--%.*s takes no value", (int)length, name);
        }
        value = negated ? "0" : value != NULL ? value : "1";
    } else if (value == NULL) {
        if (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0) {
            return gma_cli_misuse(spec, "--%s needs a value: --%s %s", o->name, o->name, o->hint);
        }
        value = argv[++*i];
    }
    char why[512];
    if (gma_cli_set(o, value, why, sizeof why) != 0) {
        return gma_cli_misuse(spec, "--%s %s", o->name, why);
    }
    o->given = 1;
    return -1;
}

int gma_cli_parse(const gma_cli_spec *spec, int argc, char **argv, const char **operands, int *count) {
    int only_operands = 0;
    *count = 0;
    for (int i = 0; i < spec->option_count; i++) {
        set_default(&spec->options[i]);
    }
    for (int i = 1; i < argc; i++) {
        if (only_operands || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (spec->max_operands >= 0 && *count == spec->max_operands) {
                return gma_cli_misuse(spec, "does not know what to do with \"%s\"", argv[i]);
            }
            operands[(*count)++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_operands = 1;
        } else {
            int code = parse_option(spec, argc, argv, &i);
            if (code >= 0) {
                return code;
            }
        }
    }
    if (*count < spec->min_operands) {
        return gma_cli_misuse(spec, "expects %s", spec->operands);
    }
    return -1;
}

int gma_cli_isa(const gma_cli_spec *spec, const char *name, gma_isa *isa) {
    *isa = GMA_ISA_AUTO;
    if (name == NULL) {
        return -1;
    }
    if (gma_isa_from_name(name, isa) != GMA_OK) {
        return gma_cli_misuse(spec, "--isa: %s", gma_last_error());
    }
    if (!gma_isa_built(*isa) || !gma_isa_supported(*isa)) {
        fprintf(stderr, "gma %s: --isa %s: %s\n", spec->verb, name,
                gma_isa_built(*isa) ? "this CPU does not have that tier" : "this build does not contain that tier");
        return 1;
    }
    return -1;
}
