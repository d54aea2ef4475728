/* The tensors of a measurement, made from the mixer's own table of slots, and the call that is timed. */
#include "cli/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

gma_status bench_allocate(size_t bytes, void **out) {
    *out = NULL;
    if (bytes == 0) {
        return GMA_OK;
    }
    if (bytes > SIZE_MAX - 64 || (*out = aligned_alloc(64, (bytes + 63) / 64 * 64)) == NULL) {
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a buffer of %zu bytes", bytes);
    }
    memset(*out, 0, (bytes + 63) / 64 * 64); /* also makes the pages: they must not be made while the clock runs */
    return GMA_OK;
}

enum { MAMBA_STATES = 16 };

/* Nearly normal, variance 1, the same on every machine. */
static float draw(uint64_t *seed) {
    float sum = 0.0f;
    for (int i = 0; i < 12; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*seed >> 40) / 16777216.0f;
    }
    return sum - 6.0f;
}

/* Queries and keys among the means, several components near each token. */
static float value_of(int32_t slot, const bench_shape *s, uint64_t *seed) {
    const float x = draw(seed), positive = x < 0.0f ? -x : x;
    switch (slot) {
    case GMA_MU:
        return 0.5f * x;
    case GMA_OMEGA:
        return 1.0f + 0.2f * x;
    case GMA_ALPHA:
        return 0.3f * x;
    case GMA_LOG_DECAY:
        return -0.02f * positive;
    case GMA_LOGIT_SCALE:
        return 0.5f + 0.1f * positive;
    case GMA_STATE_Z:
        return (float)s->length / (float)s->components;
    case GMA_STATE_S:
        return (float)s->length / (float)s->components * 0.1f * x;
    case GMA_DELTA:
        return -4.0f + x; /* steps near 0.02, as a trained model starts with */
    case GMA_PROJ_K:
    case GMA_PROJ_V:
        return x / sqrtf((float)s->length);
    case GMA_SSM_A:
        return -1.0f - 4.0f * positive;
    default:
        return x;
    }
}

static int64_t extent_of(char letter, const bench_shape *s) {
    switch (letter) {
    case 'B':
        return s->batch;
    case 'S':
        return s->packed > 0 ? s->packed : s->batch;
    case 'h':
        return s->heads;
    case 'H':
        return s->kv_heads;
    case 'q':
    case 'k':
        return s->pass == BENCH_DECODE ? 1 : s->length;
    case 'K':
    case 'M':
    case 'P':
        return s->components;
    case 'E':
        return s->heads * s->dim;
    case 'R':
        return s->routing_dim;
    case 'D':
        return s->dim;
    case '+':
        return s->packed + 1;
    default:
        return -1;
    }
}

int bench_has_slot(gma_mixer_kind kind, int32_t slot) {
    int count = 0;
    const gma_slot_info *info = gma_mixer_slots(kind, &count);
    for (int i = 0; i < count; i++) {
        if (info[i].slot == slot) {
            return 1;
        }
    }
    return 0;
}

/* Does a tensor of the mixer have K components or M features? */
static int counts_components(gma_mixer_kind kind) {
    int count = 0;
    const gma_slot_info *info = gma_mixer_slots(kind, &count);
    for (int i = 0; i < count; i++) {
        if (strpbrk(info[i].dims, "KMP") != NULL) {
            return 1;
        }
    }
    return 0;
}

/* Decoding whose state is the keys and values so far. */
static int keeps_keys(gma_mixer_kind kind) { return kind == GMA_MIXER_SOFTMAX; }
static int has_cache(const bench_shape *s) { return s->pass == BENCH_DECODE && keeps_keys(s->kind); }

