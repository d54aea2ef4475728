/* gma_inspect on small models: what must hold of any model and text, and what is refused. */
#define _POSIX_C_SOURCE 200809L
#include "inspect/inspect_testing.h"

#include <jansson.h>
#include <math.h>

#include "inspect/information.h"
#include "inspect/inspection.h"

static void test_numbers(void **state) {
    (void)state;
    gma_lm *lm = model("gma", 0);
    gma_inspection *n = look(lm, NULL);
    gma_eval_result eval = {.struct_size = sizeof eval};
    TST_OK(gma_eval(lm, text_file(), NULL, &eval));
    TST_CLOSE(n->c.loss, eval.loss, 1e-6);
    assert_int_equal(n->c.tokens, eval.tokens);
    assert_int_equal(gma_inspection_heads(n), 8);
    for (int i = 0; i < 8; i++) {
        gma_inspect_head h = {.struct_size = sizeof h};
        const gmal_head *c = &n->c.heads[i];
        double q = 0, k = 0, mass = 0, z = 0, gram = 0;
        TST_OK(gma_inspection_head(n, i, &h));
        assert_int_equal(h.layer, i / 4);
        assert_int_equal(h.head, i % 4);
        for (int j = 0; j < 6; j++) {
            q += c->usage_q[j];
            k += c->usage_k[j];
            z += c->trace[(GMAL_TRACE - 1) * 6 + j];
            for (int64_t id = 0; id < 256; id++)
                mass += c->mass[j * 256 + id];
            for (int l = 0; l < 6; l++)
                gram += c->gram_k[j * 6 + l];
        }
        const double tokens = (double)h.tokens;
        TST_CLOSE(q / tokens, 1, 1e-5); /* responsibilities sum to 1 */
        TST_CLOSE(k / tokens, 1, 1e-5);
        TST_CLOSE(mass / tokens, 1, 1e-5);
        TST_CLOSE(z, 50, 1e-3); /* nothing is forgotten: one unit a token */
        TST_CLOSE(gram / tokens, 1, 1e-5);
        assert_in_range(h.used, 1, 6);
        assert_true(h.usage_entropy > 0 && h.usage_entropy <= 1);
        assert_true(h.effective_q >= 1 && h.effective_q <= 6 + 1e-6);
        assert_true(h.effective_rank >= 1 && h.effective_rank <= 6 + 1e-6);
        assert_true(h.overlap >= 0 && h.overlap <= 1 + 1e-6);
        assert_true(isnan(h.mean_decay));
    }
    /* heads 0 and 1 share their keys, heads 0 and 2 do not */
    assert_memory_equal(n->c.heads[0].assign_k, n->c.heads[1].assign_k, 850 * sizeof(uint16_t));
    assert_memory_not_equal(n->c.heads[0].assign_k, n->c.heads[2].assign_k, 850 * sizeof(uint16_t));
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
}

static void test_labels(void **state) {
    (void)state;
    gma_lm *lm = model("gma", 1);
    gma_inspect_options o;
    TST_OK(gma_inspect_options_init(&o));
    o.classes = put_text("classes", "a\tvowel\ne\tvowel\n\\x0a\tend\n");
    gma_inspection *n = look(lm, &o);
    assert_int_equal(gma_inspection_labels(n), 4);
    assert_int_equal(n->labels[2].count, 2);
    assert_string_equal(n->labels[2].names[0], "First");
    assert_string_equal(n->labels[2].names[1], "Second \xff");
    assert_int_equal(n->labels[2].label[0], 0);
    assert_int_equal(n->labels[2].label[n->c.tokens - 1], 1);
    assert_int_equal(n->labels[3].count, 2);
    int64_t vowels = 0;
    for (int64_t i = 0; i < n->c.tokens; i++)
        vowels += n->labels[3].label[i] == 0 && (n->c.ids[i] == 'a' || n->c.ids[i] == 'e');
    assert_int_equal(vowels, n->c.counts['a'] + n->c.counts['e']);
    int64_t table[6 * 256];
    for (int i = 0; i < 8; i++) {
        gma_inspect_label r = {.struct_size = sizeof r};
        TST_OK(gma_inspection_label(n, i, 1, &r));
        gmal_contingency(n->c.heads[i].assign_k, n->c.ids, n->c.tokens, 6, 256, table);
        TST_CLOSE(r.nmi, gmal_nmi(table, 6, 256), 0);
        assert_true(r.nmi > r.nmi_chance); /* of a first layer's keys, tokens are the only source */
        assert_int_equal(r.labelled, n->c.tokens);
        assert_true(n->heads[i].mean_decay > 0 && n->heads[i].mean_decay < 1);
    }
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
}

