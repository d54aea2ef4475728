/* Descriptors: every field that can be wrong, and the message that names it. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gma/gma.h"
#include "support/check.h"
#include "support/problem.h"

static gma_mixer_desc good(void) { return tst_desc(1, 2, 4, 2, 5, 5, 3, 2, 2); }

static void refused(const gma_mixer_desc *d, const char *field) {
    gma_mixer *m = (gma_mixer *)(void *)&m;
    TST_ERROR(gma_mixer_create(d, &m), GMA_ERR_INVALID_ARGUMENT, field);
    assert_null(m);
}

static void sizes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t at;
        int64_t wrong[3];
        int count;
    } rows[] = {{"batch", offsetof(gma_mixer_desc, batch), {-1, INT64_MIN}, 2},
                {"heads", offsetof(gma_mixer_desc, heads), {-1, 3, INT64_MIN}, 3},
                {"kv_heads", offsetof(gma_mixer_desc, kv_heads), {-1, 3, 8}, 3},
                {"q_len", offsetof(gma_mixer_desc, q_len), {-1, INT64_MIN}, 2},
                {"k_len", offsetof(gma_mixer_desc, k_len), {-1, INT64_MIN}, 2},
                {"routing_dim", offsetof(gma_mixer_desc, routing_dim), {-1, 0}, 2},
                {"value_dim", offsetof(gma_mixer_desc, value_dim), {-1, INT64_MIN}, 2},
                {"components", offsetof(gma_mixer_desc, components), {-1, 0}, 2},
                {"segments", offsetof(gma_mixer_desc, segments), {-2, INT64_MIN}, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int j = 0; j < rows[i].count; j++) {
            gma_mixer_desc d = good();
            memcpy((char *)&d + rows[i].at, &rows[i].wrong[j], sizeof(int64_t));
            refused(&d, rows[i].name);
        }
    }
}

static void numbers_are_named(void **state) {
    (void)state;
    static const double wrong[] = {0, -1, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gma_mixer_desc d = good();
        d.eps = wrong[i];
        refused(&d, "eps ");
        d = good();
        d.eps_sigma = wrong[i];
        refused(&d, "eps_sigma");
    }
    gma_mixer_desc d = good();
    d.causal = 2;
    refused(&d, "causal");
    d.causal = -1;
    refused(&d, "causal");
    d = good();
    d.isa = 77;
    refused(&d, "isa");
    d.isa = -1;
    refused(&d, "isa");
    d = good();
    d.kind = 99;
    refused(&d, "kind");
    d = good();
    d.struct_size = 8;
    refused(&d, "struct_size");
    d.struct_size = 0;
    refused(&d, "struct_size");
}

/* Options of other mixers are refused by name, not ignored. */
static void options_it_lacks(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t at;
        int is_double;
    } rows[] = {{"scale", offsetof(gma_mixer_desc, scale), 1},
                {"rotary_base", offsetof(gma_mixer_desc, rotary_base), 1},
                {"window", offsetof(gma_mixer_desc, window), 0},
                {"cache_len", offsetof(gma_mixer_desc, cache_len), 0}};
    static const double wrong[] = {1, -1, 1e9, NAN, INFINITY};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t j = 0; j < sizeof wrong / sizeof *wrong; j++) {
            gma_mixer_desc d = good();
            const int64_t whole = isfinite(wrong[j]) ? (int64_t)wrong[j] : INT64_MIN;
            memcpy((char *)&d + rows[i].at, rows[i].is_double ? (const void *)&wrong[j] : &whole, 8);
            refused(&d, rows[i].name);
        }
    }
    gma_mixer_desc d = good();
    d.store_scores = 1;
    refused(&d, "store_scores");
    d = good();
    d.reserved2 = 1;
    refused(&d, "reserved2");
}

static void packed_needs_one_row(void **state) {
    (void)state;
    gma_mixer_desc d = good();
    d.segments = 2;
    refused(&d, "batch");
    d.batch = 1;
    d.q_len = 4;
    refused(&d, "q_len");
}

/* Products that no machine holds are refused, not wrapped. */
static void too_large(void **state) {
    (void)state;
    static const int64_t sizes[] = {INT64_MAX, INT64_MAX / 2, (int64_t)1 << 62, (int64_t)1 << 41};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int field = 0; field < 6; field++) {
            gma_mixer_desc d = good();
            int64_t *fields[] = {&d.batch, &d.q_len, &d.k_len, &d.value_dim, &d.components, &d.routing_dim};
            *fields[field] = sizes[i];
            refused(&d, "large");
        }
    }
    gma_mixer_desc d = good();
    d.heads = d.kv_heads = INT64_MAX;
    refused(&d, "large");
}

