"""What the n-gram drafter finds, and the shape of what it merges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specfast.drafters import DraftBatch, NgramDrafter


@dataclass
class Request:
    token_ids: list[int]
    tokens_left: int = 100
    request_id: int = 0


def draft(drafter: NgramDrafter, *requests: Request, width: int = 16) -> list[list[int]]:
    """The drafts of each request, without anchor and padding."""
    batch = drafter.propose(requests, width)
    return [row[1:rows] for row, rows in zip(batch.tokens.tolist(), batch.verify_lens, strict=True)]


def test_the_longest_suffix_wins_over_a_more_recent_shorter_one() -> None:
    #                    1 2 3 -> 7                3 -> 9     ends with 1 2 3
    text = Request([1, 2, 3, 7, 7, 5, 3, 9, 9, 1, 2, 3])
    assert draft(NgramDrafter(max_ngram=3, num_drafts=2), text) == [[7, 7]]
    assert draft(NgramDrafter(max_ngram=1, num_drafts=2), text) == [[9, 9]]


def test_the_most_recent_occurrence_wins() -> None:
    text = Request([1, 2, 5, 1, 2, 6, 1, 2])
    assert draft(NgramDrafter(num_drafts=1), text) == [[6]]


def test_a_copy_continues_into_its_own_drafts() -> None:
    assert draft(NgramDrafter(num_drafts=5), Request([9, 1, 2, 1, 2])) == [[1, 2, 1, 2, 1]]
    assert draft(NgramDrafter(num_drafts=3), Request([4, 4])) == [[4, 4, 4]]


def test_without_an_occurrence_nothing_is_drafted() -> None:
    batch = NgramDrafter().propose([Request([1, 2, 3]), Request([5, 6, 5], request_id=1)], 8)
    assert batch.verify_lens == [1, 8]
    assert batch.parents is None
    assert batch.tokens.tolist() == [[3] + [-1] * 7, [5, 6, 5, 6, 5, 6, 5, 6]]


@pytest.mark.parametrize(
    ("tokens_left", "width", "num_drafts", "expected"),
    [(100, 16, 4, 4), (100, 3, 4, 2), (3, 16, 4, 2), (1, 16, 4, 0), (100, 1, 4, 0)],
)
def test_drafts_stay_within_every_limit(
    tokens_left: int, width: int, num_drafts: int, expected: int
) -> None:
    request = Request([1, 2, 3, 4, 5, 6, 7, 1], tokens_left)
    (chain,) = draft(NgramDrafter(num_drafts=num_drafts), request, width=width)
    assert chain == [2, 3, 4, 5][:expected]


def test_branches_are_merged_into_a_tree() -> None:
    #              2 -> 5 6 7      2 -> 5 8 7      2 -> 9 2 5
    text = Request([2, 5, 6, 7, 0, 2, 5, 8, 7, 0, 2, 9, 2])
    drafter = NgramDrafter(max_ngram=1, num_drafts=8, tree=True, num_branches=3)
    batch = drafter.propose([text], 16)
    assert batch.parents is not None
    # The most recent one takes four of eight, the next shares nothing and takes two of four; the
    # oldest shares the 5 and adds its 6. The last node lengthens the first branch.
    #
    #        2
    #      /   \
    #     9     5
    #     2    / \
    #     9   8   6
    #     2
    #     9
    assert batch.tokens.tolist() == [[2, 9, 2, 9, 2, 5, 8, 6, 9]]
    assert batch.parents.tolist() == [[-1, 0, 1, 2, 3, 0, 5, 5, 4]]


def test_an_occurrence_that_adds_nothing_leaves_its_turn_to_the_next() -> None:
    text = Request([3, 4, 0, 3, 5, 0, 3, 5, 0, 3])
    drafter = NgramDrafter(max_ngram=1, num_drafts=4, tree=True, num_branches=2)
    batch = drafter.propose([text], 16)
    # 3 -> 5 0 occurs twice; the second branch is 3 -> 4.
    assert batch.tokens.tolist() == [[3, 5, 0, 4, 3]]
    assert batch.parents is not None
    assert batch.parents.tolist() == [[-1, 0, 1, 0, 2]]


def children(batch: DraftBatch, b: int) -> list[tuple[int, int]]:
    """(parent, token) of each draft, after checking that parents come first."""
    assert batch.parents is not None
    parents, tokens = batch.parents[b].tolist(), batch.tokens[b].tolist()
    assert parents[0] == -1
    for node in range(1, batch.verify_lens[b]):
        assert 0 <= parents[node] < node
    return list(zip(parents, tokens, strict=True))[1 : batch.verify_lens[b]]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 6),
)
def test_trees_are_ordered_unique_and_made_of_seen_tokens(
    texts: list[list[int]],
    max_ngram: int,
    num_drafts: int,
    num_branches: int,
    width: int,
    tokens_left: int,
) -> None:
    drafter = NgramDrafter(max_ngram, num_drafts, tree=True, num_branches=num_branches)
    requests = [Request(text, tokens_left, i) for i, text in enumerate(texts)]
    batch = drafter.propose(requests, width)
    assert batch.tokens.shape[1] == max(batch.verify_lens) <= min(width, num_drafts + 1)
    for b, text in enumerate(texts):
        nodes = children(batch, b)
        assert batch.tokens[b, 0] == text[-1]
        assert len(set(nodes)) == len(nodes)
        assert {token for _, token in nodes} <= set(text)
        depths = [0]
        for parent, _ in nodes:
            depths.append(depths[parent] + 1)
        assert max(depths) <= max(tokens_left - 1, 0)
        if text[-1] in text[:-1] and width > 1 and tokens_left > 1:
            assert nodes


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 29), st.booleans())
def test_a_history_that_grows_equals_one_that_is_read_at_once(
    text: list[int], first: int, tree: bool
) -> None:
    growing = NgramDrafter(tree=tree)
    request = Request(text[:first])
    while True:
        grown = growing.propose([request], 8)
        if len(request.token_ids) == len(text) or first >= len(text):
            break
        request.token_ids.append(text[len(request.token_ids)])
    fresh = NgramDrafter(tree=tree).propose([Request(list(request.token_ids))], 8)
    assert grown.tokens.tolist() == fresh.tokens.tolist()
    assert grown.verify_lens == fresh.verify_lens


def test_a_released_request_is_forgotten() -> None:
    drafter = NgramDrafter(num_drafts=1)
    draft(drafter, Request([1, 2, 1]))
    drafter.release(0)
    drafter.release(0)
    assert draft(drafter, Request([3, 4, 3])) == [[4]]


@pytest.mark.parametrize("name", ["max_ngram", "num_drafts", "num_branches"])
def test_bad_sizes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"expected {name} >= 1, got 0"):
        NgramDrafter(**{name: 0})
