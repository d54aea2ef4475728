/* gma/io.h: every malformed file is refused with a message that names it, every good one gives its values, and what is
 * written comes back. Cases J1, J2, J3, J6. */
#define _GNU_SOURCE

#include "support/folder.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "gma/io.h"

/* A safetensors file with that header and `bytes` bytes of data. */
static void put_header(const char *name, const char *header, const void *data, size_t bytes) {
    size_t n = strlen(header);
    char *all = calloc(1, 8 + n + bytes);
    assert_non_null(all);
    for (int i = 0; i < 8; i++) {
        all[i] = (char)(n >> (8 * i));
    }
    memcpy(all + 8, header, n);
    if (bytes > 0) {
        memcpy(all + 8 + n, data, bytes);
    }
    put_file(name, all, 8 + n + bytes);
    free(all);
}

static const char *case_file(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/cases/safetensors/%s", GMA_TESTS_DIR, name);
    return path;
}

static gma_safetensors *opened(const char *path) {
    gma_safetensors *f = NULL;
    if (gma_safetensors_open(path, &f) != GMA_OK) {
        fail_msg("%s", gma_last_error());
    }
    assert_non_null(f);
    return f;
}

static void assert_refused(const char *path, const char *because) {
    gma_safetensors *f = (gma_safetensors *)&f;
    assert_int_equal(gma_safetensors_open(path, &f), GMA_ERR_FORMAT);
    assert_null(f);
    const char *name = strrchr(path, '/') + 1;
    if (strstr(gma_last_error(), name) == NULL || strstr(gma_last_error(), because) == NULL ||
        strchr(gma_last_error(), '\n') != NULL) {
        fail_msg("\"%s\" should name %s and say \"%s\"", gma_last_error(), name, because);
    }
}

/* ---- Refused ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *file, *because;
} bad_files[] = {
    {"bad_alias", "overlap"},
    {"bad_beyond", "beyond the end"},
    {"bad_dup", "duplicate"},
    {"bad_dup_distinct", "duplicate"},
    {"bad_empty_file", "empty"},
    {"bad_front_hole", "belong to no tensor"},
    {"bad_hole", "belong to no tensor"},
    {"bad_missing", "missing"},
    {"bad_n_100MB1", "longer than 100 MB"},
    {"bad_n_2_63", "longer than 100 MB"},
    {"bad_n_beyond", "longer than the file"},
    {"bad_n_max", "longer than 100 MB"},
    {"bad_n_zero", "empty"},
    {"bad_one_offset", "two numbers"},
    {"bad_overlap", "overlap"},
    {"bad_pickle", "100 MB"},
    {"bad_reversed", "end before they begin"},
    {"bad_shape_big", "disagree"},
    {"bad_shape_small", "disagree"},
    {"bad_short", "shorter than 8"},
    {"bad_tail", "belong to no tensor"},
};

static void test_bad_files(void **state) {
    (void)state;
    size_t count = sizeof bad_files / sizeof bad_files[0], on_disk = 0;
    for (size_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.safetensors", bad_files[i].file);
        assert_refused(case_file(name), bad_files[i].because);
    }
    DIR *dir = opendir(case_file("."));
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        on_disk += strncmp(e->d_name, "bad_", 4) == 0;
    }
    closedir(dir);
    assert_int_equal(on_disk, count); /* none is left out of the table */
}

/* A length taken from the file must not reach the allocator. */
static void test_bad_files_need_little_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.safetensors", bad_files[i].file);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct rusage before, after;
            gma_safetensors *f;
            getrusage(RUSAGE_SELF, &before);
            int refused = gma_safetensors_open(case_file(name), &f) == GMA_ERR_FORMAT;
            getrusage(RUSAGE_SELF, &after);
            _exit(refused && after.ru_maxrss - before.ru_maxrss < 64 * 1024 ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static const struct {
    const char *header;
    size_t data_bytes;
    const char *because;
} bad_headers[] = {
    /* the same name, spelled with an escape */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "duplicate"},
    {"{\"__metadata__\":{\"x\":\"1\"},\"__metadata__\":{\"x\":\"1\"}}", 0, "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4, "too many elements"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4, "disagree"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4, "integer"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "not negative"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "whole numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "not negative"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":\"0,4\"}}", 4, "two numbers"},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "missing"},
    {"{\"a\":[1,2]}", 0, "must be an object"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "disagree"},
    {"{\"__metadata__\":{\"causal\":1}}", 0, "strings"},
    {"{\"__metadata__\":[]}", 0, "strings"},
    {"{\"a\xff\":1}", 0, "0xff"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "not a safetensors file"},
    {"{}{}", 0, "end of file"},
    {"[]", 0, "not a JSON object"},
    {" {}", 0, "not a JSON object"},
    {"{}", 1, "belong to no tensor"},
};

