#include "train/mixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/rng.h"
#include "layers/try.h"
#include "models/net.h"

enum { PASSES = 2, ROUNDS = 10, MAX_POINTS = 4096 };

static int is_gma(const gmal_layout *l, int64_t i) { return l->blocks[i].mixer.spec.mixer == GMA_MIXER_GMA; }

/* Offset of a parameter of the mixture of layer i. */
static int64_t offset_of(const gmal_layout *l, int64_t i, int32_t slot) {
    const gmal_sub *m = &l->blocks[i].mixer;
    for (int j = 0; j < m->slots; j++)
        if (m->slot[j].slot == slot) return m->slot[j].offset;
    return -1;
}

gma_status gmal_mixture_check(const gma_settings *s) {
    const int other_means = s->mu_std < 1 || s->mu_std > 1;
    const char *name = s->mixture_init != GMAL_MIXTURE_DRAWN ? "mixture_init"
                       : other_means                         ? "mu_std"
                       : s->freeze_mixture                   ? "freeze_mixture"
                       : s->tied_variances                   ? "tied_variances"
                                                             : NULL;
    if (!name) return GMA_OK;
    if (!gmal_config_has(&s->model, GMA_MIXER_GMA))
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "%s: no layer has Gaussians (mixer gma)", name);
    if (s->mixture_init == GMAL_MIXTURE_KMEANS && other_means)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mu_std is of mixture_init drawn: k-means puts the means where the data are");
    if (s->mixture_init == GMAL_MIXTURE_KMEANS && s->recompute)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "mixture_init kmeans needs the activations that recompute does not keep");
    return GMA_OK;
}

static void spread(const gma_settings *s, const gmal_layout *l, float *values) {
    for (int64_t j = 0; j < l->param_count; j++)
        for (int64_t i = 0; l->params[j].init == GMAL_INIT_NORMAL && i < l->params[j].count; i++)
            values[l->params[j].offset + i] *= (float)s->mu_std;
}

static void tie(float *g, int64_t heads, int64_t k, int64_t r) {
    for (int64_t h = 0; h < heads; h++, g += k * r)
        for (int64_t i = 0; i < r; i++) {
            double sum = 0;
            for (int64_t j = 0; j < k; j++) sum += (double)g[j * r + i];
            for (int64_t j = 0; j < k; j++) g[j * r + i] = (float)(sum / sqrt((double)k));
        }
}

void gmal_mixture_gradients(const gma_settings *s, const gmal_layout *l, float *grads) {
    static const int32_t slots[] = {GMA_MU, GMA_OMEGA, GMA_ALPHA};
    for (int64_t i = 0; (s->freeze_mixture || s->tied_variances) && i < l->c.layers; i++) {
        if (!is_gma(l, i)) continue;
        const int64_t k = l->blocks[i].mixer.spec.components, r = l->c.routing_dim, heads = l->c.kv_heads;
        if (s->tied_variances) tie(grads + offset_of(l, i, GMA_OMEGA), heads, k, r);
        for (size_t j = 0; s->freeze_mixture && j < sizeof slots / sizeof slots[0]; j++)
            memset(grads + offset_of(l, i, slots[j]), 0, (size_t)(heads * k * (slots[j] == GMA_ALPHA ? 1 : r)) * sizeof *grads);
    }
}

/* ---- k-means -------------------------------------------------------------------------------------------------- */

typedef struct cloud {
    int64_t points, capacity, r, k;
    float *x;        /* (points, r) */
    float *mean;     /* (k, r) */
    int32_t *of;     /* (points): which cluster */
    double *sum;     /* (k, r) */
    double *near;    /* (points): squared distance to the nearest mean so far */
    int64_t *size;   /* (k) */
} cloud;

static void free_cloud(cloud *c) {
    free(c->x);
    free(c->mean);
    free(c->of);
    free(c->sum);
    free(c->near);
    free(c->size);
}

static int make_cloud(cloud *c) {
    const size_t n = (size_t)c->capacity, r = (size_t)c->r, k = (size_t)c->k;
    c->x = malloc(n * r * sizeof *c->x);
    c->mean = malloc(k * r * sizeof *c->mean);
    c->of = malloc(n * sizeof *c->of);
    c->sum = malloc(k * r * sizeof *c->sum);
    c->near = malloc(n * sizeof *c->near);
    c->size = malloc(k * sizeof *c->size);
    return c->x && c->mean && c->of && c->sum && c->near && c->size;
}

