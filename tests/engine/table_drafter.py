"""A drafter that works on the device and knows the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from engine.drafters import OracleDrafter
from engine.models import CONTEXT
from specfast.drafters import DeviceDrafts, DraftPages, DraftRequest, DraftSlots
from specfast.records import AcceptRecord

WIDTH = 5


class TableDrafter(OracleDrafter):
    """Drafts what stands in a table on the device; every third position is wrong there.

    With ``sure``, it knows which, and says so.
    """

    drafts_trees = False

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        num_slots: int,
        device: str,
        sure: float | None = None,
    ) -> None:
        super().__init__(texts)
        self._sure = sure
        size = CONTEXT + WIDTH
        self._table = torch.zeros(num_slots, size, dtype=torch.int32, device=device)
        self.begun: list[list[int]] = []

    def know(self, text: list[int]) -> None:
        self._texts.append(text)

    def attach(self, pages: DraftPages) -> None:
        pass

    def begin(self, requests: Sequence[DraftRequest]) -> None:
        self.begun.append([request.request_id for request in requests])
        for request in requests:
            prompt = request.token_ids
            (text,) = [t for t in self._texts if t[: len(prompt)] == prompt[: len(t)]]
            row = torch.tensor(text, dtype=torch.int32)
            row[::3] = (row[::3] + 1) % 7
            self._table[request.slot, : len(row)] = row.to(self._table.device)

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        steps = torch.arange(1, slots.tokens.shape[1], device=slots.tokens.device)
        at = (slots.prefix_lens[:, None] + steps).clamp(max=self._table.shape[1] - 1)
        rows = self._table.index_select(0, slots.page_table_rows)
        slots.tokens[:, 1:].copy_(rows.gather(1, at))
        if self._sure is None:
            return DeviceDrafts()
        right = (at % 3 != 0).float() * self._sure
        return DeviceDrafts(confidence=right.cumprod(1) + 0.0, confidence_form="survival")

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: object) -> None:
        pass


def oracle(
    prompts: list[list[int]], plain: list[list[int]], device: str, sure: float | None = None
) -> TableDrafter:
    return TableDrafter([p + t for p, t in zip(prompts, plain, strict=True)], 4, device, sure)
