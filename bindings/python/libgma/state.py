"""Decoding one token at a time."""
from __future__ import annotations

from typing import Any, Optional, Tuple

from . import _call
from ._library import MIXERS, PARAM
from .functional import Array, _key_mask, is_tensor


class AttentionState:
    """The state of a causal mixer between two tokens: S and Z of every sequence and head, and the parameters prepared for
    single tokens. Its size does not grow with the sequence; the sums are compensated (10^8 steps keep a relative error
    below 1e-5).

    Args:
        mu, omega: (H,K,R).  alpha: (H,K).  logit_scale: (H).   For mixer="linear": none of them, but routing_dim and
            num_kv_heads; for "performer": features (M,R) and num_kv_heads; for "softmax": as for "linear", with scale,
            rotary_base, and window or cache_len, the number of tokens there is room for.
        batch: B, the number of sequences.  value_dim: D.  num_heads: Hq; as many as H when not given.
        initial_state: (S, Z) of what came before, (B,H,K,D) and (B,H,K), as attention(.., return_state=True) gives it;
            for "softmax" the keys and values of the tokens before, (B,H,Nk,R) and (B,H,Nk,D).

    The parameters are copied: when they change, make a new state. No gradient passes. Copies (copy.deepcopy, pickle) are
    independent of each other. One thread at a time may use a state.

    Raises ValueError and RuntimeError as attention() does.
    """

    def __init__(self, mu: Optional[Array] = None, omega: Optional[Array] = None, alpha: Optional[Array] = None, *,
                 batch: int, value_dim: int, num_heads: Optional[int] = None, num_kv_heads: Optional[int] = None,
                 routing_dim: Optional[int] = None, logit_scale: Optional[Array] = None, features: Optional[Array] = None,
                 initial_state: Optional[Tuple[Array, Array]] = None, eps: float = 1e-6, eps_sigma: float = 1e-4,
                 scale: float = 0.0, rotary_base: float = 0.0, window: int = 0, cache_len: int = 0, mixer: str = "gma"):
        if mixer not in MIXERS:
            raise ValueError(f"mixer {mixer!r} is unknown; there are: {', '.join(MIXERS)}")
        m = MIXERS[mixer]
        given = {"mu": mu, "omega": omega, "alpha": alpha, "logit_scale": logit_scale, "features": features}
        before = ("k", "v") if mixer == "softmax" else ("state_S", "state_Z")
        if initial_state is not None:
            given.update(zip(before, initial_state))
        slots = [s for s in m.inputs if s.role == PARAM or s.name in before]
        extra = [n for n, x in given.items() if x is not None and n not in {s.name for s in slots}]
        if extra:
            raise ValueError(f"{extra[0]} is unknown to mixer {mixer!r}")
        held = {s.name: _held(given[s.name], s.name) for s in slots if given.get(s.name) is not None}
        params = [s for s in slots if s.role == PARAM]
        extents = {"batch": int(batch), **_call.bind(params, [held[s.name][0].shape if s.name in held else None
                                                              for s in params])}
        extents.setdefault("kv_heads", int(num_kv_heads or num_heads or 0))
        extents.setdefault("routing_dim", int(routing_dim or 0))
        extents.update(heads=int(num_heads or extents["kv_heads"]), value_dim=int(value_dim), cache_len=int(cache_len))
        options = _call.Options(True, float(eps), float(eps_sigma), float(scale), float(rotary_base), int(window))
        self._spec = (mixer, tuple(options), tuple(extents.items()))
        self._open(None)
        lengths = {"k_len": held["k"][0].shape[2]} if "k" in held else {}
        pairs = [(m.by_name[n].number, v) for n, (_, v) in held.items()]
        self._plan(**lengths).state_init(_call.pack(pairs), len(pairs), self._buffer.address)

    def _plan(self, **lengths: int) -> _call.Plan:
        mixer, options, extents = self._spec
        return _call.plan(MIXERS[mixer], options, {**dict(extents), **lengths})

    def _open(self, data: Optional[bytes]) -> None:
        self._mixer, self._extents = self._plan(), dict(self._spec[2])
        size = self._mixer.sizes(0).state
        if size == 0:
            raise ValueError(f"mixer {self._spec[0]!r} has no state for single tokens with these options")
        self._buffer = _call.Buffer(size) if data is None else _call.Buffer.of(data)

    def __getstate__(self) -> tuple:
        return self._spec, bytes(self._buffer)

    def __setstate__(self, state: tuple) -> None:
        self._spec = state[0]
        self._open(state[1])

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return self._extents["batch"]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._buffer.size

    def step(self, q: Array, k: Array, v: Array, *, key_padding_mask: Optional[Array] = None,
             log_decay: Optional[Array] = None) -> Array:
        """One token of every sequence; the state moves on.

        Args:
            q: (B,Hq,1,R).  k: (B,H,1,R).  v: (B,H,1,D).  float32 or bfloat16.
            key_padding_mask: (B,1) bool, True = this token writes nothing.  log_decay: (B,H,1) <= 0.

        Returns:
            o: (B,Hq,1,D) in the type of v.
        """
        tensors = is_tensor(q)
        given = {"q": q, "k": k, "v": v, "key_mask": _key_mask(key_padding_mask, tensors), "log_decay": log_decay}
        held = {n: _held(x, n) for n, x in given.items() if x is not None}
        e = self._extents
        shape, like = (e["batch"], e["heads"], 1, e["value_dim"]), held["v"][0]
        o, view = _held(_empty(shape, like), "o")
        slots = self._mixer.mixer.by_name
        pairs = [(slots[n].number, h[1]) for n, h in held.items()] + [(slots["o"].number, view)]
        self._mixer.step(_call.pack(pairs), len(pairs), self._buffer.address, _threads(q))
        return o

    def export(self, like: Optional[Array] = None) -> Tuple[Array, Array]:
        """(S, Z): (B,H,K,D) and (B,H,K), float32 tensors; arrays when `like` is an array or PyTorch is not there."""
        out = []
        if len(self._mixer.mixer.outputs) != 3:
            raise ValueError(f"the state of mixer {self._spec[0]!r} is no pair (S, Z)")
        for slot in self._mixer.mixer.outputs[1:]:
            shape = _call.shape_of(slot.dims, self._extents, self._mixer.components)
            out.append((slot.number, *_held(_empty(shape, like, real=True), slot.name)))
        self._mixer.state_export(self._buffer.address, _call.pack([(n, v) for n, _, v in out]), len(out))
        return out[0][1], out[1][1]


def _held(x: Any, name: str) -> tuple:
    """(what keeps the memory, its view); parameters, sums and decays become float32, rows contiguous."""
    exact = name in ("mu", "omega", "alpha", "logit_scale", "features", "log_decay")
    if is_tensor(x):
        import torch
        from . import _torch
        x = x.detach()
        return _torch.view(x.to(torch.float32) if exact else x, name, True)
    import numpy as np
    from . import _numpy
    x = np.asarray(x)
    return _numpy.view(x.astype(np.float32, copy=False) if exact else x, name, True)


def _empty(shape: tuple, like: Any, real: bool = False) -> Any:
    try:
        import torch
        if like is None or isinstance(like, torch.Tensor):
            return torch.empty(shape, dtype=torch.float32 if real else like.dtype)
    except ModuleNotFoundError:
        pass
    import numpy as np
    return np.empty(shape, np.float32 if real else like.dtype)


def _threads(x: Any) -> int:
    if is_tensor(x):
        import torch
        return torch.get_num_threads()
    return 0
