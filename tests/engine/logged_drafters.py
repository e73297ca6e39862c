"""Loaded device drafters that note on the device what they draft, so that a graph notes it, too."""

from __future__ import annotations

from typing import Any

import torch
from specfast.drafters import (
    DeviceDrafts,
    DeviceTrainedDrafter,
    DeviceTreeDrafter,
    DraftPages,
    DraftSlots,
)
from specfast.drafters.paged_drafter import PagedDrafter
from torch import Tensor

_MOST_ROUNDS = 512

# By the request's seed and its prefix length: drafts, and, in trees, the node that each follows.
Drafted = dict[tuple[int, int], tuple[list[int], list[int]]]


class DraftLog:
    """Drafts of rounds of one batch size and width; the oldest are written over."""

    def __init__(self, num_slots: int, width: int, device: torch.device) -> None:
        columns = 3 + 2 * (width - 1)
        self._rounds = torch.zeros(
            _MOST_ROUNDS, num_slots, columns, dtype=torch.int64, device=device
        )
        self._count = torch.zeros(1, dtype=torch.int64, device=device)

    def note(self, slots: DraftSlots) -> None:
        parents = slots.tokens if slots.parents is None else slots.parents
        lens = torch.where(slots.tokens[:, 0] >= 0, slots.verify_lens, 0)
        head = torch.stack([slots.sampling.seeds, slots.prefix_lens.long(), lens.long()], 1)
        rows = torch.cat([head, slots.tokens[:, 1:].long(), parents[:, 1:].long()], 1)
        self._rounds.index_copy_(0, self._count % _MOST_ROUNDS, rows[None])
        self._count += 1

    def read(self) -> Drafted:
        drafted: Drafted = {}
        for seed, prefix_len, rows, *rest in self._rounds.flatten(0, 1).tolist():
            if rows > 1:
                width = len(rest) // 2
                key = (seed, prefix_len)
                drafted[key] = (rest[: rows - 1], rest[width : width + rows - 1])
        return drafted


class _Logged(PagedDrafter):
    """Notes its drafts; then hides true tokens before them, where ``texts`` holds some.

    texts : [n, T]    text of the request with seed i
    """

    def __init__(self, *arguments: Any, texts: Tensor | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.texts = texts
        self.log: DraftLog | None = None

    def attach(self, pages: DraftPages) -> None:
        super().attach(pages)
        self.log = None

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        drafts = super().draft(slots)
        if self.log is None:  # in a run before a capture
            self.log = DraftLog(*slots.tokens.shape, slots.tokens.device)
        self.log.note(slots)
        if self.texts is not None:
            steps = torch.arange(1, slots.tokens.shape[1], device=self.texts.device)
            at = slots.prefix_lens[:, None] + steps
            text = self.texts[slots.sampling.seeds.clamp(0, len(self.texts) - 1)]
            true = text.gather(1, at.clamp(max=text.shape[1] - 1))
            num_known = (slots.prefix_lens + slots.page_table_rows) % slots.tokens.shape[1]
            known = steps <= num_known[:, None]
            slots.tokens[:, 1:] = torch.where(known, true, slots.tokens[:, 1:])
        return drafts


class Logged(_Logged, DeviceTrainedDrafter):
    """Of chains."""


class LoggedTrees(_Logged, DeviceTreeDrafter):
    """Of trees."""
