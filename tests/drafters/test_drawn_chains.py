"""Drafts that are drawn: from the q that comes with them, which is that of the formulas.

The law of a round is enumerated: every path of drafts, with its probability by the formulas, and
what the rule makes of it. The law of several rounds is the target's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chi_square import assert_follows
from drafters.by_formula import Array
from drafters.small_vocabulary import (
    ANCHOR,
    VOCAB,
    SmallDrafter,
    Stream,
    observe,
    paged,
    streams,
)
from specfast import SamplingParams, ops
from specfast.drafters import DeviceTrainedDrafter, DraftBatch, TrainedDrafter
from specfast.drafters.draws import DraftSampler
from specfast.drafters.dspark import MarkovHead
from specfast.drafters.sampling import sampling_rules
from specfast.records import AcceptRecord
from specfast.sampling import SelectedWalk
from torch import Tensor

NUM_DRAFTS, NUM_STREAMS, LENGTH = 2, 1500, 3
PARAMS = SamplingParams(temperature=0.8)


def target_table() -> Tensor:
    """Logits [V, V] of the target by the token before."""
    return 1.2 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(4))


def target_law(params: SamplingParams) -> Array:
    return (target_table().double() / params.temperature).softmax(1).numpy()


class Rounds:
    """Streams of one prompt, drafted by a family and verified against the table."""

    def __init__(
        self, small: SmallDrafter, params: SamplingParams, count: int, *, cuts: bool = False
    ) -> None:
        self.small = small
        self.cuts = cuts
        self.streams = streams(count, params)
        self.drafter = self.new_drafter()
        self.start = len(self.streams[0].token_ids)
        observe(small, self.drafter, self.streams, [self.start - 1] * count)

    def new_drafter(self) -> TrainedDrafter | DeviceTrainedDrafter:
        return TrainedDrafter(self.small.model, NUM_DRAFTS)

    @torch.inference_mode()
    def round(self) -> list[tuple[int, ...]]:
        """What each stream emits."""
        batch = self.drafter.propose(self.streams, NUM_DRAFTS + 1)
        assert self.cuts or batch.verify_lens == [NUM_DRAFTS + 1] * len(self.streams)
        assert self.cuts == (batch.status is not None)
        record = verified(batch, self.streams)
        emitted = []
        for stream, tokens, n in zip(
            self.streams, record.out_tokens.tolist(), record.commit_lens.tolist(), strict=True
        ):
            stream.token_ids += tokens[:n]
            emitted.append(tuple(tokens[:n]))
        observe(self.small, self.drafter, self.streams, [len(tokens) for tokens in emitted])
        return emitted

    def texts(self, length: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(s.token_ids[self.start : self.start + length]) for s in self.streams)


class DeviceRounds(Rounds):
    """By the step of captured rounds."""

    def new_drafter(self) -> DeviceTrainedDrafter:
        drafter = DeviceTrainedDrafter(self.small.model, NUM_DRAFTS)
        drafter.attach(paged(self.streams))
        return drafter


def verified(batch: DraftBatch, requests: Sequence[Stream]) -> AcceptRecord:
    cpu = torch.device("cpu")
    lens = torch.tensor([len(r.token_ids) - 1 for r in requests], dtype=torch.int32)
    record = ops.accept_chain(
        batch.tokens,
        lens,
        target_logits=target_table()[batch.tokens.long()].flatten(0, 1),
        rule="rejection",
        sampling=sampling_rules(requests, cpu),
        proposal=batch.proposal,
        verify_lens=torch.tensor(batch.verify_lens, dtype=torch.int32),
    )
    assert int(record.status.max()) == 0
    return record


def round_law(small: SmallDrafter, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """What a round emits, by going through all drafts."""
    p = target_law(params)
    law: dict[tuple[int, ...], float] = {}

    def add(tokens: tuple[int, ...], probability: float) -> None:
        if probability > 0:
            law[tokens] = law.get(tokens, 0.0) + probability

    def follow(path: tuple[int, ...], weight: float) -> None:
        """``weight``: the path was drafted and accepted."""
        row = p[path[-1] if path else ANCHOR]
        if len(path) == NUM_DRAFTS:
            for token in range(VOCAB):
                add((*path, token), weight * row[token])
            return
        q = small.q(path, params.temperature)
        accepted = np.minimum(row, q)
        rest = row - accepted
        for token in range(VOCAB):
            add((*path, token), weight * rest[token])
            if accepted[token] > 0:
                follow((*path, token), weight * accepted[token])

    follow((), 1.0)
    assert abs(sum(law.values()) - 1) < 1e-9
    return law


def text_law(params: SamplingParams) -> dict[tuple[int, ...], float]:
    p = target_law(params)
    law = {}
    for text in product(range(VOCAB), repeat=LENGTH):
        before = (ANCHOR, *text)
        law[text] = float(np.prod([p[a, b] for a, b in zip(before, text, strict=False)]))
    return law


def check(
    name: str,
    path: Path,
    params: SamplingParams = PARAMS,
    kind: type[Rounds] = Rounds,
    num_streams: int = NUM_STREAMS,
) -> None:
    small = SmallDrafter.of(name, path)
    rounds = kind(small, params, num_streams)
    first = Counter(rounds.round())
    assert_follows(first, round_law(small, params), f"{name}: first round")
    while min(len(s.token_ids) for s in rounds.streams) < rounds.start + LENGTH:
        rounds.round()
    assert_follows(rounds.texts(LENGTH), text_law(params), f"{name}: text")


# Those that draw alike stand for the rest; the golden tests have all of them.
DRAWN = [
    "safeailab",
    "eagle-3.1",
    "llama2",
    "dflash",
    "dflash-speculators",
    "dspark",
    "dspark-nested",
    "dspark-rnn",
    "dspark-speculators",
    "dflash2",
]


@pytest.mark.parametrize("name", DRAWN)
def test_law_of_a_round_and_of_several(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.parametrize("name", ["safeailab", "dflash", "dspark"])
def test_law_on_the_device(name: str, tmp_path: Path) -> None:
    # As many requests as an attention takes.
    check(name, tmp_path, PARAMS, DeviceRounds, 1000)


class TestNanAfterSomeDraft:
    """After one token there is no next draft: the round ends there, and the law is kept."""

    def check(self, path: Path) -> None:
        small = SmallDrafter.of("dspark", path)
        small.model.weights["markov_head.markov_w1.weight"][4] = torch.nan
        rounds = Rounds(small, PARAMS, NUM_STREAMS, cuts=True)
        rounds.round()
        assert {len(batch) for batch in rounds.texts(3)} == {1, 2, 3}
        while min(len(s.token_ids) for s in rounds.streams) < rounds.start + LENGTH:
            rounds.round()
        assert_follows(rounds.texts(LENGTH), text_law(PARAMS), "text")

    def test_law(self, tmp_path: Path) -> None:
        self.check(tmp_path)

    def test_dropping_the_draft_before_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        num_usable = DraftSampler.num_usable

        def all_or_nothing(self: DraftSampler) -> Tensor:
            usable = num_usable(self)
            return torch.where(usable < len(self.levels), 0, usable)

        monkeypatch.setattr(DraftSampler, "num_usable", all_or_nothing)
        with pytest.raises(AssertionError):
            self.check(tmp_path)


def uncorrected_q(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = MarkovHead.draw

    def mutant(
        self: MarkovHead, hidden: Tensor, logits: Tensor, anchors: Tensor, sampler: DraftSampler
    ) -> Tensor:
        before = logits.clone()
        tokens = draw(self, hidden, logits, anchors, sampler)
        logits.copy_(before)
        sampler.levels = [
            ops.sample_rows(row, sampler._rules, sampler._prefix_lens, num_draws=0).records
            for row in logits.unbind(1)
        ]
        return tokens

    monkeypatch.setattr(MarkovHead, "draw", mutant)


def levels_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = TrainedDrafter.propose

    def mutant(self: TrainedDrafter, requests: Sequence[Stream], verify_width: int) -> DraftBatch:
        batch = propose(self, requests, verify_width)
        q = batch.proposal
        assert q is not None
        for rows in (q.logits, q.records and q.records.packed, q.sparse_ids, q.sparse_values):
            if rows is not None:
                rows.copy_(rows.unflatten(0, (-1, NUM_DRAFTS)).flip(1).flatten(0, 1))
        return batch

    monkeypatch.setattr(TrainedDrafter, "propose", mutant)


def argmax_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(self: DraftSampler, logits: Tensor, *head: Any, **more: Any) -> Tensor:
        draw(self, logits, *head, **more)
        best = logits.argmax(-1)
        return best + more["d2t"][best]

    draw = DraftSampler.draw_block
    monkeypatch.setattr(DraftSampler, "draw_block", mutant)


def another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    of = DraftSampler.of

    def colder(requests: Sequence[Stream], device: torch.device) -> DraftSampler:
        """Draws of another law than what is recorded, as if q were taken at another temperature."""
        sampler = of(requests, device)
        warmer = replace(sampler._rules, temperature=5 * sampler._rules.temperature)
        draw = sampler.draw

        def mutant(logits: Tensor) -> Tensor:
            tokens = draw(logits)
            lens, level = sampler._prefix_lens, len(sampler.levels) - 1
            sampler.levels[-1] = ops.sample_rows(logits, warmer, lens, level=level).records
            return tokens

        def warmer_walk(*slots: Any) -> SelectedWalk:
            walk = of_slots(*slots)
            sampler._rules, rules = warmer, sampler._rules
            q = of_slots(*slots).q
            sampler._rules = rules
            return replace(walk, q=q)

        of_slots = sampler.walk
        sampler.draw = mutant  # type: ignore[method-assign]
        sampler.walk = warmer_walk  # type: ignore[method-assign]
        return sampler

    monkeypatch.setattr(DraftSampler, "of", colder)


Mutate = Callable[[pytest.MonkeyPatch], None]
MUTANTS = [
    ("dspark", uncorrected_q),
    ("dspark-rnn", uncorrected_q),
    ("dspark-speculators", uncorrected_q),
    ("dspark", levels_exchanged),
    ("dflash2", levels_exchanged),
    ("dspark-speculators", argmax_drafts),
    ("llama2", another_temperature),
    ("dflash2", another_temperature),
]


@pytest.mark.parametrize(("name", "mutate"), MUTANTS)
def test_mutants_fail(
    name: str, mutate: Mutate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=r"by chance once|no probability"):
        check(name, tmp_path)
