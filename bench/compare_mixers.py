"""The mixers beside GMA against their peers in Python (bench/mixer_peers.py): goal (i) of speed. Called by
`bench/compare_torch.py --mixers`; the result is a block of its own in the document.

Each line: libgma with new memory at each call and with memory kept (see gma_ctypes.Mixer), and the peer, in turn. Nothing is
timed before values and gradients of the same inputs and weights have been compared.
"""
import os

import torch

import check_mixers
import compare_torch
import compare_train
import gma_ctypes
import mixer_peers
import peers

VOCAB, D_MODEL, ROWS = 16, 512, 128
LONG = 3.0  # seconds: the first call of such a contender is its sample
NAMES = {"softmax": "PyTorch SDPA", "linear": "PyTorch Linear Transformer", "performer": "performer-pytorch", "linformer": "linformer",
         "mamba block": "mambapy", "mamba scan": "mambapy"}
WANTED = {"softmax": 1.0, "linear": 2.0, "performer": 3.0, "mamba block": 10.0}
PASSES = {"fwd": "forward", "fwdbwd": "forward + backward"}

# mixer, causal, lengths of forward, of forward + backward
PLAN = (("softmax", True, (256, 512, 1024, 4096, 16384), (256, 512, 1024, 4096, 16384)),
        ("softmax", False, (256, 512, 1024, 4096, 16384), (256, 512, 1024, 4096, 8192)),
        ("linear", True, (512, 1024, 4096, 16384), (512, 1024, 4096, 16384)),
        ("linear", False, (512, 1024, 4096, 16384), (512, 1024, 4096, 16384)),
        ("performer", False, (512, 1024, 4096, 16384), (512, 1024, 4096, 16384)),
        ("performer", True, (512, 1024), (512, 1024)),
        ("linformer", False, (1024, 4096), (1024, 4096)),
        ("mamba scan", True, (1024,), (1024,)),
        ("mamba block", True, (512, 1024, 4096), (512, 1024, 4096)))


# ---- Contenders: {name: call} ----------------------------------------------------------------------------------------


def peer_call(function, x, grad_o, which):
    if which == "fwd":
        with torch.inference_mode():
            return function(x)
    leaves = {n: t.detach().requires_grad_(n != "features") for n, t in x.items()}
    function(leaves).backward(grad_o)
    return [t.grad for t in leaves.values()]


def operator(library, mixer, causal, which, length, threads):
    if mixer == "mamba scan":
        x, grad_o = mixer_peers.mamba_inputs(length, 2 * D_MODEL)
        kind, fields = "mamba", {}
    else:
        x, more, grad_o = mixer_peers.attention_inputs(length, rows=ROWS)
        names = {"performer": ("features",), "linformer": ("proj_k", "proj_v")}.get(mixer, ())
        x, kind, fields = {**x, **{n: more[n] for n in names}}, mixer, {"causal": causal, "components": ROWS if names else 0}
    module = mixer_peers.load(kind)[0] if kind in mixer_peers.PACKAGES else None
    function = {"softmax": lambda x: peers.sdpa(x, causal), "linear": lambda x: peers.linear_transformer(x, causal),
                "performer": lambda x: mixer_peers.performer(module, x, causal),
                "linformer": lambda x: mixer_peers.linformer(module, x),
                "mamba scan": lambda x: mixer_peers.mamba_scan(module, x)}[mixer]
    calls = {}
    for name in ("ours", "kept"):
        m = gma_ctypes.Mixer(library, kind, x, threads, name == "kept", **fields)
        calls[name] = (lambda m=m: m.forward(x)) if which == "fwd" else (lambda m=m: m.forward_backward(x, grad_o))
    calls["peer"] = lambda: peer_call(function, x, grad_o, which)
    return calls


class Block:
    """One layer of mamba, width 512, in a model as small as may be around it: libgma_lm's and the same around mambapy's. Forward
    gives the logits; forward + backward is a step of training, its AdamW and all."""

    def __init__(self, library, length, threads):
        shape = {"context": length, "batch": 1, "layers": 1, "width": D_MODEL, "heads": 1, "mixer": "mamba", "positions": "none",
                 "mlp_width": 1, "vocab": VOCAB, "tokens": "u16", "threads": threads, "lr": 1e-4}
        self.library, self.threads, self.length = library, threads, length
        self.ours = compare_train.Ours(library, shape, "default")
        self.model = mixer_peers.MambaModel(mixer_peers.load("mamba")[0], VOCAB, D_MODEL, 1)
        self.model.load(self.ours.parameters())
        self.trainer = compare_train.train_peers.Trainer(self.model, self.ours.settings)
        self.both, self.small = compare_train.make_tokens(VOCAB, 1, length)

    def our_logits(self):
        out = torch.empty(1, self.length, VOCAB)
        self.ours.logits(self.small[0], out, self.threads)
        return out

    def peer_logits(self):
        with torch.inference_mode():
            return self.model.logits(self.both[0])

    def calls(self, which):
        if which == "fwd":
            return {"ours": self.our_logits, "peer": self.peer_logits}
        return {"ours": lambda: self.ours.step(*self.small), "peer": lambda: self.trainer.step(*self.both)}


# ---- Values ----------------------------------------------------------------------------------------------------------


def check(library, threads, log):
    cases = [("softmax", lambda x, c=c: peers.sdpa(x, c), c) for c in (True, False)]
    cases += [("linear", lambda x, c=c: peers.define_linear(x, c), c) for c in (True, False)]
    for mixer, function, causal in cases:
        x, _, grad_o = mixer_peers.attention_inputs(256)
        report(log, mixer, check_mixers.errors_of(library, mixer, function, x, grad_o, causal=causal))
    for mixer in mixer_peers.PACKAGES:
        module, missing = mixer_peers.load(mixer)
        if missing:
            raise SystemExit(f"{missing}; nothing was timed")
        for what, function, x, grad_o, fields in check_mixers.cases(mixer, module):
            report(log, f"{mixer}, {what}", check_mixers.errors_of(library, mixer, function, x, grad_o, **fields))


