"""The budget of a round: where one more row would cost more than the token it may bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specfast.planner.tiers import Tiers


class StepRate(Protocol):
    """What :class:`~specfast.planner.sps.SpsTable` knows."""

    def rate(self, num_requests: int, tier: int) -> float: ...


def choose_budget(
    survival: Tensor,
    max_lens: Sequence[int],
    cost: StepRate,
    tiers: Tiers,
    *,
    epsilon: float = 1e-6,
    fill_tier: bool = False,
) -> int | None:
    """The number of drafts K that makes most tokens per second.

    ``R + sum of the K largest survivals`` is how many tokens R requests may expect of a step, and
    the step takes as long as the tier that its R + K rows are padded to. The smallest K of the
    largest product of tokens and steps per second is chosen.

    Parameters
    ----------
    survival : float32 [B, gamma] on the host
        Expected of each draft: never of this round's drafts, or the outputs lose the target's law.
    max_lens : B ints
        Rows that each request may verify, the anchor included; 0: it takes no part.
    cost : StepRate
        Steps per second.
    tiers : Tiers
        Rows that a step may have.
    epsilon : float
        Survivals below it are not worth a row.
    fill_tier : bool
        Raise K to what the tier of R + K rows holds anyway.

    Returns
    -------
    int or None
        None if not even the R anchors fit a tier.
    """
    num_requests = sum(length > 0 for length in max_lens)
    if tiers.holding(num_requests) is None:
        return None
    candidates = sorted(
        (
            value
            for row, length in zip(survival.tolist(), max_lens, strict=True)
            for value in row[: max(length - 1, 0)]
            if value >= epsilon
        ),
        reverse=True,
    )
    best, best_value, tokens = 0, 0.0, float(num_requests)
    for budget, gain in enumerate([0.0, *candidates]):
        tier = tiers.holding(num_requests + budget)
        if tier is None:
            break
        tokens += gain
        value = tokens * cost.rate(num_requests, tier)
        if value > best_value:
            best, best_value = budget, value
    if fill_tier:
        most = sum(max(length - 1, 0) for length in max_lens)
        tier = tiers.holding(num_requests + best)
        assert tier is not None
        best = min(tier - num_requests, most)
    return best
