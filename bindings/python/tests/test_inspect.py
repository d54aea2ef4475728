"""What `gma inspect` says, calculated a second time: queries and keys from the PyTorch model, the rest with NumPy in double and
scikit-learn. Needs build/bin/gma (make); GMA_BUILD names another build folder."""
import json
import os
import string
import subprocess

import numpy as np
import pytest
import torch

import libgma
from common import ROOT
from libgma.language_model import Mixer

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")

BUILD = os.path.join(ROOT, os.environ.get("GMA_BUILD", "build"))
GMA = os.path.join(BUILD, "bin", "gma")
SHAKESPEARE = os.path.join(ROOT, "models", "shakespeare-gma")
DATA = os.path.join(ROOT, "data", "tinyshakespeare", "input.txt")
CONTEXT, TOKENS = 256, 1024

pytestmark = pytest.mark.skipif(not os.path.exists(GMA), reason=f"there is no {GMA} (make)")


def gma(*words):
    done = subprocess.run([GMA, *words], capture_output=True, text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told():
    return json.loads(gma("inspect", SHAKESPEARE, "--data", DATA, "--tokens", str(TOKENS), "--json", "-"))


@pytest.fixture(scope="module")
def text():
    with open(DATA, "rb") as f:
        return np.frombuffer(f.read(TOKENS), np.uint8).astype(np.int64)


def gamma(x, mixer):
    """(B,H,N,K) from the formula, in double."""
    mu, omega, alpha = (p.detach().double().numpy() for p in (mixer.mu, mixer.omega, mixer.alpha))
    variance = np.logaddexp(0, omega) + mixer.eps_sigma
    d = x.detach().double().numpy()[:, :, :, None, :] - mu[None, :, None]
    logits = alpha[None, :, None] - 0.5 * ((d * d / variance[None, :, None]).sum(-1) + np.log(variance).sum(-1)[None, :, None])
    scale = mixer.logit_scale()
    if scale is not None:  # a power of prior times density: of the unnormalised prior as well, which softmax takes up
        logits = logits * scale.detach().double().numpy()[None, :, None, None]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def routed(model, text, context):
    """For each layer: gamma of the queries and of the keys, (H, tokens, K). Windows of `context` tokens, each by itself."""
    found, mix = [], Mixer.mix

    def watched(self, x, *more, **options):
        found.append([np.concatenate(list(gamma(y, self)), 1) for y in self.heads(x)[:2]])
        return mix(self, x, *more, **options)

    Mixer.mix = watched
    try:
        with torch.no_grad():
            model(torch.tensor(text.reshape(-1, context)))
    finally:
        Mixer.mix = mix
    return found


@pytest.fixture(scope="module")
def posteriors(text):
    found = routed(libgma.load_pretrained(SHAKESPEARE), text, CONTEXT)
    assert len(found) == 4
    return found


def surface(text):
    """The classes of docs/inspect.md for models of bytes."""
    def kind(c):
        if c in " \t\n\v\f\r":
            return "white space"
        if c in string.punctuation:
            return "punctuation"
        if c.isdigit():
            return "digits"
        return "capitalised" if "A" <= c <= "Z" else "other"

    return np.array([kind(chr(c)) for c in text])


def each_head(told, posteriors):
    assert len(told["heads"]) == 12 and told["tokens"] == TOKENS
    for h in told["heads"]:
        q, k = posteriors[h["layer"]]
        yield h, q[h["head"]], k[h["head"]]


def entropy(p):
    p = p[p > 0]
    return -(p * np.log(p)).sum()


def test_usage_and_entropies(told, posteriors):
    for h, q, k in each_head(told, posteriors):
        n = q.shape[1]
        usage = (q.mean(0) + k.mean(0)) / 2
        np.testing.assert_allclose([c["usage_q"] for c in h["mixture"]], q.mean(0), atol=2e-5)
        np.testing.assert_allclose([c["usage_k"] for c in h["mixture"]], k.mean(0), atol=2e-5)
        for key, u in (("usage_entropy", usage), ("usage_entropy_queries", q.mean(0)), ("usage_entropy_keys", k.mean(0))):
            assert abs(h[key] - entropy(u) / np.log(n)) < 2e-5
        clear = np.abs(usage - 1 / (10 * n)) > 1e-5  # which side the others are on is a matter of rounding
        assert abs(h["used"] - (usage > 1 / (10 * n)).sum()) <= (~clear).sum()
        for key, g in (("effective_components_queries", q), ("effective_components_keys", k)):
            assert abs(h[key] - np.exp(np.mean([entropy(row) for row in g]))) < 2e-4 * h[key]
        assert abs(h["overlap"] - np.minimum(q, k).sum(-1).mean()) < 2e-5
        assert abs(h["agreement"] - (q.argmax(-1) == k.argmax(-1)).mean()) < 3 / TOKENS


def test_mutual_information_and_purity(told, posteriors, text):
    labels = {"surface class": surface(text), "token": text}
    for h, q, k in each_head(told, posteriors):
        against = {a["labels"]: a for a in h["against"]}
        assert set(labels) <= set(against)
        for name, label in labels.items():
            a, hard = against[name], k.argmax(-1)
            nmi = metrics.normalized_mutual_info_score(label, hard)
            assert a["labelled"] == TOKENS
            assert abs(a["nmi"] - nmi) < 4e-3, (h["layer"], h["head"], name)  # a token whose two largest are alike may go either way
            assert abs(a["nmi_queries"] - metrics.normalized_mutual_info_score(label, q.argmax(-1))) < 4e-3
            halves = (entropy(np.unique(label, return_counts=True)[1] / TOKENS) + entropy(np.unique(hard, return_counts=True)[1] / TOKENS)) / 2
            assert abs(a["nmi"] * halves - metrics.mutual_info_score(label, hard)) < 1e-2
            table = metrics.cluster.contingency_matrix(hard, label)
            assert abs(a["purity"] - table.max(1).sum() / TOKENS) < 4e-3
            assert abs(a["nmi_above_chance"] - (a["nmi"] - a["nmi_chance"])) < 1e-8
            rng = np.random.default_rng(1)
            chance = np.array([metrics.normalized_mutual_info_score(rng.permutation(label), hard) for _ in range(12)])
            assert abs(a["nmi_chance"] - chance.mean()) < 6 * chance.std() + 1e-3


def test_effective_rank_and_priors(told, posteriors):
    model = libgma.load_pretrained(SHAKESPEARE)
    mixers = [m for m in model.modules() if isinstance(m, Mixer)]
    for h, q, k in each_head(told, posteriors):
        values = np.linalg.svd(q @ k.T, compute_uv=False) if h["head"] == 0 else None
        if values is not None:
            assert abs(h["effective_rank"] - np.exp(entropy(values / values.sum()))) < 1e-3 * h["effective_rank"]
        m = mixers[h["layer"]]
        alpha, omega = m.alpha[h["head"]].detach().double().numpy(), m.omega[h["head"]].detach().double().numpy()
        prior = np.exp(alpha - alpha.max())
        np.testing.assert_allclose([c["prior"] for c in h["mixture"]], prior / prior.sum(), rtol=1e-6)
        variance = np.logaddexp(0, omega) + m.eps_sigma
        np.testing.assert_allclose([c["variance_mean"] for c in h["mixture"]], variance.mean(-1), rtol=1e-6)
        np.testing.assert_allclose([c["variance_max"] for c in h["mixture"]], variance.max(-1), rtol=1e-6)


def test_matching_is_the_best(tmp_path, text):
    """Components of two checkpoints: scipy (which scikit-learn brings) matches them to the same sum."""
    from scipy.optimize import linear_sum_assignment

    runs = []
    for seed in ("1", "2"):
        runs.append(str(tmp_path / seed))
        gma("train", "--data", DATA, "--out", runs[-1], "--preset", "tiny", "--layers", "1", "--width", "32", "--heads", "2",
            "--components", "8", "--context", "64", "--batch", "4", "--steps", "4", "--seed", seed)
    out = json.loads(gma("inspect", "--compare", *runs, "--data", DATA, "--tokens", str(TOKENS), "--json", "-"))
    rows = []
    for run in runs:
        q, k = routed(libgma.load_pretrained(run), text, 64)[0]
        rows.append([np.concatenate([q[h], k[h]]) for h in range(2)])
    score = np.array([[np.corrcoef(a.T, b.T)[:8, 8:] for b in rows[1]] for a in rows[0]])
    mean = np.array([[s[linear_sum_assignment(s, maximize=True)].mean() for s in row] for row in score])
    want = dict(zip(*(x.tolist() for x in linear_sum_assignment(mean, maximize=True))))
    assert {p["head_a"]: p["head_b"] for p in out["pairs"]} == want
    for p in out["pairs"]:
        assert abs(p["correlation"] - mean[p["head_a"], p["head_b"]]) < 1e-4
        for c in p["components"]:
            assert abs(c["correlation"] - score[p["head_a"], p["head_b"], c["a"], c["b"]]) < 1e-3


def test_tensorboard_reads_the_events(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    run = str(tmp_path / "run")
    train = ["train", "--data", DATA, "--out", run, "--preset", "tiny", "--layers", "2", "--width", "32", "--heads", "2", "--components", "8",
             "--context", "64", "--batch", "4", "--steps", "9", "--inspect-every", "3", "--save-every", "4"]
    gma(*train, "--stop-at", "6")
    gma("train", "--out", run, "--resume")
    with open(os.path.join(run, "metrics.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    looks = {line["step"]: line["inspect"] for line in lines if "inspect" in line}
    assert list(looks) == [3, 6, 9]
    events = reader.EventAccumulator(run)
    events.Reload()
    tags = events.Tags()["scalars"]
    assert len(tags) == 1 + 4 * 4
    loss = {e.step: e.value for e in events.Scalars("loss")}
    assert loss == pytest.approx({line["step"]: line["loss"] for line in lines if line["step"] in looks and "loss" in line}, rel=1e-6)
    for key in ("used", "usage_entropy", "effective_components_queries", "effective_components_keys"):
        for i in range(4):
            head = {step: heads[i] for step, heads in looks.items()}
            tag = f"inspect/{key}/layer{head[3]['layer']}_head{head[3]['head']}"
            assert {e.step: e.value for e in events.Scalars(tag)} == pytest.approx({s: h[key] for s, h in head.items()}, rel=1e-6), tag
    records = list(EventFileLoader(os.path.join(run, "events.out.tfevents.gma")).Load())
    assert records[0].file_version == "brain.Event:2"
    assert len(records) == 1 + 3 * len(tags)
    assert all(a.wall_time <= b.wall_time for a, b in zip(records, records[1:]))
