/* The tensors of `gma op`: found in the file by the slot table of a mixer, checked, loaded, and made for the results.
 * Nothing here knows a mixer; a new one brings its own table. */
#ifndef GMA_CLI_OP_FILE_H
#define GMA_CLI_OP_FILE_H

#include "gma/gma.h"
#include "gma/io.h"

enum { OP_MAX_TENSORS = 96 };

/* How values are held: F64 for the naive code, else F32, with BF16 where asked for and the slot takes it. */
typedef struct op_types {
    int naive;
    int bf16;
} op_types;

typedef struct op_tensor {
    int32_t slot; /* a gma_slot or GMA_GRAD of one; 0 for results that are no argument */
    const char *name;
    gma_tensor tensor; /* memory of its own */
    int written; /* goes into the output file */
} op_tensor;

typedef struct op_file {
    gma_safetensors *file;
    const char *path;
    op_types types;
    const gma_slot_info *slots;
    int slot_count;
    int64_t extent[128]; /* by the letter of gma_slot_info.dims; -1 = not known */
    const char *setter[128]; /* the tensor that set it */
    gma_mixer_desc desc;
    op_tensor tensor[OP_MAX_TENSORS];
    int count;
} op_file;

/* Open `path`, find and check every tensor the mixer knows, fill in f->desc (shape, causal, eps), load the inputs;
 * with `backward` the upstream gradients too. Close it also after a failure. */
gma_status op_open(op_file *f, const char *path, gma_mixer_kind kind, op_types types, int backward);
void op_close(op_file *f);

/* The row of a loaded or made tensor, NULL if there is none. */
const op_tensor *op_find(const op_file *f, int32_t slot);

/* Make the outputs of forward, or the gradients of the inputs that are there and have one. */
gma_status op_make_outputs(op_file *f);
gma_status op_make_gradients(op_file *f);

/* Make one more result, with these dims. */
gma_status op_make(op_file *f, int32_t slot, const char *name, const char *dims, gma_dtype dtype);

gma_status op_save(const op_file *f, const char *path, const gma_metadata_pair *metadata, int64_t metadata_count);

#endif
