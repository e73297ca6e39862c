"""How an engine with tiers runs its rounds: from the host or ahead of it, planned or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specfast.drafters.base import DeviceDrafter, Drafter
from specfast.engine.requests import Request
from specfast.engine.round_plan import HostPlan, planner_for
from specfast.engine.run_ahead import RunAhead
from specfast.engine.verify_graphs import VerifyGraphs
from specfast.planner import Planning, VerifyPlanner


@dataclass(frozen=True)
class RoundsAtTiers:
    """Nothing, without tiers."""

    graphs: VerifyGraphs | None = None
    planner: VerifyPlanner | None = None
    ahead: RunAhead | None = None
    host_plan: HostPlan | None = None

    @classmethod
    def of(
        cls,
        graphs: VerifyGraphs,
        drafter: Drafter,
        planning: Planning | None,
        max_batch_size: int,
        reserve: Callable[[Sequence[Request], int], None],
    ) -> RoundsAtTiers:
        """Raises ValueError for planning that does not fit."""
        planner = planner_for(planning, graphs, max_batch_size)
        # Budgets of other ranks may come from other survivals: the host has to agree on them.
        plans_on_host = planner is not None and graphs.has_agreement
        if isinstance(drafter, DeviceDrafter) and not plans_on_host:
            return cls(graphs, planner, RunAhead(graphs, drafter.begin, reserve, planner))
        if planner is None:
            return cls(graphs)
        return cls(graphs, planner, host_plan=HostPlan(planner, graphs.tiers.width - 1))
