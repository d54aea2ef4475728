/* The figures of a head: map of the means, slot memory, implied attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

enum { WIDTH = 480, HEIGHT = 360, MARGIN = 34 };

/* ---- Map ------------------------------------------------------------------------------------------------------ */

/* What a dot says of itself: usage and the tokens it stands for, as plain text. */
static void put_title(const gmal_report *r, int head, const gmal_ranked *ranked, int64_t k) {
    gmal_top_token top[5];
    const int count = gmal_top_tokens(r->n, head, k, 5, top);
    fprintf(r->f, "<title>Component %lld: written %.2f %%, read %.2f %%.", (long long)k, 100 * ranked->all[k].usage_k,
            100 * ranked->all[k].usage_q);
    for (int i = 0; i < count; i++) {
        const char *text;
        size_t size;
        fputs(i ? ", \xe2\x80\x9c" : " Tokens: \xe2\x80\x9c", r->f);
        if (gma_tokenizer_token(r->n->tokenizer, top[i].id, &text, &size))
            gmal_html_text(r->f, text, size, GMAL_REPORT_TOKEN_BYTES, GMAL_HTML_ATTRIBUTE);
        else
            fprintf(r->f, "%d", (int)top[i].id);
        fputs("\xe2\x80\x9d", r->f);
    }
    fputs("</title>", r->f);
}

/* The frame that holds every point, the same scale in both directions. */
static void frame(const double *xy, int64_t k, double *scale, double *cx, double *cy) {
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (int64_t i = 0; i < k; i++) {
        x0 = fmin(x0, xy[2 * i]);
        x1 = fmax(x1, xy[2 * i]);
        y0 = fmin(y0, xy[2 * i + 1]);
        y1 = fmax(y1, xy[2 * i + 1]);
    }
    *cx = (x0 + x1) / 2;
    *cy = (y0 + y1) / 2;
    const double w = fmax(x1 - x0, 1e-9), h = fmax(y1 - y0, 1e-9);
    *scale = fmin((WIDTH - 2 * MARGIN) / w, (HEIGHT - 2 * MARGIN) / h);
}

static void put_dots(const gmal_report *r, int head, const gmal_ranked *ranked, const double *xy) {
    enum { NUMBERED = 12 };
    const gma_inspect_head *h = &r->n->heads[head];
    const int64_t shown = ranked->count < r->components ? ranked->count : r->components;
    double scale, cx, cy;
    frame(xy, ranked->count, &scale, &cx, &cy);
    for (int64_t i = 0; i < shown; i++) { /* the largest first, so that small ones lie on top */
        const int64_t k = ranked->order[i];
        const double usage = (ranked->all[k].usage_k + ranked->all[k].usage_q) / 2;
        fprintf(
            r->f,
            "<a href=\"#l%lldh%lldc%lld\" tabindex=\"-1\"><circle class=\"s%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>",
            (long long)h->layer, (long long)h->head, (long long)k, gmal_colour_name(ranked->colour[k]),
            WIDTH / 2.0 + scale * (xy[2 * k] - cx), HEIGHT / 2.0 - scale * (xy[2 * k + 1] - cy),
            2.5 + 45 * sqrt(usage));
        put_title(r, head, ranked, k);
        fputs("</a>\n", r->f);
    }
    for (int64_t i = 0; i < shown && i < NUMBERED; i++) {
        const int64_t k = ranked->order[i];
        fprintf(r->f, "<text class=\"num\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%lld</text>\n",
                WIDTH / 2.0 + scale * (xy[2 * k] - cx), HEIGHT / 2.0 - scale * (xy[2 * k + 1] - cy) + 4, (long long)k);
    }
}

gma_status gmal_report_map(const gmal_report *r, int head, const gmal_ranked *ranked) {
    FILE *f = r->f;
    const gmal_head *h = &r->n->c.heads[head];
    const gmal_mixture_view m = gmal_mixture_of(r->n->lm, h->layer, h->kv_head);
    double explained[2], *xy = malloc(2 * (size_t)m.components * sizeof *xy);
    if (!xy)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a map");
    const gma_status s = gmal_principal_plane(m.mu, m.components, m.width, xy, explained);
    if (s == GMA_OK) {
        fprintf(
            f,
            "<figure><h4>A map of the components</h4>\n<svg class=\"plot map\" viewBox=\"0 0 %d %d\" role=\"group\" "
            "aria-label=\"Map of %lld component means\" data-say=\"m%d-say\">\n",
            (int)WIDTH, (int)HEIGHT, (long long)m.components, head);
        put_dots(r, head, ranked, xy);
        fprintf(f,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">first direction, %.0f %% of the spread</text>\n"
                "<text x=\"12\" y=\"20\">second direction, %.0f %%</text>\n</svg>\n",
                WIDTH - 12, HEIGHT - 10, 100 * explained[0], 100 * explained[1]);
        fprintf(f, "<p class=\"say script\" id=\"m%d-say\" role=\"status\" hidden>No component is chosen.</p>\n", head);
        fprintf(f,
                "<figcaption>The means of the Gaussians (%lld numbers each) seen along the two directions in which "
                "they differ most (principal "
                "components). The area of a dot is the usage. Two dots side by side may still differ in the directions "
                "that are not shown.</figcaption></figure>\n",
                (long long)m.width);
    }
    free(xy);
    return s;
}

