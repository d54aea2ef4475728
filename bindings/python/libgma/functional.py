"""The operators as functions of PyTorch tensors or NumPy arrays.

Shapes: B batch, Hq query heads, H key heads (Hq = g H, query head h uses key head h / g), Nq and Nk tokens,
K components, R routing width, D value width, G packed sequences.

Types: q, k, v float32 or bfloat16, in any mixture and with any strides; nothing is copied as long as the last dimension is
contiguous, and one copy is made otherwise. Parameters, states, log_decay and logit_scale count in float32 and may come in
any floating type. When q is float64, everything is, and the definition in double is computed: slow, on one thread,
for checks. PyTorch tensors have gradients (once: there are no second derivatives); arrays give arrays.

Errors: ValueError for an argument of wrong shape, type or value, RuntimeError for everything else, with the library's
message, which names the argument.
"""
from __future__ import annotations

import sys
from typing import Any, Optional, Tuple

from . import _call
from ._library import MIXERS

Array = Any  # torch.Tensor or numpy.ndarray


def is_tensor(x: Any) -> bool:
    """x is a PyTorch tensor; PyTorch need not be there for that to be asked."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _key_mask(padding: Any, tensors: bool) -> Any:
    """The library's mask, True = the key counts, from PyTorch's, True = padding."""
    if padding is None:
        return None
    if not hasattr(padding, "dtype") or is_tensor(padding) != tensors:
        raise ValueError("key_padding_mask must be what q is, a tensor or an array")
    if str(padding.dtype) not in ("bool", "torch.bool"):
        raise ValueError(f"key_padding_mask is {padding.dtype}; it must be bool, True = padding")
    return ~padding


def _mix(mixer: str, first: Array, given: dict, key_padding_mask: Any, initial_state: Any, return_state: bool,
         naive: bool = False, causal: bool = False, eps: float = 1e-6, eps_sigma: float = 1e-4, scale: float = 0.0,
         rotary_base: float = 0.0, window: int = 0) -> Any:
    if mixer not in MIXERS:
        raise RuntimeError(f"the library has no mixer {mixer!r}; there are: {', '.join(MIXERS)}")
    m, tensors = MIXERS[mixer], is_tensor(first)
    given[m.names[0]] = first
    given["key_mask"] = _key_mask(key_padding_mask, tensors)
    if initial_state is not None:
        names = [name for name in m.names if name.startswith("state_")]
        parts = initial_state if isinstance(initial_state, (tuple, list)) else (initial_state,)
        if len(parts) != len(names):
            raise ValueError(f"initial_state must be ({', '.join(names)})")
        given.update(zip(names, parts))
    options = (bool(causal), float(eps), float(eps_sigma), float(scale), float(rotary_base), int(window))
    if tensors:
        from . import _torch
        o, *state = _torch.mix(mixer, given, options, bool(return_state), naive)
    else:
        from . import _numpy
        o, *state = _numpy.forward(m, given, options, bool(return_state), naive)
    return (o, state[0] if len(state) == 1 else tuple(state)) if return_state else o


def attention(q: Array, k: Array, v: Array, mu: Array, omega: Array, alpha: Array, *, is_causal: bool = False,
              key_padding_mask: Optional[Array] = None, cu_seqlens: Optional[Array] = None,
              log_decay: Optional[Array] = None, logit_scale: Optional[Array] = None,
              initial_state: Optional[Tuple[Array, Array]] = None, return_state: bool = False, eps: float = 1e-6,
              eps_sigma: float = 1e-4) -> Any:
    """Gaussian Mixture Attention (Huang & Raza 2026, arXiv 2606.18283), in time and memory linear in the number of tokens.

    Per head, with sigma2 = softplus(omega) + eps_sigma and pi = softmax(alpha)::

        gamma(x)_k = pi_k N(x | mu_k, diag sigma2_k) / sum_l pi_l N(x | mu_l, diag sigma2_l)
        o_i        = gamma(q_i) S / (gamma(q_i) . Z + eps)      S = sum_j gamma(k_j) v_j^T, Z = sum_j gamma(k_j)

    Args:
        q: (B,Hq,Nq,R).  k: (B,H,Nk,R).  v: (B,H,Nk,D).
        mu, omega: (H,K,R), means and unconstrained variances.  alpha: (H,K), unconstrained weights; -inf removes a component.
        is_causal: sums run over the keys that a query may see. Query i sees keys j <= i + Nk - Nq: the LAST query sees all
            keys, as if the first Nk - Nq had been streamed before. (PyTorch's is_causal aligns at the start instead. The
            two agree for Nq = Nk.)
        key_padding_mask: (B,Nk) bool, True = padding, as in nn.MultiheadAttention; a padded key writes nothing. A query
            that sees no key gives exactly 0.
        cu_seqlens: (G+1) int32 or int64, 0 = first, rising, Nk = last: G sequences packed into one row (B = 1) that
            never mix.
        log_decay: (B,H,Nk) <= 0, causal only: S <- exp(log_decay_t) S + gamma(k_t) v_t^T, and Z likewise.
        logit_scale: (H) > 0: gamma ~ (pi N)^scale.
        initial_state: (S, Z), (B,H,K,D) and (B,H,K), added to every prefix (bidirectional: to the total); packed: G in the
            place of B.
        return_state: return (o, (S, Z)) with the state after the last key, float32.
        eps, eps_sigma: > 0.

    Returns:
        o: (B,Hq,Nq,D) in the type of v, or (o, (S, Z)).

    Raises:
        ValueError: a tensor is missing or has a wrong shape or type; log_decay > 0; logit_scale <= 0; cu_seqlens that does
            not rise from 0 to Nk; log_decay without is_causal.
    """
    return _mix("gma", q, dict(k=k, v=v, mu=mu, omega=omega, alpha=alpha, cu_seqlens=cu_seqlens, log_decay=log_decay,
                               logit_scale=logit_scale), key_padding_mask, initial_state, return_state, False, is_causal, eps,
                eps_sigma)


def naive_attention(q: Array, k: Array, v: Array, mu: Array, omega: Array, alpha: Array, *, is_causal: bool = False,
                    key_padding_mask: Optional[Array] = None, cu_seqlens: Optional[Array] = None,
                    log_decay: Optional[Array] = None, logit_scale: Optional[Array] = None,
                    initial_state: Optional[Tuple[Array, Array]] = None, return_state: bool = False, eps: float = 1e-6,
                    eps_sigma: float = 1e-4) -> Any:
    """attention() straight from its definition, in float64 on one thread, whatever the inputs' types: for checking.

    Arguments and errors as for attention(); the results are float64. Source: src/mixers/gma/naive.c.
    """
    return _mix("gma", q, dict(k=k, v=v, mu=mu, omega=omega, alpha=alpha, cu_seqlens=cu_seqlens, log_decay=log_decay,
                               logit_scale=logit_scale), key_padding_mask, initial_state, return_state, True, is_causal, eps,
                eps_sigma)


def responsibilities(x: Array, mu: Array, omega: Array, alpha: Array, *, logit_scale: Optional[Array] = None,
                     eps_sigma: float = 1e-4) -> Array:
    """gamma(x): through which component each token is routed.

    Args:
        x: (B,Hx,N,R), queries or keys.  mu, omega: (H,K,R).  alpha: (H,K).  logit_scale: (H).  H divides Hx.

    Returns:
        (B,Hx,N,K), rows >= 0 that sum to 1; float32, or float64 when x is.

    Raises:
        ValueError: shapes or types do not fit; logit_scale <= 0.
    """
    if is_tensor(x):
        from . import _torch
        return _torch.responsibilities(x, mu, omega, alpha, logit_scale, eps_sigma)
    from . import _numpy
    return _numpy.responsibilities(x, mu, omega, alpha, logit_scale, float(eps_sigma))


def linear_attention(q: Array, k: Array, v: Array, *, is_causal: bool = False, key_padding_mask: Optional[Array] = None,
                     cu_seqlens: Optional[Array] = None, log_decay: Optional[Array] = None,
                     initial_state: Optional[Tuple[Array, Array]] = None, return_state: bool = False,
                     eps: float = 1e-6) -> Any:
    """The Linear Transformer (Katharopoulos et al. 2020, arXiv 2006.16236): as attention(), with elu(x) + 1 in the place
    of gamma(x), so K = R and there are no parameters. Arguments, result and errors as there.
    """
    return _mix("linear", q, dict(k=k, v=v, cu_seqlens=cu_seqlens, log_decay=log_decay), key_padding_mask,
                initial_state, return_state, False, is_causal, eps)


def performer_attention(q: Array, k: Array, v: Array, features: Array, *, is_causal: bool = False,
                        key_padding_mask: Optional[Array] = None, cu_seqlens: Optional[Array] = None,
                        log_decay: Optional[Array] = None, initial_state: Optional[Tuple[Array, Array]] = None,
                        return_state: bool = False, eps: float = 1e-6) -> Any:
    """The Performer (Choromanski et al. 2021, arXiv 2009.14794): as attention(), with positive random features
    phi(x)_m = exp(w_m . y - |y|^2 / 2) / sqrt(M), y = x / R^(1/4), in the place of gamma(x).

    Args:
        features: (M,R), the w_m; fixed, without a gradient. K = M in the state.

    The other arguments, result and errors as for attention().
    """
    return _mix("performer", q, dict(k=k, v=v, features=features, cu_seqlens=cu_seqlens, log_decay=log_decay),
                key_padding_mask, initial_state, return_state, False, is_causal, eps)


def softmax_attention(q: Array, k: Array, v: Array, *, is_causal: bool = False, key_padding_mask: Optional[Array] = None,
                      cu_seqlens: Optional[Array] = None, scale: Optional[float] = None, rotary_base: float = 0.0,
                      window: int = 0) -> Array:
    """Softmax attention, tiled: o_i = sum_j softmax_j(scale q_i . k_j) v_j over the keys that query i sees.

    Args:
        scale: > 0; 1 / sqrt(R) when not given.
        rotary_base: turn q and k by their positions with this base (10000 is usual); 0 = no positions. R must be even.
        window: causal only: a query sees that many tokens, itself included; 0 = all before it.

    Shapes, alignment of is_causal, masks, types, gradients and errors as for attention(); there is no state to return.
    """
    return _mix("softmax", q, dict(k=k, v=v, cu_seqlens=cu_seqlens), key_padding_mask, None, False, False, is_causal,
                scale=0.0 if scale is None else scale, rotary_base=rotary_base, window=window)


def linformer_attention(q: Array, k: Array, v: Array, proj_k: Array, proj_v: Array, *,
                        key_padding_mask: Optional[Array] = None) -> Array:
    """The Linformer (Wang et al. 2020, arXiv 2006.04768): softmax attention over P rows, k' = proj_k k and v' = proj_v v.
    Bidirectional only.

    Args:
        proj_k, proj_v: (P,Nk), shared by the heads, or (H,P,Nk).
        key_padding_mask: a padded key counts as a row of zeros.

    The other arguments, result and errors as for attention(); there are no states.
    """
    return _mix("linformer", q, dict(k=k, v=v, proj_k=proj_k, proj_v=proj_v), key_padding_mask, None, False)


def mamba_scan(u: Array, delta: Array, A: Array, B: Array, C: Array, D: Array, delta_bias: Array, *,
               cu_seqlens: Optional[Array] = None, initial_state: Optional[Array] = None, return_state: bool = False) -> Any:
    """The selective scan of Mamba (Gu & Dao 2023, arXiv 2312.00752), for E channels with S numbers of state each::

        delta <- softplus(delta + delta_bias)    h_t = exp(delta_t A) h_(t-1) + delta_t B_t u_t    y_t = C_t . h_t + D u_t

    Args:
        u, delta: (B,N,E).  A: (E,S), negative.  B, C: (B,N,S).  D, delta_bias: (E).
        cu_seqlens: (G+1), sequences packed into one row.
        initial_state: h, (B,E,S), packed (G,E,S).  return_state: return (y, h).

    Returns:
        y: (B,N,E) in the type of u, or (y, h).

    Types, gradients and errors as for attention().
    """
    return _mix("mamba", u, dict(delta=delta, A=A, B=B, C=C, D=D, delta_bias=delta_bias, cu_seqlens=cu_seqlens), None,
                initial_state, return_state, False, True)


def mixers() -> list[str]:
    """Names of the sequence mixers that the library has and that this package can call."""
    return [name for name, mixer in MIXERS.items() if _call.supported(mixer)]
