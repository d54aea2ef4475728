/* Matching the components of two models. */
#define _POSIX_C_SOURCE 200809L
#include "inspect/inspect_testing.h"

#include <jansson.h>
#include <math.h>

#include "inspect/compare.h"
#include "inspect/route.h"

enum { K = 6, HEADS = 4 };

/* Where component k of key head h goes: another order for every head. */
static int moved(int h, int k) { return (k * 5 + h + 2) % K; }

/* A model whose components have changed places does the same. */
static gma_lm *permuted(gma_lm *from) {
    gma_lm *lm = seeded_model("gma", 1, 2, K, 3);
    for (int i = 0; i < gma_lm_tensor_count(lm); i++) {
        const char *name;
        gma_tensor a, b;
        TST_OK(gma_lm_tensor(from, i, &name, &a));
        TST_OK(gma_lm_tensor(lm, i, &name, &b));
        const int alpha = strstr(name, ".alpha") != NULL;
        if (!alpha && !strstr(name, ".mu") && !strstr(name, ".omega"))
            continue;
        const int64_t width = alpha ? 1 : a.shape[2];
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < K; k++)
                memcpy((float *)b.data + (h * K + moved(h, k)) * width, (const float *)a.data + (h * K + k) * width,
                       (size_t)width * sizeof(float));
    }
    return lm;
}

static void test_permutation(void **state) {
    (void)state;
    gma_lm *a = seeded_model("gma", 1, 2, K, 3), *b = permuted(a);
    gma_inspection *x = look(a, NULL), *y = look(b, NULL);
    gma_comparison *c;
    TST_OK(gma_inspect_compare(x, y, &c));
    assert_int_equal(gma_comparison_pairs(c), 2 * HEADS);
    for (int i = 0; i < 2 * HEADS; i++) {
        gma_compare_pair p = {.struct_size = sizeof p};
        TST_OK(gma_comparison_pair(c, i, &p));
        assert_int_equal(p.layer, i / HEADS);
        assert_int_equal(p.head_a, i % HEADS);
        assert_int_equal(p.head_b, i % HEADS);
        assert_int_equal(p.matched, K);
        assert_int_equal(p.above_half, K);
        TST_CLOSE(p.correlation, 1, 1e-4);
        TST_CLOSE(p.correlation_by_usage, 1, 1e-4);
        TST_CLOSE(p.nmi, 1, 1e-12);
        assert_true(p.chance < 0.5 && p.nmi_chance < 0.2);
        double last = 2;
        for (int k = 0; k < K; k++) {
            const gmal_match *m = &c->pairs[i].matches[k];
            assert_int_equal(m->b, moved(i % HEADS / 2, (int)m->a));
            TST_CLOSE(m->usage_a, m->usage_b, 1e-6);
            assert_true(m->usage_a <= last); /* the most used first */
            last = m->usage_a;
        }
    }
    gma_comparison_destroy(c);
    gma_inspection_destroy(x);
    gma_inspection_destroy(y);
    gma_lm_destroy(a);
    gma_lm_destroy(b);
}

/* Pearson's correlation of one pair, written out over the same tokens. */
static void check_correlation(const gma_inspection *x, const gma_inspection *y, const gmal_pair *p,
                              const gmal_match *m) {
    gmal_router r[2];
    const gma_inspection *n[2] = {x, y};
    const int head[2] = {p->a, p->b};
    const int64_t component[2] = {m->a, m->b}, context = x->c.context;
    double s[2] = {0}, ss[2] = {0}, xy = 0, count = 0;
    for (int i = 0; i < 2; i++)
        TST_OK(gmal_router_create(n[i]->lm, context, 1, 1, &r[i]));
    for (int64_t w = 0; w < x->c.tokens / context; w++) {
        const float *rows[2][2];
        for (int i = 0; i < 2; i++) {
            const gmal_head *h = &n[i]->c.heads[head[i]];
            TST_OK(gmal_router_ids(&r[i], n[i]->c.ids + w * context));
            TST_OK(gmal_router_layer(&r[i], h->layer));
            rows[i][0] = gmal_router_q(&r[i], 0, h->head, h->components);
            rows[i][1] = gmal_router_k(&r[i], 0, h->kv_head, h->components);
        }
        for (int query = 0; query < 2; query++)
            for (int64_t t = 0; t < context; t++) {
                double v[2];
                for (int i = 0; i < 2; i++) {
                    v[i] = (double)rows[i][query][t * n[i]->c.heads[head[i]].components + component[i]];
                    s[i] += v[i];
                    ss[i] += v[i] * v[i];
                }
                xy += v[0] * v[1];
                count++;
            }
    }
    TST_CLOSE(m->correlation,
              (xy - s[0] * s[1] / count) / sqrt((ss[0] - s[0] * s[0] / count) * (ss[1] - s[1] * s[1] / count)), 1e-4);
    gmal_router_destroy(&r[0]);
    gmal_router_destroy(&r[1]);
}

