"""Which mixer each layer of a language model has, and with which options: src/models/layer_spec.h in Python.

    pattern = item {"," item}      item = [COUNT "x"] MIXER {":" OPTION "=" VALUE}      3xgma,softmax:window=128
"""
from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping

from ._library import MIXERS, PARAM

OPTIONS = ("window", "states", "expand", "components", "logit_scale", "forget_gate", "output_gate", "conv", "rotary")
_OPEN = {"window": 0, "states": 16, "expand": 2, "components": 64, "logit_scale": 1, "forget_gate": 1, "output_gate": 1, "conv": 4}


def honours(mixer: str, option: str) -> bool:
    """The mixer can have that option, as its slot table says."""
    slots = MIXERS[mixer].by_name
    if option == "window":
        return mixer == "softmax"
    if option in ("states", "expand"):
        return mixer == "mamba"
    if option == "components":
        return "q" in slots and any(s.role == PARAM and ("K" in s.dims or "M" in s.dims) for s in slots.values())
    return {"logit_scale": "logit_scale", "forget_gate": "log_decay"}.get(option, "q") in slots


def _is_open(value: Any) -> bool:
    return value is None or value == "auto" or (not isinstance(value, bool) and value == -1)


def _item(text: str) -> List[Dict[str, Any]]:
    found = re.fullmatch(r"(?:(\d+)x)?(\w+)((?::[\w-]+=\d+)*)", text)
    if not found:
        raise ValueError(f'layers: "{text}" is no item of the form 3xgma:option=value')
    count, mixer, options = int(found[1] or 1), found[2], found[3]
    if mixer not in MIXERS:
        raise ValueError(f'layers: "{text}": mixer {mixer!r} is unknown; there are: {", ".join(MIXERS)}')
    layer: Dict[str, Any] = {"mixer": mixer}
    for option in filter(None, options.split(":")):
        name, value = option.replace("-", "_").split("=")
        if name not in OPTIONS:
            raise ValueError(f'layers: "{text}": there is no option "{name}"; there are: {", ".join(OPTIONS)}')
        if int(value) and not honours(mixer, name):
            raise ValueError(f'layers: "{text}": the mixer {mixer} has no {name}')
        layer[name] = int(value)
    return [dict(layer) for _ in range(count)]


def resolve(c: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Every layer with all of its options; fills in what the settings c leave open. Raises ValueError naming the item."""
    if isinstance(c["layers"], str):
        if not _is_open(c["mixer"]) and c["mixer"]:
            raise ValueError(f"mixer is {c['mixer']}, and layers ({c['layers']}) names the mixer of each layer")
        layers = [layer for item in c["layers"].split(",") for layer in _item(item)]
        c["mixer"] = "auto"
    else:
        c["mixer"] = "gma" if _is_open(c["mixer"]) else c["mixer"]
        if c["mixer"] not in MIXERS:
            raise ValueError(f"mixer {c['mixer']!r} is unknown; there are: {', '.join(MIXERS)}")
        layers = [{"mixer": c["mixer"]} for _ in range(int(c["layers"]))]
    refused = [x["mixer"] for x in layers if x["mixer"] == "linformer"]
    if refused:
        raise ValueError("the mixer linformer is bidirectional and cannot be part of a causal model")
    for name, value in _OPEN.items():
        able = any(honours(x["mixer"], name) for x in layers)
        if _is_open(c[name]):
            c[name] = value if able else 0
        elif c[name] and not able:
            raise ValueError(f"{name}: no layer can honour it")
        if name not in ("window", "states", "expand", "components", "conv"):
            c[name] = bool(c[name])
    if _is_open(c["positions"]):  # softmax knows no order of its own
        softmax = [x for x in layers if x["mixer"] == "softmax"]
        c["positions"] = "rotary" if len(softmax) == len(layers) else "none"
        if softmax and len(softmax) < len(layers):
            for x in softmax:
                x.setdefault("rotary", 1)
            c["layers"] = ",".join(_print(x) for x in layers)
    whole = {**{name: c[name] for name in _OPEN}, "rotary": c["positions"] == "rotary"}
    return [{"mixer": x["mixer"], **{name: int(x.get(name, whole[name])) if honours(x["mixer"], name) else 0
                                     for name in OPTIONS}} for x in layers]


def _print(layer: Mapping[str, Any]) -> str:
    return ":".join([layer["mixer"], *(f"{name}={layer[name]}" for name in OPTIONS if name in layer)])
