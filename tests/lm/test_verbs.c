/* gma train, eval, generate and plot as a user runs them: results, resuming bit for bit, stopping, every refusal. */
#define _DEFAULT_SOURCE /* flock */
#include "lm/verbs_testing.h"

#include <math.h>
#include <signal.h>
#include <sys/file.h>
#include <time.h>

/* ---- Learning -------------------------------------------------------------------------------------------------- */

static void test_training_learns(void **state) {
    (void)state;
    assert_int_equal(CLI("train", "--data", "text", "--out", "runs/learn", "--preset", "tiny", "--steps", "60"), 0);
    assert_non_null(strstr(cli.out, "layers"));
    assert_non_null(strstr(cli.out, "step 60/60"));
    assert_true(exists("runs/learn/config.json"));
    assert_true(exists("runs/learn/last/optimizer.safetensors"));
    /* A table of single letters costs 3.3 nats a byte, no model at all 5.5. */
    assert_int_equal(CLI("eval", "runs/learn", "--data", "text", "--split", "val", "--windows", "64", "--json"), 0);
    const double loss = json_number_in(cli.out, "loss");
    assert_true(loss > 1 && loss < 2.95);
    assert_true(fabs(json_number_in(cli.out, "bits_per_token") - loss / log(2.0)) < 1e-12);
    assert_true(fabs(json_number_in(cli.out, "perplexity") - exp(loss)) < 1e-9);
    assert_int_equal(json_number_in(cli.out, "tokens"), 64 * 64);
    /* The figure is the one training reported. */
    size_t n;
    char *metrics = contents("runs/learn/metrics.jsonl", &n);
    assert_true(fabs(json_number_in(metrics + n - 120, "val_loss") - loss) < 1e-6 * loss);
    free(metrics);
    assert_int_equal(CLI("eval", "runs/learn", "--data", "text", "--split", "val", "--baselines"), 0);
    assert_non_null(strstr(cli.out, "trigram table"));
    assert_int_equal(CLI("eval", "runs/learn/last", "--data", "text", "--split", "val", "--beat-baselines"), 1);
    assert_non_null(strstr(cli.err, "does not beat"));
    /* The saved settings make the same run again. */
    assert_int_equal(CLI("train", "--config", "runs/learn/config.json", "--out", "runs/again"), 0);
    assert_same_file("runs/learn/last/model.safetensors", "runs/again/last/model.safetensors");
    assert_int_equal(CLI("plot", "runs/learn", "runs/again", "--out", "p.svg"), 0);
    assert_true(exists("p.svg"));
}

/* ---- Resuming --------------------------------------------------------------------------------------------------- */

/* K1, with dropout, accumulation and a batch order that wraps around. */
#define RESUMED SMALL, "--steps", "20", "--dropout", "0.2", "--accumulate", "2", "--eval-every", "5"

static void test_resume(void **state) {
    (void)state;
    assert_int_equal(CLI("train", "--data", "text", "--out", "straight", RESUMED), 0);
    assert_int_equal(CLI("train", "--data", "text", "--out", "halves", RESUMED, "--stop-at", "10"), 0);
    assert_int_equal(CLI("train", "--out", "halves", "--resume", "--threads", "2"), 0); /* the rest is in config.json */
    assert_non_null(strstr(cli.out, "resuming after step 10"));
    assert_same_run("straight", "halves", 20);
    /* Lines of steps that a killed run logged but did not save are not there twice. */
    assert_int_equal(CLI("train", "--data", "text", "--out", "killed", RESUMED, "--stop-at", "10"), 0);
    FILE *f = fopen(in_folder("killed/metrics.jsonl"), "ab");
    fputs("{\"step\": 11, \"loss\": 1.5, \"lr\": 1, \"grad_norm\": 1}\n{\"step\": 12, \"lo", f);
    fclose(f);
    assert_int_equal(CLI("train", "--out", "killed", "--resume", "--threads", "2"), 0);
    assert_same_run("straight", "killed", 20);
    CLI("train", "--out", "killed", "--resume");
    expect_refusal(1, "already at step 20 of 20", NULL);
    CLI("train", "--out", "killed", "--resume", "--width", "32");
    expect_refusal(1, "width is 16 in the checkpoint and 32 in the settings", NULL);
    CLI("train", "--data", "text", "--out", "nothing", "--resume", SMALL);
    expect_refusal(1, "no checkpoint to resume from", "nothing");
    put_file("brief", "To be, or not to be, that is the question: whether", 50);
    CLI("train", "--out", "killed", "--resume", "--steps", "30", "--data", "brief");
    expect_refusal(1, "training tokens", NULL);
    CLI("train", "--out", "killed", "--data", "text", SMALL);
    expect_refusal(1, "there is a run already", NULL);
    assert_same_run("straight", "killed", 20); /* all those refusals touched nothing */
    assert_int_equal(CLI("train", "--out", "killed", "--data", "text", "--force", SMALL, "--steps", "2"), 0);
    values_of("killed/metrics.jsonl", "loss", cli.out, sizeof cli.out);
    assert_int_equal(cli_lines(cli.out), 2);
}

