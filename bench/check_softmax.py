#!/usr/bin/env python3
"""Softmax attention of libgma against PyTorch's scaled_dot_product_attention: output and gradients, in several modes.

    bench/check_softmax.py build/lib/libgma.so

Exits with 77, saying so, where PyTorch is not installed.
"""
import sys

try:
    import torch
except ImportError:
    print("PyTorch is not installed; softmax was not compared with it")
    raise SystemExit(77)

import gma_ctypes as g

LIMIT = {"o": 2e-5, "q": 1e-4, "k": 1e-4, "v": 1e-4}


def run(library, x, grad_o, causal=0, scale=0.0, window=0, key_mask=None):
    """o and the gradients of q, k, v."""
    mixer = g.Mixer(library, "softmax", x, 2, causal=causal, scale=scale, window=window)
    o, grads = mixer.forward_backward({**x, **({} if key_mask is None else {"key_mask": key_mask})}, grad_o)
    return {"o": o, **grads}


def peer(x, grad_o, mask, scale):
    leaves = {n: t.double().requires_grad_(True) for n, t in x.items()}
    group = x["q"].shape[1] // x["k"].shape[1]
    o = torch.nn.functional.scaled_dot_product_attention(
        leaves["q"], leaves["k"].repeat_interleave(group, 1), leaves["v"].repeat_interleave(group, 1), attn_mask=mask,
        scale=scale or None)
    o.backward(grad_o.double())
    return {"o": o.detach(), **{n: t.grad for n, t in leaves.items()}}


def main():
    library = g.Library(sys.argv[1])
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    failed = 0
    # name, heads, key heads, Nq, Nk, R, D, causal, window, scale, masked
    for name, hq, h, nq, nk, r, width, causal, window, scale, masked in (
            ("bidirectional", 4, 4, 300, 300, 64, 64, 0, 0, 0.0, False), ("causal", 4, 4, 300, 300, 64, 64, 1, 0, 0.0, False),
            ("cross, R != D", 2, 2, 70, 333, 33, 17, 0, 0, 0.0, False), ("causal cross", 2, 2, 70, 333, 32, 64, 1, 0, 0.0, False),
            ("grouped heads", 6, 2, 130, 130, 16, 16, 1, 0, 0.0, False), ("window", 2, 2, 400, 400, 64, 64, 1, 50, 0.0, False),
            ("scale", 2, 2, 130, 130, 64, 64, 0, 0, 0.3, False), ("key mask", 2, 2, 200, 200, 64, 64, 0, 0, 0.0, True)):
        x = {"q": draw(2, hq, nq, r), "k": draw(2, h, nk, r), "v": draw(2, h, nk, width)}
        grad_o = draw(2, hq, nq, width)
        key_mask = torch.rand(2, nk, generator=generator) < 0.7 if masked else None
        place, key = torch.arange(nq)[:, None] + nk - nq, torch.arange(nk)[None, :]
        mask = torch.ones(nq, nk, dtype=torch.bool)
        if causal:
            mask = (key <= place) & ((key > place - window) if window else True)
        mask = mask[None, None] & (key_mask[:, None, None, :] if masked else True)
        got, want = run(library, x, grad_o, causal, scale, window, key_mask), peer(x, grad_o, mask, scale)
        errors = {n: float((got[n].double() - want[n]).abs().max() / want[n].abs().max()) for n in want}
        bad = [n for n in errors if not errors[n] < LIMIT[n]]
        failed += bool(bad)
        print(f"{name}: " + ", ".join(f"{n} {e:.1e}" for n, e in errors.items()) + (f"  WRONG: {bad}" if bad else ""))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
