"""Hands hidden states of committed rows to a drafter that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specfast.drafters.base import Drafter, TapDrafter
from specfast.drafters.taps import TapRecorder
from specfast.engine.requests import Request, RoundOutput
from specfast.records import AcceptRecord


class Observer:
    """Records the target's forwards for a :class:`TapDrafter`; for any other it does nothing.

    Raises
    ------
    ValueError
        A target that cannot be tapped.
    """

    def __init__(self, model: PreTrainedModel, drafter: Drafter) -> None:
        self._drafter = drafter if isinstance(drafter, TapDrafter) else None
        self._recorder = None
        if self._drafter is not None:
            self._recorder = TapRecorder(model, self._drafter.tap_layers)

    def recording(self) -> AbstractContextManager[object]:
        """Around a forward of the target."""
        return nullcontext() if self._recorder is None else self._recorder

    def prefilled(self, request: Request, output: RoundOutput) -> None:
        """All rows of the last forward are the prompt of ``request``."""
        if self._recorder is not None:
            self._observe([request], [output], [self._recorder.taps()[0]])

    def committed(
        self, requests: Sequence[Request], outputs: Sequence[RoundOutput], record: AcceptRecord
    ) -> None:
        """Of the last forward, the rows that ``record``, on the host, accepted."""
        if self._recorder is None:
            return
        taps = self._recorder.taps()[0]
        accepted = record.accept_index.to(taps.device, torch.int64)
        counts = record.commit_lens.tolist()
        rows = [taps[index[:n]] for index, n in zip(accepted, counts, strict=True)]
        self._observe(requests, outputs, rows)

    def _observe(
        self, requests: Sequence[Request], outputs: Sequence[RoundOutput], rows: list[Tensor]
    ) -> None:
        going_on = [
            (request, taps)
            for request, output, taps in zip(requests, outputs, rows, strict=True)
            if not output.finish_reason
        ]
        if self._drafter is not None and going_on:
            self._drafter.observe(*zip(*going_on, strict=True))
