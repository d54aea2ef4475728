"""What PyTorch's machinery asks of an operator and a module."""
import copy
import io
import pickle
import shutil
import threading
import time

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import libgma
from common import call, random_inputs, worst

OPTIONAL = ("key_mask", "cu_seqlens", "state_S", "state_Z", "log_decay", "logit_scale")


def op_arguments(grad, dtype=torch.float32, causal=True, want_state=True, save=True, **more):
    x = {**random_inputs(length=20, dtype=dtype, grad=grad), **more}
    tensors = [x.get(n) for n in ("q", "k", "v", "mu", "omega", "alpha", *OPTIONAL)]
    return (*tensors, causal, 1e-6, 1e-4, 0.0, 0.0, 0, want_state, save)


@pytest.mark.parametrize("arguments", [
    dict(grad=True), dict(grad=True, save=False, want_state=False), dict(grad=False, dtype=torch.bfloat16),
    dict(grad=True, dtype=torch.float64, causal=False),
    dict(grad=True, key_mask=torch.rand(2, 20) > 0.3, state_S=torch.rand(2, 3, 7, 5), state_Z=torch.rand(2, 3, 7),
         log_decay=-torch.rand(2, 3, 20), logit_scale=torch.rand(3) + 0.5)],
    ids=["plain", "recomputed", "bf16", "f64", "everything"])
def test_opcheck(arguments):
    arguments = dict(arguments)
    if arguments.get("dtype") == torch.bfloat16:
        x = random_inputs(length=20)
        args = tuple(t.bfloat16() if n in "qkv" else t for n, t in x.items()) + (None,) * 6 + (True, 1e-6, 1e-4, 0.0, 0.0, 0, True, True)
    else:
        args = op_arguments(**arguments)
    torch.library.opcheck(torch.ops.libgma.gma.default, args)


@pytest.mark.parametrize("mixer", libgma.mixers())
def test_opcheck_every_mixer(mixer):
    x = random_inputs(length=20, value=8, grad=True)
    x.update(features=torch.randn(11, 8), proj_k=torch.randn(6, 20), proj_v=torch.randn(6, 20))
    draw = lambda *shape: torch.rand(*shape).requires_grad_()
    x.update(u=draw(2, 20, 10), delta=draw(2, 20, 10), A=(-torch.rand(10, 4)).requires_grad_(), B=draw(2, 20, 4), C=draw(2, 20, 4),
             D=draw(10), delta_bias=draw(10))
    schema = getattr(torch.ops.libgma, mixer).default._schema
    wanted = [a.name for a in schema.arguments if a.type.kind() == "TensorType"]
    if any(n not in x for n in wanted):
        pytest.skip(f"inputs of {mixer} are tested elsewhere")
    args = [x.get(a.name) if a.name in wanted else None for a in schema.arguments[:-8]]
    torch.library.opcheck(getattr(torch.ops.libgma, mixer).default, (*args, mixer != "linformer", 1e-6, 1e-4, 0.0, 0.0, 0, True, True))


@pytest.mark.parametrize("causal", [True, False])
def test_gradcheck(causal):
    x = random_inputs(batch=2, heads=4, kv_heads=2, length=4, dtype=torch.float64, grad=True)
    g = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64)
    more = {"logit_scale": draw(2) + 0.5, "state_S": draw(2, 2, 7, 5), "state_Z": draw(2, 2, 7) + 0.1}
    if causal:
        more["log_decay"] = -draw(2, 2, 4) - 0.1
    names = (*x, *more)
    values = (*x.values(), *(t.requires_grad_() for t in more.values()))

    def f(*tensors):
        o, (s, z) = call(libgma.attention, dict(zip(names, tensors)), {"is_causal": causal}, return_state=True)
        return o, s, z
    assert torch.autograd.gradcheck(f, values)


@pytest.mark.parametrize("function", ["linear_attention", "performer_attention"])
def test_gradcheck_of_other_mixers(function):
    x = random_inputs(length=5, value=8, dtype=torch.float64, grad=True)
    more = (torch.randn(6, 8, dtype=torch.float64),) if function == "performer_attention" else ()
    f = lambda q, k, v: getattr(libgma, function)(q, k, v, *more, is_causal=True)
    assert torch.autograd.gradcheck(f, tuple(x[n] for n in "qkv"))
    fast = getattr(libgma, function)(*(x[n].float() for n in "qkv"), *(m.float() for m in more), is_causal=True)
    assert worst(fast, f(*(x[n] for n in "qkv"))) < 1e-4


def module_and_input(dtype=torch.float32, **more):
    torch.manual_seed(0)
    return libgma.GaussianMixtureAttention(24, 3, 7, is_causal=True, **more).to(dtype), torch.randn(2, 30, 24, dtype=dtype)


