"""build_verify_window: the rows of all requests back to back, padded to a tier.

lens 4, 2, 6      rows  0 1 2 3 | 4 5 | 6 7 8 9 10 11 | 12 .. 15      qo_indptr 0 4 6 12
tier 16                 request 0   1        2          padding
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from accept_batches import int32, to_device
from guards import assert_records_equal, assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_batches import Call, random_window
from registered_ops import assert_opcheck
from specfast import Status, VerifyWindow, ops, reference


def run(call: Call, device: str, **more: Any) -> VerifyWindow:
    return ops.build_verify_window(**{k: to_device(v, device) for k, v in call.items()}, **more)


def article(device: str, **more: Any) -> VerifyWindow:
    """Three requests of six nodes: tokens 100 b + node, pages of four slots."""
    call = {
        "draft_tokens": torch.arange(6) + 100 * torch.arange(3)[:, None],
        "prefix_lens": int32([2, 7, 0]),
        "page_table": torch.tensor([[5, 3, 9], [0, 1, 2], [8, 6, 7]]),
        "verify_lens": int32([4, 2, 6]),
        "num_rows": 16,
        "page_size": 4,
    }
    return run(call | more, device)


def test_the_article(device: str) -> None:
    window = article(device)
    assert window.qo_indptr.tolist() == [0, 4, 6, 12]
    assert window.verify_lens.tolist() == [4, 2, 6]
    assert window.input_ids.tolist() == [0, 1, 2, 3, 100, 101, *range(200, 206), 0, 0, 0, 0]
    assert window.positions.tolist() == [2, 3, 4, 5, 7, 8, 0, 1, 2, 3, 4, 5, 0, 0, 0, 0]
    slots = [22, 23, 12, 13, 7, 8, 32, 33, 34, 35, 24, 25]
    assert window.out_cache_loc.tolist() == [*slots, -1, -1, -1, -1]
    assert window.window_index.tolist() == [0, 1, 2, 3, 6, 7, *range(12, 18), -1, -1, -1, -1]
    assert window.status.tolist() == [Status.OK] * 3


def test_the_rows_are_what_accept_reads(device: str) -> None:
    window = article(device)
    tokens = torch.arange(6, device=device) + 100 * torch.arange(3, device=device)[:, None]
    record = ops.accept_chain(
        tokens,
        int32([2, 7, 0], device=device),
        # A target that counts keeps every draft.
        target_predict=window.input_ids + 1,
        qo_indptr=window.qo_indptr,
        verify_lens=window.verify_lens,
        out_cache_loc=window.out_cache_loc,
    )
    assert record.commit_lens.tolist() == [4, 2, 6]
    assert record.slots[1].tolist() == [7, 8, -1, -1, -1, -1]
    assert record.bonus.tolist() == [4, 102, 206]


def test_anchors_stand_in_for_the_first_column(device: str) -> None:
    window = article(device, anchors=int32([77, 78, 79]))
    assert window.input_ids.tolist()[:7] == [77, 1, 2, 3, 78, 101, 79]


def test_a_page_of_one_slot_is_a_table_of_slots(device: str) -> None:
    table = torch.randperm(30).view(3, 10)
    window = article(device, page_table=table, page_size=1)
    expected = [*table[0, 2:6], *table[1, 7:9], *table[2, :6]]
    assert window.out_cache_loc.tolist()[:12] == [int(slot) for slot in expected]


def test_requests_lie_anywhere_in_the_table(device: str) -> None:
    rows = int32([2, 0, 1])
    table = torch.tensor([[5, 3, 9], [0, 1, 2], [8, 6, 7]])
    window = article(device, page_table=table[[1, 2, 0]], page_table_rows=rows)
    assert_records_equal(window, article(device))


def test_no_slot_past_the_context(device: str) -> None:
    window = article(device, context_len=5)
    assert window.verify_lens.tolist() == [3, 0, 5]
    assert window.status.tolist() == [Status.OK, Status.BAD_PARAM, Status.OK]  # 7 is past 5
    window = article(device, context_len=7)
    assert window.verify_lens.tolist() == [4, 0, 6]  # at the limit: nothing to flag
    assert window.status.tolist() == [Status.OK] * 3
    # The table has room for 12 positions; what lies behind it belongs to somebody else.
    wide = torch.tensor([[5, 3, 9, 1], [0, 1, 2, 4], [8, 6, 7, 2]])
    window = article(device, page_table=wide[:, :3], prefix_lens=int32([10, 11, 12]))
    assert window.verify_lens.tolist() == [2, 1, 0]
    assert window.out_cache_loc.tolist() == [38, 39, 11, *[-1] * 13]


@pytest.mark.parametrize("entry", [-1, -(2**40), 2**29 - 1, 2**40])
def test_no_slot_without_a_page(device: str, entry: int) -> None:
    table = torch.tensor([[5, entry, 9], [entry, 1, 2], [8, 6, entry]])
    window = article(device, page_table=table)
    # Request 0 has two rows on its first page; request 1 none of its own there, request 2 neither.
    assert window.verify_lens.tolist() == [2, 2, 6]
    assert window.status.tolist() == [Status.BAD_PARAM, Status.OK, Status.OK]
    window = article(device, page_table=table, prefix_lens=int32([4, 0, 0]))
    assert window.verify_lens.tolist() == [0, 0, 6]
    assert window.status.tolist() == [Status.BAD_PARAM, Status.BAD_PARAM, Status.OK]


def test_a_full_tier_leaves_out_the_last(device: str) -> None:
    window = article(device, num_rows=9)
    assert window.qo_indptr.tolist() == [0, 4, 6, 9]
    assert window.verify_lens.tolist() == [4, 2, 3]
    assert window.status.tolist() == [Status.OK, Status.OK, Status.BAD_PARAM]
    window = article(device, num_rows=3)
    assert window.qo_indptr.tolist() == [0, 3, 3, 3]
    assert window.status.tolist() == [Status.BAD_PARAM] * 3
    assert article(device, num_rows=0).verify_lens.tolist() == [0, 0, 0]


def test_padded_slots_are_not_looked_at(device: str) -> None:
    window = article(
        device, verify_lens=int32([0, 2, 0]), prefix_lens=int32([-9, 7, 2**31 - 1]), num_rows=3
    )
    assert window.qo_indptr.tolist() == [0, 0, 2, 2]
    assert window.out_cache_loc.tolist() == [7, 8, -1]
    assert window.status.tolist() == [Status.OK] * 3


def test_data_out_of_range(device: str) -> None:
    window = article(device, verify_lens=int32([-1, 9, 6]), prefix_lens=int32([2, 0, 2**31 - 1]))
    assert window.verify_lens.tolist() == [0, 6, 0]
    assert window.status.tolist() == [Status.BAD_PARAM] * 3
    window = article(device, page_table_rows=int32([3, 1, -1]))
    assert window.verify_lens.tolist() == [0, 2, 0]
    assert window.status.tolist() == [Status.BAD_PARAM, Status.OK, Status.BAD_PARAM]


def test_no_illegal_id_reaches_the_embedding(device: str) -> None:
    tokens = torch.tensor([[7, -1, 60, 2**40]])
    one = {"draft_tokens": tokens, "prefix_lens": int32([0]), "verify_lens": None, "num_rows": 4}
    assert article(device, **one, vocab_size=60).input_ids.tolist() == [7, 0, 0, 0]
    assert article(device, **one).input_ids.tolist() == [7, 0, 60, 0]
    window = article(device, **one, anchors=int32([99]), vocab_size=99)
    assert window.input_ids.tolist() == [0, 0, 60, 0]
    assert window.status.tolist() == [Status.OK]


def test_finished_slots_have_no_rows(device: str) -> None:
    """Nothing else of theirs is looked at."""
    prefix_lens = int32([2, -7, 0])
    tokens = torch.arange(6) + 100 * torch.tensor([[0], [-1], [2]])
    anchors = {"anchors": int32([4, -1, 6])}
    for source in (anchors, {"draft_tokens": tokens}):
        window = article(device, prefix_lens=prefix_lens, **source)
        assert window.verify_lens.tolist() == [4, 0, 6]
        assert window.qo_indptr.tolist() == [0, 4, 4, 10]
        assert window.status.tolist() == [Status.OK] * 3
    # The anchor that is not read says nothing.
    window = article(device, draft_tokens=tokens, anchors=int32([4, 5, 6]))
    assert window.verify_lens.tolist() == [4, 2, 6]


@pytest.mark.parametrize("unsound", [False, True])
@pytest.mark.parametrize(
    ("batch_size", "num_nodes"), [(0, 3), (1, 1), (3, 8), (40, 8), (300, 5), (1500, 2), (2, 300)]
)
def test_equals_the_reference(device: str, unsound: bool, batch_size: int, num_nodes: int) -> None:
    for seed in range(6):
        call = random_window(seed, batch_size, num_nodes, unsound=unsound)
        assert_records_equal(run(call, device), reference.build_verify_window(**call))


@settings(max_examples=400)
@given(
    seed=st.integers(0, 2**31 - 1),
    batch_size=st.integers(0, 6),
    num_nodes=st.integers(1, 6),
    unsound=st.booleans(),
)
def test_any_call_equals_the_reference(
    seed: int, batch_size: int, num_nodes: int, unsound: bool
) -> None:
    call = random_window(seed, batch_size, num_nodes, unsound=unsound)
    assert_records_equal(run(call, "cpu"), reference.build_verify_window(**call))


@given(seed=st.integers(0, 2**31 - 1), unsound=st.booleans())
def test_every_window_is_legal(seed: int, unsound: bool) -> None:
    call = random_window(seed, 4, 5, unsound=unsound)
    window = run(call, "cpu")
    lens, indptr = window.verify_lens, window.qo_indptr
    assert indptr[0] == 0
    assert torch.equal(indptr.diff(), lens)
    assert 0 <= int(indptr[-1]) <= call["num_rows"]
    wanted = call.get("verify_lens", torch.full((4,), 5))
    assert bool((lens <= wanted.clamp(min=0)).all())
    page_size = call["page_size"]
    limit = call.get("context_len", call["page_table"].shape[1] * page_size)
    used = int(indptr[-1])
    assert bool((window.positions[:used] < limit).all())
    assert bool((window.out_cache_loc[:used] >= 0).all())
    # A slot of the table of pages, and no slot twice.
    pages = set(call["page_table"].flatten().tolist())
    slots = window.out_cache_loc[:used].tolist()
    assert all(slot // page_size in pages for slot in slots)
    rows = call.get("page_table_rows", torch.arange(4))
    if len({int(row) for row in rows}) == 4 and not unsound:
        assert len(set(slots)) == used


def test_int32_and_int64_outputs(device: str) -> None:
    for tokens_dtype in (torch.int32, torch.int64):
        for slots_dtype in (torch.int32, torch.int64):
            out = VerifyWindow.empty(
                3, 16, device, tokens_dtype=tokens_dtype, slots_dtype=slots_dtype
            )
            window = article(device, out=out)
            assert window.input_ids.tolist() == article(device).input_ids.tolist()
            assert window.out_cache_loc.tolist() == article(device).out_cache_loc.tolist()


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(12):
        call = random_window(seed, 7, 5, unsound=True)
        call = {k: to_device(v, device) for k, v in call.items()}
        template = run(call, device)
        inputs = [value for value in call.values() if isinstance(value, torch.Tensor)]
        assert_written_whole(
            lambda out, call=call: run(call, device, out=out), template, device, *inputs
        )


def test_pages_that_no_row_needs_are_not_read(device: str) -> None:
    """Entries past the windows name no memory: a read of the KV there would fault."""
    table = torch.full((3, 10), 2**60)
    table[0, :2], table[1, 1:3], table[2, :2] = 1, 2, 3
    window = article(device, page_table=table)
    assert window.status.tolist() == [Status.OK] * 3


ARGUMENTS = {
    "draft_tokens of dtype int32 or int64, got float32": {"draft_tokens": torch.zeros(3, 6)},
    r"draft_tokens of shape \[B, N\], got \[6\]": {"draft_tokens": torch.zeros(6).long()},
    r"the number of nodes N of draft_tokens in \[1, 2147483647\], got 0": {
        "draft_tokens": torch.zeros(3, 0).long()
    },
    r"anchors of shape \[B=3\], got \[2\]": {"anchors": int32([1, 2])},
    r"prefix_lens of shape \[B=3\], got \[2\]": {"prefix_lens": int32([1, 2])},
    "verify_lens of dtype int32, got int64": {"verify_lens": torch.ones(3).long()},
    r"page_table of shape \[P, num_pages\], got \[9\]": {"page_table": torch.zeros(9).long()},
    "page_table with a dense last dimension, got stride 3": {
        "page_table": torch.zeros(3, 3).long().t()
    },
    r"page_size in \[1, 2147483647\], got 0": {"page_size": 0},
    r"page_table_rows of shape \[B=3\], got \[1\]": {"page_table_rows": int32([1])},
    r"context_len in \[0, 12\], got 13": {"context_len": 13},
    r"vocab_size in \[1, 2147483647\], got 0": {"vocab_size": 0},
    r"padding_slot in \[-1, 2147483647\], got -2": {"padding_slot": -2},
    "num_rows >= 0, got -1": {"num_rows": -1},
    r"out.input_ids of num_rows = 16 rows, got shape \[15\]": {
        "out": VerifyWindow.empty(3, 15, "cpu")
    },
    r"out.qo_indptr of shape \[B \+ 1=4\], got \[3\]": {
        "out": replace(VerifyWindow.empty(3, 16, "cpu"), qo_indptr=int32([0, 0, 0]))
    },
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    with pytest.raises(RuntimeError, match="build_verify_window: expected " + message):
        article("cpu", **ARGUMENTS[message])


def test_capture_and_replay(device: str) -> None:
    if device == "cpu":
        pytest.skip("a CUDA Graph needs a GPU")
    fixed = random_window(0, 9, 5, unsound=False)
    static = {k: to_device(v, device) for k, v in fixed.items()}
    static["verify_lens"] = torch.zeros(9, dtype=torch.int32, device=device)
    out = run(static, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.build_verify_window(**static, out=out)
    for seed in range(20):
        fresh = torch.Generator().manual_seed(seed)
        lens = torch.randint(-1, 8, (9,), generator=fresh, dtype=torch.int32)
        static["verify_lens"].copy_(lens)
        graph.replay()
        expected = reference.build_verify_window(**{**fixed, "verify_lens": lens})
        assert_records_equal(out, expected)


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: article(device))
