#include "cli/op_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The field of the descriptor that each letter of gma_slot_info.dims stands for. */
static const struct {
    char letter;
    size_t field;
} letters[] = {
    {'B', offsetof(gma_mixer_desc, batch)},       {'h', offsetof(gma_mixer_desc, heads)},
    {'H', offsetof(gma_mixer_desc, kv_heads)},    {'q', offsetof(gma_mixer_desc, q_len)},
    {'k', offsetof(gma_mixer_desc, k_len)},       {'K', offsetof(gma_mixer_desc, components)},
    {'M', offsetof(gma_mixer_desc, components)}, {'P', offsetof(gma_mixer_desc, components)},
    {'R', offsetof(gma_mixer_desc, routing_dim)}, {'D', offsetof(gma_mixer_desc, value_dim)},
    {'E', offsetof(gma_mixer_desc, value_dim)}, /* of one head: op_open sets heads */
};

static int takes(const gma_slot_info *s, gma_dtype dtype) { return (s->dtypes >> dtype & 1u) != 0; }

static int is_real(const gma_slot_info *s) { return takes(s, GMA_F32); }

/* How the values of a slot are held in memory. */
static gma_dtype held_as(const op_file *f, const gma_slot_info *s) {
    if (is_real(s)) {
        return f->types.naive ? GMA_F64 : f->types.bf16 && takes(s, GMA_BF16) ? GMA_BF16 : GMA_F32;
    }
    if (takes(s, GMA_BOOL)) {
        return GMA_BOOL;
    }
    return takes(s, GMA_I64) ? GMA_I64 : GMA_I32;
}

static int file_type_fits(const gma_slot_info *s, int32_t dtype) {
    if (is_real(s)) {
        return dtype == GMA_F64 || dtype == GMA_F32 || dtype == GMA_BF16;
    }
    if (takes(s, GMA_BOOL) || takes(s, GMA_U8)) {
        return dtype == GMA_BOOL || dtype == GMA_U8;
    }
    return dtype == GMA_I32 || dtype == GMA_I64;
}

/* ---- Checking ----------------------------------------------------------------------------------------------- */

static gma_status check_type_and_rank(const op_file *f, const gma_slot_info *s, const gma_stored_tensor *t) {
    if (!file_type_fits(s, t->dtype)) {
        return gma_fail(GMA_ERR_DTYPE, "%s: tensor \"%s\" has the type %s, it must be %s", f->path, t->name,
                        t->dtype_name,
                        is_real(s)                                 ? "F64, F32 or BF16"
                        : takes(s, GMA_BOOL) || takes(s, GMA_U8) ? "BOOL or U8"
                                                                   : "I32 or I64");
    }
    int rank = (int)strlen(gma_slot_dims(s, t->rank));
    if (t->rank != rank) {
        return gma_fail(GMA_ERR_SHAPE, "%s: tensor \"%s\" has %d dimensions, it must have %d%s", f->path, t->name,
                        (int)t->rank, rank, s->dims[0] == '?' ? " or one more" : "");
    }
    return GMA_OK;
}

/* What a tensor says about the shape; the first to say something about an extent decides. */
static void learn(op_file *f, const gma_slot_info *s, const gma_stored_tensor *t) {
    const char *dims = gma_slot_dims(s, t->rank);
    for (int i = 0; i < t->rank; i++) {
        unsigned letter = (unsigned char)dims[i] & 127u;
        if (letter != 'S' && f->extent[letter] < 0) {
            f->extent[letter] = t->shape[i];
            f->setter[letter] = t->name;
        }
    }
}

static gma_status check_shape(const op_file *f, const gma_slot_info *s, const gma_stored_tensor *t) {
    const char *dims = gma_slot_dims(s, t->rank);
    for (int i = 0; i < t->rank; i++) {
        unsigned letter = (unsigned char)dims[i] & 127u;
        if (t->shape[i] != f->extent[letter]) {
            return gma_fail(GMA_ERR_SHAPE, "%s: tensor \"%s\": dimension %d is %lld, but \"%s\" makes it %lld", f->path,
                            t->name, i + 1, (long long)t->shape[i],
                            f->setter[letter] != NULL ? f->setter[letter] : "the input",
                            (long long)f->extent[letter]);
        }
    }
    return GMA_OK;
}

