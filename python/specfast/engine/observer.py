"""Hands hidden states of committed rows to a drafter that reads them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from specfast.drafters.base import Drafter, TapDrafter
from specfast.drafters.taps import TapRecorder
from specfast.engine.requests import Request, RoundOutput


class Observer:
    """Shows committed rows to a :class:`TapDrafter`; for any other drafter it does nothing.

    recorder : what has to be around each forward of the target; None if nobody reads it

    Raises
    ------
    ValueError
        A target that cannot be tapped.
    """

    def __init__(self, model: PreTrainedModel, drafter: Drafter) -> None:
        self._drafter = drafter if isinstance(drafter, TapDrafter) else None
        self.recorder: TapRecorder | None = None
        if self._drafter is not None:
            self.recorder = TapRecorder(model, self._drafter.tap_layers)

    def committed(
        self, requests: Sequence[Request], outputs: Sequence[RoundOutput], taps: list[Tensor] | None
    ) -> None:
        """``taps[b]`` are those of the rows that ``requests[b]`` has just committed."""
        if self._drafter is None or taps is None:
            return
        going_on = [
            (request, rows)
            for request, output, rows in zip(requests, outputs, taps, strict=True)
            if not output.finish_reason
        ]
        if going_on:
            self._drafter.observe(*zip(*going_on, strict=True))
