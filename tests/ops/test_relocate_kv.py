"""relocate_kv: committed rows to the front of their window.

       R 0               rows     R A B C D     committed: R, A, C = rows 0, 1, 3
     /     \\             window   5 9 2 8 4     (the slots, in any order)
   A 1     B 2
  /   \\                 before   R at 5, A at 9, B at 2, C at 8
C 3   D 4               after    R at 5, A at 9, C at 2; only slot 2 was written
"""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from guards import GuardedMemory, unchanged
from hypothesis import given
from hypothesis import strategies as st
from relocate_batches import (
    BY_ROW,
    BY_SLOT,
    PAGES,
    Memory,
    Windows,
    as_bytes,
    int32,
    padded,
    random_windows,
)
from specfast import KvBuffer, KvLayout, Status, ops, reference

EVERY_FORM = [*BY_SLOT, *BY_ROW]
PATH, PATH_LEN = [[0, 1, 3]], [3]


def move(
    layout: KvLayout, paths: list[list[int]], slots: list[int], device: str, rows: int
) -> list[int]:
    windows = Windows(paths, max(map(len, paths)), slots, rows_per_request=rows)
    arguments, options = windows.arguments(device), windows.options(device)
    return ops.relocate_kv(layout, *arguments, **options).tolist()


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("paged", ["flat", "nhd", "hnd"])
def test_the_article_tree(device: str, page_size: int, paged: str) -> None:
    slots = [5, 9, 2, 8, 4] if page_size == 1 else [page_size * 3 + 1, 9, 2, page_size + 3, 4]
    pages = 12 if page_size == 1 else 4
    # The value of a slot's item is the slot's number.
    number = torch.arange(pages * page_size, dtype=torch.float32, device=device)
    items = number.view(pages, page_size, 1, 1).repeat(1, 1, 2, 8)
    if paged == "flat":
        buffer = KvBuffer.nhd(items.view(-1, 2, 8))
    elif paged == "nhd":
        buffer = KvBuffer.nhd(items)
    else:
        buffer = KvBuffer.hnd(items.transpose(1, 2).contiguous())
    assert move(KvLayout([buffer]), PATH, slots, device, rows=5) == [Status.OK]
    expected = number.clone()
    expected[slots[2]] = slots[3]
    got = buffer.views[0].reshape(pages * page_size, 16)
    assert torch.equal(got, expected[:, None].expand(-1, 16))


def test_a_source_may_be_the_destination_of_a_later_row(device: str) -> None:
    rows = torch.arange(12, dtype=torch.int32, device=device)
    layout = KvLayout([KvBuffer.rows(rows)])
    arguments = padded([[0, 2, 3, 5], [6, 8, 9, 10, 11]], 6, device), int32([4, 5], device)
    assert ops.relocate_kv(layout, *arguments, rows_per_request=6).tolist() == [0, 0]
    assert rows.tolist() == [0, 2, 3, 5, 4, 5, 6, 8, 9, 10, 11, 11]


def test_key_and_scale_of_a_packed_page_move_apart(device: str) -> None:
    """Pages of 4 tokens, laid out [4 keys of 3 bytes | 4 scales of 1 byte]; token 5 -> 2."""
    page = [[10 * t + i for t in range(4) for i in range(3)] + [90 + t for t in range(4)]]
    page += [[100 + v for v in page[0]]]
    cache = torch.tensor(page, dtype=torch.uint8, device=device)
    layout = KvLayout([KvBuffer.packed_pages(cache, 4, [3, 1])])
    assert move(layout, [[0, 2]], [1, 2, 5], device, rows=3) == [Status.OK]
    page[0][6:9] = [110, 111, 112]  # key 5 at token 2
    page[0][14] = 191  # scale 5 at token 2
    assert cache.tolist() == page


