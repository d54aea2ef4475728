"""Processes: fork, one OpenMP runtime, life without PyTorch."""
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from common import ROOT


def run(code, **env):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **env}, capture_output=True,
                          text=True, timeout=300, cwd=os.path.join(ROOT, "bindings", "python", "tests"))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("first", ["torch", "libgma"])
def test_one_openmp_runtime(first):
    out = run(f"""
        import {first}
        import torch, libgma
        from libgma import _openmp
        q = torch.randn(1, 4, 600, 8)
        (torch.randn(300, 300) @ torch.randn(300, 300)).relu()
        libgma.attention(q, q, q, torch.randn(4, 5, 8), torch.zeros(4, 5, 8), torch.zeros(4, 5))
        print(len(_openmp.mapped()), *_openmp.mapped())
        """)
    assert out.startswith("1 "), out


def test_i3_fork_after_use():
    run("""
        import os, signal, torch, libgma
        torch.manual_seed(0)
        torch.set_num_threads(2)
        q = torch.randn(1, 4, 600, 8)
        leaf = q.clone().requires_grad_()
        args = (torch.randn(4, 5, 8), torch.zeros(4, 5, 8), torch.zeros(4, 5))
        want = libgma.attention(leaf, q, q, *args, is_causal=True)
        (grad,) = torch.autograd.grad(want.sum(), leaf)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            o = libgma.attention(leaf, q, q, *args, is_causal=True)
            same = o.detach().numpy().tobytes() == want.detach().numpy().tobytes()
            s = libgma.AttentionState(*args, batch=1, value_dim=8)
            s.step(q[:, :, :1], q[:, :, :1], q[:, :, :1])
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert torch.equal(libgma.attention(leaf, q, q, *args, is_causal=True), want)
        """)


def test_without_pytorch():
    out = run("""
        import sys
        sys.modules["torch"] = None  # as if it were not installed
        import numpy as np, libgma
        from common_numpy import check
        check(libgma, np)
        try:
            libgma.GaussianMixtureAttention
        except ImportError as error:
            print(error)
        """)
    assert "needs PyTorch" in out


def test_with_an_unknown_tier():
    out = run("""
        import numpy as np, libgma
        q = np.zeros((1, 1, 2, 1), np.float32)
        p = np.zeros((1, 1, 1), np.float32)
        try:
            libgma.attention(q, q, q, p, p, p[0])
        except ValueError as error:
            print(error)
        """, GMA_ISA="sse9")
    assert "sse9" in out


def test_types_are_shipped():
    import libgma
    assert os.path.exists(os.path.join(os.path.dirname(libgma.__file__), "py.typed"))
    with open(os.path.join(ROOT, "VERSION")) as f:
        assert libgma.__version__ == f.read().strip()
    assert np.all([hasattr(libgma, name) for name in libgma.__all__])
