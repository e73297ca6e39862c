"""A chain of drafts from EAGLE-1/2 or EAGLE-3: what one request keeps between rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.drafters.eagle import EagleModel
from specfast.drafters.layers import LayerCache


@dataclass(frozen=True)
class ChainDrafts:
    """Drafts of one request; m of them.

    tokens : int64 [m]              ids of the target
    logits : [m, draft vocabulary]  what each was the argmax of
    """

    tokens: Tensor
    logits: Tensor


class EagleChain:
    """The pairs of one request. With L tokens before the anchor there are L of them.

    After a prefill of x_0 ... x_(N-1) that emitted the anchor a, ``extend`` takes x_1 ... x_(N-1)
    and a, with the features of x_0 ... x_(N-1); after a round, the accepted drafts and the bonus,
    with the features of the anchor and the accepted drafts. Never a feature of a rejected row.
    """

    def __init__(self, model: EagleModel) -> None:
        self.model = model
        self.cache = LayerCache()
        self._last: Tensor | None = None

    def extend(self, next_tokens: Tensor, taps: Tensor) -> Tensor:
        """Commit pairs: ``next_tokens`` [n] emitted after the rows that ``taps`` [n, width] are of.

        Returns their hidden states [n, hidden].
        """
        positions = torch.arange(len(next_tokens), device=taps.device) + self.cache.length
        features = self.model.features(taps)
        hidden = self.model.forward(next_tokens, features, positions, self.cache)
        self._last = hidden[-1:]
        return hidden

    def draft(self, num_drafts: int) -> ChainDrafts:
        """The ``num_drafts`` tokens after the anchor, each the argmax; changes nothing.

        The first needs no forward: it was made when the last pair was committed.
        """
        if self._last is None or num_drafts < 1:
            raise ValueError("EagleChain.draft: expected committed pairs and num_drafts >= 1")
        committed = self.cache.length
        hidden = self._last
        rows: list[Tensor] = []
        tokens: list[Tensor] = []
        for step in range(num_drafts):
            if step > 0:
                features = self.model.next_features(hidden)
                position = torch.full((1,), committed + step - 1, device=hidden.device)
                hidden = self.model.forward(tokens[-1], features, position, self.cache)
            rows.append(self.model.logits(hidden))
            tokens.append(self.model.target_ids(rows[-1].argmax(-1)))
        self.cache.crop(committed)
        return ChainDrafts(torch.cat(tokens), torch.cat(rows))
