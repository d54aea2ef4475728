"""The mixers as PyTorch operators, torch.ops.libgma.<mixer> and <mixer>_backward, made from the library's slot tables.

    <mixer>(inputs and parameters.., options.., want_state, save) -> (o, out_S, out_Z, saved)
    <mixer>_backward(inputs and parameters.., o, saved, grad_o, grad_out_S, grad_out_Z, needs, options..)
        -> the gradients of those with needs[i], in order

options are those of _call.Options.

Outputs that nobody asked for have no element. saved is what the library's forward leaves for its backward; without it
(save = 0, or dtype float64) backward computes the forward again, or the definition in double. How large saved is only the build of the library knows, so
save is the number of the build, STAMP: compiled graphs on disk, which hold sizes, are those of one build.
"""
from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional, Sequence

import torch

from . import _call
from ._library import BF16, BOOL, F32, F64, I32, I64, MIXERS, STAMP, U8, Mixer, Slot

Tensor = torch.Tensor

_CODES = {torch.float32: F32, torch.bfloat16: BF16, torch.float64: F64, torch.bool: BOOL, torch.uint8: U8,
          torch.int32: I32, torch.int64: I64}


_BAD_TYPE = "{} is {}; it must be float32 or bfloat16, or float64 for the definition in double"


def view(t: Tensor, name: str, width: bool) -> tuple[Tensor, _call.View]:
    """The tensor whose memory is used (one copy where a row is not contiguous) and its view."""
    code = _CODES.get(t.dtype)
    if code is None:
        raise ValueError(_BAD_TYPE.format(name, str(t.dtype)[6:]))
    shape, strides = t.shape, t.stride()
    if width and shape and shape[-1] > 1 and strides[-1] != 1:
        t = t.contiguous()
        strides = t.stride()
    return t, (t.data_ptr(), code, shape, strides)


# Everything about a call but its addresses follows from the types, shapes and strides of its tensors, so it is worked out
# once for each of them: Signature = (dtype, shape, strides), or None for a tensor that is not there.

def _signature(t: Optional[Tensor]) -> Optional[tuple]:
    return None if t is None else (t.dtype, t.shape, t.stride())


def _whole_rows(slots: Sequence[Slot], x: Sequence[Optional[Tensor]]) -> list:
    """x with one copy where a row of a wide tensor is not contiguous."""
    return [t if t is None or not slot.low_precision or t.dtype == torch.float64 or not t.dim() or t.stride(-1) == 1
            or t.shape[-1] <= 1 else t.contiguous() for slot, t in zip(slots, x)]


def _view(signature: tuple, name: str) -> _call.View:
    dtype, shape, strides = signature
    code = _CODES.get(dtype)
    if code is None:
        raise ValueError(_BAD_TYPE.format(name, str(dtype)[6:]))
    return 0, code, shape, strides


def _like(signature: tuple, width: Any, dtype: torch.dtype) -> tuple:
    """The signature of (B, H, N, width) that lies in memory as that one does: tokens before heads, or heads before tokens.
    So what a module makes from x by unflatten and transpose comes back without a copy."""
    b, h, n = signature[1][:3]
    inside = signature[2][1] < signature[2][2]
    return dtype, (b, h, n, width), ((n * h * width, width, h * width, 1) if inside
                                     else (h * n * width, n * width, width, 1))


def _dense(shape: Sequence, dtype: torch.dtype) -> tuple:
    strides: list = []
    for n in reversed(shape):
        strides.insert(0, strides[0] * last if strides else 1)
        last = n
    return dtype, tuple(shape), tuple(strides)


def _new(signature: tuple, like: Tensor) -> Tensor:
    return torch.empty_strided(signature[1], signature[2], dtype=signature[0], device=like.device)


def _bind(mixer: Mixer, x: Sequence[Optional[tuple]]) -> dict:
    return _call.bind(mixer.inputs, [None if t is None else t[1] for t in x])


def _outputs(mixer: Mixer, x: Sequence[Optional[tuple]], extents: dict, components: int, want_state: bool) -> list:
    """Signatures of the outputs; of one that nobody asked for, without an element."""
    q, values = x[0], x[mixer.names.index("v") if "v" in mixer.names else 0]
    real = torch.float64 if q[0] == torch.float64 else torch.float32
    out = []
    for slot in mixer.outputs:
        shape = _call.shape_of(slot.dims, extents, components) if slot.required or want_state else (0,)
        dtype = values[0] if slot.low_precision and real != torch.float64 else real
        out.append(_like(q, shape[-1], dtype) if slot.low_precision and len(shape) == 4 else _dense(shape, dtype))
    return out


def _wanted(mixer: Mixer, needs: Sequence[bool]) -> list:
    return [i for i, slot in enumerate(mixer.inputs) if needs[i] and slot.has_grad]


def _gradients(mixer: Mixer, x: Sequence[Optional[tuple]], needs: Sequence[bool]) -> list:
    """Signatures of the gradients."""
    return [_like(x[i], x[i][1][-1], x[i][0]) if mixer.inputs[i].low_precision and len(x[i][1]) == 4
            else _dense(x[i][1], x[i][0]) for i in _wanted(mixer, needs)]


class _Recipe(NamedTuple):
    plan: _call.Plan
    frame: _call.Frame
    out: list  # signatures


def _inputs(mixer: Mixer, x: Sequence[Optional[tuple]]) -> list:
    return [(slot.number, _view(t, slot.name)) for slot, t in zip(mixer.inputs, x) if t is not None]


