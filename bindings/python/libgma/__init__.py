"""Gaussian Mixture Attention: an attention operator and module in linear time, on CPUs.

The operators are functions of PyTorch tensors (with gradients) or NumPy arrays (without); the module and the language
models need PyTorch. Everything is computed by libgma, a C library inside this package.
"""
try:
    import torch as _pytorch  # first: its OpenMP runtime is the one to share
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    _pytorch = None

from ._library import isa, version
from .functional import (attention, linear_attention, linformer_attention, mamba_scan, mixers, naive_attention,
                         performer_attention, responsibilities, softmax_attention)
from .state import AttentionState

__version__ = version()
__all__ = ["AttentionState", "attention", "isa", "linear_attention", "linformer_attention", "mamba_scan", "mixers",
           "naive_attention", "performer_attention", "responsibilities", "softmax_attention", "version"]

if _pytorch is not None:
    from . import _torch  # registers torch.ops.libgma
    from .language_model import LanguageModel, load_pretrained
    from .module import GaussianMixtureAttention

    __all__ += ["GaussianMixtureAttention", "LanguageModel", "load_pretrained"]
else:
    def __getattr__(name: str):
        if name in ("GaussianMixtureAttention", "LanguageModel", "load_pretrained"):
            raise ImportError(f"libgma.{name} needs PyTorch, which is not installed")
        raise AttributeError(f"module 'libgma' has no attribute {name!r}")
