"""Calls of the library on views: (address, dtype, shape, strides in elements). No array library is needed here."""
from __future__ import annotations

import ctypes as c
import functools
import mmap
import struct
import threading
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._library import ARG, EXEC, GRAD, MIXERS, TENSOR, Desc, Mixer, Size, Slot, check, lib

View = Tuple[int, int, Tuple[int, ...], Tuple[int, ...]]
_ADDRESS = struct.Struct("=Q").pack_into
_PAD = ((0,) * 4, (0,) * 3, (0,) * 2, (0,), ())

# The letters of gma_slot_info.dims and the field of gma_mixer_desc that each one is.
FIELDS = {"B": "batch", "h": "heads", "H": "kv_heads", "q": "q_len", "k": "k_len", "K": "components", "M": "components",
          "P": "components", "R": "routing_dim", "D": "value_dim"}
_WORDS = {"h": "Hq", "q": "Nq", "k": "Nk", "+": "G+1"}


def supported(mixer: Mixer) -> bool:
    """Every shape of this mixer can be told from its tensors."""
    return all(letter in FIELDS or letter in "+SE?" for s in mixer.inputs + mixer.outputs for letter in s.dims)


class Options(NamedTuple):
    """What a call has besides tensors: fields of gma_mixer_desc. A mixer refuses those it does not know."""

    causal: bool = False
    eps: float = 1e-6
    eps_sigma: float = 1e-4
    scale: float = 0.0
    rotary_base: float = 0.0
    window: int = 0


class Buffer:
    """Zeroed memory of this process, aligned to a page; never shared with a child after fork."""

    def __init__(self, size: int):
        self._memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = size
        self._handle = (c.c_char * max(size, 1)).from_buffer(self._memory)
        self.address = c.addressof(self._handle)

    def __bytes__(self) -> bytes:
        return self._memory[:self.size]

    @classmethod
    def of(cls, data: bytes) -> Buffer:
        buffer = cls(len(data))
        buffer._memory[:len(data)] = data
        return buffer


class _Scratch(threading.local):
    buffer: Optional[Buffer] = None

    def at_least(self, size: int) -> int:
        """The address of memory that one call of this thread may use."""
        if self.buffer is None or self.buffer.size < size:
            self.buffer = Buffer(size)
        return self.buffer.address


_scratch = _Scratch()


class Plan:
    """A gma_mixer: immutable, shared by all threads."""

    def __init__(self, mixer: Mixer, options: Sequence, extents: Mapping[str, int]):
        desc = Desc()
        self.mixer = mixer
        self._handle = c.c_void_p()
        self._sizes: dict[int, Size] = {}
        check(lib.gma_mixer_desc_init(c.byref(desc), mixer.kind))
        for name, value in (*zip(Options._fields, options), *extents.items()):
            setattr(desc, name, value)
        check(lib.gma_mixer_create(c.byref(desc), c.byref(self._handle)))
        check(lib.gma_mixer_get_desc(self._handle, c.byref(desc)))
        self.components = desc.components

    def __del__(self):
        if lib is not None:
            lib.gma_mixer_destroy(self._handle)

    def sizes(self, threads: int) -> Size:
        size = self._sizes.get(threads)
        if size is None:
            size = Size(struct_size=c.sizeof(Size))
            check(lib.gma_mixer_sizes(self._handle, threads, c.byref(size)))
            self._sizes[threads] = size
        return size

    def forward(self, args: bytes, count: int, threads: int, saved: int = 0) -> None:
        size = self.sizes(threads)
        run = EXEC.pack(EXEC.size, threads, 0, _scratch.at_least(size.forward_scratch), size.forward_scratch, saved,
                        size.saved if saved else 0)
        check(lib.gma_mixer_forward(self._handle, args, count, run))

    def backward(self, args: bytes, count: int, threads: int, saved: int) -> None:
        size = self.sizes(threads)
        run = EXEC.pack(EXEC.size, threads, 0, _scratch.at_least(size.backward_scratch), size.backward_scratch, saved,
                        size.saved)
        check(lib.gma_mixer_backward(self._handle, args, count, run))

    def naive_forward(self, args: bytes, count: int) -> None:
        check(lib.gma_mixer_naive_forward(self._handle, args, count))

    def naive_backward(self, args: bytes, count: int) -> None:
        check(lib.gma_mixer_naive_backward(self._handle, args, count))

    def state_init(self, args: bytes, count: int, state: int) -> None:
        check(lib.gma_mixer_state_init(self._handle, args, count, state))

    def step(self, args: bytes, count: int, state: int, threads: int) -> None:
        check(lib.gma_mixer_step(self._handle, args, count, state, threads))

    def state_export(self, state: int, args: bytes, count: int) -> None:
        check(lib.gma_mixer_state_export(self._handle, state, args, count))