@functools.lru_cache(maxsize=256)
def _forward_recipe(name: str, x: tuple, options: tuple, want_state: bool) -> _Recipe:
    mixer = MIXERS[name]
    extents = _bind(mixer, x)
    plan = _call.plan(mixer, options, extents)
    out = _outputs(mixer, x, extents, plan.components, want_state)
    pairs = _inputs(mixer, x)
    pairs += [(slot.number, _view(t, slot.name)) for slot, t in zip(mixer.outputs, out) if slot.required or want_state]
    return _Recipe(plan, _call.Frame(pairs), out)


def _forward(mixer: Mixer, x: Sequence[Optional[Tensor]], options: Sequence, want_state: bool, save: int) -> tuple:
    x = _whole_rows(mixer.inputs, x)
    recipe = _forward_recipe(mixer.name, tuple([_signature(t) for t in x]), tuple(options), want_state)
    plan, frame = recipe.plan, recipe.frame
    out = [_new(t, x[0]) for t in recipe.out]
    used = out if want_state else [t for slot, t in zip(mixer.outputs, out) if slot.required]
    args = frame.at([t.data_ptr() for t in (*x, *used) if t is not None])
    if x[0].dtype == torch.float64:
        saved = x[0].new_empty(0, dtype=torch.uint8)
        plan.naive_forward(args, frame.count)
    else:
        threads = torch.get_num_threads()
        saved = x[0].new_zeros(plan.sizes(threads).saved if save else 0, dtype=torch.uint8)  # gaps too
        plan.forward(args, frame.count, threads, saved.data_ptr())
    return (*out, saved)


def _forward_fake(mixer: Mixer, x: Sequence[Optional[Tensor]], options: Sequence, want_state: bool, save: int) -> tuple:
    signatures = [_signature(t) for t in x]
    extents = _bind(mixer, signatures)
    out = [_new(t, x[0]) for t in _outputs(mixer, signatures, extents, _call.components(extents), want_state)]
    if not save or x[0].dtype == torch.float64:
        size: Any = 0
    elif any(isinstance(n, torch.SymInt) for n in extents.values()):
        size = torch.library.get_ctx().new_dynamic_size()
    else:
        size = _call.plan(mixer, options, extents).sizes(1).saved
    return (*out, x[0].new_empty(size, dtype=torch.uint8))


@functools.lru_cache(maxsize=256)
def _backward_recipe(name: str, x: tuple, o: tuple, grads: tuple, needs: tuple, options: tuple) -> _Recipe:
    mixer = MIXERS[name]
    plan = _call.plan(mixer, options, _bind(mixer, x))
    out = _gradients(mixer, x, needs)
    pairs = _inputs(mixer, x) + [(mixer.outputs[0].number, _view(o, mixer.outputs[0].name))]
    pairs += [(_call.grad(slot), _view(g, "grad_" + slot.name)) for slot, g in zip(mixer.outputs, grads) if g is not None]
    pairs += [(_call.grad(mixer.inputs[i]), _view(g, "grad_" + mixer.inputs[i].name))
              for i, g in zip(_wanted(mixer, needs), out)]
    return _Recipe(plan, _call.Frame(pairs), out)


def _backward(mixer: Mixer, x: Sequence[Optional[Tensor]], o: Tensor, saved: Tensor, grads: Sequence[Optional[Tensor]],
              needs: Sequence[bool], options: Sequence) -> list[Tensor]:
    x = _whole_rows(mixer.inputs, x)
    o, *grads = _whole_rows(mixer.outputs[:1] + mixer.outputs, [o, *grads])
    recipe = _backward_recipe(mixer.name, tuple([_signature(t) for t in x]), _signature(o),
                              tuple([_signature(g) for g in grads]), tuple(needs), tuple(options))
    plan, frame = recipe.plan, recipe.frame
    out = [_new(t, x[0]) for t in recipe.out]
    double = x[0].dtype == torch.float64
    threads = torch.get_num_threads()
    if not double:
        if saved.numel() == 0 and plan.sizes(threads).saved:
            o, *_, saved = _forward(mixer, x, options, False, 1)
            return _backward(mixer, x, o, saved, grads, needs, options)
        if saved.data_ptr() % 64:
            saved = saved.clone()
    args = frame.at([t.data_ptr() for t in (*x, o, *grads, *out) if t is not None])
    if double:
        plan.naive_backward(args, frame.count)
    else:
        plan.backward(args, frame.count, threads, saved.data_ptr())
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
    torch.library.define(name, f"({inputs}, {options}, bool want_state, int save) -> ({outputs})", tags=tags)
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
        return [_new(t, a[0]) for t in _gradients(mixer, [_signature(t) for t in a[:n]], a[n + 2 + count])]

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
                extents = _bind(mixer, [_signature(t) for t in x])
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

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *a):
            with torch._C._AutoDispatchBelowAutograd():
                return tuple(op_backward(*a))

        @staticmethod
        def backward(ctx, *up):
            raise RuntimeError(_SECOND.format(mixer.name))

    def autograd_backward(*a):
        if torch.is_grad_enabled() and any([isinstance(t, Tensor) and t.requires_grad for t in a]):
            return list(Once.apply(*a))
        with torch._C._AutoDispatchBelowAutograd():
            return op_backward(*a)

    _LIBRARY.impl(mixer.name + "_backward", autograd_backward, "Autograd")


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
    save = STAMP if torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in x]) else 0
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
