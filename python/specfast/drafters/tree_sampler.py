"""Draws the nodes of trees without replacement, and keeps what they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.base import DraftRequest
from specfast.drafters.draws import UNUSABLE
from specfast.drafters.sampling import prefix_lens_of, sampling_rules
from specfast.sampling import Proposal, RowRecord, SamplingRules


class TreeSampler:
    """Several draws from several rows of each request and level.

    Parameters
    ----------
    rules : SamplingRules
        Of B requests.
    prefix_lens : int32 [B]
        Committed KV lengths, which tell the rounds apart.
    """

    def __init__(self, rules: SamplingRules, prefix_lens: Tensor) -> None:
        self._rules = rules
        self._prefix_lens = prefix_lens
        self._logits: list[Tensor] = []
        self._records: list[Tensor] = []
        self._status: list[Tensor] = []

    @classmethod
    def of(cls, requests: Sequence[DraftRequest], device: torch.device) -> TreeSampler:
        """With each request's own temperature, filters and random numbers."""
        return cls(sampling_rules(requests, device), prefix_lens_of(requests, device))

    def draw(self, logits: Tensor, num_draws: int) -> Tensor:
        """Columns int64 [B, n, num_draws] drawn from ``logits`` [B, n, Vq], the next level.

        A row that has fewer repeats its first one, which q then gives no probability: it is
        rejected without a flag.
        """
        batch, count = logits.shape[:2]
        rows = torch.arange(batch * count, dtype=torch.int32, device=logits.device)
        flat = logits.flatten(0, 1)
        drawn = ops.sample_rows(
            flat,
            self._rules,
            self._prefix_lens,
            request_of_row=rows // count,
            slot_of_row=rows % count,
            level=len(self._logits),
            num_draws=num_draws,
        )
        self._logits.append(flat)
        self._records.append(drawn.records.packed)
        self._status.append(drawn.status.view(batch, count))
        tokens = drawn.tokens.long()
        return torch.where(tokens < 0, tokens[:, :1], tokens).clamp(min=0).view(batch, count, -1)

    def num_usable(self) -> Tensor:
        """int64 [B]: levels before the first with a row that nothing could be drawn from.

        That depends on the levels before it alone, so that drafts may be cut there.
        """
        is_usable = (torch.cat(self._status, 1) & int(UNUSABLE)) == 0
        levels = torch.split(is_usable, [level.shape[1] for level in self._status], 1)
        return torch.stack([level.all(1) for level in levels], 1).long().cumprod(1).sum(1)

    def proposal(self, row_of_node: Tensor, d2t: Tensor | None) -> Proposal:
        return Proposal(
            logits=torch.cat(self._logits),
            records=RowRecord(torch.cat(self._records)),
            row_of_node=row_of_node,
            d2t=d2t,
            without_replacement=True,
        )
