"""Loaded device drafters that are watched while an engine runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from capturable import only_capturable
from specfast.drafters import (
    DeviceDrafts,
    DeviceTrainedDrafter,
    DeviceTreeDrafter,
    DraftBatch,
    DraftPages,
    DraftRequest,
    DraftSlots,
    TrainedDrafter,
    TreeDrafter,
)
from specfast.drafters.paged_drafter import PagedDrafter
from specfast.records import AcceptRecord
from specfast.sampling import Proposal, RowKind, RowRecord
from torch import Tensor


@dataclass
class Drafted:
    """What was proposed for one request of one round."""

    tokens: list[int]
    parents: list[int] | None
    q: Tensor | None
    confidence: Tensor | None


@dataclass
class Journal:
    """Proposals by the request's seed and by its prefix length."""

    rounds: dict[tuple[int, int], Drafted] = field(default_factory=dict)

    def note(
        self,
        key: tuple[int, int],
        b: int,
        tokens: Tensor,
        length: int,
        proposal: Proposal | None,
        confidence: Tensor | None,
        parents: Tensor | None,
    ) -> None:
        """``tokens`` [B, N], of which row b has ``length`` columns, the anchor included."""
        drafts = tokens[b, 1:length].tolist()
        if not drafts:
            return
        q = None if proposal is None else _rows_of_q(proposal, b, tokens.shape[1])[: len(drafts)]
        sure = None if confidence is None else confidence[b, : len(drafts)].clone()
        nodes = None if parents is None else parents[b, 1:length].tolist()
        self.rounds[key] = Drafted(drafts, nodes, q, sure)

    def assert_equals(self, other: Journal) -> None:
        assert self.rounds.keys() == other.rounds.keys()
        for key, own in self.rounds.items():
            their = other.rounds[key]
            assert (own.tokens, own.parents) == (their.tokens, their.parents), key
            close = {"rtol": 2e-3, "atol": 5e-4}
            torch.testing.assert_close(own.confidence, their.confidence, **close)
            if own.q is not None and their.q is not None:
                torch.testing.assert_close(own.q, their.q, **close)
                continue
            # Beside others, a greedy request has a q: all on its draft.
            for q in (own.q, their.q):
                assert q is None or set(q[:, -1].flatten().tolist()) == {0.0, 1.0}


def _rows_of_q(proposal: Proposal, b: int, width: int) -> Tensor:
    """[rows, ids], with the ids themselves beside sparse ones."""
    if proposal.sparse_values is not None:
        assert proposal.sparse_ids is not None
        table = torch.stack([proposal.sparse_ids.float(), proposal.sparse_values])
    else:
        assert proposal.logits is not None
        assert proposal.records is not None
        table = _probabilities(proposal.logits, proposal.records)[None]
    if proposal.row_of_node is not None:
        rows = proposal.row_of_node[b, : width - 1]
        of_rows = table[:, rows.clamp(min=0)].transpose(0, 1)
        return torch.where((rows < 0)[:, None, None], 0.0, of_rows)
    rows = torch.arange(b * (width - 1), (b + 1) * (width - 1))
    return table[:, rows].transpose(0, 1)


def _probabilities(rows: Tensor, records: RowRecord) -> Tensor:
    """float32 [R, K]: what ``rows`` [R, K] and their records say of each column."""
    values = rows.double()
    ids = torch.arange(rows.shape[1], device=rows.device)
    cut, cut_id = records.cut_value.double()[:, None], records.cut_id[:, None]
    kept = (values > cut) | ((values == cut) & (ids <= cut_id))
    exponents = (values - records.max.double()[:, None]) * records.scale.double()[:, None]
    grid = torch.where(kept, (exponents.exp() * 2.0**40).floor(), 0.0)
    ordinary = (grid / records.mass.double()[:, None]).float()
    kind = records.kind[:, None]
    point = (ids == records.argmax[:, None]).float()
    shares = torch.where(kind == RowKind.POINT_MASS, point, ordinary)
    return torch.where(kind == RowKind.UNUSABLE, 0.0, shares)


class _Noted(TrainedDrafter):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.journal = Journal()

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        batch = super().propose(requests, verify_width)
        for b, (request, length) in enumerate(zip(requests, batch.verify_lens, strict=True)):
            key = (request.seed, len(request.token_ids) - 1)
            self.journal.note(
                key, b, batch.tokens, length, batch.proposal, batch.confidence, batch.parents
            )
        return batch


class NotedHost(_Noted):
    """Notes its proposals, on the host."""