static void test_bad_headers(void **state) {
    (void)state;
    static const char data[8];
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        const char *path = in_folder("crafted");
        put_header("crafted", bad_headers[i].header, data, bad_headers[i].data_bytes);
        assert_refused(path, bad_headers[i].because);
    }
}

/* A JSON bomb in nesting must end in an error, not in a full stack. */
static void test_deep_header(void **state) {
    (void)state;
    size_t n = 1000 * 1000;
    char *header = malloc(n + 1);
    assert_non_null(header);
    memset(header, '[', n);
    memcpy(header, "{\"a\":", 5);
    header[n] = '\0';
    put_header("deep", header, NULL, 0);
    free(header);
    assert_refused(in_folder("deep"), "depth");
}

static void test_not_a_file(void **state) {
    (void)state;
    gma_safetensors *f;
    assert_int_equal(gma_safetensors_open(in_folder("nothing"), &f), GMA_ERR_IO);
    assert_null(f);
    assert_non_null(strstr(gma_last_error(), "nothing"));
    assert_int_equal(gma_safetensors_open(test_folder, &f), GMA_ERR_IO);
    assert_non_null(strstr(gma_last_error(), "regular"));
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_int_equal(gma_safetensors_open(in_folder("pipe"), &f), GMA_ERR_IO);
    assert_int_equal(gma_safetensors_open(NULL, &f), GMA_ERR_INVALID_ARGUMENT);
    gma_safetensors_close(NULL);
}

/* ---- Read --------------------------------------------------------------------------------------------------- */

static void assert_floats(gma_safetensors *f, const char *name, int n, const float *want) {
    float got[8];
    const gma_stored_tensor *t = gma_safetensors_find(f, name);
    assert_non_null(t);
    assert_int_equal(t->count, n);
    assert_int_equal(gma_safetensors_read(f, t, GMA_F32, got), GMA_OK);
    assert_memory_equal(got, want, (size_t)n * sizeof *want);
}

static void test_good_files(void **state) {
    (void)state;
    static const float one[] = {1}, two[] = {2}, one_two[] = {1, 2}, seven[] = {7}, five[] = {5};
    gma_safetensors *f = opened(case_file("ok_unordered_header.safetensors"));
    assert_floats(f, "a", 1, one);
    assert_floats(f, "b", 1, two);
    gma_safetensors_close(f);

    f = opened(case_file("ok_scalar.safetensors"));
    assert_int_equal(gma_safetensors_count(f), 1);
    assert_int_equal(gma_safetensors_at(f, 0)->rank, 0);
    assert_floats(f, gma_safetensors_at(f, 0)->name, 1, seven);
    assert_null(gma_safetensors_at(f, 1));
    assert_null(gma_safetensors_at(f, -1));
    gma_safetensors_close(f);

    f = opened(case_file("ok_zero.safetensors"));
    const gma_stored_tensor *a = gma_safetensors_find(f, "a"), *c = gma_safetensors_find(f, "c");
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 0);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(c->shape[0], 2);
    assert_int_equal(c->shape[1], 0);
    assert_floats(f, "b", 1, five);
    gma_safetensors_close(f);

    /* under -fsanitize=alignment too */
    f = opened(case_file("ok_odd_header.safetensors"));
    assert_floats(f, gma_safetensors_at(f, 0)->name, 2, one_two);
    gma_safetensors_close(f);
    f = opened(case_file("ok_unaligned.safetensors"));
    int checked = 0;
    for (int64_t i = 0; i < gma_safetensors_count(f); i++) {
        const gma_stored_tensor *t = gma_safetensors_at(f, i);
        if (t->dtype == GMA_F32) {
            assert_floats(f, t->name, 2, one_two);
            checked++;
        }
    }
    assert_int_equal(checked, 1);
    gma_safetensors_close(f);
}

