"""The causal language models of libgma_lm as PyTorch modules, parameter for parameter.

    x = embed[token] (+ positions[t])
    for each block:   x += out_proj( gate( mixer( norm(x) ) ) )      x += mlp( norm(x) )
    logits = norm(x) head^T
"""
from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checkpoint, layers
from ._library import MIXERS
from .functional import _mix, responsibilities
from .module import Heads
from .state import AttentionState

# The settings of a model and their defaults, as in include/gma/lm.h (gma_lm_config); 0 is filled in by resolve().
# "auto" is settled by layers.resolve().
DEFAULTS: Dict[str, Any] = {
    "layers": 4, "mixer": "auto", "width": 192, "heads": 3, "kv_heads": 0, "routing_dim": 0, "value_dim": 0,
    "components": "auto", "context": 256, "vocab": 256, "tokenizer": "bytes", "mlp_width": 0, "mlp": "gelu", "norm": "rms",
    "positions": "auto", "tied": True, "logit_scale": "auto", "forget_gate": "auto", "output_gate": "auto", "conv": "auto",
    "window": 0, "logit_scale_init": 0.3, "dropout": 0.0, "rotary_base": 10000.0, "norm_eps": 1e-5, "eps": 1e-6, "eps_sigma": 1e-4}
_CHOICES = {"mlp": ("gelu", "swiglu"), "norm": ("rms", "layer"), "positions": ("none", "learned", "rotary", "auto")}


def resolve(settings: Mapping[str, Any]) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """All settings, with what is 0 or "auto" filled in; and the mixer and options of each layer. Raises ValueError naming the
    setting."""
    for name, value in settings.items():
        if name not in DEFAULTS and value:  # one that is off asks for nothing
            raise ValueError(f"the setting {name!r} ({value!r}) is unknown to this version of the package")
    c = {**DEFAULTS, **settings}
    for name, allowed in _CHOICES.items():
        if c[name] not in allowed:
            raise ValueError(f"{name} is {c[name]!r}; this package has {', '.join(allowed)}")
    c["kv_heads"] = c["kv_heads"] or c["heads"]
    for name in ("routing_dim", "value_dim"):
        if not c[name]:
            if c["width"] % c["heads"]:
                raise ValueError(f"heads {c['heads']} does not divide width {c['width']}; give {name}")
            c[name] = c["width"] // c["heads"]
    if not c["mlp_width"]:
        c["mlp_width"] = -(-8 * c["width"] // 96) * 32 if c["mlp"] == "swiglu" else 4 * c["width"]
    each = layers.resolve(c)
    if any(x["rotary"] for x in each) and c["routing_dim"] % 2:
        raise ValueError(f"routing_dim is {c['routing_dim']}; rotary positions need an even one")
    return c, each


class _Conv(nn.Module):
    """y_t = sum_j weight[j] x_{t-j}, channel by channel."""

    def __init__(self, taps: int, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, channels))
        nn.init.ones_(self.weight[0])

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """x (B,N,C), before (B,taps-1,C): the inputs that came before."""
        taps, n = self.weight.shape[0], x.shape[1]
        x = torch.cat((before, x), 1)
        return sum(self.weight[j] * x[:, taps - 1 - j:taps - 1 - j + n] for j in range(taps))


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

    def logit_scale(self) -> Optional[Tensor]:
        """(H), or None."""
        return None if self.log_logit_scale is None else self.log_logit_scale.float().exp()

    def heads(self, x: Tensor, first: int = 0, past: Optional[Past] = None) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """What enters the operator for x (B,N,E), whose first token is number `first`: q, k, v; and the inputs of the
        convolution that the next tokens need."""
        qkv, inputs = torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), -1), None
        if self.conv is not None:
            back = self.conv.weight.shape[0] - 1
            before = qkv.new_zeros(x.shape[0], back, qkv.shape[-1]) if past is None else past.inputs
            inputs = torch.cat((before, qkv), 1)[:, x.shape[1]:]
            qkv = self.conv(qkv, before)
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


