/* A safetensors file is: 8 bytes length n (little-endian), n bytes JSON, data. Here the JSON must be one object of
 * "name":{"dtype":"F64","shape":[..],"data_offsets":[a,b]} and "__metadata__":{"key":"value",..}, no escapes; the data
 * must be covered exactly, in any order. Anything else is refused. */
#include "support/golden_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"

typedef struct text {
    const char *at, *end;
    const char *file;
} text;

static void malformed(const text *t, const char *what) {
    tst_fail("%s: malformed: expected %s at \"%.20s\"", t->file, what, t->at < t->end ? t->at : "the end");
}

static void skip_space(text *t) {
    while (t->at < t->end && strchr(" \t\r\n", *t->at) && *t->at)
        t->at++;
}

static int accept(text *t, char c) {
    skip_space(t);
    if (t->at < t->end && *t->at == c)
        return t->at++, 1;
    return 0;
}

static void expect(text *t, char c) {
    const char what[2] = {c, 0};
    if (!accept(t, c))
        malformed(t, what);
}

static void string(text *t, char *out, size_t size) {
    size_t n = 0;
    expect(t, '"');
    while (t->at < t->end && *t->at != '"') {
        if (*t->at == '\\' || n + 1 >= size)
            malformed(t, "a short string without escapes");
        out[n++] = *t->at++;
    }
    out[n] = 0;
    expect(t, '"');
}

static int integers(text *t, int64_t *out, int max) {
    int n = 0;
    expect(t, '[');
    if (accept(t, ']'))
        return 0;
    do {
        skip_space(t);
        int64_t value = 0;
        int digits = 0;
        for (; t->at < t->end && *t->at >= '0' && *t->at <= '9' && digits < 18; t->at++, digits++)
            value = value * 10 + (*t->at - '0');
        if (!digits || n == max)
            malformed(t, "a few integers");
        out[n++] = value;
    } while (accept(t, ','));
    expect(t, ']');
    return n;
}

typedef struct entry {
    char name[64], dtype[8];
    tst_array a; /* shape */
    int64_t span[2];
} entry;

static entry tensor_entry(text *t, const char *name) {
    entry e;
    int seen = 0;
    memset(&e, 0, sizeof e);
    (void)snprintf(e.name, sizeof e.name, "%s", name);
    expect(t, '{');
    do {
        char key[32];
        string(t, key, sizeof key);
        expect(t, ':');
        if (strcmp(key, "dtype") == 0) {
            string(t, e.dtype, sizeof e.dtype);
            seen |= 1;
        } else if (strcmp(key, "shape") == 0) {
            e.a.rank = integers(t, e.a.shape, GMA_MAX_RANK);
            seen |= 2;
        } else if (strcmp(key, "data_offsets") == 0 && integers(t, e.span, 2) == 2) {
            seen |= 4;
        } else {
            malformed(t, "dtype, shape or data_offsets");
        }
    } while (accept(t, ','));
    expect(t, '}');
    if (seen != 7)
        malformed(t, "dtype, shape and data_offsets");
    e.a.n = 1;
    for (int i = 0; i < e.a.rank; i++)
        e.a.n *= e.a.shape[i];
    return e;
}

static void metadata(text *t, tst_problem *p) {
    expect(t, '{');
    do {
        char key[32], value[32];
        string(t, key, sizeof key);
        expect(t, ':');
        string(t, value, sizeof value);
        if (strcmp(key, "causal") == 0)
            p->desc.causal = strcmp(value, "1") == 0;
        else if (strcmp(key, "eps") == 0)
            p->desc.eps = strtod(value, NULL);
        else if (strcmp(key, "eps_sigma") == 0)
            p->desc.eps_sigma = strtod(value, NULL);
        else
            malformed(t, "causal, eps or eps_sigma");
    } while (accept(t, ','));
    expect(t, '}');
}

static tst_array read_values(const entry *e, const unsigned char *data, int64_t bytes, const char *file) {
    const int64_t size = strcmp(e->dtype, "BOOL") == 0 ? 1 : 8;
    if (e->span[0] > e->span[1] || e->span[1] > bytes || e->span[1] - e->span[0] != e->a.n * size)
        tst_fail("%s: %s: data_offsets do not fit the shape or the file", file, e->name);
    const tst_array a = tst_array_like(&e->a);
    const unsigned char *from = data + e->span[0];
    for (int64_t i = 0; i < a.n; i++) {
        int64_t integer = 0;
        if (strcmp(e->dtype, "F64") == 0) {
            memcpy(&a.x[i], from + i * 8, 8);
        } else if (strcmp(e->dtype, "I64") == 0) {
            memcpy(&integer, from + i * 8, 8);
            a.x[i] = (double)integer;
        } else if (strcmp(e->dtype, "BOOL") == 0) {
            a.x[i] = from[i];
        } else {
            tst_fail("%s: %s: unexpected dtype %s", file, e->name, e->dtype);
        }
    }
    return a;
}