def test_scales_follow_the_payload(device: str) -> None:
    """fp8 rows with a scale each: row 6 (scale 8) -> row 2 (scale 1/2)."""
    payload = torch.arange(8, device=device).float().repeat(16, 1).T.contiguous()
    payload = payload.to(torch.float8_e4m3fn)
    scales = torch.ones(8, 1, device=device)
    scales[6], scales[2] = 8.0, 0.5
    layout = KvLayout([KvBuffer.mla(payload), KvBuffer.slots(scales)])
    assert move(layout, [[0, 2]], [0, 2, 6], device, rows=3) == [Status.OK]
    dequantised = payload.float() * scales
    assert dequantised[2].tolist() == [48.0] * 16
    assert dequantised[:, 0].tolist() == [0, 1, 48, 3, 4, 5, 48, 7]


def test_the_path_is_as_wide_as_the_tree_is_deep(device: str) -> None:
    """Two trees of 5 nodes and depth 2: accept_index has width 3, not 5."""
    predict = torch.arange(10, dtype=torch.int32, device=device)
    layout = KvLayout([KvBuffer.rows(predict)])
    arguments = int32([[0, 1, 3], [5, 7, -1]], device), int32([3, 2], device)
    assert ops.relocate_kv(layout, *arguments, rows_per_request=5).tolist() == [0, 0]
    assert predict.tolist() == [0, 1, 3, 3, 4, 5, 7, 7, 8, 9]


@pytest.mark.parametrize("length", [40, 1024])
def test_long_paths(device: str, length: int) -> None:
    rows = length + 3
    hidden = torch.arange(rows * 20, dtype=torch.int32, device=device).view(rows, 20)
    keys = hidden.clone()
    path = [0, *range(4, length + 3)]
    slots = [*range(rows - 1, -1, -1)]
    layout = KvLayout([KvBuffer.rows(hidden), KvBuffer.mla(keys)])
    expected_hidden, expected_keys = hidden.clone(), keys.clone()
    for i, row in enumerate(path):
        expected_hidden[i] = hidden[row]
        expected_keys[slots[i]] = keys[slots[row]]
    assert move(layout, [path], slots, device, rows) == [Status.OK]
    assert torch.equal(hidden, expected_hidden)
    assert torch.equal(keys, expected_keys)


def test_hundreds_of_buffers_in_one_call(device: str) -> None:
    number = torch.arange(5, dtype=torch.int16, device=device)
    layers = [number + 5 * layer for layer in range(300)]
    layout = KvLayout([KvBuffer.slots(layer) for layer in layers])
    assert move(layout, PATH, [4, 3, 2, 1, 0], device, rows=5) == [Status.OK]
    for layer, keys in enumerate(layers):
        assert (keys - 5 * layer).tolist() == [0, 1, 1, 3, 4]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("ragged", [False, True])
def test_equals_the_reference(device: str, page_size: int, ragged: bool) -> None:
    rng = torch.Generator().manual_seed(page_size)
    for seed in range(8):
        batch, nodes = (1, PAGES) if page_size == 1 else (3, 2 * page_size)
        windows = random_windows(rng, batch, nodes, PAGES * page_size, ragged=ragged)
        sizes = {"page_size": page_size, "num_rows": len(windows.slots), "seed": seed}
        memory = Memory(EVERY_FORM, device=device, **sizes)
        expected = Memory(EVERY_FORM, device="cpu", **sizes)
        status = windows.run(ops.relocate_kv, memory, device)
        assert torch.equal(status.cpu(), windows.run(reference.relocate_kv, expected, "cpu"))
        memory.assert_equal(expected)