/* The stored tensor a row stands for: the input itself, or for an output its upstream gradient. */
static const gma_stored_tensor *stored_for(const op_file *f, const gma_slot_info *s) {
    if (s->role == GMA_ROLE_OUTPUT) {
        return s->has_grad ? gma_safetensors_find(f->file, gma_slot_name(GMA_GRAD(s->slot))) : NULL;
    }
    return gma_safetensors_find(f->file, gma_slot_name(s->slot));
}

/* What would change the result of other mixers, and this one cannot honour: not to be dropped in silence. */
static gma_status check_foreign(const op_file *f) {
    static const int32_t slots[] = {GMA_KEY_MASK, GMA_CU_SEQLENS, GMA_STATE_S, GMA_STATE_Z, GMA_STATE_H, GMA_LOG_DECAY};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        int known = 0;
        for (int j = 0; j < f->slot_count; j++) {
            known |= f->slots[j].slot == slots[i];
        }
        if (!known && gma_safetensors_find(f->file, gma_slot_name(slots[i])) != NULL) {
            return gma_fail(GMA_ERR_UNSUPPORTED, "%s: tensor \"%s\": the mixer %s has none", f->path,
                            gma_slot_name(slots[i]), gma_mixer_kind_name((gma_mixer_kind)f->desc.kind));
        }
    }
    return GMA_OK;
}

static gma_status check_all(op_file *f) {
    gma_status status = check_foreign(f);
    if (status != GMA_OK) {
        return status;
    }
    for (int i = 0; i < f->slot_count; i++) {
        const gma_slot_info *s = &f->slots[i];
        const gma_stored_tensor *t = stored_for(f, s);
        if (t == NULL && s->role != GMA_ROLE_OUTPUT && s->required) {
            return gma_fail(GMA_ERR_FORMAT, "%s: tensor \"%s\" is missing", f->path, gma_slot_name(s->slot));
        }
        if (t != NULL) {
            status = check_type_and_rank(f, s, t);
            if (status != GMA_OK) {
                return status;
            }
            if (s->role != GMA_ROLE_OUTPUT) {
                learn(f, s, t);
            }
        }
    }
    if (f->extent['+'] == 0) {
        return gma_fail(GMA_ERR_SHAPE, "%s: tensor \"%s\" is empty, it must hold at least the 0", f->path,
                        f->setter['+']);
    }
    int packed = f->extent['+'] > 0;
    f->extent['S'] = packed ? f->extent['+'] - 1 : f->extent['B'];
    f->setter['S'] = f->setter[packed ? '+' : 'B'];
    f->desc.segments = packed ? f->extent['+'] - 1 : -1;
    for (int i = 0; i < f->slot_count && status == GMA_OK; i++) {
        const gma_stored_tensor *t = stored_for(f, &f->slots[i]);
        if (t != NULL) {
            status = check_shape(f, &f->slots[i], t);
        }
    }
    return status;
}

/* ---- Metadata ----------------------------------------------------------------------------------------------- */

static gma_status read_real(const op_file *f, const char *key, double *out) {
    const char *text = gma_safetensors_metadata(f->file, key);
    if (text == NULL) {
        return GMA_OK;
    }
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(x)) {
        return gma_fail(GMA_ERR_FORMAT, "%s: metadata \"%s\" must be a number, not \"%.40s\"", f->path, key, text);
    }
    *out = x;
    return GMA_OK;
}

static gma_status read_attention_options(op_file *f) {
    double window = 0.0;
    gma_status status = read_real(f, "scale", &f->desc.scale);
    if (status == GMA_OK && gma_safetensors_metadata(f->file, "scale") != NULL && !(f->desc.scale > 0.0)) {
        status = gma_fail(GMA_ERR_FORMAT, "%s: metadata \"scale\" is %g; it must be > 0", f->path, f->desc.scale);
    }
    if (status == GMA_OK) {
        status = read_real(f, "rotary_base", &f->desc.rotary_base);
    }
    if (status == GMA_OK) {
        status = read_real(f, "window", &window);
    }
    if (status == GMA_OK && !(window >= 0.0 && window <= 1073741823.0 && window == floor(window))) {
        status = gma_fail(GMA_ERR_FORMAT, "%s: metadata \"window\" must be a whole number from 0 to 2^30 - 1, not %g",
                          f->path, window);
    }
    if (status == GMA_OK) {
        f->desc.window = (int64_t)window;
    }
    return status;
}

