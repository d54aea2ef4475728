/* gma op: the golden files through the program, and everything it must refuse. */
#define _GNU_SOURCE

#include "cli/cli_testing.h"

#include <signal.h>
#include <sys/resource.h>

#include "gma/gma.h"
#include "gma/io.h"
#include "support/tol.h"

/* ---- Files -------------------------------------------------------------------------------------------------- */

static gma_safetensors *opened(const char *path) {
    gma_safetensors *f = NULL;
    if (gma_safetensors_open(path, &f) != GMA_OK) {
        fail_msg("%s", gma_last_error());
    }
    return f;
}

static double *values_of(const gma_safetensors *f, const gma_stored_tensor *t) {
    double *x = malloc(((size_t)t->count + 1) * sizeof *x);
    assert_non_null(x);
    if (gma_safetensors_read(f, t, GMA_F64, x) != GMA_OK) {
        fail_msg("%s", gma_last_error());
    }
    return x;
}

static int same_shape(const gma_stored_tensor *a, const gma_stored_tensor *b) {
    return a->rank == b->rank && (a->rank == 0 || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0);
}

static int is_result(const char *name) {
    static const char *const results[] = {"o", "out_S", "out_Z", "gamma_q", "gamma_k"};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        if (strcmp(name, results[i]) == 0) {
            return 1;
        }
    }
    return strncmp(name, "grad_", 5) == 0 && strcmp(name, "grad_o") != 0 && strncmp(name, "grad_out_", 9) != 0;
}

/* Every result that `want` holds, in `got` too, of that shape and type, within the limit for its kind. */
static int compare(const char *want_path, const char *got_path, const char *golden, int naive, double slack) {
    gma_safetensors *want = opened(want_path), *got = opened(got_path);
    int compared = 0;
    for (int64_t i = 0; i < gma_safetensors_count(want); i++) {
        const gma_stored_tensor *w = gma_safetensors_at(want, i);
        if (!is_result(w->name)) {
            continue;
        }
        const gma_stored_tensor *g = gma_safetensors_find(got, w->name);
        if (g == NULL || !same_shape(w, g)) {
            fail_msg("%s: \"%s\" is missing or has another shape", golden, w->name);
        }
        int is_grad = strncmp(w->name, "grad_", 5) == 0;
        double floor = naive ? 0 : is_grad ? TOL_FLOOR_GRAD : TOL_FLOOR_O;
        double limit = naive ? TOL_NAIVE : tol_of_golden(golden, is_grad) + slack;
        double *x = values_of(want, w), *y = values_of(got, g);
        double error = tol_error(y, x, w->count, floor > 0 ? floor : 1e-300);
        if (!(error <= limit)) {
            fail_msg("%s: \"%s\": error %.2e, limit %.2e", golden, w->name, error, limit);
        }
        free(x);
        free(y);
        compared++;
    }
    gma_safetensors_close(want);
    gma_safetensors_close(got);
    return compared;
}

/* ---- Golden files through the program ----------------------------------------------------------------------- */

static void each_golden(void (*check)(const char *path, const char *name)) {
    char folder[512], path[1024], name[256];
    int files = 0;
    snprintf(folder, sizeof folder, "%s/golden/data", GMA_TESTS_DIR);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const char *end = strstr(e->d_name, ".safetensors");
        if (end != NULL) {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            snprintf(name, sizeof name, "%.*s", (int)(end - e->d_name), e->d_name);
            check(path, name);
            files++;
        }
    }
    closedir(dir);
    assert_true(files >= 30);
}

static void check_naive(const char *path, const char *name) {
    CLI("op", path, "naive", "--naive", "--backward", "--responsibilities");
    assert_success();
    assert_true(compare(path, in_folder("naive"), name, 1, 0) >= 9);
}

