"""Models of the program `gma` in PyTorch, and back. Needs build/bin/gma (make); GMA_BUILD names another build folder."""
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import libgma
from common import ROOT
from libgma import checkpoint

BUILD = os.environ.get("GMA_BUILD", os.path.join(ROOT, "build"))
SHAKESPEARE = os.path.join(ROOT, "models", "shakespeare-gma")
TEXT = b"ROMEO:\nBut, soft! what light through yonder window breaks?\nIt is the east, and Juliet is the sun."

# In a process of its own: the program's libraries bring the system's OpenMP runtime with them.
LOGITS = """
import ctypes as c, sys, numpy as np
build, folder, text, out = sys.argv[1:]
gma, lm = c.CDLL(build + "/lib/libgma.so"), c.CDLL(build + "/lib/libgma_lm.so")
gma.gma_last_error.restype = c.c_char_p
def check(status):
    if status: sys.exit(gma.gma_last_error().decode())
lm.gma_lm_logits.argtypes = [c.c_void_p, c.c_void_p, c.c_int64, c.c_int64, c.c_int, c.c_void_p]
model, tokens = c.c_void_p(), np.frombuffer(bytes.fromhex(text), np.uint8).astype(np.int32)
check(lm.gma_lm_load(folder.encode(), c.byref(model)))
logits = np.empty((len(tokens), 256), np.float32)
check(lm.gma_lm_logits(model, tokens.ctypes.data, 1, len(tokens), 1, logits.ctypes.data))
np.save(out, logits)
"""

needs_program = pytest.mark.skipif(not os.path.exists(os.path.join(BUILD, "bin", "gma")),
                                   reason=f"there is no {BUILD}/bin/gma (make)")


def small(variant):
    return {"layers": 2, **({} if variant.get("mixer") in ("linear", "softmax", "mamba") else {"components": 5}), **variant}


