#!/usr/bin/env python3
"""A training step of libgma_lm (mixer gma) beside that of the same model in PyTorch with SDPA, in one process, in turn:
tokens a second. The same block on both sides (layer norm, GELU, learned positions, tied head), f32, the same AdamW.

    bench/compare_train.py [--library build/lib/libgma_lm.so] [--lengths 256,1024,4096] [--document docs/performance.md]

Before anything is timed, the model with GMA written in PyTorch gets libgma_lm's parameters, and the losses of three steps of
training must agree. GMA_ISA=avx2 in the environment holds both sides to AVX2 (see compare_torch.py).
"""
import argparse
import ctypes as c
import json
import os
import re
import sys
import time

import compare_torch

if __name__ == "__main__":
    compare_torch.prepare_environment()

import torch  # noqa: E402

import gma_ctypes  # noqa: E402
import train_peers  # noqa: E402

WANTED = {1024: 1.3, 4096: 1.8}
NAMES = {"gma": "libgma_lm, GMA", "sdpa": "PyTorch, SDPA", "compiled": "PyTorch, SDPA, torch.compile"}
PARTS = ("products", "mixer", "optimizer")


class Times(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)] + [(n, c.c_double) for n in ("seconds", *PARTS, "loss")]


class Ours:
    """A model of libgma_lm in training: a preset and the settings over it."""

    def __init__(self, library, values, preset="paper"):
        self.library, lib = library, library.lib
        lib.gma_train_bench_model.restype = c.c_void_p
        settings = c.c_void_p()
        library.check(lib.gma_settings_create(preset.encode(), c.byref(settings)))
        for name, value in values.items():
            library.check(lib.gma_settings_set(settings, name.encode(), str(value).encode()))
        self.settings = {}
        for name in ("lr", "beta1", "beta2", "adam_eps", "weight_decay", "clip"):
            text = c.create_string_buffer(64)
            library.check(lib.gma_settings_get(settings, name.encode(), text, c.c_size_t(64)))
            self.settings[name] = float(text.value)
        self.bench = c.c_void_p()
        library.check(lib.gma_train_bench_create(settings, c.byref(self.bench)))
        lib.gma_settings_destroy(settings)
        self.times = Times(c.sizeof(Times))

    def __del__(self):
        self.library.lib.gma_train_bench_destroy(self.bench)

    def model(self):
        return c.c_void_p(self.library.lib.gma_train_bench_model(self.bench))

    def logits(self, tokens, out, threads):
        self.library.check(self.library.lib.gma_lm_logits(self.model(), c.c_void_p(tokens.data_ptr()), c.c_int64(tokens.shape[0]),
                                                          c.c_int64(tokens.shape[1]), threads, c.c_void_p(out.data_ptr())))

    def parameters(self):
        lib, model, out = self.library.lib, self.model(), {}
        for i in range(lib.gma_lm_tensor_count(model)):
            name, tensor = c.c_char_p(), gma_ctypes.Tensor()
            self.library.check(lib.gma_lm_tensor(model, i, c.byref(name), c.byref(tensor)))
            shape = tuple(tensor.shape[: tensor.rank])
            count = 1
            for n in shape:
                count *= n
            values = (c.c_float * count).from_address(tensor.data)
            out[name.value.decode()] = torch.frombuffer(values, dtype=torch.float32).clone().view(shape)
        return out

    def step(self, tokens, targets):
        self.library.check(self.library.lib.gma_train_bench_step(
            self.bench, c.c_void_p(tokens.data_ptr()), c.c_void_p(targets.data_ptr()), c.byref(self.times)))
        return self.times.loss


def settings_of(options, vocab, length, batch, layers, lr=2e-3):
    return {"tokens": "u16", "vocab": vocab, "context": length, "batch": batch, "layers": layers, "width": options.width,
            "heads": options.heads, "components": options.components, "threads": options.threads, "lr": lr}


def make_tokens(vocab, batch, length):
    g = torch.Generator().manual_seed(length)
    both = torch.randint(0, vocab, (2, batch, length), generator=g)
    return both, both.to(torch.int32).contiguous()