static void test_types_without_a_gma_dtype_are_listed(void **state) {
    (void)state;
    static const char data[16];
    char out[64];
    put_header("half",
                 "{\"h\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,2],\"data_offsets\":[0,4]},"
                 "\"four\":{\"dtype\":\"F4\",\"shape\":[24],\"data_offsets\":[4,16],\"extra\":null}}",
                 data, sizeof data);
    gma_safetensors *f = opened(in_folder("half"));
    const gma_stored_tensor *h = gma_safetensors_find(f, "h");
    assert_int_equal(h->dtype, 0);
    assert_string_equal(h->dtype_name, "F16");
    assert_int_equal(h->rank, 6);
    assert_int_equal(h->shape[5], 2);
    assert_int_equal(gma_safetensors_read(f, h, GMA_F32, out), GMA_ERR_DTYPE);
    assert_non_null(strstr(gma_last_error(), "\"h\""));
    gma_safetensors_close(f);
}

static void test_file_that_shrinks(void **state) {
    (void)state;
    static const float data[4] = {1, 2, 3, 4};
    float out[4];
    const char *path = in_folder("shrinks");
    put_header("shrinks", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", data, sizeof data);
    gma_safetensors *f = opened(path);
    assert_int_equal(truncate(path, 60), 0);
    assert_int_equal(gma_safetensors_read(f, gma_safetensors_at(f, 0), GMA_F32, out), GMA_ERR_IO);
    assert_non_null(strstr(gma_last_error(), "shrinks"));
    gma_safetensors_close(f);
}

/* ---- Conversions -------------------------------------------------------------------------------------------- */

static gma_safetensors *stored(gma_dtype dtype, const void *data, int64_t n) {
    gma_named_tensor t = {"x", gma_tensor_of(data, dtype, 1, n, 0, 0, 0)};
    assert_int_equal(gma_safetensors_save(in_folder("convert"), &t, 1, NULL, 0), GMA_OK);
    return opened(in_folder("convert"));
}

#define READ(dtype, out) gma_safetensors_read(f, gma_safetensors_at(f, 0), dtype, out)

static void test_real_conversions(void **state) {
    (void)state;
    /* 1 + 2^-8 lies half-way between two bf16: to even. 1 + 2^-25 is 1 in f32. */
    const double d[] = {1.0 + 0x1p-25, -0.0, INFINITY, 1e300, 1.0 + 0x1p-8, NAN};
    double d2[6];
    float s[6];
    uint16_t b[6];
    gma_safetensors *f = stored(GMA_F64, d, 6);
    assert_int_equal(READ(GMA_F64, d2), GMA_OK);
    assert_memory_equal(d2, d, sizeof d);
    assert_int_equal(READ(GMA_F32, s), GMA_OK);
    assert_true(s[0] == 1.0f && s[1] == 0.0f && signbit(s[1]) && isinf(s[2]) && isinf(s[3]) && isnan(s[5]));
    assert_int_equal(READ(GMA_BF16, b), GMA_OK);
    assert_int_equal(b[4], 0x3f80);
    assert_int_equal(b[2], 0x7f80);
    assert_true((b[5] & 0x7f80) == 0x7f80 && (b[5] & 0x7f) != 0);
    assert_int_equal(READ(GMA_I32, d2), GMA_ERR_DTYPE);
    gma_safetensors_close(f);

    const uint16_t half[] = {0x3f81, 0x0001, 0xff80};
    f = stored(GMA_BF16, half, 3);
    assert_int_equal(READ(GMA_F32, s), GMA_OK);
    assert_true(s[0] == 1.0f + 0x1p-7f && s[1] == 0x1p-133f && isinf(s[2]) && s[2] < 0);
    assert_int_equal(READ(GMA_F64, d2), GMA_OK);
    assert_true(d2[0] == 1.0 + 0x1p-7 && d2[1] == 0x1p-133);
    gma_safetensors_close(f);
}

static void test_whole_conversions(void **state) {
    (void)state;
    const int64_t fits[] = {INT32_MIN, 0, INT32_MAX}, too_big[] = {1, (int64_t)INT32_MAX + 1};
    const int32_t small[] = {-5, 6};
    const uint8_t bytes[] = {0, 1, 200};
    int32_t i32[3];
    int64_t i64[3];
    uint8_t u8[3];
    gma_safetensors *f = stored(GMA_I64, fits, 3);
    assert_int_equal(READ(GMA_I32, i32), GMA_OK);
    assert_true(i32[0] == INT32_MIN && i32[1] == 0 && i32[2] == INT32_MAX);
    gma_safetensors_close(f);
    f = stored(GMA_I64, too_big, 2);
    assert_int_equal(READ(GMA_I32, i32), GMA_ERR_FORMAT);
    gma_safetensors_close(f);
    f = stored(GMA_I32, small, 2);
    assert_int_equal(READ(GMA_I64, i64), GMA_OK);
    assert_true(i64[0] == -5 && i64[1] == 6);
    assert_int_equal(READ(GMA_U8, u8), GMA_ERR_DTYPE);
    gma_safetensors_close(f);
    f = stored(GMA_U8, bytes, 3);
    assert_int_equal(READ(GMA_BOOL, u8), GMA_OK);
    assert_true(u8[0] == 0 && u8[1] == 1 && u8[2] == 1);
    assert_int_equal(READ(GMA_U8, u8), GMA_OK);
    assert_int_equal(u8[2], 200);
    assert_int_equal(READ(GMA_I64, i64), GMA_OK);
    assert_int_equal(i64[2], 200);
    gma_safetensors_close(f);
}

static void test_more_than_one_block(void **state) {
    (void)state;
    enum { N = 3 * 8192 + 17 };
    float *in = malloc(N * sizeof *in);
    double *out = malloc(N * sizeof *out);
    for (int i = 0; i < N; i++) {
        in[i] = (float)i;
    }
    gma_safetensors *f = stored(GMA_F32, in, N);
    assert_int_equal(READ(GMA_F64, out), GMA_OK);
    for (int i = 0; i < N; i++) {
        assert_true(out[i] == i);
    }
    gma_safetensors_close(f);
    free(in);
    free(out);
}

/* ---- Written ------------------------------------------------------------------------------------------------ */

/* Load `from`, save it as `to` in its own types. */
static void copy_file(const char *from, const char *to) {
    enum { MAX = 8 };
    gma_safetensors *f = opened(from);
    gma_named_tensor t[MAX];
    gma_metadata_pair m[MAX];
    int64_t n = gma_safetensors_count(f), pairs = 0;
    assert_true(n <= MAX);
    for (int64_t i = 0; i < n; i++) {
        const gma_stored_tensor *s = gma_safetensors_at(f, i);
        int64_t shape[GMA_MAX_RANK] = {0, 0, 0, 0};
        void *data = malloc((size_t)(s->end - s->begin) + 1);
        assert_non_null(data);
        assert_true(s->rank <= GMA_MAX_RANK);
        for (int d = 0; d < s->rank; d++) {
            shape[d] = s->shape[d];
        }
        assert_int_equal(gma_safetensors_read(f, s, (gma_dtype)s->dtype, data), GMA_OK);
        t[i] = (gma_named_tensor){
            s->name, gma_tensor_of(data, (gma_dtype)s->dtype, s->rank, shape[0], shape[1], shape[2], shape[3])};
    }
    while (pairs < MAX && gma_safetensors_metadata_at(f, pairs, &m[pairs].key, &m[pairs].value)) {
        pairs++;
    }
    if (gma_safetensors_save(to, t, n, m, pairs) != GMA_OK) {
        fail_msg("%s", gma_last_error());
    }
    for (int64_t i = 0; i < n; i++) {
        free(t[i].tensor.data);
    }
    gma_safetensors_close(f);
}

static void assert_same_contents(const char *path_a, const char *path_b) {
    gma_safetensors *a = opened(path_a), *b = opened(path_b);
    assert_int_equal(gma_safetensors_count(a), gma_safetensors_count(b));
    for (int64_t i = 0; i < gma_safetensors_count(a); i++) {
        const gma_stored_tensor *x = gma_safetensors_at(a, i), *y = gma_safetensors_find(b, x->name);
        char in_a[64], in_b[64];
        assert_non_null(y);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->rank, y->rank);
        for (int d = 0; d < x->rank; d++) {
            assert_int_equal(x->shape[d], y->shape[d]);
        }
        assert_true(x->end - x->begin <= sizeof in_a);
        assert_int_equal(gma_safetensors_read(a, x, (gma_dtype)x->dtype, in_a), GMA_OK);
        assert_int_equal(gma_safetensors_read(b, y, (gma_dtype)y->dtype, in_b), GMA_OK);
        assert_memory_equal(in_a, in_b, x->end - x->begin);
    }
    gma_safetensors_close(a);
    gma_safetensors_close(b);
}

