"""A text and an acceptance that are prescribed, so that runs differ in cost alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from specfast.drafters import (
    DeviceDrafter,
    DeviceDrafts,
    DeviceTrainedDrafter,
    DraftBatch,
    DraftPages,
    DraftRequest,
    DraftSlots,
)
from specfast.drafters.loader import DrafterModel
from specfast.engine import Engine
from specfast.records import AcceptRecord
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.engine.drafter_shapes import DRAFTERS, random_drafter
from benchmarks.engine.shapes import NUM_POSITIONS

MAX_POSITIONS = NUM_POSITIONS + 64
# Larger than any logit of a random model, and exact in bf16.
CERTAIN = 1024.0


def text(vocab_size: int, device: torch.device) -> Tensor:
    """The token at each position; int64."""
    return (torch.arange(MAX_POSITIONS, device=device) * 7919 + 13) % vocab_size


def prescribe_text(engine: Engine) -> None:
    """Let the target say what :func:`text` says, whatever it computes.

    That is one small kernel more between the target's last product and accept, and one before.
    """
    target = engine.target
    following = text(target.vocab_size, target.device)[1:].contiguous()
    forward = target.forward

    def prescribed(ids: Tensor, positions: Tensor, *layers: Any, last_only: bool = False) -> Tensor:
        certain = following.index_select(0, positions[-1:] if last_only else positions)
        logits = forward(ids, positions, *layers, last_only=last_only)
        return logits.scatter_(1, certain[:, None], CERTAIN)

    target.forward = prescribed  # type: ignore[method-assign]


class DraftTable:
    """Tokens to draft at each position of each slot.

    Draft i is right with probability ``acceptance[i]``, if all before it are.
    """

    def __init__(
        self, acceptance: Sequence[float], vocab_size: int, num_slots: int, device: torch.device
    ) -> None:
        gamma = len(acceptance)
        generator = torch.Generator(device).manual_seed(1)
        draws = torch.rand(num_slots, MAX_POSITIONS, gamma, generator=generator, device=device)
        wrong = draws >= torch.tensor(acceptance, device=device)
        after = torch.arange(MAX_POSITIONS, device=device)[:, None] + torch.arange(
            1, gamma + 1, device=device
        )
        right = text(vocab_size, device)[after.clamp(max=MAX_POSITIONS - 1)].int()
        self._drafts = ((right + wrong) % vocab_size).flatten(0, 1)

    @property
    def device(self) -> torch.device:
        return self._drafts.device

    @property
    def num_drafts(self) -> int:
        return self._drafts.shape[1]

    def at(self, slots: Tensor, prefix_lens: Tensor) -> Tensor:
        """int32 [B, num_drafts]."""
        return self._drafts.index_select(0, torch.add(prefix_lens, slots, alpha=MAX_POSITIONS))

    def write(self, slots: DraftSlots) -> None:
        drafts = self.at(slots.page_table_rows, slots.prefix_lens)
        slots.tokens[:, 1:].copy_(drafts[:, : slots.tokens.shape[1] - 1])


class PrescribedDrafter:
    """Drafts a table of tokens: one gather per round."""

    drafts_trees = False

    def __init__(self, table: DraftTable) -> None:
        self._table = table

    def attach(self, pages: DraftPages) -> None:
        pass

    def begin(self, requests: Sequence[DraftRequest]) -> None:
        pass

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        self._table.write(slots)
        return DeviceDrafts()

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: Tensor | None) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        places = [(request.slot, len(request.token_ids) - 1) for request in requests]
        slots, lens = torch.tensor(places).T.to(self._table.device)
        drafts = self._table.at(slots, lens)[:, : verify_width - 1]
        anchors = drafts.new_tensor([[request.token_ids[-1]] for request in requests])
        tokens = torch.cat([anchors, drafts], dim=1)
        return DraftBatch(tokens, [tokens.shape[1]] * len(requests))

    def release(self, request_id: int) -> None:
        pass


class PaidDrafter(DeviceTrainedDrafter):
    """Drafts as a drafter of a family does, then takes the table's: what they cost is real."""

    def __init__(self, model: DrafterModel, table: DraftTable) -> None:
        super().__init__(model, table.num_drafts)
        self._table = table

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        verify_lens = slots.verify_lens.clone()
        drafts = super().draft(slots)
        self._table.write(slots)
        slots.verify_lens.copy_(verify_lens)
        return DeviceDrafts(confidence=drafts.confidence, confidence_form=drafts.confidence_form)


def prescribed_drafter(
    name: str, acceptance: Sequence[float], model: PreTrainedModel, num_slots: int
) -> DeviceDrafter:
    """ "table", or a family of ``drafter_shapes``."""
    table = DraftTable(acceptance, model.config.vocab_size, num_slots, model.device)
    if name not in DRAFTERS:
        return PrescribedDrafter(table)
    return PaidDrafter(random_drafter(name, model, len(acceptance)), table)


def expected_length(acceptance: Sequence[float]) -> float:
    """Tokens of a round, the bonus included."""
    length, survival = 1.0, 1.0
    for probability in acceptance:
        survival *= probability
        length += survival
    return length