static void check_fast(const char *path, const char *name) {
    static const char *const threads[] = {"1", "2", "7"};
    for (int isa = GMA_ISA_SCALAR; isa <= GMA_ISA_AMX; isa++) {
        if (!gma_isa_supported((gma_isa)isa) || !gma_isa_built((gma_isa)isa)) {
            continue;
        }
        char command[600];
        for (int i = 0; i < 3; i++) {
            CLI("op", "--backward", "--responsibilities", "--isa", gma_isa_name((gma_isa)isa), "--threads", threads[i],
                path, i == 0 ? "one" : "many");
            assert_success();
            if (i == 0) {
                assert_true(compare(path, in_folder("one"), name, 0, 0) >= 9);
            } else {
                snprintf(command, sizeof command, "cmp '%s/one' '%s/many'", test_folder, test_folder);
                assert_int_equal(system(command), 0); /* the same bits for any number of threads */
            }
        }
    }
}

static void test_golden_naive(void **state) {
    (void)state;
    each_golden(check_naive);
}

static void test_golden_fast(void **state) {
    (void)state;
    each_golden(check_fast);
}

static const char *golden(const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/golden/data/%s.safetensors", GMA_TESTS_DIR, name);
    return path;
}

static void assert_types(const char *path, const char *bf16_names, const char *other) {
    gma_safetensors *f = opened(path);
    for (int64_t i = 0; i < gma_safetensors_count(f); i++) {
        const gma_stored_tensor *t = gma_safetensors_at(f, i);
        char spaced[64];
        snprintf(spaced, sizeof spaced, " %s ", t->name);
        assert_string_equal(t->dtype_name, strstr(bf16_names, spaced) != NULL ? "BF16" : other);
    }
    gma_safetensors_close(f);
}

static void test_bf16(void **state) {
    (void)state;
    CLI("op", golden("causal_decay_state"), "b", "--dtype", "bf16", "--backward", "--responsibilities");
    assert_success();
    assert_types(in_folder("b"), " o grad_q grad_k grad_v ", "F32");
    CLI("op", golden("causal_decay_state"), "f", "--backward", "--responsibilities");
    assert_success();
    assert_types(in_folder("f"), "", "F32");
    /* the same rounded inputs in double: what is left is the storage of the results, half a unit of 2^-7 */
    CLI("op", golden("causal_decay_state"), "n", "--dtype", "bf16", "--naive", "--backward", "--responsibilities");
    assert_success();
    assert_types(in_folder("n"), "", "F64");
    assert_true(compare(in_folder("n"), in_folder("b"), "", 0, 1.0 / 256) >= 9);
    /* and the rounding of the inputs did take place */
    gma_safetensors *f = opened(in_folder("f")), *n = opened(in_folder("n"));
    const gma_stored_tensor *a = gma_safetensors_find(f, "o"), *b = gma_safetensors_find(n, "o");
    double *x = values_of(f, a), *y = values_of(n, b);
    assert_true(tol_error(x, y, a->count, TOL_FLOOR_O) > 1e-4);
    free(x);
    free(y);
    gma_safetensors_close(f);
    gma_safetensors_close(n);
}

static void test_what_is_written(void **state) {
    (void)state;
    CLI("op", golden("grouped_heads"), "out");
    assert_success();
    assert_string_equal(cli.out, "");
    gma_safetensors *f = opened(in_folder("out"));
    assert_int_equal(gma_safetensors_count(f), 3);
    assert_non_null(gma_safetensors_find(f, "o"));
    assert_non_null(gma_safetensors_find(f, "out_S"));
    assert_non_null(gma_safetensors_find(f, "out_Z"));
    assert_string_equal(gma_safetensors_metadata(f, "version"), GMA_VERSION_STRING);
    gma_safetensors_close(f);
    /* only inputs that are there have gradients */
    CLI("op", golden("grouped_heads"), "out", "--backward");
    assert_success();
    f = opened(in_folder("out"));
    assert_int_equal(gma_safetensors_count(f), 11); /* 3, and those of q k v mu omega alpha log_decay logit_scale */
    assert_null(gma_safetensors_find(f, "grad_state_S"));
    gma_safetensors_close(f);
}