def check(library, options, log):
    """The same parameters, the same tokens, three steps. The first updates of Adam are +-lr whatever the size of a gradient,
    so that rounding decides about those near 0: the rate is kept small."""
    vocab, length, batch, layers = 100, 128, 2, 2
    ours = Ours(library, settings_of(options, vocab, length, batch, layers, lr=1e-4))
    model = train_peers.Model(vocab, length, layers, options.width, options.heads, options.components, "gma")
    unused = model.load(ours.parameters())
    if unused:
        raise SystemExit(f"the model in PyTorch lacks {sorted(unused)}")
    peer = train_peers.Trainer(model, ours.settings)
    both, small = make_tokens(vocab, batch, length)
    for step in range(3):
        a, b = ours.step(small[0], small[1]), peer.step(both[0], both[1])
        log(f"check, step {step + 1}: loss {a:.6f}, in PyTorch {b:.6f}")
        if not abs(a - b) < 1e-4 * abs(b):
            raise SystemExit("the two do not train alike; nothing was timed")


def contenders(library, options, vocab, length):
    batch = max(1, options.tokens // length)
    both, small = make_tokens(vocab, batch, length)
    ours = Ours(library, settings_of(options, vocab, length, batch, options.layers))
    calls = {"gma": lambda: ours.step(small[0], small[1])}
    for name in ("sdpa", "compiled"):
        if name == "compiled" and not options.compile:
            continue
        model = train_peers.Model(vocab, length, options.layers, options.width, options.heads, options.components, "sdpa")
        model.load(ours.parameters())
        trainer = train_peers.Trainer(model, ours.settings, name == "compiled")
        calls[name] = lambda t=trainer: t.step(both[0], both[1])
    return calls, ours, batch


def measure(library, options, log):
    rows = []
    for vocab in options.vocab:
        for length in options.lengths:
            calls, ours, batch = contenders(library, options, vocab, length)
            samples, clean, parts = {n: [] for n in calls}, {n: [] for n in calls}, []
            for call in calls.values():
                call()  # makes pages, code, threads
            names = list(calls)
            for i in range(options.rounds):
                for name in names[i % len(names):] + names[:i % len(names)]:
                    ms, ok = compare_torch.timed(calls[name])
                    samples[name].append(ms)
                    clean[name].append(ok)
                    if name == "gma":
                        parts.append({p: 1e3 * getattr(ours.times, p) for p in PARTS})
            middle = sorted(range(options.rounds), key=lambda i: samples["gma"][i])[options.rounds // 2]
            row = {"vocab": vocab, "length": length, "batch": batch, "load": os.getloadavg()[0], "parts": parts[middle],
                   "rest": samples["gma"][middle] - sum(parts[middle].values()),
                   "ms": {n: compare_torch.median(s) for n, s in samples.items()}, "samples": samples,
                   "clean": {n: sum(s) for n, s in clean.items()},
                   # each of our steps by the step of the peer in the same round
                   "ratio": {n: compare_torch.median([p / o for p, o in zip(samples[n], samples["gma"])]) for n in calls}}
            rows.append(row)
            log(f"vocabulary {vocab} T={length:5} " + "  ".join(
                f"{n} {t:.0f} ms {batch * length / t * 1e3:.0f} tokens/s ({row['ratio'][n]:.2f})" for n, t in row["ms"].items()))
            del calls, ours
    return rows


# ---- Document ----------------------------------------------------------------------------------------------------


def markdown(result):
    f, o, rows = result["facts"], result["options"], result["rows"]
    names = list(rows[0]["ms"])
    loads = [r["load"] for r in rows]
    lines = [f"## Training, tier {f['tier']}", "",
             f"A step of training: gradients to 0, forward, loss, backward, clipping, AdamW (PyTorch: fused=True); f32, {o['layers']} "
             f"layers, width {o['width']}, {o['heads']} heads, GMA with K = {o['components']}, layer norm, GELU, learned positions, tied "
             f"head; at least {o['tokens']} tokens a step. Tokens a second by the median of {o['rounds']} steps each, taken in turn; in "
             "brackets the median of the ratios, our rate by theirs. `bench/compare_train.py`, see `gma bench train`.", "",
             f"{f['cpu']}, {f['cpus']} CPUs, {f['threads']} threads; libgma_lm {f['version']} (commit {f['commit']}), tier {f['tier']}; "
             f"PyTorch {f['torch']}, {f['torch_tier']}; {f['date']}. Load average while measuring {min(loads):.1f} to "
             f"{max(loads):.1f}.", "",
             "| vocabulary | T | batch | " + " | ".join(NAMES[n] for n in names) + " | wanted | |",
             "|---:|---:|---:|" + "---:|" * len(names) + "---|---|"]
    for r in rows:
        cells = []
        for n in names:
            mark = "" if 2 * r["clean"][n] > len(r["samples"][n]) else "*"
            by = "" if n == "gma" else f" ({r['ratio'][n]:.2f}x)"
            cells.append(f"{1e3 * r['batch'] * r['length'] / r['ms'][n]:.0f}{mark}{by}")
        goal = WANTED.get(r["length"])
        met = "" if goal is None else "met" if min(r["ratio"][n] for n in names if n != "gma") >= goal else "**missed**"
        lines.append(f"| {r['vocab']} | {r['length']} | {r['batch']} | " + " | ".join(cells) +
                     f" | {'-' if goal is None else f'>= {goal}'} | {met} |")
    lines += ["", "Where the time of our step goes, ms:", "",
              "| vocabulary | T | step | dense products | mixer | optimizer | the rest |", "|---:|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        p = r["parts"]
        lines.append(f"| {r['vocab']} | {r['length']} | {sum(p.values()) + r['rest']:.0f} | {p['products']:.0f} | {p['mixer']:.0f} | "
                     f"{p['optimizer']:.1f} | {r['rest']:.0f} |")
    return "\n".join(lines + ["", "A star: during half of the steps or more other programs took more than about 5 % of the CPUs.", ""])


def write(result, document, what="train", markdown=markdown):
    begin, end = (f"<!-- {w} {what} {result['facts']['tier']}{t} -->" for w, t in
                  (("measured", ": written by make bench"), ("end", "")))
    block = f"{begin}\n{markdown(result)}{end}"
    with open(document, encoding="utf-8") as f:
        text = f.read()
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    text = pattern.sub(lambda _: block, text) if pattern.search(text) else text.rstrip("\n") + "\n\n" + block + "\n"
    with open(document + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(document + ".tmp", document)


def main():
    numbers = lambda s: [int(n) for n in s.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default=os.path.join(compare_torch.ROOT, "build", "lib", "libgma_lm.so"))
    p.add_argument("--lengths", default="256,1024,4096", type=numbers)
    p.add_argument("--vocab", default="256,8192", type=numbers)
    for name, value in (("tokens", 4096), ("layers", 4), ("width", 512), ("heads", 8), ("components", 128), ("threads", 2),
                        ("rounds", 5)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--compile", action="store_true", help="PyTorch with torch.compile too (needs a C++ compiler)")
    p.add_argument("--document", help="Markdown file that gets the result (its block of this tier is replaced)")
    p.add_argument("--raw", action="store_true", help="only print the samples as JSON")
    options = p.parse_args()
    log = lambda text: print(text, file=sys.stderr, flush=True)
    torch.set_num_threads(options.threads)
    library = gma_ctypes.Library(options.library)
    check(library, options, log)
    started = time.monotonic()
    result = {"facts": compare_torch.facts(library, options), "options": vars(options)}
    result["rows"] = measure(library, options, log)
    log(f"measured in {time.monotonic() - started:.0f} s")
    if options.raw:
        print(json.dumps(result))
    elif options.document:
        write(result, options.document)
    else:
        print(markdown(result))


if __name__ == "__main__":
    main()
