"""The result of compare_torch.py as Markdown and SVG. One block a tier in the document; the rest of it is written by hand."""
import math
import os
import re

import peers

ORDER = ("gma", "kept", "sdpa", "product", "linear", "published")
COLOURS = {"gma": "#c0392b", "kept": "#f1948a", "sdpa": "#2c3e50", "product": "#e67e22", "linear": "#2980b9", "published": "#7f8c8d"}
TITLES = {"fwd": "forward", "fwdbwd": "forward + backward"}
HEADS, WIDTH = 8, 64


def lookup(rows, length, causal, which):
    return next((r["contenders"] for r in rows if (r["length"], r["causal"], r["pass"]) == (length, causal, which)), {})


def ratio(row, peer, ours="gma"):
    return row[peer]["ms"] / row[ours]["ms"] if peer in row and ours in row else None


def number(x):
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


# ---- Tables ------------------------------------------------------------------------------------------------------


def table(rows, causal, which):
    some = [r for r in rows if r["causal"] == causal and r["pass"] == which]
    lines = [f"**{'Causal' if causal else 'Bidirectional'}, {TITLES[which]}**: ms (times libgma), extra MiB", "",
             "| N | " + " | ".join(peers.NAMES[n] for n in ORDER) + " |", "|---:|" + "---:|" * len(ORDER)]
    for r in some:
        cells = []
        for name in ORDER:
            t = r["contenders"].get(name)
            if t is None:
                cells.append("-")
                continue
            times = "" if name == "gma" else f" ({number(t['ms'] / r['contenders']['gma']['ms'])}x)"
            mark = "" if t["clean"] >= min(3, t["samples"]) else "*"
            cells.append(f"{number(t['ms'])}{mark}{times}, {number(t['mib'])}")
        lines.append(f"| {r['length']} | " + " | ".join(cells) + " |")
    return lines + [""]


def goals(result):
    """[(goal, what, wanted, measured, verdict)]; a verdict of 1 is met, 0 is missed, otherwise it says what is met."""
    rows, huge, op = result["rows"], result["huge"], result["op"]
    out = []

    def times(goal, length, causal, which, peer, wanted, source=rows, note=""):
        x = ratio(lookup(source, length, causal, which), peer)
        if x is not None:
            kind = "causal" if causal else "bidirectional"
            kept = ratio(lookup(source, length, causal, which), peer, "kept")
            out.append((goal, f"N = {length} {kind} {TITLES[which]}, {peers.NAMES[peer]}{note}: time by ours", f">= {wanted}",
                        f"{x:.2f}" + (f"; kept {kept:.2f}" if kept else ""),
                        1 if x >= wanted else "met with memory kept" if kept and kept >= wanted else 0))

    for which, wanted in (("fwd", 0.75), ("fwdbwd", 0.65)):
        for r in op[which]:
            out.append(("a", f"N = {r['length']} causal {TITLES[which]}: useful flops by the product's "
                        f"({r['gflops']:.0f} of {r['peak_gflops']:.0f} GFLOP/s)", f">= {wanted}", f"{r['efficiency']:.2f}",
                        r["efficiency"] >= wanted))
    times("b", 4096, True, "fwd", "sdpa", 6)
    times("b", 4096, True, "fwd", "product", 2.5)
    times("b", 4096, True, "fwdbwd", "sdpa", 5)
    times("b", 4096, True, "fwdbwd", "product", 2)
    times("c", 16384, True, "fwd", "product", 6)
    times("c", 16384, True, "fwdbwd", "product", 4)
    times("c", 16384, True, "fwd", "product", 2, huge, " with huge pages")
    times("c", 16384, True, "fwdbwd", "product", 2, huge, " with huge pages")
    for length in sorted({r["length"] for r in rows if 384 <= r["length"] <= 1024}):
        for causal in (True, False):
            for which in ("fwd", "fwdbwd"):
                times("d", length, causal, which, "sdpa", 1)
    for which, first in (("fwd", 8192), ("fwdbwd", 16384)):
        for length in sorted({r["length"] for r in rows if r["length"] >= first}):
            times("e", length, True, which, "linear", 1)
    for key, threads in (("decode", "all threads"), ("decode1", "1 thread")):
        near, far = op[key]
        x = far["median_ms"] / near["median_ms"]
        out.append(("f", f"decode, {threads}: position 10^6 ({far['median_ms']:.4f} ms) by 10^2 ({near['median_ms']:.4f} ms)",
                    "about 1", f"{x:.2f}", x <= 1.1))
        for name, ms, floor in (("warm", far["median_ms"], far["floor_ms"]), ("cold", far["cold_median_ms"], far["cold_floor_ms"])):
            out.append(("f", f"decode, {threads}, {name}: a token ({ms:.4f} ms) by reading parameters and state once "
                        f"({floor:.4f} ms)", "<= 1.5", f"{ms / floor:.2f}", ms <= 1.5 * floor))
    scratch = sorted({(r["length"], r["workspace_bytes"]) for r in op["fwd"]})
    out.append(("g", "extra memory of a forward, MiB: " + ", ".join(f"{b / 2**20:.2f} at N = {n}" for n, b in scratch),
                "the same", "same" if len({b for _, b in scratch}) == 1 else "differs", len({b for _, b in scratch}) == 1))
    for r in op["fwdbwd"]:
        activation = 4 * HEADS * WIDTH * r["length"]
        x = r["workspace_bytes"] / activation
        out.append(("g", f"N = {r['length']}: scratch and saved of a training step ({r['workspace_bytes'] / 2**20:.1f} MiB) by one "
                    f"activation ({activation / 2**20:.0f} MiB)", "< 1", f"{x:.2f}", x < 1))
    return out


