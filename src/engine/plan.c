/* How a shape is cut into sequences, segments and groups. Everything here depends on the shape only. */
#include "engine/engine.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Tokens of the two parts of a sequence. */
static void split(const gmai_plan *p, int64_t nq, int64_t nk, int64_t *head, int64_t *tail)
{
    *tail = p->causal ? min64(nq, nk) : nq;
    *head = p->causal ? max64(nq, nk) - *tail : nk;
}

void gmai_plan_make(const gma_mixer_desc *d, gmai_plan *p)
{
    p->rows = d->batch;
    p->hq = d->heads;
    p->h = d->kv_heads;
    p->group_heads = d->kv_heads > 0 ? d->heads / d->kv_heads : 0;
    p->nq = d->q_len;
    p->nk = d->k_len;
    p->r = (int)d->routing_dim;
    p->rp = (int)gmai_pad(d->routing_dim);
    p->d = (int)d->value_dim;
    p->ld = (int)gmai_pad(d->value_dim + 1);
    p->k = (int)d->components;
    p->kp = (int)gmai_pad(p->k);
    p->causal = d->causal;
    p->packed = d->segments >= 0;
    p->eps = d->eps;
    p->sequences = p->packed ? d->segments : d->batch;
    p->state_floats = (size_t)p->k * (size_t)p->ld;
    /* One saved state of K (D + 1) floats a segment: longer segments where K is large keep that below the input's size. */
    p->segment_len = p->k <= 256 ? 512 : GMAI_MAX_SEGMENT;
    /* Packed: an empty sequence has no segment; each may end in a ragged one, of each of its parts. */
    int64_t head, tail;
    split(p, p->nq, p->nk, &head, &tail);
    p->max_segments = p->packed ? (head + tail) / p->segment_len + (p->causal ? 1 : 2) * p->sequences
                                : p->rows * (ceil_div(head, p->segment_len) + ceil_div(tail, p->segment_len));
    /* The first segment of a causal sequence starts with the caller's state; see gmai_saved_slot. */
    p->max_saved = !p->causal ? p->sequences
                   : p->packed ? (head + tail) / p->segment_len
                               : max64(0, p->max_segments - p->rows);
    /* About 32 independent pieces of work when B x H alone does not give them. */
    const int64_t units = max64(1, p->sequences * p->h);
    p->groups_wanted = units >= 32 ? 1 : min64(16, ceil_div(32, units));
    p->max_groups = min64(p->max_segments, p->sequences * p->groups_wanted);
    p->bins = max64(1, p->groups_wanted > 1 ? p->max_groups : min64(p->sequences, 16));
}

int gmai_plan_serial(const gmai_plan *p, int threads)
{
    const int64_t units = p->sequences * p->h;
    return threads <= 1 || p->groups_wanted <= 1 || units % threads == 0 || units >= 4 * threads;
}

int64_t gmai_plan_bins(const gmai_plan *p, int threads)
{
    return p->groups_wanted > 1 && gmai_plan_serial(p, threads) ? max64(1, p->sequences) : p->bins;
}

static int64_t read_offset(const gma_tensor *t, int64_t i)
{
    return t->dtype == GMA_I32 ? ((const int32_t *)t->data)[i * t->stride[0]]
                               : ((const int64_t *)t->data)[i * t->stride[0]];
}

gma_status gmai_plan_sequences(const gmai_plan *p, const gma_tensor *cu, gmai_sequence *seq)
{
    int64_t segment = 0, group = 0, saved = 0;
    for (int64_t s = 0; s < p->sequences; s++) {
        gmai_sequence *q = &seq[s];
        if (p->packed) {
            const int64_t from = read_offset(cu, s), to = read_offset(cu, s + 1);
            if (s == 0 && from != 0)
                return gma_fail(GMA_ERR_INVALID_ARGUMENT, "cu_seqlens[0] is %lld; it must be 0", (long long)from);
            if (to < from || to > p->nq)
                return gma_fail(GMA_ERR_INVALID_ARGUMENT,
                                "cu_seqlens[%lld] is %lld; it must lie between cu_seqlens[%lld] = %lld and N = %lld",
                                (long long)(s + 1), (long long)to, (long long)s, (long long)from, (long long)p->nq);
            if (s == p->sequences - 1 && to != p->nq)
                return gma_fail(GMA_ERR_INVALID_ARGUMENT, "cu_seqlens ends with %lld; it must end with N = %lld",
                                (long long)to, (long long)p->nq);
            q->row = 0;
            q->q0 = q->k0 = from;
            q->nq = q->nk = to - from;
        } else {
            q->row = s;
            q->q0 = q->k0 = 0;
            q->nq = p->nq;
            q->nk = p->nk;
        }
        split(p, q->nq, q->nk, &q->head_len, &q->tail_len);
        q->head_segments = ceil_div(q->head_len, p->segment_len);
        q->segments = q->head_segments + ceil_div(q->tail_len, p->segment_len);
        q->first_segment = segment;
        segment += q->segments;
        q->first_group = group;
        q->groups = min64(q->segments, p->groups_wanted);
        group += q->groups;
        q->first_saved = saved;
        saved += !p->causal ? 1 : q->segments > 0 ? q->segments - 1 : 0;
    }
    if (p->packed && p->sequences == 0 && p->nq != 0)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "cu_seqlens ends with 0; it must end with N = %lld", (long long)p->nq);
    return GMA_OK;
}

gmai_segment gmai_plan_segment(const gmai_plan *p, const gmai_sequence *s, int64_t i)
{
    gmai_segment g;
    const int in_head = i < s->head_segments;
    const int64_t at = (in_head ? i : i - s->head_segments) * p->segment_len;
    g.n = min64(p->segment_len, (in_head ? s->head_len : s->tail_len) - at);
    g.number = s->first_segment + i;
    if (!p->causal) {
        g.kind = in_head ? GMAI_SEG_KEYS : GMAI_SEG_QUERIES;
        g.q = s->q0 + at;
        g.k = s->k0 + at;
    } else if (in_head) {
        g.kind = s->nk > s->nq ? GMAI_SEG_KEYS : GMAI_SEG_QUERIES;
        g.q = s->q0 + at;
        g.k = s->k0 + at;
    } else {
        g.kind = GMAI_SEG_BOTH;
        g.q = s->q0 + s->nq - s->tail_len + at;
        g.k = s->k0 + s->nk - s->tail_len + at;
    }
    return g;
}

int64_t gmai_saved_slot(const gmai_plan *p, const gmai_sequence *s, int64_t i)
{
    if (p->causal) return i == 0 ? -1 : s->first_saved + i - 1;
    return i < s->head_segments ? -1 : s->first_saved;
}

void gmai_plan_group(const gmai_sequence *s, int64_t g, int64_t *begin, int64_t *end)
{
    *begin = g * s->segments / s->groups;
    *end = (g + 1) * s->segments / s->groups;
}

size_t gmai_saved_size(const gmai_plan *p)
{
    gmai_bump b = {NULL, 0};
    (void)gmai_take_floats(&b, (size_t)p->max_saved * (size_t)p->h * p->state_floats);
    (void)gmai_take_floats(&b, (size_t)(p->rows * p->hq * p->nq));
    return b.used;
}

void gmai_saved_split(const gmai_plan *p, void *saved, float **state, float **den)
{
    gmai_bump b = {saved, 0};
    *state = gmai_take_floats(&b, (size_t)p->max_saved * (size_t)p->h * p->state_floats);
    *den = gmai_take_floats(&b, (size_t)(p->rows * p->hq * p->nq));
}
