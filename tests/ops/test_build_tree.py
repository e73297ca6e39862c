"""build_tree: links, positions and mask of selected candidates.

       R 0                     candidates 0, 1 under the root, 2, 3 under 0, 4, 5 under 1
     /     \\                   positions   depth added to the committed length
   A 1     B 2                 links       first child, next sibling
  /   \\                        mask        a node sees itself and what is above it
C 3   D 4
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from guards import GuardedMemory, assert_records_equal, unchanged
from hypothesis import given
from hypothesis import strategies as st
from specfast import Status, TreeRecord, ops, reference
from tree_batches import (
    assert_legal_tree,
    random_candidates,
    random_selection,
    unpack_bits,
    unsound_candidates,
)

R, A, B, C, D = 1, 10, 11, 12, 13
TWO_LEVELS = [-1, 0, 1]


def build(
    selected: list[int], device: str, *, topk: int = 2, parents: list[int] = TWO_LEVELS, **more
) -> TreeRecord:
    return ops.build_tree(
        torch.tensor([R], device=device),
        torch.tensor([[A, B, C, D, 14, 15][: len(selected)]], device=device),
        torch.tensor([parents], dtype=torch.int64, device=device),
        torch.tensor([selected], device=device),
        torch.tensor([10], dtype=torch.int32, device=device),
        topk=topk,
        **more,
    )


def rows_of(record: TreeRecord) -> list[list[int]]:
    """The columns that each node of the first request sees."""
    rows = unpack_bits(record.mask, record.parents.shape[1])[0]
    return [row.nonzero().flatten().tolist() for row in rows]


def test_the_article_tree(device: str) -> None:
    record = build([0, 1, 2, 3], device)
    assert record.draft_tokens.tolist() == [[R, A, B, C, D]]
    assert record.parents.tolist() == [[-1, 0, 0, 1, 1]]
    assert record.retrieve_index.tolist() == [[0, 1, 2, 3, 4]]
    assert record.retrieve_next_token.tolist() == [[1, 3, -1, -1, -1]]
    assert record.retrieve_next_sibling.tolist() == [[-1, 2, -1, 4, -1]]
    assert record.positions.tolist() == [[10, 11, 11, 12, 12]]
    assert rows_of(record) == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4]]
    assert record.status.tolist() == [Status.OK]


def test_the_tree_is_what_accept_walks(device: str) -> None:
    tree = build([0, 1, 2, 3], device)
    record = ops.accept_tree(
        tree.draft_tokens,
        tree.retrieve_next_token,
        tree.retrieve_next_sibling,
        torch.tensor([10], dtype=torch.int32, device=device),
        width=3,
        target_predict=torch.tensor([A, C, 0, 77, 0], device=device),
    )
    assert record.accept_index.tolist() == [[0, 1, 3]]
    assert record.out_tokens.tolist() == [[A, C, 77]]


def test_a_missing_parent_detaches_the_node(device: str) -> None:
    # Three levels: entry 4 says that 8 and 9 are children of 7, which only request 1 selected.
    parents = torch.tensor([[-1, 0, 1, 2, 7]] * 2, device=device)
    record = ops.build_tree(
        torch.tensor([R, R], device=device),
        torch.tensor([[A, B, C]] * 2, device=device),
        parents,
        torch.tensor([[0, 1, 9], [3, 7, 9]], device=device),
        torch.tensor([10, 20], dtype=torch.int32, device=device),
        topk=2,
    )
    assert record.status.tolist() == [Status.BAD_TREE, Status.BAD_TREE]
    assert record.parents[0].tolist() == [-1, 0, 0, -1]
    assert record.retrieve_next_token[0].tolist() == [1, -1, -1, -1]
    assert record.retrieve_next_sibling[0].tolist() == [-1, 2, -1, -1]
    assert record.retrieve_index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert record.positions[0].tolist() == [10, 11, 11, 11]
    assert rows_of(record) == [[0], [0, 1], [0, 2], [0, 3]]
    # Request 1: 3 and 7 lack their parents too, and 9 hangs under the detached 7.
    assert record.parents[1].tolist() == [-1, -1, -1, 2]
    assert record.retrieve_next_token[1].tolist() == [-1, -1, 3, -1]
    assert record.positions[1].tolist() == [20, 21, 21, 22]


MALFORMED = {
    "cycle of two": ([0, 2, 4], [-1, 4, 2], [-1, 0, -1, 2]),
    "its own parent": ([0, 1, 2], [-1, 2, 1], [-1, 0, 0, -1]),
    "sibling as parent": ([0, 2, 3], [-1, 2, 1], [-1, 0, -1, -1]),
    "negative parent": ([0, 1, 2], [-1, -1, 1], [-1, 0, 0, -1]),
    "far negative parent": ([0, 1, 2], [-1, -(2**32), 1], [-1, 0, 0, -1]),
    "parent out of range": ([0, 1, 2], [-1, 2**40, 1], [-1, 0, 0, -1]),
    "child before its parent": ([2, 0, 1], [-1, 0, 1], [-1, -1, 0, 0]),
    "negative candidate": ([0, -1, 2], [-1, 0, 1], [-1, 0, -1, 1]),
    "far negative candidate": ([0, -(2**32) + 1, 2], [-1, 0, 1], [-1, 0, -1, 1]),
    "candidate out of range": ([0, 6, 2], [-1, 0, 1], [-1, 0, -1, 1]),
    "candidate far out of range": ([0, 2**32, 2], [-1, 0, 1], [-1, 0, -1, 1]),
    "the same candidate twice": ([0, 0, 2], [-1, 0, 1], [-1, 0, -1, 1]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_trees(device: str, name: str) -> None:
    selected, parents, expected = MALFORMED[name]
    record = build(selected, device, parents=parents)
    assert record.parents.tolist() == [expected]
    assert record.status.tolist() == [Status.BAD_TREE]
    assert_legal_tree(record, torch.tensor([10]))


def test_a_malformed_entry_of_no_selected_candidate_is_not_flagged(device: str) -> None:
    record = build([0, 1, 2], device, parents=[-1, 0, 99])
    assert record.status.tolist() == [Status.OK]


@pytest.mark.parametrize("columns", [0, 1, 4])
def test_one_level(device: str, columns: int) -> None:
    record = build([0, 1], device, parents=[77] * columns)
    assert record.parents.tolist() == [[-1, 0, 0]]
    assert record.status.tolist() == [Status.OK]


@given(
    seed=st.integers(0, 2**31 - 1),
    topk=st.integers(1, 4),
    depth=st.integers(1, 4),
    sound=st.booleans(),
    data=st.data(),
)
def test_equals_the_reference(
    seed: int, topk: int, depth: int, sound: bool, data: st.DataObject
) -> None:
    candidates = (random_candidates if sound else unsound_candidates)(seed, 3, topk, depth)
    count = data.draw(st.integers(0, candidates.num_candidates))
    selected = random_selection(seed, candidates, count, sound=sound)
    for mode in ("bits", "qlen"):
        got = candidates.build(ops.build_tree, selected, mask_mode=mode)
        expected = candidates.build(reference.build_tree, selected, mask_mode=mode)
        assert_records_equal(got, expected)


@given(seed=st.integers(0, 2**31 - 1), count=st.integers(0, 40), sound=st.booleans())
def test_every_tree_is_legal(seed: int, count: int, sound: bool) -> None:
    candidates = unsound_candidates(seed, depth=6)
    selected = random_selection(seed, candidates, count, sound=sound)
    record = candidates.build(ops.build_tree, selected)
    assert_legal_tree(record, candidates.prefix_lens)


@pytest.mark.parametrize(("topk", "depth", "count"), [(8, 6, 63), (32, 8, 1023), (8, 6, 0)])
def test_sizes(device: str, topk: int, depth: int, count: int) -> None:
    candidates = random_candidates(topk, 2, topk, depth)
    selected, _ = candidates.select(ops.select_draft_tokens, count + 1)
    record = candidates.to(device).build(ops.build_tree, selected.to(device))
    assert_records_equal(record, candidates.build(reference.build_tree, selected))
    assert record.status.tolist() == [Status.OK, Status.OK]


@given(seed=st.integers(0, 2**31 - 1))
def test_requests_do_not_see_each_other(seed: int) -> None:
    candidates = unsound_candidates(seed, batch=4)
    selected = random_selection(seed, candidates, 9, sound=False)
    record = candidates.build(ops.build_tree, selected)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    mixed = candidates.requests(order).build(ops.build_tree, selected[order])
    for field in dataclasses.fields(TreeRecord):
        if field.name != "retrieve_index":
            assert torch.equal(getattr(mixed, field.name), getattr(record, field.name)[order])


def test_int32_records_and_strided_rows(device: str) -> None:
    candidates = random_candidates(3).to(device)
    selected, _ = candidates.select(ops.select_draft_tokens, 9)
    expected = candidates.build(ops.build_tree, selected)
    drafts = torch.full((3, 20), -7, dtype=torch.int64, device=device)
    drafts[:, 3:11] = expected.draft_tokens[:, 1:]
    drafts[1, 5] = 2**32 + 5
    record = ops.build_tree(
        candidates.anchors.to(torch.int32),
        drafts[:, 3:11],
        candidates.parent_list.to(torch.int32).repeat(1, 2)[:, : candidates.parent_list.shape[1]],
        selected.to(torch.int64).repeat(1, 2)[:, :8],
        candidates.prefix_lens,
        topk=3,
    )
    assert record.draft_tokens.dtype == torch.int32
    tokens = expected.draft_tokens.clone()
    tokens[1, 3] = -1  # no int32 holds it
    assert torch.equal(record.draft_tokens.long(), tokens)
    assert torch.equal(record.parents, expected.parents)


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(4):
        candidates = unsound_candidates(seed).to(device)
        selected = random_selection(seed, candidates, 12, sound=False).to(device)
        for mode in ("bits", "qlen"):
            template = candidates.build(ops.build_tree, selected, mask_mode=mode)
            records = []
            for fill in (0x5C, 0x11):
                memory = GuardedMemory(device, fill)
                out = memory.like(template)
                with unchanged(candidates.parent_list, selected, candidates.prefix_lens):
                    candidates.build(ops.build_tree, selected, mask_mode=mode, out=out)
                memory.check()
                records.append(out)
            assert_records_equal(*records)
            assert_records_equal(records[0], template)


def test_empty_batch(device: str) -> None:
    candidates = random_candidates(0).requests([]).to(device)
    selected = torch.zeros(0, 8, dtype=torch.int32, device=device)
    record = candidates.build(ops.build_tree, selected)
    assert record.mask.shape == (0, 9, 1)


ARGUMENTS = {
    "anchors of dtype int32 or int64, got float32": {"anchors": torch.zeros(2)},
    r"draft_tokens of shape \[B=2, N - 1=4\], got \[2, 3\]": {
        "draft_tokens": torch.zeros(2, 3, dtype=torch.int64)
    },
    r"selected_index of shape \[B=2, N - 1\], got \[3, 4\]": {
        "selected_index": torch.zeros(3, 4, dtype=torch.int64)
    },
    "prefix_lens of dtype int32, got int64": {"prefix_lens": torch.zeros(2, dtype=torch.int64)},
    r"parent_list of shape \[B=2, P\], got \[1, 3\]": {
        "parent_list": torch.zeros(1, 3, dtype=torch.int64)
    },
    r"topk \* the columns P of parent_list in \[1, 8192\], got 9000": {"topk": 3000},
    r"topk in \[1, 8192\], got -1": {"topk": -1},
    'mask_mode "bits", "qlen" or "full", got "causal"': {
        "mask_mode": "causal",
        "out": TreeRecord.empty(2, 5, "cpu"),
    },
    'mask_capacity with mask_mode "full", got None': {"mask_mode": "full"},
    r"out.mask of shape \[B=2, N=5, ceil\(N / 32\)=1\], got \[2, 5, 5\]": {
        "out": dataclasses.replace(
            TreeRecord.empty(2, 5, "cpu"), mask=torch.zeros(2, 5, 5, dtype=torch.int32)
        )
    },
    "out.mask of dtype uint8 or bool, got int32": {
        "mask_mode": "qlen",
        "out": TreeRecord.empty(2, 5, "cpu"),
    },
    r"out.positions of shape \[B=2, N=5\], got \[2, 6\]": {
        "out": dataclasses.replace(
            TreeRecord.empty(2, 5, "cpu"), positions=torch.zeros(2, 6, dtype=torch.int32)
        )
    },
    r"the number of nodes N in \[1, 1024\], got 1025": {
        "draft_tokens": torch.zeros(2, 1024, dtype=torch.int64),
        "selected_index": torch.zeros(2, 1024, dtype=torch.int64),
    },
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    arguments = {
        "anchors": torch.zeros(2, dtype=torch.int64),
        "draft_tokens": torch.zeros(2, 4, dtype=torch.int64),
        "parent_list": torch.zeros(2, 3, dtype=torch.int64),
        "selected_index": torch.zeros(2, 4, dtype=torch.int64),
        "prefix_lens": torch.zeros(2, dtype=torch.int32),
        "topk": 2,
    }
    arguments.update(ARGUMENTS[message])
    with pytest.raises(RuntimeError, match="build_tree: expected " + message):
        ops.build_tree(**arguments)


def test_opcheck(device: str) -> None:
    candidates = random_candidates(1).to(device)
    selected = torch.arange(8, device=device).repeat(3, 1)
    record = candidates.build(ops.build_tree, selected)
    torch.library.opcheck(
        torch.ops.specfast.build_tree,
        (
            candidates.anchors,
            candidates.tokens[:, :8],
            candidates.parent_list,
            selected,
            candidates.prefix_lens,
            3,
            "bits",
            *vars(record).values(),
        ),
    )
