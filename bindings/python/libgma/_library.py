"""libgma.so through ctypes: functions, structures, errors, and the tables of mixers and slots.

The layouts are those of include/gma/base.h and include/gma/mixer.h. ctypes releases the GIL during a call.
"""
from __future__ import annotations

import ctypes as c
import os
import struct
import zlib
from typing import NamedTuple

from . import _openmp

F32, BF16, F64, BOOL, U8, I32, I64 = 1, 2, 3, 4, 5, 6, 7
INPUT, PARAM, OUTPUT = 1, 2, 3
GRAD = 0x100

ARG = struct.Struct("=i4xQii4q4q")  # gma_arg: slot, then gma_tensor
TENSOR = struct.Struct("=Qii4q4q")
EXEC = struct.Struct("=QiiQQQQ")  # gma_exec


class Size(c.Structure):
    _fields_ = [(name, c.c_size_t) for name in ("struct_size", "forward_scratch", "backward_scratch", "saved", "state")]


class Desc(c.Structure):
    """gma_mixer_desc; `later` is room for fields that a newer library appends (gma_mixer_desc_init fills them in)."""

    _fields_ = [("struct_size", c.c_size_t), ("kind", c.c_int32), ("isa", c.c_int32), ("causal", c.c_int32),
                ("reserved", c.c_int32)]
    _fields_ += [(name, c.c_int64) for name in ("batch", "heads", "kv_heads", "q_len", "k_len", "routing_dim",
                                                "value_dim", "components", "segments")]
    _fields_ += [("eps", c.c_double), ("eps_sigma", c.c_double), ("scale", c.c_double), ("rotary_base", c.c_double),
                 ("window", c.c_int64), ("cache_len", c.c_int64), ("later", c.c_byte * 512)]


class _SlotInfo(c.Structure):
    _fields_ = [("slot", c.c_int32), ("dims", c.c_char_p), ("role", c.c_int32), ("required", c.c_int32),
                ("dtypes", c.c_uint32), ("has_grad", c.c_int32)]


class Slot(NamedTuple):
    """A tensor that a mixer takes or gives; dims has one letter an extent, as in gma_slot_info ("?H..": the H may be left
    out)."""

    number: int
    name: str
    dims: str
    role: int
    required: bool
    dtypes: int
    has_grad: bool

    def letters(self, rank: int) -> str:
        """The letters of a tensor with that many dimensions."""
        if self.dims[0] != "?":
            return self.dims
        return self.dims[1:] if rank == len(self.dims) - 1 else self.dims[2:]

    @property
    def low_precision(self) -> bool:
        """May be BF16: an activation, not a parameter or a sum."""
        return bool(self.dtypes & 1 << BF16)

    @property
    def floating(self) -> bool:
        return bool(self.dtypes & (1 << F32 | 1 << BF16))


class Mixer:
    """One row of the library's table of mixers."""

    def __init__(self, kind: int, name: str, slots: list[Slot]):
        self.kind, self.name = kind, name
        self.inputs = tuple(s for s in slots if s.role != OUTPUT)
        self.outputs = tuple(s for s in slots if s.role == OUTPUT)
        self.names = tuple(s.name for s in self.inputs)
        self.by_name = {s.name: s for s in slots}


def _load() -> c.CDLL:
    runtime = _openmp.preload()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgma.so")
    if not os.path.exists(path):  # an editable installation keeps what was compiled apart from the sources
        from importlib.metadata import files
        found = [f for f in files("libgma") or () if f.name == "libgma.so"]
        path = str(found[0].locate()) if found else path
    try:
        return c.CDLL(path)
    except OSError as error:
        if runtime is None:
            raise ImportError("libgma needs gcc's OpenMP runtime, and neither PyTorch's nor the system's libgomp.so.1 "
                              "is there (Debian and Ubuntu: apt-get install libgomp1)") from error
        raise ImportError(f"libgma.so cannot be loaded: {error}") from error


lib = _load()


def _stamp() -> int:
    """A number of this build of the library, never 0."""
    with open(lib._name, "rb") as file:
        return zlib.crc32(file.read()) & 0x3fffffff | 0x40000000


STAMP = _stamp()
_int, _ptr, _bytes = c.c_int, c.c_void_p, c.c_char_p
for _name, _restype, _args in (
        ("gma_version", _bytes, ()), ("gma_last_error", _bytes, ()), ("gma_mixer_kind_name", _bytes, (_int,)),
        ("gma_slot_name", _bytes, (c.c_int32,)), ("gma_isa_name", _bytes, (_int,)), ("gma_max_threads", _int, ()),
        ("gma_isa_default", _int, (c.POINTER(_int),)),
        ("gma_mixer_slots", c.POINTER(_SlotInfo), (_int, c.POINTER(_int))),
        ("gma_mixer_desc_init", _int, (c.POINTER(Desc), _int)),
        ("gma_mixer_create", _int, (c.POINTER(Desc), c.POINTER(_ptr))), ("gma_mixer_destroy", None, (_ptr,)),
        ("gma_mixer_get_desc", _int, (_ptr, c.POINTER(Desc))),
        ("gma_mixer_sizes", _int, (_ptr, _int, c.POINTER(Size))),
        ("gma_mixer_forward", _int, (_ptr, _bytes, _int, _bytes)),
        ("gma_mixer_backward", _int, (_ptr, _bytes, _int, _bytes)),
        ("gma_mixer_naive_forward", _int, (_ptr, _bytes, _int)),
        ("gma_mixer_naive_backward", _int, (_ptr, _bytes, _int)),
        ("gma_mixer_state_init", _int, (_ptr, _bytes, _int, _ptr)),
        ("gma_mixer_step", _int, (_ptr, _bytes, _int, _ptr, _int)),
        ("gma_mixer_state_export", _int, (_ptr, _ptr, _bytes, _int)),
        ("gma_responsibilities", _int, (_bytes,) * 6 + (c.c_double, _int, _int, _int))):
    _function = getattr(lib, _name)
    _function.restype, _function.argtypes = _restype, _args


def check(status: int) -> None:
    """Raise what the library reported: ValueError for arguments, shapes and types, RuntimeError otherwise."""
    if status == 0:
        return
    message = lib.gma_last_error().decode(errors="replace")
    if status in (10, 20, 30):
        raise ValueError(message)
    raise RuntimeError(message)


def version() -> str:
    """The version of the compiled library, "MAJOR.MINOR.PATCH"."""
    return lib.gma_version().decode()


def isa() -> str:
    """The CPU tier that calls use: "scalar", "avx2", "avx512", "amx" or "neon". The environment variable GMA_ISA, read
    once, is a ceiling.  Raises ValueError when it names no tier."""
    tier = _int()
    check(lib.gma_isa_default(c.byref(tier)))
    return lib.gma_isa_name(tier.value).decode()


def _mixers() -> dict[str, Mixer]:
    found = {}
    for kind in range(1, 64):
        name = lib.gma_mixer_kind_name(kind)
        if name is None:
            continue
        count = _int()
        rows = lib.gma_mixer_slots(kind, c.byref(count))
        slots = [Slot(r.slot, lib.gma_slot_name(r.slot).decode(), r.dims.decode(), r.role, bool(r.required), r.dtypes,
                      bool(r.has_grad)) for r in rows[:count.value]]
        found[name.decode()] = Mixer(kind, name.decode(), slots)
    return found


MIXERS = _mixers()
