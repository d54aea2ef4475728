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
from .layer_mixers import Mamba, Mixer, Past

# The settings of a model and their defaults, as in include/gma/lm.h (gma_lm_config); 0 is filled in by resolve().
# "auto" is settled by layers.resolve().
DEFAULTS: Dict[str, Any] = {
    "layers": 4, "mixer": "auto", "width": 192, "heads": 3, "kv_heads": 0, "routing_dim": 0, "value_dim": 0,
    "components": "auto", "context": 256, "vocab": 256, "tokenizer": "bytes", "mlp_width": 0, "mlp": "gelu", "norm": "rms",
    "positions": "auto", "tied": True, "logit_scale": "auto", "forget_gate": "auto", "output_gate": "auto", "conv": "auto",
    "states": "auto", "expand": "auto", "window": 0, "logit_scale_init": 0.1, "dropout": 0.0, "rotary_base": 10000.0, "norm_eps": 1e-5, "eps": 1e-6, "eps_sigma": 1e-4}
# What models of other tasks set (gma train --task): a language model has these, and others are refused.
_OF_LANGUAGE_MODELS = {"task": "lm", "causal": True, "pooling": "mean", "classes": 0, "encoder_layers": 0, "cross_mixer": "auto"}
_CHOICES = {"mlp": ("gelu", "swiglu"), "norm": ("rms", "layer"), "positions": ("none", "learned", "rotary", "auto")}


def resolve(settings: Mapping[str, Any]) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """All settings, with what is 0 or "auto" filled in; and the mixer and options of each layer. Raises ValueError naming the
    setting."""
    for name, value in settings.items():
        if name in _OF_LANGUAGE_MODELS:
            if value not in (_OF_LANGUAGE_MODELS[name], "auto"):
                raise ValueError(f"{name} is {value!r}; this package has language models, where it is "
                                 f"{_OF_LANGUAGE_MODELS[name]!r}")
        elif name not in DEFAULTS and value:  # one that is off asks for nothing
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
        self.norm1, self.mixer = _norm(c), (Mamba if layer["mixer"] == "mamba" else Mixer)(c, layer)
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
                block.mixer.reset_gates()

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