static double distance(const float *a, const float *b, int64_t r) {
    double sum = 0;
    for (int64_t i = 0; i < r; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* First means as k-means++ draws them: a point with a chance in proportion to its squared distance from those drawn. */
static void draw_means(cloud *c, uint64_t key) {
    for (int64_t i = 0; i < c->points; i++) c->near[i] = INFINITY;
    for (int64_t j = 0; j < c->k; j++) {
        double total = 0;
        for (int64_t i = 0; j > 0 && i < c->points; i++) {
            const double d = distance(c->x + i * c->r, c->mean + (j - 1) * c->r, c->r);
            if (d < c->near[i]) c->near[i] = d;
            total += c->near[i];
        }
        const double u = gmal_uniform(key, (uint64_t)j);
        int64_t at = (int64_t)(u * (double)c->points); /* the first, and where all points are drawn already */
        double left = u * total;
        for (int64_t i = 0; total > 0 && i < c->points; i++) {
            at = c->near[i] > 0 ? i : at;
            left -= c->near[i];
            if (left < 0) break;
        }
        memcpy(c->mean + j * c->r, c->x + at * c->r, (size_t)c->r * sizeof *c->mean);
    }
}

static void assign(cloud *c, int threads) {
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads)
#endif
    for (int64_t i = 0; i < c->points; i++) {
        double best = INFINITY;
        for (int64_t j = 0; j < c->k; j++) {
            const double d = distance(c->x + i * c->r, c->mean + j * c->r, c->r);
            if (d < best) {
                best = d;
                c->of[i] = (int32_t)j;
            }
        }
    }
    memset(c->size, 0, (size_t)c->k * sizeof *c->size);
    for (int64_t i = 0; i < c->points; i++) c->size[c->of[i]]++;
}

/* An empty cluster keeps its mean. */
static void update(cloud *c) {
    memset(c->sum, 0, (size_t)(c->k * c->r) * sizeof *c->sum);
    for (int64_t i = 0; i < c->points; i++)
        for (int64_t m = 0; m < c->r; m++) c->sum[c->of[i] * c->r + m] += (double)c->x[i * c->r + m];
    for (int64_t j = 0; j < c->k; j++)
        for (int64_t m = 0; c->size[j] > 0 && m < c->r; m++)
            c->mean[j * c->r + m] = (float)(c->sum[j * c->r + m] / (double)c->size[j]);
}

/* The mixture of a head from its clusters. tied: all variances are those within all clusters. */
static void write_mixture(cloud *c, const gma_settings *s, float *mu, float *omega, float *alpha) {
    const double prior = 8; /* so many points of the common variance in each cluster */
    memcpy(mu, c->mean, (size_t)(c->k * c->r) * sizeof *mu);
    memset(c->sum, 0, (size_t)(c->k * c->r) * sizeof *c->sum);
    for (int64_t i = 0; i < c->points; i++)
        for (int64_t m = 0; m < c->r; m++) {
            const double d = (double)c->x[i * c->r + m] - (double)c->mean[c->of[i] * c->r + m];
            c->sum[c->of[i] * c->r + m] += d * d;
        }
    for (int64_t m = 0; m < c->r; m++) {
        double all = 0;
        for (int64_t j = 0; j < c->k; j++) all += c->sum[j * c->r + m];
        all = all / (double)c->points + 1e-3;
        for (int64_t j = 0; j < c->k; j++) {
            const double own = (c->sum[j * c->r + m] + prior * all) / ((double)c->size[j] + prior);
            omega[j * c->r + m] = (float)log(expm1((s->tied_variances ? all : own)));
        }
    }
    for (int64_t j = 0; j < c->k; j++)
        alpha[j] = (float)log(((double)c->size[j] + 1) / (double)(c->points + c->k) * (double)c->k);
}

/* ---- What a layer was given ----------------------------------------------------------------------------------- */

/* Some rows of width r, `every` apart, into the cloud. */
static void take(cloud *c, const float *rows, int64_t ld, int64_t count, int64_t every) {
    for (int64_t i = 0; i < count && c->points < c->capacity; i += every)
        memcpy(c->x + c->points++ * c->r, rows + i * ld, (size_t)c->r * sizeof *c->x);
}

static gma_status finite(const cloud *c, int64_t layer) {
    for (int64_t i = 0; i < c->points * c->r; i++)
        if (!isfinite(c->x[i]))
            return gma_fail(GMA_ERR_NON_FINITE, "mixture_init kmeans: a query or key of layer %lld is not finite", (long long)layer);
    return GMA_OK;
}

/* Every head's cloud of layer i, from the first batches. */
static gma_status collect(const gma_settings *s, gmal_task *task, const gmal_layout *l, int64_t i, const float *values,
                          float *grads, cloud *clouds) {
    const int64_t heads = l->c.heads, group = heads / l->c.kv_heads, r = l->c.routing_dim;
    for (int64_t h = 0; h < l->c.kv_heads; h++) clouds[h].points = 0;
    for (int64_t p = 0; p < PASSES; p++) {
        double loss;
        TRY(task->ops->pass(task, p * s->batch, values, grads, 1, 1, &loss));
        const gmal_routing_f32 now = gmal_net_routing_f32(task->net, i);
        const int64_t rows = task->ops->amount(task, p * s->batch, s->batch).tokens;
        const int64_t room = clouds[0].capacity / PASSES / (group + 1);
        const int64_t every = (rows + room - 1) / room;
        for (int64_t h = 0; h < l->c.kv_heads; h++) {
            for (int64_t g = 0; g < group; g++) take(&clouds[h], now.q + (h * group + g) * r, now.ld, rows, every);
            take(&clouds[h], now.k + h * r, now.ld, rows, every);
        }
    }
    for (int64_t h = 0; h < l->c.kv_heads; h++) TRY(finite(&clouds[h], i));
    return GMA_OK;
}

static gma_status set_layer(const gma_settings *s, gmal_task *task, const gmal_layout *l, int64_t i, float *values,
                            float *grads, cloud *clouds, int threads) {
    const int64_t k = l->blocks[i].mixer.spec.components, r = l->c.routing_dim;
    TRY(collect(s, task, l, i, values, grads, clouds));
    for (int64_t h = 0; h < l->c.kv_heads; h++) {
        cloud *c = &clouds[h];
        draw_means(c, gmal_key(gmal_key((uint64_t)s->seed, 4), (uint64_t)(i * l->c.kv_heads + h)));
        for (int round = 0; round < ROUNDS; round++) {
            assign(c, threads);
            update(c);
        }
        assign(c, threads);
        write_mixture(c, s, values + offset_of(l, i, GMA_MU) + h * k * r, values + offset_of(l, i, GMA_OMEGA) + h * k * r,
                      values + offset_of(l, i, GMA_ALPHA) + h * k);
    }
    return GMA_OK;
}

static gma_status kmeans(const gma_settings *s, gmal_task *task, const gmal_layout *l, float *values, float *grads, int threads) {
    const int64_t heads = l->c.kv_heads;
    if (!task->net) return gma_fail(GMA_ERR_UNSUPPORTED, "mixture_init kmeans: not for this task");
    gma_status status = GMA_OK;
    for (int64_t i = 0; status == GMA_OK && i < l->c.layers; i++) {
        if (!is_gma(l, i)) continue;
        cloud *clouds = calloc((size_t)heads, sizeof *clouds);
        int made = clouds != NULL;
        for (int64_t h = 0; made && h < heads; h++) {
            clouds[h] = (cloud){.capacity = MAX_POINTS, .r = l->c.routing_dim, .k = l->blocks[i].mixer.spec.components};
            made = make_cloud(&clouds[h]);
        }
        status = made ? set_layer(s, task, l, i, values, grads, clouds, threads)
                      : gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for k-means of %lld heads", (long long)heads);
        for (int64_t h = 0; clouds && h < heads; h++) free_cloud(&clouds[h]);
        free(clouds);
    }
    return status;
}

gma_status gmal_mixture_start(const gma_settings *s, gmal_task *task, const gmal_layout *l, float *values, float *grads,
                              int threads) {
    if (s->mixture_init == GMAL_MIXTURE_KMEANS) return kmeans(s, task, l, values, grads, threads);
    spread(s, l, values);
    return GMA_OK;
}
