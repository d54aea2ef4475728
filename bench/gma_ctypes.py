"""The operator of libgma.so for measurements: torch tensors in, torch tensors out, nothing copied.

This is no binding to build on (it knows only what is measured here); it calls include/gma/mixer.h as a C program would.
"""
import ctypes as c

import torch

SLOTS = {"q": 1, "k": 2, "v": 3, "mu": 4, "omega": 5, "alpha": 6, "o": 32}
GRAD = 0x100
INPUTS = ("q", "k", "v", "mu", "omega", "alpha")
F32 = 1


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


class Library:
    def __init__(self, path):
        self.lib = c.CDLL(path)
        for name in ("gma_last_error", "gma_version", "gma_isa_name"):
            getattr(self.lib, name).restype = c.c_char_p

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.gma_last_error().decode())

    def version(self):
        return self.lib.gma_version().decode()

    def tier(self):
        isa = c.c_int()
        self.check(self.lib.gma_isa_default(c.byref(isa)))
        return self.lib.gma_isa_name(isa).decode()


def _arg(slot, t):
    assert t.dtype == torch.float32 and t.stride(-1) == 1
    pad = (0,) * (4 - t.dim())
    return Arg(slot, Tensor(t.data_ptr(), F32, t.dim(), (c.c_int64 * 4)(*t.shape, *pad),
                            (c.c_int64 * 4)(*t.stride(), *pad)))


def _list(named):
    rows = [_arg(slot, t) for slot, t in named]
    return (Arg * len(rows))(*rows), len(rows)


class Attention:
    """One shape; scratch is made once. kept=False: outputs, gradients and what forward saves are made anew at each call, as
    PyTorch does and as a PyTorch binding must. kept=True: they are made once, as a C program or a training loop does that
    owns its memory; the result of a call then lasts until the next."""

    def __init__(self, library, q, mu, causal, threads, kept=False):
        self.library, self.threads, self.kept = library, threads, kept
        batch, heads, length, width = q.shape
        d = Desc()
        library.check(library.lib.gma_mixer_desc_init(c.byref(d), 1))
        d.causal, d.batch, d.heads, d.q_len, d.k_len = causal, batch, heads, length, length
        d.routing_dim = d.value_dim = width
        d.components = mu.shape[1]
        self.mixer = c.c_void_p()
        library.check(library.lib.gma_mixer_create(c.byref(d), c.byref(self.mixer)))
        self.size = Size(struct_size=c.sizeof(Size))
        library.check(library.lib.gma_mixer_sizes(self.mixer, threads, c.byref(self.size)))
        self.buffers = {}

    def __del__(self):
        self.library.lib.gma_mixer_destroy(self.mixer)

    def _keep(self, name, make):
        if name not in self.buffers:
            self.buffers[name] = make()
        return self.buffers[name]

    def _scratch(self, size):
        return _aligned(self._keep(("scratch", size), lambda: torch.zeros(size + 64, dtype=torch.uint8)))

    def _result(self, name, like):
        return self._keep(name, lambda: torch.zeros_like(like)) if self.kept else torch.empty_like(like)

    def _saved(self):
        size = self.size.saved + 64
        if self.kept:
            return self._keep("saved", lambda: torch.zeros(size, dtype=torch.uint8))
        return torch.empty(size, dtype=torch.uint8)

    def forward(self, x, save=False):
        o = self._result("o", x["v"])
        saved = self._saved() if save else None
        run = Exec(c.sizeof(Exec), self.threads, 0, self._scratch(self.size.forward_scratch),
                   self.size.forward_scratch, _aligned(saved) if save else None, self.size.saved if save else 0)
        args, count = _list([(SLOTS[n], x[n]) for n in INPUTS] + [(SLOTS["o"], o)])
        self.library.check(self.library.lib.gma_mixer_forward(self.mixer, args, count, c.byref(run)))
        return (o, saved) if save else o

    def forward_backward(self, x, grad_o):
        o, saved = self.forward(x, save=True)
        grads = {n: self._result("d" + n, x[n]) for n in INPUTS}
        run = Exec(c.sizeof(Exec), self.threads, 0, self._scratch(self.size.backward_scratch),
                   self.size.backward_scratch, _aligned(saved), self.size.saved)
        args, count = _list([(SLOTS[n], x[n]) for n in INPUTS] + [(SLOTS["o"], o), (SLOTS["o"] | GRAD, grad_o)] +
                            [(SLOTS[n] | GRAD, grads[n]) for n in INPUTS])
        self.library.check(self.library.lib.gma_mixer_backward(self.mixer, args, count, c.byref(run)))
        return o, grads


def _aligned(buffer):
    return (buffer.data_ptr() + 63) // 64 * 64