static gma_status make(const gma_slot_info *info, const bench_shape *s, uint64_t seed, int fill, gma_tensor *out) {
    int64_t n[GMA_MAX_RANK] = {1, 1, 1, 1}, count = 1;
    const char *dims = gma_slot_dims(info, -1);
    const int rank = (int)strlen(dims);
    for (int i = 0; i < rank && i < GMA_MAX_RANK; i++) {
        n[i] = extent_of(dims[i], s);
        if (n[i] < 0 || (n[i] > 0 && count > (int64_t)1 << 40) || (count *= n[i]) > (int64_t)1 << 40) {
            return gma_fail(GMA_ERR_OUT_OF_MEMORY, "%s would have more than 2^40 elements", gma_slot_name(info->slot));
        }
    }
    const gma_dtype dtype = info->slot == GMA_CU_SEQLENS                           ? GMA_I64
                            : s->bf16 && (info->dtypes & 1u << GMA_BF16) != 0 ? GMA_BF16
                                                                              : GMA_F32;
    void *data;
    const gma_status status = bench_allocate((size_t)count * gma_dtype_size(dtype), &data);
    if (status != GMA_OK) {
        return status;
    }
    for (int64_t i = 0; i < count && fill; i++) {
        const float x = value_of(info->slot, s, &seed);
        if (dtype == GMA_I64) { /* cu_seqlens: lengths as equal as they can be */
            ((int64_t *)data)[i] = s->length * i / s->packed;
        } else if (dtype == GMA_BF16) {
            ((uint16_t *)data)[i] = gma_f32_to_bf16(x);
        } else {
            ((float *)data)[i] = x;
        }
    }
    *out = gma_tensor_of(data, dtype, rank, n[0], n[1], n[2], n[3]);
    if (info->slot == GMA_FEATURES && fill && count > 0) {
        return gma_performer_features(1, n[0], n[1], data);
    }
    return GMA_OK;
}

static int wanted(const gma_slot_info *info, const bench_shape *s) {
    switch (info->slot) {
    case GMA_LOG_DECAY:
        return s->decay;
    case GMA_LOGIT_SCALE:
        return s->scale;
    case GMA_CU_SEQLENS:
        return s->packed > 0;
    case GMA_STATE_S:
    case GMA_STATE_Z:
    case GMA_STATE_H:
        return s->pass == BENCH_DECODE;
    default:
        return info->required;
    }
}

/* backward takes all that forward takes, the gradient of the output, and gives that of everything else. */
static gma_status make_tensors(bench_case *c) {
    int slots;
    const gma_slot_info *info = gma_mixer_slots(c->shape.kind, &slots);
    for (int i = 0; i < slots; i++) {
        if (!wanted(&info[i], &c->shape)) {
            continue;
        }
        gma_arg *a = &c->forward[c->forward_count];
        *a = (gma_arg){.slot = info[i].slot};
        gma_status status =
            make(&info[i], &c->shape, (uint64_t)info[i].slot, info[i].role != GMA_ROLE_OUTPUT, &a->tensor);
        if (status != GMA_OK) {
            return status;
        }
        c->forward_count++;
        c->backward[c->backward_count++] = *a;
    }
    for (int i = 0; i < slots && c->shape.pass == BENCH_FORWARD_BACKWARD; i++) {
        if (!wanted(&info[i], &c->shape) || !info[i].has_grad) {
            continue;
        }
        gma_arg *a = &c->backward[c->backward_count];
        *a = (gma_arg){.slot = GMA_GRAD(info[i].slot)};
        gma_status status =
            make(&info[i], &c->shape, 1000u + (uint64_t)info[i].slot, info[i].role == GMA_ROLE_OUTPUT, &a->tensor);
        if (status != GMA_OK) {
            return status;
        }
        c->backward_count++;
    }
    return GMA_OK;
}

/* Of the arguments of forward, those that prepare a decoding state, or those of a step. */
static int decode_args(const bench_case *c, int prepare, gma_arg *args) {
    int slots, count = 0;
    const gma_slot_info *info = gma_mixer_slots(c->shape.kind, &slots);
    for (int i = 0; i < c->forward_count; i++) {
        for (int j = 0; j < slots; j++) {
            if (info[j].slot == c->forward[i].slot) {
                const int32_t slot = info[j].slot;
                const int is_state = slot == GMA_STATE_S || slot == GMA_STATE_Z || slot == GMA_STATE_H;
                if ((info[j].role == GMA_ROLE_PARAM || is_state) == prepare) {
                    args[count++] = c->forward[i];
                }
            }
        }
    }
    return count;
}

/* The state after `length` tokens. The mixer that makes it differs in k_len only, so the state serves both. */
static gma_status fill_cache(bench_case *c) {
    int slots;
    const gma_slot_info *info = gma_mixer_slots(c->shape.kind, &slots);
    bench_shape whole = c->shape;
    whole.pass = BENCH_FORWARD;
    gma_mixer_desc d;
    gma_mixer *m = NULL;
    gma_arg args[2];
    int count = 0;
    gma_status status = gma_mixer_get_desc(c->mixer, &d);
    d.k_len = c->shape.length;
    if (status == GMA_OK) {
        status = gma_mixer_create(&d, &m);
    }
    for (int i = 0; i < slots && status == GMA_OK; i++) {
        if (info[i].slot == GMA_K || info[i].slot == GMA_V) {
            args[count] = (gma_arg){.slot = info[i].slot};
            status = make(&info[i], &whole, (uint64_t)info[i].slot, 1, &args[count].tensor);
            count += status == GMA_OK;
        }
    }
    if (status == GMA_OK) {
        status = gma_mixer_state_init(m, args, count, c->state);
    }
    for (int i = 0; i < count; i++) {
        free(args[i].tensor.data);
    }
    gma_mixer_destroy(m);
    return status;
}

