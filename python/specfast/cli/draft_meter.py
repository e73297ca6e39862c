"""Stands between an engine and its drafter: how long drafts take, how deep they go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from specfast.drafters import DraftBatch, Drafter, DraftRequest, TapDrafter


class DraftMeter:
    """Drafts as ``drafter`` does.

    ``seconds`` is the time that rounds spent in it, work on the device included; what a drafter
    makes of a prompt is not, since a prefill is no round. Set it to 0 to start again.
    """

    def __init__(self, drafter: Drafter, device: torch.device) -> None:
        self.seconds = 0.0
        self._drafter = drafter
        self._device = device
        self._node_depths: dict[int, list[int]] = {}
        self._survivals: dict[int, list[float]] = {}
        self._confidences: dict[int, list[float]] = {}

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        with self._timed():
            draft = self._drafter.propose(requests, verify_width)
        ids = [request.request_id for request in requests]
        self._node_depths = dict(zip(ids, node_depths(draft), strict=True))
        # Nodes of a tree are no positions.
        survival = draft.survival() if draft.parents is None else None
        self._survivals, self._confidences = {}, {}
        if survival is not None and draft.confidence is not None:
            self._survivals = dict(zip(ids, survival.tolist(), strict=True))
            self._confidences = dict(zip(ids, draft.confidence.tolist(), strict=True))
        return draft

    def release(self, request_id: int) -> None:
        self._drafter.release(request_id)

    def depth(self, request_id: int, num_proposed: int) -> int:
        """Drafts on the longest path among the first ``num_proposed`` of the last round."""
        if num_proposed == 0:
            return 0
        return max(self._node_depths[request_id][1 : 1 + num_proposed])

    def survival(self, request_id: int, num_proposed: int) -> list[float]:
        """Of the first ``num_proposed`` drafts of the last round; none without confidences."""
        return self._survivals.get(request_id, [])[:num_proposed]

    def confidence(self, request_id: int, num_proposed: int) -> list[float]:
        """The same as the drafter gave them, which is not a probability in every form."""
        return self._confidences.get(request_id, [])[:num_proposed]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._wait()
        started = time.perf_counter()
        yield
        self._wait()
        self.seconds += time.perf_counter() - started

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class TapDraftMeter(DraftMeter):
    """The same for a drafter that reads hidden states of the target."""

    def __init__(self, drafter: TapDrafter, device: torch.device) -> None:
        super().__init__(drafter, device)
        self._tap_drafter = drafter

    @property
    def tap_layers(self) -> tuple[int, ...] | None:
        return self._tap_drafter.tap_layers

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        before = self.seconds
        with self._timed():
            self._tap_drafter.observe(requests, taps)
        # A prompt of n tokens comes alone, as n rows, when one more token is known.
        if len(requests[0].token_ids) == len(taps[0]) + 1:
            self.seconds = before


def metered(drafter: Drafter, device: torch.device) -> DraftMeter:
    """The meter that an engine takes for such a drafter."""
    if isinstance(drafter, TapDrafter):
        return TapDraftMeter(drafter, device)
    return DraftMeter(drafter, device)


def node_depths(draft: DraftBatch) -> list[list[int]]:
    """Of every node of each request, the anchor first; 0 where no path leads from it."""
    batch_size, width = draft.tokens.shape
    if draft.parents is None:
        return [list(range(width))] * batch_size
    return [_depths_below(parents) for parents in draft.parents.tolist()]


def _depths_below(parents: list[int]) -> list[int]:
    depths = [0]
    for node, parent in enumerate(parents[1:], start=1):
        attached = 0 <= parent < node and (parent == 0 or depths[parent] > 0)
        depths.append(depths[parent] + 1 if attached else 0)
    return depths
