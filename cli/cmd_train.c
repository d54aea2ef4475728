/* gma train: a language model from a file. The work is gma_train(); here are options, what is shown, and signals. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/lm_settings.h"
#include "cli/patience.h"

static volatile sig_atomic_t caught; /* the signal that asked to stop */

static void on_signal(int sig) { caught = sig; }

/* The first signal finishes the step and saves; SA_RESETHAND makes a second one end the program at once, except where
 * the reader of our output has gone: that comes with every line. What was ignored at the start (nohup, a shell's
 * background jobs) stays ignored. */
static void catch_signals(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction a, old;
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) {
            continue;
        }
        memset(&a, 0, sizeof a);
        a.sa_handler = on_signal;
        a.sa_flags = signals[i] == SIGPIPE ? 0 : (int)SA_RESETHAND;
        sigemptyset(&a.sa_mask);
        sigaction(signals[i], &a, NULL);
    }
}

/* ---- What is shown -------------------------------------------------------------------------------------------- */

typedef struct view {
    int terminal;
    int64_t log_every;
    const gma_settings *settings;
    const char *unit; /* what a loss is of: "byte", "token", "sequence" */
    const char *token; /* "byte" or "token" */
    const char *out;
} view;

/* "encoder gma:...": the layers of an encoder and cross-attentions are counted for themselves. */
static int same_part(const char *a, const char *b) {
    const size_t n = strcspn(a, " :"), m = strcspn(b, " :");
    const int x = a[n] == ' ', y = b[m] == ' ';
    return x == y && (!x || (n == m && memcmp(a, b, n) == 0));
}

/* What every layer came to be, layers that are alike in one line. */
static void print_layers(const gma_settings *s) {
    char text[2][256];
    int64_t first = 0, i = 0, part = 0;
    int at = 0;
    for (; gma_settings_layer(s, i, text[at], sizeof text[at]) == GMA_OK; i++) {
        if (i == 0) {
            printf("Layers\n");
        } else if (strcmp(text[0], text[1]) != 0) {
            printf("  %lld..%-14lld %s\n", (long long)(first - part), (long long)(i - part) - 1, text[1 - at]);
            first = i;
            part = same_part(text[0], text[1]) ? part : i;
        }
        at = 1 - at;
    }
    if (i > 0) {
        printf("  %lld..%-14lld %s\n", (long long)(first - part), (long long)(i - part) - 1, text[1 - at]);
    }
}

static void print_settings(const gma_settings *s) {
    const char *group = "";
    char text[4096];
    for (int i = 0; i < gma_settings_count(); i++) {
        gma_setting_info info;
        if (gma_settings_info(i, &info) != GMA_OK || gma_settings_get(s, info.name, text, sizeof text) != GMA_OK) {
            continue;
        }
        if (strcmp(group, info.group) != 0) {
            group = info.group;
            printf("%s\n", group);
        }
        printf("  %-18s %s\n", info.name, text[0] != '\0' ? text : "-");
    }
    print_layers(s);
    fflush(stdout);
}

static void print_time(char *text, size_t size, double seconds) {
    const long s = seconds > 0 && seconds < 1e9 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600) {
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
    }
}

static void show_step(const view *v, const gma_train_progress *p) {
    enum { WIDTH = 24 };
    char left[32], bar[WIDTH + 1];
    const double per_step = p->step > p->first_step ? p->seconds / (double)(p->step - p->first_step) : 0;
    print_time(left, sizeof left, per_step * (double)(p->last_step - p->step));
    if (v->terminal) {
        const int full = (int)((double)WIDTH * (double)p->step / (double)p->last_step);
        for (int i = 0; i < WIDTH; i++) {
            bar[i] = i < full ? '#' : '.';
        }
        bar[WIDTH] = '\0';
        printf("\r[%s] %lld/%lld  loss %.4f  %.0f %ss/s  %s left \033[K", bar, (long long)p->step,
               (long long)p->last_step, p->loss, p->tokens_per_second, v->token, left);
        fflush(stdout);
    } else if (p->step % v->log_every == 0 || p->step == p->last_step || p->step == p->first_step + 1) {
        printf("step %lld/%lld  loss %.4f  lr %.3g  %.0f %ss/s  %s left\n", (long long)p->step,
               (long long)p->last_step, p->loss, p->lr, p->tokens_per_second, v->token, left);
        fflush(stdout);
    }
}

