"""The law of many streams, drafted and verified with their own random numbers."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from chi_square import assert_follows
from drawn_laws import Drafting, Streams, first_tokens
from implementations import Implementation
from toy_models import Model, by_depth, by_last, ordered_draws, plain_sampling, row, sequences

WANDERING = by_last("5 3 2", "2 3 5", "6 1 3", "1 5 4")
UNSURE = by_last("2 3 5", "3 3 4", "2 6 2", "4 5 1")

CHAIN, TREE = Drafting(depth=3), Drafting(width=2)
DRAFTINGS = {
    ("target_only", "drawn chain"): CHAIN,
    ("target_only", "likeliest chain"): Drafting(depth=3, greedy=True),
    ("target_only", "likeliest siblings"): Drafting(width=2, greedy=True),
    ("rejection", "drawn chain"): CHAIN,
    ("rejection", "likeliest chain"): Drafting(depth=3, greedy=True),
    ("rejection", "drawn siblings"): TREE,
    ("block", "drawn chain"): CHAIN,
    ("block", "likeliest chain"): Drafting(depth=3, greedy=True),
}


@pytest.mark.parametrize(("rule", "drafts"), DRAFTINGS)
def test_several_rounds(impl: Implementation, num_draws: int, rule: str, drafts: str) -> None:
    drafting = DRAFTINGS[rule, drafts]
    streams = Streams(impl, rule, WANDERING, UNSURE, drafting, num_draws, {})
    assert_follows(first_tokens(streams, 4), sequences(WANDERING, 4))


@pytest.mark.parametrize("rule", ["target_only", "rejection", "block"])
def test_rounds_of_equal_rows(impl: Implementation, num_draws: int, rule: str) -> None:
    # cases.md B47: coins that return with the position show here, in the second round.
    p = by_depth("6 4")
    streams = Streams(impl, rule, p, by_depth("3 7"), CHAIN, num_draws, {})
    counts = first_tokens(streams, 6)
    assert_follows(counts, sequences(p, 6))
    for position in range(5):
        pairs = Counter[tuple[int, ...]]()
        for tokens, count in counts.items():
            pairs[tokens[position : position + 2]] += count
        assert_follows(pairs, sequences(p, 2), f"tokens {position} and {position + 1}")


FILTERED: dict[str, tuple[dict[str, object], Model]] = {
    "top_k": ({"top_k": 2}, by_last("5 3 0", "0 3 5", "6 0 3", "0 5 4")),
    "top_p": ({"top_p": 0.85}, by_last("5 3 2", "2 3 5", "6 0 3", "0 5 4")),
    "min_p": ({"min_p": 0.45}, by_last("5 3 0", "0 3 5", "6 0 3", "0 5 4")),
    "temperature": ({"temperature": 0.5}, by_last("25 9 4", "4 9 25", "36 1 9", "1 25 16")),
}


@pytest.mark.parametrize("name", FILTERED)
@pytest.mark.parametrize("rule", ["target_only", "rejection", "block"])
def test_filters(impl: Implementation, num_draws: int, rule: str, name: str) -> None:
    options, law = FILTERED[name]
    streams = Streams(impl, rule, WANDERING, UNSURE, Drafting(depth=2), num_draws, options)
    assert_follows(first_tokens(streams, 3), sequences(law, 3))


@pytest.mark.parametrize("purpose", ["draft", "final"])
def test_draws_without_replacement(impl: Implementation, num_draws: int, purpose: str) -> None:
    q = row("4 3 2 1")
    logits = torch.tensor([float(p) for p in q]).log().expand(num_draws, -1).to(impl.device)
    sampling = plain_sampling(num_draws, impl.device)
    prefix_lens = torch.full((num_draws,), 5, dtype=torch.int32, device=impl.device)
    drawn = impl.sample_rows(logits, sampling, prefix_lens, num_draws=2, purpose=purpose, level=1)
    counts = Counter(map(tuple, drawn.tokens.tolist()))
    assert_follows(counts, dict(ordered_draws(q, 2)))


def test_levels_and_slots_draw_on_their_own(impl: Implementation, num_draws: int) -> None:
    logits = torch.zeros(num_draws, 3, device=impl.device)
    sampling = plain_sampling(num_draws, impl.device)
    lens = torch.full((num_draws,), 5, dtype=torch.int32, device=impl.device)
    slots = torch.ones_like(lens)
    draws = [
        impl.sample_rows(logits, sampling, lens, level=0),
        impl.sample_rows(logits, sampling, lens, level=1),
        impl.sample_rows(logits, sampling, lens, level=0, slot_of_row=slots),
        impl.sample_rows(logits, sampling, lens + 1, level=0),
        impl.sample_rows(logits, sampling, lens, level=0, purpose="final"),
    ]
    joint = list(zip(*(drawn.tokens[:, 0].tolist() for drawn in draws), strict=True))
    for i in range(5):
        for k in range(i):
            pairs = Counter((drawn[i], drawn[k]) for drawn in joint)
            assert_follows(pairs, sequences(by_depth("1 1 1"), 2), f"draws {k} and {i}")
