"""Finds and loads the compiled operators."""

from importlib.util import find_spec
from pathlib import Path

import torch


def load() -> Path:
    """Load ``specfast/_ops.so`` into torch and return its path."""
    spec = find_spec("specfast._ops")
    if spec is None or spec.origin is None:
        raise ImportError(
            "specfast was installed without its compiled operators (_ops.so); "
            "run `pip install .` in the checkout"
        )
    torch.ops.load_library(spec.origin)  # type: ignore[no-untyped-call]
    return Path(spec.origin)