static int observe(void *context, const gma_train_progress *p) {
    const view *v = context;
    const char *clear = v->terminal ? "\r\033[K" : "";
    switch (p->event) {
    case GMA_TRAIN_START: /* the data is there and right: what follows is meant */
        print_settings(v->settings);
        if (p->train_tokens > 0) {
            printf("%lld parameters, %lld training and %lld validation %ss\n", (long long)p->parameters,
                   (long long)p->train_tokens, (long long)p->val_tokens, v->token);
        } else {
            printf("%lld parameters, generated data, %lld validation %ss\n", (long long)p->parameters,
                   (long long)p->val_tokens, v->token);
        }
        if (p->first_step > 0) {
            printf("resuming after step %lld\n", (long long)p->first_step);
        }
        fflush(stdout);
        break;
    case GMA_TRAIN_STEP:
        show_step(v, p);
        break;
    case GMA_TRAIN_EVAL:
        if (p->text == NULL) {
            printf("%sstep %lld  validation loss %.4f nats/%s  %.4f bits/%s  perplexity %.3f", clear, (long long)p->step,
                   p->val_loss, v->unit, p->val_loss / log(2.0), v->unit, exp(p->val_loss));
            if (isfinite(p->val_accuracy)) {
                printf("  accuracy %.2f %%", 100 * p->val_accuracy);
            }
            if (isfinite(p->val_sequence_accuracy)) {
                printf(", %.2f %% of whole sequences", 100 * p->val_sequence_accuracy);
            }
            printf("%s\n", p->val_loss <= p->best_val_loss ? "  (best)" : "");
            fflush(stdout);
        }
        break;
    case GMA_TRAIN_NOTE:
        printf("%snote: %s\n", clear, p->text);
        break;
    default:
        break;
    }
    return caught != 0;
}

/* ---- The verb ------------------------------------------------------------------------------------------------- */

/* Preset, saved settings of a run to resume, --config, flags: each over the one before. */
static int gather(const gma_cli_settings *table, const gma_cli_spec *spec, const char *preset, const char *config,
                  gma_settings **settings) {
    char out[4096], saved[4200];
    if (gma_settings_create(preset, settings) != GMA_OK) {
        return gma_cli_misuse(spec, "--preset: %s", gma_last_error());
    }
    if (config != NULL && gma_settings_read(*settings, config) != GMA_OK) {
        return gma_cli_fail(spec);
    }
    int code = gma_cli_settings_apply(table, spec, *settings);
    if (code >= 0) {
        return code;
    }
    char resume[8], force[8];
    gma_settings_get(*settings, "resume", resume, sizeof resume);
    gma_settings_get(*settings, "force", force, sizeof force);
    if (resume[0] == '1' && force[0] == '1') { /* before anything is said to be missing */
        return gma_cli_misuse(spec, "--resume and --force exclude each other: one goes on with a run, the other replaces it");
    }
    gma_settings_get(*settings, "out", out, sizeof out);
    if (resume[0] == '1' && out[0] != '\0') {
        snprintf(saved, sizeof saved, "%s/config.json", out);
        if (access(saved, F_OK) == 0 && gma_cli_settings_given(table, "preset")) {
            return gma_cli_misuse(spec, "--preset: the run to resume has its settings, and they are kept");
        }
        if (access(saved, F_OK) == 0) {
            if (gma_settings_read(*settings, saved) != GMA_OK ||
                (config != NULL && gma_settings_read(*settings, config) != GMA_OK)) {
                return gma_cli_fail(spec);
            }
            code = gma_cli_settings_apply(table, spec, *settings);
        } else {
            snprintf(saved, sizeof saved, "%s/last", out);
            if (access(saved, F_OK) == 0) {
                gma_fail(GMA_ERR_IO, "%s/config.json: the settings of the run to resume are missing", out);
            } else {
                gma_fail(GMA_ERR_IO, "%s: there is no checkpoint to resume from", saved);
            }
            return gma_cli_fail(spec);
        }
    }
    return code;
}

