/* See args.h. Every message names the tensor. */
#include "mixers/args.h"

#include <stdio.h>
#include <string.h>

#include "core/tensor.h"

static const char *const call_names[] = {"forward",       "backward",   "naive_forward", "naive_backward",
                                         "state_init",    "step",       "state_export"};

const char *gma_slot_name(int32_t slot)
{
    switch (slot) {
#define ROW(name, value, text)            \
    case value: return text;              \
    case (value) | GMA_GRAD_BIT: return "grad_" text;
        GMA_SLOT_LIST(ROW)
#undef ROW
    default: return NULL;
    }
}

const char *gma_slot_dims(const gma_slot_info *info, int rank)
{
    const char *dims = info->dims;
    if (dims[0] != '?') return dims;
    return rank == (int)strlen(dims) - 1 ? dims + 1 : dims + 2;
}

static void print_shape(char *out, size_t size, const int64_t *shape, int rank)
{
    size_t used = (size_t)snprintf(out, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, i ? ",%lld" : "%lld", (long long)shape[i]);
    if (used < size) (void)snprintf(out + used, size - used, ")");
}

gma_status gmai_tensor_check(const gma_tensor *t, const char *name, const int64_t *shape, int rank, uint32_t dtypes,
                             int width, int output)
{
    char want[96], have[96];
    if (gma_dtype_size((gma_dtype)t->dtype) == 0)
        return gma_fail(GMA_ERR_DTYPE, "%s: %d is no data type", name, (int)t->dtype);
    if (!(dtypes & (1u << t->dtype))) {
        size_t used = 0;
        for (int d = 1; d < 32; d++)
            if ((dtypes & (1u << d)) && used < sizeof want)
                used += (size_t)snprintf(want + used, sizeof want - used, used ? " or %s" : "%s",
                                         gma_dtype_name((gma_dtype)d));
        return gma_fail(GMA_ERR_DTYPE, "%s is %s; it must be %s", name, gma_dtype_name((gma_dtype)t->dtype), want);
    }
    if (t->rank < 0 || t->rank > GMA_MAX_RANK)
        return gma_fail(GMA_ERR_SHAPE, "%s has %d dimensions; there are at most %d", name, (int)t->rank, GMA_MAX_RANK);
    int same = t->rank == rank, empty = 0;
    double elements = 1.0;
    for (int i = 0; i < rank && same; i++) {
        same = t->shape[i] == shape[i];
        if (shape[i] < 0) return gma_fail(GMA_ERR_SHAPE, "%s has a negative extent", name);
        empty |= shape[i] == 0;
        elements *= shape[i] > 0 ? (double)shape[i] : 1.0;
    }
    if (same && elements > 0x1p40)
        return gma_fail(GMA_ERR_SHAPE, "%s would have more than 2^40 elements", name);
    if (!same) {
        print_shape(want, sizeof want, shape, rank);
        print_shape(have, sizeof have, t->shape, t->rank);
        return gma_fail(GMA_ERR_SHAPE, "%s has shape %s; it must be %s", name, have, want);
    }
    if (empty) return GMA_OK;
    if (!t->data) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: data is NULL", name);
    if ((uintptr_t)t->data % gma_dtype_size((gma_dtype)t->dtype))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: data is not aligned to its type", name);
    if (width && shape[rank - 1] > 1 && t->stride[rank - 1] != 1)
        return gma_fail(GMA_ERR_SHAPE, "%s has stride %lld in its last dimension; it must be contiguous (1)", name,
                        (long long)t->stride[rank - 1]);
    for (int i = 0; i < rank; i++) {
        if (output && shape[i] > 1 && t->stride[i] == 0)
            return gma_fail(GMA_ERR_SHAPE, "%s has stride 0 in dimension %d; an output cannot be broadcast", name, i);
        /* Offsets must fit 64 bits with room to spare. */
        if (shape[i] > 1 && (t->stride[i] > ((int64_t)1 << 58) / shape[i] ||
                             t->stride[i] < -((int64_t)1 << 58) / shape[i]))
            return gma_fail(GMA_ERR_SHAPE, "%s has stride %lld in dimension %d; that is too large", name,
                            (long long)t->stride[i], i);
    }
    return GMA_OK;
}

