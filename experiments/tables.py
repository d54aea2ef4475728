"""The tables and plots of docs/results.md, one function an experiment."""

import svg
from results import at, bench_rows, bits_per_byte, each, mean, per_token, per_word, slope, slope_of, spread, table

# Published validation perplexity on WikiText-103 (its own tokenizer, model size and budget: not comparable in value).
PUBLISHED_LM = {"softmax": "35.40", "mamba": "35.44", "gma-k256": "41.72", "linear": "44.81", "performer": "47.49"}

# Long Range Arena, protocol P2 as published by others (Nystromformer's repository; FlashAttention's table 3).
PUBLISHED_LRA = {"lra-listops": {"softmax": "37.10; 36.0", "linformer": "37.25; 35.6", "linear": "-; 38.8",
                                 "performer": "18.80; 36.8"},
                 "lra-text": {"softmax": "65.02; 63.6", "linformer": "55.91; 55.9", "linear": "-; 63.2",
                              "performer": "63.81; 63.6"}}


def headed(results, body):
    """State, table, and where it was measured."""
    if not results.rows:
        return results.state()
    return "\n\n".join(part for part in (results.state(), body, results.where() + ".") if part)


# ---- Language modelling ---------------------------------------------------------------------------------------------

def lm(results):
    rows = []
    for run in results.runs:
        r = results.of(run)
        if not r:
            rows.append([run, "-", "not yet run", "", "", "", "", "", PUBLISHED_LM.get(run, "-")])
            continue
        sliding = [at(row, "measures.test_sliding.sliding.perplexity") for row in r]
        rows.append([run, f"{r[0]['parameters']:,}", ", ".join(str(x["seed"]) for x in r),
                     spread(each(r, per_token, "valid"), "{:.2f}"), spread(each(r, per_token, "test"), "{:.2f}"),
                     spread([s for s in sliding if s], "{:.2f}"),
                     spread(each(r, per_word, "test"), "{:.1f}"), spread(each(r, bits_per_byte, "test"), "{:.4f}"),
                     PUBLISHED_LM.get(run, "-")])
    head = ["model", "parameters", "seeds", "valid, a token", "test, a token", "test, sliding", "test, a word",
            "test, bits a byte", "published"]
    return headed(results, table(head, rows, 1))


def lm_plot(results):
    series = [(run, results.of(run)[0]["curve"]) for run in results.runs if results.of(run)]
    return svg.plot("WikiText-2, BPE of 2,048: validation loss, seed 1", "step", "nats a token", series) if series else None


def usage(results):
    rows = []
    for run in [r for r in results.runs if r.startswith("gma")]:
        for r in results.of(run):
            m = r["measures"].get("inspect")
            if not m:
                continue
            surface, semantic = m["nmi surface class"], m.get("nmi article")
            rows.append([run, r["seed"], f"{m['used']:.1f} of {m['components']} ({m['used_range'][0]} to {m['used_range'][1]})",
                         f"{m['usage_entropy']:.3f} ({m['entropy_range'][0]:.3f} to {m['entropy_range'][1]:.3f})",
                         f"{m['effective_components_keys']:.2f}",
                         *(f"{surface[k]:.3f}" for k in ("nmi", "nmi_chance", "purity", "purity_chance")),
                         f"{semantic['nmi']:.3f}; {semantic['nmi_chance']:.3f}" if semantic else "-"])
    if not rows:
        return "**Not yet run.**"
    seeds = len(results.of("gma-k128"))
    rows.append(["paper, one WikiText model, K = 128", "", "104 of 128", "0.933", "-", "0.244", "-", "-", "-", "no clear classes"])
    head = ["model", "seed", "components used", "usage entropy", "components a key", "NMI with surface class", "by chance", "purity",
            "by chance", "NMI with article; by chance"]
    return table(head, rows) + ("" if seeds == 3 else f"\n\n**Partial:** {seeds} of 3 seeds of K = 128.")


def ablation(results):
    parts = []
    for group in results.config["groups"]:
        rows, base = [], None
        for run in group["runs"]:
            r = results.of(run)
            losses = each(r, lambda row: at(row, "measures.valid.loss"))
            if not losses:
                rows.append([run, "-", "not yet run", "", ""])
                continue
            base = mean(losses) if run == group["runs"][0] else base
            rows.append([run, f"{r[0]['parameters']:,}", ", ".join(str(x["seed"]) for x in r), spread(losses, "{:.4f}"),
                         f"{mean(losses) - base:+.4f}" if base is not None else ""])
        head = ["run", "parameters", "seeds", "validation, nats a byte", "against the first"]
        parts.append(f"{group['title'][0].upper()}{group['title'][1:]}:\n\n" + table(head, rows))
    return headed(results, "\n\n".join(parts))


