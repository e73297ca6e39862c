"""Which nodes of EAGLE-2 trees are verified: the best of each request, or of the whole batch.

candidates of two requests, k = 2          budget 3: .6 .5 .3     verify_lens 3 2
  .6  .3 | .2 .1   ...    .5  .1 | .05 ...
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chi_square import assert_follows
from drafters.checkpoints import make_target
from drafters.small_vocabulary import SmallDrafter, Stream, streams
from drafters.test_drawn_chains import PARAMS, text_law
from drafters.test_drawn_trees import DEPTH, NUM_NODES, NUM_STREAMS, TOPK, rounds, texts
from drafters.test_eagle_golden import ANCHOR, CASES, PROMPT
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled_batches import Dice
from specfast import SamplingParams
from specfast.drafters import TreeDrafter
from specfast.drafters.base import DraftBatch
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_tree import TreeCandidates
from specfast.drafters.loader import load_drafter
from specfast.drafters.tree_choice import choose_nodes


def drafted(dice: Dice, batch: int, topk: int, depth: int) -> TreeCandidates:
    """Levels as ``expand`` makes them; coarse scores tie, and some tokens have no probability."""
    scores, parent_list = torch.zeros(batch, 1), [torch.full((batch, 1), -1)]
    levels, first = [], 0
    for _ in range(depth):
        steps = dice.some_of([-0.5, -1, -1, -2, -9, -torch.inf], batch, scores.shape[1], topk)
        level = (scores[..., None] + steps).flatten(1)
        chosen = level.sort(descending=True, stable=True).indices[:, :topk]
        levels.append(level)
        scores = level.gather(1, chosen)
        parent_list.append(first + chosen)
        first += level.shape[1]
    every = torch.cat(levels, 1)
    tokens = dice.integers(0, 99, *every.shape)
    parents = torch.cat(parent_list[:-1], 1).int()
    return TreeCandidates(every, tokens, parents, torch.full((batch,), depth))


def parent_of(candidates: TreeCandidates, b: int, candidate: int, topk: int) -> int | None:
    group = candidate // topk
    return int(candidates.parent_list[b, group]) if group > 0 else None


def depth_of(candidates: TreeCandidates, b: int, candidate: int, topk: int) -> int:
    parent = parent_of(candidates, b, candidate, topk)
    return 1 if parent is None else 1 + depth_of(candidates, b, parent, topk)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**31 - 1),
    topk=st.integers(1, 4),
    depth=st.integers(1, 4),
    budget=st.none() | st.integers(0, 30),
)
def test_the_best_of_the_batch(seed: int, topk: int, depth: int, budget: int | None) -> None:
    dice, batch = Dice(seed), 3
    candidates = drafted(dice, batch, topk, depth)
    count = candidates.scores.shape[1]
    num_nodes = int(dice.integers(2, min(count, 12) + 2))
    deepest = dice.integers(0, depth + 1, batch).long()
    nodes = choose_nodes(candidates, topk, num_nodes, deepest, budget)

    ranked: list[list[int]] = []
    for b in range(batch):
        scores = candidates.scores[b].tolist()
        fit = [
            c
            for c in range(count)
            if scores[c] > -torch.inf and depth_of(candidates, b, c, topk) <= deepest[b]
        ]
        ranked.append(sorted(fit, key=lambda c: (-scores[c], c))[: num_nodes - 1])
    entries = [
        (-float(candidates.scores[b, c].exp()), node, b)
        for b, row in enumerate(ranked)
        for node, c in enumerate(row)
    ]
    kept = sorted(entries)[:budget]
    lens = [1 + sum(b == request for _, _, b in kept) for request in range(batch)]
    assert nodes.verify_lens.tolist() == lens
    for b, length in enumerate(lens):
        verified = nodes.index[b, : length - 1].tolist()
        assert verified == ranked[b][: length - 1]
        assert torch.equal(nodes.survival[b, : length - 1], candidates.scores[b, verified].exp())
        for i, candidate in enumerate(verified):
            parent = parent_of(candidates, b, candidate, topk)
            assert parent is None or parent in verified[:i]


def proposed(path: Path, params: SamplingParams, **options) -> list:
    """Rounds of three requests with other features, whose texts end after 9, 3 and 1 tokens."""
    case = CASES["llama2"]
    model = load_drafter(case.write(path), make_target(case.sizes))
    assert isinstance(model, EagleModel)
    drafter = TreeDrafter(model, 12, 3, 4, **options)
    rng = torch.Generator().manual_seed(8)
    requests = [Stream(b, [*PROMPT[b:], ANCHOR], params, b) for b in range(3)]
    for request, left in zip(requests, (9, 3, 1), strict=True):
        request.tokens_left = left
        width = case.sizes.hidden * max(len(case.taps), 1)
        taps = torch.randn(len(request.token_ids) - 1, width, generator=rng)
        drafter.observe([request], [taps])
    rounds = [drafter.propose(requests, 12)]
    for drafter.budget in (100, 7, 1, 0):
        rounds.append(drafter.propose(requests, 12))
    return rounds


def test_a_drafter_with_a_budget(tmp_path: Path) -> None:
    whole, *rounds = proposed(tmp_path, SamplingParams())
    assert whole.verify_lens[0] == 12
    assert whole.verify_lens[2] == 1
    for batch, budget in zip(rounds, (100, 7, 1), strict=False):
        assert sum(batch.verify_lens) - 3 == min(budget, sum(whole.verify_lens) - 3)
        # A prefix of the same trees, best first.
        for b, length in enumerate(batch.verify_lens):
            assert torch.equal(batch.tokens[b, :length], whole.tokens[b, :length])
            assert torch.equal(batch.parents[b, :length], whole.parents[b, :length])
        # Eleven paths that exclude each other where they part: at most one draft per level.
        assert batch.confidence is not None
        assert 0 < float(batch.confidence[0, : batch.verify_lens[0] - 1].sum()) < 4
    assert rounds[-1].verify_lens == [1, 1, 1]


def test_drawn_trees_share_a_budget_whatever_they_are(tmp_path: Path) -> None:
    params = SamplingParams(temperature=1.0, seed=1)
    _, _, *rounds = proposed(tmp_path, params, drawn=True)
    assert rounds[0].tokens.shape == (3, 3)
    assert rounds[0].verify_lens == [3, 3, 1]
    assert rounds[0].proposal is not None
    assert [batch.verify_lens for batch in rounds[1:]] == [[1, 1, 1]] * 2


@pytest.mark.parametrize(("drawn", "rule"), [(False, "target_only"), (True, "rejection")])
def test_texts_of_budgeted_rounds_have_the_law_of_the_target(
    drawn: bool, rule: str, tmp_path: Path
) -> None:
    small = SmallDrafter.of("safeailab", tmp_path)
    assert isinstance(small.model, EagleModel)
    requests, budget = streams(NUM_STREAMS, PARAMS), 2 * NUM_STREAMS + 7
    drafter = TreeDrafter(small.model, NUM_NODES, TOPK, DEPTH, drawn=drawn, budget=budget)
    lens = set()
    for batch, _ in rounds(small, drafter, requests, rule):
        assert sum(batch.verify_lens) - NUM_STREAMS <= budget
        lens |= set(batch.verify_lens)
    assert (lens == {3}) == drawn
    assert_follows(texts(requests), text_law(PARAMS), "text")


def test_cutting_drawn_trees_by_what_was_drawn_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = TreeDrafter._draw

    def mutant(self: TreeDrafter, *arguments: object) -> DraftBatch:
        batch = draw(self, *arguments)  # type: ignore[arg-type]
        return replace(batch, verify_lens=[1 + int(row[1] < 2) for row in batch.tokens.tolist()])

    monkeypatch.setattr(TreeDrafter, "_draw", mutant)
    small = SmallDrafter.of("safeailab", tmp_path)
    requests = streams(NUM_STREAMS, PARAMS)
    assert isinstance(small.model, EagleModel)
    drafter = TreeDrafter(small.model, NUM_NODES, TOPK, DEPTH, drawn=True)
    list(rounds(small, drafter, requests, "rejection"))
    with pytest.raises(AssertionError, match="by chance once"):
        assert_follows(texts(requests), text_law(PARAMS), "text")


def test_a_bad_budget(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="budget >= 0, a whole number, got -1"):
        proposed(tmp_path, SamplingParams(), budget=-1)
    model = SmallDrafter.of("safeailab", tmp_path / "small").model
    assert isinstance(model, EagleModel)
    drafter = TreeDrafter(model)
    for value in (-1, 2.5):
        with pytest.raises(ValueError, match=f"budget >= 0, a whole number, got {value}"):
            drafter.budget = value  # type: ignore[assignment]
    assert drafter.budget is None
    for name, least in (("num_nodes", 2), ("topk", 1), ("depth", 1)):
        for value in (least - 1, 2.5):
            with pytest.raises(ValueError, match=f"{name} >= {least}, a whole number, got {value}"):
                TreeDrafter(model, **{name: value})  # type: ignore[arg-type]
