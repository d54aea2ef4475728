"""The mixers beside GMA as others have written them in Python: what they are compared with, in time and in values.
x: {slot: tensor}, named as in libgma's tables; every function gives o (B,H,N,D), or y (B,N,E) of mamba."""
import importlib
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

PACKAGES = {"performer": ("performer_pytorch.performer_pytorch", "performer-pytorch"), "linformer": ("linformer.linformer", "linformer"),
            "mamba": ("mambapy.mamba", "mambapy")}


def load(mixer):
    """(module, None), or (None, why it is not there)."""
    module, package = PACKAGES[mixer]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they name modules that newer PyTorch and Python call by other names
            return importlib.import_module(module), None
    except ImportError as error:
        return None, f"{package} cannot be imported ({error})"


def performer(module, x, causal, eps=1e-4, eps_causal=1e-6):
    """FastAttention.forward on a CPU, with given features. The defaults of eps (added to every feature) and eps_causal (to every
    sum of features) are its own; neither is part of the formula."""
    q, k = (module.softmax_kernel(x[n], projection_matrix=x["features"], is_query=n == "q", eps=eps) for n in "qk")
    if causal:
        return module.causal_linear_attention_noncuda(q, k, x["v"], eps=eps_causal)
    return module.linear_attention(q, k, x["v"])


class _Given(nn.Module):
    """Takes the place of a projection: its result is given."""

    def __init__(self, value=None):
        super().__init__()
        self.value = value

    def forward(self, x):
        return x if self.value is None else self.value


def linformer(module, x, heads_as_rows=lambda t: t.transpose(1, 2).flatten(2)):
    """LinformerSelfAttention without its projections to q, k, v and out, which are ordinary layers."""
    b, h, n, d = x["q"].shape
    layer = module.LinformerSelfAttention(h * d, n, k=1, heads=h)
    layer.k = x["proj_k"].shape[0]
    for name in ("k", "v"):
        delattr(layer, "proj_" + name)
        setattr(layer, "proj_" + name, x["proj_" + name].transpose(0, 1))
    for name in ("q", "k", "v"):
        setattr(layer, "to_" + name, _Given(heads_as_rows(x[name])))
    layer.to_out = _Given()
    return layer(torch.empty(b, n, h * d)).unflatten(2, (h, d)).transpose(1, 2)


def mamba_scan(module, x):
    """MambaBlock.selective_scan; delta is ready-made there."""
    delta = F.softplus(x["delta"] + x["delta_bias"])
    return module.MambaBlock.selective_scan(None, x["u"], delta, x["A"], x["B"], x["C"], x["D"])


# ---- Ordinary inputs ------------------------------------------------------------------------------------------------


def attention_inputs(length, heads=8, width=64, rows=128):
    """q, k, v, and beside them `features` (rows, R) of performer, proj_k and proj_v (rows, N) of linformer; and grad_o."""
    g = torch.Generator().manual_seed(length)
    draw = lambda *shape: torch.randn(*shape, generator=g)
    qkv = {n: draw(1, heads, length, width) for n in "qkv"}
    more = {"features": draw(rows, width), "proj_k": draw(rows, length) / length**0.5, "proj_v": draw(rows, length) / length**0.5}
    return qkv, more, draw(1, heads, length, width)


def mamba_inputs(length, channels, states=16, batch=1):
    g = torch.Generator().manual_seed(length)
    draw = lambda *shape: torch.randn(*shape, generator=g)
    x = {"u": draw(batch, length, channels), "delta": draw(batch, length, channels),
         "A": -torch.arange(1.0, states + 1).repeat(channels, 1) * (1 + 0.1 * draw(channels, states).abs()),
         "B": draw(batch, length, states), "C": draw(batch, length, states), "D": draw(channels), "delta_bias": draw(channels) - 4}
    return x, draw(batch, length, channels)


# ---- A block with its projections, in a model that libgma_lm has too ------------------------------------------------


class MambaModel(nn.Module):
    """The model of libgma_lm with one layer of mamba around mambapy's block: embedding (also the head), norm, block, norm, MLP,
    norm. Everything but the block is kept tiny."""

    def __init__(self, module, vocab, width, hidden):
        super().__init__()
        config = module.MambaConfig(d_model=width, n_layers=1)
        self.embed, self.layer = nn.Embedding(vocab, width), module.ResidualBlock(config)
        self.norm2, self.norm = module.RMSNorm(width), module.RMSNorm(width)
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def logits(self, tokens):
        x = self.layer(self.embed(tokens))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return F.linear(self.norm(x), self.embed.weight)

    def forward(self, tokens, targets):
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())

    def load(self, values):
        """values: {libgma_lm's name: tensor}; all of them are used."""
        v, block = dict(values), self.layer.mixer
        take = lambda name: v.pop(name)
        with torch.no_grad():
            for parameter, name in ((self.embed.weight, "embed.weight"), (self.layer.norm.weight, "blocks.0.norm1.weight"),
                                    (self.norm2.weight, "blocks.0.norm2.weight"), (self.up.weight, "blocks.0.mlp.up.weight"),
                                    (self.down.weight, "blocks.0.mlp.down.weight"), (self.norm.weight, "norm.weight")):
                parameter.copy_(take(name))
            inside = {"in_proj": block.in_proj.weight, "x_proj": block.x_proj.weight, "dt_proj": block.dt_proj.weight,
                      "out_proj": block.out_proj.weight}
            for name, parameter in inside.items():
                parameter.copy_(take(f"blocks.0.mixer.{name}.weight"))
            block.conv1d.weight.copy_(take("blocks.0.mixer.conv.weight").flip(0).T.unsqueeze(1))  # there tap 0 is the oldest
            block.conv1d.bias.copy_(take("blocks.0.mixer.conv.bias"))
            block.dt_proj.bias.copy_(take("blocks.0.mixer.delta_bias"))
            block.A_log.copy_(take("blocks.0.mixer.A_log"))
            block.D.copy_(take("blocks.0.mixer.D"))
        assert not v, f"not in the model: {sorted(v)}"