static void nulls(void **state) {
    (void)state;
    gma_mixer_desc d = good();
    gma_mixer *m = NULL;
    TST_ERROR(gma_mixer_create(NULL, &m), GMA_ERR_INVALID_ARGUMENT, "desc");
    TST_ERROR(gma_mixer_create(&d, NULL), GMA_ERR_INVALID_ARGUMENT, "mixer");
    TST_ERROR(gma_mixer_desc_init(NULL, GMA_MIXER_GMA), GMA_ERR_INVALID_ARGUMENT, "desc");
    TST_ERROR(gma_mixer_desc_init(&d, (gma_mixer_kind)99), GMA_ERR_INVALID_ARGUMENT, "kind");
    gma_mixer_destroy(NULL);
    gma_mixer_size size = {.struct_size = sizeof size};
    TST_ERROR(gma_mixer_sizes(NULL, 1, &size), GMA_ERR_INVALID_ARGUMENT, "mixer");
    TST_ERROR(gma_mixer_get_desc(NULL, &d), GMA_ERR_INVALID_ARGUMENT, "mixer");
    d = good();
    TST_OK(gma_mixer_create(&d, &m));
    TST_ERROR(gma_mixer_sizes(m, 1, NULL), GMA_ERR_INVALID_ARGUMENT, "size");
    size.struct_size = 1;
    TST_ERROR(gma_mixer_sizes(m, 1, &size), GMA_ERR_INVALID_ARGUMENT, "struct_size");
    size.struct_size = sizeof size;
    TST_ERROR(gma_mixer_sizes(m, -1, &size), GMA_ERR_INVALID_ARGUMENT, "threads");
    TST_ERROR(gma_mixer_get_desc(m, NULL), GMA_ERR_INVALID_ARGUMENT, "desc");
    gma_mixer_destroy(m);
}

static void defaults_are_filled_in(void **state) {
    (void)state;
    gma_mixer_desc d, got;
    TST_OK(gma_mixer_desc_init(&d, GMA_MIXER_GMA));
    assert_int_equal(d.struct_size, sizeof d);
    assert_true(d.eps == 1e-6 && d.eps_sigma == 1e-4);
    assert_int_equal(d.segments, -1);
    assert_int_equal(d.causal, 0);
    d.heads = 6;
    d.routing_dim = d.components = 1;
    gma_mixer *m = NULL;
    TST_OK(gma_mixer_create(&d, &m));
    TST_OK(gma_mixer_get_desc(m, &got));
    assert_int_equal(got.kv_heads, 6);
    assert_int_not_equal(got.isa, GMA_ISA_AUTO);
    gma_mixer_destroy(m);
}

/* The size of scratch does not depend on the length; `saved` is all that grows, and less than the inputs. */
static void scratch_does_not_grow(void **state) {
    (void)state;
    size_t forward[2] = {0}, backward[2] = {0};
    for (int i = 0; i < 2; i++) {
        const int64_t N = i ? 1 << 20 : 1 << 14;
        gma_mixer_desc d = tst_desc(1, 1, 8, 8, N, N, 128, 64, 64);
        gma_mixer *m = NULL;
        gma_mixer_size size = {.struct_size = sizeof size};
        TST_OK(gma_mixer_create(&d, &m));
        TST_OK(gma_mixer_sizes(m, 2, &size));
        forward[i] = size.forward_scratch;
        backward[i] = size.backward_scratch;
        assert_true(size.saved < (size_t)N * 8 * 64 * sizeof(float));
        gma_mixer_destroy(m);
    }
    assert_int_equal(forward[0], forward[1]);
    assert_int_equal(backward[0], backward[1]);
}

/* Kinds: each has a name, a slot table with known dims, and is found by its name. */
static void kinds(void **state) {
    (void)state;
    int found = 0;
    for (int k = -1; k < 200; k++) {
        const gma_mixer_kind kind = (gma_mixer_kind)k;
        const char *name = gma_mixer_kind_name(kind);
        int count = -1;
        const gma_slot_info *slots = gma_mixer_slots(kind, &count);
        assert_true(!name == !slots);
        if (!name)
            continue;
        found++;
        gma_mixer_kind back;
        TST_OK(gma_mixer_kind_from_name(name, &back));
        assert_int_equal(back, kind);
        assert_true(count > 0);
        for (int i = 0; i < count; i++) {
            assert_non_null(gma_slot_name(slots[i].slot));
            const char *dims = gma_slot_dims(&slots[i], -1), *most = gma_slot_dims(&slots[i], (int)strlen(slots[i].dims) - 1);
            assert_int_equal(strspn(dims, "BhHqkKMPRDES+"), strlen(dims));
            assert_int_equal(strlen(most), strlen(dims) + (slots[i].dims[0] == '?'));
            assert_true(slots[i].dtypes != 0);
            for (int j = 0; j < i; j++)
                assert_int_not_equal(slots[i].slot, slots[j].slot);
        }
    }
    assert_true(found >= 1);
    gma_mixer_kind kind;
    TST_ERROR(gma_mixer_kind_from_name("nosuch", &kind), GMA_ERR_INVALID_ARGUMENT, "gma");
    TST_ERROR(gma_mixer_kind_from_name(NULL, &kind), GMA_ERR_INVALID_ARGUMENT, NULL);
    assert_string_equal(gma_slot_name(GMA_LOG_DECAY), "log_decay");
    assert_string_equal(gma_slot_name(GMA_GRAD(GMA_OUT_S)), "grad_out_S");
    assert_null(gma_slot_name(20));
    assert_null(gma_slot_name(GMA_GRAD(20)));
    assert_null(gma_slot_name(-1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_named),
        cmocka_unit_test(numbers_are_named),
        cmocka_unit_test(options_it_lacks), cmocka_unit_test(packed_needs_one_row),
        cmocka_unit_test(too_large),
        cmocka_unit_test(nulls),
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(scratch_does_not_grow),
        cmocka_unit_test(kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
