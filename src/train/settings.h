/* The settings of a training run: one struct, one table of fields (train/settings.c), presets (train/presets.c). */
#ifndef GMA_TRAIN_SETTINGS_H
#define GMA_TRAIN_SETTINGS_H

#include "gma/train.h"
#include "models/fields.h"

enum { GMAL_MIXTURE_DRAWN = 0, GMAL_MIXTURE_KMEANS = 1 };
enum { GMAL_SCHEDULE_COSINE = 0, GMAL_SCHEDULE_LINEAR = 1, GMAL_SCHEDULE_CONSTANT = 2 };
enum { GMAL_TOKENS_BYTES = 0, GMAL_TOKENS_U16 = 1, GMAL_TOKENS_FILE = 2 };

struct gma_settings {
    gma_lm_config model;
    int32_t components_given; /* by the user, not by a preset */
    /* data */
    char *data, *val_data;
    int32_t tokens; /* GMAL_TOKENS_* */
    double val_fraction;
    int64_t symbols, min_length;
    /* training */
    int64_t steps, stop_at, batch, accumulate, warmup, seed;
    int64_t redraw_every;
    int32_t schedule; /* GMAL_SCHEDULE_* */
    int32_t mixture_init, freeze_mixture, tied_variances; /* GMAL_MIXTURE_*; see train/mixture.h */
    double mu_std;
    double lr, min_lr_ratio, weight_decay, beta1, beta2, adam_eps, clip;
    /* run */
    char *out;
    int32_t resume, force, store, recompute;
    int64_t eval_every, eval_windows, save_every, log_every, inspect_every, threads;
};

gma_status gmal_settings_copy(const gma_settings *from, gma_settings **to);

/* All settings that describe the run (not where or how this one process runs it), for config.json. */
json_t *gmal_settings_to_json(const gma_settings *s);

/* Values of a preset over those present. */
gma_status gmal_settings_apply_preset(gma_settings *s, const char *name);

/* Tokens, vocabulary and classes from the data, where it tells them; or what of the settings does not go with it. */
gma_status gmal_settings_take_data(gma_settings *s);

/* The first model setting in which two configurations differ, other than dropout; NULL when they agree. */
const gmal_field *gmal_settings_model_difference(const gma_lm_config *a, const gma_lm_config *b);

#endif
