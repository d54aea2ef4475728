/* The public calls of gma/mixer.h: every argument is checked here against the mixer's slot table, then handed on. */
#include "mixers/mixers.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "core/tensor.h"
#include "kernels/kernels.h"
#include "mixers/args.h"

static const gmai_mixer_ops *const mixers[] = {
#define X(name) &gmai_mixer_##name,
#include "mixers/mixers.inc"
#undef X
};
enum { MIXERS = (int)(sizeof mixers / sizeof mixers[0]) };

const gmai_mixer_ops *gmai_mixer_ops_of(int kind)
{
    for (int i = 0; i < MIXERS; i++)
        if ((int)mixers[i]->kind == kind) return mixers[i];
    return NULL;
}

const char *gma_mixer_kind_name(gma_mixer_kind kind)
{
    const gmai_mixer_ops *ops = gmai_mixer_ops_of((int)kind);
    return ops ? ops->name : NULL;
}

gma_status gma_mixer_kind_from_name(const char *name, gma_mixer_kind *kind)
{
    char all[256] = "";
    if (!name || !kind) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixer: no name given");
    for (int i = 0; i < MIXERS; i++) {
        if (strcmp(mixers[i]->name, name) == 0) return *kind = mixers[i]->kind, GMA_OK;
        const size_t used = strlen(all);
        if (used + strlen(mixers[i]->name) + 3 < sizeof all) {
            strcat(all, i ? ", " : "");
            strcat(all, mixers[i]->name);
        }
    }
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixer '%s' is unknown; there are: %s", name, all);
}

const gma_slot_info *gma_mixer_slots(gma_mixer_kind kind, int *count)
{
    const gmai_mixer_ops *ops = gmai_mixer_ops_of((int)kind);
    if (count) *count = ops ? ops->slot_count : 0;
    return ops ? ops->slots : NULL;
}

gma_status gma_mixer_desc_init(gma_mixer_desc *d, gma_mixer_kind kind)
{
    if (!d) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "desc is NULL");
    memset(d, 0, sizeof *d);
    d->struct_size = sizeof *d;
    d->kind = (int32_t)kind;
    d->segments = -1;
    d->eps = 1e-6;
    d->eps_sigma = 1e-4;
    const gmai_mixer_ops *ops = gmai_mixer_ops_of((int)kind);
    if (!ops) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "kind: %d is no mixer", (int)kind);
    d->causal = ops->always_causal;
    return GMA_OK;
}

/* Products of these must fit: 2^40 elements in any one tensor is beyond every machine this runs on. */
enum { MAX_LOG2 = 40 };

static int too_large(const int64_t *n, int count)
{
    double product = 1.0;
    for (int i = 0; i < count; i++) product *= n[i] > 0 ? (double)n[i] : 1.0;
    return product > (double)((int64_t)1 << MAX_LOG2);
}

/* An option that the mixer does not have must be left alone: nothing is silently ignored. */
static gma_status check_options(const gma_mixer_desc *d, const gmai_mixer_ops *ops)
{
    const struct {
        const char *name;
        unsigned bit;
        double value;
    } options[] = {
        {"scale", GMAI_HAS_SCALE, d->scale},
        {"rotary_base", GMAI_HAS_ROTARY, d->rotary_base},
        {"window", GMAI_HAS_WINDOW, (double)d->window},
        {"cache_len", GMAI_HAS_CACHE, (double)d->cache_len},
        {"store_scores", GMAI_HAS_STORE_SCORES, (double)d->store_scores},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const double x = options[i].value;
        if (x != 0.0 && !(ops->options & options[i].bit))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is %g; mixer '%s' has no such option (it must be 0)",
                            options[i].name, x, ops->name);
        if (!(x >= 0.0 && x <= 1e30))
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is %g; it must be >= 0 and finite", options[i].name, x);
    }
    if (d->reserved2 != 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "reserved2 is %d; it must be 0", (int)d->reserved2);
    return GMA_OK;
}

