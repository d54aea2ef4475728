/* Two models side by side: heads that go together, and their components. */
#include <math.h>

#include "report/html.h"
#include "report/report.h"

enum { SHOWN = 24, TOKENS = 4 };

static void cell(FILE *f, double x) {
    fputs("<td>", f);
    gmal_html_number(f, x, 3);
    fputs("</td>", f);
}

static void put_table(const gmal_report *r) {
    FILE *f = r->f;
    fputs("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Table: heads that go "
          "together\"><table><thead><tr><th scope=\"col\">layer"
          "</th><th scope=\"col\">head here</th><th scope=\"col\">head there</th><th scope=\"col\">correlation</th><th "
          "scope=\"col\">chance</th>"
          "<th scope=\"col\">by usage</th><th scope=\"col\">above &#189;</th><th scope=\"col\">NMI</th><th "
          "scope=\"col\">chance</th></tr></thead><tbody>\n",
          f);
    for (int i = 0; i < r->comparison->count; i++) {
        const gma_compare_pair *p = &r->comparison->pairs[i].numbers;
        fprintf(f, "<tr><td>%lld</td><td>%lld</td><td>%lld</td>", (long long)p->layer, (long long)p->head_a,
                (long long)p->head_b);
        cell(f, p->correlation);
        cell(f, p->chance);
        cell(f, p->correlation_by_usage);
        fprintf(f, "<td>%lld of %lld</td>", (long long)p->above_half, (long long)p->matched);
        cell(f, p->nmi);
        cell(f, p->nmi_chance);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
}

/* A component of one side: its number and its tokens, with the tokenizer that both share. */
static void put_side(const gmal_report *r, const gma_inspection *n, int head, int64_t component, double usage) {
    gmal_top_token top[TOKENS];
    if (component < 0) {
        fputs("<td>&#8211;</td><td>&#8211;</td><td class=\"l\"></td>", r->f);
        return;
    }
    fprintf(r->f, "<td>%lld</td><td>%.2f&nbsp;%%</td><td class=\"l tokens\">", (long long)component, 100 * usage);
    const int count = gmal_top_tokens(n, head, component, TOKENS, top);
    for (int i = 0; i < count; i++)
        gmal_report_token(r, top[i].id);
    fputs("</td>", r->f);
}

static void put_pair(const gmal_report *r, const gmal_pair *p) {
    FILE *f = r->f;
    const int64_t shown = p->count < SHOWN ? p->count : SHOWN;
    fprintf(f,
            "<details><summary>Layer %lld: head %lld and head %lld there <small>mean correlation ",
            (long long)p->numbers.layer, (long long)p->numbers.head_a, (long long)p->numbers.head_b);
    gmal_html_number(f, p->numbers.correlation, 3);
    fputs(", chance ", f);
    gmal_html_number(f, p->numbers.chance, 3);
    fprintf(f,
            "</small></summary>\n"
            "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Table: components of layer %lld, head "
            "%lld and head %lld\"><table><caption>The %lld "
            "most used components of %lld</caption><thead><tr><th scope=\"col\">correlation</th><th "
            "scope=\"col\">here</th><th scope=\"col\">usage</th>"
            "<th class=\"l\" scope=\"col\">its tokens</th><th scope=\"col\">there</th><th scope=\"col\">usage</th><th "
            "class=\"l\" scope=\"col\">its tokens</th>"
            "</tr></thead><tbody>\n",
            (long long)p->numbers.layer, (long long)p->numbers.head_a, (long long)p->numbers.head_b, (long long)shown,
            (long long)p->count);
    for (int64_t i = 0; i < shown; i++) {
        const gmal_match *m = &p->matches[i];
        fputs("<tr>", f);
        cell(f, m->correlation);
        put_side(r, r->comparison->a, p->a, m->a, m->usage_a);
        put_side(r, r->comparison->b, p->b, m->b, m->usage_b);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div></details>\n", f);
}

void gmal_report_comparison(const gmal_report *r) {
    FILE *f = r->f;
    const int shown = r->comparison->count < GMAL_REPORT_HEADS ? r->comparison->count : GMAL_REPORT_HEADS;
    fputs("<section aria-labelledby=\"compare\">\n<h2 id=\"compare\">Compared with ", f);
    gmal_html_string(f, r->o.other, GMAL_HTML_ELEMENT);
    fprintf(f,
            "</h2>\n<p>Do the two models sort the same text alike? Components have no order that means anything, so "
            "each is matched with the one of "
            "the other model whose responsibilities rise and fall with its own: the matching with the largest sum of "
            "correlations, over the first "
            "%lld tokens, queries and keys. Heads of a layer are matched in the same way. Chance is what matching "
            "finds when the tokens of the other "
            "model are shuffled; NMI is between the largest components of every token. A component that never changes has "
            "no correlation (&#8211;).</p>\n",
            (long long)r->comparison->tokens);
    put_table(r);
    for (int i = 0; i < shown; i++)
        put_pair(r, &r->comparison->pairs[i]);
    fputs("</section>\n", f);
}
