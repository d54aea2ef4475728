/* The training loop. Everything is checked and allocated before the run's folder is touched; the loop allocates nothing
 * but lines of metrics. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/token_file.h"
#include "layers/pages.h"
#include "layers/rng.h"
#include "layers/threads.h"
#include "layers/try.h"
#include "train/evaluate.h"
#include "train/look.h"
#include "train/mixture.h"
#include "train/run_folder.h"
#include "train/task.h"

typedef struct trainer {
    gma_settings *s;
    gmal_task task;
    gma_lm *lm;
    gmal_adamw opt;
    gmal_look look;
    float *grads;
    gmal_run_folder run;
    gmal_progress p;
    int64_t first, last; /* steps this process starts from and stops at */
    int threads;
    gma_observer observer;
    void *context;
    int stop; /* the observer asked for it */
    double started, step_seconds, step_tokens; /* clock at the start; of the last steps, the older ones fading */
    int64_t timed_steps;
    double rate; /* tokens per second */
    double grad_norm, lr;
    double whole; /* part of the sequences without a mistake, in the newest validation */
} trainer;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int has_eval(const trainer *t) { return t->task.val_tokens > 0; }

static void tell(trainer *t, gma_train_event event, const char *text) {
    if (!t->observer) return;
    const gma_train_progress p = {
        .struct_size = sizeof p,
        .event = event,
        .step = t->p.step,
        .first_step = t->first,
        .last_step = t->last,
        .parameters = gma_lm_parameter_count(t->lm),
        .train_tokens = t->task.train_tokens,
        .val_tokens = t->task.val_tokens,
        .tokens_seen = t->p.tokens,
        .loss = t->p.loss,
        .grad_norm = t->grad_norm,
        .lr = t->lr,
        .tokens_per_second = t->rate,
        .seconds = now() - t->started,
        .val_loss = t->p.val_loss,
        .best_val_loss = t->p.best_val_loss,
        .val_accuracy = t->p.val_accuracy,
        .val_sequence_accuracy = t->whole,
        .text = text,
    };
    if (t->observer(t->context, &p) != 0) t->stop = 1;
}

/* ---- Setting up ----------------------------------------------------------------------------------------------- */

/* The model keeps the tokenizer of its data; one that is resumed has it, and it must be the same. */
static gma_status give_tokenizer(trainer *t) {
    const int32_t kind = t->s->model.tokenizer;
    if (kind != GMA_LM_TOKENIZER_WORDS && kind != GMA_LM_TOKENIZER_BPE) return GMA_OK;
    const gma_tokenizer *theirs = gma_token_file_tokenizer(t->task.token_file), *ours = gma_lm_tokenizer_of(t->lm);
    if (!ours) return gma_lm_set_tokenizer(t->lm, gmal_token_file_release_tokenizer(t->task.token_file));
    if (gma_tokenizer_hash(ours) == gma_tokenizer_hash(theirs)) return GMA_OK;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: was made by another tokenizer than that of the run to resume", t->s->data);
}

static gma_status make_model(trainer *t) {
    const gma_settings *s = t->s;
    t->p = (gmal_progress){.loss = NAN, .val_loss = NAN, .best_val_loss = NAN, .val_accuracy = NAN, .val_step = -1,
                           .train_tokens = t->task.train_tokens,
                           .train_checksum = t->task.train_checksum};
    if (s->resume && !gmal_run_has_checkpoint(&t->run))
        return gma_fail(GMA_ERR_IO, "%s: there is no checkpoint to resume from%s", t->run.last,
                        gmal_run_exists(&t->run) ? "; force starts the run anew" : "");
    TRY(gmal_run_lock(&t->run, !s->resume));
    if (!s->resume) {
        if (!s->force && gmal_run_exists(&t->run))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: there is a run already; %s", s->out,
                            gmal_run_has_checkpoint(&t->run) ? "--resume goes on with it, --force replaces it"
                                                             : "it saved no checkpoint, force starts it anew");
        TRY(gmal_run_check(&t->run));
        TRY(gma_lm_create(&s->model, gmal_key((uint64_t)s->seed, 0), &t->lm));
        TRY(give_tokenizer(t));
        return gmal_adamw_create(t->lm->layout, &t->opt);
    }
    const int64_t tokens = t->p.train_tokens;
    const uint64_t checksum = t->p.train_checksum;
    TRY(gmal_run_check(&t->run));
    TRY(gmal_run_load_last(&t->run, s, &t->lm, &t->opt, &t->p));
    if (t->p.tokens < 0) t->p.tokens = t->p.step * t->task.ops->amount(&t->task, 0, s->batch * s->accumulate).tokens;
    TRY(give_tokenizer(t));
    if (t->p.train_tokens != tokens)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: %lld training tokens, the run to resume had %lld", s->data,
                        (long long)tokens, (long long)t->p.train_tokens);
    if (t->p.train_checksum && t->p.train_checksum != checksum)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: its training tokens are not those of the run to resume", s->data);
    t->p.train_checksum = checksum;
    return GMA_OK;
}

