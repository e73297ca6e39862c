"""Whether drafts survive as often as their drafter says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specfast.cli.decoding import Decoding
from specfast.engine import RoundOutput
from specfast.planner import CALIBRATION_BINS


@dataclass(frozen=True)
class SurvivalBin:
    """Drafts that were given about the same chance of being accepted with all before them.

    predicted : the mean of these chances
    accepted : the share of them that was
    """

    count: int
    predicted: float
    accepted: float


@dataclass(frozen=True)
class Calibration:
    """Survivals against what became of the drafts.

    bins : by predicted survival, of equal width; those without a draft are left out
    by_position : the same by position, 1, 2, ...
    error : expected calibration error, the mean distance of the two in a bin, weighted by drafts
    """

    bins: list[SurvivalBin]
    by_position: list[SurvivalBin]
    error: float


def calibrate(
    decoding: Decoding, survivals: Sequence[Sequence[Sequence[float]]]
) -> Calibration | None:
    """``survivals[g][r]`` are those of the drafts of round r, none of the prefill.

    None without any. A draft behind one at which a text ended counts nowhere: nobody decided it.
    """
    samples = [
        (position, survival, output.num_accepted >= position)
        for generation, of_rounds in zip(decoding.generations, survivals, strict=True)
        for output, given in zip(generation.rounds, of_rounds, strict=True)
        for position, survival in enumerate(given[: output.num_proposed], start=1)
        if is_decided(output, position)
    ]
    if not samples:
        return None
    by_bin: dict[int, list[tuple[float, bool]]] = {}
    by_position: dict[int, list[tuple[float, bool]]] = {}
    for position, survival, accepted in samples:
        number = min(int(survival * CALIBRATION_BINS), CALIBRATION_BINS - 1)
        by_bin.setdefault(number, []).append((survival, accepted))
        by_position.setdefault(position, []).append((survival, accepted))
    bins = [_bin(by_bin[number]) for number in sorted(by_bin)]
    distance = sum(one.count * abs(one.predicted - one.accepted) for one in bins)
    positions = [_bin(by_position[position]) for position in sorted(by_position)]
    return Calibration(bins, positions, distance / len(samples))


def is_decided(output: RoundOutput, position: int) -> bool:
    """Whether the round said of its draft at ``position`` that it, or one before, is wrong, or not.

    One that ended its text at an accepted draft says nothing about the next.
    """
    went_on = len(output.token_ids) > output.num_accepted
    return position <= output.num_accepted or went_on


def _bin(drafts: Sequence[tuple[float, bool]]) -> SurvivalBin:
    count = len(drafts)
    predicted = sum(survival for survival, _ in drafts) / count
    return SurvivalBin(count, predicted, sum(accepted for _, accepted in drafts) / count)
