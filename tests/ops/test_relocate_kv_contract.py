"""relocate_kv as torch and its callers see it: refusals, schema, compilation, capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from relocate_batches import BY_ROW, BY_SLOT, PAGES, Memory, int32, random_windows
from specfast import KvBuffer, KvLayout, ops, reference
from torch import Tensor

# A copy of a strided tensor is dense: opcheck, which copies its arguments, gets no strided ones.
STRIDED = {"nhd, keys and values page by page", "several piece sets", "every other hidden"}
DENSE_FORMS = [name for name in (*BY_SLOT, *BY_ROW) if name not in STRIDED]


def call(**changed: Any) -> Tensor:
    """Two windows of 5 rows over 12 slots, with some arguments replaced."""
    arguments: dict[str, Any] = {
        "layout": KvLayout([KvBuffer.slots(torch.zeros(12, 4)), KvBuffer.rows(torch.zeros(10))]),
        "accept_index": int32([[0, 1, 3], [5, 6, 7]]),
        "commit_lens": int32([3, 3]),
        "out_cache_loc": torch.arange(10),
        "rows_per_request": 5,
        **changed,
    }
    return ops.relocate_kv(**arguments)


def rows_only() -> KvLayout:
    return KvLayout([KvBuffer.rows(torch.zeros(9))])


REFUSED = {
    "path of int64": (
        {"accept_index": torch.zeros(2, 3, dtype=torch.int64)},
        "expected accept_index of dtype int32, got int64",
    ),
    "path without requests": (
        {"accept_index": int32([0, 1, 3])},
        r"expected accept_index of shape \[B, S\], got \[3\]",
    ),
    "path across columns": (
        {"accept_index": int32([[0, 5], [1, 6], [3, 7]]).T},
        "expected accept_index with a dense last dimension",
    ),
    "path without width": (
        {"accept_index": int32([[], []])},
        r"expected the path width S of accept_index in \[1, 1024\], got 0",
    ),
    "path too wide": (
        {"accept_index": torch.zeros(2, 1025, dtype=torch.int32)},
        r"expected the path width S of accept_index in \[1, 1024\], got 1025",
    ),
    "lengths of another batch": (
        {"commit_lens": int32([3, 3, 3])},
        r"expected commit_lens of shape \[B=2\], got \[3\]",
    ),
    "slots missing": (
        {"out_cache_loc": None},
        "expected out_cache_loc, because the layout has buffers by slot, got None",
    ),
    "slots of float": (
        {"out_cache_loc": torch.zeros(10)},
        "expected out_cache_loc of dtype int32 or int64, got float32",
    ),
    "more rows than a buffer by row has": (
        {"out_cache_loc": torch.arange(11)},
        r"expected the number of rows R of out_cache_loc in \[0, 10\], got 11",
    ),
    "windows longer than the rows": (
        {"rows_per_request": 6},
        r"expected rows_per_request in \[0, 5\], got 6",
    ),
    "windows longer than the buffer by row": (
        {"layout": rows_only(), "out_cache_loc": None},
        r"expected rows_per_request in \[0, 4\], got 5",
    ),
    "no windows": (
        {"rows_per_request": None},
        "expected exactly one of rows_per_request and qo_indptr, got neither",
    ),
    "two kinds of windows": (
        {"qo_indptr": int32([0, 5, 10])},
        "expected exactly one of rows_per_request and qo_indptr, got both",
    ),
    "indptr without an end": (
        {"rows_per_request": None, "qo_indptr": int32([0, 5])},
        r"expected qo_indptr of shape \[B \+ 1=3\], got \[2\]",
    ),
    "status of another batch": (
        {"status": int32([0])},
        r"expected status of shape \[B=2\], got \[1\]",
    ),
}


@pytest.mark.parametrize(("changed", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_arguments_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=f"relocate_kv: {message}"):
        call(**changed)


def test_copies_of_another_geometry_are_refused() -> None:
    layout = KvLayout([KvBuffer.slots(torch.zeros(12, 2, 4)[:, 0])])
    layout.tensors[0] = layout.tensors[0].clone()
    with pytest.raises(RuntimeError, match="expected buffers with the shapes and strides"):
        call(layout=layout)


def test_the_sound_call_is_not_refused() -> None:
    assert call().tolist() == [0, 0]


def test_an_empty_batch(device: str) -> None:
    rows = torch.arange(5, device=device)
    layout = KvLayout([KvBuffer.rows(rows)])
    path, lengths = int32([], device).view(0, 4), int32([], device)
    assert ops.relocate_kv(layout, path, lengths, rows_per_request=5).tolist() == []
    assert rows.tolist() == [0, 1, 2, 3, 4]


def sample(device: str, seed: int = 5) -> tuple[Memory, Memory, Any]:
    """Memory for the op, its twin for the reference, and the windows."""
    windows = random_windows(torch.Generator().manual_seed(seed), 4, 12, PAGES * 16)
    sizes = {"page_size": 16, "num_rows": len(windows.slots)}
    memory, twin = (
        Memory(DENSE_FORMS, device=device, **sizes),
        Memory(DENSE_FORMS, device="cpu", **sizes),
    )
    return memory, twin, windows


def test_schema_and_fake(device: str) -> None:
    memory, _, windows = sample(device)
    layout = memory.layout
    path, lengths = windows.arguments(device)
    options = windows.options(device)
    torch.library.opcheck(
        torch.ops.specfast.relocate_kv.default,
        (
            layout.tensors,
            layout.geometry,
            layout.pieces,
            layout.chunks,
            layout.page_size,
            layout.num_slots,
            layout.num_rows,
            path,
            lengths,
            options["out_cache_loc"],
            options["qo_indptr"],
            options["rows_per_request"],
            torch.zeros_like(lengths),
            False,
        ),
    )


def test_compiled_code_sees_the_moved_bytes(device: str) -> None:
    """Functionalised code hands the op copies of the buffers and writes them back; keys and values
    share an allocation."""
    both = torch.arange(2 * 8 * 4, dtype=torch.int32, device=device).view(2, 8, 4)
    layout = KvLayout([KvBuffer.mla(both[0]), KvBuffer.mla(both[1])])
    slots = torch.arange(8, device=device)
    expected = both[:, [0, 2, 4, 3, 4, 5, 6, 7]]

    def step(path: Tensor, lengths: Tensor) -> Tensor:
        ops.relocate_kv(layout, path, lengths, out_cache_loc=slots, rows_per_request=8)
        return both.clone()

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    seen = compiled(int32([[0, 2, 4]], device), int32([3], device))
    assert torch.equal(seen, expected)
    assert torch.equal(both, expected)


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    """One graph, replayed with other paths, lengths and slots in the captured tensors."""
    memory, twin, windows = sample(device)
    path, lengths = windows.arguments(device)
    options = windows.options(device)
    status = torch.zeros_like(lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.relocate_kv(memory.layout, path, lengths, **options, status=status)
    for seed in range(20, 30):
        new = random_windows(torch.Generator().manual_seed(seed), 4, 12, PAGES * 16)
        for captured, fresh in zip((path, lengths), new.arguments(device), strict=True):
            captured.copy_(fresh)
        options["out_cache_loc"].copy_(new.options(device)["out_cache_loc"])
        graph.replay()
        assert torch.equal(status.cpu(), new.run(reference.relocate_kv, twin, "cpu"))
        memory.assert_equal(twin)
