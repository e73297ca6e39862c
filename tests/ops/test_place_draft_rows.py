"""place_draft_rows: pages and slots of what a drafter keeps behind the committed rows.

pages of 2, prefix 3, two rows, scratch pages 8 and 9:   position   0 1 | 2 3 | 4
                                                         page         5 |  7  | 8
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from guards import assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from specfast import DraftPlaces, ops, reference
from torch import Tensor


def int32(values: Any, device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def random_call(seed: int) -> dict[str, Any]:
    """Of tables, rows and lengths some are none."""
    rng = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng).int()

    table_rows, columns, page_size, pages = 4, 1 + seed % 7, 1 + seed % 4, 20
    scratch, batch = seed % 3, seed % 5
    prefix_lens = integers(-1, columns * page_size + 3, batch)
    if seed % 11 == 0:
        prefix_lens[:1] = 2**31 - 1
    table = integers(-1, pages + table_rows * scratch + 1, table_rows, columns + 1)[:, 1:]
    return {
        "page_table": table.long() if seed % 2 else table,
        "page_table_rows": integers(-1, table_rows + 1, batch),
        "prefix_lens": prefix_lens,
        "counts": integers(-1, 8, batch),
        "num_rows": seed % 7,
        "page_size": page_size,
        "num_pages": pages + table_rows * scratch,
        "first_scratch_page": pages,
        "scratch_pages": scratch,
    }


def on(call: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in call.items()}


def assert_equals_the_reference(seed: int, device: str) -> None:
    call = random_call(seed)
    want = reference.place_draft_rows(**call)
    there = on(call, device)
    inputs = [value for value in there.values() if isinstance(value, Tensor)]
    assert_written_whole(lambda out: ops.place_draft_rows(**there, out=out), want, device, *inputs)
    past = call["num_pages"] * call["page_size"]
    assert bool(((want.slots >= -1) & (want.slots < past)).all())


def test_equals_the_reference(device: str) -> None:
    for seed in range(60):
        assert_equals_the_reference(seed, device)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31 - 1))
def test_any_call_equals_the_reference(seed: int) -> None:
    assert_equals_the_reference(seed, "cpu")


def hand_drawn(device: str) -> dict[str, Any]:
    call = {
        "page_table": int32([[1, 2, 3], [5, 7, 6]]),
        "page_table_rows": int32([1]),
        "prefix_lens": int32([3]),
        "counts": int32([2]),
        "num_rows": 3,
        "page_size": 2,
        "num_pages": 12,
        "first_scratch_page": 8,
        "scratch_pages": 2,
    }
    return on(call, device)


def test_drafted_rows_go_on_in_scratch_pages(device: str) -> None:
    places = ops.place_draft_rows(**hand_drawn(device))
    # The pages of table row 1 are 10 and 11.
    assert places.pages.tolist() == [[5, 7, 10, 11, -1]]
    assert places.positions.tolist() == [[3], [4], [5]]
    assert places.slots.tolist() == [[15], [20], [-1]]
    assert places.counts.tolist() == [[1], [1], [0]]


def test_committed_rows_stay_in_the_pages_of_the_table(device: str) -> None:
    call = {**hand_drawn(device), "scratch_pages": 0}
    places = ops.place_draft_rows(**call)
    assert places.pages.tolist() == [[5, 7, 6]]
    assert places.slots.tolist() == [[15], [12], [-1]]


def test_after_a_whole_page_the_first_row_begins_a_scratch_page(device: str) -> None:
    call = hand_drawn(device)
    call["prefix_lens"][0] = 4
    assert ops.place_draft_rows(**call).slots.tolist() == [[20], [21], [-1]]


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_outside_the_table_has_no_pages(row: int, device: str) -> None:
    call = hand_drawn(device)
    call["page_table_rows"][0] = row
    places = ops.place_draft_rows(**call)
    assert places.pages.tolist() == [[-1] * 5]
    assert places.slots.tolist() == [[-1]] * 3


def test_schema_and_fake(device: str) -> None:
    assert_opcheck(lambda: ops.place_draft_rows(**hand_drawn(device)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a table of float": ({"page_table": torch.zeros(2, 3)}, "page_table of dtype int32 or int64"),
    "lengths of another batch": (
        {"prefix_lens": int32([1, 2])},
        r"prefix_lens of shape \[B=1\], got \[2\]",
    ),
    "counts of long": ({"counts": torch.tensor([1])}, "counts of dtype int32, got int64"),
    "pages without slots": ({"page_size": 0}, r"page_size in \[1, 2147483647\], got 0"),
    "more slots than int32 counts": (
        {"num_pages": 2**30},
        r"num_pages in \[0, 1073741823\], got 1073741824",
    ),
    "scratch pages past the last": (
        {"num_pages": 11},
        r"first_scratch_page in \[0, 7\], got 8",
    ),
    "buffers of fewer rows": (
        {"out": DraftPlaces.empty(1, 2, 5, "cpu")},
        r"num_rows=3 rows of out.positions, got \[2, 1\]",
    ),
    "buffers of fewer columns": (
        {"out": DraftPlaces.empty(1, 3, 4, "cpu")},
        "out.pages of 5 columns, got 4",
    ),
    "buffers of another batch": (
        {"out": DraftPlaces.empty(2, 3, 5, "cpu")},
        r"pages of shape \[B=1, columns\], got \[2, 5\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str) -> None:
    changed, sentence = REFUSED[name]
    with pytest.raises(RuntimeError, match=f"place_draft_rows: expected .*{sentence}"):
        ops.place_draft_rows(**{**hand_drawn("cpu"), **changed})


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    call = hand_drawn(device)
    places = ops.place_draft_rows(**call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.place_draft_rows(**call, out=places)
    for prefix_len in (0, 2, 5, 9):
        call["prefix_lens"].fill_(prefix_len)
        graph.replay()
        want = reference.place_draft_rows(**on(call, "cpu"))
        assert torch.equal(places.slots.cpu(), want.slots)
        assert torch.equal(places.pages.cpu(), want.pages)