static void test_round_trip(void **state) {
    (void)state;
    static const char *const files[] = {"ok_scalar", "ok_zero", "ok_unaligned", "ok_odd_header",
                                        "ok_unordered_header"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char name[64];
        size_t first_bytes, second_bytes;
        snprintf(name, sizeof name, "%s.safetensors", files[i]);
        copy_file(case_file(name), in_folder("first"));
        assert_same_contents(case_file(name), in_folder("first"));
        copy_file(in_folder("first"), in_folder("second"));
        char *first = get_file(in_folder("first"), &first_bytes);
        char *second = get_file(in_folder("second"), &second_bytes);
        assert_int_equal(first_bytes, second_bytes);
        assert_memory_equal(first, second, first_bytes);
        free(first);
        free(second);
    }
}

static void test_alignment_and_metadata(void **state) {
    (void)state;
    static const double d[3] = {1, 2, 3};
    static const float s[5] = {1, 2, 3, 4, 5};
    static const uint8_t m[3] = {1, 0, 1};
    static const uint16_t b[4] = {1, 2, 3, 4};
    const gma_named_tensor t[] = {
        {"mask", gma_tensor_of(m, GMA_BOOL, 1, 3, 0, 0, 0)},  {"odd", gma_tensor_of(s, GMA_F32, 1, 5, 0, 0, 0)},
        {"half", gma_tensor_of(b, GMA_BF16, 2, 2, 2, 0, 0)},  {"double", gma_tensor_of(d, GMA_F64, 1, 3, 0, 0, 0)},
        {"even", gma_tensor_of(s, GMA_F32, 1, 4, 0, 0, 0)},   {"odd2", gma_tensor_of(s, GMA_F32, 1, 3, 0, 0, 0)},
        {"empty", gma_tensor_of(NULL, GMA_F32, 1, 0, 0, 0, 0)},
    };
    const gma_metadata_pair meta[] = {{"causal", "1"}, {"quote", "\"\\\n\xc3\xa9"}};
    unsigned char prefix[8];
    assert_int_equal(gma_safetensors_save(in_folder("aligned"), t, 7, meta, 2), GMA_OK);
    FILE *file = fopen(in_folder("aligned"), "rb");
    assert_non_null(file);
    assert_int_equal(fread(prefix, 1, 8, file), 8);
    fclose(file);
    assert_int_equal((prefix[0] | prefix[1] << 8) % 8, 0);
    gma_safetensors *f = opened(in_folder("aligned"));
    for (int64_t i = 0; i < gma_safetensors_count(f); i++) {
        const gma_stored_tensor *x = gma_safetensors_at(f, i);
        assert_int_equal(x->begin % gma_dtype_size((gma_dtype)x->dtype), 0);
        if ((x->end - x->begin) % 8 == 0) {
            assert_int_equal(x->begin % 8, 0);
        }
    }
    assert_string_equal(gma_safetensors_metadata(f, "causal"), "1");
    assert_string_equal(gma_safetensors_metadata(f, "quote"), "\"\\\n\xc3\xa9");
    assert_null(gma_safetensors_metadata(f, "eps"));
    gma_safetensors_close(f);
}