static gma_status set_up(trainer *t) {
    const gma_settings *s = t->s;
    if (!s->data || !*s->data) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "data: no file was given");
    if (!s->out || !*s->out) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "out: no folder was given");
    TRY(gmal_task_open(s, &t->task));
    TRY(gmal_run_open(s->out, &t->run));
    TRY(make_model(t));
    t->first = t->p.step;
    t->last = s->stop_at && s->stop_at < s->steps ? s->stop_at : s->steps;
    const size_t bytes = ((size_t)t->lm->layout->total * sizeof(float) + 63) / 64 * 64;
    t->grads = gmal_pages(bytes);
    if (!t->grads) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for gradients");
    TRY(t->task.ops->start(&t->task, t->lm->layout, t->threads));
    return gmal_look_create(t->lm, t->task.text, s->inspect_every, s->batch, t->first, t->threads, &t->look);
}

static void tear_down(trainer *t) {
    gmal_run_close(&t->run);
    gmal_look_destroy(&t->look);
    gmal_task_close(&t->task);
    gmal_adamw_destroy(&t->opt);
    gma_lm_destroy(t->lm);
    gma_settings_destroy(t->s);
    free(t->grads);
}

/* ---- A step --------------------------------------------------------------------------------------------------- */

/* Which tensor went bad first: a parameter (then everything follows from it), else a gradient. */
static gma_status not_finite(const trainer *t, const char *what) {
    const char *param = gmal_first_bad_tensor(t->lm->layout, t->lm->values);
    const char *grad = param ? NULL : gmal_first_bad_tensor(t->lm->layout, t->grads);
    const long long step = (long long)t->p.step + 1;
    if (param) return gma_fail(GMA_ERR_NON_FINITE, "step %lld: %s is not finite; first bad tensor: %s", step, what, param);
    if (grad)
        return gma_fail(GMA_ERR_NON_FINITE, "step %lld: %s is not finite; first bad tensor: gradient of %s", step, what,
                        grad);
    return gma_fail(GMA_ERR_NON_FINITE, "step %lld: %s is not finite; first bad tensor: the loss itself", step, what);
}

/* The same where the network itself found it; its line names the tensor. */
static gma_status diverged(const trainer *t, const char *what) {
    char found[256];
    snprintf(found, sizeof found, "%s", gma_last_error());
    const char *param = gmal_first_bad_tensor(t->lm->layout, t->lm->values);
    return gma_fail(GMA_ERR_NON_FINITE, "step %lld: %s is not finite; first bad tensor: %s", (long long)t->p.step + 1,
                    what, param ? param : found);
}

static gma_status one_step(trainer *t, int64_t *tokens) {
    const gma_settings *s = t->s;
    gmal_task *task = &t->task;
    const int64_t samples = s->batch * s->accumulate;
    const gmal_amount amount = task->ops->amount(task, t->p.step * samples, samples);
    const double targets = (double)amount.targets; /* of the whole step: passes weigh by their targets */
    double total = 0;
    *tokens = amount.tokens;
    if (s->redraw_every && t->p.step && t->p.step % s->redraw_every == 0)
        TRY(gmal_layout_redraw(t->lm->layout, gmal_key(gmal_key((uint64_t)s->seed, 3), (uint64_t)t->p.step), t->lm->values,
                               NULL));
    memset(t->grads, 0, (size_t)t->lm->layout->total * sizeof *t->grads);
    for (int64_t a = 0; a < s->accumulate; a++) {
        const int64_t number = t->p.step * s->accumulate + a;
        const uint64_t key = gmal_key(gmal_key((uint64_t)s->seed, 2), (uint64_t)number);
        double sum;
        const gma_status status = task->ops->pass(task, number * s->batch, t->lm->values, t->grads, 1 / targets,
                                                  key ? key : 1, &sum);
        if (status == GMA_ERR_NON_FINITE) return diverged(t, "the network");
        TRY(status);
        total += sum;
    }
    gmal_mixture_gradients(s, t->lm->layout, t->grads);
    t->grad_norm = gmal_grad_norm(&t->opt, t->grads, t->threads);
    if (!isfinite(total)) return not_finite(t, "the loss");
    if (!isfinite(t->grad_norm)) return not_finite(t, "the gradient");
    t->lr = gmal_learning_rate(s, t->p.step);
    const gmal_adamw_step step = {
        .step = t->p.step + 1,
        .lr = t->lr,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->adam_eps,
        .weight_decay = s->weight_decay,
        .grad_scale = s->clip > 0 && t->grad_norm > s->clip ? s->clip / t->grad_norm : 1,
    };
    gmal_adamw_apply(&t->opt, t->lm->values, t->grads, &step, t->threads);
    t->p.loss = total / targets;
    t->p.tokens += amount.tokens;
    t->p.step++;
    return GMA_OK;
}