# ---- Systems --------------------------------------------------------------------------------------------------------

MIXERS = ("gma", "linear", "performer", "linformer", "mamba", "softmax", "mha")
PASSES = (("fwd", "forward"), ("fwdbwd", "forward + backward"))
LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
WANTED = {("gma", "allocated"): (1.0, 0.05), ("gma", "median_ms"): (1.0, 0.1), ("mha", "allocated"): (2.0, 0.1),
          ("mha", "median_ms"): (2.0, 0.1)}


def judged(mixer, key, value):
    if value is None:
        return "-"
    if (mixer, key) not in WANTED:
        return f"{value:.2f}"
    middle, width = WANTED[mixer, key]
    return f"{value:.3f} ({'holds' if abs(value - middle) <= width else '**does not hold**'})"


def of_each_mixer(results, form):
    """(mixer, run, lines by N) of every run named so, {} standing for the mixer."""
    for mixer in MIXERS:
        run = form.format(mixer)
        if run in results.runs:
            yield mixer, run, bench_rows(results, run)


def systems(results):
    parts = []
    for form in ("bidirectional", "causal"):
        for name, title in PASSES:
            for key, unit, scale in (("median_ms", "ms", 1.0), ("memory", "peak memory, MiB", 2.0 ** 20)):
                rows = []
                for mixer, run, found in of_each_mixer(results, f"{{}}-{name}-{form}"):
                    rows.append([mixer] + [f"{found[n][key] / scale:.4g}" if n in found and found[n][key] else "" for n in LENGTHS]
                                + [judged(mixer, key, slope_of(results, run, key))]
                                + ([judged(mixer, "allocated", slope_of(results, run, "allocated"))] if key == "memory" else []))
                parts.append(f"{title.capitalize()}, {form}, {unit}:\n\n" +
                             table(["mixer", *(f"N = {n}" for n in LENGTHS), "slope"]
                                   + (["slope, allocated"] if key == "memory" else []), rows))
    return headed(results, "\n\n".join(parts))


def systems_plot(results, key, title, unit, scale):
    series = []
    for mixer in MIXERS:
        run = next((f"{mixer}-fwdbwd-{f}" for f in ("causal", "bidirectional") if f"{mixer}-fwdbwd-{f}" in results.runs), None)
        points = [(n, r[key] / scale) for n, r in bench_rows(results, run).items() if r[key] and r[key] > 0] if run else []
        series.append((mixer, points))
    if not any(points for _, points in series):
        return None
    return svg.plot(title, "tokens", unit, series, log_x=True, log_y=True)


def decode(results):
    rows = []
    for mixer, _, found in of_each_mixer(results, "{}-decode"):
        rows.append([mixer] + [f"{found[n]['median_ms']:.4g}" if n in found else "" for n in LENGTHS[1:]] +
                    [f"{found[max(found)]['state_bytes']:,}" if found else ""])
    return headed_if(results, rows, ["mixer", *(f"position {n}" for n in LENGTHS[1:]), "state, bytes, at the last"])


def components(results):
    rows = []
    for name, title in PASSES:
        ks = [r for r in results.runs if r.startswith(f"gma-{name}-k")]
        values = [(int(r.rsplit("-k", 1)[1]), next(iter(bench_rows(results, r).values()), None)) for r in ks]
        known = [(k, v["median_ms"]) for k, v in values if v]
        rows.append([title + ", ms"] + [f"{v['median_ms']:.4g}" if v else "" for _, v in values] +
                    [f"{slope(known[2:]):.2f}" if len(known) > 4 else ""])
        rows.append([title + ", scratch and saved, MiB"] +
                    [f"{v['workspace_bytes'] / 2 ** 20:.3g}" if v else "" for _, v in values] + [""])
    return headed_if(results, rows, ["", *(f"K = {k}" for k in (16, 32, 64, 128, 256, 512)), "slope from K = 64 on"])


def training(results):
    rows = []
    for run in [r for r in results.runs if r.startswith("train-")]:
        found = results.of(run)
        output = found[-1]["output"][0] if found else {}
        rows.append([run[6:], f"{output['parameters']:,}" if output else "-",
                     f"{output['tokens_per_second']:.0f}" if output else "not yet run"])
    return table(["mixer", "parameters", "training tokens/s"], rows)