/* ---- Slot memory ---------------------------------------------------------------------------------------------- */

/* Components from top to bottom, the first window from left to right; opaque = much. */
void gmal_report_memory(const gmal_report *r, int head, const gmal_ranked *ranked) {
    enum { ROWS = GMAL_REPORT_COLOURS, LEFT = 60, BOTTOM = 30, TOP = 10, RIGHT = 10 };
    FILE *f = r->f;
    const gmal_head *h = &r->n->c.heads[head];
    const int rows = ranked->count < ROWS ? (int)ranked->count : ROWS;
    const double high = (HEIGHT - TOP - BOTTOM) / (double)rows;
    uint8_t shade[ROWS * GMAL_TRACE];
    double most = 1e-9;
    for (int i = 0; i < GMAL_TRACE; i++)
        for (int j = 0; j < rows; j++)
            most = fmax(most, h->trace[i * h->components + ranked->order[j]]);
    for (int i = 0; i < GMAL_TRACE; i++)
        for (int j = 0; j < rows; j++)
            shade[j * GMAL_TRACE + i] =
                (uint8_t)(255 * fmax(0, h->trace[i * h->components + ranked->order[j]]) / most + 0.5);
    fprintf(f,
            "<figure><h4>What is in the memory</h4>\n<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"Memory of the %d "
            "most used components along the first window; at its end",
            (int)WIDTH, (int)HEIGHT, rows);
    for (int j = 0; j < rows; j++)
        fprintf(f, "%s component %d holds %.2f", j ? "," : "", (int)ranked->order[j],
                h->trace[(GMAL_TRACE - 1) * h->components + ranked->order[j]]);
    fprintf(f, "\">\n<image x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" preserveAspectRatio=\"none\" href=\"",
            (int)LEFT, (int)TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    gmal_html_shades(f, shade, rows, GMAL_TRACE);
    fputs("\"/>\n", f);
    for (int j = 0; j < rows; j++)
        fprintf(f,
                "<text text-anchor=\"end\" x=\"%d\" y=\"%.1f\">%d</text><rect class=\"s%d\" x=\"%d\" y=\"%.1f\" "
                "width=\"10\" height=\"%.1f\"/>\n",
                LEFT - 22, TOP + high * (j + 0.5) + 4, (int)ranked->order[j], j, LEFT - 16, TOP + high * j + 2,
                fmax(2, high - 4));
    fprintf(f,
            "<text x=\"%d\" y=\"%d\">token 1</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">token %lld of the first "
            "window</text>\n</svg>\n",
            (int)LEFT, HEIGHT - 9, WIDTH - RIGHT, HEIGHT - 9, (long long)r->n->c.context);
    fprintf(f,
            "<figcaption>How much the %d most used components hold along the first window (Z); the strongest shade is %.3g. "
            "Every token adds 1 in all, %s"
            "</figcaption></figure>\n",
            rows, most, h->forgets ? "and the forget gate takes from what is there." : "and nothing is forgotten.");
}

/* ---- Attention ------------------------------------------------------------------------------------------------ */

/* Opacity is the root of the weight: 1 % is still seen. before: a column of its own, with a gap, or NULL. */
static void put_picture(const gmal_report *r, int head, const char *name, const char *id, const float *a,
                        const float *before, uint8_t *shade) {
    FILE *f = r->f;
    const int n = (int)r->stretch.span, extra = before ? 2 : 0, w = n + extra;
    memset(shade, 0, (size_t)(n * w));
    for (int i = 0; i < n; i++) {
        if (before)
            shade[i * w] = (uint8_t)(255 * sqrt(fmin(1, (double)before[i])) + 0.5);
        for (int j = 0; j < n; j++)
            shade[i * w + extra + j] = (uint8_t)(255 * sqrt(fmin(1, (double)a[i * n + j])) + 0.5);
    }
    fprintf(f,
            "<figure><h4>%s</h4>\n<div class=\"att\" role=\"img\" aria-label=\"%s: attention of %d tokens on each "
            "other\" data-n=\"%d\" "
            "data-extra=\"%d\" data-name=\"%s\" data-text=\"t%d\" data-say=\"%s%d-say\"><img alt=\"\" width=\"%d\" "
            "height=\"%d\" style=\"height:auto;aspect-ratio:%d/%d\" src=\"",
            name, name, n, n, extra, name, head, id, head, 4 * w, 4 * n, w, n);
    gmal_html_shades(f, shade, n, w);
    fprintf(
        f,
        "\"></div>\n<p class=\"say script\" id=\"%s%d-say\" role=\"status\" hidden>No cell is chosen.</p></figure>\n",
        id, head);
}

static void put_largest(const gmal_report *r, const float *row, int64_t n, float before) {
    int64_t best[2] = {-1, -1};
    for (int64_t j = 0; j < n; j++) {
        if (best[0] < 0 || row[j] > row[best[0]]) {
            best[1] = best[0];
            best[0] = j;
        } else if (best[1] < 0 || row[j] > row[best[1]]) {
            best[1] = j;
        }
    }
    fputs("<td class=\"l tokens\">", r->f);
    for (int i = 0; i < 2 && best[i] >= 0; i++) {
        gmal_report_token(r, r->n->c.ids[r->stretch.begin + best[i]]);
        fprintf(r->f, "(%lld) %.0f&nbsp;%% ", (long long)best[i] + 1, 100 * (double)row[best[i]]);
    }
    if (r->stretch.before)
        fprintf(r->f, "<span class=\"soft\">earlier tokens %.0f&nbsp;%%</span>", 100 * (double)before);
    fputs("</td>", r->f);
}

/* The same for those who do not see the pictures. */
static void put_rows(const gmal_report *r, const gmal_stretch_head *x) {
    FILE *f = r->f;
    const int64_t n = r->stretch.span;
    fputs("<details><summary>The same in words <small>the two largest weights of every token</small></summary>\n"
          "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Table: attention in "
          "words\"><table><thead><tr><th scope=\"col\">no.</th>"
          "<th class=\"l\" scope=\"col\">token</th><th class=\"l\" scope=\"col\">GMA reads from</th><th class=\"l\" "
          "scope=\"col\">softmax would read from"
          "</th></tr></thead><tbody>\n",
          f);
    for (int64_t i = 0; i < n; i++) {
        fprintf(f, "<tr><td>%lld</td><th class=\"l\" scope=\"row\">", (long long)i + 1);
        gmal_report_token(r, r->n->c.ids[r->stretch.begin + i]);
        fputs("</th>", f);
        put_largest(r, x->gma + i * n, i + 1, x->gma_before[i]);
        put_largest(r, x->softmax + i * n, i + 1, x->softmax_before[i]);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div></details>\n", f);
}

gma_status gmal_report_attention(const gmal_report *r, int head) {
    FILE *f = r->f;
    const gmal_stretch *s = &r->stretch;
    const gmal_stretch_head *x = &s->heads[head];
    uint8_t *shade = malloc((size_t)(s->span * (s->span + 2)));
    if (!shade)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for a picture of attention");
    fprintf(f,
            "<h3>The attention this amounts to</h3>\n<p>GMA never compares tokens with each other, but its output is "
            "the same as if it "
            "did, with these weights. Each row is a token that reads (from the top: tokens %lld to %lld), each column "
            "one that is read from; "
            "a row sums to 1. On the right: softmax attention with the same queries and keys, which were not trained "
            "for it.%s</p>\n<div class=\"pair\">\n",
            (long long)s->begin + 1, (long long)(s->begin + s->span),
            s->before ? " The column apart, at the left, is what goes to earlier tokens of the window, all together."
                      : "");
    put_picture(r, head, "GMA, exact", "a", x->gma, s->before ? x->gma_before : NULL, shade);
    put_picture(r, head, "Softmax, same queries and keys", "b", x->softmax, s->before ? x->softmax_before : NULL,
                shade);
    fputs("</div>\n<p class=\"scale\"><span>weight 0</span><i></i><span>1</span> <span>(half as strong = a quarter of "
          "the weight)</span></p>\n",
          f);
    put_rows(r, x);
    free(shade);
    return GMA_OK;
}
