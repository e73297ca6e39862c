"""select_draft_tokens: the best candidates of a draft tree that keep their ancestors.

Two levels, topk = 2:            root
                              /        \\
                       0 (-0.1)        1 (-3.0)
                       /      \\        /      \\
                 2 (-0.5) 3 (-2.0) 4 (-3.1) 5 (-9.0)
"""

from __future__ import annotations

import pytest
import torch
from guards import GuardedMemory, unchanged
from hypothesis import given
from hypothesis import strategies as st
from specfast import Status, ops, reference
from tree_batches import random_candidates, unsound_candidates

SCORES = [-0.1, -3.0, -0.5, -2.0, -3.1, -9.0]
PARENTS = [-1, 0, 1]
NAN = float("nan")
INF = float("inf")


def select(
    device: str, num_nodes: int, *, scores: list[float] = SCORES, parents: list[int] = PARENTS
) -> tuple[list[int], int]:
    selected, status = ops.select_draft_tokens(
        torch.tensor([scores], device=device),
        torch.tensor([parents], device=device),
        topk=2,
        num_nodes=num_nodes,
    )
    return selected[0].tolist(), int(status[0])


@pytest.mark.parametrize(
    ("num_nodes", "expected"),
    [(1, []), (2, [0]), (3, [0, 2]), (4, [0, 2, 3]), (5, [0, 1, 2, 3]), (7, [0, 1, 2, 3, 4, 5])],
)
def test_the_drawn_tree(device: str, num_nodes: int, expected: list[int]) -> None:
    assert select(device, num_nodes) == (expected, Status.OK)


RULES = {
    "a tie goes to the lower candidate": ([-1.0] * 6, PARENTS, 4, [0, 1, 2]),
    "-0 equals 0": ([-0.0, 0.0, -0.0, 0.0, 0.0, -0.0], PARENTS, 3, [0, 1]),
    "a child is not better than its parent": ([-5, -4, 9, 9, -4.5, -9], PARENTS, 3, [1, 4]),
    "NaN counts as -inf": ([NAN, -1, 0, 0, -2, -3], PARENTS, 4, [1, 4, 5]),
    "NaN and -inf tie": ([-1, -INF, -2, NAN, 0, 0], PARENTS, 5, [0, 1, 2, 3]),
    "+inf is a score": ([-1, INF, -2, -3, INF, -9], PARENTS, 3, [1, 4]),
}


@pytest.mark.parametrize("rule", RULES)
def test_order(device: str, rule: str) -> None:
    scores, parents, num_nodes, expected = RULES[rule]
    assert select(device, num_nodes, scores=scores, parents=parents) == (expected, Status.OK)


@pytest.mark.parametrize("entry", [-1, 4, 5, 6, 2**31 - 1, 2**40, -(2**32)])
def test_malformed_candidates_are_flagged_only_if_selected(device: str, entry: int) -> None:
    # Entry 2 is the parent of candidates 4 and 5.
    parents = [-1, 0, entry]
    scores = [-1.0, -2.0, -3.0, -4.0, 0.0, 0.0]
    assert select(device, 5, scores=scores, parents=parents) == ([0, 1, 2, 3], Status.OK)
    assert select(device, 6, scores=scores, parents=parents) == ([0, 1, 2, 3, 4], Status.BAD_TREE)


def test_one_level_has_no_parent_list(device: str) -> None:
    for columns in (0, 1, 3):
        selected, status = ops.select_draft_tokens(
            torch.tensor([[-1.0, -3.0, -2.0]], device=device),
            torch.full((1, columns), 77, dtype=torch.int64, device=device),
            topk=3,
            num_nodes=3,
        )
        assert selected.tolist() == [[0, 2]]
        assert status.tolist() == [Status.OK]


@given(
    seed=st.integers(0, 2**31 - 1),
    topk=st.integers(1, 4),
    depth=st.integers(1, 4),
    unsound=st.booleans(),
    data=st.data(),
)
def test_equals_the_reference(
    seed: int, topk: int, depth: int, unsound: bool, data: st.DataObject
) -> None:
    make = unsound_candidates if unsound else random_candidates
    candidates = make(seed, 3, topk, depth)
    num_nodes = data.draw(st.integers(1, candidates.num_candidates + 1))
    got = candidates.select(ops.select_draft_tokens, num_nodes)
    expected = candidates.select(reference.select_draft_tokens, num_nodes)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize(
    ("topk", "depth", "num_nodes"),
    [(8, 6, 64), (32, 8, 1024), (1, 40, 20), (90, 2, 1024), (1, 1, 2), (8, 6, 1), (8, 6, 329)],
)
def test_sizes(device: str, topk: int, depth: int, num_nodes: int) -> None:
    for make in (random_candidates, unsound_candidates):
        candidates = make(topk + depth, 2, topk, depth)
        got = candidates.to(device).select(ops.select_draft_tokens, num_nodes)
        expected = candidates.select(reference.select_draft_tokens, num_nodes)
        assert torch.equal(got[0].cpu(), expected[0])
        assert torch.equal(got[1].cpu(), expected[1])


def test_a_chain_of_the_greatest_depth(device: str) -> None:
    selected, status = ops.select_draft_tokens(
        -torch.arange(1024.0, device=device)[None],
        torch.arange(-1, 1023, device=device)[None],
        topk=1,
        num_nodes=1001,
    )
    assert selected.tolist() == [list(range(1000))]
    assert status.tolist() == [Status.OK]