static gma_status read_metadata(op_file *f) {
    const char *causal = gma_safetensors_metadata(f->file, "causal");
    if (causal != NULL && strcmp(causal, "0") != 0 && strcmp(causal, "1") != 0) {
        return gma_fail(GMA_ERR_FORMAT, "%s: metadata \"causal\" must be \"0\" or \"1\", not \"%.40s\"", f->path,
                        causal);
    }
    if (causal != NULL) { /* else what the mixer starts with */
        f->desc.causal = causal[0] == '1';
    }
    gma_status status = read_real(f, "eps", &f->desc.eps);
    if (status == GMA_OK) {
        status = read_real(f, "eps_sigma", &f->desc.eps_sigma);
    }
    const int scores = f->desc.kind == GMA_MIXER_SOFTMAX || f->desc.kind == GMA_MIXER_LINFORMER;
    return status == GMA_OK && scores ? read_attention_options(f) : status;
}

/* ---- Tensors in memory -------------------------------------------------------------------------------------- */

static gma_status make(op_file *f, int32_t slot, const char *name, const char *dims, gma_dtype dtype, int written) {
    int64_t n[GMA_MAX_RANK] = {1, 1, 1, 1}, count = 1, room = 1;
    int rank = (int)strlen(dims);
    if (f->count == OP_MAX_TENSORS || rank > GMA_MAX_RANK) {
        return gma_fail(GMA_ERR_UNSUPPORTED, "%s: too many tensors", f->path);
    }
    for (int i = 0; i < rank; i++) {
        n[i] = f->extent[(unsigned char)dims[i] & 127u];
        if (n[i] < 0) {
            return gma_fail(GMA_ERR_UNSUPPORTED, "%s: no tensor tells the size of \"%s\"", f->path, name);
        }
        int64_t at_least_1 = n[i] > 0 ? n[i] : 1;
        if (room > INT64_MAX / 64 / at_least_1) {
            return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: tensor \"%s\" would be too large", f->path, name);
        }
        room *= at_least_1;
        count *= n[i];
    }
    void *data = calloc((size_t)count + 1, gma_dtype_size(dtype));
    if (data == NULL) {
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s: no memory for tensor \"%s\"", f->path, name);
    }
    f->tensor[f->count++] =
        (op_tensor){slot, name, gma_tensor_of(data, dtype, rank, n[0], n[1], n[2], n[3]), written};
    return GMA_OK;
}

gma_status op_make(op_file *f, int32_t slot, const char *name, const char *dims, gma_dtype dtype) {
    return make(f, slot, name, dims, dtype, 1);
}

/* --naive --dtype bf16: the double code on the values that the bf16 code gets. */
static void round_to_bf16(double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = gma_bf16_to_f32(gma_f32_to_bf16((float)x[i]));
    }
}

static gma_status load(op_file *f, const gma_slot_info *s, const gma_stored_tensor *t) {
    int32_t slot = s->role == GMA_ROLE_OUTPUT ? GMA_GRAD(s->slot) : s->slot;
    gma_status status = make(f, slot, gma_slot_name(slot), gma_slot_dims(s, t->rank), held_as(f, s), 0);
    if (status != GMA_OK) {
        return status;
    }
    const gma_tensor *to = &f->tensor[f->count - 1].tensor;
    /* BF16 goes by way of F32 either way; reading F64 as BF16 does that. */
    status = gma_safetensors_read(f->file, t, (gma_dtype)to->dtype, to->data);
    if (status == GMA_OK && f->types.naive && f->types.bf16 && is_real(s) && takes(s, GMA_BF16)) {
        round_to_bf16(to->data, t->count);
    }
    return status;
}