static gma_status make_work(bench_case *c) {
    gma_mixer_size size = {.struct_size = sizeof size};
    gma_status status = gma_mixer_sizes(c->mixer, c->shape.threads, &size);
    if (status != GMA_OK) {
        return status;
    }
    if (c->shape.pass == BENCH_DECODE) {
        gma_arg args[BENCH_MAX_ARGS];
        c->state_bytes = size.state;
        if (size.state == 0) {
            return gma_fail(GMA_ERR_UNSUPPORTED, "mixer '%s' cannot decode step by step",
                            gma_mixer_kind_name(c->shape.kind));
        }
        status = bench_allocate(size.state, &c->state);
        if (status == GMA_OK && has_cache(&c->shape)) {
            return fill_cache(c);
        }
        return status != GMA_OK ? status : gma_mixer_state_init(c->mixer, args, decode_args(c, 1, args), c->state);
    }
    const int backward = c->shape.pass == BENCH_FORWARD_BACKWARD;
    const size_t scratch =
        backward && size.backward_scratch > size.forward_scratch ? size.backward_scratch : size.forward_scratch;
    c->exec = (gma_exec){.struct_size = sizeof c->exec,
                         .threads = c->shape.threads,
                         .scratch_bytes = scratch,
                         .saved_bytes = backward ? size.saved : 0};
    status = bench_allocate(c->exec.scratch_bytes, &c->exec.scratch);
    return status != GMA_OK ? status : bench_allocate(c->exec.saved_bytes, &c->exec.saved);
}

gma_status bench_case_open(bench_case *c, const bench_shape *shape) {
    gma_mixer_desc d;
    memset(c, 0, sizeof *c);
    c->shape = *shape;
    gma_status status = gma_mixer_desc_init(&d, shape->kind);
    if (status == GMA_OK && shape->store_scores && (shape->pass == BENCH_DECODE || shape->decoded)) {
        status = gma_fail(GMA_ERR_UNSUPPORTED, "mixer 'mha' stores the scores of all tokens; it cannot decode step by step");
    }
    if (status != GMA_OK) {
        return status;
    }
    d.isa = (int32_t)shape->isa;
    d.causal |= shape->causal || shape->pass == BENCH_DECODE;
    d.batch = shape->batch;
    d.heads = shape->heads;
    d.kv_heads = shape->kv_heads;
    d.q_len = d.k_len = shape->pass == BENCH_DECODE ? 1 : shape->length;
    d.routing_dim = shape->routing_dim;
    d.value_dim = shape->dim;
    d.segments = shape->packed > 0 ? shape->packed : -1;
    d.components = counts_components(shape->kind) ? shape->components : 0; /* linear: 0 stands for R */
    if (d.components == 0) {
        c->shape.components = shape->routing_dim;
    }
    if (bench_has_slot(shape->kind, GMA_SSM_A)) {
        d.components = c->shape.components = MAMBA_STATES;
        d.kv_heads = d.heads; /* channels are not grouped */
    }
    d.store_scores = shape->store_scores;
    if (shape->decoded && keeps_keys(shape->kind)) {
        d.cache_len = shape->length;
    }
    if (has_cache(shape)) {
        d.window = shape->length; /* so that each step sees as many keys as the first */
    }
    status = gma_mixer_create(&d, &c->mixer);
    if (status == GMA_OK) {
        status = make_tensors(c);
    }
    return status == GMA_OK ? make_work(c) : status;
}

void bench_case_close(bench_case *c) {
    for (int i = 0; i < c->forward_count; i++) {
        free(c->forward[i].tensor.data);
    }
    for (int i = 0; i < c->backward_count; i++) {
        if ((c->backward[i].slot & GMA_GRAD_BIT) != 0) {
            free(c->backward[i].tensor.data);
        }
    }
    free(c->exec.scratch);
    free(c->exec.saved);
    free(c->state);
    gma_mixer_destroy(c->mixer);
    memset(c, 0, sizeof *c);
}