def gradients(run, module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = run(x)
    y.square().sum().backward()
    return [y.detach(), x.grad] + [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, dynamic):
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    torch._dynamo.reset()
    module, x = module_and_input()
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=dynamic)
    for n in (30, 17) if dynamic else (30,):
        want, got = gradients(module, module, x[:, :n]), gradients(compiled, module, x[:, :n])
        for a, b in zip(want, got):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_compile_without_gradients_and_with_options():
    torch._dynamo.reset()
    x = random_inputs(length=20)

    def f(q, k, v, mu, omega, alpha, pad, decay):
        o, (s, z) = libgma.attention(q, k, v, mu, omega, alpha, is_causal=True, key_padding_mask=pad, log_decay=decay,
                                     return_state=True)
        return o + 1, s, z, libgma.responsibilities(q, mu, omega, alpha)
    args = (*x.values(), torch.rand(2, 20) > 0.5, -torch.rand(2, 3, 20))
    for a, b in zip(f(*args), torch.compile(f, backend="aot_eager", fullgraph=True)(*args)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("train", [False, True])
def test_export(train):
    module, x = module_and_input()
    length = torch.export.Dim("length", min=2, max=4096)
    with torch.set_grad_enabled(train):
        program = torch.export.export(module, (x,), dynamic_shapes={"x": {1: length}} if not train else None)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for n in (30,) if train else (30, 11):
        torch.testing.assert_close(again(x[:, :n]), module(x[:, :n]))


def test_autocast():
    module, x = module_and_input()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x)
        assert y.dtype == torch.bfloat16
        q = torch.randn(2, 3, 30, 8)
        assert libgma.attention(q, q, q, module.mu, module.omega, module.alpha).dtype == torch.bfloat16
    y.float().sum().backward()
    assert worst(y.float(), module(x)) < 0.05
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    module, x = module_and_input()
    plain = gradients(module, module, x)
    again = gradients(lambda t: checkpoint(module, t, use_reentrant=reentrant), module, x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again))


def test_saved_tensor_hooks():
    module, x = module_and_input()
    plain = gradients(module, module, x)

    def moved(t):  # somewhere else in memory, badly aligned
        flat = torch.empty(t.numel() + 1, dtype=t.dtype)[1:]
        return flat.copy_(t.flatten()).view(t.shape)
    with torch.autograd.graph.saved_tensors_hooks(moved, lambda t: t):
        again = gradients(module, module, x)
    assert all(torch.equal(a, b) for a, b in zip(plain, again))


def test_copies():
    module, x = module_and_input()
    want = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), want)
    fresh = libgma.GaussianMixtureAttention(24, 3, 7, is_causal=True)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(x), want)
    assert sorted(module.state_dict()) == ["alpha", "k_proj.weight", "mu", "omega", "out_proj.weight", "q_proj.weight",
                                           "v_proj.weight"]


@pytest.mark.parametrize("how", [lambda m: m.to(torch.bfloat16), lambda m: m.bfloat16()])
def test_bfloat16(how):
    module, x = module_and_input()
    want = module(x)
    half = how(copy.deepcopy(module))
    y = half(x.bfloat16())
    assert y.dtype == torch.bfloat16 and worst(y.float(), want) < 0.05
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.bfloat16 and torch.isfinite(p.grad).all() for p in half.parameters())


def test_threads_share_a_module():
    module, _ = module_and_input()
    inputs = [torch.randn(1, 20 + i, 24) for i in range(8)]
    want = [module(x).detach() for x in inputs]
    wrong = []

    def work(i):
        for _ in range(20):
            x = inputs[i].clone().requires_grad_()
            y = module(x)
            torch.autograd.grad(y.sum(), x)
            if not torch.equal(y, want[i]):
                wrong.append(i)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_the_gil_is_released():
    x = random_inputs(batch=1, heads=1, length=6000, components=64, routing=32, value=32, dtype=torch.float64)
    seen, done = [], threading.Event()

    def watch():
        while not done.is_set():
            seen.append(time.perf_counter())
            time.sleep(0.001)
    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    call(libgma.attention, x, {})  # the definition in double: one call of the library
    end = time.perf_counter()
    done.set()
    watcher.join()
    assert sum(start < t < end for t in seen) >= 3 or end - start < 0.01


def test_inference_and_other_devices():
    module, x = module_and_input()
    with torch.inference_mode():
        assert torch.equal(module(x), module(x))
    meta = module.to("meta")
    assert meta(x.to("meta")).shape == x.shape
    empty = random_inputs(length=0)
    assert call(libgma.attention, empty, {}).shape == (2, 3, 0, 5)


def test_compiled_graphs_are_of_one_build():
    """Sizes of buffers are part of a compiled graph, which is kept on disk, and another build may have others."""
    from libgma._library import STAMP
    seen = []

    def look(graph, _):
        seen.extend(node.args[-1] for node in graph.graph.nodes if "libgma" in str(node.target))
        return graph.forward
    x = [t.requires_grad_() for t in (torch.randn(1, 2, 9, 4), torch.randn(2, 5, 4), torch.zeros(2, 5, 4), torch.zeros(2, 5))]
    torch.compile(lambda q, *p: libgma.attention(q, q, q, *p), backend=look, fullgraph=True)(*x)
    assert seen == [STAMP]
