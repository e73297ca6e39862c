"""Trees of EAGLE-2 against the algorithm by its formulas: each node from scratch along its path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drafters.by_formula import Pair
from drafters.checkpoints import as_formula, make_target, vocabulary_map
from drafters.small_vocabulary import Stream
from drafters.test_eagle_golden import ANCHOR, CASES, PROMPT, Formula
from specfast import SamplingParams
from specfast.drafters import DeviceTreeDrafter, TreeDrafter
from specfast.drafters import eagle_tree as module
from specfast.drafters.eagle import EagleModel
from specfast.drafters.loader import load_drafter
from specfast.drafters.pairs import DraftedPairs
from torch import Tensor

TOPK, DEPTH, NUM_NODES = 3, 4, 12
Node = tuple[int, ...]  # the tokens from below the anchor down to it


def children(formula: Formula, committed: list[Pair], path: Node) -> list[tuple[float, int]]:
    """The TOPK likeliest tokens after ``path`` and their log probabilities, likeliest first."""
    pairs = list(committed)
    for token in path:
        hidden = formula.rows(pairs)[-1].hidden
        feature = formula.normed(hidden) if formula.case.norm_output else hidden
        pairs.append(Pair(token, feature, pairs[-1].position + 1))
    logits = formula.logits(formula.rows(pairs)[-1].hidden)
    logs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    offsets = vocabulary_map(formula.case.sizes)[0]
    best = sorted(range(len(logs)), key=lambda j: (-logs[j], j))[:TOPK]
    return [(float(logs[j]), j + offsets[j]) for j in best]


def tree_by_formula(formula: Formula, committed: list[Pair]) -> set[Node]:
    """Expand the TOPK best nodes of each level, then keep the NUM_NODES - 1 best of all."""
    candidates: list[tuple[float, Node]] = []
    frontier: list[tuple[float, Node]] = [(0.0, ())]
    for _ in range(DEPTH):
        level = [
            (score + log, (*path, token))
            for score, path in frontier
            for log, token in children(formula, committed, path)
        ]
        candidates += level
        frontier = sorted(level, key=lambda entry: -entry[0])[:TOPK]
    kept = sorted(candidates, key=lambda entry: -entry[0])[: NUM_NODES - 1]
    return {path for _, path in kept}


def tree_of(tokens: Sequence[int], parents: Sequence[int]) -> set[Node]:
    paths: list[Node] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    assert len(set(paths)) == len(paths)
    return set(paths[1:])


def compare(name: str, path: Path) -> None:
    """Two requests with other features, together."""
    case = CASES[name]
    target = make_target(case.sizes)
    model = load_drafter(case.write(path), target)
    assert isinstance(model, EagleModel)
    formula = Formula(case, {**as_formula(target), **case.tensors})
    drafter = TreeDrafter(model, NUM_NODES, TOPK, DEPTH)
    width = case.sizes.hidden * max(len(case.taps), 1)
    taps = np.random.default_rng(8).standard_normal((2, len(PROMPT), width)).astype(np.float32)
    prompts = (PROMPT, PROMPT[2:])
    requests = [
        Stream(b, [*prompt, ANCHOR], SamplingParams(), b) for b, prompt in enumerate(prompts)
    ]
    for request, rows in zip(requests, taps, strict=True):
        drafter.observe([request], [torch.tensor(rows[: len(request.token_ids) - 1])])
    batch = drafter.propose(requests, NUM_NODES)
    assert batch.verify_lens == [NUM_NODES] * 2
    assert batch.proposal is None
    assert batch.parents is not None
    for b, prompt in enumerate(prompts):
        features = [case.feature(formula.tensors, row.astype(np.float64)) for row in taps[b]]
        tokens = [*prompt[1:], ANCHOR]
        pairs = [Pair(token, features[i], i) for i, token in enumerate(tokens)]
        assert batch.tokens[b, 0] == ANCHOR
        ours = tree_of(batch.tokens[b].tolist(), batch.parents[b].tolist())
        assert ours == tree_by_formula(formula, pairs)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formulas(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path)


def siblings_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = DraftedPairs.attend

    def mutant(self: DraftedPairs, *rows: Tensor) -> Tensor:
        self.ancestors = None
        return attend(self, *rows)

    monkeypatch.setattr(DraftedPairs, "attend", mutant)


def parents_of_another_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    descend = module.Frontier.descend

    def mutant(self: module.Frontier, tokens: Tensor, parents: Tensor) -> None:
        descend(self, tokens, parents.roll(1, 1))

    monkeypatch.setattr(module.Frontier, "descend", mutant)


def level_scores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expand = module.expand

    def mutant(*arguments: object) -> module.TreeCandidates:
        candidates = expand(*arguments)  # type: ignore[arg-type]
        scores = candidates.scores.clone()
        later = scores[:, TOPK:].unflatten(1, (-1, TOPK))
        scores[:, TOPK:] = (later - later.amax(-1, keepdim=True)).flatten(1)
        return replace(candidates, scores=scores)

    monkeypatch.setattr("specfast.drafters.tree_drafter.expand", mutant)


@pytest.mark.parametrize("name", ["safeailab", "llama2"])
@pytest.mark.parametrize("mutate", [siblings_seen, parents_of_another_beam, level_scores_alone])
def test_mutants_fail(
    mutate: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        compare(name, tmp_path)


@pytest.mark.parametrize("drafter", [TreeDrafter, DeviceTreeDrafter])
def test_bad_sizes(drafter: type[TreeDrafter | DeviceTreeDrafter], tmp_path: Path) -> None:
    case = CASES["llama2"]
    model = load_drafter(case.write(tmp_path), make_target(case.sizes))
    assert isinstance(model, EagleModel)
    expected = f"^{drafter.__name__}: expected "
    for name, value in (("num_nodes", 1), ("topk", 0), ("depth", 0)):
        with pytest.raises(ValueError, match=f"{expected}{name} >= .*, got {value}"):
            drafter(model, **{name: value})
    with pytest.raises(ValueError, match=f"{expected}topk <= 32, got 33"):
        drafter(model, topk=33)
    with pytest.raises(ValueError, match=f"{expected}at most 8192 candidates .*, got 8200"):
        drafter(model, 200, 8, 129)
    with pytest.raises(ValueError, match=f"{expected}a model of EAGLE"):
        drafter(object())  # type: ignore[arg-type]
