/* The HTML report: what it holds is inert, and its size is bounded. */
#define _POSIX_C_SOURCE 200809L
#include "inspect/inspect_testing.h"

#include "inspect/inspection.h"
#include "io/crc32.h"
#include "layers/rng.h"
#include "report/html.h"

/* ---- Text ------------------------------------------------------------------------------------------------------ */

static void expect_text(const char *text, size_t size, size_t most, const char *want) {
    char got[400] = "";
    FILE *f = fmemopen(got, sizeof got, "w");
    assert_non_null(f);
    gmal_html_text(f, text, size, most, GMAL_HTML_ATTRIBUTE);
    fclose(f);
    assert_string_equal(got, want);
}

static void test_escapes(void **state) {
    (void)state;
    expect_text("<i a=\"b\" c='d'>&`", 17, 99, "&#60;i a&#61;&#34;b&#34; c&#61;&#39;d&#39;&#62;&#38;&#96;");
    expect_text("a\0b\x01\x7f\t\n", 7, 99, "a\\x00b\\x01\\x7f\\t\\n");
    expect_text("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, 99, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    expect_text("\xff\xc3", 2, 99, "\\xff\\xc3");
    expect_text("\xc0\xaf\xe0\x80\xaf", 5, 99, "\\xc0\\xaf\\xe0\\x80\\xaf"); /* longer than it need be */
    expect_text("\xed\xa0\x80\xf4\x90\x80\x80", 7, 99,
                "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80"); /* a surrogate, past the end */
    expect_text("\xe2\x80\xae\xe2\x81\xa6\xef\xbb\xbf\xc2\x85\xe2\x80\xa8", 14, 99,
                "\\u{202e}\\u{2066}\\u{feff}\\u{0085}\\u{2028}");
    expect_text("abcdef", 6, 3, "abc\xe2\x80\xa6");
    expect_text("ab\xe2\x82\xac", 5, 4, "ab\xe2\x80\xa6");
    expect_text("", 0, 3, "");
}

/* The picture is a PNG whose sums are right, and holds the shades. */
static void test_picture(void **state) {
    (void)state;
    static const uint8_t shade[] = {0, 10, 255, 1, 2, 3};
    char text[4000];
    unsigned char bytes[3000];
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    gmal_html_shades(f, shade, 2, 3);
    fclose(f);
    const char *at = strchr(text, ',') + 1;
    size_t n = 0;
    for (uint32_t held = 0, bits = 0; *at && *at != '='; at++) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        held = held << 6 | (uint32_t)(strchr(digits, *at) - digits);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            bytes[n++] = (unsigned char)(held >> bits);
        }
    }
    assert_memory_equal(bytes, "\x89PNG\r\n\x1a\n", 8);
    size_t pos = 8;
    int chunks = 0;
    while (pos + 12 <= n) {
        const size_t size = (size_t)bytes[pos + 2] << 8 | bytes[pos + 3];
        const uint32_t crc = ~gmal_crc32_more(GMAL_CRC32, GMAL_CRC32_START, bytes + pos + 4, size + 4);
        const unsigned char *p = bytes + pos + 8 + size;
        assert_int_equal(crc, (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
        if (memcmp(bytes + pos + 4, "IDAT", 4) == 0) {
            assert_memory_equal(bytes + pos + 8 + 2 + 5 + 1, shade, 3);
            assert_memory_equal(bytes + pos + 8 + 2 + 9 + 5 + 1, shade + 3, 3);
        }
        pos += size + 12;
        chunks++;
    }
    assert_int_equal(pos, n);
    assert_int_equal(chunks, 5);
    assert_int_equal(~gmal_crc32_more(GMAL_CRC32, GMAL_CRC32_START, "123456789", 9), 0xcbf43926u);
}

/* ---- The page -------------------------------------------------------------------------------------------------- */

static int is_one_of(const char *name, size_t size, const char *const *list) {
    for (; *list; list++)
        if (strlen(*list) == size && strncmp(name, *list, size) == 0)
            return 1;
    return 0;
}

/* Whatever was in text and names, the page holds our own tags only, no handler, one script, nothing that would load,
 * valid UTF-8 and no character that is not seen. */
static void check_inert(const char *page, size_t size) {
    static const char *const tags[] = {
        "html",    "head",    "meta",    "link",   "title",      "style", "body", "a",    "script", "header",
        "h1",      "h2",      "h3",      "h4",     "p",          "em",    "dl",   "div",  "dt",     "dd",
        "small",   "main",    "section", "ul",     "li",         "b",     "span", "svg",  "path",   "br",
        "details", "summary", "strong",  "figure", "figcaption", "i",     "img",  "text", "circle", "rect",
        "image",   "table",   "caption", "thead",  "tbody",      "tr",    "th",   "td",   "footer", NULL};
    const char *script = strstr(page, "<script"), *code = strstr(page, "</script>");
    assert_non_null(script);
    assert_non_null(code);
    assert_null(strstr(script + 1, "<script"));
    for (const char *p = page; (p = strchr(p, '<')) != NULL; p++) {
        if ((p > script && p < code) || p[1] == '!')
            continue;
        const char *name = p + 1 + (p[1] == '/');
        const size_t length = strcspn(name, " >\n/");
        if (!is_one_of(name, length, tags))
            tst_fail("a strange tag: %.60s", p);
        const char *end = name;
        for (char quote = 0; *end && (quote || *end != '>'); end++) { /* attributes: ours are all in double quotes */
            if (*end == '"')
                quote = quote ? 0 : '"';
            if (!quote && strncmp(end, " on", 3) == 0)
                tst_fail("a handler: %.60s", p);
            if (!quote && (strncmp(end, " src=", 5) == 0 || strncmp(end, " href=", 6) == 0))
                assert_true(strncmp(strchr(end, '"'), "\"data:", 6) == 0 || strncmp(strchr(end, '"'), "\"#", 2) == 0);
        }
        assert_int_equal(*end, '>');
    }
    gma_utf8 filter = {{0}, 0};
    char out[GMA_UTF8_MAX];
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)page[i];
        assert_true(c >= 0x20 || c == '\n');
        const size_t n = gma_utf8_push(&filter, c, out);
        assert_false(n >= 3 && memcmp(out, "\xef\xbf\xbd", 3) == 0);
    }
    static const char *const unseen[] = {"\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x80\x8b", "\xef\xbb\xbf"};
    for (size_t i = 0; i < sizeof unseen / sizeof unseen[0]; i++)
        assert_null(strstr(page, unseen[i]));
}

