"""The operators that the loaded library holds, asked from torch's dispatcher."""

from __future__ import annotations

import specfast  # noqa: F401  loads the library
import torch


def registered_ops() -> list[str]:
    """Names of all operators in ``torch.ops.specfast``, sorted."""
    names = torch._C._dispatch_get_all_op_names()
    prefix = "specfast::"
    return sorted({name[len(prefix) :].split(".")[0] for name in names if name.startswith(prefix)})