@functools.lru_cache(maxsize=256)
def _plan(name: str, options: tuple, extents: tuple) -> Plan:
    return Plan(MIXERS[name], options, dict(extents))


def plan(mixer: Mixer, options: Sequence, extents: Mapping[str, int]) -> Plan:
    """The gma_mixer of that shape, from a cache. options: as Options; extents: fields of gma_mixer_desc."""
    return _plan(mixer.name, tuple(options), tuple(extents.items()))


def words(dims: str) -> str:
    return "(" + ",".join(_WORDS.get(letter, letter) for letter in dims) + ("," if len(dims) == 1 else "") + ")"


def bind(slots: Iterable[Slot], shapes: Sequence[Optional[Sequence[int]]]) -> dict:
    """The extents of a call from the shapes of its tensors: the first tensor that has a letter decides, and the library
    compares the others with it. Raises ValueError for a missing tensor or a wrong number of dimensions."""
    extents: dict = {}
    for slot, shape in zip(slots, shapes):
        if shape is None:
            if slot.required:
                raise ValueError(f"{slot.name} is missing")
            continue
        letters = slot.letters(len(shape))
        if len(shape) != len(letters):
            raise ValueError(f"{slot.name} has shape {tuple(shape)}; it must be {words(letters)}")
        for letter, n in zip(letters, shape):
            if letter == "+":
                if n == 0:
                    raise ValueError("cu_seqlens is empty; it must have one entry more than there are sequences")
                extents["segments"] = n - 1
            elif letter == "E":  # channels: one head of that width
                extents.setdefault("heads", 1)
                extents.setdefault("value_dim", n)
            elif letter in FIELDS:
                extents.setdefault(FIELDS[letter], n)
    if "q_len" not in extents or "k_len" not in extents:  # one length serves both
        extents["q_len"] = extents["k_len"] = extents.get("q_len", extents.get("k_len", 0))
    return extents


def components(extents: Mapping[str, int]) -> int:
    """K of a call; a mixer without that letter in its tensors has one feature an input."""
    return extents["components"] if "components" in extents else extents.get("routing_dim", 0)


def shape_of(dims: str, extents: Mapping[str, int], components: int) -> tuple:
    """The shape of a tensor with these letters. components: as the library resolved it."""
    def extent(letter: str) -> int:
        if letter == "S":
            return extents.get("segments", extents["batch"])
        if letter == "E":
            return extents["heads"] * extents["value_dim"]
        return components if FIELDS[letter] == "components" else extents[FIELDS[letter]]
    return tuple(extent(letter) for letter in dims)


def pack(pairs: Iterable[Tuple[int, View]]) -> bytes:
    """The list of arguments of a call, from (slot, view) pairs."""
    out = []
    for slot, (address, dtype, shape, strides) in pairs:
        rank = len(shape)
        if rank > 4:
            raise ValueError(f"{lib.gma_slot_name(slot).decode()} has {rank} dimensions; there are at most 4")
        pad = _PAD[rank]
        out.append(ARG.pack(slot, address, dtype, rank, *shape, *pad, *strides, *pad))
    return b"".join(out)


class Frame:
    """The list of arguments of a call whose tensors differ only in where they are. pairs: as for pack()."""

    def __init__(self, pairs: Sequence[Tuple[int, View]]):
        self.count = len(pairs)
        self._bytes = pack(pairs)
        self._offsets = [i * ARG.size + 8 for i in range(self.count)]  # of gma_tensor.data

    def at(self, addresses: Sequence[int]) -> bytes:
        """The list with these addresses, in the order of pairs."""
        out = bytearray(self._bytes)
        for offset, address in zip(self._offsets, addresses):
            _ADDRESS(out, offset, address)
        return bytes(out)


def grad(slot: Slot) -> int:
    return slot.number | GRAD


def responsibilities(views: Sequence[Optional[View]], eps_sigma: float, naive: bool, threads: int) -> None:
    """gma_responsibilities on x, mu, omega, alpha, logit_scale or None, gamma."""
    packed = []
    for v in views:
        if v is None:
            packed.append(None)
            continue
        address, dtype, shape, strides = v
        if len(shape) > 4:
            raise ValueError(f"a tensor has {len(shape)} dimensions; there are at most 4")
        pad = (0,) * (4 - len(shape))
        packed.append(TENSOR.pack(address, dtype, len(shape), *shape, *pad, *strides, *pad))
    check(lib.gma_responsibilities(*packed, eps_sigma, 0, int(naive), threads))
