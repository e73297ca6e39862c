"""Memory that shows what an op did to it: guard bytes, sentinels, untouched inputs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import TypeVar

import torch
from torch import Tensor

Record = TypeVar("Record")

GUARD_BYTES = 256
GUARD_VALUE = 0xA5


class GuardedMemory:
    """Allocates tensors between guard bytes and filled with a sentinel byte.

    An op writes every element of its outputs exactly if two runs into memories with different
    ``fill`` end equal; it writes nothing else if ``check`` passes.
    """

    def __init__(self, device: str, fill: int = 0x5C) -> None:
        self.device = device
        self.fill = fill
        self._buffers: list[tuple[Tensor, int]] = []

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """A contiguous tensor; its first element starts right after the guard."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        buffer = torch.full(
            (num_bytes + 2 * GUARD_BYTES,), GUARD_VALUE, dtype=torch.uint8, device=self.device
        )
        body = buffer[GUARD_BYTES : GUARD_BYTES + num_bytes]
        # A bool must stay 0 or 1 for torch to compare it.
        body.fill_(self.fill & 1 if dtype == torch.bool else self.fill)
        self._buffers.append((buffer, num_bytes))
        return body.view(dtype).view(shape)

    def like(self, record: Record) -> Record:
        """A record whose tensors are guarded copies of the shape; absent ones stay absent."""
        fields = {}
        for name in inspect.signature(type(record)).parameters:
            value = getattr(record, name)
            if isinstance(value, Tensor):
                value = self.empty(*value.shape, dtype=value.dtype)
            elif is_dataclass(value):
                value = self.like(value)
            fields[name] = value
        return type(record)(**fields)

    def check(self) -> None:
        """Fail if a guard byte changed."""
        for buffer, num_bytes in self._buffers:
            before, after = buffer[:GUARD_BYTES], buffer[GUARD_BYTES + num_bytes :]
            assert bool((before == GUARD_VALUE).all()), "written before the tensor's first element"
            assert bool((after == GUARD_VALUE).all()), "written after the tensor's last element"


@contextlib.contextmanager
def unchanged(*tensors: Tensor | None) -> Iterator[None]:
    """Fail if the block changes a bit of any of these tensors."""
    present = [tensor for tensor in tensors if tensor is not None]
    copies = [tensor.clone() for tensor in present]
    yield
    for i, (tensor, copy) in enumerate(zip(present, copies, strict=True)):
        same = tensor.contiguous().view(torch.uint8).equal(copy.contiguous().view(torch.uint8))
        assert same, f"input number {i} was changed"


def assert_written_whole(
    run: Callable[[Record], object], template: Record, device: str, *inputs: Tensor | None
) -> None:
    """Fail unless ``run`` turns any memory into ``template``, and changes nothing else."""
    for fill in (0x5C, 0x11):
        memory = GuardedMemory(device, fill)
        out = memory.like(template)
        with unchanged(*inputs):
            run(out)
        memory.check()
        assert_records_equal(out, template)


def assert_records_equal(actual: Record, expected: Record) -> None:
    """Fail with the field's name at a field that is not bit-equal."""
    # Views were added after the packed tensors that they look into, and say more.
    for name, want in reversed(vars(expected).items()):
        got = getattr(actual, name)
        if is_dataclass(want):
            assert_records_equal(got, want)
            continue
        if not isinstance(want, Tensor):
            assert got == want, f"{name}: {got!r} is not {want!r}"
            continue
        assert isinstance(got, Tensor), f"{name} is missing"
        assert got.dtype == want.dtype, f"{name}: {got.dtype} is not {want.dtype}"
        same = torch.equal(got.cpu(), want.cpu())
        assert same, f"{name}:\n{got.cpu()}\nis not\n{want.cpu()}"