def reference(folder, text, tmp_path):
    out = str(tmp_path / "logits.npy")
    done = subprocess.run([sys.executable, "-c", LOGITS, BUILD, str(folder), text.hex(), out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.load(out))


def logits(model, text):
    with torch.no_grad():
        return model(torch.tensor([list(text)]))[0]


def same(a, b):
    assert (a - b).abs().max() < 1e-4, (a - b).abs().max()


@needs_program
def test_a_trained_model_gives_the_same_logits(tmp_path):
    model = libgma.load_pretrained(SHAKESPEARE)
    assert isinstance(model, torch.nn.Module) and not model.training
    want = reference(SHAKESPEARE, TEXT, tmp_path)
    same(logits(model, TEXT), want)
    model.save_pretrained(tmp_path / "again")
    same(reference(tmp_path / "again", TEXT, tmp_path), want)
    a, b = (load_file(os.path.join(p, "model.safetensors")) for p in (SHAKESPEARE, tmp_path / "again"))
    assert a.keys() == b.keys() and all(torch.equal(a[n].float(), b[n]) for n in a)


@needs_program
@pytest.mark.parametrize("preset", ["tiny", "paper"])
def test_freshly_trained(preset, tmp_path):
    run = str(tmp_path / "run")
    small = [] if preset == "tiny" else ["--layers", "2", "--width", "64", "--heads", "2", "--components", "16", "--context",
                                         "64", "--batch", "4"]
    subprocess.run([os.path.join(BUILD, "bin", "gma"), "train", "--data", os.path.join(ROOT, "data", "tinyshakespeare", "input.txt"),
                    "--out", run, "--preset", preset, "--steps", "12", *small], check=True, capture_output=True,
                   env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    same(logits(libgma.load_pretrained(run), TEXT[:60]), reference(run, TEXT[:60], tmp_path))


VARIANTS = {
    "everything else": dict(mlp="swiglu", norm="layer", positions="rotary", tied=False, conv=0, output_gate=False, kv_heads=1,
                            heads=2, width=32),
    "learned positions": dict(positions="learned", forget_gate=False, logit_scale=False, conv=1, norm="layer", width=48),
    "all options": dict(width=48, kv_heads=1, routing_dim=6, value_dim=10, conv=3, logit_scale_init=0.7, positions="rotary"),
    "linear": dict(mixer="linear", width=48),
    "performer": dict(mixer="performer", width=48, kv_heads=1),
    "a pattern": dict(layers="gma:conv=0,linear:forget_gate=0:rotary=1,performer:components=9:output_gate=0,gma:components=7", width=48),
}
if "softmax" in libgma.mixers():
    VARIANTS["softmax"] = dict(mixer="softmax", width=48, kv_heads=1)
    VARIANTS["softmax among others"] = dict(layers="gma,softmax:window=7,softmax:conv=0", width=48)
if "mamba" in libgma.mixers():
    VARIANTS["mamba"] = dict(mixer="mamba", width=48, states=5, expand=3)
    VARIANTS["mamba among others"] = dict(layers="gma,mamba:states=4,linear,mamba:expand=1", width=48)


@needs_program
@pytest.mark.parametrize("name", VARIANTS)
def test_made_here_read_there(name, tmp_path):
    model = libgma.LanguageModel(small(VARIANTS[name])).eval()
    model.save_pretrained(tmp_path / "model")
    same(logits(model, TEXT), reference(tmp_path / "model", TEXT, tmp_path))
    model.save_pretrained(tmp_path / "model", torch.bfloat16)
    half = libgma.load_pretrained(tmp_path / "model")
    assert next(half.parameters()).dtype == torch.float32
    same(logits(half, TEXT), reference(tmp_path / "model", TEXT, tmp_path))


@pytest.mark.parametrize("name", VARIANTS)
def test_decoding_equals_whole(name):
    model = libgma.LanguageModel(small(VARIANTS[name])).eval()
    tokens = torch.randint(0, 256, (2, 20))
    whole = model(tokens)
    step, past = model.prefill(tokens[:, :1])
    for i in range(1, 20):
        same(step, whole[:, i - 1])
        step, past = model.step(tokens[:, i], past)
    same(step, whole[:, -1])


def test_generate():
    model = libgma.load_pretrained(SHAKESPEARE)
    text = model.generate("ROMEO:", 60, temperature=0.8, top_k=20, generator=torch.Generator().manual_seed(1))
    assert text == model.generate("ROMEO:", 60, temperature=0.8, top_k=20, generator=torch.Generator().manual_seed(1))
    assert sum(c.isalpha() or c in " \n" for c in text) > 45, text
    tokens = torch.tensor([list(b"ROMEO:"), list(b"JULIET")])
    greedy = model.generate(tokens, 8, temperature=0)
    assert greedy.shape == (2, 14)
    for i in range(8):  # each is the most likely one after what is before it
        assert torch.equal(model(greedy[:, :6 + i])[:, -1].argmax(-1), greedy[:, 6 + i])
    assert len(model.generate("", 5, top_p=0.9)) <= 5
    for bad in (dict(temperature=-1), dict(top_p=0), dict(top_k=-1)):
        with pytest.raises(ValueError):
            model.generate("a", 1, **bad)
    learned = libgma.LanguageModel(positions="learned", context=8, layers=1, width=24, heads=2, components=3)
    with pytest.raises(ValueError, match="learned positions"):
        learned.generate("abcd", 6)


def test_it_is_a_module_that_trains():
    torch.manual_seed(0)
    model = libgma.LanguageModel(layers=1, width=48, components=8, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.tensor([list(TEXT[:80])])
    first = None
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or float(loss.detach())
    assert float(loss.detach()) < 0.6 * first


def test_bad_checkpoints(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model here"):
        libgma.load_pretrained(tmp_path)

    def broken(change):
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        libgma.LanguageModel(layers=1, width=24, heads=2, components=3).save_pretrained(folder)
        tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
        change(tensors, config)
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
        return folder
    name = "blocks.0.mixer.mu"
    for change, match in ((lambda t, c: t.pop(name), "missing"), (lambda t, c: t.update({name: torch.zeros(2)}), "mixer.mu has shape"),
                          (lambda t, c: t.update(extra=torch.zeros(1)), "extra"), (lambda t, c: t[name].fill_(float("nan")), "not finite"),
                          (lambda t, c: c.update(format="x"), "gma-lm"), (lambda t, c: c.update(version=9), "version 9"),
                          (lambda t, c: c["model"].update(mixer="none"), "mixer"), (lambda t, c: c["model"].update(novelty=3), "novelty")):
        with pytest.raises(ValueError, match=match):
            libgma.load_pretrained(broken(change))
    folder = broken(lambda t, c: None)
    libgma.load_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="model.safetensors"):
        libgma.load_pretrained(folder)


def test_saving_leaves_the_old_or_the_new(tmp_path):
    a = libgma.LanguageModel(layers=1, width=24, heads=2, components=3)
    a.save_pretrained(tmp_path / "m")
    with pytest.raises(AttributeError):
        checkpoint.write(tmp_path / "m", a.settings, {"x": "no tensor"})
    assert torch.equal(libgma.load_pretrained(tmp_path / "m").embed.weight, a.embed.weight)
    assert os.listdir(tmp_path) == ["m"]
    os.rename(tmp_path / "m", tmp_path / "m.old")  # as if cut off between the two renames
    assert torch.equal(libgma.load_pretrained(tmp_path / "m").embed.weight, a.embed.weight)


def test_models_of_other_tasks_are_refused():
    """What gma train writes for a language model is read; a classifier or a seq2seq model is named."""
    small = {"layers": 1, "width": 8, "heads": 2, "components": 2}
    libgma.LanguageModel(small, task="lm", causal=True, pooling="mean", classes=0, encoder_layers=0, cross_mixer="auto")
    for name, value in (("task", "seq2seq"), ("task", "classify"), ("causal", False), ("encoder_layers", 2)):
        with pytest.raises(ValueError, match=f"{name} is {value!r}; this package has language models"):
            libgma.LanguageModel(small, **{name: value})
