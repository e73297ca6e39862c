"""The planner of an engine's rounds, and rounds that are planned on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn.functional import pad

from specfast.drafters.base import DraftBatch
from specfast.engine.requests import Request
from specfast.engine.verify_graphs import VerifyGraphs
from specfast.ops.plan import MAX_SCHEDULED_DRAFTS
from specfast.planner import Planning, Tiers, VerifyPlanner


def planner_for(
    planning: Planning | None, graphs: VerifyGraphs, max_batch_size: int
) -> VerifyPlanner | None:
    """Of requests in ``max_batch_size`` slots; a row count of any batch size is a tier of it.

    Raises
    ------
    ValueError
        An SPS table of another setting than these rounds'; more drafts than one plan can hold.
    """
    if planning is None:
        return None
    slots = max(max_batch_size, *(tier.num_requests for tier in graphs.tiers.tiers))
    most = slots * max(graphs.tiers.width - 1, 1)
    if most > MAX_SCHEDULED_DRAFTS:
        raise ValueError(
            f"Engine: expected tiers of at most {MAX_SCHEDULED_DRAFTS} drafts in all for planning, "
            f"got {slots} requests of {graphs.tiers.width - 1}"
        )
    if planning.table is not None:
        planning.table.require(graphs.sps_setting())
    rows = Tiers(tier.num_rows for tier in graphs.tiers.tiers)
    return planning.planner(max_batch_size, graphs.tiers.width - 1, rows, graphs.device)


class HostPlan:
    """Cuts what a drafter on the host has drafted to what pays, before the round is laid out.

    The budget comes from survivals of earlier rounds and is spread by those of this one, so that no
    cut depends on a token that it cuts. Drafts without confidences stay as they are; what is beyond
    the tiers' width is cut always: whether a draft gets so far may depend on what it is.

    Raises ValueError for a planner whose rows are not those that accept looks at.
    """

    def __init__(self, planner: VerifyPlanner, num_drafts: int) -> None:
        if planner.mode == "cap-accept":
            raise ValueError(
                'Engine: expected planning "static" or "compact" for a drafter on the host, got '
                '"cap-accept"'
            )
        self._planner = planner
        self._num_drafts = num_drafts

    def cut(
        self, requests: Sequence[Request], draft: DraftBatch, max_lens: Sequence[int]
    ) -> tuple[DraftBatch, list[int]]:
        """``draft`` with the status of the plan, and rows of each request, at most ``max_lens``."""
        if draft.confidence is None:
            return draft, list(max_lens)
        confidence = draft.confidence[:, : self._num_drafts]
        missing = self._num_drafts - confidence.shape[1]
        within = [min(length, self._num_drafts + 1) for length in max_lens]
        places = [request.slot for request in requests]
        generations = [request.generation for request in requests]
        # How long drafts are may depend on what they are, and the budget must not.
        possible = [min(self._num_drafts + 1, request.tokens_left) for request in requests]
        plan = self._planner.plan(places, generations, possible)
        device, temperatures = confidence.device, draft.temperatures
        if temperatures is not None:
            temperatures = pad(temperatures[..., : self._num_drafts], (0, missing), value=1)
        schedule = self._planner.schedule(
            plan,
            # What nobody drafted is beyond `within`, and survives with 0.
            pad(confidence, (0, missing), value=0.0),
            form=draft.confidence_form,
            temperatures=temperatures,
            max_lens=torch.tensor(within, dtype=torch.int32, device=device),
        )
        places_on_device = torch.tensor(places, device=device)
        self._planner.publish(schedule, places_on_device, places, generations)
        lens, flags = torch.stack([schedule.verify_lens, schedule.status]).tolist()
        met = draft.status or [0] * len(flags)
        status = [one | other for one, other in zip(met, flags, strict=True)]
        return replace(draft, status=status), lens
