"""The planner: before a round the budget, on the host; within it the lengths, on the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specfast import ops
from specfast.ops.plan import ConfidenceForm
from specfast.planner.budget import choose_budget
from specfast.planner.relay import ConfidenceRelay
from specfast.planner.sps import SpsTable
from specfast.planner.tiers import Tiers
from specfast.records import VerifySchedule

_logger = logging.getLogger(__name__)

PlannerMode = Literal["static", "cap-accept", "compact"]
MODES = ("static", "cap-accept", "compact")


@dataclass(frozen=True)
class VerifyPlan:
    """What the host decides of a round.

    budget : drafts beyond the anchors; None: all
    tier : rows of the target's forward, padding included; None: more than any tier holds
    reason : why it is so; of a round without a budget logged, once per reason
    num_stale : requests that count as sure of their drafts because nothing is known of them
    """

    budget: int | None
    tier: int | None
    reason: str
    num_stale: int = 0


@dataclass(frozen=True)
class Planning:
    """How an engine plans its rounds; see :class:`VerifyPlanner`.

    mode : see there; "cap-accept" is for drafters on the device
    table : what rows cost, measured with this engine's setting; None: all drafts are verified
    epsilon : expected survivals below it are not worth a row, whatever a row costs
    fill_tier : whether to spend what the tier of a round holds anyway
    lag : rounds between the survivals of a round and the budget that they decide
    """

    mode: PlannerMode = "compact"
    table: SpsTable | None = None
    epsilon: float = 1e-6
    fill_tier: bool = False
    lag: int = 2

    def planner(
        self, pool_size: int, num_drafts: int, tiers: Tiers, device: torch.device
    ) -> VerifyPlanner:
        """Of requests in ``pool_size`` places, of ``num_drafts`` drafts each.

        Raises ValueError as :class:`VerifyPlanner` and ``ConfidenceRelay`` do.
        """
        relay = ConfidenceRelay(pool_size, num_drafts, device, lag=self.lag)
        return VerifyPlanner(
            relay,
            tiers,
            self.table,
            mode=self.mode,
            epsilon=self.epsilon,
            fill_tier=self.fill_tier,
        )


class VerifyPlanner:
    """Plans rounds of chains: how many rows in all, and on the device whose.

    =========== ============================== ====================================
    mode        rows of the target's forward   drafts that accept may look at
    =========== ============================== ====================================
    static      all                            all
    cap-accept  all                            within the lengths
    compact     within the lengths, padded     the same: tokens equal cap-accept's
    =========== ============================== ====================================

    A round is::

        plan = planner.plan(places, generations, max_lens)     # host; before or beside the drafter
        schedule = planner.schedule(plan, confidence, ...)     # device, once drafts are there
        planner.publish(schedule, places_on_device, places, generations)

    Everybody verifies all that ``max_lens`` allows (the uniform layout) where there is no SPS
    table, in the mode "static", or when the survivals of ``lag`` rounds ago have not arrived.

    Ranks of one model must take the plan of one of them: a copy may have arrived on some only.

    Parameters
    ----------
    relay : ConfidenceRelay
        Of the requests that are planned.
    tiers : Tiers
        Rows that a forward of the target is captured for.
    table : SpsTable, optional
        What rows cost. Whether it was measured in this setting is for the caller to see to
        (``SpsTable.require``), as an engine does.
    mode : "static" | "cap-accept" | "compact"
    epsilon : float
        Expected survivals below it are not worth a row, whatever a row costs.
    fill_tier : bool
        Spend what the tier holds anyway.

    Raises
    ------
    ValueError
        An unknown mode, an epsilon that is no probability, or a table of other tiers.

    Notes
    -----
    Source: the confidence-scheduled verification of DSpark.
    """

    def __init__(
        self,
        relay: ConfidenceRelay,
        tiers: Tiers,
        table: SpsTable | None = None,
        *,
        mode: PlannerMode = "compact",
        epsilon: float = 1e-6,
        fill_tier: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"expected a mode of {', '.join(MODES)}, got {mode!r}")
        if not 0 <= epsilon <= 1:
            raise ValueError(f"expected epsilon in [0, 1], got {epsilon}")
        if table is not None and table.tiers != tiers.rows:
            raise ValueError(
                f"expected an SPS table of the tiers {tiers.rows}, got one of {table.tiers}"
            )
        self.mode = mode
        self._relay = relay
        self._tiers = tiers
        self._table = table
        self._epsilon = epsilon
        self._fill_tier = fill_tier
        self._logged: set[str] = set()

    @property
    def padding_place(self) -> int:
        """Place of padded slots in :meth:`publish`."""
        return self._relay.padding_place

    def plan(
        self, places: Sequence[int], generations: Sequence[int], max_lens: Sequence[int]
    ) -> VerifyPlan:
        """Decide budget and tier from earlier rounds alone.

        Parameters
        ----------
        places, generations : B ints
            Place of each request in the pool and who has it, as in ``ConfidenceRelay.publish``.
        max_lens : B ints
            Rows that each request may verify, the anchor included.
        """
        plan = self._decide(places, generations, max_lens)
        if plan.budget is None and plan.reason not in self._logged:
            self._logged.add(plan.reason)
            _logger.info("a round verifies all drafts: %s", plan.reason)
        return plan

    def _decide(
        self, places: Sequence[int], generations: Sequence[int], max_lens: Sequence[int]
    ) -> VerifyPlan:
        uniform_tier = self._tiers.holding(sum(max_lens))
        if self.mode == "static":
            return VerifyPlan(None, uniform_tier, "static")
        if self._table is None:
            return VerifyPlan(None, uniform_tier, "no SPS table")
        lagged = self._relay.read(places, generations)
        if lagged is None:
            return VerifyPlan(None, uniform_tier, f"no survivals of {self._relay.lag} rounds ago")
        budget = choose_budget(
            lagged.survival,
            max_lens,
            self._table,
            self._tiers,
            epsilon=self._epsilon,
            fill_tier=self._fill_tier,
        )
        if budget is None:
            return VerifyPlan(None, None, f"anchors beyond the largest tier {self._tiers.largest}")
        num_rows = sum(length > 0 for length in max_lens) + budget
        tier = self._tiers.holding(num_rows) if self.mode == "compact" else uniform_tier
        return VerifyPlan(budget, tier, "planned", lagged.num_stale)

    def schedule(
        self,
        plan: VerifyPlan,
        confidence: Tensor,
        *,
        form: ConfidenceForm = "survival",
        temperatures: Tensor | None = None,
        max_lens: Tensor | None = None,
        anchors: Tensor | None = None,
        budget_on_device: Tensor | None = None,
        out: VerifySchedule | None = None,
    ) -> VerifySchedule:
        """Spread the plan's budget over this round's drafts, on the device.

        The budget goes through ``budget_on_device`` (int32 [1]) if given, so that the op can be
        part of a captured graph. Other arguments and the result are those of
        ``ops.schedule_verify_lens``. Without a budget everybody gets ``max_lens``; survivals are
        recorded all the same.
        """
        everything = confidence.shape[0] * confidence.shape[1]
        budget: int | Tensor = everything if plan.budget is None else plan.budget
        if budget_on_device is not None:
            budget = budget_on_device.fill_(budget)
        # The tier is chosen: a row that is left out would only be padding.
        return ops.schedule_verify_lens(
            confidence,
            budget,
            form=form,
            temperatures=temperatures,
            max_lens=max_lens,
            anchors=anchors,
            epsilon=0.0,
            out=out,
        )

    def publish(
        self,
        schedule: VerifySchedule,
        places_on_device: Tensor,
        places: Sequence[int],
        generations: Sequence[int],
    ) -> None:
        """Keep this round's survivals for the plans to come; see ``ConfidenceRelay.publish``."""
        self._relay.publish(schedule.survival, places_on_device, places, generations)

    def forget(self) -> None:
        """Plan without what was published so far; see ``ConfidenceRelay.forget``."""
        self._relay.forget()
