"""Which OpenMP runtime the library uses: one per process.

Two runtimes in a process are two pools of threads that take the cores from each other. So the library names none, and
this module makes one visible before it is loaded: PyTorch's own where PyTorch is installed, else one that the process
already holds, else the system's.
"""
from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from typing import Iterator


def _of_torch() -> Iterator[str]:
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # inside the package, or beside it where the wheel was repaired
        yield from sorted(glob.glob(os.path.join(folder, "lib", "libgomp*.so*")))
        yield from sorted(glob.glob(os.path.join(folder + ".libs", "libgomp*.so*")))


def mapped() -> list[str]:
    """Paths of the OpenMP runtimes of gcc in this process."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(None, 5)[5].strip() for line in file if "/libgomp" in line}
    except OSError:
        return []
    return sorted(paths)


def preload() -> str | None:
    """Load the runtime for everything that follows; its path, or None when none was found."""
    for path in (*_of_torch(), *mapped(), "libgomp.so.1"):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return path
        except OSError:
            continue
    return None
