"""A loaded drafter at work in an engine: chains of argmax drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specfast.drafters.base import DraftBatch, DraftRequest
from specfast.drafters.checkpoint.weights import EMBEDDING
from specfast.drafters.dflash import BlockChain, DFlashModel
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_chain import EagleChain


class TrainedDrafter:
    """Drafts with EAGLE, EAGLE-3, DFlash, DSpark or DFlash-2, one request after the other.

    Drafts are the argmax at each step, so they come without a proposal and are verified
    target-only: lossless at any temperature. Numbers that are not finite change drafts, and no
    output.

    Parameters
    ----------
    model : EagleModel or DFlashModel
        From ``load_drafter``, for the engine's target.
    num_drafts : int
        Drafts per request and round, further limited by the block, by the engine's
        ``verify_width`` and by what the request may still emit.

    Raises
    ------
    ValueError
        ``num_drafts`` below 1.
    """

    def __init__(self, model: EagleModel | DFlashModel, num_drafts: int = 7) -> None:
        if num_drafts < 1:
            raise ValueError(f"TrainedDrafter: expected num_drafts >= 1, got {num_drafts}")
        self.model = model
        self.num_drafts = num_drafts
        self._chains: dict[int, EagleChain | BlockChain] = {}

    @property
    def tap_layers(self) -> tuple[int, ...] | None:
        return None if self.model.spec.taps is None else self.model.spec.taps.layers

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        dtype = self.model.weights[EMBEDDING].dtype
        for request, rows in zip(requests, taps, strict=True):
            chain = self._chains.get(request.request_id)
            if chain is None:
                chain = self._chains[request.request_id] = self.new_chain()
            emitted = torch.tensor(request.token_ids[-len(rows) :], device=rows.device)
            chain.extend(emitted, rows.to(dtype))

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        limit = min(self.num_drafts, verify_width - 1)
        return DraftBatch.from_lists(requests, [self._draft(r, limit) for r in requests])

    def release(self, request_id: int) -> None:
        self._chains.pop(request_id, None)

    def new_chain(self) -> EagleChain | BlockChain:
        """The state of a request before its prompt."""
        if isinstance(self.model, DFlashModel):
            return BlockChain(self.model)
        return EagleChain(self.model)

    def _draft(self, request: DraftRequest, limit: int) -> list[int]:
        # The bonus comes on top of the drafts.
        depth = min(limit, request.tokens_left - 1)
        if depth < 1:
            return []
        tokens: list[int] = self._chains[request.request_id].draft(depth).tokens.tolist()
        return tokens
