"""Checkpoints: folders with config.json and model.safetensors, as `gma train` writes and reads them.

    {"format": "gma-lm", "version": 1, "gma_version": "0.1.0", "model": {..}}

A folder is written beside and put in place with one rename: a reader sees the old or the new one.
"""
from __future__ import annotations

import json
import os
import shutil
from typing import Any, Dict, Mapping, Tuple

import torch
from torch import Tensor

from ._library import version

FORMAT, FORMAT_VERSION = "gma-lm", 1


def find(path: str) -> str:
    """The folder that holds the model: path itself, or best/ or last/ in the folder of a training run."""
    for inside in ("", "best", "last"):
        folder = os.path.join(path, inside) if inside else path
        if not os.path.exists(folder) and os.path.isdir(folder + ".old"):  # a swap that was cut off half-way
            folder += ".old"
        if os.path.isfile(os.path.join(folder, "model.safetensors")):
            return folder
    raise FileNotFoundError(f"{path}: there is no model here (no model.safetensors, best/ or last/)")


def read(path: str) -> Tuple[Dict[str, Any], Dict[str, Tensor]]:
    """(settings of the model, tensors) of a checkpoint.  Raises FileNotFoundError, or ValueError naming file and place."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    folder = find(os.fspath(path))
    name = os.path.join(folder, "config.json")
    try:
        with open(name, encoding="utf-8") as file:
            config = json.load(file)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT or not isinstance(config.get("model"), dict):
        raise ValueError(f'{name}: is not the configuration of a model ("format": "{FORMAT}")')
    if config.get("version") != FORMAT_VERSION:
        raise ValueError(f"{name}: format version {config.get('version')}; this package reads {FORMAT_VERSION}")
    name = os.path.join(folder, "model.safetensors")
    try:
        tensors = load_file(name)
    except SafetensorError as error:
        raise ValueError(f"{name}: {error}") from error
    for key, t in tensors.items():
        if t.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"{name}: tensor {key} is {str(t.dtype)[6:]}, not float32 or bfloat16")
        if not torch.isfinite(t).all():
            raise ValueError(f"{name}: tensor {key} holds a value that is not finite")
    return config["model"], tensors


def write(path: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the folder `path`, replacing one that is there."""
    from safetensors.torch import save_file
    path = os.fspath(path).rstrip("/")
    if os.path.basename(path) in ("", ".", ".."):
        raise ValueError(f"{path!r}: a folder that is to be replaced needs a name of its own")
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"{path}: is not a folder")
    temp, old = path + ".tmp", path + ".old"
    shutil.rmtree(temp, ignore_errors=True)
    os.makedirs(temp)
    try:
        config = {"format": FORMAT, "version": FORMAT_VERSION, "gma_version": version(), "model_type": FORMAT,
                  "architectures": ["LanguageModel"], "model": dict(settings)}
        with open(os.path.join(temp, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2)
            file.write("\n")
        save_file({name: t.detach().contiguous() for name, t in tensors.items()},
                  os.path.join(temp, "model.safetensors"), metadata={"format": FORMAT})
        for name in os.listdir(temp):
            with open(os.path.join(temp, name), "rb") as file:
                os.fsync(file.fileno())
        if os.path.isdir(path):
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)  # both readers look for .old when the folder itself is missing
        os.rename(temp, path)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        if not os.path.exists(path) and os.path.isdir(old):
            os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)