/* Where a tensor of that name goes; NULL for a name the files do not have. */
static tst_array *target(tst_golden *g, const char *name) {
    if (strcmp(name, "gamma_q") == 0)
        return &g->gamma_q;
    if (strcmp(name, "gamma_k") == 0)
        return &g->gamma_k;
    for (int slot = 0; slot < TST_SLOTS; slot++) {
        const int is_output = slot >= GMA_O;
        const char *plain = gma_slot_name(slot), *grad = gma_slot_name(GMA_GRAD(slot));
        if (plain && strcmp(name, plain) == 0)
            return is_output ? &g->want.out[slot] : &g->problem.in[slot];
        if (grad && strcmp(name, grad) == 0)
            return is_output ? &g->problem.up[slot] : &g->want.grad[slot];
    }
    return NULL;
}

static void shape_of(tst_golden *g) {
    gma_mixer_desc *d = &g->problem.desc;
    const tst_array *in = g->problem.in;
    d->batch = in[GMA_Q].shape[0];
    d->heads = in[GMA_Q].shape[1];
    d->q_len = in[GMA_Q].shape[2];
    d->routing_dim = in[GMA_Q].shape[3];
    d->kv_heads = in[GMA_K].shape[1];
    d->k_len = in[GMA_K].shape[2];
    d->value_dim = in[GMA_V].shape[3];
    d->components = in[GMA_MU].shape[1];
    d->segments = in[GMA_CU_SEQLENS].x ? in[GMA_CU_SEQLENS].n - 1 : -1;
    g->problem.backward = 1;
    g->problem.out_state = 1;
}

static unsigned char *read_file(const char *path, int64_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f)
        tst_fail("%s: cannot be opened", path);
    if (fseek(f, 0, SEEK_END) != 0 || (*size = ftell(f)) < 8 || fseek(f, 0, SEEK_SET) != 0)
        tst_fail("%s: shorter than 8 bytes", path);
    unsigned char *bytes = malloc((size_t)*size);
    if (!bytes || fread(bytes, 1, (size_t)*size, f) != (size_t)*size)
        tst_fail("%s: cannot be read", path);
    (void)fclose(f);
    return bytes;
}

tst_golden tst_golden_load(const char *name) {
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/golden/data/%s.safetensors", GMA_TESTS_DIR, name);
    tst_golden g;
    memset(&g, 0, sizeof g);
    TST_OK(gma_mixer_desc_init(&g.problem.desc, GMA_MIXER_GMA));
    int64_t size = 0, covered = 0;
    unsigned char *bytes = read_file(path, &size);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | bytes[i];
    if (header > (uint64_t)(size - 8))
        tst_fail("%s: the header is longer than the file", path);
    text t = {(const char *)bytes + 8, (const char *)bytes + 8 + header, path};
    const unsigned char *data = bytes + 8 + header;
    const int64_t data_size = size - 8 - (int64_t)header;
    expect(&t, '{');
    do {
        char key[64];
        string(&t, key, sizeof key);
        expect(&t, ':');
        if (strcmp(key, "__metadata__") == 0) {
            metadata(&t, &g.problem);
            continue;
        }
        const entry e = tensor_entry(&t, key);
        tst_array *to = target(&g, key);
        if (!to || to->x)
            tst_fail("%s: tensor %s is unknown or twice there", path, key);
        *to = read_values(&e, data, data_size, path);
        covered += e.span[1] - e.span[0];
    } while (accept(&t, ','));
    expect(&t, '}');
    skip_space(&t);
    if (t.at != t.end || covered != data_size)
        tst_fail("%s: bytes that belong to nothing", path);
    free(bytes);
    if (!g.problem.in[GMA_Q].x || !g.want.out[GMA_O].x)
        tst_fail("%s: no q or no o", path);
    shape_of(&g);
    return g;
}

void tst_golden_free(tst_golden *g) {
    tst_problem_free(&g->problem);
    tst_result_free(&g->want);
    tst_array_free(&g->gamma_q);
    tst_array_free(&g->gamma_k);
}
