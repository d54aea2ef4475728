"""The mixers as PyTorch operators, torch.ops.libgma.<mixer> and <mixer>_backward, made from the library's slot tables.

    <mixer>(inputs and parameters.., options.., want_state, save) -> (o, out_S, out_Z, saved)
    <mixer>_backward(inputs and parameters.., o, saved, grad_o, grad_out_S, grad_out_Z, needs, options..)
        -> the gradients of those with needs[i], in order

options are those of _call.Options.

Outputs that nobody asked for have no element. saved is what the library's forward leaves for its backward; without it
(save = False, or dtype float64) backward computes the forward again, or the definition in double.
"""
from __future__ import annotations

from typing import Any, Optional, Sequence

import torch

from . import _call
from ._library import BF16, BOOL, F32, F64, I32, I64, MIXERS, U8, Mixer, Slot

Tensor = torch.Tensor

_CODES = {torch.float32: F32, torch.bfloat16: BF16, torch.float64: F64, torch.bool: BOOL, torch.uint8: U8,
          torch.int32: I32, torch.int64: I64}


def view(t: Tensor, name: str, width: bool) -> tuple[Tensor, _call.View]:
    """The tensor whose memory is used (one copy where a row is not contiguous) and its view."""
    code = _CODES.get(t.dtype)
    if code is None:
        raise ValueError(f"{name} is {str(t.dtype)[6:]}; it must be float32 or bfloat16, or float64 for the definition in "
                         "double")
    shape, strides = t.shape, t.stride()
    if width and shape and shape[-1] > 1 and strides[-1] != 1:
        t = t.contiguous()
        strides = t.stride()
    return t, (t.data_ptr(), code, shape, strides)


