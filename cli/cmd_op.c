/* gma op - one mixer on the tensors of a file. */
#include <stdlib.h>
#include <string.h>

#include "cli/op_file.h"
#include "cli/options.h"

typedef struct op_options {
    const char *mixer, *isa;
    int bf16, backward, responsibilities, naive;
    int64_t threads;
} op_options;

/* 64-byte aligned; NULL for 0 bytes is fine. */
static gma_status allocate(size_t bytes, void **out) {
    *out = NULL;
    if (bytes == 0) {
        return GMA_OK;
    }
    if (bytes > SIZE_MAX - 64 || (*out = aligned_alloc(64, (bytes + 63) / 64 * 64)) == NULL) {
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a work space of %zu bytes", bytes);
    }
    return GMA_OK;
}

/* The arguments of a call: everything loaded or made so far, but not the outgoing state, which backward does not take. */
static int collect(const op_file *f, int backward, gma_arg *args) {
    int count = 0;
    for (int i = 0; i < f->count; i++) {
        int32_t slot = f->tensor[i].slot;
        int is_grad = (slot & GMA_GRAD_BIT) != 0;
        int is_out_state = slot == GMA_OUT_S || slot == GMA_OUT_Z || slot == GMA_OUT_H;
        if (slot != 0 && (backward ? !is_out_state : !is_grad)) {
            args[count++] = (gma_arg){slot, f->tensor[i].tensor};
        }
    }
    return count;
}

static gma_status run_naive(op_file *f, const gma_mixer *mixer, int backward) {
    gma_arg args[OP_MAX_TENSORS];
    gma_status status = gma_mixer_naive_forward(mixer, args, collect(f, 0, args));
    if (status == GMA_OK && backward) {
        status = op_make_gradients(f);
    }
    if (status == GMA_OK && backward) {
        status = gma_mixer_naive_backward(mixer, args, collect(f, 1, args));
    }
    return status;
}

static gma_status run_fast(op_file *f, const gma_mixer *mixer, int backward, int threads) {
    gma_arg args[OP_MAX_TENSORS];
    gma_mixer_size size = {.struct_size = sizeof size};
    gma_status status = gma_mixer_sizes(mixer, threads, &size);
    if (status != GMA_OK) {
        return status;
    }
    size_t scratch =
        backward && size.backward_scratch > size.forward_scratch ? size.backward_scratch : size.forward_scratch;
    gma_exec exec = {.struct_size = sizeof exec, .threads = threads, .scratch_bytes = scratch,
                     .saved_bytes = backward ? size.saved : 0};
    status = allocate(exec.scratch_bytes, &exec.scratch);
    if (status == GMA_OK) {
        status = allocate(exec.saved_bytes, &exec.saved);
    }
    if (status == GMA_OK) {
        status = gma_mixer_forward(mixer, args, collect(f, 0, args), &exec);
    }
    if (status == GMA_OK && backward) {
        status = op_make_gradients(f);
    }
    if (status == GMA_OK && backward) {
        status = gma_mixer_backward(mixer, args, collect(f, 1, args), &exec);
    }
    free(exec.saved);
    free(exec.scratch);
    return status;
}

/* A masked key writes nothing: its row is 0. x (B,H,Nk,K), mask (B,Nk). */
static void mask_rows(const gma_tensor *x, const gma_tensor *mask) {
    const size_t row = (size_t)x->shape[3] * gma_dtype_size((gma_dtype)x->dtype);
    const unsigned char *visible = mask->data;
    char *at = x->data;
    for (int64_t b = 0; b < x->shape[0]; b++) {
        for (int64_t h = 0; h < x->shape[1]; h++) {
            for (int64_t j = 0; j < x->shape[2]; j++, at += row) {
                if (!visible[b * x->shape[2] + j]) {
                    memset(at, 0, row);
                }
            }
        }
    }
}

static gma_status responsibilities(op_file *f, const op_options *o, gma_isa isa) {
    static const struct {
        int32_t slot;
        const char *name, *dims;
    } of[] = {{GMA_Q, "gamma_q", "BhqK"}, {GMA_K, "gamma_k", "BHkK"}};
    const op_tensor *mu = op_find(f, GMA_MU), *omega = op_find(f, GMA_OMEGA), *alpha = op_find(f, GMA_ALPHA);
    const op_tensor *scale = op_find(f, GMA_LOGIT_SCALE), *mask = op_find(f, GMA_KEY_MASK);
    gma_status status = GMA_OK;
    for (int i = 0; i < 2 && status == GMA_OK; i++) {
        const op_tensor *x = op_find(f, of[i].slot);
        status = op_make(f, 0, of[i].name, of[i].dims, o->naive ? GMA_F64 : GMA_F32);
        if (status == GMA_OK) {
            status = gma_responsibilities(&x->tensor, &mu->tensor, &omega->tensor, &alpha->tensor,
                                          scale != NULL ? &scale->tensor : NULL, &f->tensor[f->count - 1].tensor,
                                          f->desc.eps_sigma, isa, o->naive, (int)o->threads);
        }
        if (status == GMA_OK && of[i].slot == GMA_K && mask != NULL) {
            mask_rows(&f->tensor[f->count - 1].tensor, &mask->tensor);
        }
    }
    return status;
}

static gma_status save(const op_file *f, const gma_mixer *mixer, const op_options *o, const char *path) {
    gma_mixer_desc used;
    gma_status status = gma_mixer_get_desc(mixer, &used);
    if (status != GMA_OK) {
        return status;
    }
    const gma_metadata_pair metadata[] = {
        {"mixer", o->mixer},
        {"dtype", o->naive ? "f64" : o->bf16 ? "bf16" : "f32"},
        {"isa", o->naive ? "naive" : gma_isa_name((gma_isa)used.isa)},
        {"version", gma_version()},
    };
    return op_save(f, path, metadata, sizeof metadata / sizeof metadata[0]);
}

