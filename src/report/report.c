/* The report as a whole: title, overview, glossary, and the parts in turn. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/replace.h"
#include "report/html.h"
#include "report/template.h"

gma_status gma_report_options_init(gma_report_options *o) {
    if (!o)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options is NULL");
    *o = (gma_report_options){.struct_size = sizeof *o, .span = 64};
    return GMA_OK;
}

/* ---- Overview ------------------------------------------------------------------------------------------------- */

static void fact(FILE *f, const char *name, const char *format, double x) {
    fprintf(f, "<div><dt>%s</dt><dd>", name);
    fprintf(f, format, x);
    fputs("</dd></div>\n", f);
}

static void put_header(const gmal_report *r) {
    FILE *f = r->f;
    const gma_inspection *n = r->n;
    fputs("<header>\n<h1>What the Gaussians of ", f);
    gmal_html_string(f, r->o.model, GMAL_HTML_ELEMENT);
    fputs(" do</h1>\n<p>Every head of Gaussian Mixture Attention sorts tokens into components, its Gaussians: a token "
          "is <em>written</em> "
          "to some of them, as a key, and <em>reads</em> from some, as a query. This page shows which tokens go where "
          "in the text ",
          f);
    gmal_html_string(f, n->data, GMAL_HTML_ELEMENT);
    fputs(".</p>\n<dl class=\"facts\">\n", f);
    fact(f, "tokens looked at", "%.0f", (double)n->c.tokens);
    fact(f, "tokens of a window", "%.0f", (double)n->c.context);
    fact(f, "loss on them <small>(nats per token)</small>", "%.3f", n->c.loss);
    fact(f, "heads", "%.0f", n->c.count);
    fputs("</dl>\n</header>\n<main>\n", f);
}

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* How evenly the components are used: usage from the most to the least used, as an area. */
static void put_spark(const gmal_report *r, int head, double *usage) {
    enum { WIDTH = 200, HEIGHT = 46, MOST = 64 };
    const gmal_head *h = &r->n->c.heads[head];
    const int64_t k = h->components, steps = k < MOST ? k : MOST;
    for (int64_t i = 0; i < k; i++)
        usage[i] = h->usage_q[i] + h->usage_k[i];
    qsort(usage, (size_t)k, sizeof *usage, descending);
    fprintf(
        r->f,
        "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path class=\"area\" d=\"M0 %d",
        WIDTH, HEIGHT, HEIGHT);
    for (int64_t i = 0; i < steps; i++) {
        const double y = HEIGHT - (HEIGHT - 2) * (usage[0] > 0 ? usage[i * k / steps] / usage[0] : 0);
        fprintf(r->f, "L%.1f %.1fL%.1f %.1f", (double)WIDTH * (double)i / (double)steps, y,
                (double)WIDTH * (double)(i + 1) / (double)steps, y);
    }
    fprintf(r->f, "L%d %dZ\"/></svg>", WIDTH, HEIGHT);
}

static void put_card(const gmal_report *r, int head, double *usage) {
    FILE *f = r->f;
    const gma_inspect_head *h = &r->n->heads[head];
    const gma_inspect_label *surface = &r->n->results[head * r->n->label_count].numbers;
    const int part = head < r->heads;
    fputs("<li>", f);
    if (part)
        fprintf(f, "<a class=\"card\" href=\"#l%lldh%lld\">", (long long)h->layer, (long long)h->head);
    else
        fputs("<div class=\"card\">", f);
    fprintf(f, "<b>Head %lld <span>%lld of %lld used</span></b>", (long long)h->head, (long long)h->used,
            (long long)h->components);
    put_spark(r, head, usage);
    fprintf(f, "<p>usage entropy %.3f<br>%.1f components a token<br>knows the kind of token: ", h->usage_entropy,
            h->effective_k);
    gmal_html_number(f, surface->nmi - surface->nmi_chance, 3);
    fprintf(f, "</p>%s</li>\n", part ? "</a>" : "</div>");
}

