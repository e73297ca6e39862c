"""What drafters on the device have in common, whatever they draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from specfast.drafters.base import (
    DeviceDrafts,
    DraftBatch,
    DraftPages,
    DraftRequest,
    DraftSlots,
)
from specfast.drafters.checkpoint.weights import EMBEDDING
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.loader import DrafterModel
from specfast.drafters.sampling import sampling_rules
from specfast.records import AcceptRecord
from specfast.sampling import SamplingRules
from specfast.status import Status


class DeviceChains(Protocol):
    """What a family keeps of all requests of an engine; nothing is read on the host.

    ``page_table_rows`` and ``prefix_lens``, int32 [B], are those of ``DraftSlots``.
    """

    def extend(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        counts: Tensor,
        next_tokens: Tensor,
        taps: Tensor,
    ) -> None:
        """Commit the first ``counts`` int32 [B] of n rows each: ``taps`` [B, n, width].

        They emitted ``next_tokens`` int64 [B, n].
        """

    def draft(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        live: Tensor,
        anchors: Tensor,
        num_drafts: int,
        sampler: DraftSampler,
    ) -> ChainDrafts:
        """At most ``num_drafts`` after each of ``anchors`` int64 [B].

        Where not ``live`` bool [B] the anchor is -1: anything is drafted, and no page is touched.
        """


class PagedDrafter:
    """A loaded drafter that keeps its contexts in the engine's pages: a :class:`DeviceDrafter`.

    Left to those that derive from it: ``drafts_trees``, :meth:`attach`, which sets ``_chains``, and
    :meth:`draft`, whose step rounds that run eagerly take as well.

    Parameters
    ----------
    model : EagleModel or DFlashModel
    num_drafts : int
        Of a request and round at most.
    depth : int
        Those of the longest path; fewer than ``num_drafts`` in a tree.
    """

    drafts_trees: bool

    def __init__(self, model: DrafterModel, num_drafts: int, depth: int) -> None:
        self.model = model
        self.num_drafts = num_drafts
        self._depth = depth
        self._chains: DeviceChains | None = None

    @property
    def tap_layers(self) -> tuple[int, ...] | None:
        return None if self.model.spec.taps is None else self.model.spec.taps.layers

    def attach(self, pages: DraftPages) -> None:
        raise NotImplementedError

    def begin(self, requests: Sequence[DraftRequest]) -> None:
        """Nothing: all there is to know of a request is in its pages."""

    def release(self, request_id: int) -> None:
        """Nothing: who gets its pages writes them before reading them."""

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        raise NotImplementedError

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: Tensor | None) -> None:
        if taps is None:
            raise ValueError(f"{type(self).__name__}.committed: expected taps, got none")
        path = slice(1 + self._depth)
        self._extend(
            slots.page_table_rows,
            slots.prefix_lens,
            record.commit_lens,
            record.out_tokens[:, path].clamp(min=0).long(),
            taps[:, path],
        )

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        device = self.model.device
        numbers, emitted = [], []
        for request, rows in zip(requests, taps, strict=True):
            count = len(rows)
            numbers.append((request.slot, len(request.token_ids) - 1 - count, count))
            emitted.append(torch.tensor(request.token_ids[-count:]))
        on_device = torch.tensor(numbers, dtype=torch.int32).T.contiguous().to(device)
        page_table_rows, prefix_lens, counts = on_device
        next_tokens = pad_sequence(emitted, batch_first=True).to(device)
        padded_taps = pad_sequence(list(taps), batch_first=True)
        self._extend(page_table_rows, prefix_lens, counts, next_tokens, padded_taps)

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        width = min(1 + self.num_drafts, verify_width)
        # The bonus comes on top of the drafts.
        if width == 1 or all(request.tokens_left <= 1 for request in requests):
            return DraftBatch.from_lists(requests, [[] for _ in requests])
        slots = self._slots_of(requests, width)
        drafts = self.draft(slots)
        status = drafts.status.tolist() if drafts.status is not None else []
        return DraftBatch(
            slots.tokens,
            slots.verify_lens.tolist(),
            slots.parents,
            proposal=drafts.proposal,
            confidence=drafts.confidence,
            confidence_form=drafts.confidence_form,
            temperatures=drafts.temperatures,
            status=status if any(status) else None,
        )

    @property
    def _of_engine(self) -> DeviceChains:
        if self._chains is None:
            raise ValueError(
                f"{type(self).__name__}: expected attach() to be called before all else"
            )
        return self._chains

    def _extend(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        counts: Tensor,
        next_tokens: Tensor,
        taps: Tensor,
    ) -> None:
        taps = taps.to(self.model.weights[EMBEDDING].dtype)
        self._of_engine.extend(page_table_rows, prefix_lens, counts, next_tokens, taps)

    def _slots_of(self, requests: Sequence[DraftRequest], width: int) -> DraftSlots:
        device = self.model.device
        numbers = [
            [request.token_ids[-1] for request in requests],
            [width] * len(requests),
            [request.tokens_left for request in requests],
            [len(request.token_ids) - 1 for request in requests],
            [request.slot for request in requests],
        ]
        on_device = torch.tensor(numbers, dtype=torch.int32).to(device)
        anchors, verify_lens, tokens_left, prefix_lens, rows = on_device
        tokens = functional.pad(anchors[:, None], (0, width - 1), value=-1)
        return DraftSlots(
            tokens=tokens,
            verify_lens=verify_lens,
            tokens_left=tokens_left,
            prefix_lens=prefix_lens,
            page_table_rows=rows,
            sampling=sampling_rules(requests, device),
            is_sampled=any(not request.params.is_greedy for request in requests),
            parents=torch.full_like(tokens, -1) if self.drafts_trees else None,
        )


def is_live(slots: DraftSlots) -> Tensor:
    """bool [B]: whether there is a request to draft for."""
    return (slots.verify_lens > 0) & (slots.tokens[:, 0] >= 0)


def rules_of(slots: DraftSlots) -> SamplingRules:
    """How drafts are drawn; without samples, greedily, whatever the parameters are."""
    rules = slots.sampling
    if slots.is_sampled:
        return rules
    return SamplingRules(torch.zeros_like(rules.temperature), rules.seeds)


def padded(values: Tensor | None, count: int, value: float) -> Tensor | None:
    """``values`` [..., m] as [..., count]."""
    if values is None:
        return None
    return functional.pad(values[..., :count], (0, max(count - values.shape[-1], 0)), value=value)


def flagged(is_cut: Tensor) -> Tensor:
    """int32 [B]: status of requests whose drafts end before they should."""
    return is_cut.int() * int(Status.NAN_DRAFTS)
