"""The examples and the README's code run."""
import os
import re
import subprocess
import sys

import pytest

from common import ROOT

PYTHON = os.path.join(ROOT, "bindings", "python")


def example(name, *options):
    done = subprocess.run([sys.executable, os.path.join(PYTHON, "examples", name), *options], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_readme(capsys):
    with open(os.path.join(PYTHON, "README.md")) as f:
        first, *others = re.findall(r"```python\n(.*?)```", f.read(), re.S)
    names = {}
    exec(first, names)
    assert names["loss"].item() < 0.3 * names["x"].cumsum(1).div(10).square().mean()
    for code in others:
        exec(code, names)


@pytest.mark.parametrize("name", ["encoder.py", "decoder.py"])
def test_training_examples(name):
    out = example(name, "--steps", "40")
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", out)]
    assert len(losses) >= 2 and losses[-1] < losses[0], out


def test_drawing(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "routing.png"
    example("responsibilities.py", "--out", str(out), "--text", "To be, or not to be")
    assert out.read_bytes()[:4] == b"\x89PNG" and out.stat().st_size > 5000
