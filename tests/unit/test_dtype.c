/* Data types and views; F6: the conversion between f32 and bf16, bit by bit. */
#include <math.h>
#include <string.h>

#include "gma/gma.h"
#include "support/check.h"

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void conversion_table(void **state) {
    (void)state;
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } rows[] = {{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x7f7fffff, 0x7f80},
                {0x7f800000, 0x7f80}, {0x007fffff, 0x0080}, {0x00000001, 0x0000}, {0x80000000, 0x8000},
                {0xff800000, 0xff80}, {0xff7fffff, 0xff80}, {0x00018000, 0x0002}, {0x80018001, 0x8002}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(gma_f32_to_bf16(from_bits(rows[i].f32)), rows[i].bf16);
    static const uint32_t nans[] = {0x7f800001, 0xffc00001, 0x7fffffff, 0xffffffff, 0x7fc00000, 0xff800001};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        const uint16_t b = gma_f32_to_bf16(from_bits(nans[i]));
        assert_true((b & 0x7f80) == 0x7f80 && (b & 0x7f) != 0);
    }
}

/* Every bf16 value comes back as itself; NaN as NaN. */
static void round_trip(void **state) {
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        const float f = gma_bf16_to_f32((uint16_t)b);
        assert_int_equal(bits_of(f), b << 16);
        if (isnan(f))
            assert_true(isnan(gma_bf16_to_f32(gma_f32_to_bf16(f))));
        else
            assert_int_equal(gma_f32_to_bf16(f), b);
    }
}

/* Between two neighbours the nearer one wins, at the middle the even one. */
static void nearest_even(void **state) {
    (void)state;
    for (uint32_t b = 0; b < 0x7f80; b++) {
        const uint32_t low = b << 16;
        assert_int_equal(gma_f32_to_bf16(from_bits(low + 0x7fff)), b);
        assert_int_equal(gma_f32_to_bf16(from_bits(low + 0x8000)), b + (b & 1));
        assert_int_equal(gma_f32_to_bf16(from_bits(low + 0x8001)), b + 1);
    }
}

static void sizes_and_names(void **state) {
    (void)state;
    static const struct {
        gma_dtype dtype;
        size_t size;
        const char *name;
    } rows[] = {{GMA_F32, 4, "F32"}, {GMA_BF16, 2, "BF16"}, {GMA_F64, 8, "F64"}, {GMA_BOOL, 1, "BOOL"},
                {GMA_U8, 1, "U8"},   {GMA_I32, 4, "I32"},   {GMA_I64, 8, "I64"}, {GMA_U16, 2, "U16"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(gma_dtype_size(rows[i].dtype), rows[i].size);
        assert_string_equal(gma_dtype_name(rows[i].dtype), rows[i].name);
    }
    assert_int_equal(gma_dtype_size((gma_dtype)0), 0);
    assert_int_equal(gma_dtype_size((gma_dtype)99), 0);
    assert_non_null(gma_dtype_name((gma_dtype)99));
}

static void dense_views(void **state) {
    (void)state;
    int x = 0;
    const gma_tensor t = gma_tensor_of(&x, GMA_F32, 3, 2, 3, 5, 99);
    assert_ptr_equal(t.data, &x);
    assert_int_equal(t.rank, 3);
    assert_int_equal(t.shape[0], 2);
    assert_int_equal(t.stride[0], 15);
    assert_int_equal(t.stride[1], 5);
    assert_int_equal(t.stride[2], 1);
    const gma_tensor scalar = gma_tensor_of(&x, GMA_F64, 0, 7, 7, 7, 7);
    assert_int_equal(scalar.rank, 0);
    const gma_tensor large = gma_tensor_of(&x, GMA_BF16, 4, 2, 70000, 70000, 4);
    assert_true(large.stride[0] == (int64_t)70000 * 70000 * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversion_table), cmocka_unit_test(round_trip),  cmocka_unit_test(nearest_even),
        cmocka_unit_test(sizes_and_names),  cmocka_unit_test(dense_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
