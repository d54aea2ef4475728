"""The mixers of a language model's layers with what is around them: projections, convolution, gates, and what they keep of
the tokens before."""
from __future__ import annotations

import math
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .functional import _mix, mamba_scan, responsibilities
from .module import Heads
from .state import AttentionState


class _Conv(nn.Module):
    """y_t = sum_j weight[j] x_{t-j}, channel by channel; bias, where there is one, is left to the caller."""

    def __init__(self, taps: int, channels: int, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        nn.init.ones_(self.weight[0])

    def forward(self, x: Tensor, past: Optional["Past"]) -> Tuple[Tensor, Tensor]:
        """x (B,N,C) and what was kept of the tokens before: y, and the inputs that the next tokens need, (B,taps-1,C)."""
        taps, n = self.weight.shape[0], x.shape[1]
        before = x.new_zeros(x.shape[0], taps - 1, x.shape[-1]) if past is None else past.inputs
        x = torch.cat((before, x), 1)
        return sum(self.weight[j] * x[:, taps - 1 - j:taps - 1 - j + n] for j in range(taps)), x[:, n:]


def _rotary(x: Tensor, first: int, base: float) -> Tensor:
    """x (B,H,N,R): element i and i + R/2 turned by (first + n) base^(-2 i / R)."""
    half = x.shape[-1] // 2
    t = torch.arange(first, first + x.shape[-2], dtype=torch.float64, device=x.device)
    rate = base ** (-2.0 * torch.arange(half, dtype=torch.float64, device=x.device) / x.shape[-1])
    angle = t[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Past(NamedTuple):
    """What a layer keeps of the tokens before: (S, Z) or, for softmax, keys and values, or an AttentionState while decoding;
    and the last inputs of the convolution."""

    state: Any
    inputs: Optional[Tensor]


class Mixer(Heads):
    """The mixer of one layer with its options: short convolution, forget gate, logit scale, output gate, rotary
    positions, window. c: settings of the model; layer: of this layer (layers.resolve)."""

    def __init__(self, c: Mapping[str, Any], layer: Mapping[str, Any]):
        self.kind = layer["mixer"]
        super().__init__(c["width"], c["heads"], layer["components"] if self.kind == "gma" else None, c["routing_dim"],
                         c["value_dim"], c["kv_heads"], False, c["eps"], c["eps_sigma"])
        out = c["heads"] * self.value_dim
        self.splits = (c["heads"] * self.routing_dim, c["kv_heads"] * self.routing_dim, c["kv_heads"] * self.value_dim)
        self.gate_proj = nn.Linear(c["width"], out, bias=False) if layer["output_gate"] else None
        self.forget_proj = nn.Linear(c["width"], c["kv_heads"]) if layer["forget_gate"] else None
        self.conv = _Conv(layer["conv"], sum(self.splits)) if layer["conv"] else None
        scale = torch.full((c["kv_heads"],), math.log(c["logit_scale_init"]))
        self.log_logit_scale = nn.Parameter(scale) if layer["logit_scale"] else None
        if self.kind == "performer":  # fixed, saved with the model
            self.register_buffer("features", _orthogonal_features(layer["components"], self.routing_dim))
        self.context, base = c["context"], c["rotary_base"] if layer["rotary"] else 0.0
        softmax = self.kind == "softmax"  # which turns q and k itself
        self.rotary_base = 0.0 if softmax else base
        self.options = {"rotary_base": base, "window": layer["window"]} if softmax else {"eps": c["eps"]}
        if self.kind == "gma":
            self.options["eps_sigma"] = c["eps_sigma"]

    def reset_gates(self) -> None:
        """Fresh values of what is no projection."""
        if self.forget_proj is not None:
            bias = self.forget_proj.bias
            bias.copy_(torch.linspace(3, 7, len(bias)) if len(bias) > 1 else torch.tensor([5.0]))

    def logit_scale(self) -> Optional[Tensor]:
        """(H), or None."""
        return None if self.log_logit_scale is None else self.log_logit_scale.float().exp()

    def heads(self, x: Tensor, first: int = 0, past: Optional[Past] = None) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """What enters the operator for x (B,N,E), whose first token is number `first`: q, k, v; and the inputs of the
        convolution that the next tokens need."""
        qkv, inputs = torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), -1), None
        if self.conv is not None:
            qkv, inputs = self.conv(qkv, past)
        q, k, v = self.split_heads(*qkv.split(self.splits, -1))
        if self.rotary_base:
            q, k = _rotary(q, first, self.rotary_base), _rotary(k, first, self.rotary_base)
        return q, k, v, inputs

    def responsibilities(self, x: Tensor, which: str = "q") -> Tensor:
        """Through which component each token of x (B,N,E) is routed as a query (which="q") or key ("k"): (B,Hq or H,N,K)."""
        if which not in ("q", "k") or self.kind != "gma":
            raise ValueError(f"a layer of mixer {self.kind!r} has no responsibilities for {which!r}")
        return responsibilities(self.heads(x)["qk".index(which)], self.mu, self.omega, self.alpha,
                                logit_scale=self.logit_scale(), eps_sigma=self.eps_sigma)

    def parameters_of_operator(self) -> Dict[str, Optional[Tensor]]:
        """What the operator takes besides q, k, v and a decay."""
        if self.kind == "gma":
            return {"mu": self.mu, "omega": self.omega, "alpha": self.alpha, "logit_scale": self.logit_scale()}
        return {"features": self.features} if self.kind == "performer" else {}

    def mix(self, x: Tensor, first: int = 0, past: Optional[Past] = None,
            keep: bool = False) -> Tuple[Tensor, Optional[Past]]:
        """x (B,N,E), whose first token is number `first`; with keep also what the next tokens need."""
        q, k, v, inputs = self.heads(x, first, past)
        decay = None if self.forget_proj is None else F.logsigmoid(self.forget_proj(x).float()).transpose(1, 2)
        if past is not None:
            state: Any = past.state
            o = state.step(q, k, v, log_decay=decay)
        else:
            summed = keep and self.kind != "softmax"
            given = {"k": k, "v": v, "log_decay": decay, **self.parameters_of_operator()}
            o = _mix(self.kind, q, given, None, None, summed, causal=True, **self.options)
            o, state = o if summed else (o, (k, v))
        o = o.transpose(1, 2).flatten(2)
        if self.gate_proj is not None:
            o = o * F.silu(self.gate_proj(x))
        return self.out_proj(o), Past(state, inputs) if keep else None

    def forward(self, x: Tensor) -> Tensor:
        """x (B,N,E) gives (B,N,E)."""
        return self.mix(x)[0]

    def decoding(self, past: Past, batch: int) -> Past:
        """past of whole sequences, ready for single tokens."""
        more = {} if self.kind in ("gma", "performer") else {"routing_dim": self.routing_dim}
        state, room = past.state, 0
        if self.kind == "softmax" and not self.options["window"]:
            room = max(self.context, state[0].shape[2] + 1)
        return Past(AttentionState(mixer=self.kind, batch=batch, value_dim=self.value_dim, num_heads=self.num_heads,
                                   num_kv_heads=self.num_kv_heads, initial_state=state, cache_len=room, **more,
                                   **self.parameters_of_operator(), **self.options), past.inputs)