@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(0, 4), nodes=st.integers(1, 24))
def test_relocate_then_gather_is_gather(seed: int, batch: int, nodes: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    windows = random_windows(rng, batch, nodes, PAGES * 16, ragged=seed % 2 == 1)
    rows = max(1, len(windows.slots))
    memory = Memory(["nhd", "hnd", "packed pages"], page_size=16, num_rows=rows, device="cpu")
    begins = windows.qo_indptr or list(accumulate([nodes] * batch, initial=0))
    path = [windows.slots[row] for path in windows.paths for row in path]
    front = [
        windows.slots[begin + i]
        for begin, path in zip(begins, windows.paths, strict=False)
        for i in range(len(path))
    ]

    def gathered(slots: list[int]) -> list[list[torch.Tensor]]:
        views = [view for buffer in memory.layout.buffers for view in buffer.views]
        items = [[view[i // view.shape[1], i % view.shape[1]] for i in slots] for view in views]
        return [[as_bytes(item).clone() for item in of_view] for of_view in items]

    before = gathered(path)
    assert windows.run(ops.relocate_kv, memory, "cpu").tolist() == [0] * batch
    for items, expected in zip(gathered(front), before, strict=True):
        assert all(torch.equal(*pair) for pair in zip(items, expected, strict=True))


def test_a_request_alone_moves_as_in_a_batch(device: str) -> None:
    windows = random_windows(torch.Generator().manual_seed(3), 5, 16, PAGES * 16, ragged=True)
    assert windows.qo_indptr is not None
    sizes = {"page_size": 16, "num_rows": len(windows.slots), "device": device}
    together, alone = Memory(EVERY_FORM, **sizes), Memory(EVERY_FORM, **sizes)
    windows.run(ops.relocate_kv, together, device)
    for b in range(4, -1, -1):
        begin, end = windows.qo_indptr[b : b + 2]
        one = Windows([windows.paths[b]], 20, windows.slots, qo_indptr=[begin, end])
        one.run(ops.relocate_kv, alone, device)
    alone.assert_equal(together)


def test_padded_slots_are_not_looked_at(device: str) -> None:
    """Stale contents of padded slots: a huge row, a window outside of everything."""
    rows = torch.arange(10, dtype=torch.int32, device=device)
    layout = KvLayout([KvBuffer.rows(rows)])
    path = int32([[2**31 - 1, -5, 7], [0, 2, 4], [9, 9, 9]], device)
    lengths, indptr = int32([0, 3, 0], device), int32([-(2**31), 0, 5, 2**31 - 1], device)
    assert ops.relocate_kv(layout, path, lengths, qo_indptr=indptr).tolist() == [0, 0, 0]
    assert rows.tolist() == [0, 2, 4, 3, 4, 5, 6, 7, 8, 9]


# Request 0 of two windows of 5 rows with slots 0..9; the layout has 10 slots.
BAD_PATHS = {
    "does not begin at the window": {"path": [1, 2, 3]},
    "repeats a row": {"path": [0, 2, 2]},
    "goes back": {"path": [0, 3, 2]},
    "ends in the next window": {"path": [0, 1, 5]},
    "negative row": {"path": [0, -1, 3]},
    "before the window": {"path": [-1, 0, 3]},
    "huge row": {"path": [0, 1, 2**31 - 1]},
    "longer than its record": {"length": 4},
    "negative length": {"length": -1},
    "lowest length": {"length": -(2**31)},
    "negative slot of a source": {"slots": {3: -1}},
    "negative slot of a destination": {"slots": {2: -1}},
    "negative slot of a row in place": {"slots": {0: -1}},
    "slot past the end": {"slots": {3: 10}},
    "slot past 32 bits": {"slots": {3: 2**32 + 3}},
    "two destinations in one slot": {"slots": {1: 2}},
    "two sources in one slot": {"path": [0, 3, 4], "slots": {3: 4}},
    "source in the slot of a destination": {"path": [0, 2, 4], "slots": {4: 1}},
    "source in the slot of a row in place": {"slots": {3: 0}},
    "window ends past the rows": {"indptr": [0, 11, 16]},
    "window begins before the rows": {"path": [-1, 1, 3], "indptr": [-1, 5, 10]},
    "window ends before it begins": {"indptr": [0, -1, 10]},
    "window shorter than the path": {"indptr": [0, 2, 10]},
    "window at the end of int32": {
        "path": [2**31 - 1, -(2**30), -5],
        "indptr": [2**31 - 1, 5, 10],
    },
}


@pytest.mark.parametrize("by_slot", [True, False])
@pytest.mark.parametrize("fault", BAD_PATHS.values(), ids=BAD_PATHS)
def test_a_bad_path_moves_nothing(device: str, fault: dict, by_slot: bool) -> None:
    if "slots" in fault and not by_slot:
        pytest.skip("without buffers by slot the slots are not read")
    memory = GuardedMemory(device)
    keys, hidden = memory.empty(10, 12, dtype=torch.int16), memory.empty(10, 3)
    keys.copy_(torch.arange(120).view(10, 12))
    hidden.copy_(torch.arange(30).view(10, 3))
    expected_keys, expected_hidden = keys.clone(), hidden.clone()
    buffers = [KvBuffer.slots(keys), KvBuffer.rows(hidden)] if by_slot else [KvBuffer.rows(hidden)]
    slots = torch.arange(10)
    for row, slot in fault.get("slots", {}).items():
        slots[row] = slot
    windows: dict = {"rows_per_request": 5}
    if "indptr" in fault:
        windows = {"qo_indptr": int32(fault["indptr"], device)}
    # The record is three wide in wider memory, where the path would go on soundly.
    path = int32([[*fault.get("path", [0, 1, 3]), 4], [5, 7, 9, 9]], device)[:, :3]
    beside = 3 if fault.get("indptr", [5, 10])[-2:] == [5, 10] else 0
    if beside:  # the other request moves all the same
        expected_keys[6:8] = keys[[7, 9] if by_slot else [6, 7]]
        expected_hidden[6:8] = hidden[[7, 9]]
    lengths = int32([fault.get("length", 3), beside], device)
    status = ops.relocate_kv(
        KvLayout(buffers), path, lengths, out_cache_loc=slots.to(device), **windows
    )
    assert status.tolist() == [Status.BAD_PATH, Status.OK]
    assert torch.equal(hidden, expected_hidden)
    assert torch.equal(keys, expected_keys)
    memory.check()


def test_slots_of_rows_off_the_path_do_not_matter(device: str) -> None:
    rows = torch.arange(5, dtype=torch.int32, device=device)
    layout = KvLayout([KvBuffer.slots(rows)])
    assert move(layout, PATH, [0, 1, 2, 3, -7], device, rows=5) == [Status.OK]
    assert rows.tolist() == [0, 1, 3, 3, 4]


def test_writes_only_what_moves(device: str) -> None:
    """Guard bytes around every buffer, status written whole, inputs unchanged."""
    windows = random_windows(torch.Generator().manual_seed(11), 4, 12, PAGES * 16)
    guarded = GuardedMemory(device)
    sizes = {"page_size": 16, "num_rows": len(windows.slots)}
    memory = Memory(EVERY_FORM, device=device, empty=guarded.empty, **sizes)
    expected = Memory(EVERY_FORM, device="cpu", **sizes)
    status = guarded.empty(4)
    path, lengths = windows.arguments(device)
    options = windows.options(device)
    with unchanged(path, lengths, options["out_cache_loc"], memory.layout.pieces):
        out = ops.relocate_kv(memory.layout, path, lengths, **options, status=status)
    assert out is status
    assert status.tolist() == [0] * 4
    windows.run(reference.relocate_kv, expected, "cpu")
    memory.assert_equal(expected)
    guarded.check()


def test_status_accumulates_on_request(device: str) -> None:
    layout = KvLayout([KvBuffer.rows(torch.zeros(4, device=device))])
    path, lengths = int32([[0, 1], [2, 2]], device), int32([2, 2], device)
    status = int32([Status.NAN_LOGITS] * 2, device)
    ops.relocate_kv(
        layout, path, lengths, rows_per_request=2, status=status, accumulate_status=True
    )
    assert status.tolist() == [Status.NAN_LOGITS, Status.NAN_LOGITS | Status.BAD_PATH]
    ops.relocate_kv(layout, path, lengths, rows_per_request=2, status=status)
    assert status.tolist() == [Status.OK, Status.BAD_PATH]