/* A flag that says nothing because of what else was said: its default, which a file of settings holds too, does not count. */
static int check_without_effect(const gma_cli_settings *table, const gma_cli_spec *spec, const gma_settings *settings) {
    char task[32] = "", val_data[4096] = "", tied[8] = "";
    gma_settings_get(settings, "task", task, sizeof task);
    gma_settings_get(settings, "val_data", val_data, sizeof val_data);
    gma_settings_get(settings, "tied", tied, sizeof tied);
    if (gma_cli_settings_given(table, "tied") && strcmp(task, "classify") == 0 && tied[0] == '1') {
        return gma_cli_misuse(spec, "--tied: the head of task classify has a row for each class, not for each token");
    }
    if (!gma_cli_settings_given(table, "val-fraction")) {
        return -1;
    }
    if (val_data[0] != '\0') {
        return gma_cli_misuse(spec, "--val-fraction: --val-data %s is what is validated on", val_data);
    }
    if (strcmp(task, "seq2seq") == 0) {
        return gma_cli_misuse(spec, "--val-fraction: task seq2seq generates its validation pairs");
    }
    return -1;
}

static int finish(const gma_cli_spec *spec, gma_status status, const gma_train_result *r, const view *v) {
    if (v->terminal) {
        printf("\r\033[K");
    }
    if (status == GMA_ERR_INTERRUPTED) {
        fflush(stdout);
        gma_cli_fail(spec);
        return 128 + (int)caught;
    }
    if (status != GMA_OK) {
        return gma_cli_fail(spec);
    }
    char took[32];
    print_time(took, sizeof took, r->seconds);
    printf("done: %lld steps in %s", (long long)r->steps, took);
    if (isfinite(r->best_val_loss)) {
        printf(", best validation loss %.4f nats/%s", r->best_val_loss, v->unit);
    }
    if (isfinite(r->val_accuracy)) {
        printf(", last validation accuracy %.2f %%", 100 * r->val_accuracy);
    }
    printf("\nthe model is in %s\n", v->out);
    return 0;
}

