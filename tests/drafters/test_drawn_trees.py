"""Trees drawn without replacement: a round has the law enumerated, several have the target's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from chi_square import assert_follows
from drafters.by_formula import Array
from drafters.small_vocabulary import (
    ANCHOR,
    PROMPT,
    VOCAB,
    SmallDrafter,
    Stream,
    observe,
    paged,
    streams,
)
from drafters.test_drawn_chains import LENGTH, PARAMS, target_law, target_table, text_law
from specfast import RowRecord, SamplingRules, Status, ops, reference
from specfast.drafters import DeviceTreeDrafter, TreeDrafter
from specfast.drafters.base import DraftBatch
from specfast.drafters.checkpoint.weights import EMBEDDING
from specfast.drafters.eagle import EagleModel
from specfast.drafters.placed_shape import PlacedShape
from specfast.drafters.sampling import sampling_rules
from specfast.drafters.tree_sampler import TreeSampler
from specfast.drafters.tree_shape import TreeShape
from specfast.reference.proposal import ProposalRow
from torch import Tensor

NUM_NODES, TOPK, DEPTH, NUM_STREAMS = 6, 3, 2, 1500
SHAPE = TreeShape.likely(NUM_NODES, TOPK, DEPTH)
Trees = TreeDrafter | DeviceTreeDrafter


def test_shape() -> None:
    # Five drafts: a second draw is worth .4 of the first, a level .6 of the one above.
    assert SHAPE.parents == (-1, 0, 0, 1, 1, 2)
    assert SHAPE.depths == (0, 1, 1, 2, 2, 2)
    assert SHAPE.levels[1].rows == (0, 0, 1)
    assert SHAPE.levels[1].draws == (0, 1, 0)
    placed = PlacedShape(SHAPE, torch.device("cpu"))
    assert placed.row_of_node(2).tolist() == [[0, 2, 3, -1, -1, -1], [1, 4, 5, -1, -1, -1]]
    for parents in ([0, 2], [0, 1, 0], [-1]):
        with pytest.raises(ValueError, match="expected"):
            TreeShape.of_parents(parents)


def round_law(small: SmallDrafter) -> dict[tuple[int, ...], float]:
    """What a round emits by recursive rejection, by going through all draws that are tested."""
    p = target_law(PARAMS)
    law: dict[tuple[int, ...], float] = {}

    def follow(node: int, path: tuple[int, ...], weight: float) -> None:
        row = p[path[-1] if path else ANCHOR]
        below = [child for child, parent in enumerate(SHAPE.parents) if parent == node]
        q = small.q(path, PARAMS.temperature) if below else row
        test(below, path, row, q, weight)

    def test(below: list[int], path: tuple[int, ...], row: Array, q: Array, weight: float) -> None:
        if not below:
            for token in range(VOCAB):
                law[(*path, token)] = law.get((*path, token), 0.0) + weight * row[token]
            return
        rest = np.maximum(row - q, 0)
        for token in np.flatnonzero(q):
            accept = min(1.0, row[token] / q[token])
            if accept > 0:
                follow(below[0], (*path, int(token)), weight * q[token] * accept)
            if accept < 1:
                others = q.copy()
                others[token] = 0
                others = others / others.sum()
                test(below[1:], path, rest / rest.sum(), others, weight * q[token] * (1 - accept))

    follow(0, (), 1.0)
    assert abs(sum(law.values()) - 1) < 1e-9
    return law


def rounds(
    small: SmallDrafter, drafter: Trees, requests: list[Stream], rule: str
) -> Iterator[tuple[DraftBatch, list[tuple[int, ...]]]]:
    """What was drafted and what was emitted, until every text is long enough."""
    start = len(requests[0].token_ids)
    observe(small, drafter, requests, [start - 1] * len(requests))
    while min(len(request.token_ids) for request in requests) < start + LENGTH:
        batch = drafter.propose(requests, NUM_NODES)
        assert batch.parents is not None
        lens = torch.tensor([len(r.token_ids) - 1 for r in requests], dtype=torch.int32)
        verify_lens = torch.tensor(batch.verify_lens, dtype=torch.int32)
        tree = ops.tree_from_parents(batch.tokens, batch.parents, lens, verify_lens=verify_lens)
        record = ops.accept_tree(
            batch.tokens,
            tree.retrieve_next_token,
            tree.retrieve_next_sibling,
            lens,
            width=DEPTH + 1,
            target_logits=target_table()[batch.tokens.long()].flatten(0, 1),
            rule=rule,
            sampling=sampling_rules(requests, torch.device("cpu")),
            proposal=batch.proposal,
            verify_lens=verify_lens,
        )
        assert int(record.status.max()) == 0
        counts = record.commit_lens.tolist()
        emitted = [
            tuple(tokens[:n]) for tokens, n in zip(record.out_tokens.tolist(), counts, strict=True)
        ]
        for request, tokens in zip(requests, emitted, strict=True):
            request.token_ids += tokens
        observe(small, drafter, requests, counts)
        yield batch, emitted


def texts(requests: list[Stream]) -> Counter[tuple[int, ...]]:
    """The first LENGTH tokens behind the anchor."""
    start = len(PROMPT) + 1
    return Counter(tuple(r.token_ids[start : start + LENGTH]) for r in requests)


def drawn_trees(small: SmallDrafter, requests: list[Stream], kind: type[Trees]) -> Trees:
    assert isinstance(small.model, EagleModel)
    drafter = kind(small.model, NUM_NODES, TOPK, DEPTH, drawn=True)
    if isinstance(drafter, DeviceTreeDrafter):
        drafter.attach(paged(requests))
    return drafter


def check(name: str, path: Path, kind: type[Trees], num_streams: int = NUM_STREAMS) -> None:
    small, requests = SmallDrafter.of(name, path), streams(num_streams, PARAMS)
    drafter = drawn_trees(small, requests, kind)
    for number, (batch, emitted) in enumerate(rounds(small, drafter, requests, "rejection")):
        assert batch.verify_lens == [NUM_NODES] * num_streams
        if number == 0:
            assert_follows(Counter(emitted), round_law(small), f"{name}: first round")
    assert_follows(texts(requests), text_law(PARAMS), f"{name}: text")


# A reduced vocabulary of four tokens, and all five.
@pytest.mark.parametrize("name", ["safeailab", "llama2"])
def test_law_of_a_round_and_of_several(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, TreeDrafter)


# As many requests as an attention takes.
@pytest.mark.parametrize("name", ["safeailab", "llama2"])
def test_law_on_the_device(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, DeviceTreeDrafter, 1000)


class TestNanBelowSomeNode:
    """A level with a row of none is not drafted: the round ends above it, and the law is kept."""

    def check(self, kind: type[Trees], path: Path) -> None:
        small, requests = SmallDrafter.of("safeailab", path), streams(1000, PARAMS)
        small.model.weights[EMBEDDING][4] = torch.nan
        lens, flagged = set(), set()
        for batch, _ in rounds(small, drawn_trees(small, requests, kind), requests, "rejection"):
            assert batch.status is not None
            lens |= set(batch.verify_lens)
            flagged |= set(zip(batch.verify_lens, batch.status, strict=True))
        # Once the token is committed, nothing is drafted any more.
        cut = int(Status.NAN_DRAFTS)
        assert flagged == {(NUM_NODES, 0), (1 + SHAPE.depths.count(1), cut), (1, cut)}
        assert_follows(texts(requests), text_law(PARAMS), "text")

    @pytest.mark.parametrize("kind", [TreeDrafter, DeviceTreeDrafter])
    def test_law(self, kind: type[Trees], tmp_path: Path) -> None:
        self.check(kind, tmp_path)

    def test_dropping_the_level_above_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        num_usable = TreeSampler.num_usable

        def one_less(self: TreeSampler) -> Tensor:
            usable = num_usable(self)
            return torch.where(usable == 1, 0, usable)

        monkeypatch.setattr(TreeSampler, "num_usable", one_less)
        with pytest.raises(AssertionError):
            self.check(DeviceTreeDrafter, tmp_path)


def likeliest_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = TreeSampler.draw

    def mutant(self: TreeSampler, logits: Tensor, num_draws: int) -> Tensor:
        draw(self, logits, num_draws)
        return logits.topk(num_draws).indices

    monkeypatch.setattr(TreeSampler, "draw", mutant)


def with_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = TreeSampler.draw

    def mutant(self: TreeSampler, logits: Tensor, num_draws: int) -> Tensor:
        draw(self, logits, num_draws)
        shares = (logits.flatten(0, 1) / PARAMS.temperature).softmax(-1)
        generator = torch.Generator().manual_seed(1)
        drawn = torch.multinomial(shares, num_draws, replacement=True, generator=generator)
        return drawn.view(*logits.shape[:2], -1)

    monkeypatch.setattr(TreeSampler, "draw", mutant)


def rows_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    proposal = TreeSampler.proposal

    def mutant(self: TreeSampler, row_of_node: Tensor, d2t: Tensor | None) -> object:
        swapped = row_of_node.clone()
        swapped[:, 0], swapped[:, 1] = row_of_node[:, 1], row_of_node[:, 0]
        return proposal(self, swapped, d2t)

    monkeypatch.setattr(TreeSampler, "proposal", mutant)


def pruned_by_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is drawn, and the least likely is dropped."""
    draw = TreeSampler.draw

    def mutant(self: TreeSampler, logits: Tensor, num_draws: int) -> Tensor:
        drawn = draw(self, logits, num_draws + 1)
        worst = logits.gather(2, drawn).argmin(2, keepdim=True)
        places = torch.arange(num_draws)
        return drawn.gather(2, places + (places >= worst))

    monkeypatch.setattr(TreeSampler, "draw", mutant)