@given(seed=st.integers(0, 2**31 - 1), num_nodes=st.integers(1, 22))
def test_ancestors_come_along(seed: int, num_nodes: int) -> None:
    candidates = random_candidates(seed)
    # Scores that fit no tree: the selection is closed all the same.
    scores = torch.randn(candidates.scores.shape, generator=torch.Generator().manual_seed(seed))
    selected, status = ops.select_draft_tokens(
        scores, candidates.parent_list, topk=3, num_nodes=num_nodes
    )
    assert not status.any()
    for chosen, parents in zip(selected.tolist(), candidates.parent_list.tolist(), strict=True):
        assert chosen == sorted(set(chosen))
        assert {parents[c // 3] for c in chosen if c >= 3} <= set(chosen)


@given(seed=st.integers(0, 2**31 - 1))
def test_requests_do_not_see_each_other(seed: int) -> None:
    candidates = unsound_candidates(seed, batch=4)
    selected, status = candidates.select(ops.select_draft_tokens, 12)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    mixed = candidates.requests(order).select(ops.select_draft_tokens, 12)
    alone = candidates.requests([2]).select(ops.select_draft_tokens, 12)
    assert torch.equal(mixed[0], selected[order])
    assert torch.equal(mixed[1], status[order])
    assert torch.equal(alone[0], selected[[2]])


def test_strided_rows_and_both_index_types(device: str) -> None:
    candidates = random_candidates(5).to(device)
    expected = candidates.select(ops.select_draft_tokens, 9)
    wide = torch.full((3, candidates.num_candidates + 5), 1e9, device=device)
    wide[:, 2:-3] = candidates.scores
    parents = candidates.parent_list.to(torch.int32).repeat(1, 2)[
        :, : candidates.parent_list.shape[1]
    ]
    got = ops.select_draft_tokens(wide[:, 2:-3], parents, topk=3, num_nodes=9)
    assert torch.equal(got[0], expected[0])


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(4):
        candidates = unsound_candidates(seed).to(device)
        outputs = []
        for fill in (0x5C, 0x11):
            memory = GuardedMemory(device, fill)
            out, status = memory.empty(3, 11), memory.empty(3)
            with unchanged(candidates.scores, candidates.parent_list):
                returned = candidates.select(ops.select_draft_tokens, 12, out=out, status=status)
            assert returned[0] is out
            assert returned[1] is status
            memory.check()
            outputs.append((out, status))
        assert torch.equal(outputs[0][0], outputs[1][0])
        assert torch.equal(outputs[0][1], outputs[1][1])


def test_empty_batch(device: str) -> None:
    candidates = random_candidates(0).requests([]).to(device)
    selected, status = candidates.select(ops.select_draft_tokens, 9)
    assert selected.shape == (0, 8)
    assert status.shape == (0,)


ARGUMENTS = {
    "scores of dtype float32, got float64": {"scores": torch.zeros(2, 6, dtype=torch.float64)},
    r"scores of shape \[B=2, C\], got \[6\]": {"scores": torch.zeros(6)},
    r"scores with C = topk \+ \(depth - 1\) \* topk\^2 candidates for topk = 2, got C = 7": {
        "scores": torch.zeros(2, 7)
    },
    r"the number of candidates C of scores in \[1, 8192\], got 8194": {
        "scores": torch.zeros(2, 8194)
    },
    r"the depth \(C - topk\) / topk\^2 \+ 1 of scores in \[1, 1024\], got 1025": {
        "scores": torch.zeros(2, 1025),
        "topk": 1,
    },
    r"parent_list with topk \* \(depth - 1\) \+ 1 = 3 columns, got 4": {
        "parent_list": torch.zeros(2, 4, dtype=torch.int64)
    },
    "parent_list of dtype int32 or int64, got float32": {"parent_list": torch.zeros(2, 3)},
    r"topk in \[1, 8192\], got 0": {"topk": 0},
    r"num_nodes in \[1, 7\], got 8": {"num_nodes": 8},
    r"num_nodes in \[1, 7\], got 0": {"num_nodes": 0},
    r"out of shape \[B=2, num_nodes - 1=3\], got \[2, 4\]": {
        "out": torch.zeros(2, 4, dtype=torch.int32)
    },
    "out to be contiguous, got strides": {"out": torch.zeros(3, 2, dtype=torch.int32).T},
    r"status of shape \[B=2\], got \[3\]": {"status": torch.zeros(3, dtype=torch.int32)},
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    arguments = {
        "scores": torch.zeros(2, 6),
        "parent_list": torch.zeros(2, 3, dtype=torch.int64),
        "topk": 2,
        "num_nodes": 4,
    }
    arguments.update(ARGUMENTS[message])
    with pytest.raises(RuntimeError, match="select_draft_tokens: expected " + message):
        ops.select_draft_tokens(**arguments)


def test_opcheck(device: str) -> None:
    candidates = random_candidates(1).to(device)
    out = torch.empty(3, 8, dtype=torch.int32, device=device)
    status = torch.empty(3, dtype=torch.int32, device=device)
    torch.library.opcheck(
        torch.ops.specfast.select_draft_tokens,
        (candidates.scores, candidates.parent_list, 3, 9, out, status),
    )


def test_capture_and_replay(device: str) -> None:
    if device == "cpu":
        pytest.skip("a CUDA Graph needs a GPU")
    static = random_candidates(0).to(device)
    out = torch.empty(3, 8, dtype=torch.int32, device=device)
    status = torch.empty(3, dtype=torch.int32, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.select(ops.select_draft_tokens, 9, out=out, status=status)
    for seed in range(20):
        fresh = unsound_candidates(seed)
        static.scores.copy_(fresh.scores)
        static.parent_list.copy_(fresh.parent_list)
        graph.replay()
        expected = fresh.select(reference.select_draft_tokens, 9)
        assert torch.equal(out.cpu(), expected[0])
        assert torch.equal(status.cpu(), expected[1])