int gma_cmd_train(int argc, char **argv) {
    const char *preset = NULL, *config = NULL;
    const gma_cli_option own[] = {
        {.name = "preset", .type = GMA_CLI_STRING, .hint = "NAME", .def = "default", .value = &preset,
         .help = "what to start from: default, paper (the operator as published), demo, tiny"},
        {.name = "config", .type = GMA_CLI_STRING, .hint = "FILE.json", .value = &config,
         .help = "settings from a file, over those of the preset"},
    };
    gma_cli_settings table;
    gma_cli_settings_build(&table, own, GMA_CLI_COUNT(own));
    const gma_cli_spec spec = {
        .verb = "train",
        .operands = "",
        .max_operands = 0,
        .about = "train a language model on a file, a classifier on sequences, or one sequence from another\n\n"
                 "  gma train --data input.txt --out runs/a\n"
                 "  gma train --data input.txt --out runs/b --preset paper --steps 1000\n"
                 "  gma train --data input.txt --out runs/c --layers gma,gma,gma,softmax:window=128\n"
                 "  gma train --data recall.tokens --out runs/d --mixer softmax\n"
                 "  gma train --task classify --data train.tokens --val-data val.tokens --out runs/e\n"
                 "  gma train --task seq2seq --data reverse --context 64 --mixer softmax --out runs/f\n"
                 "  gma train --out runs/a --resume",
        .options = table.options,
        .option_count = table.count,
        .notes = "--layers N is a number of blocks with --mixer, or a pattern that names the mixer of every block, with\n"
                 "options: 3xgma,softmax:window=128. Options: components, logit_scale, forget_gate, output_gate, conv,\n"
                 "rotary, window, states, expand. One that no layer can honour is an error.\n"
                 "A token file of sequences with targets (gma data mqar) is trained on its targets only, --task classify on the\n"
                 "classes of one that has them (gma data listops, imdb): a classifier sees whole sequences, in batches\n"
                 "without padding; what is longer than --context is cut, and that is said.\n"
                 "--task seq2seq generates pairs (--data copy, reverse, sort). --layers, --mixer and their options are the\n"
                 "decoder's; --encoder-layers and --cross-mixer take the same patterns, and follow --mixer by themselves.\n"
                 "Defaults are those of the preset \"default\"; flags win over --config, which wins over the preset.\n"
                 "DIR holds config.json (these settings, readable with --config), metrics.jsonl, last/ and best/.\n"
                 "Ctrl-C (or SIGTERM) finishes the step, saves DIR/last and exits with 130 (143); --resume goes on\n"
                 "with the same bits as if nothing had happened, for the same threads and CPU tier.",
    };
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    gma_settings *settings = NULL;
    int count;
    int code = operands != NULL ? gma_cli_parse(&spec, argc, argv, operands, &count) : 1;
    if (code < 0) {
        code = gather(&table, &spec, preset, config, &settings);
    }
    if (code < 0) {
        code = check_without_effect(&table, &spec, settings);
    }
    char data[4096] = "", before[32] = "", out[4096] = "", every[32] = "", unit[32] = "";
    if (code < 0) {
        gma_settings_get(settings, "data", data, sizeof data);
        gma_settings_get(settings, "out", out, sizeof out);
        gma_settings_get(settings, "log_every", every, sizeof every);
        if (out[0] == '\0') {
            code = gma_cli_misuse(&spec, "--out DIR is needed");
        } else if (data[0] == '\0') {
            code = gma_cli_misuse(&spec, "--data FILE is needed");
        } else {
            gma_settings_get(settings, "tokens", before, sizeof before);
            const gma_status s = gma_settings_resolve(settings);
            gma_settings_get(settings, "tokens", unit, sizeof unit); /* a token file may have changed it */
            if (s == GMA_ERR_IO || s == GMA_ERR_FORMAT) { /* of the data, not of the options */
                code = gma_cli_fail(&spec);
            } else if (s != GMA_OK) {
                code = gma_cli_misuse(&spec, "%s", gma_last_error());
            } else if (gma_cli_settings_given(&table, "tokens") && strcmp(before, unit) != 0) {
                code = gma_cli_misuse(&spec, "--tokens %s: %s is a token file, which says itself what its tokens are",
                                      before, data);
            }
        }
    }
    if (code < 0) {
        gma_cli_be_patient(argv);
        gma_settings_get(settings, "tokens", unit, sizeof unit); /* a token file may have changed it */
        char task[32];
        gma_settings_get(settings, "task", task, sizeof task);
        const int pairs = strcmp(task, "seq2seq") == 0;
        const char *token = strcmp(unit, "bytes") == 0 && !pairs ? "byte" : "token";
        const int classify = strcmp(task, "classify") == 0;
        view v = {isatty(STDOUT_FILENO), strtoll(every, NULL, 10), settings, classify ? "sequence" : token, token, out};
        gma_train_result result = {.struct_size = sizeof result};
        catch_signals();
        const gma_status status = gma_train(settings, observe, &v, &result);
        code = finish(&spec, status, &result, &v);
    }
    gma_settings_destroy(settings);
    gma_cli_settings_free(&table);
    free(operands);
    return code;
}
