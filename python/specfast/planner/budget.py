"""The budget of a round: where one more row would cost more than the token it may bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
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
    largest product of tokens and steps per second is chosen. A draft that nothing is expected of is
    never worth a row.

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
    lens = torch.tensor(max_lens, dtype=torch.int64)
    num_requests = int((lens > 0).sum())
    if tiers.holding(num_requests) is None:
        return None
    allowed = torch.arange(survival.shape[1]) < lens[:, None] - 1
    worth = allowed & (survival >= epsilon) & (survival > 0)
    gains = survival[worth].double().sort(descending=True).values
    tokens = [0.0, *gains.cumsum(0).tolist()]

    # Within a tier rows are free, so that the best budgets are those that fill one.
    best, best_value, chosen = 0, 0.0, 0
    for tier in tiers.rows:
        if tier < num_requests:
            continue
        budget = min(tier - num_requests, len(gains))
        value = (num_requests + tokens[budget]) * cost.rate(num_requests, tier)
        if value > best_value:
            best, best_value, chosen = budget, value, tier
        if budget == len(gains):
            break
    if fill_tier:
        return min(chosen - num_requests, int(allowed.sum()))
    return best
