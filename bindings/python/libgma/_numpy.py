"""NumPy arrays in, NumPy arrays out: forward only."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np

from . import _call
from ._library import BF16, BOOL, F32, F64, I32, I64, U8, Mixer

_CODES = {np.dtype(name): code for name, code in (("f4", F32), ("f8", F64), ("?", BOOL), ("u1", U8), ("i4", I32), ("i8", I64))}


def view(array: np.ndarray, name: str, width: bool) -> tuple[np.ndarray, _call.View]:
    """The array whose memory is used (a copy where the library cannot take the strides) and its view."""
    code = _CODES.get(array.dtype) or (BF16 if array.dtype.name == "bfloat16" else None)  # ml_dtypes.bfloat16
    if code is None:
        raise ValueError(f"{name} is {array.dtype.name}; it must be float32 or bfloat16, or float64 for the definition "
                         "in double")
    size = array.itemsize
    steps, odd = tuple(s // size for s in array.strides), any(s % size for s in array.strides)
    if odd or not array.flags.aligned or (width and array.shape[-1:] > (1,) and steps[-1] != 1):
        array = np.ascontiguousarray(array)
        steps = tuple(s // size for s in array.strides)
    return array, (array.__array_interface__["data"][0], code, array.shape, steps)


def cast(mixer: Mixer, given: dict[str, Any], naive: bool) -> dict[str, Optional[np.ndarray]]:
    """All tensors in the types that one call takes: activations as they are, parameters and sums F32; all F64 when q is."""
    first = np.asarray(given[mixer.names[0]])
    double = naive or first.dtype == np.float64
    out: dict[str, Optional[np.ndarray]] = {}
    for slot in mixer.inputs:
        x = given.get(slot.name)
        if x is not None:
            x = np.asarray(x)
            if slot.floating and double:
                x = x.astype(np.float64, copy=False)
            elif slot.floating and not slot.low_precision:
                x = x.astype(np.float32, copy=False)
        out[slot.name] = x
    return out


def forward(mixer: Mixer, given: dict[str, Any], options: _call.Options, want_state: bool, naive: bool) -> tuple:
    x = cast(mixer, given, naive)
    arrays = [x[s.name] for s in mixer.inputs]
    extents = _call.bind(mixer.inputs, [None if a is None else a.shape for a in arrays])
    plan = _call.plan(mixer, options, extents)
    double = arrays[0].dtype == np.float64
    pairs, keep = [], []
    for slot, a in zip(mixer.inputs, arrays):
        if a is not None:
            a, v = view(a, slot.name, slot.low_precision and not double)
            keep.append(a)
            pairs.append((slot.number, v))
    results, values = [], x["v"] if "v" in x else arrays[0]
    for slot in mixer.outputs:
        if slot.required or want_state:
            dtype = np.float64 if double else values.dtype if slot.low_precision else np.float32
            results.append(np.empty(_call.shape_of(slot.dims, extents, plan.components), dtype))
            pairs.append((slot.number, view(results[-1], slot.name, False)[1]))
    args = _call.pack(pairs)
    if double:
        plan.naive_forward(args, len(pairs))
    else:
        plan.forward(args, len(pairs), 0)
    return tuple(results)


def responsibilities(x: np.ndarray, mu: Any, omega: Any, alpha: Any, logit_scale: Any, eps_sigma: float) -> np.ndarray:
    x = np.asarray(x)
    double = x.dtype == np.float64
    real = np.float64 if double else np.float32
    params = [None if p is None else np.asarray(p).astype(real, copy=False) for p in (mu, omega, alpha, logit_scale)]
    gamma = np.empty(tuple(x.shape[:-1]) + (params[0].shape[1] if params[0].ndim == 3 else 0,), real)
    names = ("x", "mu", "omega", "alpha", "logit_scale", "gamma")
    held = [None if a is None else view(a, n, n == "x" and not double)
            for a, n in zip((x, *params, gamma), names)]
    _call.responsibilities([None if h is None else h[1] for h in held], eps_sigma, double, 0)
    return gamma