def _orthogonal_features(count: int, width: int) -> Tensor:
    """(M,R): random directions, orthogonal within blocks of R, with the lengths of normal vectors."""
    blocks = [torch.linalg.qr(torch.randn(width, width))[0] for _ in range(-(-count // width))]
    return torch.cat(blocks)[:count] * torch.randn(count, width).norm(dim=1, keepdim=True)


class _MLP(nn.Module):
    def __init__(self, c: Mapping[str, Any]):
        super().__init__()
        self.swiglu = c["mlp"] == "swiglu"
        self.up = nn.Linear(c["width"], c["mlp_width"] * (2 if self.swiglu else 1), bias=False)
        self.down = nn.Linear(c["mlp_width"], c["width"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        if not self.swiglu:
            return self.down(F.gelu(h, approximate="tanh"))
        a, b = h.chunk(2, -1)
        return self.down(F.silu(a) * b)


def _norm(c: Mapping[str, Any]) -> nn.Module:
    kind = nn.RMSNorm if c["norm"] == "rms" else nn.LayerNorm
    return kind(c["width"], eps=c["norm_eps"])


class Block(nn.Module):
    """One layer: mixer and MLP, each after a norm and added to the stream."""

    def __init__(self, c: Mapping[str, Any], layer: Mapping[str, Any]):
        super().__init__()
        self.norm1, self.mixer = _norm(c), Mixer(c, layer)
        self.norm2, self.mlp = _norm(c), _MLP(c)
        self.drop = nn.Dropout(c["dropout"])

    def forward(self, x: Tensor, first: int = 0, past: Optional[Past] = None,
                keep: bool = False) -> Tuple[Tensor, Optional[Past]]:
        y, past = self.mixer.mix(self.norm1(x), first, past, keep)
        x = x + self.drop(y)
        return x + self.drop(self.mlp(self.norm2(x))), past


class Progress(NamedTuple):
    """Sequences in progress: how many tokens were read, and what each layer keeps of them."""

    position: int
    layers: List[Past]


class LanguageModel(nn.Module):
    """A causal language model with Gaussian Mixture Attention, or another mixer in some layers; the one that `gma train` trains.

    Args:
        settings: names and values as in the "model" part of a checkpoint's config.json; keywords count more. Missing ones
            take the defaults of language_model.DEFAULTS.

    Fresh parameters are drawn as `gma train` draws them (not the same numbers). Raises ValueError naming the setting.
    """

    def __init__(self, settings: Optional[Mapping[str, Any]] = None, **more: Any):
        super().__init__()
        self.settings, each = resolve({**(settings or {}), **more})
        c = self.settings
        self.embed = nn.Embedding(c["vocab"], c["width"])
        self.positions = nn.Embedding(c["context"], c["width"]) if c["positions"] == "learned" else None
        self.drop = nn.Dropout(c["dropout"])
        self.blocks = nn.ModuleList(Block(c, layer) for layer in each)
        self.norm = _norm(c)
        self.head = None if c["tied"] else nn.Linear(c["width"], c["vocab"], bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh values."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features ** -0.5)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=0.02)
        with torch.no_grad():
            for block in self.blocks:
                for projection in (block.mixer.out_proj, block.mlp.down):
                    projection.weight.mul_((2 * len(self.blocks)) ** -0.5)
                if block.mixer.forget_proj is not None:
                    bias = block.mixer.forget_proj.bias
                    bias.copy_(torch.linspace(3, 7, len(bias)) if len(bias) > 1 else torch.tensor([5.0]))

    def _run(self, tokens: Tensor, past: Optional[Progress], keep: bool) -> Tuple[Tensor, Optional[Progress]]:
        if tokens.dim() != 2:
            raise ValueError(f"tokens has shape {tuple(tokens.shape)}; it must be (B,N)")
        first, n = (0 if past is None else past.position), tokens.shape[1]
        x = self.embed(tokens)
        if self.positions is not None:
            if first + n > self.settings["context"]:
                raise ValueError(f"the model has learned positions for {self.settings['context']} tokens and cannot go "
                                 "further")
            x = x + self.positions.weight[first:first + n]
        x = self.drop(x)
        kept_by = []
        for i, block in enumerate(self.blocks):
            x, kept = block(x, first, None if past is None else past.layers[i], keep)
            kept_by.append(kept)
        return self.norm(x), Progress(first + n, kept_by) if keep else None

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(x, (self.embed if self.head is None else self.head).weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B,N,vocab) of the token after each of tokens (B,N), int64.  Raises ValueError for more tokens than
        learned positions, IndexError for a token outside the vocabulary."""
        return self._logits(self._run(tokens, None, False)[0])

    @torch.no_grad()
    def prefill(self, tokens: Tensor) -> Tuple[Tensor, Progress]:
        """Read tokens (B,N), N >= 1: the logits (B,vocab) of the next one, and the state for step()."""
        x, past = self._run(tokens, None, True)
        ready = [b.mixer.decoding(kept, tokens.shape[0]) for b, kept in zip(self.blocks, past.layers)]
        return self._logits(x[:, -1]), Progress(past.position, ready)

    @torch.no_grad()
    def step(self, tokens: Tensor, past: Progress) -> Tuple[Tensor, Progress]:
        """One more token of each sequence, (B): the logits (B,vocab) of the next one, and the state after it (the mixers'
        sums in `past` move on, so it is not to be used again). Time and memory do not depend on how many came before."""
        x, past = self._run(tokens[:, None], past, True)
        return self._logits(x[:, -1]), past

    @torch.no_grad()
    def generate(self, prompt: Union[str, bytes, Tensor], max_new_tokens: int, *, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, generator: Optional[torch.Generator] = None) -> Union[str, Tensor]:
        """Continue a text, or sequences of tokens.

        Args:
            prompt: text for a model that reads bytes (an empty one starts from a newline), or tokens (B,N), N >= 1.
            temperature: > 0; 0 takes the most likely token each time.
            top_k: only the k most likely, 0 = all.  top_p: the most likely ones that together reach p.

        Returns:
            The text that follows the prompt, or tokens (B, N + max_new_tokens) with the prompt.

        Raises:
            ValueError: an option out of range, text for a model that does not read bytes, an empty tensor.
        """
        if temperature < 0 or top_k < 0 or not 0 < top_p <= 1 or max_new_tokens < 0:
            raise ValueError("temperature, top_k and max_new_tokens must be >= 0, and top_p in (0, 1]")
        text = not isinstance(prompt, Tensor)
        if text:
            if self.settings["tokenizer"] != "bytes":
                raise ValueError("the model reads token ids, not text; give a tensor")
            data = prompt.encode() if isinstance(prompt, str) else prompt
            prompt = torch.tensor([list(data or b"\n")])
        if prompt.dim() != 2 or prompt.shape[1] == 0:
            raise ValueError(f"prompt has shape {tuple(prompt.shape)}; it must be (B,N) with N >= 1")
        training = self.training
        self.eval()
        try:
            tokens = [prompt]
            logits, past = self.prefill(prompt)
            for i in range(max_new_tokens):
                tokens.append(_sample(logits, temperature, top_k, top_p, generator))
                if i + 1 < max_new_tokens:
                    logits, past = self.step(tokens[-1][:, 0], past)
        finally:
            self.train(training)
        out = torch.cat(tokens, 1)
        return bytes(out[0, prompt.shape[1]:].tolist()).decode(errors="replace") if text else out

    def save_pretrained(self, path: str, dtype: torch.dtype = torch.float32) -> None:
        """Write a checkpoint folder that load_pretrained() and the program `gma` read; dtype float32 or bfloat16."""
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"dtype is {dtype}; a model is stored as float32 or bfloat16")
        checkpoint.write(path, self.settings, {name: t.to(dtype) for name, t in self.state_dict().items()})


def _sample(logits: Tensor, temperature: float, top_k: int, top_p: float, generator: Optional[torch.Generator]) -> Tensor:
    """One token a row, (B,1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    values, order = (logits.float() / temperature).sort(-1, descending=True)
    if top_k:
        values[:, top_k:] = -math.inf
    p = values.softmax(-1)
    p = p * (p.cumsum(-1) - p < top_p)  # whatever is needed to reach top_p, at least the first
    return order.gather(-1, torch.multinomial(p, 1, generator=generator))


def load_pretrained(path: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A model that `gma train` or LanguageModel.save_pretrained() wrote, in evaluation mode.

    Args:
        path: a checkpoint folder (config.json, model.safetensors), or the folder of a training run (its best/ checkpoint,
            or last/ when there is none).
        dtype: of the parameters.

    Raises:
        FileNotFoundError: no model there.
        ValueError: a malformed file; a tensor that is missing, left over, wrongly shaped or not finite, by name.
    """
    settings, tensors = checkpoint.read(path)
    with torch.device("meta"):
        model = LanguageModel(settings)
    expected = model.state_dict()
    for name, t in expected.items():
        if name not in tensors:
            raise ValueError(f"{path}: tensor {name} is missing")
        if tensors[name].shape != t.shape:
            raise ValueError(f"{path}: tensor {name} has shape {tuple(tensors[name].shape)}, the configuration says "
                             f"{tuple(t.shape)}")
    extra = sorted(set(tensors) - set(expected))
    if extra:
        raise ValueError(f"{path}: tensor {extra[0]} is not part of the model that the configuration describes")
    model.load_state_dict({name: t.to(dtype) for name, t in tensors.items()}, assign=True)
    return model.eval()