static int64_t extent(const gma_mixer_desc *d, char letter, gmai_call_kind call)
{
    const int step = call == GMAI_CALL_STEP;
    switch (letter) {
    case 'B': return d->batch;
    case 'h': return d->heads;
    case 'H': return d->kv_heads;
    case 'q': return step ? 1 : d->q_len;
    case 'k': return step ? 1 : d->k_len;
    case 'K':
    case 'M':
    case 'P': return d->components;
    case 'R': return d->routing_dim;
    case 'D': return d->value_dim;
    case 'E': return d->heads * d->value_dim;
    case 'S': return d->segments >= 0 ? d->segments : d->batch;
    case '+': return d->segments + 1;
    default: return -1;
    }
}

static int is_state(int slot) { return slot == GMA_STATE_S || slot == GMA_STATE_Z || slot == GMA_STATE_H; }
static int is_out_state(int slot) { return slot == GMA_OUT_S || slot == GMA_OUT_Z || slot == GMA_OUT_H; }

/* Tokens of some width, read by vectors: their last dimension is contiguous. Everything else goes element by element. */
static int has_width(const gma_slot_info *info, const char *dims)
{
    const size_t n = strlen(dims);
    return info->role != GMA_ROLE_PARAM && n >= 3 && (dims[n - 2] == 'q' || dims[n - 2] == 'k');
}

/* May this slot (or its gradient) appear in the call? 2: it must. */
static int allowed(const gma_slot_info *info, int grad, gmai_call_kind call)
{
    const int param = info->role == GMA_ROLE_PARAM, output = info->role == GMA_ROLE_OUTPUT;
    switch (call) {
    case GMAI_CALL_FORWARD:
    case GMAI_CALL_NAIVE_FORWARD: return grad ? 0 : info->required ? 2 : 1;
    case GMAI_CALL_BACKWARD: return grad ? info->has_grad : info->required ? 2 : !is_out_state(info->slot);
    case GMAI_CALL_NAIVE_BACKWARD: return grad ? info->has_grad : output ? 1 : info->required ? 2 : 1;
    case GMAI_CALL_STATE_INIT: return grad ? 0 : param ? (info->required ? 2 : 1) : is_state(info->slot);
    case GMAI_CALL_STEP:
        if (grad || param || is_state(info->slot) || is_out_state(info->slot) || info->slot == GMA_CU_SEQLENS) return 0;
        return info->required ? 2 : 1;
    case GMAI_CALL_STATE_EXPORT: return grad ? 0 : is_out_state(info->slot);
    }
    return 0;
}

static uint32_t dtypes_of(const gma_slot_info *info, gmai_call_kind call)
{
    const uint32_t f64 = 1u << GMA_F64, floats = 1u << GMA_F32;
    const int naive = call == GMAI_CALL_NAIVE_FORWARD || call == GMAI_CALL_NAIVE_BACKWARD;
    const int state = (call == GMAI_CALL_STATE_INIT && is_state(info->slot)) || call == GMAI_CALL_STATE_EXPORT;
    return info->dtypes | ((naive || state) && (info->dtypes & floats) ? f64 : 0);
}

static const gma_slot_info *find(const gmai_mixer_ops *ops, int slot)
{
    for (int i = 0; i < ops->slot_count; i++)
        if (ops->slots[i].slot == slot) return &ops->slots[i];
    return NULL;
}

/* backward starts from the gradient of an output; of which, the mixer's table says. */
static gma_status check_upstream(const gma_mixer *m, gmai_call_kind call, const gmai_args *a)
{
    const char *first = NULL, *rest = "";
    for (int i = 0; i < m->ops->slot_count; i++) {
        const gma_slot_info *info = &m->ops->slots[i];
        if (info->role != GMA_ROLE_OUTPUT || !info->has_grad) continue;
        if (gmai_present(&a->grad[info->slot])) return GMA_OK;
        if (info->required)
            first = gma_slot_name(GMA_GRAD(info->slot));
        else if (info->slot == GMA_OUT_S)
            rest = ", or grad_out_S and grad_out_Z";
        else if (info->slot == GMA_OUT_H)
            rest = ", or grad_out_h";
    }
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is missing; %s needs it%s", first, call_names[call], rest);
}