const op_tensor *op_find(const op_file *f, int32_t slot) {
    for (int i = 0; i < f->count; i++) {
        if (f->tensor[i].slot == slot) {
            return &f->tensor[i];
        }
    }
    return NULL;
}

gma_status op_make_outputs(op_file *f) {
    gma_status status = GMA_OK;
    for (int i = 0; i < f->slot_count && status == GMA_OK; i++) {
        const gma_slot_info *s = &f->slots[i];
        if (s->role == GMA_ROLE_OUTPUT) {
            status = op_make(f, s->slot, gma_slot_name(s->slot), s->dims, held_as(f, s));
        }
    }
    return status;
}

gma_status op_make_gradients(op_file *f) {
    gma_status status = GMA_OK;
    for (int i = 0; i < f->slot_count && status == GMA_OK; i++) {
        const gma_slot_info *s = &f->slots[i];
        const op_tensor *input = s->role != GMA_ROLE_OUTPUT && s->has_grad ? op_find(f, s->slot) : NULL;
        if (input != NULL) {
            int32_t slot = GMA_GRAD(s->slot);
            status = op_make(f, slot, gma_slot_name(slot), gma_slot_dims(s, input->tensor.rank), held_as(f, s));
        }
    }
    return status;
}

/* ---- The file ----------------------------------------------------------------------------------------------- */

gma_status op_open(op_file *f, const char *path, gma_mixer_kind kind, op_types types, int backward) {
    memset(f, 0, sizeof *f);
    f->path = path;
    f->types = types;
    f->slots = gma_mixer_slots(kind, &f->slot_count);
    for (int i = 0; i < 128; i++) {
        f->extent[i] = -1;
    }
    gma_status status = gma_mixer_desc_init(&f->desc, kind);
    if (status == GMA_OK) {
        status = gma_safetensors_open(path, &f->file);
    }
    if (status == GMA_OK) {
        status = check_all(f);
    }
    if (status == GMA_OK) {
        status = read_metadata(f);
    }
    if (f->extent['E'] >= 0) {
        f->desc.heads = 1;
    }
    if (f->extent['k'] < 0) { /* one sequence, mixed with itself */
        f->extent['k'] = f->extent['q'];
    }
    for (size_t i = 0; i < sizeof letters / sizeof letters[0] && status == GMA_OK; i++) {
        int64_t n = f->extent[(unsigned char)letters[i].letter];
        if (n >= 0) {
            memcpy((char *)&f->desc + letters[i].field, &n, sizeof n);
        }
    }
    for (int i = 0; i < f->slot_count && status == GMA_OK; i++) {
        const gma_stored_tensor *t = stored_for(f, &f->slots[i]);
        if (t != NULL && (backward || f->slots[i].role != GMA_ROLE_OUTPUT)) {
            status = load(f, &f->slots[i], t);
        }
    }
    for (int i = 0; i < f->slot_count && status == GMA_OK && backward; i++) {
        const gma_slot_info *s = &f->slots[i];
        if (s->role == GMA_ROLE_OUTPUT && s->required && op_find(f, GMA_GRAD(s->slot)) == NULL) {
            status = gma_fail(GMA_ERR_FORMAT, "%s: tensor \"%s\" is missing; --backward needs it", path,
                              gma_slot_name(GMA_GRAD(s->slot)));
        }
    }
    return status;
}

void op_close(op_file *f) {
    for (int i = 0; i < f->count; i++) {
        free(f->tensor[i].tensor.data);
    }
    f->count = 0;
    gma_safetensors_close(f->file);
    f->file = NULL;
}

gma_status op_save(const op_file *f, const char *path, const gma_metadata_pair *metadata, int64_t metadata_count) {
    gma_named_tensor out[OP_MAX_TENSORS];
    int count = 0;
    for (int i = 0; i < f->count; i++) {
        if (f->tensor[i].written) {
            out[count++] = (gma_named_tensor){f->tensor[i].name, f->tensor[i].tensor};
        }
    }
    return gma_safetensors_save(path, out, count, metadata, metadata_count);
}
