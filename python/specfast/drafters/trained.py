"""A loaded drafter at work in an engine: chains, drawn or argmax."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from specfast.drafters.base import DraftBatch, DraftRequest
from specfast.drafters.checkpoint.weights import EMBEDDING
from specfast.drafters.dflash import (
    BlockChain,
    DFlashModel,
    draft_block_chains,
    extend_block_chains,
)
from specfast.drafters.draws import ChainDrafts, DraftSampler, proposal_of
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_chain import EagleChain, draft_eagle_chains, extend_eagle_chains
from specfast.ops.plan import is_temperature
from specfast.status import Status

Chain = EagleChain | BlockChain


class TrainedDrafter:
    """Drafts with EAGLE, EAGLE-3, DFlash, DSpark or DFlash-2; a batch at a time.

    Where a request samples, drafts are drawn with its temperature, its filters and its own random
    numbers, and come with the proposal that they were drawn from; greedy requests beside it draft
    the argmax. A batch of greedy requests has no proposal.

    Parameters
    ----------
    model : EagleModel or DFlashModel
        From ``load_drafter``, for the engine's target.
    num_drafts : int
        Drafts per request and round, further limited by the block, by the engine's
        ``verify_width`` and by what the request may still emit.
    temperatures : floats, optional
        Of DSpark's confidences, one per draft of a block (sequential temperature scaling, see
        ``planner.read_temperatures``). Absent: 1.

    Raises
    ------
    ValueError
        ``num_drafts`` below 1; temperatures of another number, not above 0, or without confidences.

    Notes
    -----
    Where numbers of the drafter are not finite, its drafts end before them and the round is flagged
    ``NAN_DRAFTS``.
    """

    def __init__(
        self,
        model: EagleModel | DFlashModel,
        num_drafts: int = 7,
        *,
        temperatures: Sequence[float] | None = None,
    ) -> None:
        check_options(type(self).__name__, model, num_drafts, temperatures)
        self.model = model
        self.num_drafts = num_drafts
        self.temperatures = temperatures
        self._chains: dict[int, Chain] = {}

    @property
    def tap_layers(self) -> tuple[int, ...] | None:
        return None if self.model.spec.taps is None else self.model.spec.taps.layers

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        dtype = self.model.weights[EMBEDDING].dtype
        # Requests with equally many rows go together.
        groups: dict[int, list[tuple[DraftRequest, Tensor]]] = defaultdict(list)
        for request, rows in zip(requests, taps, strict=True):
            groups[len(rows)].append((request, rows))
        for count, group in groups.items():
            chains = [self._chain(request) for request, _ in group]
            emitted = [request.token_ids[-count:] for request, _ in group]
            next_tokens = torch.tensor(emitted, device=group[0][1].device)
            extend_chains(chains, next_tokens, torch.stack([rows for _, rows in group]).to(dtype))

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        depths = draft_depths(requests, min(self.num_drafts, verify_width - 1))
        depth = max(depths, default=0)
        if depth == 0:
            return DraftBatch.from_lists(requests, [[] for _ in requests])
        sampler = DraftSampler.of(requests, self.model.device)
        chains = [self._chains[request.request_id] for request in requests]
        drafts = draft_chains(chains, depth, sampler)
        usable = sampler.num_usable().tolist()
        wanted = [min(depth, drafts.tokens.shape[1]) for depth in depths]
        sampled = any(not request.params.is_greedy for request in requests)
        d2t = self.model.weights.get("d2t")
        return DraftBatch(
            torch.cat([self._anchors(requests), drafts.tokens], 1).int(),
            [1 + min(pair) for pair in zip(wanted, usable, strict=True)],
            proposal=proposal_of(drafts, sampler, d2t) if sampled else None,
            confidence=drafts.confidence,
            confidence_form="logits",
            temperatures=self._temperatures_of(drafts),
            status=draft_status(wanted, usable),
        )

    def release(self, request_id: int) -> None:
        self._chains.pop(request_id, None)

    def new_chain(self) -> Chain:
        """The state of a request before its prompt."""
        if isinstance(self.model, DFlashModel):
            return BlockChain(self.model)
        return EagleChain(self.model)

    def _anchors(self, requests: Sequence[DraftRequest]) -> Tensor:
        """int64 [B, 1]."""
        return torch.tensor([[r.token_ids[-1]] for r in requests], device=self.model.device)

    def _temperatures_of(self, drafts: ChainDrafts) -> Tensor | None:
        if self.temperatures is None or drafts.confidence is None:
            return None
        count = drafts.tokens.shape[1]
        device = self.model.device
        return torch.tensor(self.temperatures[:count], dtype=torch.float32, device=device)

    def _chain(self, request: DraftRequest) -> Chain:
        return self._chains.setdefault(request.request_id, self.new_chain())


def check_options(
    name: str,
    model: EagleModel | DFlashModel,
    num_drafts: int,
    temperatures: Sequence[float] | None,
) -> None:
    """Raises ValueError as :class:`TrainedDrafter` does; ``name`` is the class that asks."""
    if num_drafts < 1:
        raise ValueError(f"{name}: expected num_drafts >= 1, got {num_drafts}")
    if temperatures is None:
        return
    block = model.spec.block if model.spec.confidence is not None else None
    if block is None:
        raise ValueError(f"{name}: expected no temperatures: it has no confidences")
    if len(temperatures) != block.num_proposals:
        raise ValueError(
            f"{name}: expected temperatures of {block.num_proposals} drafts, "
            f"got {len(temperatures)}"
        )
    for value in temperatures:
        if not is_temperature(value):
            raise ValueError(
                f"{name}: expected temperatures above 0 and finite as float32, got {value}"
            )


def draft_depths(requests: Sequence[DraftRequest], limit: int) -> list[int]:
    """Drafts that each request has a use for: the bonus comes on top of them."""
    return [max(0, min(limit, request.tokens_left - 1)) for request in requests]


def draft_status(wanted: Sequence[int], usable: Sequence[int]) -> list[int] | None:
    """Flags requests whose drafts end before they should; None where there are none."""
    flags = [
        int(Status.NAN_DRAFTS) if n < depth else 0 for depth, n in zip(wanted, usable, strict=True)
    ]
    return flags if any(flags) else None


def extend_chains(chains: Sequence[Chain], next_tokens: Tensor, taps: Tensor) -> None:
    """Commit rows of B requests of one model: ``next_tokens`` [B, n], ``taps`` [B, n, width]."""
    if isinstance(chains[0], BlockChain):
        extend_block_chains(cast(Sequence[BlockChain], chains), next_tokens, taps)
    else:
        extend_eagle_chains(cast(Sequence[EagleChain], chains), next_tokens, taps)


def draft_chains(chains: Sequence[Chain], num_drafts: int, sampler: DraftSampler) -> ChainDrafts:
    """At most ``num_drafts`` after the anchor of each of B requests of one model."""
    if isinstance(chains[0], BlockChain):
        return draft_block_chains(cast(Sequence[BlockChain], chains), num_drafts, sampler)
    return draft_eagle_chains(cast(Sequence[EagleChain], chains), num_drafts, sampler)