/* ---- Between steps -------------------------------------------------------------------------------------------- */

static gma_status log_step(trainer *t) {
    return gmal_run_log(&t->run, json_pack("{s:I, s:f, s:f, s:f, s:I, s:o, s:f}", "step", (json_int_t)t->p.step,
                                           "loss", t->p.loss, "lr", t->lr, "grad_norm", t->grad_norm, "tokens",
                                           (json_int_t)t->p.tokens, "tokens_per_second", gmal_number(t->rate),
                                           "seconds", now() - t->started));
}

static int ask_stop(void *context) {
    trainer *t = context;
    tell(t, GMA_TRAIN_EVAL, "running");
    return t->stop;
}

static gma_status check_parameters(const trainer *t) {
    const char *bad = gmal_first_bad_tensor(t->lm->layout, t->lm->values);
    if (!bad) return GMA_OK;
    return gma_fail(GMA_ERR_NON_FINITE, "step %lld: the update is not finite; first bad tensor: %s",
                    (long long)t->p.step, bad);
}

static gma_status save_last(trainer *t) {
    TRY(check_parameters(t));
    TRY(gmal_run_save_last(&t->run, t->lm, &t->opt, &t->p));
    tell(t, GMA_TRAIN_SAVE, t->run.last);
    return GMA_OK;
}

/* Beyond a loss of 709 the perplexity has no number. */
static gma_status log_validation(trainer *t, const gmal_score *score) {
    json_t *line = json_pack("{s:I, s:f, s:f, s:o}", "step", (json_int_t)t->p.step, "val_loss", score->loss, "bits_per_token",
                             score->loss / log(2.0), "perplexity", gmal_number(exp(score->loss)));
    if (line && score->right >= 0) {
        double low, high;
        gmal_wilson(score->right, score->targets, &low, &high);
        json_object_set_new(line, "accuracy", json_real(t->p.val_accuracy));
        json_object_set_new(line, "accuracy_low", json_real(low));
        json_object_set_new(line, "accuracy_high", json_real(high));
        json_object_set_new(line, "right", json_integer(score->right));
        json_object_set_new(line, "targets", json_integer(score->targets));
        if (score->sequences) {
            json_object_set_new(line, "sequence_accuracy", json_real(t->whole));
            json_object_set_new(line, "sequences", json_integer(score->sequences));
        }
    }
    return gmal_run_log(&t->run, line);
}

static gma_status validate(trainer *t) {
    gmal_score score;
    TRY(check_parameters(t));
    const gma_status status = t->task.ops->evaluate(&t->task, t->lm->values, (gmal_stop){ask_stop, t}, &score);
    if (status == GMA_ERR_INTERRUPTED) return GMA_OK; /* the loop sees t->stop; this validation is dropped */
    if (status == GMA_ERR_NON_FINITE) return diverged(t, "the network");
    TRY(status);
    if (!isfinite(score.loss))
        return gma_fail(GMA_ERR_NON_FINITE, "step %lld: the validation loss is not finite", (long long)t->p.step);
    t->p.val_loss = score.loss;
    t->p.val_accuracy = score.right < 0 ? (double)NAN : (double)score.right / (double)score.targets;
    t->whole = score.sequences ? (double)score.whole / (double)score.sequences : (double)NAN;
    t->p.val_step = t->p.step;
    TRY(log_validation(t, &score));
    if (!(score.loss >= t->p.best_val_loss)) { /* also when there is none yet */
        t->p.best_val_loss = score.loss;
        TRY(gmal_run_save_best(&t->run, t->lm, t->s->store ? GMA_BF16 : GMA_F32));
    }
    tell(t, GMA_TRAIN_EVAL, NULL);
    return GMA_OK;
}

