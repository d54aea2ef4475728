#!/usr/bin/env python3
"""Softmax attention of libgma against PyTorch's scaled_dot_product_attention: output and gradients, in several modes.

    bench/check_softmax.py build/lib/libgma.so

Exits with 77, saying so, where PyTorch is not installed.
"""
import ctypes as c
import sys

try:
    import torch
except ImportError:
    print("PyTorch is not installed; softmax was not compared with it")
    raise SystemExit(77)

import gma_ctypes as g

SOFTMAX, KEY_MASK, BOOL = 4, 7, 4
LIMIT = {"o": 2e-5, "q": 1e-4, "k": 1e-4, "v": 1e-4}


def run(library, x, grad_o, causal=0, scale=0.0, window=0, key_mask=None):
    """o and the gradients of q, k, v."""
    lib, d = library.lib, g.Desc()
    library.check(lib.gma_mixer_desc_init(c.byref(d), SOFTMAX))
    d.causal, d.scale, d.window = causal, scale, window
    d.batch, d.heads, d.q_len, d.routing_dim = x["q"].shape
    d.kv_heads, d.k_len, d.value_dim = x["v"].shape[1:]
    mixer, size = c.c_void_p(), g.Size(struct_size=c.sizeof(g.Size))
    library.check(lib.gma_mixer_create(c.byref(d), c.byref(mixer)))
    library.check(lib.gma_mixer_sizes(mixer, 2, c.byref(size)))
    scratch_bytes = max(size.forward_scratch, size.backward_scratch)
    scratch = torch.zeros(scratch_bytes + 64, dtype=torch.uint8)
    saved = torch.zeros(size.saved + 64, dtype=torch.uint8)
    execution = g.Exec(c.sizeof(g.Exec), 2, 0, g._aligned(scratch), scratch_bytes, g._aligned(saved), size.saved)
    o, grads = torch.empty_like(grad_o), {n: torch.empty_like(t) for n, t in x.items()}
    named = [(g.SLOTS[n], t) for n, t in x.items()] + [(g.SLOTS["o"], o)]
    back = named + [(g.SLOTS["o"] | g.GRAD, grad_o)] + [(g.SLOTS[n] | g.GRAD, t) for n, t in grads.items()]
    for call, tensors in ((lib.gma_mixer_forward, named), (lib.gma_mixer_backward, back)):
        rows = [g._arg(slot, t) for slot, t in tensors]
        if key_mask is not None:
            rows.append(g.Arg(KEY_MASK, g.Tensor(key_mask.data_ptr(), BOOL, 2, (c.c_int64 * 4)(*key_mask.shape, 1, 1),
                                                 (c.c_int64 * 4)(*key_mask.stride(), 1, 1))))
        library.check(call(mixer, (g.Arg * len(rows))(*rows), len(rows), c.byref(execution)))
    lib.gma_mixer_destroy(mixer)
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
