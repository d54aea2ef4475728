"""The mixers of libgma.so for measurements and checks: torch tensors in, torch tensors out, nothing copied.

This is no binding to build on (it knows only what is measured here); it calls include/gma/mixer.h as a C program would.
"""
import ctypes as c

import torch

GRAD, OUTPUT = 0x100, 3
TYPES = {torch.float32: 1, torch.bool: 4}


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("rank", c.c_int32), ("shape", c.c_int64 * 4),
                ("stride", c.c_int64 * 4)]


class Arg(c.Structure):
    _fields_ = [("slot", c.c_int32), ("tensor", Tensor)]


class Desc(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("kind", c.c_int32), ("isa", c.c_int32), ("causal", c.c_int32),
                ("reserved", c.c_int32)]
    _fields_ += [(name, c.c_int64) for name in ("batch", "heads", "kv_heads", "q_len", "k_len", "routing_dim",
                                                "value_dim", "components", "segments")]
    _fields_ += [("eps", c.c_double), ("eps_sigma", c.c_double), ("scale", c.c_double),
                 ("rotary_base", c.c_double), ("window", c.c_int64), ("cache_len", c.c_int64),
                 ("store_scores", c.c_int32), ("reserved2", c.c_int32)]


class Size(c.Structure):
    _fields_ = [(name, c.c_size_t) for name in ("struct_size", "forward_scratch", "backward_scratch", "saved", "state")]


class Exec(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("threads", c.c_int32), ("reserved", c.c_int32), ("scratch", c.c_void_p),
                ("scratch_bytes", c.c_size_t), ("saved", c.c_void_p), ("saved_bytes", c.c_size_t)]


class SlotInfo(c.Structure):
    _fields_ = [("slot", c.c_int32), ("dims", c.c_char_p), ("role", c.c_int32), ("required", c.c_int32),
                ("dtypes", c.c_uint32), ("has_grad", c.c_int32)]


class Library:
    def __init__(self, path):
        self.lib = c.CDLL(path)
        for name in ("gma_last_error", "gma_version", "gma_isa_name", "gma_slot_name"):
            getattr(self.lib, name).restype = c.c_char_p
        self.lib.gma_mixer_slots.restype = c.POINTER(SlotInfo)

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.gma_last_error().decode())

    def version(self):
        return self.lib.gma_version().decode()

    def tier(self):
        isa = c.c_int()
        self.check(self.lib.gma_isa_default(c.byref(isa)))
        return self.lib.gma_isa_name(isa).decode()

    def kind(self, mixer):
        kind = c.c_int()
        self.check(self.lib.gma_mixer_kind_from_name(mixer.encode(), c.byref(kind)))
        return kind.value

    def slots(self, kind):
        """{name: (number, is an output, has a gradient)}"""
        count = c.c_int()
        rows = self.lib.gma_mixer_slots(kind, c.byref(count))
        return {self.lib.gma_slot_name(r.slot).decode(): (r.slot, r.role == OUTPUT, bool(r.has_grad)) for r in rows[:count.value]}


def _arg(slot, t):
    assert t.stride(-1) == 1 or t.shape[-1] == 1
    pad = (0,) * (4 - t.dim())
    return Arg(slot, Tensor(t.data_ptr(), TYPES[t.dtype], t.dim(), (c.c_int64 * 4)(*t.shape, *pad),
                            (c.c_int64 * 4)(*t.stride(), *pad)))


def _list(named):
    rows = [_arg(slot, t) for slot, t in named]
    return (Arg * len(rows))(*rows), len(rows)


class Mixer:
    """One mixer of one shape; scratch is made once. kept=False: outputs, gradients and what forward saves are made anew at each
    call, as PyTorch does and as a PyTorch binding must. kept=True: they are made once, as a C program or a training loop does
    that owns its memory; the result of a call then lasts until the next.

    x: {slot: tensor} of all inputs and parameters. fields: those of gma_mixer_desc that the tensors do not tell."""

    def __init__(self, library, mixer, x, threads, kept=False, **fields):
        self.library, self.threads, self.kept, self.buffers = library, threads, kept, {}
        kind = library.kind(mixer)
        self.slots = library.slots(kind)
        d = Desc()
        library.check(library.lib.gma_mixer_desc_init(c.byref(d), kind))
        if "u" in x:  # mamba
            d.batch, d.q_len, d.value_dim = x["u"].shape
            d.k_len, d.heads, d.components = d.q_len, 1, x["A"].shape[1]
        else:
            d.batch, d.heads, d.q_len, d.routing_dim = x["q"].shape
            d.kv_heads, d.k_len, d.value_dim = x["v"].shape[1:]
        for name, value in fields.items():
            setattr(d, name, value)
        self.mixer = c.c_void_p()
        library.check(library.lib.gma_mixer_create(c.byref(d), c.byref(self.mixer)))
        self.size = Size(struct_size=c.sizeof(Size))
        library.check(library.lib.gma_mixer_sizes(self.mixer, threads, c.byref(self.size)))

    def __del__(self):
        self.library.lib.gma_mixer_destroy(self.mixer)

    def _keep(self, name, make):
        if name not in self.buffers:
            self.buffers[name] = make()
        return self.buffers[name]

    def _scratch(self, size):
        return _aligned(self._keep(("scratch", size), lambda: torch.zeros(size + 64, dtype=torch.uint8)))

    def _new(self, name, shape):
        return self._keep(name, lambda: torch.zeros(shape)) if self.kept else torch.empty(shape)

    def _output(self, x):
        """(slot, tensor) of what comes out."""
        if "u" in x:
            return self.slots["y"][0], self._new("y", x["u"].shape)
        return self.slots["o"][0], self._new("o", (*x["q"].shape[:3], x["v"].shape[-1]))

    def _saved(self):
        size = self.size.saved + 64
        if self.kept:
            return self._keep("saved", lambda: torch.zeros(size, dtype=torch.uint8))
        return torch.empty(size, dtype=torch.uint8)

    def forward(self, x, save=False):
        slot, o = self._output(x)
        saved = self._saved() if save else None
        run = Exec(c.sizeof(Exec), self.threads, 0, self._scratch(self.size.forward_scratch),
                   self.size.forward_scratch, _aligned(saved) if save else None, self.size.saved if save else 0)
        args, count = _list([(self.slots[n][0], t) for n, t in x.items()] + [(slot, o)])
        self.library.check(self.library.lib.gma_mixer_forward(self.mixer, args, count, c.byref(run)))
        return (o, saved) if save else o

    def forward_backward(self, x, grad_o):
        """(o, {slot: gradient} of every input and parameter that has one)"""
        o, saved = self.forward(x, save=True)
        grads = {n: self._new("d" + n, t.shape) for n, t in x.items() if self.slots[n][2]}
        run = Exec(c.sizeof(Exec), self.threads, 0, self._scratch(self.size.backward_scratch),
                   self.size.backward_scratch, _aligned(saved), self.size.saved)
        slot = self.slots["y" if "u" in x else "o"][0]
        args, count = _list([(self.slots[n][0], t) for n, t in x.items()] + [(slot, o), (slot | GRAD, grad_o)] +
                            [(self.slots[n][0] | GRAD, g) for n, g in grads.items()])
        self.library.check(self.library.lib.gma_mixer_backward(self.mixer, args, count, c.byref(run)))
        return o, grads


def _aligned(buffer):
    return (buffer.data_ptr() + 63) // 64 * 64
