"""select_and_build_tree: select_draft_tokens and build_tree in one launch.

EAGLE-2's own steps: expand topk candidates per level, keep the best N - 1 of all, build their tree.
"""

from __future__ import annotations

import pytest
import torch
from guards import GuardedMemory, assert_records_equal, unchanged
from hypothesis import given
from hypothesis import strategies as st
from specfast import Status, TreeRecord, ops, reference
from tree_batches import assert_legal_tree, random_candidates, unsound_candidates


def test_the_drawn_tree(device: str) -> None:
    #                   R
    #             /          \
    #       A (-0.1)        B (-3.0)        the best four: A, C, D, B; as nodes in the order of
    #       /      \                        their candidates: A 1, B 2, C 3, D 4
    #  C (-0.5)  D (-2.0)
    record = ops.select_and_build_tree(
        torch.tensor([1], device=device),
        torch.tensor([[-0.1, -3.0, -0.5, -2.0, -3.1, -9.0]], device=device),
        torch.tensor([[10, 11, 12, 13, 14, 15]], device=device),
        torch.tensor([[-1, 0, 1]], device=device),
        torch.tensor([10], dtype=torch.int32, device=device),
        topk=2,
        num_nodes=5,
    )
    assert record.draft_tokens.tolist() == [[1, 10, 11, 12, 13]]
    assert record.parents.tolist() == [[-1, 0, 0, 1, 1]]
    assert record.retrieve_next_token.tolist() == [[1, 3, -1, -1, -1]]
    assert record.retrieve_next_sibling.tolist() == [[-1, 2, -1, 4, -1]]
    assert record.positions.tolist() == [[10, 11, 11, 12, 12]]
    assert record.mask.flatten().tolist() == [0b1, 0b11, 0b101, 0b1011, 0b10011]
    assert record.status.tolist() == [Status.OK]


@given(
    seed=st.integers(0, 2**31 - 1),
    topk=st.integers(1, 4),
    depth=st.integers(1, 4),
    unsound=st.booleans(),
    data=st.data(),
)
def test_equals_the_two_steps_and_the_reference(
    seed: int, topk: int, depth: int, unsound: bool, data: st.DataObject
) -> None:
    make = unsound_candidates if unsound else random_candidates
    candidates = make(seed, 3, topk, depth)
    num_nodes = data.draw(st.integers(1, candidates.num_candidates + 1))
    record = candidates.select_and_build(ops.select_and_build_tree, num_nodes)
    selected, status = candidates.select(ops.select_draft_tokens, num_nodes)
    if depth > 1:  # a parent_list without columns has no room for more than topk candidates
        steps = candidates.build(ops.build_tree, selected)
        assert_records_equal(record, steps)
    bad_tree = record.status & Status.BAD_TREE
    assert torch.equal(bad_tree, status)
    expected = candidates.select_and_build(reference.select_and_build_tree, num_nodes)
    assert_records_equal(record, expected)
    assert_legal_tree(record, candidates.prefix_lens)


@pytest.mark.parametrize("mode", ["bits", "qlen"])
@pytest.mark.parametrize(
    ("batch", "topk", "depth", "num_nodes"),
    [
        (2, 8, 6, 64),
        (2, 32, 8, 1024),
        (2, 1, 40, 41),
        (2, 90, 2, 300),
        (65, 4, 4, 16),
        (3, 1, 7, 8),
        (3, 5, 1, 6),
        (3, 4, 3, 1),
        (3, 6, 3, 33),
    ],
)
def test_sizes(device: str, batch: int, topk: int, depth: int, num_nodes: int, mode: str) -> None:
    for make in (random_candidates, unsound_candidates):
        candidates = make(topk + depth, batch, topk, depth)
        got = candidates.to(device).select_and_build(
            ops.select_and_build_tree, num_nodes, mask_mode=mode
        )
        expected = candidates.select_and_build(
            reference.select_and_build_tree, num_nodes, mask_mode=mode
        )
        assert_records_equal(got, expected)