/* Two seeds, and not as many components: every head and component once, and the JSON says the same. */
static void test_seeds(void **state) {
    (void)state;
    gma_lm *a = seeded_model("gma", 1, 4, K, 3), *b = seeded_model("gma", 0, 4, K + 3, 4);
    gma_inspection *x = look(a, NULL), *y = look(b, NULL);
    gma_comparison *c;
    TST_OK(gma_inspect_compare(x, y, &c));
    assert_int_equal(c->count, 2 * HEADS);
    int heads[2] = {0};
    for (int i = 0; i < c->count; i++) {
        const gmal_pair *p = &c->pairs[i];
        int seen_a = 0, seen_b = 0, alone = 0;
        heads[p->numbers.layer] |= 1 << p->numbers.head_b;
        assert_int_equal(p->count, K + 3);
        assert_int_equal(p->numbers.matched, K);
        for (int k = 0; k < p->count; k++) {
            const gmal_match *m = &p->matches[k];
            seen_a |= m->a < 0 ? 0 : 1 << m->a;
            seen_b |= 1 << m->b;
            alone += m->a < 0 && isnan(m->correlation);
        }
        assert_int_equal(seen_a, (1 << K) - 1);
        assert_int_equal(seen_b, (1 << (K + 3)) - 1);
        assert_int_equal(alone, 3);
        assert_true(p->numbers.correlation <= 1 && p->numbers.correlation > p->numbers.chance);
        for (int k = 0; k < p->count; k++)
            if (i == 5 && p->matches[k].a >= 0)
                check_correlation(x, y, p, &p->matches[k]);
    }
    assert_int_equal(heads[0], (1 << HEADS) - 1);
    assert_int_equal(heads[1], (1 << HEADS) - 1);
    const char *path = in_folder("compare.json");
    TST_OK(gma_comparison_json(c, "a", "b\xff", path));
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "b")), "b\\xff");
    const json_t *pair = json_array_get(json_object_get(root, "pairs"), 3);
    TST_CLOSE(json_real_value(json_object_get(pair, "correlation")), c->pairs[3].numbers.correlation, 1e-8);
    assert_int_equal(json_array_size(json_object_get(pair, "components")), K + 3);
    json_decref(root);
    gma_comparison_destroy(c);
    gma_inspection_destroy(x);
    gma_inspection_destroy(y);
    gma_lm_destroy(a);
    gma_lm_destroy(b);
}

static void test_refusals(void **state) {
    (void)state;
    gma_lm *a = model("gma", 1);
    gma_inspection *x = look(a, NULL), *y;
    gma_inspect_options o;
    gma_comparison *c;
    TST_OK(gma_inspect_options_init(&o));
    o.context = 25;
    y = look(a, &o);
    TST_ERROR(gma_inspect_compare(x, y, &c), GMA_ERR_INVALID_ARGUMENT,
              "windows of 50, and 900 of 256 in windows of 25");
    gma_inspection_destroy(y);
    gma_inspection_destroy(x);
    o.context = 0;
    o.layer = 0;
    x = look(a, &o);
    o.layer = 1;
    y = look(a, &o);
    TST_ERROR(gma_inspect_compare(x, y, &c), GMA_ERR_UNSUPPORTED, "no layer in which both");
    assert_null(c);
    gma_inspection_destroy(y);
    gma_inspection_destroy(x);
    gma_lm_destroy(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_permutation), cmocka_unit_test(test_seeds),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