/* The same numbers, to rounding, whatever is computed together, and for a part of the heads. */
static void test_batches(void **state) {
    (void)state;
    gma_lm *lm = model("gma", 1);
    gma_inspect_options o;
    TST_OK(gma_inspect_options_init(&o));
    o.batch = 5; /* 17 windows: a rest of 2 */
    gma_inspection *all = look(lm, &o);
    o.batch = 17;
    o.layer = 1;
    o.head = 3;
    gma_inspection *one = look(lm, &o);
    assert_int_equal(gma_inspection_heads(one), 1);
    for (int j = 0; j < 6; j++) {
        TST_CLOSE(one->c.heads[0].usage_q[j], all->c.heads[7].usage_q[j], 1e-3); /* of 850 tokens */
        TST_CLOSE(one->c.heads[0].trace[6 * 40 + j], all->c.heads[7].trace[6 * 40 + j], 1e-4);
    }
    TST_CLOSE(one->heads[0].effective_rank, all->heads[7].effective_rank, 1e-4);
    gma_inspection_destroy(one);
    gma_inspection_destroy(all);
    gma_lm_destroy(lm);
}

static void test_json(void **state) {
    (void)state;
    gma_lm *lm = model("gma", 1);
    gma_inspection *n = look(lm, NULL);
    char path[160];
    snprintf(path, sizeof path, "%s/out.json", test_folder);
    TST_OK(gma_inspection_json(n, path));
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        tst_fail("line %d: %s", error.line, error.text);
    const json_t *heads = json_object_get(root, "heads"), *h = json_array_get(heads, 5);
    assert_int_equal(json_array_size(heads), 8);
    assert_int_equal(json_integer_value(json_object_get(h, "used")), n->heads[5].used);
    TST_CLOSE(json_real_value(json_object_get(h, "effective_rank")), n->heads[5].effective_rank, 1e-6);
    double priors = 0, shares = 0;
    size_t i;
    const json_t *row, *mixture = json_object_get(h, "mixture");
    json_array_foreach(mixture, i, row) priors += json_real_value(json_object_get(row, "prior"));
    TST_CLOSE(priors, 1, 1e-6);
    json_array_foreach(json_object_get(json_array_get(mixture, 0), "top_tokens"), i, row) shares +=
        json_real_value(json_object_get(row, "share"));
    assert_true(shares > 0 && shares <= 1 + 1e-6);
    json_decref(root);
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
}

/* A token file is opened as one, not read as text. */
static void test_token_file(void **state) {
    (void)state;
    gma_lm *lm = model("gma", 1);
    gma_tokenizer *bytes;
    char path[160];
    snprintf(path, sizeof path, "%s/text.tokens", test_folder);
    TST_OK(gma_tokenizer_create(GMA_TOKENIZER_BYTES, 256, &bytes));
    TST_OK(gma_data_encode(text_file(), bytes, 0, path));
    gma_inspection *text = look(lm, NULL), *tokens;
    TST_OK(gma_inspect(lm, path, NULL, &tokens));
    assert_int_equal(tokens->c.tokens, text->c.tokens);
    assert_memory_equal(tokens->c.ids, text->c.ids, (size_t)text->c.tokens * sizeof(int32_t));
    gma_inspection_destroy(tokens);
    gma_inspection_destroy(text);
    gma_tokenizer_destroy(bytes);
    gma_lm_destroy(lm);
}

static void test_refusals(void **state) {
    (void)state;
    gma_lm *lm = model("linear", 0), *gma = model("gma", 0);
    gma_inspection *n;
    gma_inspect_options o;
    TST_ERROR(gma_inspect(lm, text_file(), NULL, &n), GMA_ERR_UNSUPPORTED, "linear, linear");
    TST_OK(gma_inspect_options_init(&o));
    o.layer = 2;
    TST_ERROR(gma_inspect(gma, text_file(), &o, &n), GMA_ERR_INVALID_ARGUMENT, "layer is 2, and the model's are 0 to 1");
    o.layer = -1;
    o.head = 4;
    TST_ERROR(gma_inspect(gma, text_file(), &o, &n), GMA_ERR_INVALID_ARGUMENT, "head is 4, and those of a layer are 0 to 3");
    o.head = -1;
    o.layer = 1;
    TST_ERROR(gma_inspect(lm, text_file(), &o, &n), GMA_ERR_UNSUPPORTED, "layer 1 mixes with 'linear'");
    TST_ERROR(gma_inspect(gma, put_text("short", "a few words"), NULL, &n), GMA_ERR_INVALID_ARGUMENT, "needs at least 51");
    TST_ERROR(gma_inspect(gma, "/no/such/file", NULL, &n), GMA_ERR_IO, "/no/such/file");
    TST_OK(gma_inspect_options_init(&o));
    o.classes = put_text("bad", "a\tb\nc\n");
    TST_ERROR(gma_inspect(gma, text_file(), &o, &n), GMA_ERR_FORMAT, "bad:2:");
    o.classes = put_text("bad", "a\\q\tb\n");
    TST_ERROR(gma_inspect(gma, text_file(), &o, &n), GMA_ERR_FORMAT, "bad:1: a backslash");
    o.classes = put_text("bad", "a\tb\na\tc\n");
    TST_ERROR(gma_inspect(gma, text_file(), &o, &n), GMA_ERR_FORMAT, "there twice");
    gma_lm_destroy(lm);
    gma_lm_destroy(gma);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_labels),     cmocka_unit_test(test_batches),
        cmocka_unit_test(test_json),    cmocka_unit_test(test_token_file), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
