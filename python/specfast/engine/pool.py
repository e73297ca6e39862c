"""The paged KV pool: storage for all layers, pages, and the page table of the running requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.engine.layer_kv import FLOAT8, Float8Kv, LayerKv
from specfast.kv_layout import KvBuffer, KvLayout

_LONG_REQUEST_TOKENS = 16384
_USUAL_REQUEST_TOKENS = 2048


@dataclass(frozen=True)
class KvShape:
    """Keys and values of one layer, per token."""

    num_heads: int
    key_dim: int
    value_dim: int


class PagedKvPool:
    """KV of all layers with attention in pages of ``page_size`` tokens.

    ``keys`` and ``values`` have a tensor [(num_pages + 1) * page_size, heads, dim] per entry of
    ``shapes``, in their order; a *slot* is an index into their first dimension. Position p of a
    request lies in slot ``pages[p // page_size] * page_size + p % page_size``.

    The page after the last belongs to nobody: rows that pad a batch write its first slot,
    ``padding_slot``, and nobody reads it.

    dtype : of the tensors, float8_e4m3fn with ``float8``
    layout : KvLayout    all layers at once, for relocation; None without a layer

    The storage is uninitialised: a slot must be written before it is read, and no read goes past
    what its request has written.
    """

    def __init__(
        self,
        shapes: Mapping[int, KvShape],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        float8: Float8Kv | None = None,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype if float8 is None else FLOAT8

        def storage(num_heads: int, head_dim: int) -> Tensor:
            slots = (num_pages + 1) * page_size
            return torch.empty(slots, num_heads, head_dim, dtype=self.dtype, device=device)

        self.keys = [storage(shape.num_heads, shape.key_dim) for shape in shapes.values()]
        self.values = [storage(shape.num_heads, shape.value_dim) for shape in shapes.values()]
        self._layers = _layers(list(shapes), self.keys, self.values, float8)
        # A stack, lowest page on top: pages that were just returned are reused first.
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = [True] * num_pages
        storages = (*self.keys, *self.values)
        buffers = [KvBuffer.slots(storage) for storage in storages]
        self.layout = KvLayout(buffers) if buffers else None
        self.padding_slot = num_pages * page_size

    def of_layer(self, layer: int) -> LayerKv:
        """Keys and values of the layer with this index in the model."""
        return self._layers[layer]

    @property
    def num_free_pages(self) -> int:
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        if count > len(self._free):
            raise RuntimeError(f"KV pool: expected {count} free pages, got {len(self._free)}")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._is_free[page] = False
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Take pages back; one that is free already raises RuntimeError, and none is taken."""
        twice = [page for page in pages if self._is_free[page]]
        if twice or len(set(pages)) < len(pages):
            raise RuntimeError(f"KV pool: expected pages that are in use, each once, got {pages}")
        for page in pages:
            self._is_free[page] = True
        self._free.extend(reversed(pages))


def _layers(
    indices: Sequence[int],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    float8: Float8Kv | None,
) -> dict[int, LayerKv]:
    """By the index of each layer in the model."""
    storages = list(zip(indices, keys, values, strict=True))
    if float8 is None:
        return {layer: LayerKv(k, v) for layer, k, v in storages}
    unknown = sorted((float8.key_scales.keys() | float8.value_scales.keys()) - set(indices))
    if unknown:
        raise ValueError(
            f"Float8Kv: expected scales of the layers {list(indices)}, got some of {unknown}"
        )
    return {
        layer: LayerKv(k, v, float8.key_scales.get(layer, 1.0), float8.value_scales.get(layer, 1.0))
        for layer, k, v in storages
    }


class PageTable:
    """The pages of every running request, on the device; one row per request.

    pages : int32 [num_rows, pages_per_row]    as of the last :meth:`flush`, at one address
    """

    def __init__(
        self, num_rows: int, pages_per_row: int, page_size: int, device: torch.device
    ) -> None:
        self.page_size = page_size
        # No page where none was written.
        self.pages = torch.full((num_rows, pages_per_row), -1, dtype=torch.int32, device=device)
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._unwritten: list[tuple[int, int, int]] = []

    @property
    def has_free_row(self) -> bool:
        return bool(self._free_rows)

    def take_row(self) -> int:
        return self._free_rows.pop()

    def return_row(self, row: int) -> None:
        self._free_rows.append(row)

    def write(self, row: int, first: int, pages: Sequence[int]) -> None:
        """Set entries ``first, first + 1, ...`` of ``row``, at the next :meth:`flush`."""
        self._unwritten += [(row, first + i, page) for i, page in enumerate(pages)]

    def flush(self) -> None:
        """Bring all writes to the device, in one copy."""
        if not self._unwritten:
            return
        # The last write of an entry counts.
        latest = {(row, column): page for row, column, page in self._unwritten}
        self._unwritten.clear()
        entries = torch.tensor([(*place, page) for place, page in latest.items()])
        if self.pages.device.type == "cuda":
            # From pageable memory the copy would wait for the round in flight.
            entries = entries.pin_memory()
        row, column, page = entries.to(self.pages.device, non_blocking=True).unbind(1)
        self.pages[row, column] = page.int()

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """KV slots of ``positions`` int64 [B, K] of the requests in ``rows`` [B]; int64 [B, K]."""
        self.flush()
        page = torch.div(positions, self.page_size, rounding_mode="floor")
        pages = self.pages[rows[:, None], page].long()
        return pages * self.page_size + positions % self.page_size


def default_num_pages(context_length: int | None, max_batch_size: int, page_size: int) -> int:
    """Pages of one long request, or of a full batch of usual ones."""
    limit = context_length or _LONG_REQUEST_TOKENS
    batch = max_batch_size * min(limit, _USUAL_REQUEST_TOKENS)
    return -(-max(batch, min(limit, _LONG_REQUEST_TOKENS)) // page_size)