class NotedHostTrees(_Noted, TreeDrafter):
    """The same of trees."""


class _Watched(PagedDrafter):
    """Runs its steps as in a capture, over memory that holds NaN wherever nothing is committed.

    Nothing may be written but rows of requests that are there: committed ones in their pages,
    drafted ones behind them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.journal = Journal()
        self.num_rounds = 0
        self.change: Callable[[DraftSlots], None] = lambda slots: None

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        there = (slots.verify_lens > 0) & (slots.tokens[:, 0] >= 0)
        self._poison(self._committed(slots, there))
        self._poison_states(slots.page_table_rows[there])
        before = self._storage()
        with only_capturable():
            drafts = super().draft(slots)
        self._check_writes(before, self._scratch(slots, there))
        lens, seeds = slots.prefix_lens.tolist(), slots.sampling.seeds.tolist()
        for b in there.nonzero().flatten().tolist():
            length = int(slots.verify_lens[b])
            key = (seeds[b], lens[b])
            self.journal.note(
                key, b, slots.tokens, length, drafts.proposal, drafts.confidence, slots.parents
            )
        self.change(slots)
        self.num_rounds += 1
        return drafts

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: Tensor | None) -> None:
        before, states = self._storage(), self._states()
        with only_capturable():
            super().committed(slots, record, taps)
        others = torch.ones(len(states), dtype=torch.bool)
        others[slots.page_table_rows[record.commit_lens > 0]] = False
        torch.testing.assert_close(
            self._states()[others], states[others], rtol=0, atol=0, equal_nan=True
        )
        new = self._positions(slots, slots.prefix_lens, record.commit_lens)
        self._check_writes(before, new)

    @property
    def _engine_pages(self) -> DraftPages:
        return self._chains.rows.pages  # type: ignore[union-attr]

    def _layers(self) -> list[Tensor]:
        rows = self._chains.rows  # type: ignore[union-attr]
        return [*rows.keys, *rows.values]

    def _storage(self) -> list[Tensor]:
        return [layer.clone() for layer in self._layers()]

    def _states(self) -> Tensor:
        """Of EAGLE: the hidden state of each request's last pair."""
        last = getattr(self._chains, "last", None)
        return torch.zeros(len(self._engine_pages.table)) if last is None else last[:-1].clone()

    def _positions(self, slots: DraftSlots, first: Tensor, counts: Tensor) -> Tensor:
        """bool [slots]: positions ``first`` [B] and on, ``counts`` [B] of each, in their pages."""
        pages, size = self._engine_pages.table, self._engine_pages.page_size
        steps = torch.arange(pages.shape[1] * size)
        places = pages.repeat_interleave(size, 1) * size + steps % size
        first, counts = first[:, None], counts[:, None]
        wanted = (first <= steps) & (steps < first + counts)
        mask = torch.zeros(len(self._layers()[0]), dtype=torch.bool)
        mask[places[slots.page_table_rows][wanted]] = True
        return mask

    def _committed(self, slots: DraftSlots, there: Tensor) -> Tensor:
        return self._positions(slots, 0 * slots.prefix_lens, slots.prefix_lens * there)

    def _scratch(self, slots: DraftSlots, there: Tensor) -> Tensor:
        """What is behind the committed positions in the last page, and the scratch pages."""
        size = self._engine_pages.page_size
        mask = self._positions(slots, slots.prefix_lens, -slots.prefix_lens % size * there)
        rows = self._chains.rows  # type: ignore[union-attr]
        for row in slots.page_table_rows[there].tolist():
            first = (rows.pages.pool_size + row * rows.scratch_pages) * size
            mask[first : first + rows.scratch_pages * size] = True
        return mask

    def _poison(self, kept: Tensor) -> None:
        for layer in self._layers():
            layer[~kept] = torch.nan

    def _poison_states(self, kept: Tensor) -> None:
        """Of EAGLE: the hidden states of requests that are not there."""
        last = getattr(self._chains, "last", None)
        if last is not None:
            others = torch.ones(len(last), dtype=torch.bool)
            others[kept] = False
            last[others] = torch.nan

    def _check_writes(self, before: list[Tensor], allowed: Tensor) -> None:
        for old, new in zip(before, self._layers(), strict=True):
            same = (old == new) | (old.isnan() & new.isnan())
            assert bool(same.flatten(1).all(1)[~allowed].all())


class Watched(_Watched, DeviceTrainedDrafter):
    """Of chains."""


class WatchedTrees(_Watched, DeviceTreeDrafter):
    """Of trees."""
