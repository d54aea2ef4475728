/* One head: its numbers, the coloured text, what it is held against, and its components. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

/* ---- Numbers -------------------------------------------------------------------------------------------------- */

static void fact(FILE *f, const char *name, double x, int decimals, const char *unit) {
    fprintf(f, "<div><dt>%s</dt><dd>", name);
    gmal_html_number(f, x, decimals);
    if (unit)
        fprintf(f, " <small>%s</small>", unit);
    fputs("</dd></div>\n", f);
}

static void put_facts(const gmal_report *r, const gma_inspect_head *h) {
    FILE *f = r->f;
    char of[32];
    snprintf(of, sizeof of, "of %lld", (long long)h->components);
    fputs("<dl class=\"facts\">\n", f);
    fact(f, "components used", (double)h->used, 0, of);
    fact(f, "usage entropy", h->usage_entropy, 3, NULL);
    fact(f, "components a token, as key", h->effective_k, 2, NULL);
    fact(f, "components a token, as query", h->effective_q, 2, NULL);
    fact(f, "overlap of reading and writing", h->overlap, 3, NULL);
    fact(f, "agreement", 100 * h->agreement, 1, "% of tokens");
    fact(f, "effective rank", h->effective_rank, 1, of);
    fact(f, "keeps from token to token", 100 * h->mean_decay, 2, isnan(h->mean_decay) ? "(no forget gate)" : "%");
    fputs("</dl>\n", f);
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

/* The largest three of a posterior: "component percent component percent ...". */
static void put_posterior(FILE *f, const float *gamma, int64_t k, const char *separator) {
    int64_t best[3] = {-1, -1, -1};
    for (int64_t i = 0; i < k; i++)
        for (int at = 0; at < 3; at++)
            if (best[at] < 0 || gamma[i] > gamma[best[at]]) {
                memmove(best + at + 1, best + at, (size_t)(2 - at) * sizeof *best);
                best[at] = i;
                break;
            }
    for (int at = 0; at < 3; at++) /* as many in every row, so that a row can be split in the middle */
        if (best[at] >= 0)
            fprintf(f, "%s%lld %.0f", at ? " " : separator, (long long)best[at], 100 * (double)gamma[best[at]]);
}

static int64_t largest(const float *gamma, int64_t k) {
    int64_t best = 0;
    for (int64_t i = 1; i < k; i++)
        if (gamma[i] > gamma[best])
            best = i;
    return best;
}

static void put_legend(const gmal_report *r, const gmal_ranked *ranked, const char *prefix) {
    const int64_t shown = ranked->count < GMAL_REPORT_COLOURS ? ranked->count : GMAL_REPORT_COLOURS;
    fputs("<ul class=\"legend\" aria-label=\"Colours of the components\">", r->f);
    for (int64_t i = 0; i < shown; i++)
        fprintf(r->f, "<li><span class=\"%s%lld\"></span>%d</li>", prefix, (long long)i, (int)ranked->order[i]);
    if (shown < ranked->count)
        fprintf(r->f, "<li><span class=\"%sx\"></span>the other %lld</li>", prefix, (long long)(ranked->count - shown));
    fputs("</ul>\n", r->f);
}

static void put_text(const gmal_report *r, int head, const gmal_ranked *ranked) {
    FILE *f = r->f;
    const gmal_head *h = &r->n->c.heads[head];
    const gmal_stretch *s = &r->stretch;
    const gmal_stretch_head *x = &s->heads[head];
    const int64_t k = h->components;
    fprintf(f,
            "<h3>The text, coloured by component</h3>\n<p>Each token has the colour of the component it is mostly "
            "written to (its largest "
            "as a key). The %d most used components have colours of their own, the second eight an underline. Shown "
            "are tokens %lld to "
            "%lld of the text.</p>\n",
            (int)GMAL_REPORT_COLOURS, (long long)s->begin + 1, (long long)(s->begin + s->tokens));
    put_legend(r, ranked, "c");
    fprintf(f, "<div class=\"text\" id=\"t%d\" role=\"group\" aria-label=\"Text coloured by component\" data-p=\"",
            head);
    for (int64_t t = 0; t < s->tokens; t++) {
        put_posterior(f, x->gamma_k + t * k, k, t ? ";" : "");
        put_posterior(f, x->gamma_q + t * k, k, " ");
    }
    fputs("\">", f);
    for (int64_t t = 0; t < s->tokens; t++) {
        const int32_t id = r->n->c.ids[s->begin + t];
        const char *text;
        size_t size;
        fprintf(f, "<i class=\"c%s\">", gmal_colour_name(ranked->colour[largest(x->gamma_k + t * k, k)]));
        if (gma_tokenizer_token(r->n->tokenizer, id, &text, &size))
            gmal_html_running(f, text, size, GMAL_REPORT_TOKEN_BYTES);
        else
            fprintf(f, "%d ", (int)id);
        fputs("</i>", f);
    }
    fprintf(f, "</div>\n<p class=\"say script\" id=\"t%d-say\" role=\"status\" hidden>No token is chosen.</p>\n", head);
}

/* ---- Labels --------------------------------------------------------------------------------------------------- */

static void cell(FILE *f, double x) {
    fputs("<td>", f);
    gmal_html_number(f, x, 3);
    fputs("</td>", f);
}

static void put_classes(const gmal_report *r, const gmal_labels *l, const gmal_label_result *result) {
    FILE *f = r->f;
    if (!result->class_purity)
        return;
    fputs("<p class=\"soft\">Found by component, of the ", f);
    gmal_html_string(f, l->what, GMAL_HTML_ELEMENT);
    fputs(": ", f);
    for (int64_t i = 0, shown = 0; i < l->count && shown < GMAL_REPORT_CLASSES; i++) {
        if (isnan(result->class_purity[i]))
            continue;
        fputs(shown++ ? ", " : "", f);
        gmal_html_text(f, l->names[i], strlen(l->names[i]), GMAL_REPORT_TOKEN_BYTES, GMAL_HTML_ELEMENT);
        fprintf(f, " %.0f&nbsp;%%", 100 * result->class_purity[i]);
    }
    fputs(l->count > GMAL_REPORT_CLASSES ? ", and others.</p>\n" : ".</p>\n", f);
}

static void put_labels(const gmal_report *r, int head) {
    FILE *f = r->f;
    const gma_inspection *n = r->n;
    fputs("<h3>What the components know</h3>\n<p>The largest component of every token as a key against labels of the "
          "token. Only what lies "
          "above chance says anything.</p>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Table: "
          "labels\"><table>"
          "<thead><tr><th class=\"l\" scope=\"col\">against the</th><th scope=\"col\">kinds</th><th "
          "scope=\"col\">NMI</th>"
          "<th scope=\"col\">chance</th><th scope=\"col\">above</th><th scope=\"col\">purity</th><th "
          "scope=\"col\">chance</th></tr></thead><tbody>\n",
          f);
    for (int i = 0; i < n->label_count; i++) {
        const gma_inspect_label *x = &n->results[head * n->label_count + i].numbers;
        fputs("<tr><th class=\"l\" scope=\"row\">", f);
        gmal_html_string(f, x->what, GMAL_HTML_ELEMENT);
        fprintf(f, "</th><td>%lld</td>", (long long)x->classes);
        cell(f, x->nmi);
        cell(f, x->nmi_chance);
        cell(f, x->nmi - x->nmi_chance);
        cell(f, x->purity);
        cell(f, x->purity_chance);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
    for (int i = 0; i < n->label_count; i++)
        put_classes(r, &n->labels[i], &n->results[head * n->label_count + i]);
}

/* ---- Components ----------------------------------------------------------------------------------------------- */

static void bar(FILE *f, const char *class, double part) {
    fprintf(f, "<span class=\"bar%s\"><i style=\"width:%.1f%%\"></i></span>", class, 100 * (part > 1 ? 1 : part));
}

static void put_component(const gmal_report *r, int head, const gmal_ranked *ranked, int64_t k, double most) {
    FILE *f = r->f;
    const gma_inspect_head *h = &r->n->heads[head];
    const gmal_component *c = &ranked->all[k];
    gmal_top_token top[GMAL_REPORT_TOP];
    fprintf(f, "<li id=\"l%lldh%lldc%lld\"><b><span class=\"s%s\"></span>Component %lld</b>", (long long)h->layer,
            (long long)h->head, (long long)k, gmal_colour_name(ranked->colour[k]), (long long)k);
    fprintf(f, "<p>written %.2f&nbsp;%%", 100 * c->usage_k);
    bar(f, "", most > 0 ? c->usage_k / most : 0);
    fprintf(f, "read %.2f&nbsp;%%", 100 * c->usage_q);
    bar(f, " q", most > 0 ? c->usage_q / most : 0);
    fprintf(f, "prior %.4f; variance %.3f (%.3f to %.3f)</p><div>", c->prior, c->variance_mean, c->variance_min,
            c->variance_max);
    const int wanted = r->n->o.top_tokens < GMAL_REPORT_TOP ? r->n->o.top_tokens : GMAL_REPORT_TOP;
    const int count = gmal_top_tokens(r->n, head, k, wanted, top);
    for (int i = 0; i < count; i++) {
        fputs("<span class=\"weighed\">", f);
        gmal_report_token(r, top[i].id);
        fprintf(f, "<small class=\"soft\">%.0f&nbsp;%%, %.2f</small></span> ", 100 * top[i].share,
                top[i].responsibility);
    }
    fputs("</div></li>\n", f);
}

static void put_components(const gmal_report *r, int head, const gmal_ranked *ranked) {
    FILE *f = r->f;
    const int64_t shown = ranked->count < r->components ? ranked->count : r->components;
    double most = 0;
    for (int64_t k = 0; k < ranked->count; k++)
        most = fmax(most, fmax(ranked->all[k].usage_k, ranked->all[k].usage_q));
    fprintf(f,
            "<details><summary>The components <small>%lld of %lld, the most used first</small></summary>\n<p>Beside "
            "each token: its part "
            "of all that is written to the component, and how surely it goes there (its mean responsibility, 0 to 1). "
            "&#8220;Written&#8221; and "
            "&#8220;read&#8221; are the component's usage as key and as query.</p>\n<ul class=\"components\">\n",
            (long long)shown, (long long)ranked->count);
    for (int64_t i = 0; i < shown; i++)
        put_component(r, head, ranked, ranked->order[i], most);
    fputs("</ul>\n</details>\n", f);
}

/* ---- The head ------------------------------------------------------------------------------------------------- */

gma_status gmal_report_head(const gmal_report *r, int head) {
    FILE *f = r->f;
    const gma_inspect_head *h = &r->n->heads[head];
    gmal_ranked ranked;
    gma_status s = gmal_ranked_create(r->n, head, &ranked);
    if (s != GMA_OK)
        return s;
    fprintf(f,
            "<details class=\"head\"%s><summary>Layer %lld, head %lld <small>%lld of %lld components used, entropy "
            "%.3f</small></summary>\n"
            "<div id=\"l%lldh%lld\">\n",
            head == 0 ? " open" : "", (long long)h->layer, (long long)h->head, (long long)h->used,
            (long long)h->components, h->usage_entropy, (long long)h->layer, (long long)h->head);
    put_facts(r, h);
    put_text(r, head, &ranked);
    s = gmal_report_attention(r, head);
    if (s == GMA_OK) {
        fputs("<div class=\"pair\">\n", f);
        s = gmal_report_map(r, head, &ranked);
        gmal_report_memory(r, head, &ranked);
        fputs("</div>\n", f);
    }
    put_legend(r, &ranked, "s");
    put_labels(r, head);
    put_components(r, head, &ranked);
    fputs("</div>\n</details>\n", f);
    gmal_ranked_free(&ranked);
    return s;
}