def report(log, what, errors):
    where = max(errors, key=errors.get)
    log(f"check {what}: worst is {where}, {errors[where]:.1e}")
    if not errors[where] < 1e-4:
        raise SystemExit(f"{what} is wrong ({where}: {errors[where]:.1e}); nothing was timed")


def check_block(lm, threads, log):
    """The same parameters and tokens: logits, then the losses of three steps."""
    block = Block(lm, 128, threads)
    error = compare_torch.worst(block.our_logits(), block.peer_logits())
    ours, theirs = block.calls("fwdbwd").values()
    losses = [(ours(), theirs()) for _ in range(3)]
    log(f"check mamba block: logits {error:.1e}; losses " + ", ".join(f"{a:.6f} {b:.6f}" for a, b in losses))
    if not error < 1e-4 or not all(abs(a - b) < 1e-5 * abs(b) for a, b in losses):
        raise SystemExit("the block of mamba is not mambapy's; nothing was timed")


# ---- Measuring -------------------------------------------------------------------------------------------------------


def time_line(calls, options, libc):
    first = {n: compare_torch.first_call(call, libc)[1] for n, call in calls.items()}
    short = {n: call for n, call in calls.items() if first[n] < LONG}
    times = compare_torch.race(short, first, options.budget, options.rounds) if short else {}
    for n in calls:
        times.setdefault(n, {"ms": 1e3 * first[n], "samples": 1, "clean": 1})
    return times


def measure(library, options, log):
    libc, rows, lm = compare_torch.ctypes.CDLL(None), [], gma_ctypes.Library(options.library.replace("libgma.so", "libgma_lm.so"))
    check(library, options.threads, log)
    check_block(lm, options.threads, log)
    for mixer, causal, *lengths in PLAN:
        if options.only and mixer not in options.only:
            continue
        for which, some in zip(PASSES, lengths):
            for length in some:
                if length > options.longest:
                    continue
                block = Block(lm, length, options.threads) if mixer == "mamba block" else None
                calls = block.calls(which) if block else operator(library, mixer, causal, which, length, options.threads)
                times = time_line(calls, options, libc)
                rows.append({"mixer": mixer, "causal": bool(causal), "pass": which, "length": length, "times": times,
                             "load": os.getloadavg()[0]})
                log(f"{mixer} {'causal' if causal else 'bidir.'} {which:6} N={length:6} " + "  ".join(
                    f"{n} {t['ms']:.2f} ({t['clean']}/{t['samples']})" for n, t in times.items()) +
                    f"  x{times['peer']['ms'] / times['ours']['ms']:.2f}")
    return rows


# ---- Document --------------------------------------------------------------------------------------------------------


def cell(t):
    import report
    return report.number(t["ms"]) + ("" if t["clean"] >= min(3, t["samples"]) else "*")


def markdown(result):
    f, rows = result["facts"], result["rows"]
    loads = [r["load"] for r in rows]
    lines = [f"## The other mixers, tier {f['tier']}", "",
             f"{f['cpu']}, {f['cpus']} CPUs, {f['threads']} threads; libgma {f['version']} (commit {f['commit']}), tier {f['tier']}; "
             f"PyTorch {f['torch']}, {f['torch_tier']}; {f['date']}. `bench/compare_torch.py --mixers`. f32, batch 1, 8 heads of width 64, "
             f"{ROWS} features (performer) or rows (linformer); mamba: width {D_MODEL}, {2 * D_MODEL} channels of 16 states. Load average "
             f"while measuring {min(loads):.1f} to {max(loads):.1f}.", "",
             "| mixer | pass | N | libgma, ms | memory kept | peer | peer, ms | peer by libgma | wanted (i) | |",
             "|---|---|---:|---:|---:|---|---:|---:|---|---|"]
    for r in rows:
        t, wanted = r["times"], WANTED.get(r["mixer"])
        by = {n: t["peer"]["ms"] / t[n]["ms"] for n in ("ours", "kept") if n in t}
        met = "" if wanted is None else "met" if by["ours"] >= wanted else \
            "met with memory kept" if by.get("kept", 0) >= wanted else "**missed**"
        lines.append(f"| {r['mixer']}{'' if r['mixer'].startswith('mamba') else ', causal' if r['causal'] else ', bidirectional'} | "
                     f"{PASSES[r['pass']]} | {r['length']} | {cell(t['ours'])} | {cell(t['kept']) if 'kept' in t else '-'} | "
                     f"{NAMES[r['mixer']]} | {cell(t['peer'])} | {by['ours']:.2f}{'; kept %.2f' % by['kept'] if 'kept' in by else ''} | "
                     f"{'-' if wanted is None else '>= %g' % wanted} | {met} |")
    return "\n".join(lines + ["", "The mamba block: in- and out-projection, convolution, scan and gate in a model of one layer with 16 "
                              "tokens and an MLP of width 1 around it, the same on both sides; forward gives logits, forward + backward is "
                              "a step of training with AdamW. A star: fewer than three samples during which other programs took less than "
                              "about 5 % of the CPUs.", ""])


def run(library, options, log):
    result = {"facts": compare_torch.facts(library, options), "rows": measure(library, options, log)}
    if options.raw:
        print(compare_torch.json.dumps(result))
    elif options.document:
        compare_train.write(result, options.document, "mixers", markdown)
    print(markdown(result))
