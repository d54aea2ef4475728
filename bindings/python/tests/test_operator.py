"""The operator against the golden files and the cases of other people's bug reports, through PyTorch."""
import mmap
import os

import numpy as np
import pytest
import torch

import libgma
from common import GOLDEN, INPUTS, call, config_a, golden, limits, random_inputs, worst

NAMES = sorted(f[:-len(".safetensors")] for f in os.listdir(GOLDEN) if f.endswith(".safetensors"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_golden(name, dtype):
    x, options = golden(name)
    leaves = {n: x[n].to(dtype).requires_grad_() for n in INPUTS if n in x}
    o, (s, z) = call(libgma.attention, leaves, options, return_state=True)
    (tol, floor), (tol_grad, floor_grad) = limits(name, dtype)
    assert o.dtype == dtype and worst(o, x["o"], floor) < tol
    for have, key in ((s, "out_S"), (z, "out_Z")):
        if key in x:
            assert worst(have, x[key], floor) < tol
    outputs, up = [], []
    for have, key in ((o, "grad_o"), (s, "grad_out_S"), (z, "grad_out_Z")):
        if key in x:
            outputs.append(have)
            up.append(x[key].to(have.dtype))
    torch.autograd.backward(outputs, up)
    for n, leaf in leaves.items():
        if "grad_" + n in x:
            have = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            assert worst(have, x["grad_" + n], floor_grad) < tol_grad, n
    for key in ("q", "k"):
        gamma = libgma.responsibilities(x[key].to(dtype), *(x[n].to(dtype) for n in ("mu", "omega", "alpha")),
                                        logit_scale=x["logit_scale"].to(dtype) if "logit_scale" in x else None,
                                        eps_sigma=options["eps_sigma"])
        if key == "k" and "key_mask" in x:  # the file holds 0 for a key that does not count
            gamma = gamma * x["key_mask"][:, None, :, None]
        assert worst(gamma, x["gamma_" + key], floor) < tol


@pytest.mark.parametrize("nq, nk, want", [(2, 5, [2.5, 3]), (1, 5, [3]), (5, 2, [0, 0, 0, 1, 1.5])])
def test_b1_aligned_at_the_end(nq, nk, want):
    o = call(libgma.attention, config_a([0] * nq, [0] * nk, range(1, nk + 1)), {"is_causal": True})
    torch.testing.assert_close(o.flatten(), torch.tensor(want, dtype=torch.float32), rtol=5e-6, atol=0)


def test_b1_equals_streaming():
    x = random_inputs(length=100)
    x["q"] = x["q"][:, :, :40]
    whole, end = call(libgma.attention, x, {"is_causal": True}, return_state=True)
    first = {**x, "q": x["q"][:, :, :0], "k": x["k"][:, :, :60], "v": x["v"][:, :, :60]}
    _, (s, z) = call(libgma.attention, first, {"is_causal": True}, return_state=True)
    rest = {**x, "k": x["k"][:, :, 60:], "v": x["v"][:, :, 60:], "state_S": s, "state_Z": z}
    o, state = call(libgma.attention, rest, {"is_causal": True}, return_state=True)
    assert worst(o, whole) < 1e-5 and worst(state[0], end[0]) < 1e-5


GOLD = {"q": [-6.11849e-7, -0.739497244772, -0.188976828489], "k": [-0.074930841654, -0.210748877241, 0.759419749315],
        "v": [1.792894806540, 0.886869327920, 0.320231911317], "mu": [0.264507676137, 0.190226978552],
        "omega": [0.081821002235, -0.034869378938], "alpha": [0.227367327344, -0.227367327344]}


@pytest.mark.parametrize("upstream", ["sum", "transposed"])
def test_g1_g3_gradients(upstream):
    x = config_a([.5, -.25, 1], [-.3, .8, .1], [1, -2, 4])
    leaves = {n: t.requires_grad_() for n, t in x.items()}
    o = call(libgma.attention, leaves, {"is_causal": True})
    if upstream == "sum":
        o.sum().backward()  # strides 0
    else:
        o.backward(torch.ones(1, 3, 1, 1).transpose(1, 2))
    for name, want in GOLD.items():
        np.testing.assert_allclose(leaves[name].grad.flatten(), want, atol=1e-5)


def test_g4_second_derivative_is_a_clear_error():
    x = random_inputs(length=4, dtype=torch.float64, grad=True)
    o = call(libgma.attention, x, {"is_causal": True})
    (g,) = torch.autograd.grad(o.sum(), x["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        g.sum().backward()


def test_g6_bfloat16_module_keeps_parameters_exact():
    module = libgma.GaussianMixtureAttention(64, 1, 3, is_causal=True)
    with torch.no_grad():
        module.omega.fill_(-9.0)
        module.mu.mul_(0.05)
    module = module.bfloat16()
    x = (0.02 * torch.randn(1, 1, 20, 64)).bfloat16()
    params = [p.detach() for p in (module.mu, module.omega, module.alpha)]
    fast = libgma.responsibilities(x, *params)
    exact = libgma.responsibilities(x.double(), *(p.double() for p in params))
    assert fast.dtype == torch.float32 and worst(fast, exact) < 1e-3
    one = libgma.responsibilities(torch.zeros(1, 1, 1, 64), torch.stack((torch.zeros(64), torch.full((64,), 0.01)))[None],
                                  torch.full((1, 2, 64), -9.0).bfloat16(), torch.zeros(1, 2))
    sigma2 = np.log1p(np.exp(-9.0)) + 1e-4
    assert abs(float(one[0, 0, 0, 1] / one[0, 0, 0, 0]) / np.exp(-64 * 1e-4 / (2 * sigma2)) - 1) < 1e-4


def _layouts(t):
    b, h, n, d = t.shape
    yield "tokens before heads", t.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.full((b, h, n, 2 * d), float("nan"))
    wide[..., ::2] = t
    yield "every other column", wide[..., ::2]
    padded = torch.full((b, h, n + 3, d + 5), float("nan"))
    padded[:, :, 3:, 5:] = t
    yield "slice with an offset", padded[:, :, 3:, 5:]
    yield "expanded", t[:1].expand(b, -1, -1, -1)


def test_h1_strides():
    x = random_inputs()
    for name in ("q", "k", "v"):
        x[name][1] = x[name][0]
    up = torch.randn(2, 3, 50, 5)

    def run(x):
        leaves = {n: t.detach().requires_grad_() for n, t in x.items()}
        o = call(libgma.attention, leaves, {"is_causal": True})
        o.backward(up)
        return [o.detach()] + [leaf.grad for leaf in leaves.values()]

    dense = run(x)
    for i in range(4):
        moved = dict(x)
        for name in ("q", "k", "v"):
            label, moved[name] = list(_layouts(x[name]))[i]
        for a, b in zip(dense, run(moved)):
            assert torch.equal(a, b), label


def test_nothing_is_copied_when_rows_are_contiguous():
    from libgma import _torch
    base = torch.randn(2, 50, 3, 3 * 8)
    q = base[..., 8:16].transpose(1, 2)
    assert _torch.view(q, "q", True)[1][0] == q.data_ptr()
    assert _torch.view(q.expand(2, 3, 50, 8)[..., ::2], "q", True)[1][0] != q.data_ptr()
    o = libgma.attention(q, q, q, torch.randn(3, 4, 8), torch.zeros(3, 4, 8), torch.zeros(3, 4))
    assert o.transpose(1, 2).is_contiguous()  # what follows in a module is a view, too


def test_h2_grouped_heads():
    x = {n: t.repeat(1, 2, 1, 1) if t.dim() == 4 else t.repeat(2, *(1,) * (t.dim() - 1))
         for n, t in config_a([0], [0, 0, 0], [1, 1, 1]).items()}
    x["q"] = torch.zeros(1, 4, 1, 1)
    x["v"] = torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1).repeat(1, 1, 3, 1).requires_grad_()
    o = call(libgma.attention, x, {})
    torch.testing.assert_close(o.flatten(), torch.tensor([1.0, 1, 2, 2]), rtol=1e-5, atol=0)
    o.backward(torch.tensor([1.0, 2, 3, 4]).reshape(1, 4, 1, 1))
    torch.testing.assert_close(x["v"].grad.flatten(), torch.tensor([1.0] * 3 + [7 / 3] * 3), rtol=1e-5, atol=0)
    x["q"] = torch.zeros(1, 3, 1, 1)
    with pytest.raises(ValueError, match="heads"):
        call(libgma.attention, x, {})


def test_h3_offsets_beyond_31_bits():
    row = 2**31 + 16
    try:
        memory = mmap.mmap(-1, 4 * (row + 16), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    except OSError:
        pytest.skip("no address space for 8 GiB")
    far = torch.frombuffer(memory, dtype=torch.float32).as_strided((1, 1, 2, 1), (row, row, row, 1))
    far[0, 0, 0, 0], far[0, 0, 1, 0] = 1, 3
    zero = torch.zeros(1, 1, 2, 1)
    o = libgma.attention(zero, zero, far, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), torch.zeros(1, 1), is_causal=True)
    torch.testing.assert_close(o.flatten(), torch.tensor([1.0, 2.0]), rtol=5e-6, atol=0)


def test_h3_many_heads():
    one = torch.arange(70000, dtype=torch.float32).reshape(1, 70000, 1, 1)
    zero = torch.zeros(70000, 1, 1)
    o = libgma.attention(one, one, one, zero, zero, zero[:, :, 0])
    torch.testing.assert_close(o, one, rtol=5e-6, atol=1e-6)


def test_i1_same_bits_for_any_number_of_threads():
    x = random_inputs(batch=1, heads=3, length=1000, components=128, routing=16, value=16)
    up, before = torch.randn(1, 3, 1000, 16), torch.get_num_threads()

    def run():
        leaves = {n: t.clone().requires_grad_() for n, t in x.items()}
        o = call(libgma.attention, leaves, {"is_causal": True})
        o.backward(up)
        return [o.detach()] + [leaf.grad for leaf in leaves.values()]
    try:
        first = None
        for threads in (1, 2, 3, 7, 2):
            torch.set_num_threads(threads)
            for _ in range(2):
                got = run()
                first = first or got
                assert all(torch.equal(a, b) for a, b in zip(first, got)), threads
    finally:
        torch.set_num_threads(before)


def test_errors_name_the_argument():
    x = random_inputs()
    for change, match in (({"mu": x["mu"][:, :, :3]}, "mu has shape"), ({"q": x["q"][0]}, "q has shape"),
                          ({"k": x["k"].half()}, "k is float16"), ({"alpha": x["alpha"].int().double()[0]}, "alpha"),
                          ({"log_decay": torch.ones(2, 3, 50)}, r"log_decay\[0,0,0\]"),
                          ({"logit_scale": torch.zeros(3)}, "logit_scale"), ({"v": x["v"].numpy()}, "v is a ndarray")):
        with pytest.raises(ValueError, match=match):
            call(libgma.attention, {**x, **change}, {"is_causal": True})
    for options, match in (({"eps": 0.0}, "eps"), ({"key_padding_mask": torch.zeros(2, 50)}, "bool"),
                           ({"key_padding_mask": torch.zeros(50, 50, dtype=torch.bool)}, "key_mask"),
                           ({"cu_seqlens": torch.tensor([0, 50])}, "batch"), ({"cu_seqlens": torch.tensor([], dtype=torch.int64)}, "cu_seqlens")):
        with pytest.raises(ValueError, match=match):
            call(libgma.attention, x, options)
    with pytest.raises(ValueError, match="log_decay"):  # nothing is silently ignored
        call(libgma.attention, {**x, "log_decay": torch.zeros(2, 3, 50)}, {})
    with pytest.raises((RuntimeError, NotImplementedError)):
        call(libgma.attention, {n: t.to_sparse() for n, t in x.items()}, {})


def test_padding_and_packing():
    x = config_a([0] * 4, [0] * 4, [9, 9, 1, 3], )
    pad = torch.tensor([[True, True, False, False]])
    o, (_, z) = call(libgma.attention, x, {"is_causal": True, "key_padding_mask": pad}, return_state=True)
    torch.testing.assert_close(o.flatten(), torch.tensor([0.0, 0, 1, 2]), rtol=5e-6, atol=0)
    assert abs(float(z.sum()) - 2) < 1e-5
    x = config_a([0] * 5, [0] * 5, [1, 2, 3, 4, 5])
    for dtype in (torch.int32, torch.int64):
        o = call(libgma.attention, x, {"is_causal": True, "cu_seqlens": torch.tensor([0, 2, 2, 5], dtype=dtype)})
        torch.testing.assert_close(o.flatten(), torch.tensor([1, 1.5, 3, 3.5, 4]), rtol=5e-6, atol=0)


def test_responsibilities_have_gradients():
    x = random_inputs(heads=4, kv_heads=2, length=6, dtype=torch.float64, grad=True)
    params = [x[n] for n in ("mu", "omega", "alpha")] + [torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)]
    f = lambda q, mu, omega, alpha, scale: libgma.responsibilities(q, mu, omega, alpha, logit_scale=scale)
    assert torch.autograd.gradcheck(f, (x["q"], *params))
    plain = f(x["q"].detach(), *(p.detach() for p in params))
    torch.testing.assert_close(f(x["q"], *params), plain, rtol=1e-9, atol=1e-12)


def has(mixer):
    return pytest.mark.skipif(mixer not in libgma.mixers(), reason=f"this library has no mixer {mixer}")


@has("softmax")
def test_softmax_is_sdpa():
    x = random_inputs(length=40, value=8, heads=4)
    q, k, v = (x[n].requires_grad_() for n in "qkv")
    pad = torch.rand(2, 40) > 0.6
    pad[:, 0] = False
    for options, mask in (({}, None), ({"is_causal": True}, torch.ones(40, 40).tril().bool()),
                          ({"key_padding_mask": pad}, ~pad[:, None, None]),
                          ({"is_causal": True, "window": 7}, torch.ones(40, 40).tril().triu(-6).bool())):
        o = libgma.softmax_attention(q, k, v, **options)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        assert worst(o, want) < 1e-5, options
        for a, b in zip(torch.autograd.grad(o.square().sum(), (q, k, v)), torch.autograd.grad(want.square().sum(), (q, k, v))):
            assert worst(a, b) < 1e-4, options
    x64 = [x[n].detach()[:1, :2, :6].double().requires_grad_() for n in "qkv"]
    assert torch.autograd.gradcheck(lambda *t: libgma.softmax_attention(*t, is_causal=True, rotary_base=100.0), x64)


@has("softmax")
def test_softmax_decodes():
    x = random_inputs(length=20, value=8)
    for options in ({"window": 5}, {"rotary_base": 100.0, "cache_len": 20}):
        whole = libgma.softmax_attention(*(x[n] for n in "qkv"), is_causal=True,
                                         **{n: o for n, o in options.items() if n != "cache_len"})
        state = libgma.AttentionState(mixer="softmax", batch=2, value_dim=8, routing_dim=8, num_kv_heads=3,
                                      initial_state=(x["k"][:, :, :9], x["v"][:, :, :9]), **options)
        steps = [state.step(*(x[n][:, :, i:i + 1] for n in "qkv")) for i in range(9, 20)]
        assert worst(torch.cat(steps, 2), whole[:, :, 9:]) < 1e-5
    with pytest.raises((ValueError, RuntimeError)):
        libgma.AttentionState(mixer="softmax", batch=2, value_dim=8, routing_dim=8, num_kv_heads=3)


@has("linformer")
def test_linformer():
    x = random_inputs(length=20, value=8)
    p, r = torch.randn(2, 6, 20)
    o = libgma.linformer_attention(x["q"], x["k"], x["v"], p, r)
    assert worst(o, torch.nn.functional.scaled_dot_product_attention(x["q"], p @ x["k"], r @ x["v"])) < 1e-4
    own = torch.randn(2, 3, 6, 20)
    o = libgma.linformer_attention(x["q"], x["k"], x["v"], *own)
    assert worst(o, torch.nn.functional.scaled_dot_product_attention(x["q"], own[0] @ x["k"], own[1] @ x["v"])) < 1e-4
    args = [t.double().requires_grad_() for t in (x["q"][:1, :2, :5], x["k"][:1, :2], x["v"][:1, :2], p, r)]
    assert torch.autograd.gradcheck(libgma.linformer_attention, args)


@has("mamba")
def test_mamba_scan():
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    u, delta, b, c = draw(2, 9, 5), draw(2, 9, 5), draw(2, 9, 4), draw(2, 9, 4)
    a, d, bias, h = -draw(5, 4).exp(), draw(5), draw(5), draw(2, 5, 4)
    args = [t.requires_grad_() for t in (u, delta, a, b, c, d, bias, h)]

    def f(*t):
        return libgma.mamba_scan(*t[:7], initial_state=t[7], return_state=True)
    y, end = f(*args)
    state, rows = h, []
    for i in range(9):
        step = torch.nn.functional.softplus(delta[:, i] + bias)[..., None]
        state = torch.exp(step * a) * state + step * b[:, i, None] * u[:, i, :, None]
        rows.append((state * c[:, i, None]).sum(-1) + d * u[:, i])
    assert worst(y, torch.stack(rows, 1)) < 1e-9 and worst(end, state) < 1e-9
    fast, end32 = f(*(t.detach().float() for t in args))
    assert fast.dtype == torch.float32 and worst(fast, y) < 1e-4 and worst(end32, end) < 1e-4
    assert torch.autograd.gradcheck(f, args)