static gma_status check_desc(gma_mixer_desc *d, const gmai_mixer_ops *ops)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {
        {"batch", d->batch}, {"heads", d->heads},           {"kv_heads", d->kv_heads},   {"q_len", d->q_len},
        {"k_len", d->k_len}, {"routing_dim", d->routing_dim}, {"value_dim", d->value_dim}, {"components", d->components},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value < 0)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is %lld; it must be >= 0", sizes[i].name,
                            (long long)sizes[i].value);
    if (d->kv_heads == 0) d->kv_heads = d->heads;
    if (d->kv_heads > 0 && d->heads % d->kv_heads)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "kv_heads %lld does not divide heads %lld", (long long)d->kv_heads,
                        (long long)d->heads);
    if (d->causal != 0 && d->causal != 1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "causal is %d; it must be 0 or 1", (int)d->causal);
    if (d->reserved != 0) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "reserved is %d; it must be 0", (int)d->reserved);
    /* The kernels hold them as f32, where what is below 1.2e-38 counts as 0. */
    if (!(d->eps >= 1.2e-38 && d->eps <= 1e30))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "eps is %g; it must be > 0 (at least 1.2e-38) and finite", d->eps);
    if (!(d->eps_sigma >= 1.2e-38 && d->eps_sigma <= 1e30))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "eps_sigma is %g; it must be > 0 (at least 1.2e-38) and finite",
                        d->eps_sigma);
    if (d->segments < -1)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "segments is %lld; it must be >= 0, or -1 for not packed",
                        (long long)d->segments);
    if (d->segments >= 0 && (d->batch != 1 || d->q_len != d->k_len))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "packed sequences need batch 1 and q_len = k_len; batch is %lld, q_len %lld, k_len %lld",
                        (long long)d->batch, (long long)d->q_len, (long long)d->k_len);
    const int64_t tokens = d->q_len > d->k_len ? d->q_len : d->k_len;
    const int64_t width = d->routing_dim > d->value_dim ? d->routing_dim : d->value_dim;
    const int64_t data[] = {d->batch, d->heads, tokens, width}, params[] = {d->heads, d->components, width},
                  states[] = {d->segments > d->batch ? d->segments : d->batch, d->heads, d->components, width};
    if (too_large(data, 4) || too_large(params, 3) || too_large(states, 4) || d->routing_dim > INT_MAX / 64 ||
        d->value_dim > INT_MAX / 64 || d->components > INT_MAX / 64)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the shape is too large: a tensor would have more than 2^%d elements",
                        MAX_LOG2);
    const gma_status s = check_options(d, ops);
    return s == GMA_OK ? ops->check(d) : s;
}

gma_status gma_mixer_create(const gma_mixer_desc *desc, gma_mixer **mixer)
{
    if (mixer) *mixer = NULL;
    if (!desc || !mixer) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", desc ? "mixer" : "desc");
    if (desc->struct_size != sizeof *desc)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                        "desc.struct_size is %zu, this library knows %zu; call gma_mixer_desc_init first",
                        desc->struct_size, sizeof *desc);
    const gmai_mixer_ops *ops = gmai_mixer_ops_of(desc->kind);
    if (!ops) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "kind: %d is no mixer", (int)desc->kind);
    gma_mixer_desc d = *desc;
    gma_status s = check_desc(&d, ops);
    if (s != GMA_OK) return s;
    gma_isa isa;
    s = gmai_isa_resolve(d.isa, &isa);
    if (s != GMA_OK) return s;
    d.isa = (int32_t)isa;
    gma_mixer *m = calloc(1, sizeof *m);
    if (!m) return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a mixer");
    m->d = d;
    m->ops = ops;
    m->kern = gmai_kernels_of(d.isa);
    *mixer = m;
    return GMA_OK;
}

void gma_mixer_destroy(gma_mixer *mixer) { free(mixer); }

gma_status gma_mixer_get_desc(const gma_mixer *mixer, gma_mixer_desc *desc)
{
    if (!mixer || !desc) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", mixer ? "desc" : "mixer");
    *desc = mixer->d;
    return GMA_OK;
}

/* What a decoding state begins with: which mixer it was made for. Anything else is refused before it is touched. */
typedef struct state_stamp {
    uint64_t magic;
    int32_t kind, isa;
    int64_t batch, heads, kv_heads, routing_dim, value_dim, components;
    double scale, rotary_base;
    int64_t window, cache_len, unused[4];
} state_stamp;

_Static_assert(sizeof(state_stamp) == 128, "the state behind the stamp keeps its alignment");

gma_status gma_mixer_sizes(const gma_mixer *mixer, int threads, gma_mixer_size *size)
{
    if (!mixer || !size) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL", mixer ? "size" : "mixer");
    if (size->struct_size != sizeof *size)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "size.struct_size is %zu, this library knows %zu", size->struct_size,
                        sizeof *size);
    if (threads < 0) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "threads is %d; it must be >= 0", threads);
    const gma_status s = mixer->ops->sizes(mixer, gmai_threads(threads), size);
    if (s == GMA_OK && size->state > 0) size->state += sizeof(state_stamp);
    return s;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static gma_status check_buffer(const char *name, const void *p, size_t bytes, size_t needed)
{
    if (needed == 0) return GMA_OK;
    if (!p) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is NULL; %zu bytes are needed", name, needed);
    if ((uintptr_t)p % 64) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s is not aligned to 64 bytes", name);
    if (bytes < needed)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s has %zu bytes; %zu are needed", name, bytes, needed);
    return GMA_OK;
}

static gma_status check_exec(const gma_mixer *m, const gma_exec *x, int backward)
{
    if (!x) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "exec is NULL");
    if (x->struct_size != sizeof *x)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "exec.struct_size is %zu, this library knows %zu", x->struct_size,
                        sizeof *x);
    if (x->threads < 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "exec.threads is %d; it must be >= 0", (int)x->threads);
    gma_mixer_size size;
    size.struct_size = sizeof size;
    gma_status s = gma_mixer_sizes(m, x->threads, &size);
    if (s != GMA_OK) return s;
    s = check_buffer("exec.scratch", x->scratch, x->scratch_bytes,
                     backward ? size.backward_scratch : size.forward_scratch);
    if (s == GMA_OK && (backward || x->saved)) s = check_buffer("exec.saved", x->saved, x->saved_bytes, size.saved);
    return s;
}