/* ---- Stopping --------------------------------------------------------------------------------------------------- */

/* Starts a long run, waits until it has made steps, sends the signal; returns the exit code. */
static int interrupt(const char *out, int sig) {
    char metrics[100];
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", out);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int null = open("/dev/null", O_RDWR);
        if (null < 0 || chdir(test_folder) != 0) _exit(99);
        dup2(null, 1);
        dup2(null, 2);
        execl(GMA_PROGRAM, "gma", "train", "--data", "text", "--out", out, RESUMED, "--steps", "1000000", "--eval-every",
              "0", (char *)NULL);
        _exit(98);
    }
    for (int i = 0; i < 6000; i++) { /* up to a minute */
        struct stat st;
        if (stat(in_folder(metrics), &st) == 0 && st.st_size > 500) break;
        const struct timespec wait = {0, 10000000};
        nanosleep(&wait, NULL);
    }
    int status;
    assert_int_equal(kill(child, sig), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void test_signals(void **state) {
    (void)state;
    assert_int_equal(interrupt("sigint", SIGINT), 130);
    assert_int_equal(interrupt("sigterm", SIGTERM), 143);
    size_t n;
    char *trainer = contents("sigint/last/trainer.json", &n), want[32];
    assert_non_null(trainer);
    const int step = (int)json_number_in(trainer, "step");
    free(trainer);
    assert_true(step >= 1);
    snprintf(want, sizeof want, "%d", step + 3);
    assert_int_equal(CLI("train", "--out", "sigint", "--resume", "--threads", "2", "--stop-at", want), 0);
    assert_int_equal(CLI("train", "--data", "text", "--out", "whole", RESUMED, "--steps", "1000000", "--eval-every", "0",
                         "--stop-at", want), 0);
    assert_same_file("sigint/last/model.safetensors", "whole/last/model.safetensors");
    assert_same_file("sigint/last/optimizer.safetensors", "whole/last/optimizer.safetensors");
}

/* K9: a loss or gradient that is not finite ends the run, and earlier checkpoints stay. */
static void test_not_finite(void **state) {
    (void)state;
    assert_int_equal(CLI("train", "--data", "text", "--out", "good", RESUMED, "--stop-at", "10"), 0);
    char command[400];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", in_folder("good"), in_folder("keep"));
    assert_int_equal(system(command), 0);
    CLI("train", "--out", "good", "--resume", "--lr", "1e30", "--steps", "1000", "--clip", "0");
    expect_refusal(1, "not finite; first bad tensor: ", NULL);
    assert_non_null(strstr(cli.err, "step 1"));
    assert_same_file("good/best/model.safetensors", "keep/best/model.safetensors");
    assert_same_file("good/last/model.safetensors", "keep/last/model.safetensors");
    assert_same_file("good/last/optimizer.safetensors", "keep/last/optimizer.safetensors");
    CLI("train", "--data", "text", "--out", "bad", SMALL, "--lr", "1e30", "--steps", "1000", "--eval-every", "0");
    expect_refusal(1, "first bad tensor: ", "bad");
}

/* ---- Wrong input ------------------------------------------------------------------------------------------------ */

static void test_lengths(void **state) {
    (void)state;
    static const char text[] = "abcdefghijklmnopq"; /* 17 */
    for (size_t n = 9; n <= 17; n += 4) {
        char out[16];
        snprintf(out, sizeof out, "len%d", (int)n);
        put_file("k2", text, n);
        assert_int_equal(CLI("train", "--data", "k2", "--out", out, SMALL, "--context", "8", "--batch", "1", "--steps", "2"),
                         0);
    }
    put_file("k2", text, 8);
    CLI("train", "--data", "k2", "--out", "short", SMALL, "--context", "8");
    expect_refusal(1, "needs at least 9", "short");
    CLI("eval", "len9", "--data", "k2");
    expect_refusal(1, "needs at least 9", NULL);
    put_file("k2", "", 0);
    CLI("train", "--data", "k2", "--out", "short", SMALL);
    expect_refusal(1, "k2: is empty", "short");
    put_file("k2", "abc", 3);
    CLI("train", "--data", "k2", "--tokens", "u16", "--vocab", "300", "--out", "short", SMALL);
    expect_refusal(1, "odd number of bytes", "short");
    const unsigned char ids[40] = {1, 0, 44, 1}; /* 1, 300 */
    put_file("k7", ids, sizeof ids);
    CLI("train", "--data", "k7", "--tokens", "u16", "--vocab", "300", "--context", "4", "--out", "short", SMALL);
    expect_refusal(1, "token id 300 at byte 2", "short");
    assert_int_equal(CLI("train", "--data", "k7", "--tokens", "u16", "--vocab", "301", "--out", "u16", SMALL, "--context",
                         "4", "--steps", "2"), 0);
    CLI("generate", "u16", "--length", "5");
    expect_refusal(1, "token ids, not text", NULL);
    assert_int_equal(CLI("eval", "u16", "--data", "k7"), 0);
}

static void test_usage(void **state) {
    (void)state;
    CLI("train", "--out", "x");
    expect_refusal(2, "--data FILE", "x");
    CLI("train", "--data", "text");
    expect_refusal(2, "--out DIR", NULL);
    CLI("train", "--data", "text", "--out", "x", "--layers", "0");
    expect_refusal(2, "--layers", "x");
    CLI("train", "--data", "text", "--out", "x", "--width", "100", "--heads", "3");
    expect_refusal(2, "heads (3) must divide width (100)", "x");
    CLI("train", "--data", "text", "--out", "x", "--kv-heads", "2", "--heads", "3");
    expect_refusal(2, "kv_heads (2) must divide heads (3)", "x");
    CLI("train", "--data", "text", "--out", "x", "--mixer", "magic");
    expect_refusal(2, "magic", "x");
    CLI("train", "--data", "text", "--out", "x", "--batch", "0");
    expect_refusal(2, "--batch", "x");
    CLI("train", "--data", "text", "--out", "x", "--lr", "fast");
    expect_refusal(2, "--lr", "x");
    CLI("train", "--data", "text", "--out", "x", "--preset", "huge");
    expect_refusal(2, "default, paper, demo, tiny", "x");
    CLI("train", "--data", "text", "--out", "x", "--nonsense");
    expect_refusal(2, "--nonsense", "x");
    CLI("train", "--data", "text", "--out", "x", "--vocab", "300");
    expect_refusal(2, "vocab must be 256", "x");
    CLI("train", "--data", "text", "--out", "x", "--resume", "--force");
    expect_refusal(2, "exclude each other", "x");
    CLI("train", "--out", "none", "--resume", "--force");
    expect_refusal(2, "exclude each other", "none");
    CLI("train", "--data", "nowhere", "--out", "x", SMALL);
    expect_refusal(1, "nowhere: cannot be opened", "x");
    CLI("train", "--data", "text", "--out", "x", "--config", "none.json");
    expect_refusal(1, "none.json", "x");
    CLI("train", "--data", "text", "--out", "text", SMALL);
    expect_refusal(1, "text", NULL);
    CLI("train", "--data", "text", "--out", "text/x", SMALL);
    expect_refusal(1, "text/x", NULL);
    CLI("eval", "nowhere", "--data", "text");
    expect_refusal(1, "no model here", NULL);
    CLI("eval", "nowhere");
    expect_refusal(2, "--data", NULL);
    CLI("eval", "--data", "text");
    expect_refusal(2, "MODEL", NULL);
    CLI("generate", "nowhere");
    expect_refusal(1, "no model here", NULL);
    CLI("generate", "nowhere", "--temperature", "-1");
    expect_refusal(2, "--temperature", NULL);
    CLI("generate", "nowhere", "--top-p", "0");
    expect_refusal(2, "--top-p", NULL);
    CLI("plot", "nowhere", "--out", "x.svg");
    expect_refusal(1, "nowhere", "x.svg");
    CLI("plot", "nowhere");
    expect_refusal(2, "--out", NULL);
    static const char *const verbs[] = {"train", "eval", "generate", "plot"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(CLI(verbs[i], "--help"), 0);
        assert_non_null(strstr(cli.out, "Usage: gma"));
    }
}

static void test_generate(void **state) {
    (void)state;
    static char first[5000];
    assert_int_equal(CLI("train", "--data", "text", "--out", "gen", SMALL, "--steps", "5"), 0);
    assert_int_equal(CLI("generate", "gen", "--prompt", "KING", "--length", "200", "--seed", "7"), 0);
    assert_memory_equal(cli.out, "KING", 4);
    strcpy(first, cli.out);
    assert_int_equal(CLI("generate", "gen", "--prompt", "KING", "--length", "200", "--seed", "7", "--threads", "1"), 0);
    assert_string_equal(cli.out, first);
    assert_int_equal(CLI("generate", "gen", "--prompt", "KING", "--length", "200", "--seed", "8"), 0);
    assert_string_not_equal(cli.out, first);
    assert_int_equal(CLI("generate", "gen", "--length", "0"), 0);
    assert_string_equal(cli.out, "\n");
    assert_int_equal(CLI("generate", "gen", "--prompt", "\xff\xc0\x80\xed\xa0\x80", "--length", "3", "--temperature", "0"),
                     0);
    assert_int_equal(CLI("generate", "gen", "--length", "20", "--json", "--top-k", "5", "--top-p", "0.9"), 0);
    const double bytes = json_number_in(cli.out, "state_bytes");
    assert_int_equal(json_number_in(cli.out, "tokens"), 21);
    assert_int_equal(CLI("generate", "gen", "--length", "3000", "--json"), 0); /* much longer than the context of 16 */
    assert_true(json_number_in(cli.out, "state_bytes") == bytes);
    /* Half a model is no model. */
    size_t n;
    char *model = contents("gen/best/model.safetensors", &n);
    put_file("gen/best/model.safetensors", model, n - 100);
    free(model);
    CLI("generate", "gen");
    expect_refusal(1, "model.safetensors", NULL);
}

/* ---- The folder of a run ---------------------------------------------------------------------------------------- */

static void test_force_spares_strangers(void **state) {
    (void)state;
    assert_int_equal(CLI("train", "--data", "text", "--out", "mine", SMALL, "--steps", "2"), 0);
    assert_false(exists("mine/.lock"));
    put_file("mine/last/notes", "keep", 4);
    put_file("mine/notes", "keep", 4);
    CLI("train", "--data", "text", "--out", "mine", SMALL, "--steps", "2", "--force");
    expect_refusal(1, "last/notes: is not of a run", NULL);
    CLI("train", "--out", "mine", "--steps", "4", "--resume");
    expect_refusal(1, "last/notes: is not of a run", NULL);
    assert_true(exists("mine/last/notes") && exists("mine/best/model.safetensors") && exists("mine/metrics.jsonl"));
    assert_int_equal(unlink(in_folder("mine/last/notes")), 0);
    /* Not through links either. */
    assert_int_equal(mkdir(in_folder("elsewhere"), 0700), 0);
    put_file("elsewhere/model.safetensors", "keep", 4);
    assert_int_equal(rename(in_folder("mine/best"), in_folder("moved")), 0);
    assert_int_equal(symlink("../elsewhere", in_folder("mine/best")), 0);
    CLI("train", "--data", "text", "--out", "mine", SMALL, "--steps", "2", "--force");
    expect_refusal(1, "best: is a symbolic link", NULL);
    assert_true(exists("elsewhere/model.safetensors") && exists("mine/last/model.safetensors"));
    assert_int_equal(unlink(in_folder("mine/best")), 0);
    assert_int_equal(CLI("train", "--data", "text", "--out", "mine", SMALL, "--steps", "2", "--force"), 0);
    assert_true(exists("mine/notes")); /* beside the run's files, not among them */
    /* A model's folder is no run's. */
    CLI("train", "--data", "text", "--out", "mine/best", SMALL, "--steps", "2", "--force");
    expect_refusal(1, "is a model, not a run", NULL);
}

static void test_one_process_a_folder(void **state) {
    (void)state;
    assert_int_equal(CLI("train", "--data", "text", "--out", "locked", SMALL, "--steps", "2"), 0);
    const int fd = open(in_folder("locked/.lock"), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CLI("train", "--out", "locked", "--steps", "4", "--resume");
    expect_refusal(1, "locked/: another process is training", NULL);
    CLI("train", "--data", "text", "--out", "locked", SMALL, "--force");
    expect_refusal(1, "locked/: another process is training", NULL);
    assert_int_equal(CLI("eval", "locked", "--data", "text", "--windows", "1"), 0);
    close(fd); /* as the end of that process does; the name may stay */
    assert_int_equal(CLI("train", "--out", "locked", "--steps", "4", "--resume"), 0);
}

static void test_resume_is_the_same_run(void **state) {
    (void)state;
    assert_int_equal(CLI("train", "--data", "text", "--out", "same", SMALL, "--steps", "4", "--stop-at", "2"), 0);
    size_t n;
    char *text = contents("text", &n);
    text[100] ^= 1;
    put_file("other", text, n);
    free(text);
    CLI("train", "--data", "other", "--out", "same", "--resume");
    expect_refusal(1, "other: its training tokens are not those", NULL);
    char *good = contents("same/last/trainer.json", &n), *bad = strdup(good);
    memcpy(strstr(bad, "\"val_step\": "), "\"val_stop\"", 10);
    put_file("same/last/trainer.json", bad, n);
    CLI("train", "--out", "same", "--resume");
    expect_refusal(1, "trainer.json: val_step is missing", NULL);
    put_file("same/last/trainer.json", good, n);
    free(good);
    free(bad);
    assert_int_equal(rename(in_folder("same/config.json"), in_folder("config")), 0);
    CLI("train", "--data", "text", "--out", "same", "--resume");
    expect_refusal(1, "same/config.json: the settings", NULL);
    /* Killed before the first checkpoint: both ways of going on say the same. */
    assert_int_equal(mkdir(in_folder("early"), 0700), 0);
    assert_int_equal(rename(in_folder("config"), in_folder("early/config.json")), 0);
    CLI("train", "--data", "text", "--out", "early", SMALL);
    expect_refusal(1, "no checkpoint, force starts it anew", NULL);
    CLI("train", "--data", "text", "--out", "early", "--resume");
    expect_refusal(1, "no checkpoint to resume from; force starts", NULL);
}

static void test_odd_places(void **state) {
    (void)state;
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    CLI("train", "--data", "fifo", "--out", "x", SMALL);
    expect_refusal(1, "fifo: is not a regular file", "x");
    CLI("train", "--data", "text", "--config", "fifo", "--out", "x", SMALL);
    expect_refusal(1, "fifo: is not a regular file", "x");
    CLI("eval", "", "--data", "text");
    expect_refusal(1, "no model here", NULL);
    CLI("generate", ".");
    expect_refusal(1, "no model here", NULL);
    CLI("eval", "no\nwhere\x1b[m", "--data", "text");
    expect_refusal(1, "no\\x0awhere\\x1b[m", NULL);
    assert_int_equal(CLI("train", "--data", "text", "--out", "dots", SMALL, "--steps", "2"), 0);
    assert_int_equal(CLI("generate", "dots/best/..", "--length", "2"), 0);
    assert_int_equal(CLI("generate", "dots/.", "--length", "2"), 0);
    cli_run_to("/dev/full", (const char *const[]){"generate", "dots", "--length", "9", NULL});
    expect_refusal(1, "could not be written", NULL);
    assert_int_equal(unlink(in_folder("dots/best/model.safetensors")), 0);
    CLI("generate", "dots");
    expect_refusal(1, "dots/best: its model.safetensors is missing", NULL);
}

/* Losses beyond 709, where the perplexity has no number; tables of bytes for a model of ids. */
static void test_huge_loss(void **state) {
    (void)state;
    unsigned char ids[400];
    for (int i = 0; i < 400; i++) ids[i] = i % 2 ? 0 : (unsigned char)(i < 320 ? i * i % 7 : 100 + i % 50);
    put_file("ids", ids, sizeof ids);
    assert_int_equal(CLI("train", "--data", "ids", "--tokens", "u16", "--vocab", "256", "--out", "huge", SMALL, "--steps",
                         "2", "--lr", "80", "--clip", "0", "--warmup", "0", "--val-fraction", "0.2", "--no-logit-scale",
                         "--no-forget-gate", "--no-output-gate", "--conv", "0"), 0);
    size_t n;
    char *metrics = contents("huge/metrics.jsonl", &n);
    assert_non_null(strstr(metrics, "\"perplexity\": null"));
    free(metrics);
    assert_int_equal(CLI("eval", "huge", "--data", "ids", "--json"), 0);
    assert_non_null(strstr(cli.out, "\"perplexity\": null"));
    assert_true(json_number_in(cli.out, "loss") > 709);
    CLI("eval", "huge", "--data", "ids", "--split", "val", "--val-fraction", "0.2", "--beat-baselines");
    expect_refusal(1, "--baselines are tables of bytes", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_learns), cmocka_unit_test(test_resume), cmocka_unit_test(test_signals),
        cmocka_unit_test(test_not_finite),      cmocka_unit_test(test_lengths), cmocka_unit_test(test_usage),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_force_spares_strangers),
        cmocka_unit_test(test_one_process_a_folder),
        cmocka_unit_test(test_resume_is_the_same_run),
        cmocka_unit_test(test_odd_places),
        cmocka_unit_test(test_huge_loss),
    };
    return cmocka_run_group_tests(tests, make_text, remove_folder);
}
