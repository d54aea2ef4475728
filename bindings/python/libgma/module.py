"""Gaussian Mixture Attention as a PyTorch module."""
from __future__ import annotations

import math
from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .functional import attention, responsibilities
from .state import AttentionState


def head_width(width: Optional[int], name: str, embed_dim: int, num_heads: int) -> int:
    """The width of one head; embed_dim / num_heads when it is not given."""
    if width is not None:
        return width
    if embed_dim % num_heads:
        raise ValueError(f"num_heads {num_heads} does not divide embed_dim {embed_dim}; give {name}")
    return embed_dim // num_heads


class Heads(nn.Module):
    """Projections to and from heads; with num_components also mu, omega and alpha. Arguments as for
    GaussianMixtureAttention."""

    def __init__(self, embed_dim: int, num_heads: int, num_components: Optional[int], routing_dim: Optional[int], value_dim: Optional[int],
                 num_kv_heads: Optional[int], bias: bool, eps: float, eps_sigma: float, mu_std: float = 1.0, **kind: Any):
        super().__init__()
        for name, n in (("embed_dim", embed_dim), ("num_heads", num_heads), ("num_components", num_components)):
            if n is not None and n < 1:
                raise ValueError(f"{name} is {n}; it must be >= 1")
        if not 0 < mu_std < math.inf:
            raise ValueError(f"mu_std is {mu_std}; it must be > 0 and finite")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads {num_kv_heads} does not divide num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.num_components, self.eps, self.eps_sigma, self.mu_std = num_components, eps, eps_sigma, mu_std
        self.routing_dim = head_width(routing_dim, "routing_dim", embed_dim, num_heads)
        self.value_dim = head_width(value_dim, "value_dim", embed_dim, num_heads)
        self.q_proj = nn.Linear(embed_dim, num_heads * self.routing_dim, bias, **kind)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.routing_dim, bias, **kind)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.value_dim, bias, **kind)
        self.out_proj = nn.Linear(num_heads * self.value_dim, embed_dim, bias, **kind)
        if num_components is not None:
            self.mu = nn.Parameter(torch.empty(num_kv_heads, num_components, self.routing_dim, **kind))
            self.omega = nn.Parameter(torch.empty_like(self.mu))
            self.alpha = nn.Parameter(torch.empty(num_kv_heads, num_components, **kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh values."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            projection.reset_parameters()
        if self.num_components is not None:
            nn.init.normal_(self.mu, std=self.mu_std)
            nn.init.zeros_(self.omega)
            nn.init.zeros_(self.alpha)

    def split_heads(self, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Rows (B,N,heads x width) as (B,heads,N,width): views."""
        return (q.unflatten(-1, (self.num_heads, self.routing_dim)).transpose(1, 2),
                k.unflatten(-1, (self.num_kv_heads, self.routing_dim)).transpose(1, 2),
                v.unflatten(-1, (self.num_kv_heads, self.value_dim)).transpose(1, 2))


class GaussianMixtureAttention(Heads):
    """Attention through K learned Gaussians a head, for the place of nn.MultiheadAttention (batch first).

    Queries, keys and values are projected, mixed by libgma.attention() and projected back. With is_causal no position
    sees a later one, and the module can decode token by token (init_state, step).

    Args:
        embed_dim: width E of the input and the output.
        num_heads: query heads Hq.
        num_components: K, Gaussians per key head.
        routing_dim: R, width of a query or key in one head; embed_dim / num_heads when not given.
        value_dim: D, width of a value in one head; likewise.
        num_kv_heads: key heads H, a divisor of num_heads; num_heads when not given.
        is_causal: see attention() for Nq != Nk.
        bias: give the projections a bias.
        eps, eps_sigma: of the operator.
        mu_std: standard deviation of the first means. 1, the published start, routes a token to few components from the
            first step on; smaller means (0.1) share it among all at first, and so did language models learn better.

    Parameters: q_proj, k_proj, v_proj, out_proj (weights, as nn.Linear); mu, omega (H,K,R) and alpha (H,K). They start as
    published: mu from N(0, mu_std^2), omega and alpha 0.

    Source: Huang & Raza 2026, arXiv 2606.18283.
    """

    def __init__(self, embed_dim: int, num_heads: int, num_components: int, routing_dim: Optional[int] = None,
                 value_dim: Optional[int] = None, num_kv_heads: Optional[int] = None, is_causal: bool = False,
                 bias: bool = False, eps: float = 1e-6, eps_sigma: float = 1e-4, mu_std: float = 1.0,
                 device: Any = None, dtype: Optional[torch.dtype] = None):
        super().__init__(embed_dim, num_heads, num_components, routing_dim, value_dim, num_kv_heads, bias, eps, eps_sigma,
                         mu_std, device=device, dtype=dtype)
        self.is_causal = is_causal

    def extra_repr(self) -> str:
        return (f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, num_components={self.num_components}, "
                f"routing_dim={self.routing_dim}, value_dim={self.value_dim}, num_kv_heads={self.num_kv_heads}, "
                f"is_causal={self.is_causal}")

    def _heads(self, x: Tensor, context: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        return self.split_heads(self.q_proj(x), self.k_proj(context), self.v_proj(context))

    def forward(self, x: Tensor, context: Optional[Tensor] = None, *, key_padding_mask: Optional[Tensor] = None,
                cu_seqlens: Optional[Tensor] = None, state: Optional[Tuple[Tensor, Tensor]] = None,
                return_state: bool = False) -> Union[Tensor, Tuple[Tensor, Tuple[Tensor, Tensor]]]:
        """Mix whole sequences.

        Args:
            x: (B,N,E), the queries; and keys and values unless context (B,Nk,E) is given.
            key_padding_mask: (B,Nk) bool, True = padding.
            cu_seqlens: (G+1) offsets of the sequences packed into one row (B = 1).
            state: (S, Z) of what came before.  return_state: return (y, (S, Z)).

        Returns:
            y: (B,N,E), or (y, (S, Z)) with S (B,H,K,D) and Z (B,H,K) in float32. Gradients flow through both states.
        """
        for name, t in (("x", x), ("context", context)):
            if t is not None and (t.dim() != 3 or t.shape[-1] != self.embed_dim):
                raise ValueError(f"{name} has shape {tuple(t.shape)}; it must be (B,N,{self.embed_dim})")
        q, k, v = self._heads(x, x if context is None else context)
        result = attention(q, k, v, self.mu, self.omega, self.alpha, is_causal=self.is_causal,
                           key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens, initial_state=state,
                           return_state=return_state, eps=self.eps, eps_sigma=self.eps_sigma)
        o = result[0] if return_state else result
        y = self.out_proj(o.transpose(1, 2).flatten(2))
        return (y, result[1]) if return_state else y

    def responsibilities(self, x: Tensor, which: str = "q") -> Tensor:
        """Through which component each token of x (B,N,E) is routed as a query (which="q") or key ("k"): (B,Hq or H,N,K)."""
        if which not in ("q", "k"):
            raise ValueError(f"which is {which!r}; it must be 'q' or 'k'")
        heads = self._heads(x, x)[0 if which == "q" else 1]
        return responsibilities(heads, self.mu, self.omega, self.alpha, eps_sigma=self.eps_sigma)

    def init_state(self, batch: int, state: Optional[Tuple[Tensor, Tensor]] = None) -> AttentionState:
        """The state before the first token of `batch` sequences, or after what gave (S, Z); for step().

        It holds the parameters as they are now. Raises ValueError for a module that is not causal.
        """
        if not self.is_causal:
            raise ValueError("step() needs a causal module (is_causal=True); this one is bidirectional")
        return AttentionState(self.mu, self.omega, self.alpha, batch=batch, value_dim=self.value_dim,
                              num_heads=self.num_heads, initial_state=state, eps=self.eps, eps_sigma=self.eps_sigma)

    @torch.no_grad()
    def step(self, x: Tensor, state: AttentionState) -> Tensor:
        """One token of every sequence: x (B,E) or (B,1,E) gives y of the same shape; the state moves on. No gradient."""
        rows = x.unsqueeze(1) if x.dim() == 2 else x
        if rows.dim() != 3 or rows.shape[1:] != (1, self.embed_dim):
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be (B,{self.embed_dim}) or (B,1,{self.embed_dim})")
        o = state.step(*self._heads(rows, rows))
        y = self.out_proj(o.transpose(1, 2).flatten(2))
        return y.squeeze(1) if x.dim() == 2 else y