/* Every name and every word is an attack. A model of words, so that they stay in one piece. */
static void test_inert(void **state) {
    (void)state;
    static const char *const words[] = {"<script>alert(1)</script>",
                                        "\"><img/src=x/onerror=alert(2)>",
                                        "'onmouseover='alert(3)",
                                        "</title></style></script><script>",
                                        "-->",
                                        "<!--",
                                        "&lt;",
                                        ("\xe2\x80\xae"
                                         "abc"),
                                        "\xff\xfe",
                                        "\xe2\x80\x8b",
                                        "]]>",
                                        "{{x}}",
                                        "javascript:alert(4)",
                                        "a`b=c",
                                        "\xed\xa0\x80",
                                        "\x01\x02"};
    enum { WORDS = sizeof words / sizeof words[0] };
    static char text[20000];
    size_t size = 0;
    size += (size_t)sprintf(text, "\n = <script>title</script> = \n");
    for (int i = 0; i < 900; i++) {
        const char *w = words[(i * 7 + i / 5) % WORDS];
        const size_t n = strlen(w);
        memcpy(text + size, w, n);
        size += n;
        text[size++] = i % 13 ? ' ' : '\n';
    }
    const char *data = put_file("<b onclick=x>&\"'.txt", text, size), *page = in_folder("inert.html");
    gma_tokenizer *t;
    gma_lm_config c;
    gma_lm *lm;
    gma_inspection *n;
    gma_comparison *cmp;
    gma_inspect_options o;
    gma_report_options p;
    TST_OK(gma_tokenizer_learn(GMA_TOKENIZER_WORDS, &data, 1, 0, 1, &t));
    TST_OK(gma_lm_config_init(&c));
    c.layers = 1;
    c.width = 32;
    c.heads = 2;
    c.components = 5;
    c.context = 40;
    c.tokenizer = GMA_LM_TOKENIZER_WORDS;
    c.vocab = gma_tokenizer_vocab(t);
    TST_OK(gma_lm_create(&c, 1, &lm));
    TST_OK(gma_lm_set_tokenizer(lm, t));
    TST_OK(gma_inspect_options_init(&o));
    o.classes = put_text("classes.tsv", "-->\t<script>class</script>\n{{x}}\t\xe2\x80\xae\xff\"x\n");
    TST_OK(gma_inspect(lm, data, &o, &n));
    assert_int_equal(gma_inspection_labels(n), 4); /* the article and the classes are in it */
    TST_OK(gma_inspect_compare(n, n, &cmp));
    TST_OK(gma_report_options_init(&p));
    p.model = "runs/<script>\xff";
    p.other = "\"onload=\"x\xe2\x80\xae";
    TST_OK(gma_inspection_report(n, cmp, &p, page));
    char *html = get_file(page, &size);
    check_inert(html, size);
    assert_non_null(strstr(html, "&#60;script&#62;alert(1)&#60;/script&#62;")); /* it is shown, not dropped */
    assert_non_null(strstr(html, "\\u{202e}"));
    assert_non_null(strstr(html, "\\xff</b><b class=\"esc\">\\xfe"));
    assert_non_null(strstr(html, "&#60;script&#62;class&#60;/script&#62;"));
    assert_non_null(strstr(html, "&#60;b onclick&#61;x&#62;"));
    free(html);
    gma_comparison_destroy(cmp);
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
}

