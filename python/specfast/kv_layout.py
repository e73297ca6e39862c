"""Where the bytes of a KV slot, or of a verify row, lie in the buffers of an engine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# csrc/ops/relocate_kv.h: kChunkColumns and the widest KvColumn.
_CHUNK_COLUMNS = 32
_COLUMN_BYTES = 16


@dataclass(frozen=True)
class KvBuffer:
    """A tensor that holds an item for every KV slot, or for every verify row.

    The named constructors cover the usual layouts. Slot ``i`` of a paged tensor is entry
    ``i % page_size`` of page ``i // page_size``. Any dtype, any strides; items may not overlap.

    Attributes
    ----------
    tensor : Tensor
        The memory, as the caller has it.
    views : tuple of Tensor [pages, page_size, *item]
        The same memory, arranged by page and entry; several where an item has several places.
    by_row : bool
        Entries are verify rows (hidden states, predictions), not KV slots.
    """

    tensor: Tensor
    views: tuple[Tensor, ...]
    by_row: bool = False

    @classmethod
    def slots(cls, tensor: Tensor) -> KvBuffer:
        """[num_slots, *item]: any tensor whose first dimension is the slot, scales for example."""
        return cls(tensor, (tensor.unsqueeze(1),))

    @classmethod
    def paged(cls, tensor: Tensor, slot_dim: int = 1) -> KvBuffer:
        """[pages, ...] with the slots of a page along ``slot_dim``; the rest is the item."""
        return cls(tensor, (tensor.movedim(slot_dim, 1),))

    @classmethod
    def nhd(cls, tensor: Tensor) -> KvBuffer:
        """[num_slots, heads, dim] or [pages, page_size, heads, dim]."""
        _require_dims("nhd", tensor, 3, 4)
        return cls.slots(tensor) if tensor.dim() == 3 else cls.paged(tensor)

    @classmethod
    def hnd(cls, tensor: Tensor) -> KvBuffer:
        """[pages, heads, page_size, dim]."""
        _require_dims("hnd", tensor, 4)
        return cls.paged(tensor, slot_dim=2)

    @classmethod
    def mla(cls, tensor: Tensor) -> KvBuffer:
        """Latent cache [num_slots, dim] or [pages, page_size, dim]."""
        _require_dims("mla", tensor, 2, 3)
        return cls.slots(tensor) if tensor.dim() == 2 else cls.paged(tensor)

    @classmethod
    def packed_pages(cls, tensor: Tensor, page_size: int, item_bytes: Sequence[int]) -> KvBuffer:
        """One-byte elements [pages, page_bytes]: within a page the first parts of all items, then
        their second parts, and so on (keys of a page, then their scales); part n of an item has
        ``item_bytes[n]`` bytes. The page may end with padding.
        """
        parts = [page_size * size for size in item_bytes]
        if tensor.dim() != 2 or tensor.element_size() != 1 or sum(parts) > tensor.shape[1]:
            raise ValueError(
                f"packed_pages: expected one-byte elements of shape [pages, >= {sum(parts)}], "
                f"got {tensor.dtype} {list(tensor.shape)}"
            )
        used = torch.split(tensor[:, : sum(parts)], parts, dim=1)
        return cls(tensor, tuple(part.view(part.shape[0], page_size, -1) for part in used))

    @classmethod
    def rows(cls, tensor: Tensor) -> KvBuffer:
        """[R, *item], one item per verify row: hidden states, predictions."""
        return cls(tensor, (tensor.unsqueeze(1),), by_row=True)

    @property
    def page_size(self) -> int:
        """Slots per page, or 1 where slot follows slot at one stride."""
        pages, page_size = self.views[0].shape[:2]
        dense = all(view.stride(0) == page_size * view.stride(1) for view in self.views)
        return 1 if dense or pages == 1 else page_size

    @property
    def num_entries(self) -> int:
        return self.views[0].shape[0] * self.views[0].shape[1]


class KvLayout:
    """All buffers whose entries move together, described for the device.

    Build it once, outside of graph capture; it keeps its tensors alive. The description holds
    distances, not addresses, so it stays true where compiled code hands the op copies of the
    buffers, as long as they have the same strides; the op checks that.
    ``pieces`` and ``chunks`` are constants: the op reads them before it waits for the kernel before
    it, so no kernel may write them.

    Parameters
    ----------
    buffers : sequence of KvBuffer
        At least one, at most 1024, all on one device. Buffers may share memory (keys and values
        of one allocation) but not bytes. Pages of all buffers by slot have one size, except that
        buffers in which slot follows slot at one stride go with any.

    Raises
    ------
    ValueError
        Overlapping items, items without bytes, different devices or page sizes.
    """

    def __init__(self, buffers: Sequence[KvBuffer]) -> None:
        self.buffers = tuple(buffers)
        self.tensors = [buffer.tensor for buffer in buffers]
        devices = {tensor.device for tensor in self.tensors}
        if len(devices) != 1:
            raise ValueError(
                f"KvLayout: expected buffers on one device, got {sorted(map(str, devices))}"
            )
        by_slot = [buffer for buffer in buffers if not buffer.by_row]
        by_row = [buffer for buffer in buffers if buffer.by_row]
        page_sizes = {buffer.page_size for buffer in by_slot} - {1}
        if len(page_sizes) > 1:
            raise ValueError(f"KvLayout: expected one page size, got {sorted(page_sizes)}")
        self.page_size = page_sizes.pop() if page_sizes else 1
        self.num_slots = min((buffer.num_entries for buffer in by_slot), default=None)
        self.num_rows = min((buffer.num_entries for buffer in by_row), default=None)

        #: size and stride in bytes of every dimension of every tensor, as the op must find them
        self.geometry = [
            number
            for tensor in self.tensors
            for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
            for number in (n, stride * tensor.element_size() if n > 1 else 0)
        ]

        pieces: list[list[int]] = []
        chunks: list[list[int]] = []
        for number, buffer in enumerate(self.buffers):
            for place in _places(buffer, self.page_size):
                for first_column in range(0, place.num_columns, _CHUNK_COLUMNS):
                    chunks.append([len(pieces), first_column])
                pieces.append([number, int(buffer.by_row), *place.fields()])
        device = devices.pop()
        #: int64 [P, 9], one row per csrc KvPieces
        self.pieces = torch.tensor(pieces, dtype=torch.int64, device=device)
        #: int32 [C, 2], one row per csrc KvChunk
        self.chunks = torch.tensor(chunks, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class _Place:
    """Evenly spaced pieces of an item; all numbers in bytes. See KvPieces in csrc."""

    offset: int
    page_stride: int
    slot_stride: int
    num_pieces: int
    piece_bytes: int
    piece_stride: int
    address: int

    @property
    def column_bytes(self) -> int:
        distances = (self.page_stride, self.slot_stride, self.piece_bytes, self.piece_stride)
        return math.gcd(_COLUMN_BYTES, self.address + self.offset, *distances)

    @property
    def num_columns(self) -> int:
        return self.num_pieces * (self.piece_bytes // self.column_bytes)

    def fields(self) -> list[int]:
        return [
            self.column_bytes,
            self.offset,
            self.page_stride,
            self.slot_stride,
            self.num_pieces,
            self.piece_bytes,
            self.piece_stride,
        ]


def _places(buffer: KvBuffer, page_size: int) -> Iterator[_Place]:
    for view in buffer.views:
        _require_disjoint(view)
        size = view.element_size()
        page_stride, slot_stride = view.stride(0) * size, view.stride(1) * size
        if buffer.by_row:
            slot_stride = 0
        elif buffer.page_size == 1:
            slot_stride = slot_stride if view.shape[1] > 1 else page_stride
            page_stride = slot_stride * page_size
        offset = view.data_ptr() - buffer.tensor.data_ptr()
        piece_bytes, outer = _contiguous_run(view)
        piece_stride, num_pieces = outer.pop(0) if outer else (0, 1)
        for index in itertools.product(*(range(n) for _, n in outer)):
            step = sum(i * stride for i, (stride, _) in zip(index, outer, strict=True))
            yield _Place(
                offset + step,
                page_stride,
                slot_stride,
                num_pieces,
                piece_bytes,
                piece_stride,
                buffer.tensor.data_ptr(),
            )


def _strides(view: Tensor, first_dim: int) -> list[tuple[int, int]]:
    """(stride in bytes, length) of the dimensions from ``first_dim`` on, inner first."""
    dims = zip(view.stride()[first_dim:], view.shape[first_dim:], strict=True)
    return sorted((stride * view.element_size(), n) for stride, n in dims if n > 1)


def _contiguous_run(view: Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Bytes of an item that lie together, and the (stride, length) of what is around them."""
    run = view.element_size()
    outer: list[tuple[int, int]] = []
    for stride, n in _strides(view, first_dim=2):
        if not outer and stride == run:
            run *= n
        elif outer and stride == outer[-1][0] * outer[-1][1]:
            outer[-1] = (outer[-1][0], outer[-1][1] * n)
        else:
            outer.append((stride, n))
    return run, outer


def _require_disjoint(view: Tensor) -> None:
    if view.numel() == 0:
        raise ValueError(f"KvBuffer: expected items with bytes, got shape {list(view.shape)}")
    reach = view.element_size()
    for stride, n in _strides(view, first_dim=0):
        if stride < reach:
            raise ValueError(
                f"KvBuffer: expected items that do not overlap, got shape {list(view.shape)} "
                f"with strides {list(view.stride())}"
            )
        reach += stride * (n - 1)


def _require_dims(name: str, tensor: Tensor, *allowed: int) -> None:
    if tensor.dim() not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ValueError(
            f"KvBuffer.{name}: expected {expected} dimensions, got shape {list(tensor.shape)}"
        )
