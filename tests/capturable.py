"""Runs code on the CPU and refuses what a CUDA Graph could not capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Ops that wait for the device, for a value or for the shape of their result.
_WAITS = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
# A tensor made of numbers of the host: on a GPU, a copy that a graph would repeat or refuse.
_FROM_HOST = {"lift", "lift_fresh", "lift_fresh_copy"}
# They read the host's memory without an op.
_READS = ("__bool__", "__float__", "__index__", "__int__", "cpu", "item", "numpy", "tolist")


class NotCapturableError(Exception):
    """Names the op."""


class _Refusing(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in {"index", "index_put", "index_put_"} and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        by_counts = func is torch.ops.aten.repeat_interleave.Tensor and not kwargs
        if (
            name in _WAITS | _FROM_HOST
            or by_mask
            or by_counts
            or _changes_device(name, args, kwargs)
        ):
            raise NotCapturableError(str(func))
        return func(*args, **(kwargs or {}))


def _changes_device(name: str, args: tuple[Any, ...], kwargs: Any) -> bool:
    """The device "meta", which is everywhere, stands for a GPU."""
    if name == "copy_":
        return bool(args[0].device != args[1].device)
    return name == "_to_copy" and (kwargs.get("device") or args[0].device) != args[0].device


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise NotCapturableError(f"Tensor.{name}")

    return refuse


@contextmanager
def only_capturable() -> Iterator[None]:
    """Raise :class:`NotCapturableError` at anything inside that no graph can hold."""
    with ExitStack() as stack:
        for name in _READS:
            stack.enter_context(patch.object(Tensor, name, _refusing(name)))
        stack.enter_context(_Refusing())
        yield