/* A part of its own for every head and component, and random bytes as the text. */
static void test_page(void **state) {
    (void)state;
    unsigned char bytes[2000];
    for (int i = 0; i < 2000; i++)
        bytes[i] = (unsigned char)gmal_random(9, (uint64_t)i);
    const char *data = put_file("noise", bytes, sizeof bytes), *page = in_folder("page.html");
    gma_lm *lm = model("gma", 1);
    gma_inspection *n;
    gma_report_options p;
    size_t size;
    TST_OK(gma_inspect(lm, data, NULL, &n));
    TST_OK(gma_report_options_init(&p));
    p.at = 60;
    p.span = 30;
    TST_OK(gma_inspection_report(n, NULL, &p, page));
    char *html = get_file(page, &size);
    check_inert(html, size);
    for (int layer = 0; layer < 2; layer++)
        for (int head = 0; head < 4; head++)
            for (int k = -1; k < 6; k++) {
                char id[40];
                snprintf(id, sizeof id, k < 0 ? " id=\"l%dh%d\"" : " id=\"l%dh%dc%d\"", layer, head, k);
                assert_non_null(strstr(html, id));
            }
    assert_null(strstr(html, "<h2 id=\"compare\">"));
    assert_non_null(strstr(html, "tokens 61 to 90"));
    free(html);
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
}

/* Twelve times the text, the same page but for digits. */
static void test_size(void **state) {
    (void)state;
    gma_lm *lm = model("gma", 1);
    size_t sizes[2];
    for (int i = 0; i < 2; i++) {
        static char text[60000];
        const size_t bytes = i ? 60000 : 5000;
        for (size_t j = 0; j < bytes; j++)
            text[j] = "The quick brown fox; 42 dogs.\n"[gmal_random(4, j) % 30];
        const char *data = put_file("long", text, bytes), *page = in_folder("long.html");
        gma_inspection *n;
        TST_OK(gma_inspect(lm, data, NULL, &n));
        TST_OK(gma_inspection_report(n, NULL, NULL, page));
        free(get_file(page, &sizes[i]));
        gma_inspection_destroy(n);
    }
    assert_true(sizes[1] < sizes[0] + sizes[0] / 20);
    gma_lm_destroy(lm);
}

static void test_refusals(void **state) {
    (void)state;
    gma_lm *lm = model("gma", 0);
    gma_inspection *n = look(lm, NULL), *other = look(lm, NULL);
    gma_comparison *c;
    gma_report_options p;
    const char *page = in_folder("none.html");
    TST_OK(gma_report_options_init(&p));
    p.at = n->c.tokens;
    TST_ERROR(gma_inspection_report(n, NULL, &p, page), GMA_ERR_INVALID_ARGUMENT,
              "token 900 was asked for; the text that was read has 900");
    p.at = 0;
    p.span = 129;
    TST_ERROR(gma_inspection_report(n, NULL, &p, page), GMA_ERR_INVALID_ARGUMENT, "span must be from 1 to 128");
    p.span = 64;
    TST_ERROR(gma_inspection_report(n, NULL, &p, "/no/such/folder/r.html"), GMA_ERR_IO, "/no/such/folder/r.html");
    TST_OK(gma_inspect_compare(other, n, &c));
    TST_ERROR(gma_inspection_report(n, c, &p, page), GMA_ERR_INVALID_ARGUMENT, "not one of this inspection");
    p.struct_size = 0;
    TST_ERROR(gma_inspection_report(n, NULL, &p, page), GMA_ERR_INVALID_ARGUMENT, "gma_report_options_init");
    assert_int_not_equal(access(page, F_OK), 0); /* nothing was written */
    gma_comparison_destroy(c);
    gma_inspection_destroy(other);
    gma_inspection_destroy(n);
    gma_lm_destroy(lm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes), cmocka_unit_test(test_picture), cmocka_unit_test(test_inert),
        cmocka_unit_test(test_page),    cmocka_unit_test(test_size),    cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
