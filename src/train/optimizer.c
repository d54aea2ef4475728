#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/kernels.h"
#include "layers/pages.h"

enum { PIECE = 32768 };

struct gmal_run {
    int64_t offset, count;
    int decay;
};

static int64_t runs_of(const gmal_param *p) { return p->fixed ? 0 : (p->count + PIECE - 1) / PIECE; }

gma_status gmal_adamw_create(const gmal_layout *l, gmal_adamw *opt) {
    memset(opt, 0, sizeof *opt);
    opt->layout = l;
    for (int j = 0; j < l->param_count; j++) opt->run_count += runs_of(&l->params[j]);
    const size_t bytes = ((size_t)l->total * sizeof(float) + 63) / 64 * 64;
    opt->m = gmal_pages(bytes);
    opt->v = gmal_pages(bytes);
    opt->runs = malloc((size_t)opt->run_count * sizeof *opt->runs);
    opt->partial = malloc((size_t)opt->run_count * sizeof *opt->partial);
    if (!opt->m || !opt->v || !opt->runs || !opt->partial) {
        gmal_adamw_destroy(opt);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for the optimizer");
    }
    memset(opt->m, 0, bytes);
    memset(opt->v, 0, bytes);
    int64_t n = 0;
    for (int j = 0; j < l->param_count; j++) {
        const gmal_param *p = &l->params[j];
        for (int64_t i = 0; !p->fixed && i < p->count; i += PIECE) {
            opt->runs[n].offset = p->offset + i;
            opt->runs[n].count = p->count - i < PIECE ? p->count - i : PIECE;
            opt->runs[n++].decay = p->decay;
        }
    }
    return GMA_OK;
}

void gmal_adamw_destroy(gmal_adamw *opt) {
    free(opt->m);
    free(opt->v);
    free(opt->runs);
    free(opt->partial);
    memset(opt, 0, sizeof *opt);
}

double gmal_grad_norm(const gmal_adamw *opt, const float *grads, int threads) {
    const gmal_kernels_f32 *k = gmal_get_kernels_f32();
    double sum = 0;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads)
#endif
    for (int64_t i = 0; i < opt->run_count; i++)
        opt->partial[i] = k->sum_squares(grads + opt->runs[i].offset, opt->runs[i].count);
    for (int64_t i = 0; i < opt->run_count; i++) sum += opt->partial[i];
    return sqrt(sum);
}

void gmal_adamw_apply(gmal_adamw *opt, float *params, const float *grads, const gmal_adamw_step *s, int threads) {
    const gmal_kernels_f32 *k = gmal_get_kernels_f32();
    const float c1 = (float)(1 / (1 - pow(s->beta1, (double)s->step)));
    const float c2 = (float)(1 / (1 - pow(s->beta2, (double)s->step)));
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads)
#endif
    for (int64_t i = 0; i < opt->run_count; i++) {
        const struct gmal_run *r = &opt->runs[i];
        const int64_t at = r->offset;
        k->adamw(params + at, grads + at, opt->m + at, opt->v + at, r->count, (float)s->lr, (float)s->beta1,
                 (float)s->beta2, (float)s->eps, r->decay ? (float)s->weight_decay : 0.0f, c1, c2,
                 (float)s->grad_scale);
    }
}

double gmal_learning_rate(const gma_settings *s, int64_t done) {
    const double peak = s->lr, ratio = s->min_lr_ratio;
    if (done < s->warmup) return peak * (double)(done + 1) / (double)s->warmup;
    const double span = s->steps > s->warmup ? (double)(s->steps - s->warmup) : 1;
    double at = (double)(done - s->warmup) / span;
    at = at > 1 ? 1 : at;
    switch (s->schedule) {
    case GMAL_SCHEDULE_LINEAR: return peak * (1 + (ratio - 1) * at);
    case GMAL_SCHEDULE_CONSTANT: return peak;
    default: return peak * (ratio + (1 - ratio) * 0.5 * (1 + cos(3.14159265358979323846 * at)));
    }
}
