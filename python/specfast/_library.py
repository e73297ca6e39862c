"""Finds and loads the compiled operators."""

import ctypes
import platform
from importlib.util import find_spec
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")
NEEDED_BY_X86 = ("avx2", "fma")


def load() -> Path:
    """Load ``specfast/_ops.so`` into torch and return its path."""
    path = _path()
    missing = _missing_cpu_features()
    if missing:
        raise ImportError(
            f"specfast needs an x86-64 CPU with AVX2 and FMA; this one lacks {', '.join(missing)}"
        )
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    return path


def cuda_architectures() -> list[str]:
    """GPU architectures that the kernels were compiled for, such as "90a-real"."""
    function = ctypes.CDLL(str(_path())).specfast_cuda_architectures
    function.restype = ctypes.c_char_p
    names: bytes = function()
    return names.decode().split()


def _missing_cpu_features() -> list[str]:
    """What the bodies were compiled with and this CPU lacks: they would die of SIGILL."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return []
    try:
        with CPUINFO.open() as lines:
            flags = next((line.split() for line in lines if line.startswith("flags")), None)
    except OSError:
        return []
    return [] if flags is None else [name for name in NEEDED_BY_X86 if name not in flags]


def _path() -> Path:
    spec = find_spec("specfast._ops")
    if spec is None or spec.origin is None:
        raise ImportError(
            "specfast was installed without its compiled operators (_ops.so); "
            "run `pip install .` in the checkout"
        )
    return Path(spec.origin)
