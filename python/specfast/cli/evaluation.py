"""What a drafter is worth: figures of a decoding's rounds, all from counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from specfast.cli.calibration import Calibration, is_decided
from specfast.cli.decoding import Decoding
from specfast.cli.summary import Summary, summarize
from specfast.engine import RoundOutput

REPEATED_NGRAM = 4


@dataclass(frozen=True)
class Lengths:
    """Four numbers that are easily taken for each other; the last three are the run's longest.

    train_block : rows of the block that the drafter was trained on; None without a block
    proposals : m, drafts of a round; in a tree, its nodes but the anchor
    verify_rows : rows of the target, m + 1 with the anchor's
    outputs : tokens that a round emitted, accepted drafts and the target's own
    """

    train_block: int | None
    proposals: int
    verify_rows: int
    outputs: int


@dataclass(frozen=True)
class Cost:
    """Seconds inside the engine; ``verify_accept`` is what rounds take besides drafting."""

    prefill: float
    draft: float
    verify_accept: float

    @property
    def draft_share(self) -> float:
        """Of the time of all rounds."""
        rounds = self.draft + self.verify_accept
        return self.draft / rounds if rounds > 0 else 0.0


@dataclass(frozen=True)
class Evaluation:
    """Figures of the rounds with drafts; a prefill is no round, and its token is counted in none.

    summary : of all rounds; tokens per target forward are its ``tokens_per_round``. Its
        ``acceptance_by_position`` sums up to ``acceptance_length``
    acceptance_length, acceptance_length_with_bonus : accepted drafts, and emitted tokens, per round
    acceptance_rate : accepted drafts over those proposed in the same rounds
    proposed_by_position : rounds whose drafts reach 1, 2, ... deep
    decided_by_position : those among them that accepted all before and went on to decide this one
    conditional_acceptance : share of the decided that accepted; None where none was decided
    fully_accepted_rounds : those that accepted drafts as deep as they went
    length_histogram : rounds that accepted 0, 1, ... drafts
    repetition_rate : share of the outputs' 4-grams that the same output had before
    calibration : of a drafter with confidences
    """

    summary: Summary
    acceptance_length: float
    acceptance_length_with_bonus: float
    acceptance_rate: float
    proposed_by_position: list[int]
    decided_by_position: list[int]
    conditional_acceptance: list[float | None]
    fully_accepted_rounds: int
    length_histogram: list[int]
    repetition_rate: float
    lengths: Lengths
    cost: Cost
    calibration: Calibration | None = None

    @property
    def acceptance_by_position(self) -> list[float]:
        """That of the summary, as far as drafts were proposed."""
        shares = self.summary.acceptance_by_position
        return [*shares, *[0.0] * (len(self.proposed_by_position) - len(shares))]


def evaluate_rounds(
    decoding: Decoding,
    depths: Sequence[Sequence[int]],
    draft_seconds: float,
    train_block: int | None = None,
) -> Evaluation:
    """Figures of ``decoding``; ``depths[g][r]`` is how deep the drafts of that round went.

    ``draft_seconds`` is the part of ``decoding.seconds`` that rounds spent drafting.
    """
    summary = summarize(decoding)
    rounds = [
        (output, depth)
        for generation, of_rounds in zip(decoding.generations, depths, strict=True)
        for output, depth in zip(generation.rounds[1:], of_rounds[1:], strict=True)
        if output.num_proposed > 0
    ]
    outputs = [output for output, _ in rounds]
    count = max(len(rounds), 1)
    deepest = max((depth for _, depth in rounds), default=0)
    positions = range(1, deepest + 1)
    accepted = [sum(output.num_accepted >= p for output in outputs) for p in positions]
    decided = [sum(_decides(output, depth, p) for output, depth in rounds) for p in positions]
    proposals = max((output.num_proposed for output in outputs), default=0)
    return Evaluation(
        summary=summary,
        acceptance_length=summary.drafts_accepted / count,
        acceptance_length_with_bonus=sum(len(output.token_ids) for output in outputs) / count,
        acceptance_rate=summary.drafts_accepted / max(summary.drafts_proposed, 1),
        proposed_by_position=[sum(depth >= p for _, depth in rounds) for p in positions],
        decided_by_position=decided,
        conditional_acceptance=[
            a / d if d > 0 else None for a, d in zip(accepted, decided, strict=True)
        ],
        fully_accepted_rounds=sum(output.num_accepted == depth for output, depth in rounds),
        length_histogram=[a - b for a, b in pairwise([len(rounds), *accepted, 0])],
        repetition_rate=repetition_rate([g.token_ids for g in decoding.generations]),
        lengths=Lengths(
            train_block=train_block,
            proposals=proposals,
            verify_rows=proposals + 1,
            outputs=max((len(output.token_ids) for output in outputs), default=0),
        ),
        cost=Cost(
            prefill=decoding.prefill_seconds,
            draft=draft_seconds,
            verify_accept=decoding.seconds - decoding.prefill_seconds - draft_seconds,
        ),
    )


def repetition_rate(outputs: Sequence[Sequence[int]]) -> float:
    """Share of all 4-grams that occurred earlier in their own output."""
    total = distinct = 0
    for token_ids in outputs:
        ngrams = list(zip(*(token_ids[i:] for i in range(REPEATED_NGRAM)), strict=False))
        total += len(ngrams)
        distinct += len(set(ngrams))
    return 1 - distinct / total if total > 0 else 0.0


def _decides(output: RoundOutput, depth: int, position: int) -> bool:
    """Whether the round accepted or rejected its draft at ``position``, those before accepted."""
    reached = depth >= position and output.num_accepted >= position - 1
    return reached and is_decided(output, position)
