"""Rounds that are launched before the record of the one before has been read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specfast.engine.captured_round import LaunchedRound
from specfast.engine.requests import Request
from specfast.engine.round_form import RoundForm
from specfast.engine.verified_round import VerifiedRound
from specfast.engine.verify_graphs import VerifyGraphs
from specfast.engine.verify_tiers import VerifyTier
from specfast.planner import VerifyPlanner
from specfast.status import FinishReason


@dataclass(frozen=True)
class _Flight:
    """Rounds of one batch, the last of which has been launched.

    ended : ids of requests that the device has ended: they have no rows any more
    stalled : ids of requests that go on and got no row, which no flight can mend
    places_on_device : int64 [B]    where each slot's survivals go in the planner's relay
    """

    requests: list[Request]
    form: RoundForm
    num_slots: int
    ended: set[int]
    stalled: set[int]
    places_on_device: Tensor | None = None
    launched: LaunchedRound | None = None

    def read(self, requests: Sequence[Request]) -> tuple[list[Request], VerifiedRound]:
        """Of those of its requests that are still among ``requests``."""
        running = {request.request_id for request in requests}
        assert self.launched is not None
        slots = [i for i, r in enumerate(self.requests) if r.request_id in running]
        verified = self.launched.read().of_slots(slots)
        read = [self.requests[i] for i in slots]
        reasons = verified.record.finish_reason.tolist()
        for request, reason, rows in zip(read, reasons, verified.verify_lens, strict=True):
            if reason != FinishReason.NOT_FINISHED:
                self.ended.add(request.request_id)
            elif rows == 0:
                self.stalled.add(request.request_id)
        return read, verified

    def carries_only(self, requests: Sequence[Request]) -> bool:
        """Whether the slots that get rows are those of ``requests``, and no others."""
        wanted = {request.request_id for request in requests} | self.ended
        return not self.stalled and all(r.request_id in wanted for r in self.requests)


class RunAhead:
    """Keeps the device one round ahead of the host, while a batch stays together.

    Only for a :class:`~specfast.drafters.base.DeviceDrafter`: prefixes, anchors, limits and drafts
    of the next round are on the device, where the round before left them, so the host has nothing
    to add but the planner's budget, which comes from earlier rounds. It reads the record of a round
    while the next one runs. A request that ends on the device has no rows in the rounds after.

    When requests join, when the host ends one (at a stop string), or when so many have left that a
    smaller batch size would do, the flight has to land: its record is read, and the next round
    starts from the host. The round in flight has then verified an ended request for nothing, in
    pages that nobody could have got before it was launched.

    Parameters
    ----------
    graphs : VerifyGraphs
    begin : callable
        The drafter's.
    reserve : callable
        Takes requests and rows, and gives each of them pages for so many after the committed ones.
    planner : VerifyPlanner, optional
        Of a drafter with confidences; its tiers are rows of those of ``graphs``.
    """

    def __init__(
        self,
        graphs: VerifyGraphs,
        begin: Callable[[Sequence[Request]], None],
        reserve: Callable[[Sequence[Request], int], None],
        planner: VerifyPlanner | None = None,
    ) -> None:
        self._graphs = graphs
        self._begin = begin
        self._reserve = reserve
        self._planner = planner
        self._width = graphs.tiers.width
        self._flight: _Flight | None = None

    @property
    def in_flight(self) -> bool:
        return self._flight is not None

    def can_go_on(self, requests: Sequence[Request]) -> bool:
        """Whether these requests can have another round: of the flight, or the first of one."""
        tier = self._uniform_tier(requests)
        if self._flight is None or tier is None:
            return tier is not None
        aboard = {request.request_id for request in self._flight.requests}
        same_size = tier.num_requests == self._flight.num_slots
        joined = any(request.request_id not in aboard for request in requests)
        return same_size and not joined and self._flight.carries_only(requests)

    def advance(self, requests: Sequence[Request]) -> tuple[list[Request], VerifiedRound]:
        """Launch the next round and read the one before: its requests and what they got."""
        # What is in flight is not known yet, but it moves nobody by more than a window.
        self._reserve(requests, 2 * self._width)
        flight = self._flight or self._take_off(requests)
        self._flight = None
        if any(request.tokens_left > 1 for request in requests):
            self._flight = self._launch(flight)
        try:
            return flight.read(requests)
        except BaseException:
            # The host stands where it stood before: it will decide that round again, the same way.
            self._flight = None
            raise

    def proceed(
        self, requests: Sequence[Request], *, has_joined: bool
    ) -> tuple[list[Request], VerifiedRound] | None:
        """Go on with the flight, or let it land; None where none of ``requests`` was aboard."""
        if not requests:
            self.forget()
            return None
        go_on = not has_joined and self.can_go_on(requests)
        flown = self.advance(requests) if go_on else self.land(requests)
        return flown if flown[0] else None

    def land(self, requests: Sequence[Request]) -> tuple[list[Request], VerifiedRound]:
        """Read the round in flight."""
        assert self._flight is not None
        flight, self._flight = self._flight, None
        return flight.read(requests)

    def forget(self) -> None:
        """Nobody is left who could use what the round in flight gives."""
        self._flight = None

    def _uniform_tier(self, requests: Sequence[Request]) -> VerifyTier | None:
        return self._graphs.tier_of(requests, None, len(requests) * self._width)

    def _take_off(self, requests: Sequence[Request]) -> _Flight:
        tier = self._uniform_tier(requests)
        assert tier is not None
        # Capturing runs the drafter on padded slots: before it begins with these.
        form = self._graphs.form_of(requests, None)
        self._graphs.at(form, tier)
        self._begin(requests)
        self._graphs.load(requests, None, [self._width] * len(requests), tier)
        num_slots, places_on_device = tier.num_requests, None
        if self._planner is not None:
            places = [request.slot for request in requests]
            places += [self._planner.padding_place] * (num_slots - len(places))
            places_on_device = torch.tensor(places, device=self._graphs.device)
        flight = _Flight(list(requests), form, num_slots, set(), set(), places_on_device)
        return self._launch(flight)

    def _launch(self, flight: _Flight) -> _Flight:
        """The same batch, one round on."""
        tiers = self._graphs.tiers.of_size(flight.num_slots)
        uniform = self._graphs.at(flight.form, tiers[-1])
        if (
            self._planner is None
            or flight.places_on_device is None
            or not uniform.round.has_confidence
        ):
            return replace(flight, launched=uniform.launch())
        places = [request.slot for request in flight.requests]
        generations = [request.generation for request in flight.requests]
        plan = self._planner.plan(places, generations, [self._width] * len(places))
        # The planner knows the tiers of other batch sizes as well.
        holding = [t for t in tiers if plan.tier is not None and t.num_rows >= plan.tier]
        captured = self._graphs.at(flight.form, [*holding, tiers[-1]][0])
        round_, everything = captured.round, flight.num_slots * self._width
        round_.inputs.budget.fill_(everything if plan.budget is None else plan.budget)
        launched = captured.launch()
        self._planner.publish(round_.schedule, flight.places_on_device, places, generations)
        return replace(flight, launched=launched)
