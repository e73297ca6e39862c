"""A text and an acceptance that are prescribed, so that runs differ in cost alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from specfast.drafters import DeviceDrafts, DraftBatch, DraftPages, DraftRequest, DraftSlots
from specfast.engine import Engine
from specfast.records import AcceptRecord
from torch import Tensor

MAX_POSITIONS = 65536 + 64
# Larger than any logit of a random model, and exact in bf16.
CERTAIN = 1024.0


def text(vocab_size: int, device: str) -> Tensor:
    """The token at each position; int64."""
    return (torch.arange(MAX_POSITIONS, device=device) * 7919 + 13) % vocab_size


def prescribe_text(engine: Engine) -> None:
    """Let the target say what :func:`text` says, whatever it computes; one small kernel more."""
    target = engine.target
    tokens = text(target.vocab_size, str(target.device))
    forward = target.forward

    def prescribed(ids: Tensor, positions: Tensor, *layers: Any, last_only: bool = False) -> Tensor:
        logits = forward(ids, positions, *layers, last_only=last_only)
        at = positions[-1:] if last_only else positions
        following = tokens.index_select(0, at + 1)
        return logits.scatter_(1, following[:, None], CERTAIN)

    target.forward = prescribed  # type: ignore[method-assign]


class PrescribedDrafter:
    """Drafts a table of tokens; draft i is right with probability ``acceptance[i]``, if all before
    it are. One gather per round."""

    drafts_trees = False

    def __init__(self, acceptance: Sequence[float], vocab_size: int, device: str) -> None:
        gamma = len(acceptance)
        generator = torch.Generator().manual_seed(1)
        draws = torch.rand(MAX_POSITIONS, gamma, generator=generator)
        wrong = (draws >= torch.tensor(acceptance)).to(device)
        after = torch.arange(MAX_POSITIONS, device=device)[:, None] + torch.arange(
            1, gamma + 1, device=device
        )
        right = text(vocab_size, device)[after.clamp(max=MAX_POSITIONS - 1)]
        self._drafts = ((right + wrong) % vocab_size).int()

    def attach(self, pages: DraftPages) -> None:
        pass

    def begin(self, requests: Sequence[DraftRequest]) -> None:
        pass

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        drafts = self._drafts.index_select(0, slots.prefix_lens)
        slots.tokens[:, 1:].copy_(drafts[:, : slots.tokens.shape[1] - 1])
        return DeviceDrafts()

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: Tensor | None) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        lens = torch.tensor([len(request.token_ids) - 1 for request in requests])
        drafts = self._drafts[lens.to(self._drafts.device), : verify_width - 1]
        anchors = drafts.new_tensor([[request.token_ids[-1]] for request in requests])
        tokens = torch.cat([anchors, drafts], dim=1)
        return DraftBatch(tokens, [tokens.shape[1]] * len(requests))

    def release(self, request_id: int) -> None:
        pass


def expected_length(acceptance: Sequence[float]) -> float:
    """Tokens of a round, the bonus included."""
    length, survival = 1.0, 1.0
    for probability in acceptance:
        survival *= probability
        length += survival
    return length