def _like(t: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Empty (B, H, N, width) that lies in memory as t does: tokens before heads, or heads before tokens. So what a
    module makes from x by unflatten and transpose comes back without a copy."""
    b, h, n = t.shape[:3]
    inside = t.stride(1) < t.stride(2)
    strides = (n * h * width, width, h * width, 1) if inside else (h * n * width, n * width, width, 1)
    return torch.empty_strided((b, h, n, width), strides, dtype=dtype, device=t.device)


def _outputs(mixer: Mixer, x: Sequence[Optional[Tensor]], extents: dict, components: int, want_state: bool) -> list:
    q, values = x[0], x[mixer.names.index("v") if "v" in mixer.names else 0]
    double = q.dtype == torch.float64
    out = []
    for slot in mixer.outputs:
        shape = _call.shape_of(slot.dims, extents, components) if slot.required or want_state else (0,)
        if slot.low_precision and len(shape) == 4:
            out.append(_like(q, shape[-1], values.dtype))
        else:
            out.append(q.new_empty(shape, dtype=torch.float64 if double else values.dtype if slot.low_precision
                                   else torch.float32))
    return out


def _bind(mixer: Mixer, x: Sequence[Optional[Tensor]]) -> dict:
    return _call.bind(mixer.inputs, [None if t is None else t.shape for t in x])


def _input_pairs(slots: Sequence[Slot], x: Sequence[Optional[Tensor]], double: bool, keep: list) -> list:
    pairs = []
    for slot, t in zip(slots, x):
        if t is not None:
            t, v = view(t, slot.name, slot.low_precision and not double)
            keep.append(t)
            pairs.append((slot.number, v))
    return pairs


def _forward(mixer: Mixer, x: Sequence[Optional[Tensor]], options: Sequence, want_state: bool, save: bool) -> tuple:
    extents = _bind(mixer, x)
    plan = _call.plan(mixer, options, extents)
    double = x[0].dtype == torch.float64
    keep: list = []
    pairs = _input_pairs(mixer.inputs, x, double, keep)
    out = _outputs(mixer, x, extents, plan.components, want_state)
    for slot, t in zip(mixer.outputs, out):
        if slot.required or want_state:
            pairs.append((slot.number, view(t, slot.name, False)[1]))
    args = _call.pack(pairs)
    if double:
        saved = x[0].new_empty(0, dtype=torch.uint8)
        plan.naive_forward(args, len(pairs))
    else:
        threads = torch.get_num_threads()
        saved = x[0].new_zeros(plan.sizes(threads).saved if save else 0, dtype=torch.uint8)  # gaps too
        plan.forward(args, len(pairs), threads, saved.data_ptr())
    return (*out, saved)


def _forward_fake(mixer: Mixer, x: Sequence[Optional[Tensor]], options: Sequence, want_state: bool, save: bool) -> tuple:
    extents = _bind(mixer, x)
    out = _outputs(mixer, x, extents, _call.components(extents), want_state)
    if not save or x[0].dtype == torch.float64:
        size: Any = 0
    elif any(isinstance(n, torch.SymInt) for n in extents.values()):
        size = torch.library.get_ctx().new_dynamic_size()
    else:
        size = _call.plan(mixer, options, extents).sizes(1).saved
    return (*out, x[0].new_empty(size, dtype=torch.uint8))


def _wanted(mixer: Mixer, needs: Sequence[bool]) -> list:
    return [i for i, slot in enumerate(mixer.inputs) if needs[i] and slot.has_grad]


def _gradients(mixer: Mixer, x: Sequence[Optional[Tensor]], needs: Sequence[bool]) -> list[Tensor]:
    out = []
    for i in _wanted(mixer, needs):
        t = x[i]
        out.append(_like(t, t.shape[-1], t.dtype) if mixer.inputs[i].low_precision and t.dim() == 4
                   else torch.empty(t.shape, dtype=t.dtype, device=t.device))
    return out


def _backward(mixer: Mixer, x: Sequence[Optional[Tensor]], o: Tensor, saved: Tensor, grads: Sequence[Optional[Tensor]],
              needs: Sequence[bool], options: Sequence) -> list[Tensor]:
    extents = _bind(mixer, x)
    plan = _call.plan(mixer, options, extents)
    double = x[0].dtype == torch.float64
    threads = torch.get_num_threads()
    if not double:
        if saved.numel() == 0 and plan.sizes(threads).saved:
            o, *_, saved = _forward(mixer, x, options, False, True)
        if saved.data_ptr() % 64:
            saved = saved.clone()
    keep: list = []
    pairs = _input_pairs(mixer.inputs, x, double, keep)
    out = _gradients(mixer, x, needs)
    for slot, g in zip(mixer.outputs, grads):
        if slot.required:
            o, v = view(o, slot.name, not double)
            pairs.append((slot.number, v))
        if g is not None:
            g, v = view(g, "grad_" + slot.name, slot.low_precision and not double)
            keep.append(g)
            pairs.append((_call.grad(slot), v))
    for i, g in zip(_wanted(mixer, needs), out):
        pairs.append((_call.grad(mixer.inputs[i]), view(g, "grad_" + mixer.inputs[i].name, False)[1]))
    args = _call.pack(pairs)
    if double:
        plan.naive_backward(args, len(pairs))
    else:
        plan.backward(args, len(pairs), threads, saved.data_ptr())
    return out


_SECOND = ("libgma: the second derivative of {} is not implemented; a gradient that was computed with create_graph=True "
           "cannot be differentiated again")


_LIBRARY = torch.library.Library("libgma", "FRAGMENT")


def _register(mixer: Mixer) -> None:
    n, count, more = len(mixer.inputs), len(mixer.outputs), len(_call.Options._fields)
    inputs = ", ".join(f"Tensor{'' if s.required else '?'} {s.name}" for s in mixer.inputs)
    options = "bool causal, float eps, float eps_sigma, float scale, float rotary_base, int window"
    outputs = ", ".join(["Tensor"] * (count + 1))
    grads = ", ".join(f"Tensor? grad_{s.name}" for s in mixer.outputs)
    name, back = f"libgma::{mixer.name}", f"libgma::{mixer.name}_backward"
    tags = (torch.Tag.pt2_compliant_tag,)
    torch.library.define(name, f"({inputs}, {options}, bool want_state, bool save) -> ({outputs})", tags=tags)
    torch.library.define(back, f"({inputs}, Tensor o, Tensor saved, {grads}, bool[] needs, {options}) -> Tensor[]",
                         tags=tags)

    @torch.library.impl(name, "cpu")
    def forward(*a):
        return _forward(mixer, a[:n], a[n:n + more], *a[n + more:])

    @torch.library.register_fake(name)
    def forward_fake(*a):
        return _forward_fake(mixer, a[:n], a[n:n + more], *a[n + more:])

    @torch.library.impl(back, "cpu")
    def backward(*a):
        return _backward(mixer, a[:n], a[n], a[n + 1], a[n + 2:n + 2 + count], a[n + 2 + count],
                         a[n + 3 + count:])

    @torch.library.register_fake(back)
    def backward_fake(*a):
        return _gradients(mixer, a[:n], a[n + 2 + count])

    # An autograd.Function of our own in the place of torch.library.register_autograd, whose share of a call grows with the
    # square of the number of arguments (half a millisecond here).
    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *a):
            with torch._C._AutoDispatchBelowAutograd():
                out = op(*a)
            ctx.options, ctx.want_state = a[n:n + more], a[n + more]
            ctx.save_for_backward(*a[:n], out[0], out[-1])
            ctx.mark_non_differentiable(out[-1])
            ctx.set_materialize_grads(False)
            return out

        @staticmethod
        def backward(ctx, *up):
            *x, o, saved = ctx.saved_tensors
            needs = [need and slot.has_grad for need, slot in zip(ctx.needs_input_grad, mixer.inputs)]
            up = [g if slot.required or ctx.want_state else None for slot, g in zip(mixer.outputs, up)]
            if any(g is not None for g in up[1:]):  # the parts of a state go together
                extents = _bind(mixer, x)
                up[1:] = [x[0].new_zeros(_call.shape_of(s.dims, extents, _call.components(extents)),
                                         dtype=torch.float64 if x[0].dtype == torch.float64 else torch.float32)
                          if g is None else g for s, g in zip(mixer.outputs[1:], up[1:])]
            result: list = [None] * (n + more + 2)
            if any(needs) and any(g is not None for g in up):
                for i, g in zip(_wanted(mixer, needs), op_backward(*x, o, saved, *up, needs, *ctx.options)):
                    result[i] = g
            return tuple(result)

    op = getattr(torch.ops.libgma, mixer.name).default
    op_backward = getattr(torch.ops.libgma, mixer.name + "_backward").default

    def autograd(*a):
        if torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in a[:n]]):
            return Differentiable.apply(*a)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*a)

    _LIBRARY.impl(mixer.name, autograd, "Autograd")

    def refuse(ctx, *up):
        raise RuntimeError(_SECOND.format(mixer.name))

    torch.library.register_autograd(back, refuse)


for _mixer in MIXERS.values():
    if _call.supported(_mixer):
        _register(_mixer)

torch.library.define("libgma::responsibilities", "(Tensor x, Tensor mu, Tensor omega, Tensor alpha, Tensor? logit_scale, "
                     "float eps_sigma) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


@torch.library.impl("libgma::responsibilities", "cpu")
def _responsibilities(x, mu, omega, alpha, logit_scale, eps_sigma):
    double = x.dtype == torch.float64
    gamma = _responsibilities_fake(x, mu, omega, alpha, logit_scale, eps_sigma)
    names = ("x", "mu", "omega", "alpha", "logit_scale", "gamma")
    held = [None if t is None else view(t, name, name == "x" and not double)
            for t, name in zip((x, mu, omega, alpha, logit_scale, gamma), names)]
    _call.responsibilities([None if h is None else h[1] for h in held], eps_sigma, double, torch.get_num_threads())
    return gamma


@torch.library.register_fake("libgma::responsibilities")
def _responsibilities_fake(x, mu, omega, alpha, logit_scale, eps_sigma):
    if mu.dim() != 3:
        raise ValueError(f"mu has shape {tuple(mu.shape)}; it must be (H,K,R)")
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.empty((*x.shape[:-1], mu.shape[1]), dtype=dtype, device=x.device)


# ---- What users call ---------------------------------------------------------------------------------------------

# (name, differentiable float, low precision) of every input; plain tuples, which torch.compile sees through.
_ROWS = {m.name: tuple((s.name, s.floating, s.low_precision) for s in m.inputs) for m in MIXERS.values()}


def _cast(t: Any, name: str, low_precision: bool, double: bool) -> Tensor:
    if not isinstance(t, Tensor):
        raise ValueError(f"{name} is a {type(t).__name__}; it must be a tensor, as the others are")
    if double:
        return t.to(torch.float64)
    if not low_precision:
        return t.to(torch.float32)
    if torch.is_autocast_enabled("cpu") and t.dtype != torch.float64:
        low = torch.get_autocast_dtype("cpu")
        return t.to(low if low == torch.bfloat16 else torch.float32)
    return t


def mix(mixer: str, given: dict, options: tuple, want_state: bool, naive: bool) -> tuple:
    """The outputs of one call; those of the state have no element unless they are wanted."""
    rows = _ROWS[mixer]
    double = naive or given[rows[0][0]].dtype == torch.float64
    x = []
    for name, floating, low in rows:
        t = given.get(name)
        x.append(_cast(t, name, low, double) if t is not None and floating else t)
    save = torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in x])
    return getattr(torch.ops.libgma, mixer)(*x, *options, want_state, save)[:-1]


def responsibilities(x: Tensor, mu: Tensor, omega: Tensor, alpha: Tensor, logit_scale: Optional[Tensor],
                     eps_sigma: float) -> Tensor:
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    mu, omega, alpha = mu.to(real), omega.to(real), alpha.to(real)
    logit_scale = None if logit_scale is None else logit_scale.to(real)
    tensors = (x, mu, omega, alpha) if logit_scale is None else (x, mu, omega, alpha, logit_scale)
    if not (torch.is_grad_enabled() and any([t.requires_grad for t in tensors])):
        return torch.ops.libgma.responsibilities(x, mu, omega, alpha, logit_scale, float(eps_sigma))
    # With a gradient: queries that see no key and a state S = (1 + eps) I, Z = 1 give
    # gamma S / (gamma . 1 + eps) = gamma, and the operator's own backward.
    if mu.dim() != 3 or x.dim() != 4:
        raise ValueError(f"x has shape {tuple(x.shape)} and mu {tuple(mu.shape)}; they must be (B,Hx,N,R) and (H,K,R)")
    (heads, k, r), batch, eps = mu.shape, x.shape[0], 1e-6
    state = ((1 + eps) * torch.eye(k, dtype=real)).expand(batch, heads, k, k)
    given = {"q": x.to(real), "k": x.new_empty(batch, heads, 0, r, dtype=real),
             "v": x.new_empty(batch, heads, 0, k, dtype=real), "mu": mu, "omega": omega, "alpha": alpha,
             "logit_scale": logit_scale, "state_S": state, "state_Z": torch.ones(batch, heads, k, dtype=real)}
    return mix("gma", given, (False, eps, float(eps_sigma), 0.0, 0.0, 0), False, False)[0]
