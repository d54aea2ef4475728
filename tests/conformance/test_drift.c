/* A long stream: zeros of v, then ones; with K = R = D = 1 the output is the running mean, and plain f32 sums would
 * have stopped growing at 2^24. By default the stream starts from a saved state shortly before that point; with
 * GMA_TEST_LONG=1 it is the whole of it, 10^8 steps of each (some minutes). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"

enum { MAX_STEP_ARGS = 8 };

/* A decoding state of one head with K = R = D = 1 and parameters 0, S = 0 and Z = z0: phi is 1 for every token. */
typedef struct stream_of_one {
    gma_mixer *m;
    void *state;
    float zero, v, log_decay, o;
    double S, Z;
} stream_of_one;

static void start(stream_of_one *s, gma_isa isa, double z0) {
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 1, 1, 1);
    *s = (stream_of_one){.Z = z0};
    d.isa = isa;
    TST_OK(gma_mixer_create(&d, &s->m));
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(s->m, 1, &size));
    s->state = aligned_alloc(64, (size.state + 63) / 64 * 64);
    assert_non_null(s->state);
    gma_arg params[MAX_STEP_ARGS] = {{GMA_STATE_S, gma_tensor_of(&s->S, GMA_F64, 4, 1, 1, 1, 1)},
                                     {GMA_STATE_Z, gma_tensor_of(&s->Z, GMA_F64, 3, 1, 1, 1, 0)}};
    int count = 2, rows = 0;
    const gma_slot_info *table = gma_mixer_slots(tst_mixer, &rows);
    for (int i = 0; i < rows; i++) {
        if (table[i].role == GMA_ROLE_PARAM && table[i].required)
            params[count++] =
                (gma_arg){table[i].slot, gma_tensor_of(&s->zero, GMA_F32, (int)strlen(table[i].dims), 1, 1, 1, 1)};
    }
    TST_OK(gma_mixer_state_init(s->m, params, count, s->state));
}

static void step(stream_of_one *s, int with_decay) {
    const gma_arg args[] = {{GMA_Q, gma_tensor_of(&s->zero, GMA_F32, 4, 1, 1, 1, 1)},
                            {GMA_K, gma_tensor_of(&s->zero, GMA_F32, 4, 1, 1, 1, 1)},
                            {GMA_V, gma_tensor_of(&s->v, GMA_F32, 4, 1, 1, 1, 1)},
                            {GMA_O, gma_tensor_of(&s->o, GMA_F32, 4, 1, 1, 1, 1)},
                            {GMA_LOG_DECAY, gma_tensor_of(&s->log_decay, GMA_F32, 3, 1, 1, 1, 0)}};
    TST_OK(gma_mixer_step(s->m, args, with_decay ? 5 : 4, s->state, 1));
}

/* Into S and Z. */
static void export_sums(stream_of_one *s) {
    const gma_arg out[] = {{GMA_OUT_S, gma_tensor_of(&s->S, GMA_F64, 4, 1, 1, 1, 1)},
                           {GMA_OUT_Z, gma_tensor_of(&s->Z, GMA_F64, 3, 1, 1, 1, 0)}};
    TST_OK(gma_mixer_state_export(s->m, s->state, out, 2));
}

static void finish(stream_of_one *s) {
    free(s->state);
    gma_mixer_destroy(s->m);
}

/* Z = z0 and S = 0, then `zeros` steps of v = 0, then `ones` of v = 1. */
static void stream(gma_isa isa, int64_t z0, int64_t zeros, int64_t ones) {
    stream_of_one s;
    start(&s, isa, (double)z0);
    for (int64_t t = 0; t < zeros + ones; t++) {
        s.v = t >= zeros;
        step(&s, 0);
    }
    export_sums(&s);
    const double total = (double)(z0 + zeros + ones), mean = (double)ones / total;
    TST_CLOSE((double)s.o, mean, 1e-5 * mean);
    TST_CLOSE(s.Z, total, 1e-5 * total);
    TST_CLOSE(s.S, (double)ones, 1e-5 * (double)ones);
    finish(&s);
}

/* Values that f32 cannot hold, and decays from none to one that forgets within a few tokens: after every step within
 * 1e-5 of the recurrence in double, and the exported sums at the end too. */
static void every_step_is_near(gma_isa isa, double z0, double log_decay, int steps) {
    stream_of_one s;
    double S = 0, Z = z0;
    start(&s, isa, z0);
    for (int t = 0; t < steps; t++) {
        s.v = 0.1f + 0.01f * (float)(t % 7);
        s.log_decay = (float)(log_decay * (1 + t % 3));
        const double factor = exp((double)s.log_decay);
        S = factor * S + (double)s.v;
        Z = factor * Z + 1;
        step(&s, log_decay < 0);
        if (!(fabs((double)s.o - S / Z) <= 1e-5 * (S / Z)))
            tst_fail("%s, decay %g, step %d: %.9g, not %.9g", gma_isa_name(isa), log_decay, t, (double)s.o, S / Z);
    }
    export_sums(&s);
    TST_CLOSE(s.S, S, 1e-5 * S);
    TST_CLOSE(s.Z, Z, 1e-5 * Z);
    finish(&s);
}

static void near_the_limit_of_f32(void **state) {
    (void)state;
    static const gma_isa tiers[] = {GMA_ISA_SCALAR, GMA_ISA_NEON, GMA_ISA_AVX2, GMA_ISA_AVX512, GMA_ISA_AMX};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        if (gma_isa_supported(tiers[i]))
            stream(tiers[i], (1 << 24) - 1000, 2000, 500000);
    }
}

static void inexact_values_and_decay(void **state) {
    (void)state;
    static const gma_isa tiers[] = {GMA_ISA_SCALAR, GMA_ISA_NEON, GMA_ISA_AVX2, GMA_ISA_AVX512, GMA_ISA_AMX};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        if (!gma_isa_supported(tiers[i]))
            continue;
        every_step_is_near(tiers[i], 0, 0, 200000);
        every_step_is_near(tiers[i], 0, -1e-6, 200000);
        every_step_is_near(tiers[i], 1e6, -0.003, 20000);
        every_step_is_near(tiers[i], 1e30, -15, 1000);
    }
}

static void whole_stream(void **state) {
    (void)state;
    const char *wanted = getenv("GMA_TEST_LONG");
    if (!wanted || strcmp(wanted, "1") != 0)
        skip();
    stream(GMA_ISA_AUTO, 0, 100000000, 100000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(near_the_limit_of_f32), cmocka_unit_test(inexact_values_and_decay),
                                       cmocka_unit_test(whole_stream)};
    return tst_for_linear_mixers(tests, sizeof tests / sizeof *tests);
}
