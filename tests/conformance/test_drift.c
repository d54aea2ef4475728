/* A long stream: zeros of v, then ones; with K = R = D = 1 the output is the running mean, and plain f32 sums would
 * have stopped growing at 2^24. By default the stream starts from a saved state shortly before that point; with
 * GMA_TEST_LONG=1 it is the whole of it, 10^8 steps of each (some minutes). */
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/problem.h"

/* Z = z0 and S = 0, then `zeros` steps of v = 0, then `ones` of v = 1. */
static void stream(gma_isa isa, int64_t z0, int64_t zeros, int64_t ones) {
    gma_mixer_desc d = tst_desc(1, 1, 1, 1, 1, 1, 1, 1, 1);
    d.isa = isa;
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&d, &m));
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_OK(gma_mixer_sizes(m, 1, &size));
    void *state = aligned_alloc(64, (size.state + 63) / 64 * 64);
    assert_non_null(state);
    float zero = 0, v = 0, o = 0;
    double S = 0, Z = (double)z0;
    gma_arg params[8] = {{GMA_STATE_S, gma_tensor_of(&S, GMA_F64, 4, 1, 1, 1, 1)},
                         {GMA_STATE_Z, gma_tensor_of(&Z, GMA_F64, 3, 1, 1, 1, 0)}};
    int count = 2, rows = 0;
    const gma_slot_info *table = gma_mixer_slots(tst_mixer, &rows);
    for (int i = 0; i < rows; i++) {
        if (table[i].role == GMA_ROLE_PARAM && table[i].required)
            params[count++] = (gma_arg){table[i].slot, gma_tensor_of(&zero, GMA_F32, (int)strlen(table[i].dims), 1, 1, 1, 1)};
    }
    TST_OK(gma_mixer_state_init(m, params, count, state));
    const gma_arg args[] = {{GMA_Q, gma_tensor_of(&zero, GMA_F32, 4, 1, 1, 1, 1)},
                            {GMA_K, gma_tensor_of(&zero, GMA_F32, 4, 1, 1, 1, 1)},
                            {GMA_V, gma_tensor_of(&v, GMA_F32, 4, 1, 1, 1, 1)},
                            {GMA_O, gma_tensor_of(&o, GMA_F32, 4, 1, 1, 1, 1)}};
    const gma_arg out[] = {{GMA_OUT_S, gma_tensor_of(&S, GMA_F64, 4, 1, 1, 1, 1)},
                           {GMA_OUT_Z, gma_tensor_of(&Z, GMA_F64, 3, 1, 1, 1, 0)}};
    for (int64_t t = 0; t < zeros + ones; t++) {
        v = t >= zeros;
        if (gma_mixer_step(m, args, 4, state, 1) != GMA_OK)
            tst_fail("step %lld: %s", (long long)t, gma_last_error());
    }
    TST_OK(gma_mixer_state_export(m, state, out, 2));
    const double total = (double)(z0 + zeros + ones), mean = (double)ones / total;
    TST_CLOSE((double)o, mean, 1e-5 * mean);
    TST_CLOSE(Z, total, 1e-5 * total);
    TST_CLOSE(S, (double)ones, 1e-5 * (double)ones);
    free(state);
    gma_mixer_destroy(m);
}

static void near_the_limit_of_f32(void **state) {
    (void)state;
    static const gma_isa tiers[] = {GMA_ISA_SCALAR, GMA_ISA_NEON, GMA_ISA_AVX2, GMA_ISA_AVX512, GMA_ISA_AMX};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        if (gma_isa_supported(tiers[i]))
            stream(tiers[i], (1 << 24) - 1000, 2000, 500000);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(near_the_limit_of_f32), cmocka_unit_test(whole_stream)};
    return tst_for_linear_mixers(tests, sizeof tests / sizeof *tests);
}
