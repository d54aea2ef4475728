"""What the tests share."""
import os
import re

import torch
from safetensors import safe_open

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
GOLDEN = os.path.join(ROOT, "tests", "golden", "data")
INPUTS = ("q", "k", "v", "mu", "omega", "alpha", "log_decay", "logit_scale", "state_S", "state_Z")
OMEGA_ONE = 0.5411666523385311  # softplus(omega) + 1e-4 = 1


with open(os.path.join(ROOT, "tests", "support", "tol.h")) as _file:  # the limits of the C tests
    _TOL = _file.read()
TOL = {name: float(value) for name, value in re.findall(r"#define TOL_(\w+) +([0-9.e-]+)", _TOL)}
_SPECIAL = {name: float(value) for name, value in re.findall(r'X\("(\w+)", ([0-9.e-]+)\)', _TOL)}


def limits(name, dtype):
    """(largest error, floor of its scale) of outputs and of gradients for a golden file."""
    if dtype == torch.float64:
        return (TOL["NAIVE"], TOL["FLOOR_O"]), (TOL["NAIVE"], TOL["FLOOR_GRAD"])
    return ((_SPECIAL.get(name, TOL["O"]), TOL["FLOOR_O"]), (_SPECIAL.get(name, TOL["GRAD"]), TOL["FLOOR_GRAD"]))


def golden(name):
    """(tensors in float64, arguments of libgma.attention beside them)"""
    with safe_open(os.path.join(GOLDEN, name + ".safetensors"), "pt") as f:
        x = {key: f.get_tensor(key) for key in f.keys()}
        meta = f.metadata() or {}
    options = {"is_causal": meta.get("causal", "0") == "1", "eps": float(meta.get("eps", 1e-6)),
               "eps_sigma": float(meta.get("eps_sigma", 1e-4))}
    if "key_mask" in x:
        options["key_padding_mask"] = ~x["key_mask"].bool()
    if "cu_seqlens" in x:
        options["cu_seqlens"] = x["cu_seqlens"]
    return x, options


def call(function, x, options, return_state=False):
    """libgma.attention(..) on a dictionary named as the golden files."""
    more = {name: x[name] for name in ("log_decay", "logit_scale") if name in x}
    if "state_S" in x:
        more["initial_state"] = (x["state_S"], x["state_Z"])
    return function(*(x[n] for n in INPUTS[:6]), return_state=return_state, **more, **options)


def worst(a, b, floor=1e-30):
    """Largest difference, relative to the largest entry of b or floor."""
    a, b = torch.as_tensor(a).detach().double(), torch.as_tensor(b).detach().double()
    assert a.shape == b.shape, (a.shape, b.shape)
    if a.numel() == 0:
        return 0.0
    assert torch.isfinite(a).all()
    return float((a - b).abs().max() / b.abs().max().clamp_min(floor))


def random_inputs(batch=2, heads=3, length=50, components=7, routing=8, value=5, kv_heads=None, dtype=torch.float32,
                  seed=0, grad=False):
    g = torch.Generator().manual_seed(seed)
    kv = kv_heads or heads
    shapes = {"q": (batch, heads, length, routing), "k": (batch, kv, length, routing), "v": (batch, kv, length, value),
              "mu": (kv, components, routing), "omega": (kv, components, routing), "alpha": (kv, components)}
    return {n: torch.randn(*s, generator=g, dtype=torch.float64).to(dtype).requires_grad_(grad) for n, s in shapes.items()}


def config_a(q, k, v, **more):
    """Arguments of attention for one head, one dimension, two components at -1 and 1 with variance 1."""
    row = lambda x: torch.as_tensor(x, dtype=torch.float32).reshape(1, 1, -1, 1)
    mu = torch.tensor([-1.0, 1.0]).reshape(1, 2, 1)
    return {"q": row(q), "k": row(k), "v": row(v), "mu": mu, "omega": torch.full_like(mu, OMEGA_ONE),
            "alpha": torch.zeros(1, 2), **more}