def headed_if(results, rows, head):
    return table(head, rows) if any(cell for row in rows for cell in row[1:]) else "**Not yet run.**"


# ---- Classification and recall --------------------------------------------------------------------------------------

def state_numbers(s):
    """What a mixer's definition keeps between tokens, for a whole model; short convolutions and what an implementation adds left out."""
    heads, width = s["heads"], s["width"]
    features = {"gma": s.get("components"), "performer": s.get("components"), "linear": width // heads}
    if s["mixer"] in features:
        return s["layers"] * heads * features[s["mixer"]] * (width // heads + 1)  # S (K,D) and Z (K) a head
    per_layer = {"softmax": 2 * s["context"] * width, "mamba": 2 * width * 16}  # keys and values; h (E,S), E = 2 width
    return s["layers"] * per_layer[s["mixer"]]


def accuracy(results):
    rows = []
    published = PUBLISHED_LRA.get(results.name, {})
    recall = results.name.startswith("mqar")
    for run in results.runs:
        r = results.of(run)
        scores = each(r, lambda row: at(row, "measures.test.accuracy"))
        low, high = (at(r[0], "measures.test." + key) if len(r) == 1 else None for key in ("accuracy_low", "accuracy_high"))
        between = f" ({100 * low:.2f} to {100 * high:.2f})" if low is not None else ""
        state = each(r, lambda row: at(row, "measures.test.state_bytes"))
        rows.append([run, f"{r[0]['parameters']:,}" if r else "-", ", ".join(str(x["seed"]) for x in r) or "not yet run",
                     spread([100 * s for s in scores], "{:.2f}") + between if scores else ""]
                    + ([f"{state_numbers(r[0]['settings']):,}" if r else "-", f"{state[0]:,}" if state else "-"] if recall else [published.get(run, "-")]))
    last = ["state, numbers", "bytes kept"] if recall else ["published"]
    return headed(results, table(["run", "parameters", "seeds", "accuracy, %"] + last, rows))


def verify(results):
    """A line a statement: the engine that comes closest to its bound, and whether every one holds."""
    rows = []
    for run in results.runs:
        for r in results.of(run)[-1:]:
            by_what = {}
            for line in r["output"]["rows"]:
                by_what.setdefault((line["statement"], line["what"]), []).append(line)
            for (statement, what), lines in by_what.items():
                told = lines[0]["relation"] is None
                worst = lines[0] if told else (max if lines[0]["relation"] == "<=" else min)(
                    lines, key=lambda line: line["measured"] if line["measured"] is not None else float("inf"))
                bad = [line["engine"] for line in lines if line["holds"] is False]
                rows.append([run, f"({statement}) {what}".replace("|", "&#124;"), f"{worst['measured']:.4g}",
                             "" if told else f"{worst['relation']} {worst['bound']:.4g}",
                             "" if told else "**violated** by " + ", ".join(bad) if bad else "holds", ", ".join(line["engine"] for line in lines)])
    return headed(results, table(["mixtures", "statement", "measured", "bound", "verdict", "engines"], rows, 2))


def build(all_results):
    """{block: text}, {plot: text}."""
    made = {"verify": verify(all_results["verify"]), "systems": systems(all_results["systems"]),
            "decode": decode(all_results["systems"]), "components": components(all_results["systems"]),
            "training": training(all_results["systems"]), "lra-listops": accuracy(all_results["lra-listops"]),
            "lra-text": accuracy(all_results["lra-text"]), "lm": lm(all_results["lm"]), "usage": usage(all_results["lm"]),
            "ablation": ablation(all_results["ablation"]), "mqar": accuracy(all_results["mqar"]), "mqar-16-pairs": accuracy(all_results["mqar-16-pairs"])}
    plots = {"results-lm": lm_plot(all_results["lm"]),
             "results-time": systems_plot(all_results["systems"], "median_ms", "Forward + backward: time", "ms", 1.0),
             "results-memory": systems_plot(all_results["systems"], "memory", "Forward + backward: peak memory", "MiB", 2.0 ** 20)}
    for block, plot in (("lm", "results-lm"), ("systems", "results-time"), ("systems", "results-memory")):
        if plots[plot]:
            made[block] += f"\n\n![{plot.replace('results-', '')}]({plot}.svg)"
    return made, {name: text for name, text in plots.items() if text}