class Mamba(nn.Module):
    """A Mamba block (Gu & Dao 2023, arXiv 2312.00752) as one layer's mixer, with E = expand width channels::

        [c | z] = in_proj x     u = silu(conv c + bias)     [r | B | C] = x_proj u     delta = dt_proj r
        y = out_proj(silu(z) scan(u, delta, A = -exp(A_log), B, C, D, delta_bias))
    """

    kind = "mamba"

    def __init__(self, c: Mapping[str, Any], layer: Mapping[str, Any]):
        super().__init__()
        width, channels, states, rank = c["width"], layer["expand"] * c["width"], layer["states"], (c["width"] + 15) // 16
        self.splits = (rank, states, states)
        self.in_proj = nn.Linear(width, 2 * channels, bias=False)
        self.conv = _Conv(4, channels, bias=True)
        self.x_proj = nn.Linear(channels, sum(self.splits), bias=False)
        self.dt_proj = nn.Linear(rank, channels, bias=False)
        self.A_log = nn.Parameter(torch.empty(channels, states))
        self.D = nn.Parameter(torch.empty(channels))
        self.delta_bias = nn.Parameter(torch.empty(channels))
        self.out_proj = nn.Linear(channels, width, bias=False)

    def reset_gates(self) -> None:
        """Fresh values of what is no projection: A = -(1..states), D = 1, steps softplus(delta_bias) from 0.001 to 0.1."""
        self.A_log.copy_(torch.arange(1.0, self.A_log.shape[1] + 1).log().expand_as(self.A_log))
        self.D.fill_(1)
        step = torch.exp(torch.empty_like(self.delta_bias).uniform_(math.log(1e-3), math.log(1e-1)))
        self.delta_bias.copy_(step + torch.log(-torch.expm1(-step)))

    def mix(self, x: Tensor, first: int = 0, past: Optional[Past] = None,
            keep: bool = False) -> Tuple[Tensor, Optional[Past]]:
        """As Mixer.mix."""
        c, z = self.in_proj(x).chunk(2, -1)
        c, inputs = self.conv(c, past)
        u = F.silu(c + self.conv.bias)
        r, b, c = self.x_proj(u).split(self.splits, -1)
        y = mamba_scan(u, self.dt_proj(r), -self.A_log.float().exp(), b, c, self.D, self.delta_bias,
                       initial_state=None if past is None else past.state, return_state=keep)
        y, state = y if keep else (y, None)
        return self.out_proj(F.silu(z) * y), Past(state, inputs) if keep else None

    def forward(self, x: Tensor) -> Tensor:
        """x (B,N,width) gives (B,N,width)."""
        return self.mix(x)[0]

    def decoding(self, past: Past, batch: int) -> Past:
        """past of whole sequences, ready for single tokens: it is already."""
        return past


def _orthogonal_features(count: int, width: int) -> Tensor:
    """(M,R): random directions, orthogonal within blocks of R, with the lengths of normal vectors."""
    blocks = [torch.linalg.qr(torch.randn(width, width))[0] for _ in range(-(-count // width))]
    return torch.cat(blocks)[:count] * torch.randn(count, width).norm(dim=1, keepdim=True)