/* ---- Made by hand ------------------------------------------------------------------------------------------- */

enum { B = 1, H = 1, N = 3, K = 2, SLOTS = 16 };

/* Config A of the cases: sigma2 = 1, mu = -1, +1. */
static const float q0[N] = {0.5f, -0.25f, 1.0f}, k0[N] = {-0.3f, 0.8f, 0.1f}, v0[N] = {1, -2, 4};
static const float mu0[K] = {-1, 1}, omega0[K] = {0.54116665f, 0.54116665f}, alpha0[K] = {0, 0};
static const double causal_o[N] = {0.999997688880, -0.316119557815, 0.616205664902};

static gma_named_tensor hand[SLOTS];
static gma_metadata_pair meta[4];
static int hand_count, meta_count;

static gma_named_tensor *find_hand(const char *name) {
    for (int i = 0; i < hand_count; i++) {
        if (strcmp(hand[i].name, name) == 0) {
            return &hand[i];
        }
    }
    hand[hand_count] = (gma_named_tensor){name, hand[0].tensor};
    return &hand[hand_count++];
}

static void reset_hand(void) {
    const gma_named_tensor start[] = {
        {"q", gma_tensor_of(q0, GMA_F32, 4, B, H, N, 1)},      {"k", gma_tensor_of(k0, GMA_F32, 4, B, H, N, 1)},
        {"v", gma_tensor_of(v0, GMA_F32, 4, B, H, N, 1)},      {"mu", gma_tensor_of(mu0, GMA_F32, 3, H, K, 1, 0)},
        {"omega", gma_tensor_of(omega0, GMA_F32, 3, H, K, 1, 0)}, {"alpha", gma_tensor_of(alpha0, GMA_F32, 2, H, K, 0, 0)},
    };
    memcpy(hand, start, sizeof start);
    hand_count = sizeof start / sizeof start[0];
    meta[0] = (gma_metadata_pair){"causal", "1"};
    meta_count = 1;
}

static void save_hand(void) {
    if (gma_safetensors_save(in_folder("hand"), hand, hand_count, meta, meta_count) != GMA_OK) {
        fail_msg("%s", gma_last_error());
    }
}

static void assert_o(const double *want, int n) {
    gma_safetensors *f = opened(in_folder("out"));
    const gma_stored_tensor *t = gma_safetensors_find(f, "o");
    assert_non_null(t);
    assert_int_equal(t->count, n);
    double *x = values_of(f, t);
    for (int i = 0; i < n; i++) {
        if (!(fabs(x[i] - want[i]) <= 1e-5)) {
            fail_msg("o[%d] = %.9g, not %.9g", i, x[i], want[i]);
        }
    }
    free(x);
    gma_safetensors_close(f);
}

static void test_types_and_strangers(void **state) {
    (void)state;
    static const double q64[N] = {0.5, -0.25, 1.0};
    static const uint8_t mask[N] = {1, 1, 1};
    static const int32_t offsets[2] = {0, N};
    static const uint16_t alpha16[K] = {0, 0};
    static const int64_t strange[2] = {1, 2};
    for (int naive = 0; naive < 2; naive++) {
        reset_hand();
        find_hand("q")->tensor = gma_tensor_of(q64, GMA_F64, 4, B, H, N, 1);
        find_hand("alpha")->tensor = gma_tensor_of(alpha16, GMA_BF16, 2, H, K, 0, 0);
        find_hand("key_mask")->tensor = gma_tensor_of(mask, naive ? GMA_U8 : GMA_BOOL, 2, B, N, 0, 0);
        find_hand("cu_seqlens")->tensor = gma_tensor_of(offsets, GMA_I32, 1, 2, 0, 0, 0);
        /* unknown, and known names of outputs: ignored */
        find_hand("strange")->tensor = gma_tensor_of(strange, GMA_I64, 1, 2, 0, 0, 0);
        find_hand("o")->tensor = gma_tensor_of(strange, GMA_I64, 1, 2, 0, 0, 0);
        meta[meta_count++] = (gma_metadata_pair){"strange", "\xc3\xa9"};
        save_hand();
        CLI("op", "hand", "out", naive ? "--naive" : "--no-naive");
        assert_success();
        assert_o(causal_o, N);
    }
}

