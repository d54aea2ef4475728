"""GaussianMixtureAttention and AttentionState."""
import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import libgma
from common import call, random_inputs, worst


def test_defaults_and_shapes():
    m = libgma.GaussianMixtureAttention(24, 4, 5, num_kv_heads=2, routing_dim=3, value_dim=7, bias=True)
    assert m.mu.shape == (2, 5, 3) and m.alpha.shape == (2, 5) and m.out_proj.weight.shape == (24, 28)
    y = m(torch.randn(3, 9, 24), torch.randn(3, 11, 24), key_padding_mask=torch.zeros(3, 11, dtype=torch.bool))
    assert y.shape == (3, 9, 24)
    assert not m.omega.any() and 0.5 < m.mu.std() < 1.5
    near = libgma.GaussianMixtureAttention(24, 4, 64, mu_std=0.1)
    assert 0.09 < near.mu.std() < 0.11
    for bad in (dict(num_kv_heads=3), dict(num_components=0), dict(num_heads=5), dict(mu_std=0.0), dict(mu_std=float("nan"))):
        with pytest.raises(ValueError):
            libgma.GaussianMixtureAttention(**{**dict(embed_dim=24, num_heads=4, num_components=5), **bad})
    with pytest.raises(ValueError, match="x has shape"):
        m(torch.randn(3, 9, 23))
    with pytest.raises(ValueError, match="causal"):
        m.init_state(1)


def test_is_what_it_says():
    """The module is projections around the operator."""
    m = libgma.GaussianMixtureAttention(12, 2, 5, is_causal=True)
    x = torch.randn(2, 10, 12)
    heads = [p(x).view(2, 10, 2, 6).transpose(1, 2) for p in (m.q_proj, m.k_proj, m.v_proj)]
    o = libgma.naive_attention(*heads, m.mu, m.omega, m.alpha, is_causal=True)
    assert o.dtype == torch.float64
    assert worst(m(x), m.out_proj(o.float().transpose(1, 2).reshape(2, 10, 12))) < 1e-5
    assert worst(m.responsibilities(x).sum(-1), torch.ones(2, 2, 10)) < 1e-5


def test_streaming_equals_whole():
    m = libgma.GaussianMixtureAttention(12, 4, 5, num_kv_heads=2, is_causal=True)
    x = torch.randn(3, 40, 12)
    whole, (s, z) = m(x, return_state=True)
    a, state = m(x[:, :15], return_state=True)
    b = m(x[:, 15:], state=state)
    assert worst(torch.cat((a, b), 1), whole) < 1e-5
    decoding = m.init_state(3, state)
    c = torch.stack([m.step(x[:, i], decoding) for i in range(15, 30)], 1)
    assert worst(c, whole[:, 15:30]) < 1e-5
    again = pickle.loads(pickle.dumps(decoding))
    other = copy.deepcopy(decoding)
    for st in (decoding, again, other):  # three independent states
        d = torch.cat([m.step(x[:, i:i + 1], st) for i in range(30, 40)], 1)
        assert worst(d, whole[:, 30:]) < 1e-5
        for have, want in zip(st.export(), (s, z)):
            assert worst(have, want) < 1e-5
    with pytest.raises(ValueError, match="x has shape"):
        m.step(x, decoding)
    with pytest.raises(ValueError, match="q has shape"):
        m.step(x[:2, 0], decoding)


def test_packed_equals_separate():
    m = libgma.GaussianMixtureAttention(12, 2, 5, is_causal=True)
    x = torch.randn(1, 12, 12)
    packed = m(x, cu_seqlens=torch.tensor([0, 5, 5, 12]))
    assert worst(packed, torch.cat((m(x[:, :5]), m(x[:, 5:])), 1)) < 1e-5


def test_gradients_flow_through_states():
    m = libgma.GaussianMixtureAttention(8, 1, 3, is_causal=True).double()
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(m(x).square().sum(), x)
    a, state = m(x[:, :4], return_state=True)
    b = m(x[:, 4:], state=state)
    (pieces,) = torch.autograd.grad(a.square().sum() + b.square().sum(), x)
    torch.testing.assert_close(whole, pieces)


def test_long_sums_are_compensated():
    """Case E4: Z = 2^24 takes one more token, which plain float32 does not."""
    one = torch.ones(1, 1, 1, 1)
    state = libgma.AttentionState(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), torch.zeros(1, 1), batch=1, value_dim=1,
                                  initial_state=(torch.full((1, 1, 1, 1), 2.0**23), torch.full((1, 1, 1), 2.0**24)))
    for _ in range(4):
        state.step(one, one, one)
    s, z = state.export()
    assert float(z) == 2**24 + 4 and float(s) == 2**23 + 4


@pytest.mark.parametrize("mixer", ["linear", "performer"])
def test_other_mixers_decode(mixer):
    x = random_inputs(length=12, value=8)
    features = (torch.randn(6, 8),) if mixer == "performer" else ()
    f = getattr(libgma, mixer + "_attention")
    whole = f(*(x[n] for n in "qkv"), *features, is_causal=True)
    more = {"features": features[0]} if features else {"routing_dim": 8}
    state = libgma.AttentionState(mixer=mixer, batch=2, value_dim=8, num_kv_heads=3, **more)
    steps = torch.cat([state.step(*(x[n][:, :, i:i + 1] for n in "qkv")) for i in range(12)], 2)
    assert worst(steps, whole) < 1e-5
    with pytest.raises(ValueError, match="mu"):
        libgma.AttentionState(x["mu"], mixer=mixer, batch=2, value_dim=8, num_kv_heads=3, **more)


def test_numpy_and_torch_agree():
    x = random_inputs()
    arrays = {n: t.numpy() for n, t in x.items()}
    o, (s, z) = call(libgma.attention, x, {"is_causal": True}, return_state=True)
    o2, (s2, z2) = call(libgma.attention, arrays, {"is_causal": True}, return_state=True)
    assert isinstance(o2, np.ndarray) and np.array_equal(o.numpy(), o2) and np.array_equal(z.numpy(), z2)


def test_it_trains():
    torch.manual_seed(1)
    model = nn.Sequential(libgma.GaussianMixtureAttention(16, 2, 8), nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(4, 32, 16)
    y = x.flip(1).cumsum(1) / 8
    losses = []
    for _ in range(60):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