/* In what follows the heads that are not shown, a line says so. */
static gma_status put_overview(const gmal_report *r) {
    FILE *f = r->f;
    int64_t layer = -1, most = 1;
    for (int i = 0; i < r->n->c.count; i++)
        most = r->n->c.heads[i].components > most ? r->n->c.heads[i].components : most;
    double *usage = malloc((size_t)most * sizeof *usage);
    if (!usage)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a report");
    fputs("<section aria-labelledby=\"overview\">\n<h2 id=\"overview\">Overview</h2>\n<p>One card a head. The shape is "
          "the usage of its "
          "components, from the most to the least used: a block means that all are used alike, a spike that few do the "
          "work. "
          "&#8220;Knows the kind of token&#8221; is how much the component says about the surface class of a token "
          "(punctuation, digits, "
          "and so on) beyond chance: 0 = nothing, 1 = everything.</p>\n",
          f);
    const int shown = r->n->c.count < 4 * GMAL_REPORT_HEADS ? r->n->c.count : 4 * GMAL_REPORT_HEADS;
    for (int i = 0; i < shown; i++) {
        if (r->n->c.heads[i].layer != layer) {
            layer = r->n->c.heads[i].layer;
            fprintf(f, "%s<h3>Layer %lld</h3>\n<ul class=\"cards\">\n", i ? "</ul>\n" : "", (long long)layer);
        }
        put_card(r, i, usage);
    }
    fputs("</ul>\n", f);
    if (r->heads < r->n->c.count)
        fprintf(f,
                "<p>The first %d of the %d heads are shown in detail; choose others with --layer and --head, or see "
                "the JSON.</p>\n",
                r->heads, r->n->c.count);
    fputs("</section>\n", f);
    free(usage);
    return GMA_OK;
}

static void put_glossary(FILE *f) {
    static const char *const rows[][2] = {
        {"responsibility, posterior",
         "How a token is shared out over the components of a head; the shares sum to 1. It has one posterior as "
         "a key (where it is written) and one as a query (where it reads)."},
        {"usage",
         "The mean responsibility of a component over the text. Used: more than a tenth of an equal share, 1/(10 K)."},
        {"usage entropy", "1 when all components are used alike, 0 when one does everything."},
        {"components a token", "Over how many components one token is spread: 1 means that it goes to a single one."},
        {"overlap, agreement", "Whether tokens read where they are written: the part of the posterior that both share, "
                               "and the share of tokens "
                               "whose largest component is the same."},
        {"effective rank", "How many independent patterns the routing can make, without order and forgetting."},
        {"keeps", "What the forget gate leaves of the memory from one token to the next, on the mean."},
        {"NMI", "Normalised mutual information between the largest component of a token as key and a label of it: 0 = "
                "they have nothing to "
                "do with each other. In a finite text it is never 0, so it is set against the same number with the "
                "labels shuffled: chance."},
        {"purity", "How often the commonest label of a component is right."},
        {"prior, variance", "The weight of the Gaussian before the token is seen, and its width: mean over the "
                            "dimensions, and the range."},
    };
    fputs("<details><summary id=\"words\">What the words mean</summary>\n<dl>\n", f);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(f, "<dt><strong>%s</strong></dt><dd>%s</dd>\n", rows[i][0], rows[i][1]);
    fputs("</dl></details>\n", f);
}

/* ---- Shared --------------------------------------------------------------------------------------------------- */

void gmal_report_token(const gmal_report *r, int32_t id) {
    const char *text;
    size_t size;
    fputs("<span class=\"token\">", r->f);
    if (gma_tokenizer_token(r->n->tokenizer, id, &text, &size)) {
        const size_t spaces = size && text[0] == ' '; /* a box of a space alone would show nothing */
        fputs(spaces ? "\xe2\x90\xa3" : "", r->f);
        gmal_html_text(r->f, text + spaces, size - spaces, GMAL_REPORT_TOKEN_BYTES, GMAL_HTML_ELEMENT);
    } else {
        fprintf(r->f, "%d", (int)id);
    }
    fputs("</span>", r->f);
}

const char *gmal_colour_name(int colour) {
    static const char *const names[GMAL_REPORT_COLOURS + 1] = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                                               "9", "10", "11", "12", "13", "14", "15", "x"};
    return names[colour];
}

gma_status gmal_ranked_create(const gma_inspection *n, int head, gmal_ranked *r) {
    const int64_t k = n->c.heads[head].components;
    *r = (gmal_ranked){.count = k};
    r->all = malloc((size_t)k * sizeof *r->all);
    r->order = malloc((size_t)k * sizeof *r->order);
    r->colour = malloc((size_t)k * sizeof *r->colour);
    if (!r->all || !r->order || !r->colour) {
        gmal_ranked_free(r);
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld components", (long long)k);
    }
    gmal_components(n, head, r->all);
    for (int64_t i = 0; i < k; i++) { /* by insertion; the first of equals stays first */
        int64_t at = i;
        for (; at > 0 && r->all[r->order[at - 1]].usage_k < r->all[i].usage_k; at--)
            r->order[at] = r->order[at - 1];
        r->order[at] = (int32_t)i;
    }
    for (int64_t i = 0; i < k; i++)
        r->colour[r->order[i]] = (int8_t)(i < GMAL_REPORT_COLOURS ? i : GMAL_REPORT_COLOURS);
    return GMA_OK;
}