static void test_eps(void **state) {
    (void)state;
    reset_hand();
    meta[meta_count++] = (gma_metadata_pair){"eps", "1e30"};
    save_hand();
    CLI("op", "hand", "out");
    assert_success();
    assert_o((const double[]){0, 0, 0}, N);
}

/* Every mixer of q k v and a state, by the values of its slots alone: kernels against --naive, forward and backward. The
 * golden file holds tensors they do not know (ignored); performer also needs features. */
static void test_other_mixers(void **state) {
    (void)state;
    CLI("op", golden("causal_decay_state"), "l", "--mixer", "linear", "--backward");
    assert_complaint(1, "state_S"); /* K rows where R belong */
    CLI("op", golden("causal_decay_key_mask"), "l", "--mixer", "linear", "--backward");
    assert_success();
    CLI("op", golden("causal_decay_key_mask"), "n", "--mixer", "linear", "--backward", "--naive");
    assert_success();
    assert_int_equal(compare(in_folder("n"), in_folder("l"), "", 0, 0), 7); /* o, S, Z, q k v log_decay */
    gma_safetensors *f = opened(in_folder("l"));
    assert_string_equal(gma_safetensors_metadata(f, "mixer"), "linear");
    gma_safetensors_close(f);
    CLI("op", golden("causal_decay_key_mask"), "l", "--mixer", "linear", "--responsibilities");
    assert_complaint(2, "has no mixture");
    CLI("op", golden("causal_decay_key_mask"), "p", "--mixer", "performer");
    assert_complaint(1, "features");

    static const float features0[3] = {0.5f, -1.5f, 2.0f};
    static const float up[N] = {1, -2, 0.5f};
    reset_hand();
    find_hand("features")->tensor = gma_tensor_of(features0, GMA_F32, 2, 3, 1, 0, 0);
    find_hand("grad_o")->tensor = gma_tensor_of(up, GMA_F32, 4, B, H, N, 1);
    save_hand();
    CLI("op", "hand", "p", "--mixer", "performer", "--backward");
    assert_success();
    CLI("op", "hand", "n", "--mixer", "performer", "--backward", "--naive");
    assert_success();
    assert_int_equal(compare(in_folder("n"), in_folder("p"), "", 0, 0), 6); /* features have no gradient */
    f = opened(in_folder("p"));
    const gma_stored_tensor *s = gma_safetensors_find(f, "out_S");
    assert_true(s != NULL && s->rank == 4 && s->shape[2] == 3);
    gma_safetensors_close(f);
    find_hand("features")->tensor = gma_tensor_of(features0, GMA_F32, 2, 1, 3, 0, 0);
    save_hand();
    CLI("op", "hand", "p", "--mixer", "performer");
    assert_complaint(1, "features");
}