static gma_status check_pair(const gmai_args *a, int s, int z)
{
    if (gmai_present(&a->t[s]) == gmai_present(&a->t[z])) return GMA_OK;
    const int there = gmai_present(&a->t[s]) ? s : z, missing = there == s ? z : s;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is missing; it goes with %s", gma_slot_name(missing),
                    gma_slot_name(there));
}

gma_status gmai_args_check(const gma_mixer *m, gmai_call_kind call, const gma_arg *args, int count, gmai_args *a)
{
    if (!m) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixer is NULL");
    if (count < 0) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the count of args is %d; it must be >= 0", count);
    if (count > 0 && !args) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "args is NULL");
    memset(a, 0, sizeof *a);
    for (int i = 0; i < count; i++) {
        const int slot = args[i].slot & ~GMA_GRAD_BIT, grad = (args[i].slot & GMA_GRAD_BIT) != 0;
        const char *name = gma_slot_name(args[i].slot);
        const gma_slot_info *info = slot >= 0 && slot < GMAI_MAX_SLOT ? find(m->ops, slot) : NULL;
        if (!name || !info)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "argument %d: slot %d%s%s%s is unknown to mixer '%s'", i,
                            (int)args[i].slot, name ? " (" : "", name ? name : "", name ? ")" : "", m->ops->name);
        if (!allowed(info, grad, call))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is no argument of %s", name, call_names[call]);
        gma_tensor *to = grad ? &a->grad[slot] : &a->t[slot];
        if (gmai_present(to)) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is given twice", name);
        if (slot == GMA_CU_SEQLENS && m->d.segments < 0)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "cu_seqlens: this mixer was created for sequences that are not "
                                                      "packed (segments = -1)");
        int64_t shape[GMA_MAX_RANK];
        const char *dims = gma_slot_dims(info, args[i].tensor.rank);
        const int rank = (int)strlen(dims);
        for (int d = 0; d < rank; d++) shape[d] = extent(&m->d, dims[d], call);
        const int output = (info->role == GMA_ROLE_OUTPUT) != grad && call != GMAI_CALL_BACKWARD
                               ? 1
                               : grad && info->role != GMA_ROLE_OUTPUT;
        const int width = has_width(info, dims) && call != GMAI_CALL_NAIVE_FORWARD && call != GMAI_CALL_NAIVE_BACKWARD;
        const gma_status s =
            gmai_tensor_check(&args[i].tensor, name, shape, rank, dtypes_of(info, call), width, output);
        if (s != GMA_OK) return s;
        *to = args[i].tensor;
    }
    for (int i = 0; i < m->ops->slot_count; i++) {
        const gma_slot_info *info = &m->ops->slots[i];
        const int packed_offsets = info->slot == GMA_CU_SEQLENS && m->d.segments >= 0 && allowed(info, 0, call);
        if ((allowed(info, 0, call) == 2 || packed_offsets) && !gmai_present(&a->t[info->slot]))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is missing; %s needs it", gma_slot_name(info->slot),
                            call_names[call]);
    }
    gma_status s = check_pair(a, GMA_STATE_S, GMA_STATE_Z);
    if (s == GMA_OK && (call == GMAI_CALL_BACKWARD || call == GMAI_CALL_NAIVE_BACKWARD))
        s = check_upstream(m, call, a);
    for (int slot = 0; slot < GMAI_MAX_SLOT && s == GMA_OK; slot++) {
        const gma_slot_info *info = gmai_present(&a->grad[slot]) ? find(m->ops, slot) : NULL;
        if (info && info->role != GMA_ROLE_OUTPUT && !gmai_present(&a->t[slot]))
            s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is asked for, but there is no %s", gma_slot_name(GMA_GRAD(slot)),
                         gma_slot_name(slot));
        else if (info && gmai_present(&a->t[slot]) && a->t[slot].rank != a->grad[slot].rank)
            s = gma_fail(GMA_ERR_SHAPE, "%s has %d dimensions; %s has %d", gma_slot_name(GMA_GRAD(slot)),
                         (int)a->grad[slot].rank, gma_slot_name(slot), (int)a->t[slot].rank);
    }
    return s;
}