void gmal_ranked_free(gmal_ranked *r) {
    free(r->all);
    free(r->order);
    free(r->colour);
    *r = (gmal_ranked){0};
}

/* ---- The whole ------------------------------------------------------------------------------------------------ */

static const char *find(const char *text, size_t size, const char *mark) {
    const size_t n = strlen(mark);
    for (size_t i = 0; i + n <= size; i++)
        if (memcmp(text + i, mark, n) == 0)
            return text + i;
    return text + size;
}

static gma_status put_content(gmal_report *r) {
    put_header(r);
    gma_status s = put_overview(r);
    if (s != GMA_OK)
        return s;
    put_glossary(r->f);
    if (r->comparison)
        gmal_report_comparison(r);
    fputs("<section aria-labelledby=\"heads\">\n<h2 id=\"heads\">The heads</h2>\n<p class=\"script\" hidden>Point at a "
          "token, a cell or a dot, "
          "or move to the figure with the Tab key and walk in it with the arrow keys: the line below it says what is "
          "there.</p>\n",
          r->f);
    for (int i = 0; s == GMA_OK && i < r->heads; i++)
        s = gmal_report_head(r, i);
    fputs(
        "</section>\n</main>\n<footer>Written by gma inspect. This file needs no network and loads nothing.</footer>\n",
        r->f);
    return s;
}

static gma_status put_page(gmal_report *r) {
    static const char title_mark[] = "<!--title-->", content_mark[] = "<!--content-->";
    const char *page = (const char *)gmal_report_template, *end = page + gmal_report_template_size;
    const char *title = find(page, (size_t)(end - page), title_mark),
               *content = find(title, (size_t)(end - title), content_mark);
    fwrite(page, 1, (size_t)(title - page), r->f);
    fputs("gma inspect: ", r->f);
    gmal_html_string(r->f, r->o.model, GMAL_HTML_ATTRIBUTE);
    title += sizeof title_mark - 1;
    fwrite(title, 1, (size_t)(content - title), r->f);
    const gma_status s = put_content(r);
    content += sizeof content_mark - 1;
    fwrite(content, 1, (size_t)(end - content), r->f);
    return s;
}

static int64_t clamp(int64_t x, int64_t least, int64_t most) { return x < least ? least : x > most ? most : x; }

gma_status gma_inspection_report(const gma_inspection *n, const gma_comparison *comparison,
                                 const gma_report_options *options, const char *path) {
    gmal_report r = {.n = n, .comparison = comparison};
    gmal_replace file;
    if (!n || !path)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "gma_inspection_report: a pointer is NULL");
    if (options && options->struct_size != sizeof *options)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "options must come from gma_report_options_init");
    if (comparison && comparison->a != n)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "the comparison is not one of this inspection");
    gma_report_options_init(&r.o);
    if (options)
        r.o = *options;
    if (r.o.span < 1 || r.o.span > GMAL_REPORT_SPAN)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "span must be from 1 to %d, not %lld", (int)GMAL_REPORT_SPAN,
                        (long long)r.o.span);
    r.o.model = r.o.model ? r.o.model : "the model";
    r.o.other = r.o.other ? r.o.other : "the other model";
    r.heads = n->c.count < GMAL_REPORT_HEADS ? n->c.count : GMAL_REPORT_HEADS;
    r.components = clamp(GMAL_REPORT_COMPONENTS / r.heads, 1, GMAL_REPORT_OF_A_HEAD);
    const int64_t text = clamp(GMAL_REPORT_TOKENS / r.heads, r.o.span, GMAL_REPORT_TEXT);
    gma_status s = gmal_stretch_create(n, r.o.at, text, r.o.span, r.heads, &r.stretch);
    if (s != GMA_OK)
        return s;
    s = gmal_replace_begin(&file, path);
    if (s == GMA_OK) {
        r.f = file.file;
        s = put_page(&r);
        if (s == GMA_OK)
            s = gmal_replace_commit(&file);
        else
            gmal_replace_abandon(&file);
    }
    gmal_stretch_free(&r.stretch);
    return s;
}