/* softmax: kernels against --naive, its metadata, and metadata that is wrong. */
static void test_softmax(void **state) {
    (void)state;
    CLI("op", golden("causal_key_mask"), "s", "--mixer", "softmax", "--backward");
    assert_success();
    CLI("op", golden("causal_key_mask"), "n", "--mixer", "softmax", "--backward", "--naive");
    assert_success();
    assert_int_equal(compare(in_folder("n"), in_folder("s"), "", 0, 0), 4); /* o, q k v */
    CLI("op", golden("causal_key_mask"), "s", "--mixer", "softmax", "--responsibilities");
    assert_complaint(2, "has no mixture");
    CLI("op", golden("causal_key_mask"), "s", "--mixer", "mha");
    assert_complaint(2, "mha"); /* in the benchmarks only */
    static const struct {
        const char *key, *value, *complaint; /* NULL: it is taken */
    } rows[] = {{"scale", "0.5", NULL},         {"scale", "0", "scale"},   {"scale", "-1", "scale"},
                {"window", "0", NULL},          {"window", "2", NULL}, {"window", "1.5", "window"},
                {"window", "-1", "window"},     {"window", "x", "window"}, {"rotary_base", "0", NULL},
                {"rotary_base", "x", "rotary_base"}, {"rotary_base", "100", "rotary_base"}}; /* the width is 1 */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        reset_hand();
        meta[meta_count++] = (gma_metadata_pair){rows[i].key, rows[i].value};
        save_hand();
        CLI("op", "hand", "s", "--mixer", "softmax");
        if (rows[i].complaint != NULL) {
            assert_complaint(1, rows[i].complaint);
        } else {
            assert_success();
        }
        CLI("op", "hand", "g"); /* to gma they mean nothing */
        assert_success();
    }
    /* What it cannot honour is refused, not dropped. */
    CLI("op", golden("causal_decay_key_mask"), "s", "--mixer", "softmax");
    assert_complaint(1, "\"log_decay\": the mixer softmax has none");
}

static void test_empty(void **state) {
    (void)state;
    reset_hand();
    find_hand("k")->tensor.shape[2] = find_hand("v")->tensor.shape[2] = 0;
    save_hand();
    CLI("op", "hand", "out");
    assert_success();
    assert_o((const double[]){0, 0, 0}, N);
    reset_hand();
    find_hand("q")->tensor.shape[0] = find_hand("k")->tensor.shape[0] = find_hand("v")->tensor.shape[0] = 0;
    save_hand();
    CLI("op", "hand", "out");
    assert_success();
    assert_o(NULL, 0);
}

/* ---- Refused ------------------------------------------------------------------------------------------------ */

static void assert_refused(const char *because) {
    save_hand();
    for (int naive = 0; naive < 2; naive++) {
        CLI("op", "hand", "refused", naive ? "--naive" : "--no-naive");
        assert_complaint(1, because);
    }
    assert_int_equal(access(in_folder("refused"), F_OK), -1);
}

static void test_wrong_tensors(void **state) {
    (void)state;
    static const char *const required[] = {"q", "k", "v", "mu", "omega", "alpha"};
    static const int64_t whole[8] = {0, 3, 0, 0, 0, 0, 0, 0};
    for (size_t i = 0; i < 6; i++) {
        char quoted[32];
        snprintf(quoted, sizeof quoted, "\"%s\"", required[i]);
        reset_hand();
        *find_hand(required[i]) = hand[hand_count - 1];
        hand_count--;
        assert_refused(quoted); /* missing */
        reset_hand();
        gma_tensor *t = &find_hand(required[i])->tensor;
        *t = gma_tensor_of(whole, GMA_I64, t->rank, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
        assert_refused(quoted); /* wrong type */
        reset_hand();
        find_hand(required[i])->tensor.rank--;
        assert_refused(quoted); /* wrong rank */
    }
    static const char *const optional[] = {"key_mask", "cu_seqlens", "state_S", "state_Z", "log_decay", "logit_scale",
                                           "grad_o", "grad_out_S", "grad_out_Z"};
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
        char quoted[32];
        snprintf(quoted, sizeof quoted, "\"%s\"", optional[i]);
        reset_hand();
        find_hand(optional[i])->tensor = gma_tensor_of(whole, GMA_U16, 1, 3, 0, 0, 0);
        assert_refused(quoted); /* wrong type */
    }
    reset_hand();
    find_hand("v")->tensor.shape[2] = 2;
    assert_refused("\"v\": dimension 3 is 2, but \"k\" makes it 3");
    reset_hand();
    find_hand("alpha")->tensor.shape[1] = 1;
    assert_refused("\"alpha\"");
    reset_hand();
    find_hand("log_decay")->tensor = gma_tensor_of(q0, GMA_F32, 3, B, H, 2, 0);
    assert_refused("\"log_decay\"");
    reset_hand();
    find_hand("key_mask")->tensor = gma_tensor_of(whole, GMA_BOOL, 2, B, 2, 0, 0);
    assert_refused("\"key_mask\"");
    reset_hand();
    find_hand("cu_seqlens")->tensor = gma_tensor_of(whole, GMA_I64, 1, 0, 0, 0, 0);
    assert_refused("\"cu_seqlens\"");
    reset_hand();
    find_hand("cu_seqlens")->tensor = gma_tensor_of(whole, GMA_I64, 1, 3, 0, 0, 0); /* 0 3 0 */
    assert_refused("hand: cu_seqlens");
    reset_hand();
    find_hand("cu_seqlens")->tensor = gma_tensor_of(whole, GMA_I64, 1, 1, 0, 0, 0); /* 0: does not reach N */
    assert_refused("cu_seqlens");
    reset_hand();
    find_hand("mu")->tensor.shape[1] = find_hand("omega")->tensor.shape[1] = find_hand("alpha")->tensor.shape[1] = 0;
    assert_refused("components");
    reset_hand();
    static const float positive[N] = {0, 1, 0};
    find_hand("log_decay")->tensor = gma_tensor_of(positive, GMA_F32, 3, B, H, N, 0);
    assert_refused("log_decay");
}