gma_status bench_case_run(bench_case *c) {
    if (c->shape.pass == BENCH_DECODE) {
        gma_arg args[BENCH_MAX_ARGS];
        return gma_mixer_step(c->mixer, args, decode_args(c, 0, args), c->state, c->shape.threads);
    }
    gma_status status = gma_mixer_forward(c->mixer, c->forward, c->forward_count, &c->exec);
    if (status == GMA_OK && c->shape.pass == BENCH_FORWARD_BACKWARD) {
        status = gma_mixer_backward(c->mixer, c->backward, c->backward_count, &c->exec);
    }
    return status;
}

const gma_tensor *bench_case_find(const bench_case *c, int32_t slot) {
    for (int i = 0; i < c->backward_count; i++) {
        if (c->backward[i].slot == slot) {
            return &c->backward[i].tensor;
        }
    }
    return NULL;
}

size_t bench_case_workspace(const bench_case *c) { return c->exec.scratch_bytes + c->exec.saved_bytes + c->state_bytes; }

/* mamba, for each channel and state: delta A, delta u B, the recurrence and C h (2 each) forward, exp not counted; the
 * recurrence again and its eight products backward. */
static double scan_flops(const bench_shape *s) {
    const double tokens = (double)s->batch * (s->pass == BENCH_DECODE ? 1.0 : (double)s->length);
    return tokens * (double)(s->heads * s->dim) * MAMBA_STATES * (s->pass == BENCH_FORWARD_BACKWARD ? 6 + 20 : 6);
}

/* linformer: k' and v' (2PR + 2PD a key), logits and o (as much a query); backward the same twice more, and logits again. */
static double projection_flops(const bench_shape *s) {
    const double tokens = (double)s->batch * (double)s->length, p = (double)s->components;
    const double pr = p * (double)s->routing_dim, pd = p * (double)s->dim, each = s->pass == BENCH_FORWARD_BACKWARD ? 6 : 2;
    const double again = s->pass == BENCH_FORWARD_BACKWARD ? 2 * pr : 0;
    return tokens * ((double)s->kv_heads * each * (pr + pd) + (double)s->heads * (each * (pr + pd) + again));
}

/* Useful work of a token, K components, widths R and D; half of the logits belongs to the query, half to the key.
 *   forward    query 4KR + 2KD    key 4KR + 2KD     logits: 2 FMA a term; reading S, writing S
 *   backward   query 12KR + 4KD   key 12KR + 6KD    logits again, dx, parameters; five products with the state
 * softmax    for each pair of a query and a key it sees 2R + 2D; backward 6R + 4D: the scores again, and four products;
 *            packed: as if all sequences were of the mean length
 * performer: one product where GMA has two (2KR), in backward that and dx; linear: K = R and no product.
 * What a chunk needs within itself, exp, and packing are not counted: they are how, not what. */
double bench_useful_flops(const bench_shape *s) {
    if (bench_has_slot(s->kind, GMA_SSM_A)) {
        return scan_flops(s);
    }
    if (bench_has_slot(s->kind, GMA_PROJ_K)) {
        return projection_flops(s);
    }
    if (s->kind == GMA_MIXER_SOFTMAX) {
        const double rows = (double)(s->packed > 0 ? s->packed : s->batch), n = (double)(s->batch * s->length) / rows;
        const double r = (double)s->routing_dim, d = (double)s->dim;
        const double pairs = s->pass == BENCH_DECODE ? n : s->causal ? n * (n + 1) / 2 : n * n;
        return rows * (double)s->heads * pairs * (s->pass == BENCH_FORWARD_BACKWARD ? 8 * r + 6 * d : 2 * r + 2 * d);
    }
    const int mixture = bench_has_slot(s->kind, GMA_MU), products = bench_has_slot(s->kind, GMA_FEATURES);
    const double features = (double)(counts_components(s->kind) ? s->components : s->routing_dim);
    const double kd = features * (double)s->dim, kr = features * (double)s->routing_dim;
    const double phi = mixture ? 4 * kr : products ? 2 * kr : 0, phi_backward = mixture ? 12 * kr : 2 * phi;
    double query = phi + 2 * kd, key = phi + 2 * kd;
    if (s->pass == BENCH_FORWARD_BACKWARD) {
        query += phi_backward + 4 * kd;
        key += phi_backward + 6 * kd;
    }
    const double tokens = (double)s->batch * (s->pass == BENCH_DECODE ? 1.0 : (double)s->length);
    return tokens * ((double)s->heads * query + (double)s->kv_heads * key);
}