def another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told for q is not what was drawn from."""
    draw = TreeSampler.draw

    def mutant(self: TreeSampler, logits: Tensor, num_draws: int) -> Tensor:
        drawn = draw(self, logits, num_draws)
        rules = SamplingRules(torch.full((len(logits),), 3.0), self._rules.seeds)
        request_of_row = torch.arange(len(logits)).int().repeat_interleave(logits.shape[1])
        told = ops.sample_rows(
            self._logits[-1],
            rules,
            self._prefix_lens,
            request_of_row=request_of_row,
            num_draws=0,
        )
        self._records[-1] = told.records.packed
        return drawn

    monkeypatch.setattr(TreeSampler, "draw", mutant)


MUTANTS = [
    likeliest_siblings,
    with_replacement,
    rows_exchanged,
    pruned_by_score,
    another_temperature,
]


@pytest.mark.parametrize("mutate", MUTANTS)
def test_mutants_fail(mutate: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError, match=r"by chance once|no probability"):
        check("safeailab", tmp_path, DeviceTreeDrafter, 1000)


def test_q_not_normalised_after_a_rejection_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(num_streams: int) -> None:
        monkeypatch.setattr(ops, "accept_tree", reference.accept_tree)
        check("safeailab", tmp_path, DeviceTreeDrafter, num_streams)

    verify(400)
    monkeypatch.setattr(ProposalRow, "probabilities", lambda self, tried=(): self.values)
    with pytest.raises(AssertionError, match="by chance once"):
        verify(400)


def test_rows_with_too_few_tokens_are_no_fault() -> None:
    """Three draws of one or two tokens: the rest repeats the first, and is rejected in silence."""
    requests = streams(400, PARAMS)
    for request in requests[::2]:
        request.params = type(PARAMS)(temperature=1.0, top_k=2)
    sampler = TreeSampler.of(requests, torch.device("cpu"))
    logits = torch.randn(1, 1, VOCAB, generator=torch.Generator().manual_seed(3))
    tokens = sampler.draw(logits.expand(len(requests), -1, -1).contiguous(), 3)[:, 0]
    assert all(row[2] == row[0] for row in tokens[::2].tolist())
    q = sampler.proposal(
        torch.tensor([[b, -1, -1, -1] for b in range(400)], dtype=torch.int32), None
    )
    assert isinstance(q.records, RowRecord)
    anchors = torch.full((400, 1), ANCHOR)
    drafts = torch.cat([anchors, tokens], 1).int()
    lens = torch.zeros(400, dtype=torch.int32)
    tree = ops.tree_from_parents(
        drafts, torch.tensor([[-1, 0, 0, 0]] * 400, dtype=torch.int32), lens
    )
    cold = [type(r.params)(temperature=1.0) for r in requests]
    for request, params in zip(requests, cold, strict=True):
        request.params = params
    record = ops.accept_tree(
        drafts,
        tree.retrieve_next_token,
        tree.retrieve_next_sibling,
        lens,
        width=2,
        target_logits=target_table()[drafts.long()].flatten(0, 1),
        rule="rejection",
        sampling=sampling_rules(requests, torch.device("cpu")),
        proposal=q,
    )
    assert record.status.tolist() == [0] * 400