static int due(int64_t every, int64_t step) { return every && step % every == 0; }

/* A run stopped while it validated makes up for it when it is resumed. */
static int owes_validation(const trainer *t) {
    return has_eval(t) && t->first && (due(t->s->eval_every, t->first) || t->first == t->s->steps) &&
           t->p.val_step != t->first;
}

static gma_status loop(trainer *t) {
    const gma_settings *s = t->s;
    const int64_t save_every = s->save_every ? s->save_every : s->eval_every;
    if (t->p.step == 0) TRY(gmal_mixture_start(s, &t->task, t->lm->layout, t->lm->values, t->grads, t->threads));
    if (owes_validation(t)) {
        TRY(validate(t));
        if (t->p.val_step == t->first) TRY(save_last(t));
    }
    while (t->p.step < t->last && !t->stop) {
        const double begin = now();
        int64_t tokens;
        TRY(one_step(t, &tokens));
        const double took = now() - begin, old = t->timed_steps ? 0.8 : 0;
        t->step_seconds = old * t->step_seconds + (1 - old) * took;
        t->step_tokens = old * t->step_tokens + (1 - old) * (double)tokens;
        t->timed_steps++;
        t->rate = t->step_tokens / t->step_seconds;
        TRY(log_step(t));
        TRY(gmal_look_at(&t->look, &t->run, &t->p));
        tell(t, GMA_TRAIN_STEP, NULL);
        const int end = t->p.step == s->steps;
        if (has_eval(t) && !t->stop && (due(s->eval_every, t->p.step) || end)) TRY(validate(t));
        if (due(save_every, t->p.step) || t->p.step == t->last || t->stop) TRY(save_last(t));
    }
    if (t->stop && !t->run.saved)
        return gma_fail(GMA_ERR_INTERRUPTED, "stopped before the first step; nothing was saved");
    return t->stop ? gma_fail(GMA_ERR_INTERRUPTED, "stopped after step %lld of %lld; resume goes on from there",
                              (long long)t->p.step, (long long)s->steps)
                   : GMA_OK;
}

static gma_status run(trainer *t) {
    TRY(set_up(t));
    if (t->s->resume && t->first >= t->last && !(t->first == t->last && owes_validation(t)))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: already at step %lld of %lld; a larger number of steps goes on",
                        t->s->out, (long long)t->first, (long long)t->last);
    t->started = now();
    tell(t, GMA_TRAIN_START, NULL);
    if (t->stop) return gma_fail(GMA_ERR_INTERRUPTED, "stopped before training began; %s: nothing there was changed", t->s->out);
    const gma_status status = gmal_run_start(&t->run, t->s, t->s->force, t->s->resume ? t->first : -1);
    if (status == GMA_OK) {
        if (*t->task.note) tell(t, GMA_TRAIN_NOTE, t->task.note);
        return loop(t);
    }
    return status;
}

gma_status gma_train(const gma_settings *settings, gma_observer observer, void *context, gma_train_result *result) {
    trainer t;
    memset(&t, 0, sizeof t);
    t.run.lock = -1;
    if (!settings) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "settings is NULL");
    if (result && result->struct_size != sizeof *result)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "result->struct_size is not set");
    t.whole = NAN;
    t.observer = observer;
    t.context = context;
    gma_status s = gmal_settings_copy(settings, &t.s);
    if (s == GMA_OK) s = gma_settings_resolve(t.s);
    if (s == GMA_OK) {
        const gmal_threads threads = gmal_threads_enter((int)t.s->threads);
        t.threads = threads.now;
        s = run(&t);
        if (s != GMA_OK) gmal_run_clean(&t.run);
        gmal_threads_leave(threads);
    }
    if (result) {
        result->steps = t.p.step;
        result->loss = t.p.loss;
        result->val_loss = t.p.val_loss;
        result->best_val_loss = t.p.best_val_loss;
        result->val_accuracy = t.p.val_accuracy;
        result->seconds = t.started > 0 ? now() - t.started : 0;
    }
    tear_down(&t);
    return s;
}
