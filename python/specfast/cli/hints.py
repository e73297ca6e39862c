"""What the figures of an evaluation point to, by fixed rules."""

from __future__ import annotations

from collections.abc import Iterator

from specfast.cli.evaluation import Evaluation
from specfast.drafters import DrafterSpec

FEW_ROUNDS = 50
NEAR_ZERO = 0.05
HIGH_FIRST = 0.5
HIGH_REPETITION = 0.2
MOSTLY = 0.5


def hints(evaluation: Evaluation, spec: DrafterSpec | None, verify_width: int) -> Iterator[str]:
    """A sentence for each rule that holds; ``spec`` is that of a trained drafter."""
    rounds = evaluation.summary.drafted_rounds
    if rounds == 0:
        yield "No round had drafts: nothing was measured."
        return
    if rounds < FEW_ROUNDS:
        yield f"Only {rounds} rounds had drafts: give more prompts or a higher --max-new-tokens."
    if spec is not None:
        yield from _of_acceptance(evaluation, spec)
        if spec.block is not None and spec.block.num_proposals >= verify_width:
            yield (
                f"--verify-width {verify_width} cuts the block's {spec.block.num_proposals} "
                f"proposals; {spec.block.num_proposals + 1} would take all."
            )
    if evaluation.repetition_rate >= HIGH_REPETITION:
        yield (
            f"{evaluation.repetition_rate:.0%} of the outputs' 4-grams are repeated: loops are "
            "easy to draft and inflate acceptance; compare at a --temperature above 0."
        )
    if evaluation.fully_accepted_rounds >= MOSTLY * rounds:
        yield (
            f"{evaluation.fully_accepted_rounds} of {rounds} rounds accepted all that was drafted: "
            "longer drafts may gain more."
        )
    if evaluation.cost.draft_share >= MOSTLY:
        yield f"Rounds spend {evaluation.cost.draft_share:.0%} of their time drafting."


def _of_acceptance(evaluation: Evaluation, spec: DrafterSpec) -> Iterator[str]:
    first, *later = evaluation.conditional_acceptance
    if first is not None and first < NEAR_ZERO:
        yield (
            f"Position 1 is accepted in {first:.0%} of the rounds: taps, positions or labels may "
            "be shifted by one, or the drafter belongs to another target; specfast inspect --probe "
            "measures other readings of its files."
        )
    second = later[0] if later else None
    if first is not None and first >= HIGH_FIRST and second is not None and second < NEAR_ZERO:
        step = "the hidden state that a step hands on" if spec.block is None else "the block's mask"
        yield (
            f"Position 1 is accepted in {first:.0%} of the rounds and then position 2 in "
            f"{second:.0%}: the taps are right, and {step} or the positions behind the anchor "
            "may be wrong."
        )