static void test_strided_views(void **state) {
    (void)state;
    static const float x[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const float transposed[6] = {0, 4, 1, 5, 2, 6}, backwards[3] = {11, 7, 3}, same[4] = {5, 5, 5, 5};
    gma_named_tensor t[3] = {{"transposed", gma_tensor_of(x, GMA_F32, 2, 3, 2, 0, 0)},
                             {"backwards", gma_tensor_of(x + 11, GMA_F32, 1, 3, 0, 0, 0)},
                             {"same", gma_tensor_of(x + 5, GMA_F32, 2, 2, 2, 0, 0)}};
    t[0].tensor.stride[0] = 1;
    t[0].tensor.stride[1] = 4;
    t[1].tensor.stride[0] = -4;
    t[2].tensor.stride[0] = t[2].tensor.stride[1] = 0;
    assert_int_equal(gma_safetensors_save(in_folder("strided"), t, 3, NULL, 0), GMA_OK);
    gma_safetensors *f = opened(in_folder("strided"));
    assert_floats(f, "transposed", 6, transposed);
    assert_floats(f, "backwards", 3, backwards);
    assert_floats(f, "same", 4, same);
    gma_safetensors_close(f);
}

/* Whatever goes wrong, the old file stays and nothing lies beside it. */
static void test_save_errors(void **state) {
    (void)state;
    static const float x[2] = {1, 2};
    const gma_tensor good = gma_tensor_of(x, GMA_F32, 1, 2, 0, 0, 0);
    gma_tensor null_data = good, bad_type = good, bad_rank = good, huge = good;
    null_data.data = NULL;
    bad_type.dtype = 99;
    bad_rank.rank = 5;
    huge.rank = 2;
    huge.shape[0] = huge.shape[1] = INT64_C(1) << 40;
    const gma_named_tensor cases[][2] = {
        {{"a", good}, {"a", good}},    {{"a", good}, {"__metadata__", good}}, {{"a", good}, {"\xff", good}},
        {{"a", good}, {NULL, good}},   {{"a", good}, {"b", null_data}},       {{"a", good}, {"b", bad_type}},
        {{"a", good}, {"b", bad_rank}}, {{"a", good}, {"b", huge}},
    };
    char folder[256];
    snprintf(folder, sizeof folder, "%s", in_folder("errors"));
    assert_int_equal(mkdir(folder, 0700), 0);
    const char *path = in_folder("errors/file");
    put_file("errors/file", "old", 3);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(gma_safetensors_save(path, cases[i], 2, NULL, 0), GMA_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(gma_last_error(), "file"));
    }
    const gma_metadata_pair twice[] = {{"k", "1"}, {"k", "2"}};
    assert_int_equal(gma_safetensors_save(path, cases[0], 1, twice, 2), GMA_ERR_INVALID_ARGUMENT);
    assert_int_equal(gma_safetensors_save(in_folder("nowhere/file"), cases[0], 1, NULL, 0), GMA_ERR_IO);
    assert_int_equal(gma_safetensors_save(folder, cases[0], 1, NULL, 0), GMA_ERR_IO);
    assert_int_equal(gma_safetensors_save("", cases[0], 1, NULL, 0), GMA_ERR_IO);
    assert_int_equal(gma_safetensors_save("/dev/null", cases[0], 1, NULL, 0), GMA_ERR_IO);
    size_t bytes;
    char *data = get_file(path, &bytes);
    assert_int_equal(bytes, 3);
    assert_memory_equal(data, "old", 3);
    free(data);
    assert_int_equal(entries_in(folder), 1);
}

static void test_link_stays_a_link(void **state) {
    (void)state;
    static const float x[1] = {3};
    const gma_named_tensor t = {"a", gma_tensor_of(x, GMA_F32, 1, 1, 0, 0, 0)};
    struct stat st;
    put_file("real", "old", 3);
    assert_int_equal(symlink("real", in_folder("link")), 0);
    assert_int_equal(gma_safetensors_save(in_folder("link"), &t, 1, NULL, 0), GMA_OK);
    assert_int_equal(lstat(in_folder("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    gma_safetensors *f = opened(in_folder("real"));
    assert_floats(f, "a", 1, x);
    gma_safetensors_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_files_need_little_memory),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_deep_header),
        cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_good_files),
        cmocka_unit_test(test_types_without_a_gma_dtype_are_listed),
        cmocka_unit_test(test_file_that_shrinks),
        cmocka_unit_test(test_real_conversions),
        cmocka_unit_test(test_whole_conversions),
        cmocka_unit_test(test_more_than_one_block),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_alignment_and_metadata),
        cmocka_unit_test(test_strided_views),
        cmocka_unit_test(test_save_errors),
        cmocka_unit_test(test_link_stays_a_link),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