def goal_table(result):
    lines = ["| goal | what | wanted | measured | |", "|---|---|---|---:|---|"]
    for goal, what, wanted, measured, met in goals(result):
        verdict = met if isinstance(met, str) else "met" if met else "**missed**"
        lines.append(f"| ({goal}) | {what} | {wanted} | {measured} | {verdict} |")
    return lines + [""]


def markdown(result, plot):
    f = result["facts"]
    loads = [r["load"] for r in result["rows"]]
    held = " (PyTorch, its MKL and its oneDNN held to AVX2 too)" if f["tier"] == "avx2" and f["torch_tier"] == "AVX2" else ""
    lines = [f"## Tier {f['tier']}", "",
             f"{f['cpu']}, {f['cpus']} CPUs, {f['threads']} threads; libgma {f['version']} (commit {f['commit']}), tier {f['tier']}; "
             f"PyTorch {f['torch']}, {f['torch_tier']}{held}; {f['date']}. f32, batch 1, {HEADS} heads, R = D = {WIDTH}, K = 128. "
             f"Load average while measuring {min(loads):.1f} to {max(loads):.1f}.", "", f"![time and memory against N]({plot})", ""]
    lines += goal_table(result)
    for causal in (True, False):
        for which in ("fwd", "fwdbwd"):
            lines += table(result["rows"], causal, which)
    lines += ["A star: fewer than three samples during which other programs took less than about 5 % of the CPUs; the median is then over all samples.", ""]
    return "\n".join(lines)


# ---- Plot --------------------------------------------------------------------------------------------------------


def crossing(a, b):
    """Where b, dearer later, meets a: N, interpolated on logarithms. Lists of (N, value)."""
    both = [(n, y, dict(b)[n]) for n, y in a if n in dict(b)]
    for (n0, a0, b0), (n1, a1, b1) in zip(both, both[1:]):
        d0, d1 = math.log(b0 / a0), math.log(b1 / a1)
        if d0 < 0 <= d1:
            t = d0 / (d0 - d1)
            return math.exp(math.log(n0) + t * (math.log(n1) - math.log(n0)))
    return None


