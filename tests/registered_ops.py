"""The operators that the loaded library holds, asked from torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import specfast  # noqa: F401  loads the library
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def registered_ops() -> list[str]:
    """Names of all operators in ``torch.ops.specfast``, sorted."""
    names = torch._C._dispatch_get_all_op_names()
    prefix = "specfast::"
    return sorted({name[len(prefix) :].split(".")[0] for name in names if name.startswith(prefix)})


class RecordedCalls(TorchDispatchMode):
    """Runs what it sees, and keeps the calls of this library's operators for ``opcheck``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "specfast":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def assert_opcheck(call: Callable[[], object], *checks: str) -> None:
    """torch's own checks, or some, of the one operator that the call reaches."""
    with RecordedCalls() as recorded:
        call()
    ((op, args),) = recorded.calls
    torch.library.opcheck(op, args, test_utils=checks or "ALL")
