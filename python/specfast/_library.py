"""Finds and loads the compiled operators."""

import ctypes
from importlib.util import find_spec
from pathlib import Path

import torch


def load() -> Path:
    """Load ``specfast/_ops.so`` into torch and return its path."""
    path = _path()
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    return path


def cuda_architectures() -> list[str]:
    """GPU architectures that the kernels were compiled for, such as "90a-real"."""
    function = ctypes.CDLL(str(_path())).specfast_cuda_architectures
    function.restype = ctypes.c_char_p
    names: bytes = function()
    return names.decode().split()


def _path() -> Path:
    spec = find_spec("specfast._ops")
    if spec is None or spec.origin is None:
        raise ImportError(
            "specfast was installed without its compiled operators (_ops.so); "
            "run `pip install .` in the checkout"
        )
    return Path(spec.origin)