def panel(series, title, unit, x0, y0, w, h):
    points = [p for line in series.values() for p in line]
    if not points:
        return []
    lo_x, hi_x = (math.log2(f(n for n, _ in points)) for f in (min, max))
    lo_y, hi_y = math.floor(math.log10(min(v for _, v in points))), math.ceil(math.log10(max(v for _, v in points)))
    px = lambda n: x0 + (math.log2(n) - lo_x) / max(hi_x - lo_x, 1e-9) * w
    py = lambda v: y0 + h - (math.log10(v) - lo_y) / max(hi_y - lo_y, 1) * h
    out = [f'<text x="{x0}" y="{y0 - 10}" font-weight="bold">{title}, {unit}</text>',
           f'<rect x="{x0}" y="{y0}" width="{w}" height="{h}" fill="none" stroke="#888"/>']
    for e in range(lo_y, hi_y + 1):
        y = py(10.0**e)
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + w}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**e:g}</text>')
    last = None
    for n in sorted({n for n, _ in points}):
        x = px(n)
        out.append(f'<line x1="{x:.1f}" y1="{y0}" x2="{x:.1f}" y2="{y0 + h}" stroke="#eee"/>')
        if last is None or x - last > 38:
            out.append(f'<text x="{x:.1f}" y="{y0 + h + 16}" text-anchor="middle">{n}</text>')
            last = x
    for name, line in series.items():
        path = " ".join(f"{px(n):.1f},{py(v):.1f}" for n, v in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        out += [f'<circle cx="{px(n):.1f}" cy="{py(v):.1f}" r="2.5" fill="{COLOURS[name]}"/>' for n, v in line]
    if unit == "ms" and "gma" in series and "sdpa" in series:
        n = crossing(series["gma"], series["sdpa"])
        if n:
            out.append(f'<line x1="{px(n):.1f}" y1="{y0}" x2="{px(n):.1f}" y2="{y0 + h}" stroke="{COLOURS["gma"]}" '
                       f'stroke-dasharray="4 3"/><text x="{px(n) + 4:.1f}" y="{y0 + 14}" fill="{COLOURS["gma"]}">'
                       f'faster than SDPA from N = {n:.0f}</text>')
        elif series["gma"][0][1] <= series["sdpa"][0][1]:
            out.append(f'<text x="{x0 + 6}" y="{y0 + 14}" fill="{COLOURS["gma"]}">faster than SDPA from the start</text>')
    return out


def svg(result):
    f = result["facts"]
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="980" height="830" viewBox="0 0 980 830" font-family="sans-serif" '
           'font-size="12">', '<rect width="980" height="830" fill="white"/>',
           f'<text x="60" y="24" font-size="15">Causal attention against length N (batch 1, 8 heads, R = D = 64, K = 128, f32; '
           f'{f["threads"]} threads, tier {f["tier"]})</text>']
    x = 60
    for name in ORDER:
        out.append(f'<rect x="{x}" y="38" width="14" height="4" fill="{COLOURS[name]}"/>'
                   f'<text x="{x + 18}" y="45">{peers.NAMES[name]}</text>')
        x += 50 + 7 * len(peers.NAMES[name])
    for column, which in enumerate(("fwd", "fwdbwd")):
        for line, (key, unit, what) in enumerate((("ms", "ms", "Time"), ("mib", "MiB", "Extra memory"))):
            series = {}
            for name in ORDER:
                points = [(r["length"], max(r["contenders"][name][key], 0.05)) for r in result["rows"]
                          if r["causal"] and r["pass"] == which and name in r["contenders"]]
                if points:
                    series[name] = sorted(points)
            out += panel(series, f"{what}, {TITLES[which]}", unit, 60 + 480 * column, 90 + 375 * line, 410, 310)
    return "\n".join(out + ["</svg>", ""])


# ---- Document ----------------------------------------------------------------------------------------------------


def write(result, document):
    """Replaces the block of this tier, or puts it at the end."""
    tier = result["facts"]["tier"]
    plot = os.path.splitext(os.path.basename(document))[0] + f"-{tier}.svg"
    folder = os.path.dirname(os.path.abspath(document))
    os.makedirs(folder, exist_ok=True)
    begin, end = f"<!-- measured {tier}: written by make bench -->", f"<!-- end {tier} -->"
    block = f"{begin}\n{markdown(result, plot)}{end}"
    text = "# Performance\n"
    if os.path.exists(document):
        with open(document, encoding="utf-8") as f:
            text = f.read()
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    text = pattern.sub(lambda _: block, text) if pattern.search(text) else text.rstrip("\n") + "\n\n" + block + "\n"
    for name, content in ((os.path.join(folder, plot), svg(result)), (document, text)):
        with open(name + ".tmp", "w", encoding="utf-8") as f:
            f.write(content)
        os.replace(name + ".tmp", name)
