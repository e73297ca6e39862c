"""Buffers of every layout with random bytes, windows of verify rows, and random paths in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from specfast import KvBuffer, KvLayout
from torch import Tensor

PAGES = 6


@dataclass(frozen=True)
class Form:
    """Memory of ``shape`` (from the page size) and how it is arranged."""

    shape: Callable[[int], tuple[int, ...]]
    dtype: torch.dtype
    arrange: Callable[[Tensor, int], KvBuffer]


BY_SLOT = {
    "nhd": Form(lambda p: (PAGES * p, 2, 8), torch.bfloat16, lambda t, _: KvBuffer.nhd(t)),
    "nhd, paged": Form(lambda p: (PAGES, p, 2, 8), torch.float32, lambda t, _: KvBuffer.nhd(t)),
    "nhd, keys and values page by page": Form(
        lambda p: (PAGES, 2, p, 3, 4), torch.float16, lambda t, _: KvBuffer.nhd(t[:, 1])
    ),
    "hnd": Form(lambda p: (PAGES, 3, p, 8), torch.bfloat16, lambda t, _: KvBuffer.hnd(t)),
    "mla": Form(lambda p: (PAGES * p, 36), torch.bfloat16, lambda t, _: KvBuffer.mla(t)),
    "mla, paged": Form(lambda p: (PAGES, p, 9), torch.float8_e4m3fn, lambda t, _: KvBuffer.mla(t)),
    "scales": Form(lambda p: (PAGES * p, 2), torch.float32, lambda t, _: KvBuffer.slots(t)),
    "scales of hnd": Form(
        lambda p: (PAGES, 3, p), torch.float32, lambda t, _: KvBuffer.paged(t, slot_dim=2)
    ),
    "packed pages": Form(
        lambda p: (PAGES, p * (12 + 2) + 8),
        torch.uint8,
        lambda t, p: KvBuffer.packed_pages(t, p, [12, 2]),
    ),
    "several piece sets": Form(
        lambda p: (PAGES * p, 3, 5, 2, 4),
        torch.int32,
        lambda t, _: KvBuffer.slots(t[:, :2, 1:4, :, :3]),
    ),
    "off by one byte": Form(
        lambda p: (1 + PAGES * p * 40,),
        torch.uint8,
        lambda t, _: KvBuffer.slots(t[1:].view(-1, 40)),
    ),
    "more than one chunk": Form(
        lambda p: (PAGES * p, 600), torch.uint8, lambda t, _: KvBuffer.slots(t)
    ),
}
BY_ROW = {
    "hidden": Form(lambda r: (r, 24), torch.bfloat16, lambda t, _: KvBuffer.rows(t)),
    "predict": Form(lambda r: (r,), torch.int32, lambda t, _: KvBuffer.rows(t)),
    "every other hidden": Form(
        lambda r: (r, 2, 5), torch.int16, lambda t, _: KvBuffer.rows(t[:, 0])
    ),
}


class Memory:
    """One allocation per form, filled with random bytes; equal for equal seeds."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        page_size: int,
        num_rows: int,
        device: str,
        seed: int = 0,
        empty: Callable[..., Tensor] | None = None,
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, Tensor] = {}
        buffers = []
        for name in names:
            form = BY_ROW[name] if name in BY_ROW else BY_SLOT[name]
            size = num_rows if name in BY_ROW else page_size
            shape = form.shape(size)
            count = torch.Size(shape).numel() * form.dtype.itemsize
            filling = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=rng)
            if empty is None:
                tensor = filling.to(device).view(form.dtype).view(shape)
            else:
                tensor = empty(*shape, dtype=form.dtype)
                as_bytes(tensor).copy_(filling)
            self.tensors[name] = tensor
            buffers.append(form.arrange(tensor, page_size))
        self.layout = KvLayout(buffers)
        self.num_slots = PAGES * page_size

    def assert_equal(self, other: Memory) -> None:
        for name, tensor in self.tensors.items():
            got, want = as_bytes(tensor).cpu(), as_bytes(other.tensors[name]).cpu()
            wrong = (got != want).nonzero().flatten().tolist()
            assert not wrong, f"{name}: {len(wrong)} bytes differ, the first at {wrong[0]}"


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def int32(rows: Any, device: str = "cpu") -> Tensor:
    return torch.tensor(rows, dtype=torch.int32, device=device)


def padded(paths: Sequence[Sequence[int]], width: int, device: str = "cpu") -> Tensor:
    rows = [[*path, *[-1] * (width - len(path))] for path in paths]
    return int32(rows, device).view(len(paths), width)


@dataclass
class Windows:
    """The arguments of relocate_kv besides the layout."""

    paths: list[list[int]]
    width: int
    slots: list[int]
    rows_per_request: int | None = None
    qo_indptr: list[int] | None = None
    slot_dtype: torch.dtype = torch.int64

    def arguments(self, device: str) -> tuple[Tensor, Tensor]:
        lengths = [len(path) for path in self.paths]
        return padded(self.paths, self.width, device), int32(lengths, device)

    def options(self, device: str) -> dict[str, Any]:
        return {
            "out_cache_loc": torch.tensor(self.slots, dtype=self.slot_dtype, device=device),
            "rows_per_request": self.rows_per_request,
            "qo_indptr": None if self.qo_indptr is None else int32(self.qo_indptr, device),
        }

    def run(self, op: Callable[..., Tensor], memory: Memory, device: str, **more: Any) -> Tensor:
        return op(memory.layout, *self.arguments(device), **self.options(device), **more)


def random_windows(
    rng: torch.Generator, batch: int, nodes: int, num_slots: int, *, ragged: bool = False
) -> Windows:
    """Sound windows of up to ``nodes`` rows; some slots are padded, some paths in place."""

    def below(n: int) -> int:
        return int(torch.randint(0, n, (1,), generator=rng))

    sizes = [below(nodes) + 1 if ragged else nodes for _ in range(batch)]
    begins = [sum(sizes[:b]) for b in range(batch + 1)]
    paths = []
    for begin, size in zip(begins, sizes, strict=False):
        others = torch.randperm(size - 1, generator=rng)[: below(size)] + 1
        paths.append([begin + i for i in [0, *sorted(others.tolist())]] if below(5) else [])
    return Windows(
        paths=paths,
        width=nodes,
        slots=torch.randperm(num_slots, generator=rng)[: begins[-1]].tolist(),
        rows_per_request=None if ragged else nodes,
        qo_indptr=begins if ragged else None,
        slot_dtype=torch.int64 if below(2) else torch.int32,
    )
