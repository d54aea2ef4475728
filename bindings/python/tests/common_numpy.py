"""The NumPy side: forward, step, naive, responsibilities. Imported where PyTorch is out of reach."""


def check(libgma, np):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    q, k, v, mu, omega, alpha = draw(2, 4, 30, 6), draw(2, 2, 30, 6), draw(2, 2, 30, 5), draw(2, 3, 6), draw(2, 3, 6), draw(2, 3)
    close = lambda a, b, tol=1e-5: np.testing.assert_allclose(a, b, rtol=0, atol=tol * np.abs(b).max())
    o, (s, z) = libgma.attention(q, k, v, mu, omega, alpha, is_causal=True, return_state=True)
    assert type(o) is np.ndarray and o.dtype == np.float32 and o.shape == (2, 4, 30, 5)
    naive = libgma.naive_attention(q, k, v, mu, omega, alpha, is_causal=True)
    assert naive.dtype == np.float64
    close(o, naive)
    # any strides: tokens before heads, backwards, every other column, broadcast
    for f in (lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2), lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
              lambda x: np.repeat(x, 2, -1)[..., ::2]):
        assert np.array_equal(libgma.attention(f(q), f(k), f(v), mu, omega, alpha, is_causal=True), o)
    state = libgma.AttentionState(mu, omega, alpha, batch=2, value_dim=5, num_heads=4)
    steps = [state.step(q[:, :, i:i + 1], k[:, :, i:i + 1], v[:, :, i:i + 1]) for i in range(30)]
    assert type(steps[0]) is np.ndarray
    close(np.concatenate(steps, 2), o)
    for have, want in zip(state.export(like=q), (s, z)):
        close(have, want)
    gamma = libgma.responsibilities(q, mu, omega, alpha)
    close(gamma, libgma.responsibilities(*(x.astype(np.float64) for x in (q, mu, omega, alpha))))
    close(gamma.sum(-1), np.ones(gamma.shape[:-1]))
    pad = np.zeros((2, 30), bool)
    pad[:, :10] = True
    o = libgma.attention(q, k, v, mu, omega, alpha, key_padding_mask=pad)
    close(o, libgma.attention(q, k[:, :, 10:], v[:, :, 10:], mu, omega, alpha))
    assert libgma.linear_attention(q, k, v).shape == libgma.performer_attention(q, k, v, draw(7, 6)).shape == o.shape
    for bad, match in (((q.astype(np.float16), k), "q is float16"), ((q[0], k), "q has shape"), ((q, k[..., :3]), "k has shape")):
        try:
            libgma.attention(*bad, v, mu, omega, alpha)
            raise AssertionError(match)
        except ValueError as error:
            assert match in str(error), error