def test_a_chain_is_a_chain(device: str) -> None:
    candidates = random_candidates(2, 1, topk=1, depth=5).to(device)
    record = candidates.select_and_build(ops.select_and_build_tree, 6)
    assert record.parents.tolist() == [[-1, 0, 1, 2, 3, 4]]
    assert record.retrieve_next_token.tolist() == [[1, 2, 3, 4, 5, -1]]
    assert record.mask.flatten().tolist() == [0b1, 0b11, 0b111, 0b1111, 0b11111, 0b111111]


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(4):
        candidates = unsound_candidates(seed).to(device)
        template = candidates.select_and_build(ops.select_and_build_tree, 12)
        records = []
        for fill in (0x5C, 0x11):
            memory = GuardedMemory(device, fill)
            out = memory.like(template)
            with unchanged(candidates.scores, candidates.tokens, candidates.parent_list):
                returned = candidates.select_and_build(ops.select_and_build_tree, 12, out=out)
            assert returned is out
            memory.check()
            records.append(out)
        assert_records_equal(*records)
        assert_records_equal(records[0], template)


def test_empty_batch(device: str) -> None:
    candidates = random_candidates(0).requests([]).to(device)
    record = candidates.select_and_build(ops.select_and_build_tree, 9, mask_mode="qlen")
    assert record.mask.shape == (0, 9, 9)


ARGUMENTS = {
    r"scores of shape \[B=2, C\], got \[3, 6\]": {"scores": torch.zeros(3, 6)},
    r"tokens of shape \[B=2, C=6\], got \[2, 5\]": {"tokens": torch.zeros(2, 5, dtype=torch.int64)},
    r"num_nodes in \[1, 7\], got 8": {"num_nodes": 8},
    r"prefix_lens of shape \[B=2\], got \[2, 1\]": {
        "prefix_lens": torch.zeros(2, 1, dtype=torch.int32)
    },
    r"out.draft_tokens of shape \[B=2, N=4\], got \[2, 5\]": {"out": TreeRecord.empty(2, 5, "cpu")},
    "out.draft_tokens of dtype int32 or int64, got int16": {
        "out": TreeRecord.empty(2, 4, "cpu", tokens_dtype=torch.int16)
    },
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    arguments = {
        "anchors": torch.zeros(2, dtype=torch.int64),
        "scores": torch.zeros(2, 6),
        "tokens": torch.zeros(2, 6, dtype=torch.int64),
        "parent_list": torch.zeros(2, 3, dtype=torch.int64),
        "prefix_lens": torch.zeros(2, dtype=torch.int32),
        "topk": 2,
        "num_nodes": 4,
    }
    arguments.update(ARGUMENTS[message])
    with pytest.raises(RuntimeError, match="select_and_build_tree: expected " + message):
        ops.select_and_build_tree(**arguments)


def test_opcheck(device: str) -> None:
    candidates = random_candidates(1).to(device)
    record = TreeRecord.empty(3, 9, device)
    torch.library.opcheck(
        torch.ops.specfast.select_and_build_tree,
        (
            candidates.anchors,
            candidates.scores,
            candidates.tokens,
            candidates.parent_list,
            candidates.prefix_lens,
            3,
            9,
            "bits",
            *vars(record).values(),
        ),
    )


def test_capture_and_replay(device: str) -> None:
    if device == "cpu":
        pytest.skip("a CUDA Graph needs a GPU")
    static = random_candidates(0).to(device)
    out = TreeRecord.empty(3, 9, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.select_and_build(ops.select_and_build_tree, 9, out=out)
    for seed in range(20):
        fresh = unsound_candidates(seed)
        for name in ("scores", "tokens", "parent_list", "anchors", "prefix_lens"):
            getattr(static, name).copy_(getattr(fresh, name))
        graph.replay()
        expected = fresh.select_and_build(reference.select_and_build_tree, 9)
        assert_records_equal(out, expected)