static void test_wrong_metadata(void **state) {
    (void)state;
    static const gma_metadata_pair wrong[] = {{"causal", "yes"}, {"causal", ""},   {"eps", "small"}, {"eps", "nan"},
                                              {"eps", "0"},      {"eps", "-1e-6"}, {"eps_sigma", ""}, {"eps_sigma", "0"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        reset_hand();
        meta[0] = wrong[i];
        assert_refused(wrong[i].key);
    }
}

static void test_wrong_files(void **state) {
    (void)state;
    char bad[1024];
    snprintf(bad, sizeof bad, "%s/cases/safetensors/bad_overlap.safetensors", GMA_TESTS_DIR);
    CLI("op", bad, "refused");
    assert_complaint(1, "bad_overlap");
    CLI("op", "nothing", "refused");
    assert_complaint(1, "nothing");
    CLI("op", ".", "refused");
    assert_complaint(1, "regular");
    reset_hand();
    save_hand();
    CLI("op", "hand", "refused", "--backward");
    assert_complaint(1, "\"grad_o\"");
    CLI("op", "hand", "nowhere/out");
    assert_complaint(1, "nowhere/out");
    CLI("op", "hand", "/dev/null");
    assert_complaint(1, "/dev/null");
#if defined(__x86_64__)
    CLI("op", "hand", "refused", "--isa", "neon");
#else
    CLI("op", "hand", "refused", "--isa", "avx2");
#endif
    assert_complaint(1, "--isa");
    assert_int_equal(access(in_folder("refused"), F_OK), -1);
}

static void limit_file_size(void) {
    const struct rlimit limit = {100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* ThreadSanitizer's own start needs a file that the limit does not allow. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif

/* An output that does not fit leaves the old one and nothing beside it. */
static void test_no_room(void **state) {
    (void)state;
    reset_hand();
    save_hand();
    CLI("op", "hand", "out");
    assert_success();
#ifdef UNDER_TSAN
    skip();
#endif
    int before = entries_in(test_folder);
    cli_prepare = limit_file_size;
    CLI("op", "hand", "out", "--responsibilities");
    cli_prepare = NULL;
    assert_int_equal(cli.code, 1);
    assert_int_equal(entries_in(test_folder), before);
    assert_o(causal_o, N);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_naive),        cmocka_unit_test(test_golden_fast),
        cmocka_unit_test(test_bf16),                cmocka_unit_test(test_what_is_written),
        cmocka_unit_test(test_types_and_strangers), cmocka_unit_test(test_eps),
        cmocka_unit_test(test_empty),               cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_wrong_metadata),      cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_no_room),             cmocka_unit_test(test_other_mixers), cmocka_unit_test(test_softmax),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
