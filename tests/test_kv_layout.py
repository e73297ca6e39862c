"""KvLayout: which bytes of which tensor make up a slot."""

from __future__ import annotations

import pytest
import torch
from specfast import KvBuffer, KvLayout

# Fields of a row of KvLayout.pieces.
COLUMN_BYTES, PAGE_STRIDE, NUM_PIECES, PIECE_BYTES = 2, 4, 6, 7


def memory(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("offset", "item_bytes", "column_bytes"),
    [
        (0, 64, 16),
        (0, 24, 8),
        (8, 64, 8),
        (4, 64, 4),
        (0, 60, 4),
        (2, 64, 2),
        (1, 64, 1),
        (0, 9, 1),
    ],
)
def test_columns_are_as_wide_as_addresses_allow(
    offset: int, item_bytes: int, column_bytes: int
) -> None:
    items = memory(offset + 4 * item_bytes)[offset:].view(4, item_bytes)
    assert items.data_ptr() % 16 == offset
    pieces = KvLayout([KvBuffer.slots(items)]).pieces
    assert pieces[:, COLUMN_BYTES].tolist() == [column_bytes]


def test_page_strides_count_for_the_columns() -> None:
    """Pages of 2 x 16 bytes that begin 36 bytes apart."""
    pages = memory(3, 36)[:, :32].unflatten(1, (2, 16))
    assert KvLayout([KvBuffer.mla(pages)]).pieces[:, COLUMN_BYTES].tolist() == [4]


def test_evenly_spaced_pieces_are_described_together() -> None:
    halves = memory(4, 3, 5, 8)[..., :4]
    pieces = KvLayout([KvBuffer.slots(halves)]).pieces
    assert pieces[:, [NUM_PIECES, PIECE_BYTES]].tolist() == [[15, 4]]


def test_dense_pages_are_flat_slots() -> None:
    """Slot follows slot, so the page size of another buffer may apply."""
    dense = KvBuffer.nhd(memory(8, 4, 2, 16))
    heads_first = KvBuffer.hnd(memory(2, 2, 16, 16))
    layout = KvLayout([dense, heads_first])
    assert (dense.page_size, heads_first.page_size, layout.page_size) == (1, 16, 16)
    assert layout.pieces[:, PAGE_STRIDE].tolist() == [16 * 32, 512]


def test_the_smallest_buffer_bounds_slots_and_rows() -> None:
    buffers = [KvBuffer.slots(memory(n, 2)) for n in (12, 10, 11)]
    buffers += [KvBuffer.rows(memory(n)) for n in (7, 5, 6)]
    layout = KvLayout(buffers)
    assert (layout.num_slots, layout.num_rows) == (10, 5)
    assert KvLayout(buffers[:3]).num_rows is None
    assert KvLayout(buffers[3:]).num_slots is None


REFUSED = {
    "items that overlap": (lambda: KvBuffer.slots(memory(1, 8).expand(4, 8)), "do not overlap"),
    "bytes that repeat": (lambda: KvBuffer.slots(memory(4, 1).expand(4, 8)), "do not overlap"),
    "sliding windows": (lambda: KvBuffer.slots(memory(9).unfold(0, 4, 1)), "do not overlap"),
    "items without bytes": (lambda: KvBuffer.slots(memory(4, 0)), "with bytes"),
    "no slots": (lambda: KvBuffer.slots(memory(0, 4)), "with bytes"),
    "heads missing": (lambda: KvBuffer.nhd(memory(4, 4)), "nhd: expected 3 or 4 dimensions"),
    "heads first, flat": (lambda: KvBuffer.hnd(memory(4, 4, 4)), "hnd: expected 4 dimensions"),
    "latent with heads": (lambda: KvBuffer.mla(memory(4, 4, 4, 4)), "mla: expected 2 or 3"),
    "page too small": (
        lambda: KvBuffer.packed_pages(memory(2, 15), 4, [3, 1]),
        r"one-byte elements of shape \[pages, >= 16\], got torch.uint8 \[2, 15\]",
    ),
    "page of words": (
        lambda: KvBuffer.packed_pages(memory(2, 16, dtype=torch.int32), 4, [3, 1]),
        "one-byte elements",
    ),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_buffers_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KvLayout([build()])


def test_layouts_of_two_page_sizes_are_refused() -> None:
    buffers = [KvBuffer.hnd(memory(2, 2, size, 8)) for size in (16, 64)]
    with pytest.raises(ValueError, match=r"expected one page size, got \[16, 64\]"):
        KvLayout(buffers)


def test_layouts_without_buffers_are_refused() -> None:
    with pytest.raises(ValueError, match="expected buffers on one device"):
        KvLayout([])


def test_buffers_on_two_devices_are_refused() -> None:
    buffers = [KvBuffer.slots(memory(4, 8)), KvBuffer.slots(memory(4, 8).to("meta"))]
    with pytest.raises(ValueError, match=r"got \['cpu', 'meta'\]"):
        KvLayout(buffers)