gma_status gma_mixer_forward(const gma_mixer *mixer, const gma_arg *args, int count, const gma_exec *exec)
{
    gmai_args a;
    gma_status s = gmai_args_check(mixer, GMAI_CALL_FORWARD, args, count, &a);
    if (s == GMA_OK) s = check_exec(mixer, exec, 0);
    return s == GMA_OK ? mixer->ops->forward(mixer, &a, exec) : s;
}

gma_status gma_mixer_backward(const gma_mixer *mixer, const gma_arg *args, int count, const gma_exec *exec)
{
    gmai_args a;
    gma_status s = gmai_args_check(mixer, GMAI_CALL_BACKWARD, args, count, &a);
    if (s == GMA_OK) s = check_exec(mixer, exec, 1);
    return s == GMA_OK ? mixer->ops->backward(mixer, &a, exec) : s;
}

gma_status gma_mixer_naive_forward(const gma_mixer *mixer, const gma_arg *args, int count)
{
    gmai_args a;
    const gma_status s = gmai_args_check(mixer, GMAI_CALL_NAIVE_FORWARD, args, count, &a);
    return s == GMA_OK ? mixer->ops->naive_forward(mixer, &a) : s;
}

gma_status gma_mixer_naive_backward(const gma_mixer *mixer, const gma_arg *args, int count)
{
    gmai_args a;
    const gma_status s = gmai_args_check(mixer, GMAI_CALL_NAIVE_BACKWARD, args, count, &a);
    return s == GMA_OK ? mixer->ops->naive_backward(mixer, &a) : s;
}

/* Decoding needs a causal mixer of single sequences. */
static state_stamp stamp_of(const gma_mixer *m)
{
    const state_stamp s = {UINT64_C(0x676d615f73746174), m->d.kind,        m->d.isa,      m->d.batch,     m->d.heads,
                           m->d.kv_heads,                m->d.routing_dim, m->d.value_dim, m->d.components,
                           m->d.scale,                   m->d.rotary_base, m->d.window,    m->d.cache_len,
                           {0}};
    return s;
}

static gma_status check_stamp(const gma_mixer *m, const void *state)
{
    const state_stamp want = stamp_of(m);
    if (memcmp(state, &want, sizeof want) == 0) return GMA_OK;
    return gma_fail(GMA_ERR_INVALID_ARGUMENT, "state was not made by gma_mixer_state_init for a mixer of this shape");
}

static gma_status check_state(const gma_mixer *m, const void *state)
{
    if (!m) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixer is NULL");
    if (!m->ops->step || !m->d.causal)
        return gma_fail(GMA_ERR_UNSUPPORTED, "mixer '%s'%s cannot decode step by step", m->ops->name,
                        m->d.causal ? "" : ", bidirectional,");
    if (m->d.segments >= 0)
        return gma_fail(GMA_ERR_UNSUPPORTED, "mixer '%s': packed sequences cannot be decoded step by step", m->ops->name);
    if (!state) return gma_fail(GMA_ERR_INVALID_ARGUMENT, "state is NULL");
    return check_buffer("state", state, SIZE_MAX, 1);
}

gma_status gma_mixer_state_init(const gma_mixer *mixer, const gma_arg *args, int count, void *state)
{
    gmai_args a;
    gma_status s = check_state(mixer, state);
    if (s == GMA_OK) s = gmai_args_check(mixer, GMAI_CALL_STATE_INIT, args, count, &a);
    if (s == GMA_OK) s = mixer->ops->state_init(mixer, &a, (char *)state + sizeof(state_stamp));
    if (s == GMA_OK) {
        const state_stamp stamp = stamp_of(mixer);
        memcpy(state, &stamp, sizeof stamp);
    }
    return s;
}

gma_status gma_mixer_step(const gma_mixer *mixer, const gma_arg *args, int count, void *state, int threads)
{
    gmai_args a;
    gma_status s = check_state(mixer, state);
    if (s == GMA_OK && threads < 0)
        s = gma_fail(GMA_ERR_INVALID_ARGUMENT, "threads is %d; it must be >= 0", threads);
    if (s == GMA_OK) s = gmai_args_check(mixer, GMAI_CALL_STEP, args, count, &a);
    if (s == GMA_OK) s = check_stamp(mixer, state);
    return s == GMA_OK ? mixer->ops->step(mixer, &a, (char *)state + sizeof(state_stamp), threads) : s;
}

gma_status gma_mixer_state_export(const gma_mixer *mixer, const void *state, const gma_arg *args, int count)
{
    gmai_args a;
    gma_status s = check_state(mixer, state);
    if (s == GMA_OK) s = gmai_args_check(mixer, GMAI_CALL_STATE_EXPORT, args, count, &a);
    if (s == GMA_OK) s = check_stamp(mixer, state);
    return s == GMA_OK ? mixer->ops->state_export(mixer, (const char *)state + sizeof(state_stamp), &a) : s;
}
