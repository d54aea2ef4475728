#!/usr/bin/env python3
"""What a call costs beside its arithmetic: CPU time of the calling thread on tensors of a few numbers, one thread, the least of
some rounds in turn.

    python bindings/python/bench/call.py
"""
import time

import torch
import torch.nn.functional as F

import libgma


@torch.library.custom_op("bench::empty", mutates_args=())
def empty(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return q.clone()


empty.register_autograd(lambda ctx, g: (g.clone(), g.clone(), g.clone()),
                        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def main(rounds=12, calls=60):
    torch.set_num_threads(1)
    x = [torch.randn(1, 1, 1, 4) for _ in range(3)] + [torch.randn(1, 4, 4), torch.zeros(1, 4, 4), torch.zeros(1, 4)]
    leaves, arrays = [t.clone().requires_grad_() for t in x], [t.numpy() for t in x]
    state = libgma.AttentionState(*x[3:], batch=1, value_dim=4)
    functions = {
        "libgma.attention": lambda: libgma.attention(*x),
        "libgma.attention, sum, backward": lambda: libgma.attention(*leaves).sum().backward(),
        "libgma.attention of arrays": lambda: libgma.attention(*arrays),
        "AttentionState.step": lambda: state.step(*x[:3]),
        "empty torch.library.custom_op": lambda: empty(*x[:3]),
        "empty custom_op, sum, backward": lambda: empty(*leaves[:3]).sum().backward(),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*x[:3]),
        "sdpa, sum, backward": lambda: F.scaled_dot_product_attention(*leaves[:3]).sum().backward(),
    }
    best = dict.fromkeys(functions, float("inf"))
    for f in functions.values():
        for _ in range(30):
            f()
    for _ in range(rounds):
        for name, f in functions.items():
            start = time.thread_time()
            for _ in range(calls):
                f()
            best[name] = min(best[name], (time.thread_time() - start) / calls)
    print(f"libgma {libgma.version()} ({libgma.isa()}), PyTorch {torch.__version__}")
    for name, seconds in best.items():
        print(f"{name:34} {1e6 * seconds:8.1f} us")


if __name__ == "__main__":
    main()