/* What a mixer finds wrong stands in the file. */
static gma_status of_file(gma_status status, const char *in) {
    char why[512];
    const size_t n = strlen(in);
    snprintf(why, sizeof why, "%s", gma_last_error());
    if (status == GMA_OK || (strncmp(why, in, n) == 0 && why[n] == ':')) {
        return status;
    }
    return gma_fail(status, "%s: %s", in, why);
}

static int has_mixture(gma_mixer_kind kind) {
    int count = 0, found = 0;
    const gma_slot_info *slots = gma_mixer_slots(kind, &count);
    for (int i = 0; i < count; i++) {
        found |= slots[i].slot == GMA_MU;
    }
    return found;
}

static gma_status run(const op_options *o, gma_mixer_kind kind, gma_isa isa, const char *in, const char *out) {
    op_file *f = malloc(sizeof *f);
    gma_mixer *mixer = NULL;
    if (f == NULL) {
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "out of memory");
    }
    gma_status status = op_open(f, in, kind, (op_types){o->naive, o->bf16}, o->backward);
    if (status == GMA_OK) {
        f->desc.isa = isa;
        status = of_file(gma_mixer_create(&f->desc, &mixer), in);
    }
    if (status == GMA_OK) {
        status = op_make_outputs(f);
    }
    if (status == GMA_OK) {
        status = of_file(o->naive ? run_naive(f, mixer, o->backward) : run_fast(f, mixer, o->backward, (int)o->threads), in);
    }
    if (status == GMA_OK && o->responsibilities) {
        status = of_file(responsibilities(f, o, isa), in);
    }
    if (status == GMA_OK) {
        status = save(f, mixer, o, out);
    }
    gma_mixer_destroy(mixer);
    op_close(f);
    free(f);
    return status;
}

int gma_cmd_op(int argc, char **argv) {
    op_options o;
    gma_cli_option options[] = {
        {.name = "mixer", .type = GMA_CLI_STRING, .hint = "NAME", .def = "gma", .value = &o.mixer,
         .help = "which sequence mixer"},
        {.name = "dtype", .type = GMA_CLI_CHOICE, .hint = "f32|bf16", .def = "f32", .value = &o.bf16,
         .help = "bf16 rounds q, k, v and grad_o, and writes o, grad_q, grad_k and grad_v as BF16; all else is F32"},
        GMA_CLI_OPTION_ISA(&o.isa),
        GMA_CLI_OPTION_THREADS(&o.threads),
        {.name = "backward", .type = GMA_CLI_FLAG, .value = &o.backward,
         .help = "also write grad_* of every input that has a gradient; needs grad_o"},
        {.name = "responsibilities", .type = GMA_CLI_FLAG, .value = &o.responsibilities,
         .help = "also write gamma_q and gamma_k: which component each token goes through (0 for a masked key)"},
        {.name = "naive", .type = GMA_CLI_FLAG, .value = &o.naive,
         .help = "the definition in double instead of the kernels; writes F64"},
    };
    const gma_cli_spec spec = {
        .verb = "op",
        .operands = "IN.safetensors OUT.safetensors",
        .min_operands = 2,
        .max_operands = 2,
        .about = "run one mixer on the tensors of a file",
        .options = options,
        .option_count = GMA_CLI_COUNT(options),
        .notes = "IN holds q k v mu omega alpha and, where wanted, key_mask cu_seqlens state_S state_Z log_decay\n"
                 "logit_scale grad_o grad_out_S grad_out_Z, as F64, F32 or BF16 (key_mask BOOL or U8, cu_seqlens I32\n"
                 "or I64), and the metadata strings causal (\"0\", the default, or \"1\"), eps (1e-6), eps_sigma\n"
                 "(1e-4). Anything else in it is ignored. Shapes: include/gma/mixer.h. IN may be OUT: it is replaced.\n"
                 "OUT gets o, out_S, out_Z and what the options add. That is for gma; linear needs no\n"
                 "parameters (states have R rows), performer needs features (M,R) (states have M rows). softmax takes q k v,\n"
                 "key_mask, cu_seqlens and the metadata scale (1/sqrt(R)), window (0 = none; needs causal) and\n"
                 "rotary_base (0 = none); it has no states.\n"
                 "mamba: u delta A B C D delta_bias and, where wanted, state_h cu_seqlens grad_y grad_out_h; gives y\n"
                 "and out_h. linformer: q k v proj_k proj_v (P,Nk) or (H,P,Nk) and, where wanted, key_mask grad_o.",
    };
    const char *operands[2];
    int count;
    gma_mixer_kind kind;
    gma_isa isa;
    int code = gma_cli_parse(&spec, argc, argv, operands, &count);
    if (code < 0 && gma_mixer_kind_from_name(o.mixer, &kind) != GMA_OK) {
        code = gma_cli_misuse(&spec, "--mixer: %s", gma_last_error());
    }
    if (code < 0) {
        code = gma_cli_isa(&spec, o.isa, &isa);
    }
    if (code < 0 && o.responsibilities && !has_mixture(kind)) {
        code = gma_cli_misuse(&spec, "--responsibilities: the mixer %s has no mixture", o.mixer);
    }
    if (code < 0) {
        code = gma_cli_replaces(&spec, operands[1], GMA_CLI_TENSORS);
    }
    if (code < 0) {
        code = run(&o, kind, isa, operands[0], operands[1]) == GMA_OK ? 0 : gma_cli_fail(&spec);
    }
    return code;
}
