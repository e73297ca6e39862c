"""Chains of drafts from EAGLE-1/2 or EAGLE-3: what a request keeps between rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specfast.drafters.draws import ChainDrafts, DraftSampler, drawn_ids
from specfast.drafters.eagle import EagleModel
from specfast.drafters.layers import LayerCache, Places
from specfast.drafters.pairs import CommittedPairs, DraftedPairs, Pairs


class EagleChain:
    """The pairs of one request. With L tokens before the anchor there are L of them.

    After a prefill of x_0 ... x_(N-1) that emitted the anchor a, ``extend`` takes x_1 ... x_(N-1)
    and a, with the features of x_0 ... x_(N-1); after a round, the accepted drafts and the bonus,
    with the features of the anchor and the accepted drafts. Never a feature of a rejected row.
    """

    def __init__(self, model: EagleModel) -> None:
        self.model = model
        self.cache = LayerCache()
        self.last: Tensor | None = None

    def extend(self, next_tokens: Tensor, taps: Tensor) -> Tensor:
        """Commit pairs: ``next_tokens`` [n] emitted after the rows that ``taps`` [n, width] are of.

        Returns their hidden states [n, hidden].
        """
        return extend_eagle_chains([self], next_tokens[None], taps[None])[0]

    def draft(self, num_drafts: int) -> ChainDrafts:
        """The ``num_drafts`` tokens after the anchor, each the argmax; changes nothing.

        tokens [m], logits [m, draft vocabulary].
        """
        sampler = DraftSampler.greedy(1, self.model.device)
        return draft_eagle_chains([self], num_drafts, sampler).of_request(0)


def extend_eagle_chains(chains: Sequence[EagleChain], next_tokens: Tensor, taps: Tensor) -> Tensor:
    """Commit pairs of B requests, n each: ``next_tokens`` [B, n], ``taps`` [B, n, width].

    Returns their hidden states [B, n, hidden].
    """
    model, caches = chains[0].model, [chain.cache for chain in chains]
    steps = torch.arange(next_tokens.shape[1], device=taps.device)
    positions = pair_counts(chains)[:, None] + steps
    pairs = CommittedPairs(caches)
    places = model.places(positions)
    hidden = model.forward(next_tokens, model.features(taps), places, pairs)
    for chain, rows in zip(chains, hidden, strict=True):
        chain.last = rows[-1]
    return hidden


def draft_eagle_chains(
    chains: Sequence[EagleChain], num_drafts: int, sampler: DraftSampler
) -> ChainDrafts:
    """The ``num_drafts`` tokens after each anchor; changes nothing.

    The first needs no forward: it was made when the last pair was committed.
    """
    if num_drafts < 1:
        raise ValueError(f"draft_eagle_chains: expected num_drafts >= 1, got {num_drafts}")
    hidden, counts = last_hidden(chains), pair_counts(chains)[:, None]
    pairs = DraftedPairs([chain.cache for chain in chains])
    model = chains[0].model
    return draft_pairs(
        model, hidden, num_drafts, sampler, lambda number: (model.places(counts + number), pairs)
    )


def draft_pairs(
    model: EagleModel,
    hidden: Tensor,
    num_drafts: int,
    sampler: DraftSampler,
    behind: Callable[[int], tuple[Places, Pairs]],
) -> ChainDrafts:
    """``num_drafts`` tokens after committed pairs, of which the last gave ``hidden`` [B, 1, width].

    ``behind`` gives the place [B, 1] of drafted pair 0, 1, ... and what it attends to.
    """
    rows: list[Tensor] = []
    columns: list[Tensor] = []
    for step in range(num_drafts):
        if step > 0:
            places, pairs = behind(step - 1)
            features = model.next_features(hidden)
            tokens = columns[-1][:, None]
            hidden = model.forward(tokens, features, places, pairs, are_draft_ids=True)
        rows.append(model.logits(hidden)[:, 0])
        columns.append(sampler.draw(rows[-1]))
    return ChainDrafts(model.target_ids(drawn_ids(columns)), torch.stack(rows, 1))


def pair_counts(chains: Sequence[EagleChain]) -> Tensor:
    """int64 [B]: committed pairs, where the first drafted pair goes."""
    counts = [chain.cache.length for chain in chains]
    return torch.tensor(counts, device=chains[0].model.device)


def last_hidden(chains: Sequence[EagleChain]) -> Tensor:
    """[B, 1, hidden] of the last committed pairs."""
    last = [chain.last for chain in chains if chain.last is not None]
    if len(last) < len(chains):
        raise ValueError("EagleChain: expected committed pairs")
    return torch.stack(last)[:, None]
