#!/usr/bin/env python3
"""A mixer of libgma against an independent implementation, output and every gradient, in f32 against theirs in double:
performer (performer-pytorch), linformer (linformer), mamba (mambapy).

    bench/check_mixers.py build/lib/libgma.so performer|linformer|mamba

Exits with 77, saying so, where PyTorch or the package is not installed.
"""
import sys

try:
    import torch
except ImportError:
    print("PyTorch is not installed; nothing was compared")
    raise SystemExit(77)

import gma_ctypes as g
import mixer_peers as peers

LIMIT_O, LIMIT_GRAD = 2e-5, 1e-4


def define(function, x, grad_o, names):
    """Their o and gradients of `names`, in double."""
    leaves = {n: t.double().requires_grad_(n in names) for n, t in x.items()}
    o = function(leaves)
    o.backward(grad_o.double())
    return {"o": o.detach(), **{n: leaves[n].grad for n in names}}


def errors_of(library, mixer, function, x, grad_o, **fields):
    """{"o" or slot: largest difference, by the largest value}, of the output and of every gradient that libgma gives."""
    o, grads = g.Mixer(library, mixer, x, 2, **fields).forward_backward(x, grad_o)
    got = {"o": o, **grads}
    want = define(function, x, grad_o, list(grads))
    return {n: float((got[n].double() - want[n]).abs().max() / want[n].abs().max()) for n in want}


def attention_case(length, name, causal, heads=4, width=32, rows=48):
    qkv, more, grad_o = peers.attention_inputs(length, heads, width, rows)
    extra = ("features",) if name == "performer" else ("proj_k", "proj_v")
    return {**qkv, **{n: more[n] for n in extra}}, grad_o, {"causal": causal, "components": rows}


def cases(mixer, module):
    """(what, function of x, x, grad_o, fields)"""
    if mixer == "performer":  # the formula without anyone's eps: each adds its own to sums of another scale
        for what, causal, length in (("bidirectional", 0, 300), ("causal", 1, 300)):
            x, grad_o, fields = attention_case(length, mixer, causal)
            yield what, lambda x, c=causal: peers.performer(module, x, c, 0.0, 0.0), x, grad_o, {**fields, "eps": 1e-30}
    elif mixer == "linformer":
        for what, length in (("300 tokens", 300), ("64 tokens", 64)):
            x, grad_o, fields = attention_case(length, mixer, 0)
            yield what, lambda x: peers.linformer(module, x), x, grad_o, fields
    else:
        for what, length, channels, batch in (("300 tokens, 70 channels", 300, 70, 2), ("65 tokens, 64 channels", 65, 64, 1)):
            x, grad_y = peers.mamba_inputs(length, channels, batch=batch)
            yield what, lambda x: peers.mamba_scan(module, x), x, grad_y, {}


def main():
    mixer = sys.argv[2]
    module, missing = peers.load(mixer)
    if missing:
        print(f"{missing}; {mixer} was not compared with it")
        raise SystemExit(77)
    library, failed = g.Library(sys.argv[1]), 0
    for what, function, x, grad_o, fields in cases(mixer, module):
        errors = errors_of(library, mixer, function, x, grad_o, **fields)
        bad = [n for n, e in errors.items() if not e < (LIMIT_O if n == "o" else LIMIT_GRAD)]
        failed += bool(bad)
        print(f"{mixer}, {what}: " + ", ".join(f"{n} {e:.1e}" for n, e in errors.items()) + (f"  WRONG: {bad}" if bad else ""))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
