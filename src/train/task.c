/* Which task the settings ask for. */
#include "train/task.h"

#include <stdlib.h>
#include <string.h>

#include "data/token_file.h"

/* The next token of a text, unless the data is sequences. */
static gma_status choose(const gma_settings *s, const gmal_task_ops **ops) {
    gma_token_info info = {.layout = GMA_TOKEN_STREAM};
    *ops = &gmal_task_stream;
    if (s->model.task == GMA_LM_TASK_CLASSIFY) *ops = &gmal_task_sequences;
    if (s->model.task == GMA_LM_TASK_SEQ2SEQ) {
        *ops = &gmal_task_pairs;
        return GMA_OK;
    }
    if (!gma_token_file_is(s->data)) return GMA_OK;
    const gma_status status = gmal_token_file_peek(s->data, &info);
    if (status == GMA_OK && info.layout != GMA_TOKEN_STREAM) *ops = &gmal_task_sequences;
    return status;
}

gma_status gmal_task_open(const gma_settings *s, gmal_task *task) {
    memset(task, 0, sizeof *task);
    if (!s->data || !*s->data) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "data: no file was given");
    const gma_status status = choose(s, &task->ops);
    if (status != GMA_OK) {
        task->ops = NULL;
        return status;
    }
    task->s = s;
    task->state = calloc(1, task->ops->state_size);
    if (!task->state) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a task");
    return task->ops->open(task);
}

void gmal_task_close(gmal_task *task) {
    if (task->ops && task->state) task->ops->close(task);
    free(task->state);
    memset(task, 0, sizeof *task);
}
