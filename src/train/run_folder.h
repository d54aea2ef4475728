/* The folder of a run: config.json, metrics.jsonl, last/, best/, events.out.tfevents.gma (with inspect_every), and while a process works in it .lock. */
#ifndef GMA_TRAIN_RUN_FOLDER_H
#define GMA_TRAIN_RUN_FOLDER_H

#include <stdio.h>

#include "models/model.h"
#include "train/optimizer.h"
#include "train/settings.h"

/* What a resumed run needs beside the parameters and the optimizer; the random numbers are functions of seed and step. */
typedef struct gmal_progress {
    int64_t step; /* finished */
    double loss; /* of the last step; NaN where there is none, also below */
    double val_loss;
    int64_t val_step; /* when val_loss was measured */
    double best_val_loss;
    double val_accuracy; /* of the same validation */
    int64_t tokens; /* trained on; -1 when the checkpoint knows it not */
    int64_t train_tokens; /* of the data: another file is noticed */
    uint64_t train_checksum; /* the same for one of equal length; 0 when the checkpoint knows none */
} gmal_progress;

typedef struct gmal_run_folder {
    char *path, *last, *best, *config, *metrics_path, *events_path, *lock_path;
    FILE *metrics;
    int lock; /* descriptor, -1 */
    int made; /* we created the folder */
    int started; /* config.json and the metrics are ours */
    int saved; /* it holds a checkpoint */
} gmal_run_folder;

/* Paths only; nothing is touched. */
gma_status gmal_run_open(const char *path, gmal_run_folder *run);
void gmal_run_close(gmal_run_folder *run);

/* Take the folder for this process, until close or the end of the process however it ends. make: create it where it is
 * missing. The error says when another process has it. */
gma_status gmal_run_lock(gmal_run_folder *run, int make);

/* What is there, 1 = yes: a run or part of one; a checkpoint. */
int gmal_run_exists(const gmal_run_folder *run);
int gmal_run_has_checkpoint(const gmal_run_folder *run);

/* An error naming the first thing that a run would replace or remove and that gma did not write: a link, a strange file in
 * a checkpoint folder. Nothing is touched. */
gma_status gmal_run_check(const gmal_run_folder *run);

/* Write config.json and open the metrics, in a locked folder. force: remove the old run, which gmal_run_check has let
 * pass. keep_until >= 0: a resumed run, whose metrics past that step are cut off; -1: a new one. */
gma_status gmal_run_start(gmal_run_folder *run, const gma_settings *s, int force, int64_t keep_until);

/* After a failure: remove what lock and start made, if no checkpoint came of it. */
void gmal_run_clean(gmal_run_folder *run);

/* A JSON number, or null where JSON has none (NaN, infinity). */
json_t *gmal_number(double x);

/* One line of metrics.jsonl; takes the object over. */
gma_status gmal_run_log(gmal_run_folder *run, json_t *line);

gma_status gmal_run_save_last(gmal_run_folder *run, const gma_lm *lm, const gmal_adamw *opt, const gmal_progress *p);
gma_status gmal_run_save_best(gmal_run_folder *run, const gma_lm *lm, gma_dtype dtype);

/* last/ back into memory. config of the model on disk must equal `settings->model`: the error names the difference. */
gma_status gmal_run_load_last(gmal_run_folder *run, const gma_settings *settings, gma_lm **lm, gmal_adamw *opt,
                              gmal_progress *p);

#endif
