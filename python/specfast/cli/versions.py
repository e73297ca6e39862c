"""What is installed here, and what this build of specfast can run."""

from __future__ import annotations

import platform

import torch
import transformers

import specfast
from specfast import _library
from specfast.engine.sps_setting import device_name


def versions() -> dict[str, str | None]:
    """Versions that a result depends on."""
    return {
        "specfast": specfast.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
    }


def device_names() -> list[str]:
    """The CPU and every card that torch sees."""
    cards = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [device_name(device) for device in (torch.device("cpu"), *cards)]


def op_names() -> list[str]:
    """Ops that the library registered with torch."""
    prefix = "specfast::"
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name[len(prefix) :] for name in names if name.startswith(prefix))


def kernel_targets(op: str) -> list[str]:
    """What ``op`` is compiled for: "cpu", and "cuda" with its architectures."""
    targets = ["cpu"] if _has_kernel(op, "CPU") else []
    if _has_kernel(op, "CUDA"):
        targets.append(f"cuda {' '.join(_library.cuda_architectures())}")
    return targets


def missing_for_cuda() -> str | None:
    """What keeps the kernels from running here, or None."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if not all(_has_kernel(op, "CUDA") for op in op_names()):
        return "specfast was built without its CUDA kernels"
    return None


def _has_kernel(op: str, dispatch_key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"specfast::{op}", dispatch_key)
